//! Launches, supervises, limits and reports on tasks, in one thread.
//!
//! [`serve`] runs the loop; an [`Executor`] is how everything else talks to it.
//! A shim with one task looks like this:
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

mod bundle;
mod cgroup;
mod checkpoint;
mod child;
mod claim;
mod claimed_uid;
pub mod clock;
mod error;
pub mod events;
mod exec;
pub mod facts;
mod features;
pub mod figures;
mod folder;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod health;
mod hooks;
mod host;
pub mod housekeeping;
mod identity;
mod idmap;
mod inheritance;
mod io;
mod known;
mod launch;
mod lifecycle;
mod log;
mod lsm;
mod member;
mod mountinfo;
mod namespaces;
pub mod network;
mod notify;
mod owners;
pub mod pages;
mod past_shim;
mod pause;
pub mod probe;
pub mod proc_stat;
mod program;
mod record;
mod recovery;
mod refused;
mod report;
mod request;
mod reserve;
mod rootfs;
mod sandbox;
mod scoped;
mod sealed;
mod seccomp;
pub mod shared;
pub mod spare;
mod stats;
mod supervise;
mod sys;
pub mod systemd;
mod told;
pub mod tracked;
mod trust;
pub mod waits;
pub mod watch;
mod worker;

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use bowline_spec::Update;
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use oci_spec::runtime::LinuxResources;
use tokio::io::Interest;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

pub use cgroup::{
    Driver as CgroupDriver, Unit, checked_path as checked_cgroup_path, is_v2 as is_cgroup_v2,
    join_existing as join_cgroup,
};
pub use checkpoint::{Checkpoint, Criu};
pub use error::{Doing, Error, Kind, Result};
pub use facts::{ExecEnd, Killed};
pub use features::features;
pub use folder::{ATTACHED, Folder, Lock, Owner, Record, StateDir, died_with_shim};
pub use health::{Check, Health, Status as HealthStatus};
pub use hooks::{Point as HookPoint, run_poststop as run_poststop_hooks};
pub use host::configure;
pub use inheritance::{Limits as InheritedLimits, leave_behind};
pub use io::{Attachment, Input, Logger, Ready, TAIL, Target, WindowSize};
pub use lifecycle::Status;
pub use log::{LogFiles, LogLine, LogStream, rotated_file as rotated_log};
pub use member::Member;
pub use past_shim::{PastShim, is_frozen, kill_shim, until_free};
pub use pause::{Net as PauseNet, Pause};
pub use recovery::{LeftAlone, undo, undo_bundle, undo_rest};
pub use report::{Enforcement, ExitReport, StoppedBy};
pub use request::{Bundle, Exec, ExecOutcome, Launch, Launched, Particulars, PauseEnd, Process, Source, TaskState};
pub use rootfs::{layers, mount_options};
pub use sandbox::{Budget, SandboxRecord, SandboxState, give_up_damaged_networks, undo_sandbox};
pub use sealed::open as open_sealed;
pub use stats::{
    Cpu as CpuStats, Hugepages as HugepagesStats, Io as IoStats, IoDevice as IoDeviceStats, Memory as MemoryStats,
    MemoryAccount as MemoryAccountStats, MemoryEvents as MemoryEventsStats, Pids as PidsStats, Pressure,
    Process as ProcessStats, Rdma as RdmaStats, Stall, Stats,
};
pub use supervise::{Config, Leave, ShimCgroup};
#[cfg(feature = "absent")]
pub use sys::all_absent;
pub use sys::{close_all_but, inherited_fd};
pub use told::{Happening, Teller, Told};

use request::Request;

