//! What is on disk of tasks and sandboxes: their folders, their records, the room for a report.

pub(crate) mod folder;
pub mod host_name;
pub(crate) mod reserve;
pub(crate) mod sandbox;
