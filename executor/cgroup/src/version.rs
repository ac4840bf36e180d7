//! The two versions of cgroups.

/// Where this host's controllers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// In v1 hierarchies; beside them there may be a v2 one ("hybrid"), which
    /// is then for membership alone.
    V1,
    /// In the one v2 hierarchy.
    V2,
}
