//! From text to a description; every error with its field, line and column.

pub use crate::format::Format;
use crate::invalid::Invalid;
use crate::locate::{Places, line_and_column, offset_at};
use crate::task::{Sandbox, Task};
use crate::update::Update;
use serde::de::DeserializeOwned;

/// The description in `text`, validated.
///
/// # Errors
/// Malformed text, an unknown field, a value of the wrong kind, or what
/// [`Task::validate`] finds. `line` and `column` are set wherever the field
/// stands in the text; of a field that is missing, they are those of the table
/// around it, if any.
pub fn parse(text: &str, format: Format) -> Result<Task, Invalid> {
    parse_with(text, format, |_| {})
}

/// Like [`parse`], but lets `on_top` change the description before it is validated, so `on_top` may add
/// what the text lacks.
///
/// # Errors
/// As [`parse`]; the place is that of the field in the text, whoever set it.
pub fn parse_with(text: &str, format: Format, on_top: impl FnOnce(&mut Task)) -> Result<Task, Invalid> {
    parse_valid(text, format, on_top, Task::validate)
}

/// Like [`parse_with`], for a member of a sandbox.
///
/// # Errors
/// What [`Task::validate_member`] finds.
pub fn parse_member_with(text: &str, format: Format, on_top: impl FnOnce(&mut Task)) -> Result<Task, Invalid> {
    parse_valid(text, format, on_top, Task::validate_member)
}

fn parse_valid<T: DeserializeOwned>(
    text: &str,
    format: Format,
    on_top: impl FnOnce(&mut T),
    validate: impl FnOnce(&T) -> Result<(), Invalid>,
) -> Result<T, Invalid> {
    let mut described: T = read(text, format)?;
    on_top(&mut described);
    validate(&described).map_err(|error| found_in(error, text, format))?;
    Ok(described)
}

/// The description of a sandbox in `text`, validated.
///
/// # Errors
/// As [`parse`].
pub fn parse_sandbox(text: &str, format: Format) -> Result<Sandbox, Invalid> {
    parse_sandbox_with(text, format, |_| {})
}

/// Like [`parse_sandbox`], but lets `on_top` change the description before it is validated.
///
/// # Errors
/// As [`parse_with`].
pub fn parse_sandbox_with(text: &str, format: Format, on_top: impl FnOnce(&mut Sandbox)) -> Result<Sandbox, Invalid> {
    parse_valid(text, format, on_top, Sandbox::validate)
}

/// The update in `text`; what it makes of a task is checked when it is applied.
///
/// # Errors
/// Malformed text, an unknown field, or a value of the wrong kind, with its place.
pub fn parse_update(text: &str, format: Format) -> Result<Update, Invalid> {
    read(text, format)
}

/// The JSON schema of a description.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Task).to_value()
}

/// The JSON schema of a sandbox's description.
pub fn sandbox_schema() -> serde_json::Value {
    schemars::schema_for!(Sandbox).to_value()
}

pub(crate) fn read<T: DeserializeOwned>(text: &str, format: Format) -> Result<T, Invalid> {
    let (reason, offset) = match format {
        Format::Toml => match toml::from_str(text) {
            Ok(task) => return Ok(task),
            Err(error) => (error.message().to_string(), error.span().map(|s| s.start)),
        },
        Format::Json => match serde_json::from_str(text) {
            Ok(task) => return Ok(task),
            Err(error) => {
                let offset = offset_at(text, error.line(), error.column());
                (json_reason(&error), Some(offset))
            }
        },
    };
    let Some(offset) = offset else {
        return Err(Invalid::value(reason));
    };
    let field = Places::of(text, format).path_at(offset).to_string();
    Err(placed(Invalid::new(field, reason), text, offset))
}

/// What is wrong with a field, with its place if it stands in `text`.
pub(crate) fn found_in(error: Invalid, text: &str, format: Format) -> Invalid {
    match Places::of(text, format).offset_of(&error.field) {
        Some(offset) => placed(error, text, offset),
        None => error,
    }
}

