//! What belongs to the host: its units and abilities, who owns what on it, and what dead shims have left there.

pub mod attached;
pub(crate) mod copies;
pub mod host_units;
pub mod housekeeping;
pub(crate) mod memory_min;
pub(crate) mod owners;
pub(crate) mod past_shim;
pub mod probe;
pub(crate) mod records;
pub(crate) mod strangers;
pub mod systemd;
pub(crate) mod task_units;
pub(crate) mod undo;
pub(crate) mod undo_sandbox;
pub mod unit_settings;
