//! Cgroups that systemd makes: a scope for a task, in a slice.
//!
//! ```text
//!   name ─► start, with a process in it ─► its cgroup adopted ─► init cloned into it
//!        ─► change: files, then properties ─► stop, once all have ended
//! ```
//!
//! systemd owns the cgroup's folder, we what is in it and below (`Delegate=`).
//! A unit has a property for each limit that systemd knows, so that it puts
//! back the same at `daemon-reload`; every limit is written to its file as well.
//! Where v1's hierarchies are, those that systemd does not manage have the same
//! path, made by us.
//!
//! Says what systemd is to be told; `crate::systemd` has it told.

mod adopt;
mod driver;
mod name;
mod properties;

pub use driver::Driver;
pub use name::Unit;
pub use properties::{Property, Value, kept, of_limits};