/// The version of this executor.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs an executor in the calling thread, which must be the only one, with
/// `manager` beside it. When the last task has ended and all that it said is
/// written, or when it is told that nobody will launch any, the executor closes,
/// and the manager is waited for: see [`Executor::closed`]. When the manager
/// returns first, what still runs is stopped, as its description says, and all
/// that was made for it is removed.
///
/// # Errors
/// `Internal` when the event loop cannot be had; else what `manager` returns.
/// What this host cannot do is told to whoever launches.
pub fn serve<F, Fut>(config: Config, manager: F) -> Result<()>
where
    F: FnOnce(Executor) -> Fut,
    Fut: Future<Output = Result<()>> + 'static,
{
    sys::default_signals((1..=64).filter(|signal| *signal != libc::SIGPIPE));
    inheritance::leave_behind(config.limits)?;
    spare::keep();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .on_thread_park(pages::give_back)
        .build()
        .doing(Kind::Internal, || "cannot start the event loop")?;
    let (send, requests) = mpsc::unbounded_channel();
    let ours = Executor { requests: send };
    let manager = manager(ours.clone());
    LocalSet::new().block_on(&runtime, async move {
        let mut manager = tokio::task::spawn_local(manager);
        let over = supervise::run(config, requests);
        tokio::pin!(over);
        tokio::select! {
            over = &mut over => {
                over?;
                manager.await.unwrap_or(Ok(()))
            }
            early = &mut manager => {
                // Whatever was made for its tasks goes with them.
                ours.leave();
                over.await?;
                early.unwrap_or(Ok(()))
            }
        }
    })
}

/// A handle on the loop, for whoever serves a manager. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Executor {
    requests: mpsc::UnboundedSender<Request>,
}

