//! The three classes of service that Kubernetes knows.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How much a sandbox is spared when the host has too little. Read as the kubelet writes it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Every member has a limit for CPU and memory, and asks for just that.
    #[serde(alias = "Guaranteed")]
    Guaranteed,
    /// Some member asks for something.
    #[serde(alias = "Burstable")]
    Burstable,
    /// No member asks for anything.
    #[serde(alias = "BestEffort", alias = "besteffort")]
    BestEffort,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Guaranteed => "guaranteed",
            Class::Burstable => "burstable",
            Class::BestEffort => "best-effort",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_read_as_the_kubelet_writes_it_too() {
        use Class::{BestEffort, Burstable, Guaranteed};

        let names = ["guaranteed", "Guaranteed", "burstable", "Burstable", "best-effort", "BestEffort", "besteffort"];
        let classes = [Guaranteed, Guaranteed, Burstable, Burstable, BestEffort, BestEffort, BestEffort];
        let read = |name| serde_json::from_value::<Class>(serde_json::Value::from(name)).expect("a class");
        assert_eq!(names.map(read), classes);
    }
}
