//! What comes out of a task: streams, logs, and what a manager is told.

pub(crate) mod io;
pub(crate) mod log;
pub(crate) mod manager_events;
