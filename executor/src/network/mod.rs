//! Network namespaces: what a new one needs before it is of use, and the
//! interfaces that CNI plugins make in it.
//!
//! ```text
//!   lists ─ add ─► plugins, one after the other ◄─► networks.json ─ check, del ─► plugins, in reverse
//! ```
//!
//! A `list` has plugins in order, in a `version` of CNI; a `plugin` is found and
//! run; what may have been added is `kept` before it is, so that `del` undoes it
//! after a crash as well. By CNI 1.1 (containernetworking/cni, SPEC.md) and, where
//! that leaves a choice, as libcni does it.
//!
//! Plugins block: `add`, `check` and `del` are for programs that may wait; `serving`
//! has them done by a worker. Until all is undone the namespace is `pinned`; a
//! `bridge` that was made for it goes with the last in it. Must not: know how a
//! description becomes a list.

use bowline_error::{Doing, Kind, Result};
use bowline_sys as sys;

mod attach;
mod bridge;
mod kept;
mod list;
mod pinned;
mod plugin;
pub mod serving;
mod version;

#[cfg(test)]
mod testing;

pub use attach::{Connected, Sandbox, add, check, del, give_up_damaged, validate};
pub use plugin::LONGEST;
#[cfg(feature = "fuzzing")]
pub(crate) use {kept::Kept, list::ConfigList, plugin::failure_in, plugin::result_of, plugin::versions_in};

/// Readies a new network namespace, from inside: loopback up, nothing else.
pub(crate) fn prepare_new() -> Result<()> {
    sys::loopback_up().doing(Kind::Internal, || "cannot bring the loopback interface up")
}
