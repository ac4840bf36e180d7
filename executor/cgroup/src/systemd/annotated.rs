//! Properties of a container's unit that its configuration names in annotations, as runc and crun take them.
//!
//! ```text
//!   org.systemd.property.TimeoutStopUSec: "uint64 3600000000" ─► TimeoutStopUSec, a number
//! ```
//!
//! A value is GVariant's text (gvariant-text(3)) for the types that properties of units have. Pure.

use std::collections::HashMap;

use bowline_error::{Error, Kind, Result};

use super::{Property, Value};

const PREFIX: &str = "org.systemd.property.";

/// The properties that `annotations` name, in the order of their names. One whose name ends in `Sec` is in seconds, and set
/// as systemd has it, in µs.
///
/// # Errors
/// `BadSpec` naming the annotation whose name or value is none of a property.
pub fn annotated(annotations: &HashMap<String, String>) -> Result<Vec<Property>> {
    let named = annotations.iter().filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?, value)));
    let mut properties = named.map(|(name, text)| property(name, text)).collect::<Result<Vec<_>>>()?;
    properties.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(properties)
}

fn property(name: &str, text: &str) -> Result<Property> {
    let bad = |why: &str| Error::new(Kind::BadSpec, format!("annotations.{PREFIX}{name}: {why}"));
    if name.len() < 3 || !name.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        return Err(bad("that is no name of a property"));
    }
    let seconds = name.strip_suffix("Sec").filter(|stem| stem.ends_with(|last: char| last.is_ascii_lowercase()));
    if let Some(stem) = seconds {
        let micros = micros(text.trim()).ok_or_else(|| bad(&format!("{text:?} is no number of seconds")))?;
        return Ok(Property { name: format!("{stem}USec"), value: Value::Number(micros) });
    }
    let value = value(text.trim()).ok_or_else(|| bad(&format!("{text:?} is no value of a property")));
    Ok(Property { name: name.to_owned(), value: value? })
}

/// A value with or without its type.
fn value(text: &str) -> Option<Value> {
    let (kind, rest) = typed(text);
    match kind {
        "" => word(rest).or_else(|| rest.parse().ok().map(Value::Signed)),
        "b" | "boolean" => word(rest).filter(|value| matches!(value, Value::Flag(_))),
        "s" | "string" => word(rest).filter(|value| matches!(value, Value::Text(_))),
        "as" => word(rest).filter(|value| matches!(value, Value::Words(_))),
        "i" | "int32" => rest.parse().ok().map(Value::Signed),
        "u" | "uint32" => number(rest)?.try_into().ok().map(Value::Small),
        "t" | "uint64" => number(rest).map(Value::Number),
        _ => None,
    }
}

/// The type of a value, empty where there is none, and what follows.
fn typed(text: &str) -> (&str, &str) {
    match text.split_once(' ') {
        Some((kind, rest)) if kind.starts_with(|first: char| first == '@' || first.is_ascii_lowercase()) => {
            (kind.trim_start_matches('@'), rest.trim_start())
        }
        _ => ("", text),
    }
}

fn number(text: &str) -> Option<u64> {
    text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |digits| u64::from_str_radix(digits, 16).ok())
}

