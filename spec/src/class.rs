//! The three classes of service that Kubernetes knows.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How much a sandbox is spared when the host has too little.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Every member has a limit for CPU and memory, and asks for just that.
    Guaranteed,
    /// Some member asks for something.
    Burstable,
    /// No member asks for anything.
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