impl Executor {
    /// One that has left: whatever is asked of it is refused.
    #[cfg(feature = "fuzzing")]
    pub fn gone() -> Executor {
        Executor { requests: mpsc::unbounded_channel().0 }
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<Result<T>>) -> Request) -> Result<T> {
        let gone = || Error::new(Kind::NotFound, "the shim is leaving: its tasks have ended");
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// Returns when nothing more will be answered.
    pub async fn closed(&self) {
        self.requests.closed().await;
    }

    /// Makes the sandbox that the shim's folder describes: from then on what is
    /// launched is a member of it, and the shim stays until it is removed.
    ///
    /// # Errors
    /// `BadSpec`, `Unsupported`, what plugins say: nothing of it is then left.
    pub async fn create_sandbox(&self) -> Result<()> {
        self.ask(Request::CreateSandbox).await
    }

    /// Everything that is known of the sandbox.
    ///
    /// # Errors
    /// `NotFound` where the shim has none.
    pub async fn sandbox_state(&self) -> Result<SandboxState> {
        self.ask(Request::SandboxState).await
    }

    /// What all members of the sandbox use together.
    pub async fn sandbox_stats(&self) -> Result<Stats> {
        self.ask(Request::SandboxStats).await
    }

    /// Changes the sandbox's limits: all that `update` names, or none.
    ///
    /// # Errors
    /// As for [`Executor::update`]; `BadSpec` too where a member would not fit.
    pub async fn update_sandbox(&self, update: Update) -> Result<()> {
        self.ask(|reply| Request::UpdateSandbox(Box::new(update), reply)).await
    }

    /// Charges processes that help the sandbox beside it, as the shim is.
    /// Returns those that are no processes.
    pub async fn charge_helpers(&self, pids: Vec<i32>) -> Result<Vec<i32>> {
        self.ask(|reply| Request::ChargeHelpers(pids, reply)).await
    }

    /// Removes the sandbox; the shim leaves then. With `force` its members are
    /// killed first.
    ///
    /// # Errors
    /// `WrongState` while members run; what plugins say that cannot undo what
    /// they have added: it may be tried again.
    pub async fn remove_sandbox(&self, force: bool) -> Result<()> {
        self.ask(|reply| Request::RemoveSandbox(force, reply)).await
    }

    /// Launches a task; returns once its program is executed.
    ///
    /// # Errors
    /// `AlreadyExists`, `BadSpec`, `CommandNotFound`, `NotExecutable`,
    /// `Unsupported`: nothing of the task is then left.
    pub async fn launch(&self, launch: Launch) -> Result<Launched> {
        self.ask(|reply| Request::Launch(Box::new(launch), reply)).await
    }

    /// The first half of [`Executor::launch`]: everything but the program's
    /// execution is done when this returns. The task can be killed meanwhile.
    ///
    /// # Errors
    /// As for a launch.
    pub async fn create(&self, launch: Launch) -> Result<Launched> {
        self.ask(|reply| Request::Create(Box::new(launch), reply)).await
    }

    /// The second half: returns once the program is executed. It may have ended
    /// by then.
    ///
    /// # Errors
    /// `WrongState` when it was started already or has ended; what its program
    /// lacks: then it ends.
    pub async fn start(&self, id: &TaskId) -> Result<()> {
        self.ask(|reply| Request::Start(id.clone(), reply)).await
    }

    /// Forgets a task that has ended, once all that it said is written or given
    /// up; its id is then free. One whose program does not run yet is killed.
    ///
    /// # Errors
    /// `WrongState` while it runs.
    pub async fn remove(&self, id: &TaskId) -> Result<()> {
        self.ask(|reply| Request::Remove(id.clone(), reply)).await
    }

    /// Tells an executor that now is the time to leave, above all one that leaves
    /// when it is told to: see [`Leave`]. It ends what still runs.
    pub fn leave(&self) {
        // One that has gone has done so.
        let _ = self.requests.send(Request::Leave);
    }

    /// Has an executor leave with whoever started it, as long as nobody has launched
    /// anything: `manager` is a pipe's read end, which ends with that. What is no
    /// pipe, as `/dev/null`, tells nothing. To be called within a `LocalSet`.
    pub fn leave_with(&self, manager: OwnedFd) {
        let Ok(manager) = sys::watch_for(manager, Interest::READABLE) else { return };
        let (requests, manager) = (self.requests.clone(), Rc::new(manager));
        waits::begin(move || {
            let (requests, manager) = (requests.clone(), manager.clone());
            async move {
                if manager.readable().await.is_ok() {
                    // One that has left need not hear it.
                    let _ = requests.send(Request::ManagerGone);
                }
            }
        });
    }

    /// Waits for a task to end. Any number may wait, also after it has.
    pub async fn wait(&self, id: &TaskId) -> Result<ExitReport> {
        self.ask(|reply| Request::Wait(id.clone(), reply)).await
    }

    /// Sends a signal to a task's init, or to all its processes.
    ///
    /// # Errors
    /// `NotFound` when it has ended.
    pub async fn signal(&self, id: &TaskId, signal: Signal, all: bool) -> Result<()> {
        self.ask(|reply| Request::Signal(id.clone(), signal, all, reply)).await
    }

    /// Brings a task down: `signal` now, SIGKILL to all that is left after
    /// `grace`; what is absent is as the task's description says, by default
    /// SIGTERM and ten seconds. Returns at once; a second call can only shorten.
    pub async fn shutdown(&self, id: &TaskId, signal: Option<Signal>, grace: Option<Duration>) -> Result<()> {
        self.ask(|reply| Request::Shutdown(id.clone(), signal, grace, reply)).await
    }

    /// Freezes all processes of a task; returns once they have stopped.
    pub async fn pause(&self, id: &TaskId) -> Result<()> {
        self.ask(|reply| Request::Pause(id.clone(), reply)).await
    }

    /// Thaws a paused task.
    pub async fn resume(&self, id: &TaskId) -> Result<()> {
        self.ask(|reply| Request::Resume(id.clone(), reply)).await
    }

    /// Runs a command in a task, to its end or its deadline.
    pub async fn exec(&self, id: &TaskId, exec: Exec) -> Result<ExecOutcome> {
        self.ask(|reply| Request::Exec(id.clone(), Box::new(exec), reply)).await
    }

    /// Starts a command in a task; returns once its program is executed. Its end
    /// is told: see [`Happening::ExecExited`].
    ///
    /// # Errors
    /// As for [`Executor::exec`].
    pub async fn start_exec(&self, id: &TaskId, exec: Exec) -> Result<Launched> {
        self.ask(|reply| Request::StartExec(id.clone(), Box::new(exec), reply)).await
    }

    /// Sends a signal to the exec of that name.
    ///
    /// # Errors
    /// `NotFound` when there is none, as it has ended.
    pub async fn signal_exec(&self, id: &TaskId, exec: &str, signal: Signal) -> Result<()> {
        self.ask(|reply| Request::SignalExec(id.clone(), exec.to_owned(), signal, reply)).await
    }

    /// Connects somebody to a task's streams, until either leaves. Returns once
    /// the FIFOs are open; they are closed when the task has ended.
    ///
    /// # Errors
    /// `WrongState` when it has ended, or for input that it does not take.
    pub async fn attach(&self, id: &TaskId, attachment: Attachment) -> Result<()> {
        self.ask(|reply| Request::Attach(id.clone(), attachment, reply)).await
    }

    /// Makes the terminal of a task, or of the exec of that name, this large.
    ///
    /// # Errors
    /// `WrongState` when it has none.
    pub async fn resize(&self, id: &TaskId, exec: Option<String>, size: WindowSize) -> Result<()> {
        self.ask(|reply| Request::Resize(id.clone(), exec, size, reply)).await
    }

    /// Writes a checkpoint of a task that runs, by criu.
    ///
    /// # Errors
    /// `WrongState` when it does not run; `Unsupported` without a criu that
    /// works here, or for a task that cannot be dumped; `Internal` with what
    /// criu says: the task then runs on.
    pub async fn checkpoint(&self, id: &TaskId, checkpoint: Checkpoint) -> Result<()> {
        self.ask(|reply| Request::Checkpoint(id.clone(), Box::new(checkpoint), reply)).await
    }

    /// Changes limits of a task that runs: all that `update` names, or none.
    ///
    /// # Errors
    /// `BadSpec` when the changed description makes no sense or the kernel
    /// refuses a value; `Unsupported` when this host has no such limit;
    /// `NotFound` when the task has ended.
    pub async fn update(&self, id: &TaskId, update: Update) -> Result<()> {
        self.ask(|reply| Request::Update(id.clone(), Box::new(update), reply)).await
    }

    /// Changes limits of a task, as a manager has worked them out.
    ///
    /// # Errors
    /// As for [`Executor::update`].
    pub async fn limit(&self, id: &TaskId, resources: LinuxResources) -> Result<()> {
        self.ask(|reply| Request::Limit(id.clone(), Box::new(resources), reply)).await
    }

    /// All processes of a task.
    pub async fn processes(&self, id: &TaskId) -> Result<Vec<Process>> {
        self.ask(|reply| Request::Processes(id.clone(), reply)).await
    }

    /// What a task uses now.
    pub async fn stats(&self, id: &TaskId) -> Result<Stats> {
        self.ask(|reply| Request::Stats(id.clone(), reply)).await
    }

    /// Starts a process that does nothing, in namespaces of its own: its pid. It
    /// dies with the shim.
    ///
    /// # Errors
    /// `AlreadyExists` while there is one; `BadSpec` for what would be the host's
    /// or cannot be joined; `Unsupported` where the kernel lacks something.
    pub async fn start_pause(&self, pause: Pause) -> Result<i32> {
        self.ask(|reply| Request::StartPause(Box::new(pause), reply)).await
    }

    /// Waits for it to end. Any number may wait, also after it has.
    ///
    /// # Errors
    /// `NotFound` when there never was one.
    pub async fn pause_ended(&self) -> Result<PauseEnd> {
        self.ask(Request::PauseEnded).await
    }

    /// Ends it; returns once it has ended.
    ///
    /// # Errors
    /// As [`Executor::pause_ended`].
    pub async fn end_pause(&self) -> Result<PauseEnd> {
        self.ask(Request::EndPause).await
    }

    /// What is used in a cgroup that is not ours, and below it.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub async fn cgroup_stats(&self, path: &str) -> Result<Stats> {
        self.ask(|reply| Request::CgroupStats(path.to_owned(), reply)).await
    }

    /// All figures of all tasks.
    pub async fn figures(&self) -> Result<figures::Figures> {
        self.ask(Request::Figures).await
    }

    /// Everything that the shim knows, for whoever looks for an error in it.
    pub async fn facts(&self) -> Result<Box<facts::Facts>> {
        self.ask(Request::Facts).await
    }

    /// Where a task is in its life.
    pub async fn state(&self, id: &TaskId) -> Result<TaskState> {
        self.ask(|reply| Request::State(id.clone(), reply)).await
    }

    /// The same of all tasks.
    pub async fn states(&self) -> Result<Vec<TaskState>> {
        self.ask(Request::States).await
    }
}
