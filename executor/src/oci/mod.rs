//! OCI's JSON, as managers send it: fields that nobody here knows are logged, and a value that cannot be read is
//! named by its path.
//!
//! The specification has runtimes ignore unknown properties, and a library reads the known ones: a field that is
//! younger than the library would be lost without a word. Which fields there are is in `fields`: to have serde tell what it
//! ignores makes a shim 430 KiB larger. serde also takes a list for an object, by the order of fields in the library.

pub(crate) mod bundle;
pub(crate) mod bundle_task;
pub(crate) mod features;
pub(crate) mod host;
pub(crate) mod member;
pub(crate) mod tolerance;
pub(crate) mod unsupported;

mod field_position;
mod fields;

use std::fmt::Write as _;

use bowline_error::{Error, Kind, Result};
use oci_spec::runtime::{LinuxResources, Process, Spec};
use serde::de::DeserializeOwned;

use field_position::FieldPosition;

/// The most unknown fields that are named in the log.
const MOST: usize = 16;

/// Switches of an earlier version of the specification, by other names than the library has for them. Their section is
/// not supported.
const UNREAD: [&str; 2] = ["linux.intelRdt.enableCMT", "linux.intelRdt.enableMBM"];

/// A type of which managers send JSON.
pub trait Sent: DeserializeOwned {
    /// What it is called: `an OCI process`.
    const NAME: &'static str;
    /// Its position in a configuration; empty for the whole.
    const PLACE: &'static str;

    /// Takes the limit of processes out, which the library has at 0 where there is none.
    fn unset_pids(&mut self) {}
}

impl Sent for Spec {
    const NAME: &'static str = "an OCI configuration";
    const PLACE: &'static str = "";

    fn unset_pids(&mut self) {
        let resources = self.linux_mut().as_mut().and_then(|linux| linux.resources_mut().as_mut());
        resources.into_iter().for_each(Sent::unset_pids);
    }
}

impl Sent for Process {
    const NAME: &'static str = "an OCI process";
    const PLACE: &'static str = "process";
}

impl Sent for LinuxResources {
    const NAME: &'static str = "OCI's resources of Linux";
    const PLACE: &'static str = "linux.resources";

    fn unset_pids(&mut self) {
        self.set_pids(None);
    }
}

/// Reads `text`.
///
/// # Errors
/// `BadSpec` naming the field; `Unsupported` for one that the library does not know.
pub fn parse<T: Sent>(text: &[u8]) -> Result<T> {
    let refused = |path: &str, error: &dyn std::fmt::Display| {
        let (what, colon) = (T::NAME, if path.is_empty() { "" } else { ": " });
        Error::new(Kind::BadSpec, format!("this is not {what}: {path}{colon}{error}"))
    };
    let mut value: T =
        serde_json::from_slice(text).map_err(|error| refused(&path_at(text, error.line(), error.column()), &error))?;
    let found = look(text, T::PLACE);
    if let Some(path) = found.list {
        return Err(refused(&path, &"invalid type: list, expected an object"));
    }
    if let Some(field) = found.unread {
        return Err(Error::new(Kind::Unsupported, format!("{field} is not supported")));
    }
    for path in found.unknown {
        tracing::warn!("{path} has no effect: bowline does not know this field");
    }
    if !found.limits_pids {
        value.unset_pids();
    }
    Ok(value)
}

/// What serde says nothing of.
#[derive(Debug, Default)]
struct Found {
    /// The paths of fields that no version of the specification has.
    unknown: Vec<String>,
    /// The path of the first list that is in the place of an object.
    list: Option<String>,
    /// A field that is set and that the library does not read.
    unread: Option<&'static str>,
    /// Whether the number of processes has a limit, which may be 0.
    limits_pids: bool,
}

/// Looks through `text`, which stands at `section`.
fn look(text: &[u8], section: &str) -> Found {
    let mut found = Found::default();
    let pids = FieldPosition::of("linux.resources.pids.limit");
    walk(text, text.len(), FieldPosition::of(section), |steps, position, value| match position {
        _ if position == pids => found.limits_pids = value != Some(b'n'),
        FieldPosition::Unknown if found.unknown.len() < MOST => found.unknown.push(path(steps)),
        _ if value == Some(b'[') && position.is_object() => {
            found.list.get_or_insert_with(|| path(steps));
        }
        // False and null are unset.
        _ if !matches!(value, Some(b'f' | b'n')) => {
            found.unread = found.unread.or(position.field().filter(|field| UNREAD.contains(field)));
        }
        _ => {}
    });
    found
}

/// One step of a path.
struct Step<'a> {
    name: Name<'a>,
    /// Where the object or list is that the step is in.
    within: FieldPosition,
    /// The position of the value that the step leads to.
    to: FieldPosition,
}

