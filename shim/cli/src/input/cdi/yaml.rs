//! YAML as vendors write it, as a value of JSON: one document, without anchors, aliases and tags.
//!
//! Without aliases a value is never larger than its text. Must not: know what the text says.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Number, Value};

/// How deep lists and mappings may nest: far more than a file of CDI needs.
const DEEPEST: usize = 32;

/// A list or mapping that has begun, and the key of the value that comes next in it.
enum Open {
    List(Vec<Value>),
    Mapping(Map<String, Value>, Option<String>),
}

/// Reads the document in `text`.
///
/// # Errors
/// What is wrong, with its line.
pub fn parse(text: &str) -> Result<Value, String> {
    let (mut open, mut done) = (Vec::new(), None);
    let mut parser = Parser::new_from_str(text);
    while let Some(next) = parser.next_event() {
        let (event, span) = next.map_err(|error| error.to_string())?;
        let at_line = |why: &str| format!("{why} at line {}", span.start.line());
        let value = match event {
            Event::Scalar(text, style, 0, None) => match style {
                ScalarStyle::Plain => plain(&text),
                _ => Value::String(text.into_owned()),
            },
            Event::SequenceStart(0, None) | Event::MappingStart(0, None) if open.len() == DEEPEST => {
                return Err(at_line("it nests too deep"));
            }
            Event::SequenceStart(0, None) => {
                open.push(Open::List(Vec::new()));
                continue;
            }
            Event::MappingStart(0, None) => {
                open.push(Open::Mapping(Map::new(), None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(Open::List(list)) => Value::Array(list),
                Some(Open::Mapping(mapping, _)) => Value::Object(mapping),
                None => return Err(at_line("an end without a beginning")),
            },
            Event::Alias(_) | Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..) => {
                return Err(at_line("anchors, aliases and tags are not read:"));
            }
            Event::DocumentStart(_) if done.is_some() => return Err(at_line("a second document")),
            _ => continue,
        };
        match open.last_mut() {
            None => done = Some(value),
            Some(Open::List(list)) => list.push(value),
            Some(Open::Mapping(mapping, key)) => match (key.take(), value) {
                (None, Value::Null | Value::Array(_) | Value::Object(_)) => {
                    return Err(at_line("a name that is no text"));
                }
                (None, value) => {
                    let name = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    if mapping.contains_key(&name) {
                        return Err(at_line(&format!("{name} is there twice,")));
                    }
                    *key = Some(name);
                }
                // A field without a value is left out.
                (Some(_), Value::Null) => {}
                (Some(name), value) => drop(mapping.insert(name, value)),
            },
        }
    }
    done.ok_or_else(|| "it is empty".to_owned())
}

/// A scalar without quotes: null, a boolean, a number or text, octal numbers as in YAML 1.1 too.
fn plain(text: &str) -> Value {
    let radix =
        |digits: &str, radix| i64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with(['+', '-']));
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let number = match text.strip_prefix('0').filter(|rest| !rest.is_empty()) {
        Some(rest) => match rest.strip_prefix('x') {
            Some(digits) => radix(digits, 16),
            None => radix(rest.strip_prefix('o').unwrap_or(rest), 8),
        },
        None => text.parse().ok(),
    };
    let begins_number = text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first));
    let float = || text.parse().ok().filter(|_| begins_number).and_then(Number::from_f64);
    number.map(Number::from).or_else(float).map_or_else(|| text.into(), Value::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_file_as_vendors_write_it() {
        let text = "---\ncdiVersion: 0.5.0\ncontainerEdits:\n  deviceNodes:\n  - path: /dev/a # one\n    fileMode: 0660\n  \
                    mounts:\n  \
                    env:\n  - A=b c\n  hooks:\n  - args: [x, \"--y\", 'z']\ndevices:\n- name: \"0\"\n  containerEdits: {}\n";
        let expected = json!({
            "cdiVersion": "0.5.0",
            "containerEdits": {
                "deviceNodes": [{"path": "/dev/a", "fileMode": 0o660}], "env": ["A=b c"],
                "hooks": [{"args": ["x", "--y", "z"]}],
            },
            "devices": [{"name": "0", "containerEdits": {}}],
        });
        assert_eq!(parse(text), Ok(expected.clone()));
        assert_eq!(parse(&serde_json::to_string_pretty(&expected).expect("JSON")), Ok(expected));
    }

    #[test]
    fn scalars_are_what_they_look_like() {
        for (text, value) in [
            ("12", json!(12)),
            ("-1", json!(-1)),
            ("0", json!(0)),
            ("0x1f", json!(31)),
            ("0o17", json!(15)),
            ("017", json!(15)),
            ("09", json!(9.0)),
            ("1.5", json!(1.5)),
            ("0.7.0", json!("0.7.0")),
            ("~", json!(null)),
            ("True", json!(true)),
            ("yes", json!("yes")),
            ("inf", json!("inf")),
            ("'12'", json!("12")),
        ] {
            assert_eq!(parse(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn what_is_not_read_is_named_with_its_line() {
        let deep = "[".repeat(100);
        for (text, why) in [
            ("", "empty"),
            ("a: 1\na: 2", "a is there twice, at line 2"),
            ("a: &b 1\nc: *b", "aliases and tags are not read: at line 1"),
            ("a: !!str 1", "tags"),
            ("[1]: a", "no text"),
            ("1: a\n'1': b", "1 is there twice, at line 2"),
            ("a: 1\n---\nb: 2", "second document"),
            (&deep, "too deep"),
            ("a: [", "line"),
        ] {
            let error = parse(text).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }
}
