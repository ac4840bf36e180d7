//! A command that tells whether the task does what it should.

use schemars::JsonSchema;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::left_out::is_default;
use crate::values::Duration;

/// How the shim checks the task's health.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
// Not required to serde: `validate` says better what to write.
#[schemars(extend("required" = ["exec"]))]
pub struct Healthcheck {
    /// The command and its arguments, run in the task; exit code 0 is healthy.
    #[serde(deserialize_with = "list")]
    pub exec: Vec<String>,
    /// The time from the end of a check to the next; 30s by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,
    /// How long a check may take before it is killed with its descendants; 30s by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// How many consecutive failures make the task unhealthy; 3 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// How long after the start failures do not count, until a check succeeds; 0 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_period: Option<Duration>,
    /// The interval in the start period; 5s by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_interval: Option<Duration>,
    /// What happens to an unhealthy task; nothing by default.
    #[serde(skip_serializing_if = "is_default")]
    pub on_unhealthy: OnUnhealthy,
}

/// What happens to an unhealthy task; nothing by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnUnhealthy {
    /// It runs on, and the checks continue.
    #[default]
    None,
    /// It is stopped, as its description says.
    Stop,
}

/// The default of each field that has one.
#[allow(missing_docs)]
impl Healthcheck {
    pub fn interval(&self) -> std::time::Duration {
        self.interval.unwrap_or(Duration::from_secs(30)).as_std()
    }

    pub fn timeout(&self) -> std::time::Duration {
        self.timeout.unwrap_or(Duration::from_secs(30)).as_std()
    }

    pub fn retries(&self) -> u32 {
        self.retries.unwrap_or(3)
    }

    pub fn start_period(&self) -> std::time::Duration {
        self.start_period.unwrap_or_default().as_std()
    }

    pub fn start_interval(&self) -> std::time::Duration {
        self.start_interval.unwrap_or(Duration::from_secs(5)).as_std()
    }
}

/// A list of text; of a text alone the error says how it is written as one.
fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct List;

    impl<'de> Visitor<'de> for List {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(
                "a list of the command and its arguments, such as [\"/bin/sh\", \"-c\", \"test -e /tmp/ready\"]",
            )
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut words: A) -> Result<Vec<String>, A::Error> {
            let mut list = Vec::new();
            while let Some(word) = words.next_element()? {
                list.push(word);
            }
            Ok(list)
        }
    }
    deserializer.deserialize_any(List)
}
