//! A task's description as the text that its shim gets.
//!
//! A path is the only thing in it that may not be UTF-8, such as one that was made absolute in a folder with such a name.
//! The writer follows which field it is in, so that the error names it.

use std::io;

use serde::Serialize as _;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};

use crate::{Invalid, Task};

/// The description as JSON. Callers write it before they start a shim.
///
/// # Errors
/// The field whose path is not UTF-8.
pub fn written(task: &Task) -> Result<String, Invalid> {
    let (mut text, mut place) = (Vec::new(), Place::default());
    let done = task.serialize(&mut Serializer::with_formatter(&mut text, Following(&mut place)));
    let text = done.ok().and_then(|()| String::from_utf8(text).ok());
    text.ok_or_else(|| Invalid::new(place.field(), "the path, from the top on, is not UTF-8"))
}

/// Where in the description the writer is.
#[derive(Default)]
struct Place {
    /// The member of each object or list that has been begun and not ended; `None` before the first.
    steps: Vec<Option<Step>>,
    is_in_key: bool,
}

enum Step {
    Key(String),
    Element(usize),
}

impl Place {
    fn field(&self) -> String {
        self.steps.iter().flatten().fold(String::new(), |field, step| match step {
            Step::Key(key) if field.is_empty() => key.clone(),
            Step::Key(key) => format!("{field}.{key}"),
            Step::Element(index) => format!("{field}[{index}]"),
        })
    }

    fn go_to(&mut self, step: Step) {
        if let Some(last) = self.steps.last_mut() {
            *last = Some(step);
        }
    }
}

struct Following<'p>(&'p mut Place);

impl Formatter for Following<'_> {
    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.steps.push(None);
        CompactFormatter.begin_object(writer)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.steps.pop();
        CompactFormatter.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.go_to(Step::Key(String::new()));
        self.0.is_in_key = true;
        CompactFormatter.begin_object_key(writer, first)
    }

    fn end_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.is_in_key = false;
        CompactFormatter.end_object_key(writer)
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if let (true, Some(Some(Step::Key(key)))) = (self.0.is_in_key, self.0.steps.last_mut()) {
            key.push_str(fragment);
        }
        CompactFormatter.write_string_fragment(writer, fragment)
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.steps.push(None);
        CompactFormatter.begin_array(writer)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.steps.pop();
        CompactFormatter.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        let index = match self.0.steps.last() {
            Some(Some(Step::Element(index))) => index + 1,
            _ => 0,
        };
        self.0.go_to(Step::Element(index));
        CompactFormatter.begin_array_value(writer, first)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;
    use crate::Mount;

    #[test]
    fn the_field_with_the_path_is_named() {
        let plain = Mount { destination: "/a".into(), ..Mount::default() };
        let odd = Mount { source: Some(OsStr::from_bytes(b"/tmp/d\xff").into()), ..plain.clone() };
        let mut task = Task { command: "true".to_owned(), mounts: vec![plain, odd], ..Task::default() };
        let error = written(&task).expect_err("not UTF-8");
        assert_eq!(error.field, "mounts[1].source");
        task.mounts.pop();
        let text = written(&task).expect("UTF-8");
        assert_eq!(text, serde_json::to_string(&task).expect("UTF-8"));
    }
}