enum Name<'a> {
    Key(&'a [u8]),
    Index(usize),
}

/// The path of the value that ends before this position: `linux.namespaces[3].type`. Lines and columns begin at 1.
fn path_at(text: &[u8], line: usize, column: usize) -> String {
    let start =
        text.split_inclusive(|byte| *byte == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum::<usize>();
    path(&walk(text, (start + column).min(text.len()), FieldPosition::TOP, |_, _, _| ()))
}

/// Follows `text`, which stands at `top`, up to `end`. Calls `at` for each value of a field and each list: the steps to it,
/// its position, and the byte that it begins with. Returns the steps to the value at `end`.
fn walk<'a>(
    text: &'a [u8],
    end: usize,
    top: FieldPosition,
    mut at: impl FnMut(&[Step<'a>], FieldPosition, Option<u8>),
) -> Vec<Step<'a>> {
    let mut steps: Vec<Step<'a>> = Vec::new();
    let mut here = 0;
    while here < end {
        let byte = text[here];
        match byte {
            b'{' => {
                let within = steps.last().map_or(top, |step| step.to);
                steps.push(Step { name: Name::Key(b""), within, to: FieldPosition::Inside });
            }
            b'[' => {
                let within = steps.last().map_or(top, |step| step.to);
                at(&steps, within, Some(byte));
                steps.push(Step { name: Name::Index(0), within, to: within.item() });
            }
            b'}' | b']' => drop(steps.pop()),
            b',' => {
                if let Some(Step { name: Name::Index(index), .. }) = steps.last_mut() {
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
                let mut next =
                    text.get(here + 1..).unwrap_or_default().iter().filter(|byte| !byte.is_ascii_whitespace());
                if let (Some(Step { name: Name::Key(key), within, to }), Some(b':')) = (steps.last_mut(), next.next()) {
                    *key = string;
                    *to = within.key(string);
                    let (position, value) = (*to, next.next().copied());
                    if value != Some(b'[') {
                        at(&steps, position, value);
                    }
                }
            }
            _ => {}
        }
        here += 1;
    }
    steps
}

/// Writes steps as `linux.namespaces[3].type`.
fn path(steps: &[Step<'_>]) -> String {
    let mut path = String::new();
    for step in steps {
        // Writing to a String cannot fail.
        let _ = match step.name {
            Name::Key(key) if path.is_empty() => write!(path, "{}", String::from_utf8_lossy(key)),
            Name::Key(key) => write!(path, ".{}", String::from_utf8_lossy(key)),
            Name::Index(index) => write!(path, "[{index}]"),
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
        assert_eq!(look(text, "").unknown, [&found[..], &["linux.namespace"]].concat());
        assert_eq!(look(br#"{"args":["x"],"cwd":"/","env":{},"x":{}}"#, Process::PLACE).unknown, ["x"]);
        assert_eq!(look(br#"{"cpu":{"idle":1,"busy":1}}"#, LinuxResources::PLACE).unknown, ["cpu.busy"]);
    }

    #[test]
    fn a_list_is_no_object() {
        for (text, named) in [
            (r#"{"ociVersion":"1.0.0","hooks":[]}"#, "hooks: invalid type: list"),
            (r#"{"ociVersion":"1.0.0","root": ["/x",false]}"#, "root: invalid type: list"),
            (r#"{"ociVersion":"1.0.0","zos":[]}"#, "zos: invalid type: list"),
            (
                r#"{"ociVersion":"1.0.0","linux":{"resources":{"pids":[3]}}}"#,
                "linux.resources.pids: invalid type: list",
            ),
            (r#"{"ociVersion":"1.0.0","mounts":[["/x","tmpfs","t",null,null,null]]}"#, "mounts[0]: invalid type: list"),
        ] {
            let error = parse::<Spec>(text.as_bytes()).expect_err(text);
            assert_eq!(error.kind(), Kind::BadSpec);
            assert!(error.to_string().contains(named), "{text}: {error}");
        }
        let error = parse::<LinuxResources>(b"[]").expect_err("a list");
        assert!(error.to_string().contains("Linux: invalid type: list"), "{error}");
    }

    #[test]
    fn a_switch_that_the_library_does_not_read_is_refused() {
        let parse = |value: &str| {
            let text =
                format!(r#"{{"ociVersion":"1.0.0","linux":{{"intelRdt":{{"enableCMT":{value},"enableMBM":false}}}}}}"#);
            parse::<Spec>(text.as_bytes()).map(drop).map_err(|error| (error.kind(), error.to_string()))
        };
        assert_eq!(parse("false"), Ok(()));
        let refused = (Kind::Unsupported, "linux.intelRdt.enableCMT is not supported".to_owned());
        assert_eq!(parse("true"), Err(refused));
    }
}