fn placed(error: Invalid, text: &str, offset: usize) -> Invalid {
    let (line, column) = line_and_column(text, offset);
    Invalid { line: Some(line), column: Some(column), ..error }
}

/// serde_json's message without the position that it ends with.
pub(crate) fn json_reason(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    message.strip_suffix(&position).unwrap_or(&message).into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn toml_error(text: &str) -> (String, Option<usize>, String) {
        let error = parse(text, Format::Toml).unwrap_err();
        (error.field, error.line, error.reason)
    }

    fn json_error(text: &str) -> (String, Option<usize>, String) {
        let error = parse(text, Format::Json).unwrap_err();
        (error.field, error.line, error.reason)
    }

    #[test]
    fn an_unknown_field_is_told_with_its_line() {
        let (field, line, reason) = toml_error("command = 'a'\n\n[memory]\nlimits = '1G'\n");
        assert_eq!((field.as_str(), line), ("memory.limits", Some(4)));
        assert!(reason.starts_with("unknown field `limits`"), "{reason}");
        let (field, line, reason) = toml_error("command = 'a'\ncomand = 'b'");
        assert_eq!((field.as_str(), line), ("comand", Some(2)));
        assert!(reason.starts_with("unknown field `comand`"), "{reason}");

        let (field, line, reason) = json_error("{\"command\": \"a\",\n \"memory\": {\n  \"limits\": \"1G\"}}");
        assert_eq!((field.as_str(), line), ("memory.limits", Some(3)));
        assert!(reason.starts_with("unknown field `limits`"), "{reason}");
    }

    #[test]
    fn a_wrong_unit_is_told_with_its_field_and_line() {
        let (field, line, reason) = toml_error("command = 'a'\nmemory.limit = '64Q'");
        assert_eq!((field.as_str(), line), ("memory.limit", Some(2)));
        assert_eq!(reason, "\"64Q\" is not a size; write it as 64M, 1G or a number of bytes");

        let (field, line, reason) =
            json_error("{\"command\": \"a\",\n \"memory\": {\"limit\": \"64Q\"},\n \"pids\": 3}");
        assert_eq!((field.as_str(), line), ("memory.limit", Some(2)));
        assert_eq!(reason, "\"64Q\" is not a size; write it as 64M, 1G or a number of bytes");
    }

    #[test]
    fn a_wrong_type_is_told_with_its_field_and_line() {
        for (toml, json, field) in [
            ("args = 'a'", r#"{"args": "a"}"#, "args"),
            ("args = ['a', 1]", r#"{"args": ["a", 1]}"#, "args[1]"),
            ("env = {A = 1}", r#"{"env": {"A": 1}}"#, "env.A"),
            ("name = 5", r#"{"name": 5}"#, "name"),
            ("no_new_privs = 'yes'", r#"{"no_new_privs": "yes"}"#, "no_new_privs"),
            ("cpu.limit = 0", r#"{"cpu": {"limit": 0}}"#, "cpu.limit"),
            ("cpu.limit = -1.5", r#"{"cpu": {"limit": -1.5}}"#, "cpu.limit"),
            ("cpu.limit = nan", r#"{"cpu": {"limit": "nan"}}"#, "cpu.limit"),
            ("stop.signal = 'SIGFOO'", r#"{"stop": {"signal": "SIGFOO"}}"#, "stop.signal"),
            ("capabilities.add = ['FLY']", r#"{"capabilities": {"add": ["FLY"]}}"#, "capabilities.add[0]"),
            ("rlimits.files = 1", r#"{"rlimits": {"files": 1}}"#, "rlimits.files"),
            ("rlimits.nofile = -1", r#"{"rlimits": {"nofile": -1}}"#, "rlimits.nofile"),
            ("memory.limit = -1", r#"{"memory": {"limit": -1}}"#, "memory.limit"),
            ("namespaces.pid = 'mine'", r#"{"namespaces": {"pid": "mine"}}"#, "namespaces.pid"),
        ] {
            let (found, line, reason) = toml_error(toml);
            assert_eq!((found.as_str(), line), (field, Some(1)), "{toml}: {reason}");
            let (found, line, reason) = json_error(json);
            assert_eq!((found.as_str(), line), (field, Some(1)), "{json}: {reason}");
        }
    }

    #[test]
    fn malformed_text_is_told_with_its_line() {
        assert_eq!(toml_error("command = 'a'\nmemory = = 1").1, Some(2));
        assert_eq!(json_error("{\"command\":\n \"a\",,}").1, Some(2));
        assert_eq!(json_error("").1, Some(1));
    }

    #[test]
    fn what_validate_finds_is_told_with_its_line() {
        let (field, line, _) = toml_error("command = 'a'\n[memory]\nlimit = '1M'\n");
        assert_eq!((field.as_str(), line), ("memory.limit", Some(3)));
        let (field, line, _) = toml_error("command = 'a'\n[[mounts]]\nsource = '/a'\ndestination = '/proc'\n");
        assert_eq!((field.as_str(), line), ("mounts[0].destination", Some(4)));
        let (field, line, _) = toml_error("args = ['x']");
        assert_eq!((field.as_str(), line), ("command", None));
    }

    #[test]
    fn both_languages_read_the_same() {
        let toml = "command = 'a'\npids = 'max'\nuser = 1000\n[memory]\nlimit = 67108864\n[stop]\ngrace = 3";
        let json = r#"{"command": "a", "pids": "max", "user": "1000",
            "memory": {"limit": "64M"}, "stop": {"grace": "3s"}}"#;
        let read = parse(toml, Format::Toml).unwrap();
        assert_eq!(read, parse(json, Format::Json).unwrap());
        let written = toml::to_string(&read).unwrap();
        assert_eq!(parse(&written, Format::Toml).unwrap(), read);
        let written = serde_json::to_string(&read).unwrap();
        assert_eq!(parse(&written, Format::Json).unwrap(), read);
    }

    #[test]
    fn the_schema_names_every_field_and_no_other() {
        let schema = schema();
        assert_eq!(schema["additionalProperties"], false);
        let either = serde_json::json!([{ "required": ["command"] }, { "required": ["bundle"] }]);
        assert_eq!(schema["anyOf"], either);
        let properties = schema["properties"].as_object().unwrap();
        for field in ["command", "memory", "namespaces", "mounts", "stop"] {
            assert!(properties.contains_key(field), "{field}");
        }
    }

    #[test]
    fn the_schema_of_a_sandbox_is_closed_too() {
        let schema = sandbox_schema();
        assert_eq!(schema["additionalProperties"], false);
        let properties: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        let known = [
            "budget",
            "cgroup",
            "cpu",
            "hostname",
            "hugepages",
            "members",
            "memory",
            "name",
            "network",
            "overhead",
            "overhead_prefix",
            "pids",
            "place",
            "qos",
            "share_pid",
        ];
        assert_eq!(properties, known);
    }

    #[test]
    fn a_sandbox_is_read_the_same_from_both_languages() {
        let toml = "name = 'web'\nqos = 'best-effort'\ncgroup = 'best-effort'\npids = 'max'\n[cpu]\nlimit = 0.5";
        let json = r#"{"name": "web", "qos": "best-effort", "cgroup": "best-effort",
            "pids": "unlimited", "cpu": {"limit": "0.5"}}"#;
        let read = parse_sandbox(toml, Format::Toml).unwrap();
        assert_eq!(read, parse_sandbox(json, Format::Json).unwrap());
        assert_eq!(parse_sandbox(&toml::to_string(&read).unwrap(), Format::Toml).unwrap(), read);
        assert_eq!(toml::to_string(&Sandbox::default()).unwrap(), "");
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in "\\PC*|[\\[\\]{}=\"'a-z0-9.\n]*") {
            let _ = parse(&text, Format::Toml);
            let _ = parse(&text, Format::Json);
        }
    }
}
