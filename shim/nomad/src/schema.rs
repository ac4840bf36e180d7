//! Options as a table: their schema for Nomad, how their values are read, and their places in a task description.
//!
//! ```text
//!   table ─ spec ──► Nomad, which checks HCL by it
//!         ─ read ◄── msgpack: values as JSON, or the option that is wrong
//!         ─ place ─► task description ─ refused? ─ option_of ─► the option's name
//! ```
//!
//! Knows no option: the tables are in `options.rs` and `settings.rs`.

use bowline_model::{Error, Kind, Result};
use rmpv::Value as Packed;
use serde_json::{Map, Value};

use crate::proto::hclspec::{Attr, Block, BlockAttrs, BlockList, Default as WithDefault, Literal, Object, Spec, spec};

#[derive(Debug)]
pub struct Field {
    /// As it is written in HCL.
    pub name: &'static str,
    pub form: Form,
    /// The field of the task description that it sets, with dots; empty for what the driver makes more of.
    pub at: &'static str,
    /// What it means, for the reference.
    #[cfg_attr(not(test), allow(dead_code, reason = "a test writes the reference"))]
    pub doc: &'static str,
    /// Its value where it is left out, as an expression in HCL.
    pub default: Option<&'static str>,
    /// Whether it must be there.
    pub required: bool,
}

