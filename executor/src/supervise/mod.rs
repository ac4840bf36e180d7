//! The event loop: it turns child exits, deadlines and callers' requests (from `executor`) into actions.
//!
//! ```text
//!   SIGCHLD ─► sweep ─┐
//!   deadlines ────────┼─► Life::on(event) ─► Action ─► pidfd, cgroup, files
//!   calls ────────────┘
//! ```
//!
//! Single-threaded: everything here runs on one `LocalSet`, and a call that waits lets the others continue. The
//! rules are elsewhere: `lifecycle` and `shutdown` decide.

mod adoption;
mod budgets;
mod checkpoints;
mod children;
mod connection;
mod ending;
mod events;
mod exec_killing;
mod exec_process;
mod execs;
mod handles;
mod handover;
mod health;
mod hooks;
mod launch_plan;
mod launches;
mod overview;
mod pause_process;
mod pause_processes;
mod planning;
mod sandbox;
mod sandboxes;
mod shim_cgroup;
mod supervisor;
mod task;
mod timeout;
mod units;
mod updates;
mod watching;
mod workload;

pub use execs::BegunExec;
pub use handover::Handed;
pub use shim_cgroup::ShimCgroup;
pub(crate) use supervisor::Supervisor;
pub use supervisor::{Config, Leave};
