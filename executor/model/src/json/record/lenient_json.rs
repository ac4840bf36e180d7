//! Reads a value from JSON, looking only at the fields that its type has.
//!
//! Types of descriptions refuse unknown fields, as a typing error must not go unnoticed. A record
//! was checked when it was written: a field that is unknown there is a newer bowline's.

use serde::de::value::{MapAccessDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Map, Value};

/// Reads `value`, leaving out its unknown fields.
///
/// # Errors
/// An error when `value` does not fit the type. It begins with the names of the fields that lead to what does not.
pub fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    T::deserialize(Known(value))
}

struct Known(Value);

/// The fields of an object, each read in the same way.
struct Fields {
    left: serde_json::map::IntoIter,
    /// The field whose name was read last.
    current: Option<(String, Value)>,
}

impl Fields {
    fn of(object: Map<String, Value>) -> Fields {
        Fields { left: object.into_iter(), current: None }
    }
}

/// Apart, as what calls it is compiled for each type.
#[cold]
fn within(name: &str, error: &Error) -> Error {
    Error::custom(format!("{name}: {error}"))
}

impl<'de> MapAccess<'de> for Fields {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some((name, value)) = self.left.next() else { return Ok(None) };
        self.current = Some((name.clone(), value));
        seed.deserialize(Key(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let (name, value) = self.current.take().ok_or_else(|| Error::custom("a value without a name"))?;
        seed.deserialize(Known(value)).map_err(|error| within(&name, &error))
    }
}

impl IntoDeserializer<'_, Error> for Known {
    type Deserializer = Known;

    fn into_deserializer(self) -> Known {
        self
    }
}

impl<'de> Deserializer<'de> for Known {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(items) => {
                let mut items = SeqDeserializer::new(items.into_iter().map(Known));
                let value = visitor.visit_seq(&mut items)?;
                items.end().map(|()| value)
            }
            Value::Object(object) => visitor.visit_map(Fields::of(object)),
            other => other.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        _name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if let Value::Object(object) = &mut self.0 {
            object.retain(|name, _| known.contains(&name.as_str()));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Object(object) => {
                MapAccessDeserializer::new(Fields::of(object)).deserialize_enum(name, variants, visitor)
            }
            other => other.deserialize_enum(name, variants, visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

/// The name of a field. In JSON a number is a name as text.
struct Key(String);

impl<'de> Deserializer<'de> for Key {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_string(self.0)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0.parse() {
            Ok(number) => visitor.visit_u64(number),
            Err(_) => visitor.visit_string(self.0),
        }
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0.parse() {
            Ok(number) => visitor.visit_i64(number),
            Err(_) => visitor.visit_string(self.0),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        Value::String(self.0).deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i64 i128 u8 u16 u32 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq
        tuple tuple_struct map struct identifier ignored_any
    }
}
