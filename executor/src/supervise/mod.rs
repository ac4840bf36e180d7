//! The one loop, of children and clocks; with the calls of whoever asks (`executor`) it carries actions out.
//!
//! ```text
//!   SIGCHLD ─► sweep ─┐
//!   deadlines ────────┼─► Life::on(event) ─► Action ─► pidfd, cgroup, files
//!   calls ────────────┘
//! ```
//!
//! One thread: everything here is on one `LocalSet`, and a call that waits
//! lets the others go on. Rules are not here: `lifecycle` and `shutdown` decide.

mod budgets;
mod checkpoints;
mod children;
mod ending;
mod events;
mod exec_killing;
mod exec_process;
mod execs;
mod handles;
mod health;
mod hooks;
mod launch_plan;
mod launches;
mod overview;
mod pause_process;
mod pauses;
mod sandbox;
mod sandboxes;
mod shim_cgroup;
mod supervisor;
mod task;
mod units;
mod updates;
mod watching;

pub use execs::BegunExec;
pub use shim_cgroup::ShimCgroup;
pub(crate) use supervisor::Supervisor;
pub use supervisor::{Config, Leave};
