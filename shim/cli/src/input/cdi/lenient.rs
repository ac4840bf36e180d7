//! A value of YAML as a type, read as CDI's own library reads it: where a text must be, a number or a boolean is one.
//!
//! Errors name the field. Must not: know which fields there are.

use std::fmt::{self, Display, Formatter};

use serde::de::value::StringDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

/// Reads `value`.
///
/// # Errors
/// What is wrong, with its field.
pub fn read<T: DeserializeOwned>(value: Value) -> Result<T, Wrong> {
    T::deserialize(Lenient(value))
}

/// What is wrong, and in which field.
#[derive(Debug)]
pub struct Wrong {
    field: String,
    why: String,
}

impl Wrong {
    /// The error of a part of something larger: `devices`, or `[0]`.
    fn below(self, part: &str) -> Wrong {
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        Wrong { field: format!("{part}{dot}{}", self.field), ..self }
    }
}

impl Display for Wrong {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let colon = if self.field.is_empty() { "" } else { ": " };
        write!(f, "{}{colon}{}", self.field, self.why)
    }
}

impl std::error::Error for Wrong {}

impl de::Error for Wrong {
    fn custom<T: Display>(why: T) -> Wrong {
        Wrong { field: String::new(), why: why.to_string() }
    }
}

struct Lenient(Value);

impl<'de> Deserializer<'de> for Lenient {
    type Error = Wrong;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.0 {
            Value::Array(items) => visitor.visit_seq(Items { items: items.into_iter(), at: 0 }),
            Value::Object(fields) => visitor.visit_map(Fields { fields: fields.into_iter(), value: None }),
            scalar => scalar.deserialize_any(visitor).map_err(de::Error::custom),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.0 {
            // A whole number has no fraction, however it was written.
            Value::Number(number) if number.is_f64() => {
                visitor.visit_string(number.as_f64().unwrap_or(0.0).to_string())
            }
            Value::Number(number) => visitor.visit_string(number.to_string()),
            Value::Bool(is) => visitor.visit_string(is.to_string()),
            other => Lenient(other).deserialize_any(visitor),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.deserialize_string(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_some(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct newtype_struct seq
        tuple tuple_struct map struct enum identifier ignored_any
    }
}

struct Items {
    items: std::vec::IntoIter<Value>,
    at: usize,
}

impl<'de> SeqAccess<'de> for Items {
    type Error = Wrong;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Wrong> {
        let Some(item) = self.items.next() else { return Ok(None) };
        let read = seed.deserialize(Lenient(item)).map_err(|wrong| wrong.below(&format!("[{}]", self.at)));
        self.at += 1;
        read.map(Some)
    }
}

struct Fields {
    fields: <Map<String, Value> as IntoIterator>::IntoIter,
    /// The field whose name has been read.
    value: Option<(String, Value)>,
}

impl<'de> MapAccess<'de> for Fields {
    type Error = Wrong;

    fn next_key_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Wrong> {
        self.value = self.fields.next();
        let name = self.value.as_ref().map(|(name, _)| StringDeserializer::new(name.clone()));
        name.map(|name| seed.deserialize(name)).transpose()
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Wrong> {
        let (name, value) = self.value.take().ok_or_else(|| de::Error::custom("a value without a name"))?;
        seed.deserialize(Lenient(value)).map_err(|wrong| wrong.below(&name))
    }
}

#[cfg(test)]
mod tests {
    use bowline_spec::CdiEdits;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_number_is_a_text_where_one_must_be() {
        let edits: CdiEdits = read(json!({
            "env": [1, true, "A=1"], "mounts": [{"hostPath": 7, "options": [1.0, 1.5]}], "additionalGids": [5],
            "deviceNodes": [{"path": "/dev/a", "fileMode": 438}],
        }))
        .expect("as CDI reads it");
        assert_eq!(edits.env, ["1", "true", "A=1"]);
        assert_eq!(edits.mounts[0].options, ["1", "1.5"]);
        assert_eq!((edits.additional_gids, edits.device_nodes[0].file_mode), (vec![5], Some(438)));
    }

    #[test]
    fn what_is_of_another_kind_is_named_by_its_field() {
        for (edits, why) in [
            (json!({"deviceNodes": [{}, {"path": []}]}), "deviceNodes[1].path: invalid type: sequence, expected"),
            (json!({"env": "A=1"}), "env: invalid type: string \"A=1\", expected a sequence"),
            (json!({"additionalGids": ["5"]}), "additionalGids[0]: invalid type: string \"5\", expected u32"),
            (json!({"hooks": [{"name": "a"}]}), "hooks[0]: unknown field `name`"),
        ] {
            let wrong = read::<CdiEdits>(edits).expect_err(why).to_string();
            assert!(wrong.starts_with(why), "{wrong}");
        }
    }
}
