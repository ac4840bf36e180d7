//! Launches, supervises, limits and reports on tasks, in one thread.
//!
//! For a program that is made to be an executor: a shim, or an agent that forks a process for this. Any other program
//! links the crate `bowline-client`, which asks such a process.
//!
//! [`serve`] runs the loop; an [`Executor`] is how everything else talks to it. One executor has as many tasks as it is
//! asked for. An executor with one task looks like this; `examples/agent.rs` has several.
//!
//! ```no_run
//! # use bowline_executor::{Config, Launch, ShimCgroup, StateDir, serve, systemd::Systemd};
//! # fn main() -> bowline_executor::Result<()> {
//! let state = StateDir::new("/run/bowline");
//! let id: bowline_spec::id::TaskId = "web".parse()?;
//! let (folder, lock) = state.create(&id)?;
//! let task = bowline_spec::parse("command = \"/bin/true\"", bowline_spec::Format::Toml)?;
//! let systemd = Systemd::by("/usr/local/bin/bowline");
//! let config = Config::new(folder, state, ShimCgroup::Overhead, systemd);
//! serve(config, |executor| async move {
//!     executor.launch(Launch::new(id.clone(), task)).await?;
//!     let report = executor.wait(&id).await?;
//!     println!("exited with {:?}", report.exit_code);
//!     Ok(())
//! })?;
//! # drop(lock);
//! # Ok(())
//! # }
//! ```
//!
//! # What it asks of its process
//!
//! - **One thread.** [`serve`] runs in it, and starts no other. A child runs Rust code between clone and execve, which is
//!   sound only if no other thread held a lock, such as the allocator's.
//! - **All children are the executor's.** It reaps with `waitpid(-1)`: whoever else waits for a child, as
//!   `std::process::Command` does, may find it gone.
//! - **Its signals**: SIGCHLD; SIGTERM and SIGINT, which stop all tasks as their descriptions say, then end the loop. All
//!   others have their default effect from [`serve`] on, and SIGPIPE is ignored.
//! - **The process is changed for good**: it is not dumpable, so that no task can trace it; nice value, I/O priority, CPU
//!   affinity and memory policy are the system's defaults, so that no task inherits others; it moves to the cgroup that
//!   [`ShimCgroup`] names.
//! - **Root**, in the host's pid namespace, and libseccomp when the program is linked.
//! - **One executor a process, once**: a second [`serve`] finds the signal handlers of the first.
//! - **Nothing blocks the loop**: what takes long is done elsewhere, or every deadline and every exit waits for it.
//!
//! # What it does not do
//!
//! - Serve a socket: `bowline` finds a task of an embedded executor in the state folder, and its report and events, but
//!   cannot stop it or run a command in it. The crate `bowline-shim` is the server that does.
//! - Survive: a task whose executor is killed has no supervisor. `bowline rm`, or [`undo()`], ends and removes it, and
//!   `bowline gc` the executor's own cgroup.
//! - Share a budget, unless it is a sandbox's: see [`Executor::create_sandbox`].

#![warn(missing_docs)]

mod executor;
#[doc(hidden)]
pub mod facts;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod hostside;
mod lifecycle;
mod oci;
mod one_call;
mod output;
mod process;
mod request;
mod rights;
mod start;
mod supervise;
#[doc(hidden)]
pub mod upgrade;
mod view;
#[doc(hidden)]
pub mod waits;

use tokio::task::LocalSet;

pub use bowline_cgroup::Driver as CgroupDriver;
pub use bowline_error::{Doing, Error, Kind, Result};
pub use bowline_model::events;
pub use bowline_model::folder::{Folder, Lock, StateDir};
pub use bowline_model::health::{Check, Health, HealthStatus};
pub use bowline_model::log_line::LogStream;
pub use bowline_model::report::{ExitReport, SliceEnforcement, StoppedBy, UnwrittenOutput};
pub use bowline_model::sandbox::{JointLimits, SandboxState};
pub use bowline_model::stats::{
    Cpu as CpuStats, Figures as ExitFigures, Hugepages as HugepagesStats, Io as IoStats, IoDevice as IoDeviceStats,
    Memory as MemoryStats, MemoryAccount as MemoryAccountStats, MemoryEvents as MemoryEventsStats, Pids as PidsStats,
    Pressure, Process as ProcessStats, Rdma as RdmaStats, Stall, Stats,
};
pub use bowline_model::status::Status;
pub use bowline_model::watch;
pub use executor::Executor;
pub use facts::{ExecEnd, Killed, Particulars};
pub use hostside::systemd;
pub use hostside::undo::{LeftAlone, undo};
pub use oci::member::Member;
pub use output::io::{Attachment, Input, Logger, Released, TAIL, Target, WindowSize};
pub use output::manager_events::{EventSink, ManagerEvent, TaskEvent};
pub use request::{Bundle, Exec, ExecOutcome, Launch, Launched, Launcher, Process, Source, TaskState};
pub use start::checkpoint::{Checkpoint, Criu};
pub use supervise::{BegunExec, Config, Leave, ShimCgroup};
pub use view::rootfs::{Secret, layers};
pub use view::secrets;
pub use view::service::Service;

