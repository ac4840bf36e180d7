//! OCI's JSON, as managers send it: fields that nobody here knows are logged, and a value that cannot be read is
//! named by its path.
//!
//! The specification has runtimes ignore unknown properties, and a library reads the known ones: a field that is
//! younger than the library would be lost without a word.

use std::fmt::Write as _;

use bowline_error::{Error, Kind, Result};
use serde::de::DeserializeOwned;

/// The most unknown fields that are named in the log.
const MOST: usize = 16;

/// Reads `text`, which is `what`: `an OCI process`.
///
/// # Errors
/// `BadSpec` naming the field.
pub fn parse<T: DeserializeOwned>(text: &[u8], what: &str) -> Result<T> {
    let mut unknown = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(text);
    let read = serde_ignored::deserialize(&mut reader, |path| {
        if unknown.len() < MOST {
            // `?` stands for an optional value.
            unknown.push(path.to_string().replace(".?", "").replace("?.", ""));
        }
    });
    let read = read.and_then(|value| reader.end().map(|()| value));
    let value = read.map_err(|error| {
        let path = path_at(text, error.line(), error.column());
        let message = format!("this is not {what}: {path}{}{error}", if path.is_empty() { "" } else { ": " });
        Error::new(Kind::BadSpec, message)
    })?;
    for path in unknown {
        tracing::warn!("{path} has no effect: bowline does not know this field");
    }
    Ok(value)
}

/// One step of a path.
enum Step<'a> {
    Key(&'a [u8]),
    Index(usize),
}

/// The path of the value that ends before this place: `linux.namespaces[3].type`. Lines and columns begin at 1.
fn path_at(text: &[u8], line: usize, column: usize) -> String {
    let start =
        text.split_inclusive(|byte| *byte == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum::<usize>();
    let end = (start + column).min(text.len());
    let mut steps: Vec<Step<'_>> = Vec::new();
    let mut at = 0;
    while at < end {
        match text[at] {
            b'{' => steps.push(Step::Key(b"")),
            b'[' => steps.push(Step::Index(0)),
            b'}' | b']' => drop(steps.pop()),
            b',' => {
                if let Some(Step::Index(index)) = steps.last_mut() {
                    *index += 1;
                }
            }
            b'"' => {
                let begin = at + 1;
                at = begin;
                while at < text.len() && text[at] != b'"' {
                    at += if text[at] == b'\\' { 2 } else { 1 };
                }
                let string = text.get(begin..at).unwrap_or_default();
                let next = text.get(at + 1..).unwrap_or_default().trim_ascii_start().first();
                if let (Some(Step::Key(key)), Some(b':')) = (steps.last_mut(), next) {
                    *key = string;
                }
            }
            _ => {}
        }
        at += 1;
    }
    let mut path = String::new();
    for step in steps {
        // Writing to a String cannot fail.
        let _ = match step {
            Step::Key(key) if path.is_empty() => write!(path, "{}", String::from_utf8_lossy(key)),
            Step::Key(key) => write!(path, ".{}", String::from_utf8_lossy(key)),
            Step::Index(index) => write!(path, "[{index}]"),
        };
    }
    path
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::{Process, Spec};

    use super::*;

    #[test]
    fn a_value_that_cannot_be_read_is_named_by_its_path() {
        let cases = [
            (r#"{"linux":{"namespaces":[{"type":"pid"},{"type":"dreams"}]}}"#, "linux.namespaces[1].type: unknown"),
            ("{\"a,\\\"{\": 1,\n \"root\": {\n\"path\": 5}}", "root.path: invalid type"),
            (r#"{"process":{"user":{"uid":-1}}}"#, "process.user.uid: invalid value"),
            (r#"{"linux":{"devices":[{"path":"/dev/x"}]}}"#, "linux.devices[0]: missing field `type`"),
            ("12", "not a configuration: "),
        ];
        for (text, expected) in cases {
            let error = parse::<Spec>(text.as_bytes(), "a configuration").expect_err(text);
            assert_eq!(error.kind(), Kind::BadSpec);
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_field_that_nobody_knows_is_no_error() {
        let text =
            r#"{"process":{"user":{"uid":0,"gid":0,"shoes":1},"cwd":"/","args":["x"]},"freebsd":{},"linux":{"x":[]}}"#;
        assert!(parse::<Spec>(text.as_bytes(), "a configuration").is_ok());
        assert!(parse::<Process>(b"{} x", "an OCI process").is_err());
        for broken in ["", "{", "{\"a", "\"\\", "{\"process\":{\"args\":[\"", "\u{e9}"] {
            assert!(parse::<Spec>(broken.as_bytes(), "a configuration").is_err(), "{broken:?}");
        }
    }
}
