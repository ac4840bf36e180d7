//! OCI's JSON, as managers send it: fields that nobody here knows are logged, and a value that cannot be read is
//! named by its path.
//!
//! The specification has runtimes ignore unknown properties, and a library reads the known ones: a field that is
//! younger than the library would be lost without a word. Which fields there are is in `fields`: to have serde tell what it
//! ignores makes a shim 430 KiB larger.

mod fields;

use std::fmt::Write as _;

use bowline_error::{Error, Kind, Result};
use oci_spec::runtime::{LinuxResources, Process, Spec};
use serde::de::DeserializeOwned;

use fields::FIELDS;

/// The most unknown fields that are named in the log.
const MOST: usize = 16;

/// A type of which managers send JSON.
pub trait Sent: DeserializeOwned {
    /// What it is called: `an OCI process`.
    const NAME: &'static str;
    /// Its place in a configuration, with a dot at the end; empty for the whole.
    const PLACE: &'static str;
}

impl Sent for Spec {
    const NAME: &'static str = "an OCI configuration";
    const PLACE: &'static str = "";
}

impl Sent for Process {
    const NAME: &'static str = "an OCI process";
    const PLACE: &'static str = "process.";
}

impl Sent for LinuxResources {
    const NAME: &'static str = "OCI's resources of Linux";
    const PLACE: &'static str = "linux.resources.";
}

/// Reads `text`.
///
/// # Errors
/// `BadSpec` naming the field.
pub fn parse<T: Sent>(text: &[u8]) -> Result<T> {
    let what = T::NAME;
    let value = serde_json::from_slice(text).map_err(|error| {
        let path = path_at(text, error.line(), error.column());
        let message = format!("this is not {what}: {path}{}{error}", if path.is_empty() { "" } else { ": " });
        Error::new(Kind::BadSpec, message)
    })?;
    for path in unknown(text, T::PLACE) {
        tracing::warn!("{path} has no effect: bowline does not know this field");
    }
    Ok(value)
}

/// The paths of fields that no version of the specification has, where `text` stands at `place`.
fn unknown(text: &[u8], place: &str) -> Vec<String> {
    let mut unknown: Vec<String> = Vec::new();
    walk(text, text.len(), |steps| {
        if unknown.len() == MOST || is_known(&general(place, steps)) {
            return;
        }
        let path = path(steps);
        let is_inside =
            |outer: &String| path.strip_prefix(outer.as_str()).is_some_and(|rest| rest.starts_with(['.', '[']));
        if !unknown.iter().any(is_inside) {
            unknown.push(path);
        }
    });
    unknown
}

