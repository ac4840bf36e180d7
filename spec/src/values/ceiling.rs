//! A limit that may be lifted.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use crate::invalid::Invalid;
use crate::text::TextVisitor;

/// A limit, or none: `64`, `unlimited` (also written `max`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ceiling<T> {
    /// At most this.
    At(T),
    /// No limit, written `unlimited` or `max`.
    Unlimited,
}

impl<T: FromStr> FromStr for Ceiling<T> {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Ceiling<T>, Invalid> {
        match text.trim().to_ascii_lowercase().as_str() {
            "unlimited" | "max" => Ok(Ceiling::Unlimited),
            value => value
                .parse()
                .map(Ceiling::At)
                .map_err(|_| Invalid::value(format!("{text:?} is neither a limit nor \"unlimited\""))),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Ceiling<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ceiling::At(value) => value.fmt(f),
            Ceiling::Unlimited => f.write_str("unlimited"),
        }
    }
}

impl<T: serde::Serialize> serde::Serialize for Ceiling<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Ceiling::At(value) => value.serialize(serializer),
            Ceiling::Unlimited => serializer.serialize_str("unlimited"),
        }
    }
}

impl<'de, T: FromStr> serde::Deserialize<'de> for Ceiling<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor::new(true, "a limit or \"unlimited\""))
    }
}

impl<T: schemars::JsonSchema> schemars::JsonSchema for Ceiling<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("Ceiling_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let value = generator.subschema_for::<T>();
        schemars::json_schema!({
            "description": "a limit, or \"unlimited\" (also written \"max\")",
            "anyOf": [value, { "enum": ["unlimited", "max"] }],
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::values::ByteSize;

    #[test]
    fn a_limit_and_no_limit_are_read() {
        assert_eq!("64".parse(), Ok(Ceiling::At(64u64)));
        assert_eq!("max".parse(), Ok(Ceiling::<u64>::Unlimited));
        assert_eq!("Unlimited".parse(), Ok(Ceiling::<u64>::Unlimited));
        assert_eq!("1G".parse(), Ok(Ceiling::At(ByteSize::mib(1024))));
    }

    #[test]
    fn what_is_neither_is_refused() {
        for text in ["", "-1", "infinite", "1.5"] {
            assert!(text.parse::<Ceiling<u64>>().is_err(), "{text}");
        }
    }
}