/// What the programs of this workspace are made of besides: without a promise for others.
#[doc(hidden)]
pub mod internal {
    pub use crate::facts;
    pub use crate::hostside::attached::{hold as hold_attached, remove_left_in};
    pub use crate::hostside::copies::misplaced;
    pub use crate::hostside::host_units;
    pub use crate::hostside::housekeeping;
    pub use crate::hostside::owners::{holder, is_holder, is_named_shim, is_stopped, kept};
    pub use crate::hostside::past_shim::{PastShim, frozen_by, is_frozen, kill_shim, until_free};
    pub use crate::hostside::probe;
    pub use crate::hostside::strangers::check_none_in_sandbox;
    pub use crate::hostside::undo::{remove_folder, remove_unwritten, undo_bundle, undo_rest};
    pub use crate::hostside::undo_sandbox::{Undone, give_up_damaged_networks, undo_sandbox};
    pub use crate::hostside::unit_settings::{UnitSetting, unit_settings};
    pub use crate::oci::features::features;
    pub use crate::oci::host::{compile_filter, configure, limits_of, user_ids};
    pub use crate::oci::tolerance::{LARGEST_CONFIG, process as parse_process, resources as parse_resources};
    pub use crate::one_call::{
        Begun, Container, Containers, Create, Exec as ContainerExec, Status, Streams, run as run_call,
    };
    pub use crate::output::io::{CallersPipe, Counter, Ready, Release, until_read};
    pub use crate::output::log::{
        Identity as FileIdentity, LogFile, LogFiles, LogLine, LogPlace, log_places, rotated_file as rotated_log,
    };
    pub use crate::process::fd_passing::send as send_fd;
    pub use crate::process::inheritance::{InheritedLimits, leave_behind};
    pub use crate::process::page_release;
    pub use crate::process::sealed::{Sealed, open as open_sealed};
    pub use crate::process::spare_fd;
    pub use crate::request::PauseEnd;
    pub use crate::start::hooks::{Point as HookPoint, run_poststop as run_poststop_hooks};
    pub use crate::start::pause_process::{Net as PauseNet, PauseProcess};
    pub use crate::supervise::Handed;
    pub use crate::upgrade;
    pub use crate::view::idmap::Idmap;
    pub use crate::view::inside_root::{Symlinks, open as open_inside};
    pub use crate::view::network;
    pub use crate::view::rootfs::{SECRETS, mount_options};
    pub use crate::view::sandbox_namespaces;
    pub use crate::view::service::sockets_for_us;
    pub use crate::waits;
    pub use bowline_cgroup::{
        Unit, checked_path as checked_cgroup_path, is_ours as is_our_cgroup, is_v2 as is_cgroup_v2,
        join_existing as join_cgroup,
    };
    #[cfg(feature = "absent")]
    pub use bowline_sys::all_absent;
    pub use bowline_sys::{
        Arrived as ArrivedSignal, BACKLOG, close_all_but, hand_down, in_first_user_namespace, inherited_fd,
        is_handed_down, is_signal_ignored, listen_privately, proc_stat, read_file, read_regular_file, read_up_to,
        register_fd_for, report_signal, with_signals_blocked,
    };
}

/// The executor's version, as in its `Cargo.toml`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What has ended first: the loop, or its manager.
enum First {
    Over(Result<()>),
    Manager(Result<()>),
}

/// How many events of the kernel one turn of the loop takes: tokio has room for 1,024 by default, 12 KiB of every shim.
const EVENTS_AT_ONCE: usize = 64;

/// Runs an executor in the calling thread, which must be the only one, with `manager` beside it.
///
/// The executor closes when the last task has ended and all of its output is written, or when its
/// starter goes before anything was launched: see [`Leave`]. `serve` then waits for `manager`: see
/// [`Executor::closed`]. If `manager` returns first, the running tasks are stopped as their
/// descriptions say, and everything that was made for them is removed.
///
/// # Errors
/// `Internal` when the event loop cannot be created; else what `manager` returns. What this host
/// cannot do is an error of each launch.
pub fn serve<F, Fut>(config: Config, manager: F) -> Result<()>
where
    F: FnOnce(Executor) -> Fut,
    Fut: Future<Output = Result<()>> + 'static,
{
    bowline_sys::default_signals(bowline_sys::changed_signals().filter(|signal| *signal != libc::SIGPIPE));
    serve_on(config, None, manager)
}

/// Like [`serve`], with what the program before this one has handed over.
///
/// # Errors
/// As [`serve`]; `Damaged` when something is missing of what was handed over.
#[doc(hidden)]
pub fn serve_on<F, Fut>(config: Config, handover: Option<Box<internal::Handed>>, manager: F) -> Result<()>
where
    F: FnOnce(Executor) -> Fut,
    Fut: Future<Output = Result<()>> + 'static,
{
    let files = handover.as_ref().and_then(|handed| handed.files());
    process::inheritance::leave_behind_again(config.limits, files)?;
    process::spare_fd::keep();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_io_events_per_tick(EVENTS_AT_ONCE)
        .on_thread_park(process::page_release::give_back)
        .build()
        .doing(Kind::Internal, || "cannot start the event loop")?;
    LocalSet::new().block_on(&runtime, async move {
        let executor = Executor::new();
        let mut manager = tokio::task::spawn_local(manager(executor.clone()));
        // A future that is pinned where it is takes twice its size of the stack.
        let mut over = Box::pin(executor.run(config, handover));
        let first = {
            // Given up with either of the others: what it has begun is undone.
            let mut upgraded = Box::pin(executor.upgrade_when_asked());
            tokio::select! {
                // The loop first: it hears of signals before an upgrade blocks them.
                biased;
                over = &mut over => First::Over(over),
                early = &mut manager => First::Manager(early.unwrap_or(Ok(()))),
                never = &mut upgraded => match never {},
            }
        };
        match first {
            First::Over(over) => {
                over?;
                manager.await.unwrap_or(Ok(()))
            }
            First::Manager(early) => {
                // Leaving also removes what was made for the tasks.
                executor.leave();
                over.await?;
                early
            }
        }
    })
}
