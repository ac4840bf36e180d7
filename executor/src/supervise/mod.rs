//! The event loop: it turns child exits, deadlines and callers' requests (from `executor`) into actions.
//!
//! ```text
//!   SIGCHLD ─► sweep ─┐
//!   deadlines ────────┼─► Life::on(trigger) ─► Action ─► pidfd, cgroup, files
//!   calls ────────────┘
//! ```
//!
//! Single-threaded: everything here runs on one `LocalSet`, and a call that waits lets the others continue. The
//! rules are elsewhere: `lifecycle` and `shutdown` decide.
//!
//! Locks, in the order in which they are taken:
//!
//! | lock | reason |
//! | --- | --- |
//! | a task's `starting` | an exit during a start is reported after it; removals run one at a time |
//! | a task's `checkpointing` | one checkpoint at a time, and the exit that it causes is reported after it |
//! | a task's `pausing` | a task that is being frozen, and is thawed in between, is not taken for one that runs |
//! | a task's `updating` | an update merges with the limits in effect |
//! | a sandbox's `launching` (shared) | a removal waits for launches of members |
//! | a sandbox's `renewing_pids` | of members that are launched at once, one has another pause process started |
//! | a sandbox's `budgeting` | joint limits are computed from the members' limits |
//! | a task's `clearing` | a second kill waits for processes that the first one has moved out of a frozen cgroup |
//! | `starting_pause_process` (`supervisor`) | one pause process at a time |
//! | `entered` (`shim_cgroup`) | the shim moves between cgroups one step at a time |

mod children;
mod events;
pub(crate) mod exec;
mod handles;
mod overview;
mod sandbox;
mod shim_cgroup;
mod supervisor;
mod takeover;
mod task;

pub use exec::running::BegunExec;
pub use shim_cgroup::ShimCgroup;
pub(crate) use supervisor::Supervisor;
pub use supervisor::{Config, Leave};
pub use takeover::handover::Handed;
