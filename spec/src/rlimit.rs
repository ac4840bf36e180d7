//! Resource limits of a process, setrlimit(2).

use std::fmt;
use std::str::FromStr;

use oci_spec::runtime::PosixRlimitType;
use schemars::JsonSchema;
use serde::de::{Error, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::text::{TextVisitor, text_value};
use crate::values::Ceiling;

const NAMES: [(&str, PosixRlimitType); 16] = [
    ("as", PosixRlimitType::RlimitAs),
    ("core", PosixRlimitType::RlimitCore),
    ("cpu", PosixRlimitType::RlimitCpu),
    ("data", PosixRlimitType::RlimitData),
    ("fsize", PosixRlimitType::RlimitFsize),
    ("locks", PosixRlimitType::RlimitLocks),
    ("memlock", PosixRlimitType::RlimitMemlock),
    ("msgqueue", PosixRlimitType::RlimitMsgqueue),
    ("nice", PosixRlimitType::RlimitNice),
    ("nofile", PosixRlimitType::RlimitNofile),
    ("nproc", PosixRlimitType::RlimitNproc),
    ("rss", PosixRlimitType::RlimitRss),
    ("rtprio", PosixRlimitType::RlimitRtprio),
    ("rttime", PosixRlimitType::RlimitRttime),
    ("sigpending", PosixRlimitType::RlimitSigpending),
    ("stack", PosixRlimitType::RlimitStack),
];

/// What is limited: `nofile`, `RLIMIT_NOFILE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource(usize);

impl Resource {
    /// Its name without `RLIMIT_`, in lower case.
    pub fn name(self) -> &'static str {
        NAMES[self.0].0
    }

    /// The resource in oci-spec's type.
    pub fn to_oci(self) -> PosixRlimitType {
        NAMES[self.0].1
    }
}

impl FromStr for Resource {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Resource, Invalid> {
        let lower = text.to_ascii_lowercase();
        let name = lower.strip_prefix("rlimit_").unwrap_or(&lower);
        match NAMES.iter().position(|(n, _)| *n == name) {
            Some(index) => Ok(Resource(index)),
            None => Err(Invalid::value(format!(
                "{text} is not a resource limit; there are {}",
                NAMES.map(|(n, _)| n).join(", ")
            ))),
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

text_value!(
    Resource,
    "RlimitName",
    string,
    "the name of a resource limit, with or without RLIMIT_, in any case",
    "nofile"
);

/// A soft and a hard limit; written as one number where they are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rlimit {
    /// What is enforced; the process may raise it up to `hard`.
    pub soft: Ceiling<u64>,
    /// What the soft limit cannot be raised above.
    pub hard: Ceiling<u64>,
}

/// Both limits of a resource.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SoftAndHard {
    /// What is enforced; the process may raise it up to `hard`.
    soft: Ceiling<u64>,
    /// What the soft limit cannot be raised above.
    hard: Ceiling<u64>,
}

impl FromStr for Rlimit {
    type Err = Invalid;

    /// `1024`, `unlimited`, or `1024:4096` for soft and hard.
    fn from_str(text: &str) -> Result<Rlimit, Invalid> {
        let (soft, hard) = text.split_once(':').unwrap_or((text, text));
        Ok(Rlimit { soft: soft.parse()?, hard: hard.parse()? })
    }
}

impl Serialize for Rlimit {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Rlimit { soft, hard } = *self;
        match soft == hard {
            true => soft.serialize(serializer),
            false => SoftAndHard { soft, hard }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Rlimit {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RlimitVisitor)
    }
}

/// By hand rather than an untagged enum: that would lose the position and the
/// reason of an error.
struct RlimitVisitor;

impl RlimitVisitor {
    fn scalar() -> TextVisitor<Rlimit> {
        TextVisitor::new(true, "a number, \"unlimited\", or a table with soft and hard")
    }
}

impl<'de> Visitor<'de> for RlimitVisitor {
    type Value = Rlimit;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        RlimitVisitor::scalar().expecting(f)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Rlimit, E> {
        RlimitVisitor::scalar().visit_str(text)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Rlimit, E> {
        RlimitVisitor::scalar().visit_i64(number)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Rlimit, E> {
        RlimitVisitor::scalar().visit_u64(number)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Rlimit, A::Error> {
        let SoftAndHard { soft, hard } = SoftAndHard::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Rlimit { soft, hard })
    }
}

impl JsonSchema for Rlimit {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Rlimit".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let one = generator.subschema_for::<Ceiling<u64>>();
        let two = generator.subschema_for::<SoftAndHard>();
        schemars::json_schema!({
            "description": "one limit for soft and hard, or both",
            "anyOf": [one, two],
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_any_case_with_or_without_prefix() {
        for text in ["nofile", "NOFILE", "RLIMIT_NOFILE", "rlimit_nofile"] {
            assert_eq!(text.parse::<Resource>().unwrap().name(), "nofile");
        }
        let error = "files".parse::<Resource>().unwrap_err();
        assert!(error.reason.starts_with("files is not a resource limit"), "{error}");
    }

    #[test]
    fn limits_are_read_in_each_form() {
        let read = |json: &str| serde_json::from_str::<Rlimit>(json);
        let both = |soft, hard| Rlimit { soft, hard };
        let at = Ceiling::At;
        assert_eq!(read("1024").unwrap(), both(at(1024), at(1024)));
        assert_eq!(read("\"unlimited\"").unwrap(), both(Ceiling::Unlimited, Ceiling::Unlimited));
        assert_eq!(read("\"1:2\"").unwrap(), both(at(1), at(2)));
        let text = r#"{"soft":1,"hard":"unlimited"}"#;
        assert_eq!(read(text).unwrap(), both(at(1), Ceiling::Unlimited));
        assert_eq!(serde_json::to_string(&read(text).unwrap()).unwrap(), text);
        for json in ["-1", "true", "{\"soft\":1}", "{\"soft\":1,\"hard\":2,\"x\":3}"] {
            assert!(read(json).is_err(), "{json}");
        }
    }
}