/// How an option is written.
#[derive(Debug, Clone, Copy)]
pub enum Form {
    Text,
    Flag,
    Number,
    List,
    /// A block of names and their text.
    Table,
    Block(&'static [Field]),
    /// A block that may be there several times.
    Blocks(&'static [Field]),
}

impl Field {
    /// An option that may be left out.
    pub const fn new(name: &'static str, form: Form, at: &'static str, doc: &'static str) -> Field {
        Field { name, form, at, doc, default: None, required: false }
    }

    pub const fn required(self) -> Field {
        Field { required: true, ..self }
    }

    pub const fn or(self, default: &'static str) -> Field {
        Field { default: Some(default), ..self }
    }

    fn spec(&self) -> Spec {
        let (name, required) = (self.name.to_owned(), self.required);
        let attribute = |kind: &str| spec::Block::Attr(Attr { name: name.clone(), r#type: kind.to_owned(), required });
        let block = match self.form {
            Form::Text => attribute("string"),
            Form::Flag => attribute("bool"),
            Form::Number => attribute("number"),
            Form::List => attribute("list(string)"),
            Form::Table => spec::Block::BlockAttrs(BlockAttrs { name, r#type: "string".to_owned(), required }),
            Form::Block(fields) => {
                spec::Block::BlockValue(Box::new(Block { name, required, nested: Some(Box::new(spec(fields))) }))
            }
            Form::Blocks(fields) => spec::Block::BlockList(Box::new(BlockList {
                name,
                nested: Some(Box::new(spec(fields))),
                ..BlockList::default()
            })),
        };
        let plain = Spec { block: Some(block) };
        let Some(default) = self.default else { return plain };
        let default = Spec { block: Some(spec::Block::Literal(Literal { value: default.to_owned() })) };
        let either = WithDefault { primary: Some(Box::new(plain)), default: Some(Box::new(default)) };
        Spec { block: Some(spec::Block::Default(Box::new(either))) }
    }
}

/// The options as Nomad wants them.
pub fn spec(fields: &[Field]) -> Spec {
    let attributes = fields.iter().map(|field| (field.name.to_owned(), field.spec())).collect();
    Spec { block: Some(spec::Block::Object(Object { attributes })) }
}

/// The values in `packed`, by the names of their options; those that are not set are left out.
///
/// # Errors
/// `BadSpec` with the option's name, after `prefix`.
pub fn read(fields: &'static [Field], packed: &[u8], prefix: &str) -> Result<Map<String, Value>> {
    let mut rest = packed;
    let damaged = |why: &str| Error::new(Kind::BadSpec, format!("{prefix}: is not the msgpack of a map: {why}"));
    let value = rmpv::decode::read_value(&mut rest).map_err(|error| damaged(&error.to_string()))?;
    if !rest.is_empty() {
        return Err(damaged("something follows it"));
    }
    object(fields, &value, prefix)
}

fn object(fields: &[Field], packed: &Packed, path: &str) -> Result<Map<String, Value>> {
    let entries = packed.as_map().ok_or_else(|| wrong(path, packed, "a block"))?;
    let mut values = Map::new();
    for (key, value) in entries {
        let key = key.as_str().ok_or_else(|| wrong(path, key, "an option's name in place of it"))?;
        let field = fields.iter().find(|field| field.name == key);
        let at = format!("{path}.{key}");
        let field = field.ok_or_else(|| Error::new(Kind::BadSpec, format!("{at}: there is no such option")))?;
        if !value.is_nil() {
            values.insert(key.to_owned(), convert(field.form, value, &at)?);
        }
    }
    if let Some(missing) = fields.iter().find(|field| field.required && !values.contains_key(field.name)) {
        return Err(Error::new(Kind::BadSpec, format!("{path}.{}: is missing", missing.name)));
    }
    Ok(values)
}

fn convert(form: Form, packed: &Packed, path: &str) -> Result<Value> {
    let items = |form: Form| -> Result<Value> {
        let items = packed.as_array().ok_or_else(|| wrong(path, packed, "a list"))?;
        let each = items.iter().enumerate().map(|(index, item)| convert(form, item, &format!("{path}[{index}]")));
        each.collect::<Result<_>>().map(Value::Array)
    };
    match form {
        Form::Text => packed.as_str().map(Value::from).ok_or_else(|| wrong(path, packed, "text in quotes")),
        Form::Flag => packed.as_bool().map(Value::from).ok_or_else(|| wrong(path, packed, "true or false")),
        Form::Number => number(packed).ok_or_else(|| wrong(path, packed, "a number")),
        Form::List => items(Form::Text),
        Form::Table => {
            let entries = packed.as_map().ok_or_else(|| wrong(path, packed, "a block of names and their values"))?;
            let entry = |(name, value): &(Packed, Packed)| {
                let name = name.as_str().ok_or_else(|| wrong(path, name, "a name in place of it"))?;
                Ok((name.to_owned(), convert(Form::Text, value, &format!("{path}.{name}"))?))
            };
            entries.iter().map(entry).collect::<Result<_>>().map(Value::Object)
        }
        Form::Block(fields) => object(fields, packed, path).map(Value::Object),
        Form::Blocks(fields) => items(Form::Block(fields)),
    }
}

/// Nomad sends a number as it likes; a whole one is one, in whatever form.
fn number(packed: &Packed) -> Option<Value> {
    if let Some(whole) = packed.as_i64() {
        return Some(whole.into());
    }
    let float = packed.as_f64()?;
    let is_whole = float.fract() == 0.0 && float.abs() < 9e15;
    if is_whole { Some((float as i64).into()) } else { serde_json::Number::from_f64(float).map(Value::Number) }
}

fn wrong(path: &str, is: &Packed, wanted: &str) -> Error {
    let is = match is {
        Packed::Nil => "null",
        Packed::Boolean(_) => "true or false",
        Packed::Integer(_) | Packed::F32(_) | Packed::F64(_) => "a number",
        Packed::String(_) => "text",
        Packed::Binary(_) | Packed::Ext(..) => "binary data",
        Packed::Array(_) => "a list",
        Packed::Map(_) => "a block",
    };
    Error::new(Kind::BadSpec, format!("{path}: is {is}; write {wanted}"))
}

/// Puts `values` into a task description, each where its option says.
pub fn place(fields: &[Field], values: &Map<String, Value>, description: &mut Map<String, Value>) {
    for field in fields.iter().filter(|field| !field.at.is_empty()) {
        if let Some(value) = values.get(field.name) {
            set(description, field.at, placed(field.form, value));
        }
    }
}

/// `value` with the names that its parts have in a task description.
fn placed(form: Form, value: &Value) -> Value {
    match (form, value) {
        (Form::Block(fields), Value::Object(values)) => {
            let mut inner = Map::new();
            place(fields, values, &mut inner);
            inner.into()
        }
        (Form::Blocks(fields), Value::Array(items)) => {
            items.iter().map(|item| placed(Form::Block(fields), item)).collect::<Vec<_>>().into()
        }
        (_, other) => other.clone(),
    }
}

/// Sets the field at `path`, with the tables that lead to it; a list is appended to what is there.
pub fn set(description: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        Some((first, rest)) => {
            let inner = description.entry(first).or_insert_with(|| Map::new().into());
            if let Value::Object(inner) = inner {
                set(inner, rest, value);
            }
        }
        None => match (description.get_mut(path), value) {
            (Some(Value::Array(there)), Value::Array(more)) => there.extend(more),
            (_, value) => drop(description.insert(path.to_owned(), value)),
        },
    }
}

/// The option that sets `field` of a task description, such as `mount[1].target` for `mounts[1].destination`.
pub fn option_of(fields: &[Field], field: &str) -> Option<String> {
    let of = |option: &Field| {
        let rest = field.strip_prefix(option.at).filter(|_| !option.at.is_empty())?;
        match (option.form, rest) {
            (_, "") => Some(option.name.to_owned()),
            (Form::Block(inner), rest) => {
                Some(format!("{}.{}", option.name, option_of(inner, rest.strip_prefix('.')?)?))
            }
            (Form::Blocks(inner), rest) => {
                let (index, rest) = rest.split_once(']')?;
                let inner = rest
                    .strip_prefix('.')
                    .map_or(Some(String::new()), |rest| option_of(inner, rest).map(|name| format!(".{name}")))?;
                Some(format!("{}{index}]{inner}", option.name))
            }
            (Form::Table | Form::List, rest) if rest.starts_with(['.', '[']) => Some(format!("{}{rest}", option.name)),
            _ => None,
        }
    };
    fields.iter().find_map(of)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    const INNER: &[Field] = &[
        Field::new("target", Form::Text, "destination", "").required(),
        Field::new("readonly", Form::Flag, "read_only", ""),
    ];
    const FIELDS: &[Field] = &[
        Field::new("command", Form::Text, "command", "").required(),
        Field::new("image", Form::Text, "", "").or("\"host\""),
        Field::new("cap_add", Form::List, "capabilities.add", ""),
        Field::new("pids", Form::Number, "pids", ""),
        Field::new("ulimit", Form::Table, "rlimits", ""),
        Field::new("mount", Form::Blocks(INNER), "mounts", ""),
    ];

    fn packed(value: &Packed) -> Vec<u8> {
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, value).unwrap();
        bytes
    }

    fn map(entries: Vec<(&str, Packed)>) -> Packed {
        Packed::Map(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }

    fn read_of(entries: Vec<(&str, Packed)>) -> Result<Map<String, Value>> {
        read(FIELDS, &packed(&map(entries)), "config")
    }

    #[test]
    fn values_are_read_and_put_where_they_belong() {
        let values = read_of(vec![
            ("command", "/bin/true".into()),
            ("image", Packed::Nil),
            ("cap_add", Packed::Array(vec!["net_raw".into()])),
            ("pids", Packed::F64(64.0)),
            ("ulimit", map(vec![("nofile", "1024:4096".into())])),
            ("mount", Packed::Array(vec![map(vec![("target", "/cache".into()), ("readonly", true.into())])])),
        ]);
        let mut description = Map::new();
        set(&mut description, "mounts", json!([{"destination": "/local"}]));
        place(FIELDS, &values.unwrap(), &mut description);
        let expected = json!({
            "command": "/bin/true",
            "capabilities": {"add": ["net_raw"]},
            "pids": 64,
            "rlimits": {"nofile": "1024:4096"},
            "mounts": [{"destination": "/local"}, {"destination": "/cache", "read_only": true}],
        });
        assert_eq!(Value::Object(description), expected);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let command = ("command", Packed::from("x"));
        for (more, text) in [
            (("nonsense", Packed::Nil), "config.nonsense: there is no such option"),
            (("pids", "many".into()), "config.pids: is text; write a number"),
            (("image", 3.into()), "config.image: is a number; write text in quotes"),
            (("cap_add", "KILL".into()), "config.cap_add: is text; write a list"),
            (("cap_add", Packed::Array(vec![1.into()])), "config.cap_add[0]: is a number; write text in quotes"),
            (("mount", Packed::Array(vec![map(vec![])])), "config.mount[0].target: is missing"),
            (("ulimit", Packed::Array(vec![])), "config.ulimit: is a list; write a block of names and their values"),
        ] {
            assert_eq!(read_of(vec![command.clone(), more]).unwrap_err().message(), text);
        }
        assert_eq!(read_of(vec![]).unwrap_err().message(), "config.command: is missing");
        for bytes in [&b""[..], b"\xc0\xc0", b"\x81", b"\xff\xff"] {
            let error = read(FIELDS, bytes, "config").unwrap_err();
            assert!(error.message().starts_with("config: is n"), "{error}");
        }
    }

    #[test]
    fn a_field_of_the_description_leads_to_its_option() {
        for (field, option) in [
            ("command", Some("command")),
            ("capabilities.add[2]", Some("cap_add[2]")),
            ("rlimits.nofile", Some("ulimit.nofile")),
            ("mounts[1].destination", Some("mount[1].target")),
            ("mounts[1]", Some("mount[1]")),
            ("mounts[1].size", None),
            ("memory.limit", None),
            ("commander", None),
        ] {
            assert_eq!(option_of(FIELDS, field).as_deref(), option, "{field}");
        }
    }

    #[test]
    fn nomad_gets_types_and_defaults() {
        let Some(spec::Block::Object(object)) = spec(FIELDS).block else { panic!() };
        let Some(spec::Block::Default(image)) = &object.attributes["image"].block else { panic!() };
        let literal = image.default.as_ref().unwrap().block.clone();
        assert_eq!(literal, Some(spec::Block::Literal(Literal { value: "\"host\"".to_owned() })));
        let Some(spec::Block::Attr(command)) = &object.attributes["command"].block else { panic!() };
        assert_eq!((command.r#type.as_str(), command.required), ("string", true));
        let Some(spec::Block::BlockList(mount)) = &object.attributes["mount"].block else { panic!() };
        assert_eq!(mount.name, "mount");
    }
}
