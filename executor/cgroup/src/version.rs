//! The two versions of cgroups.

/// Where this host's controllers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// In v1 hierarchies. There may be a v2 hierarchy as well ("hybrid"), which then is for membership alone.
    V1,
    /// In the one v2 hierarchy.
    V2,
}
