//! Protections that go by one name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A set of protections that one name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TaskProfile {
    /// For untrusted code.
    Untrusted,
}
