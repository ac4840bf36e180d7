//! What comes out of a task: streams, logs, events and the exit report.

pub mod events;
pub(crate) mod io;
pub(crate) mod log;
pub(crate) mod manager_events;
pub(crate) mod report;