fn micros(text: &str) -> Option<u64> {
    let (kind, rest) = typed(text);
    if !["", "i", "int32", "u", "uint32", "t", "uint64", "d", "double"].contains(&kind) {
        return None;
    }
    number(rest).map_or_else(
        || {
            rest.parse::<f64>()
                .ok()
                .map(|seconds| seconds * 1e6)
                .filter(|micros| (0.0..1e18).contains(micros))
                .map(whole)
        },
        |seconds| seconds.checked_mul(1_000_000),
    )
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and 1e18")]
fn whole(micros: f64) -> u64 {
    micros as u64
}

/// What tells its type by its form: a flag, a text, or texts.
fn word(text: &str) -> Option<Value> {
    match text {
        "true" => return Some(Value::Flag(true)),
        "false" => return Some(Value::Flag(false)),
        _ => {}
    }
    if let Some(text) = whole_quoted(text) {
        return Some(Value::Text(text));
    }
    let mut rest = text.strip_prefix('[')?.strip_suffix(']')?.trim();
    let mut words = Vec::new();
    while !rest.is_empty() {
        let (one, after) = quoted(rest)?;
        words.push(one);
        rest = match after.trim_start() {
            "" => "",
            more => Some(more.strip_prefix(',')?.trim_start()).filter(|more| !more.is_empty())?,
        };
    }
    Some(Value::Words(words))
}

fn whole_quoted(text: &str) -> Option<String> {
    quoted(text).filter(|(_, rest)| rest.is_empty()).map(|(text, _)| text)
}

/// The text in quotes at the beginning, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let quote = text.chars().next().filter(|first| matches!(first, '\'' | '"'))?;
    let (mut out, mut characters) = (String::new(), text.char_indices().skip(1));
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => out.push(match characters.next()?.1 {
                'n' => '\n',
                't' => '\t',
                // Others of C's are in no value of a property.
                plain @ ('\\' | '\'' | '"') => plain,
                _ => return None,
            }),
            end if end == quote => return Some((out, &text[at + 1..])),
            other => out.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, text: &str) -> Result<(String, Value)> {
        let annotations = HashMap::from([(format!("{PREFIX}{name}"), text.to_owned()), ("other".into(), "[".into())]);
        let mut all = annotated(&annotations)?;
        assert_eq!(all.len(), 1);
        let Property { name, value } = all.remove(0);
        Ok((name, value))
    }

    #[test]
    fn a_value_is_read_as_gvariant_has_it() {
        let text = |text: &str| Value::Text(text.to_owned());
        let words = |words: &[&str]| Value::Words(words.iter().map(|word| (*word).to_owned()).collect());
        for (name, annotation, value) in [
            ("TimeoutStopUSec", "uint64 3600000000", Value::Number(3_600_000_000)),
            ("DefaultDependencies", "true", Value::Flag(true)),
            ("After", "['crio.service']", words(&["crio.service"])),
            ("After", "@as []", words(&[])),
            ("After", " [ 'a' , \"b\" ] ", words(&["a", "b"])),
            ("CollectMode", "'inactive-or-failed'", text("inactive-or-failed")),
            ("Description", r#""it\'s \\ mine""#, text(r"it's \ mine")),
            ("Nice", "-5", Value::Signed(-5)),
            ("LogLevelMax", "int32 3", Value::Signed(3)),
            ("UMask", "uint32 0x1ff", Value::Small(511)),
        ] {
            assert_eq!(of(name, annotation).expect("it is one"), (name.to_owned(), value));
        }
    }

    #[test]
    fn seconds_become_microseconds() {
        for text in ["90", "90.0", "uint64 90", "double 90"] {
            let read = of("TimeoutStopSec", text).expect("it is one");
            assert_eq!(read, ("TimeoutStopUSec".to_owned(), Value::Number(90_000_000)));
        }
        assert_eq!(of("TimeoutStopSec", "0.5").expect("it is one").1, Value::Number(500_000));
        assert_eq!(of("TimeoutStopSec", "-1").expect_err("none").kind(), Kind::BadSpec);
    }

    #[test]
    fn what_is_no_property_is_refused_by_its_annotation() {
        for (name, text) in [
            ("After", "['a'"),
            ("After", "['a',]"),
            ("After", "[1]"),
            ("After", "crio.service"),
            ("After", "'a' 'b'"),
            ("X", "true"),
            ("Memory-Max", "true"),
            ("Slice", "string 5"),
            ("MemoryMax", "uint64 -1"),
            ("PIDs", "@au [1]"),
            ("Nice", ""),
            ("UMask", "uint32 4294967296"),
        ] {
            let error = of(name, text).expect_err("it is none");
            assert!(error.kind() == Kind::BadSpec && error.message().contains(name), "{name} {text}: {error}");
        }
    }
}
