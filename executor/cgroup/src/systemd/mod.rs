//! Cgroups that systemd makes: a scope for a task, in a slice.
//!
//! ```text
//!   name ─► start, with a process in it ─► its cgroup adopted ─► init cloned into it
//!        ─► change: files, then properties; first those where it has to hand a controller down
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
mod driver;
mod name;
mod properties;

pub use driver::Driver;
pub use name::Unit;
pub use properties::{CONTROLLERS, Property, Value, kept, of_limits};
