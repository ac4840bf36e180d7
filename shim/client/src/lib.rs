//! Starts tasks and asks their shims, from any program: with tokio, or without an event loop ([`blocking`]), with threads
//! or without.
//!
//! ```no_run
//! use bowline_client::{Client, Exec, Start};
//!
//! # async fn agent() -> bowline_client::Result<()> {
//! let client = Client::new(bowline_client::STATE)?;
//! let task = client.start(Start::from_toml("name = 'web'\ncommand = '/bin/sleep'\nargs = ['1000']")?).await?;
//! let said = task.exec(Exec::new(["/bin/echo", "hello"])).await?;
//! println!("{:?}, {} bytes in use", said.end, task.stats().await?.memory.usage_bytes.unwrap_or(0));
//! let report = task.stop().await?;
//! println!("exited with {:?}", report.exit_code);
//! task.remove(false).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Each task has a process of its own, its shim, which outlives the program: a program that comes back finds its tasks by
//! [`Client::task`]. The programs `bowline-shim` and `bowline` must be installed, and be of this version or a newer one of
//! the same major version. To start tasks needs root; to ask them, the rights to the state folder.
//!
//! What the program itself notices:
//!
//! - A shim that the program has started is its child until either ends. A program that waits for any child (`waitpid(-1)`)
//!   collects the shims' ends too, which does no harm.
//! - No thread is started but by [`Task::remove`], in tokio's pool for blocking work; no signal is handled; nothing global
//!   is changed.
//! - The calls of [`Client`] and [`Task`] need tokio with I/O and time enabled.
//!
//! `docs/library.md` begins with examples, `docs/compatibility.md` says what stays as it is.

mod adopt;
pub mod blocking;
mod callers;
mod children;
mod client;
mod connection;
mod ending;
mod errors;
mod events;
mod exec_request;
#[doc(hidden)]
pub mod inotify;
mod kept_connection;
mod left_behind;
mod start;
mod task;
mod upgrade;

// What bowline's own programs are made of besides: without a promise for others.
#[doc(hidden)]
pub mod launching_shim;
#[doc(hidden)]
pub mod nomad_labels;
#[doc(hidden)]
pub mod output_pipe;
#[doc(hidden)]
pub mod patience;
mod presence;
#[doc(hidden)]
pub mod sandbox;
#[doc(hidden)]
pub mod scrape;
mod shim;
#[doc(hidden)]
pub mod spawn;

pub use bowline_executor::{CgroupDriver, ExecEnd, ExecOutcome, Killed, ShimCgroup};
pub use bowline_model::events::{Entry, Event};
pub use bowline_model::health::{Check, Health, HealthStatus};
pub use bowline_model::log_line::LogStream;
pub use bowline_model::report::{ExitReport, SliceEnforcement, StoppedBy, UnwrittenOutput};
pub use bowline_model::stats::{
    Cpu as CpuStats, Figures as ExitFigures, Hugepages as HugepagesStats, Io as IoStats, IoDevice as IoDeviceStats,
    Memory as MemoryStats, MemoryAccount as MemoryAccountStats, MemoryEvents as MemoryEventsStats, Pids as PidsStats,
    Pressure, Process as ProcessStats, Rdma as RdmaStats, Stall, Stats,
};
pub use bowline_model::status::Status;
pub use bowline_model::watch::{Finding, Kill, Part, PressureExceeded, Stray};
pub use bowline_model::{Error, Kind, Result};
pub use bowline_spec::{Invalid, Signal, Stalled, Task as Description, TaskId, Update, WatchAction};
pub use client::{Client, STATE};
pub use ending::Removed;
pub use events::Events;
pub use exec_request::Exec;
/// A moment of the host's clock, in every answer that has one.
pub use jiff::Timestamp;
pub use start::Start;
pub use task::{State, Task};

#[doc(hidden)]
pub use adopt::{adopt, find_or_adopt, live};
#[doc(hidden)]
pub use callers::own_and_parent;
#[doc(hidden)]
pub use ending::{Removal, is_overdue, remove, remove_ended, report, runs, stop};
#[doc(hidden)]
pub use errors::{dead, end_not_known, exited, removed, starting, unknown, unless_removed};
#[doc(hidden)]
pub use events::Changes;
#[doc(hidden)]
pub use kept_connection::Kept;
#[doc(hidden)]
pub use left_behind::{is_held, why_not};
#[doc(hidden)]
pub use presence::{Presence, find, look};
#[doc(hidden)]
pub use shim::{Shim, facts_at, unwritten};
#[doc(hidden)]
pub use upgrade::upgrade_at;
