//! Values that are written as text: one way to read, write and describe them.
//!
//! A type with `FromStr` and `Display` gets its serde and JSON schema from
//! [`text_value!`], so that a flag and a field accept the same spellings.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Error, Unexpected, Visitor};

/// Reads a `T` from a string and, where `numbers`, from a plain number too.
pub(crate) struct TextVisitor<T> {
    numbers: bool,
    expects: &'static str,
    value: PhantomData<T>,
}

impl<T> TextVisitor<T> {
    pub(crate) fn new(numbers: bool, expects: &'static str) -> TextVisitor<T> {
        TextVisitor { numbers, expects, value: PhantomData }
    }
}

impl<T: FromStr<Err: Display>> TextVisitor<T> {
    fn number<E: Error>(self, number: impl Display, seen: Unexpected<'_>) -> Result<T, E> {
        if self.numbers { number.to_string().parse().map_err(E::custom) } else { Err(E::invalid_type(seen, &self)) }
    }
}

impl<T: FromStr<Err: Display>> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expects)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        self.number(number, Unexpected::Signed(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        self.number(number, Unexpected::Unsigned(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        self.number(number, Unexpected::Float(number))
    }
}

/// Gives `$type` its `Serialize` (as its `Display` text), `Deserialize` (by its
/// `FromStr`) and `JsonSchema`.
macro_rules! text_value {
    ($type:ty, $name:literal, $json:tt, $expects:literal, $($example:expr),+) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        crate::text::text_value!(read $type, $name, $json, $expects, $($example),+);
    };
    (read $type:ty, $name:literal, $json:tt, $expects:literal, $($example:expr),+) => {
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let numbers = crate::text::text_value!(numbers $json);
                deserializer.deserialize_any(crate::text::TextVisitor::new(numbers, $expects))
            }
        }
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let types = crate::text::text_value!(types $json);
                schemars::json_schema!({
                    "type": types,
                    "description": $expects,
                    "examples": [$($example),+],
                })
            }
        }
    };
    (numbers string) => { false };
    (numbers string_or_number) => { true };
    (types string) => { serde_json::json!("string") };
    (types string_or_number) => { serde_json::json!(["string", "number"]) };
}
pub(crate) use text_value;