/// The path as [`FIELDS`] has it: `[]` for any item, `*` for a key that the manager chooses.
fn general(place: &str, steps: &[Step<'_>]) -> String {
    let mut path = place.to_owned();
    for step in steps {
        match step {
            Step::Index(_) => path.push_str("[]"),
            Step::Key(key) => {
                if !path.is_empty() && !path.ends_with('.') {
                    path.push('.');
                }
                let parent = path.len();
                path.push_str(&String::from_utf8_lossy(key));
                if !is_known(&path) && is_known(&format!("{}*", &path[..parent])) {
                    path.replace_range(parent.., "*");
                }
            }
        }
    }
    path
}

/// Whether `path` is a field, leads to one, or is inside one.
fn is_known(path: &str) -> bool {
    let ends_a_name = |field: &str| matches!(field.as_bytes().get(path.len()), None | Some(b'.' | b'['));
    let from = FIELDS.partition_point(|field| *field < path);
    let mut leads = FIELDS[from..].iter().take_while(|field| field.starts_with(path));
    leads.any(|field| ends_a_name(field))
        || path.match_indices(['.', '[']).any(|(end, _)| FIELDS.binary_search(&&path[..end]).is_ok())
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
    path(&walk(text, (start + column).min(text.len()), |_| ()))
}

/// Follows `text` up to `end`, and calls `at` for each field. Returns the steps to the value at `end`.
fn walk<'a>(text: &'a [u8], end: usize, mut at: impl FnMut(&[Step<'a>])) -> Vec<Step<'a>> {
    let mut steps: Vec<Step<'a>> = Vec::new();
    let mut here = 0;
    while here < end {
        match text[here] {
            b'{' => steps.push(Step::Key(b"")),
            b'[' => steps.push(Step::Index(0)),
            b'}' | b']' => drop(steps.pop()),
            b',' => {
                if let Some(Step::Index(index)) = steps.last_mut() {
                    *index += 1;
                }
            }
            b'"' => {
                let begin = here + 1;
                here = begin;
                while here < text.len() && text[here] != b'"' {
                    here += if text[here] == b'\\' { 2 } else { 1 };
                }
                let string = text.get(begin..here).unwrap_or_default();
                let next = text.get(here + 1..).unwrap_or_default().trim_ascii_start().first();
                if let (Some(Step::Key(key)), Some(b':')) = (steps.last_mut(), next) {
                    *key = string;
                    at(&steps);
                }
            }
            _ => {}
        }
        here += 1;
    }
    steps
}

/// `linux.namespaces[3].type`.
fn path(steps: &[Step<'_>]) -> String {
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
    use super::*;

    #[test]
    fn a_value_that_cannot_be_read_is_named_by_its_path() {
        let cases = [
            (r#"{"linux":{"namespaces":[{"type":"pid"},{"type":"dreams"}]}}"#, "linux.namespaces[1].type: unknown"),
            ("{\"a,\\\"{\": 1,\n \"root\": {\n\"path\": 5}}", "root.path: invalid type"),
            (r#"{"process":{"user":{"uid":-1}}}"#, "process.user.uid: invalid value"),
            (r#"{"linux":{"devices":[{"path":"/dev/x"}]}}"#, "linux.devices[0]: missing field `type`"),
            ("12", "not an OCI configuration: "),
        ];
        for (text, expected) in cases {
            let error = parse::<Spec>(text.as_bytes()).expect_err(text);
            assert_eq!(error.kind(), Kind::BadSpec);
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_field_that_nobody_knows_is_no_error() {
        let text =
            r#"{"process":{"user":{"uid":0,"gid":0,"shoes":1},"cwd":"/","args":["x"]},"freebsd":{},"linux":{"x":[]}}"#;
        assert!(parse::<Spec>(text.as_bytes()).is_ok());
        assert!(parse::<Process>(b"{} x").is_err());
        for broken in ["", "{", "{\"a", "\"\\", "{\"process\":{\"args\":[\"", "\u{e9}"] {
            assert!(parse::<Spec>(broken.as_bytes()).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn fields_that_no_specification_has_are_found_with_their_path() {
        let text = br#"{"freebsd":{"jail":{"x":1}},"process":{"user":{"shoes":1}},"annotations":{"a.b":"c"},
            "hooks":{"poststop":[{"path":"/x"},{"paths":1}]},"linux":{"resources":{"rdma":{"mlx5":{"hcaHandles":1,"y":2}}},
            "sysctl":{"net.x":"1"},"namespace":[]}}"#;
        let found = ["freebsd", "process.user.shoes", "hooks.poststop[1].paths", "linux.resources.rdma.mlx5.y"];
        assert_eq!(unknown(text, ""), [&found[..], &["linux.namespace"]].concat());
        assert_eq!(unknown(br#"{"args":["x"],"cwd":"/","env":{},"x":{}}"#, Process::PLACE), ["x"]);
        assert_eq!(unknown(br#"{"cpu":{"idle":1,"busy":1}}"#, LinuxResources::PLACE), ["cpu.busy"]);
    }

    #[test]
    fn fields_are_sorted() {
        assert!(FIELDS.is_sorted());
    }
}
