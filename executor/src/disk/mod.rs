//! What is on disk, and what undoes it after a crash.

pub(crate) mod folder;
pub mod host_name;
pub(crate) mod reserve;
pub(crate) mod sandbox;
