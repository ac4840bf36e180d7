//! Records on disk, as JSON. Each names the version of its form, and is read whatever version has written it.
//!
//! ```text
//!   value ─► text, with its version ─► file
//!   file ─► JSON ─► known fields alone ─► value, or `Damaged`
//! ```
//!
//! Fields that this version does not know are ignored at every depth, so that an older bowline
//! reads what a newer one has written; fields that an older one did not write have defaults. The
//! version covers what even that does not bridge: it tells a record of a newer form from a damaged
//! one. Must not: know what a record means.

mod lenient_json;

use std::path::Path;

use bowline_error::{Error, Kind, Result};
use serde::Serialize;
use serde::de::{Deserialize as _, DeserializeOwned, Deserializer};
use serde_json::Value;

/// The version of the form that is written. A new field that may be ignored does not change it.
const VERSION: u64 = 1;

/// The text of `value` as a record.
pub fn text<T: Serialize>(value: &T) -> serde_json::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(value)?;
    // Done by hand: a second type for each record would be as much code again in every shim. A list has no version.
    if text.starts_with(b"{\"") {
        text.splice(..1, format!("{{\"version\":{VERSION},").into_bytes());
    }
    Ok(text)
}

/// Parses the text of the record at `path`.
///
/// # Errors
/// `Damaged` where it cannot be read.
pub fn parse<T: DeserializeOwned>(text: &[u8], path: &Path) -> Result<T> {
    let damaged = |cause| Error::new(Kind::Damaged, format!("{} is damaged: {cause}", path.display()));
    let value: Value = serde_json::from_slice(text).map_err(damaged)?;
    let version = value.get("version").and_then(Value::as_u64).unwrap_or(VERSION);
    lenient_json::from_value(value).map_err(|cause| match version {
        newer if newer > VERSION => {
            Error::new(Kind::Damaged, format!("{}: {}: {cause}", path.display(), newer_form(newer)))
        }
        _ => damaged(cause),
    })
}

/// Checks that nothing is lost where the record of this text is written again: whoever takes a task over does that.
///
/// # Errors
/// `WrongState` where a newer bowline has written it.
pub fn check_form(text: &[u8], path: &Path) -> Result<()> {
    let value: Option<Value> = serde_json::from_slice(text).ok();
    match value.as_ref().and_then(|value| value.get("version")) {
        Some(version) if version.as_u64().is_none_or(|version| version > VERSION) => {
            Err(Error::new(Kind::WrongState, format!("{}: version: {}", path.display(), newer_form(version))))
        }
        _ => Ok(()),
    }
}

fn newer_form(version: impl std::fmt::Display) -> String {
    format!("its form is {version}, of a newer bowline, and this one has {VERSION}")
}

/// Reads `value`, leaving out its unknown fields.
///
/// # Errors
/// An error when `value` does not fit the type.
pub fn from_value<T: DeserializeOwned>(value: Value) -> serde_json::Result<T> {
    lenient_json::from_value(value)
}

/// Parses `text` without these fields, which may be what keeps the rest from being read.
pub fn parse_without<T: DeserializeOwned>(text: &[u8], fields: &[&str]) -> Option<T> {
    let mut value: Value = serde_json::from_slice(text).ok()?;
    let object = value.as_object_mut()?;
    fields.iter().for_each(|field| drop(object.remove(*field)));
    lenient_json::from_value(value).ok()
}

/// Parses a part of a line of the journal as far as this version knows it; `None` where that is not enough.
pub fn known_or_none<'de, D, T>(from: D) -> std::result::Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    Ok(lenient_json::from_value(Value::deserialize(from)?).ok())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[serde(default)]
        number: u32,
        choice: Choice,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Choice {
        Plain,
        With(Box<Inner>),
        Named { inner: Option<Box<Inner>> },
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Outer {
        text: String,
        #[serde(default)]
        list: Vec<Inner>,
        #[serde(default)]
        map: BTreeMap<String, (f64, Option<bool>)>,
        #[serde(default)]
        pair: Option<Pair>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Pair(i64, ());

    fn read(text: &str) -> Result<Outer> {
        parse(text.as_bytes(), Path::new("/s/x.json"))
    }

    #[test]
    fn what_is_written_is_read_and_says_its_version() {
        let inner = |choice| Inner { number: 7, choice };
        let of = Outer {
            text: "\"{}\"".to_owned(),
            list: vec![
                inner(Choice::Plain),
                inner(Choice::With(Box::new(inner(Choice::Plain)))),
                inner(Choice::Named { inner: Some(Box::new(inner(Choice::Plain))) }),
            ],
            map: BTreeMap::from([("version".to_owned(), (1.5, None)), ("b".to_owned(), (2.0, Some(true)))]),
            pair: Some(Pair(-3, ())),
        };
        let written = String::from_utf8(text(&of).expect("JSON")).expect("text");
        assert!(written.starts_with("{\"version\":1,\"text\""), "{written}");
        assert_eq!(read(&written), Ok(of));
        assert_eq!(text(&[1, 2]).expect("JSON"), b"[1,2]");
        assert_eq!(text(&BTreeMap::<u8, u8>::new()).expect("JSON"), b"{}");
    }

    #[test]
    fn unknown_fields_are_ignored_at_every_depth() {
        let plain = r#"{"number":1,"choice":"plain","news":{"x":1}}"#;
        let with = format!(r#"{{"choice":{{"with":{plain}}},"news":[]}}"#);
        let named = format!(r#"{{"choice":{{"named":{{"inner":{plain},"news":1}}}}}}"#);
        let of = read(&format!(r#"{{"version":9,"news":1,"text":"a","list":[{plain},{with},{named}]}}"#));
        assert_eq!(of.expect("read").list.len(), 3);
    }

    #[test]
    fn what_cannot_be_read_is_damaged_or_newer() {
        for text in ["", "{", "{\"version\":1}", "[]", "7", "{\"version\":0,\"text\":1}", "{\"text\":\"a\"} x"] {
            let error = read(text).expect_err(text);
            assert_eq!(error.kind(), Kind::Damaged);
            assert!(error.message().starts_with("/s/x.json is damaged: "), "{error}");
        }
        let error = read(r#"{"version":2,"text":"a","list":[{"choice":"other"}]}"#).expect_err("a choice to come");
        assert!(error.kind() == Kind::Damaged && error.message().contains(", of a newer bowline"), "{error}");
        let error = read(r#"{"text":"a","list":[{"number":"7","choice":"plain"}]}"#).expect_err("a text as number");
        assert!(error.message().contains(": list: number: invalid type"), "{error}");
        let bad = br#"{"text":"a","list":7}"#;
        assert!(parse_without::<Outer>(bad, &["list"]).is_some() && parse_without::<Outer>(bad, &["text"]).is_none());
    }
}
