//! Cgroups that systemd makes: a scope for a task, in a slice.
//!
//! ```text
//!   name ─► start, with a process in it ─► its cgroup adopted ─► init cloned into it
//!        ─► change: on v2 properties, then files; on v1 files, then properties
//!        ─► stop, once all have ended
//! ```
//!
//! systemd owns the cgroup's folder, bowline what is in it and below (`Delegate=`). A unit has a
//! property for each limit that systemd knows, so that systemd puts the same value back at
//! `daemon-reload`; every limit is written to its file as well. On a host with v1 hierarchies,
//! bowline makes the same path in those that systemd does not manage.
//!
//! Defines the requests to systemd; `crate::systemd` sends them.

mod adopt;
mod annotated;
mod device_rules;
mod driver;
mod name;
mod overwritten;
mod properties;

pub use annotated::annotated;
pub use driver::Driver;
pub use name::Unit;
pub use overwritten::{Overwritten, is_overwritten};
pub use properties::{Property, Value, kept, of_change, of_limits, oom_policy};
