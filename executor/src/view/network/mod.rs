//! Network namespaces: what a new one needs before it is usable, and the interfaces that CNI plugins make in it.
//!
//! ```text
//!   lists ─ add ─► plugins, one after the other ◄─► networks.json ─ check, del ─► plugins, in reverse
//! ```
//!
//! A `list` has plugins in order, in a `version` of CNI. A `plugin` is found and run. Whatever may be added is
//! in the `record` beforehand, so that `del` undoes it even after a crash. Follows CNI 1.1 (containernetworking/cni,
//! SPEC.md) and, where that leaves a choice, libcni.
//!
//! Plugins block: `add`, `check` and `del` are for programs that may wait; `worker` runs them in one. Until
//! everything is undone, `namespace_mount` holds the namespace. A `bridge` that was made for a list is removed with the last
//! interface in it, and with that what `rules` and forwarding were changed. Its subnet is free of the host's `routes`; the
//! host's `ports` that lead into it are taken. `devices` moves devices of the host into a task's network, by `netlink`.
//! Must not: know how a description becomes a list.

use bowline_error::{Doing, Kind, Result};
use bowline_sys as sys;

mod attach;
mod bounded_run;
mod bridge;
pub mod devices;
mod list;
mod lock;
mod namespace_mount;
mod netlink;
mod plugin;
pub mod ports;
mod record;
mod routes;
mod rules;
mod version;
pub mod worker;

#[cfg(test)]
mod testing;

pub use attach::{Sandbox, add, check, del, give_up_damaged, validate};
pub use namespace_mount::path as pinned_at;
pub use plugin::LONGEST;
#[cfg(feature = "fuzzing")]
pub(crate) use {list::ConfigList, plugin::failure_in, plugin::result_of, plugin::versions_in, record::Kept};

/// Prepares a new network namespace from inside: brings up loopback, and nothing else.
pub(crate) fn prepare_new() -> Result<()> {
    sys::loopback_up().doing(Kind::Internal, || "cannot bring the loopback interface up")
}
