//! The requests to a shim, and their answers. Plain data that may cross threads; the wire formats
//! are made from it elsewhere.

use std::path::PathBuf;
use std::time::Duration;

use bowline_cgroup::Driver;
use bowline_model::health::Health;
use bowline_model::report::ExitReport;
use bowline_model::status::Status;
use bowline_spec::id::TaskId;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::facts::{ExecEnd, Particulars};
use crate::oci::member::Member;
use crate::output::io::{Attachment, Input, Logger, Released, Target, WindowSize};
use crate::view::rootfs::layers::Layer;
use crate::view::secrets::Secrets;
use crate::view::service::Service;

/// A request for a task: what it is made from, and where its streams go.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The task's id, unique among all tasks of the state folder.
    pub id: TaskId,
    /// What the task is made from.
    pub source: Source,
    /// Where the task's stdin comes from, unless the description says it.
    pub stdin: Input,
    /// Where the task's stdout goes.
    pub stdout: Target,
    /// Where the task's stderr goes.
    pub stderr: Target,
    /// If set, this logger takes the output instead.
    pub logger: Option<Logger>,
    /// Whether output goes straight to the FIFOs that `stdout` and `stderr` name: the shim then
    /// keeps neither its tail nor a log. Has no effect with a terminal.
    pub direct: bool,
    /// The first size of the task's terminal, if it has one.
    pub size: WindowSize,
    /// The client that is attached from the beginning.
    pub attached: Option<Attachment>,
    /// Whether the exit report must survive a power loss: it is then synced before anybody learns of it.
    pub durable: bool,
    /// Whether the shim removes the task once it has ended, or its launch has failed: its folder goes.
    pub remove: bool,
    /// Processes of the shim's pid namespace, each by its pid and when it started, in clock ticks since the boot
    /// (proc_pid_stat(5)). The task is stopped once one of them has ended.
    pub ends_with: Vec<(i32, u64)>,
    /// The client that asks for the launch, which may ask how a task that is removed has ended.
    pub launcher: Option<Launcher>,
    /// What makes the task's cgroup.
    pub driver: Driver,
    /// The systemd slice that the task goes into. Only for a task from a description, in no sandbox.
    pub slice: Option<String>,
    /// Whether the task stays out where systemd refuses, and its exit report says so, instead of a launch that fails.
    pub slice_optional: bool,
    /// If set, the task goes on from the checkpoint in this folder. Only for a bundle that is
    /// created and started in two steps.
    pub checkpoint: Option<PathBuf>,
    /// Settings of a manager for all processes of the task.
    pub particulars: Particulars,
    /// Secrets that only the task may read.
    pub secrets: Secrets,
    /// What a service manager has for the command.
    pub service: Service,
}

impl Launch {
    /// A task with nothing to read, nowhere to write to, and no client attached.
    pub fn new(id: TaskId, source: impl Into<Source>) -> Launch {
        Launch {
            id,
            source: source.into(),
            stdin: Input::Null,
            stdout: Target::Null,
            stderr: Target::Null,
            logger: None,
            direct: false,
            size: WindowSize::default(),
            attached: None,
            durable: false,
            remove: false,
            ends_with: Vec::new(),
            launcher: None,
            driver: Driver::default(),
            slice: None,
            slice_optional: false,
            checkpoint: None,
            particulars: Particulars::default(),
            secrets: Secrets::default(),
            service: Service::default(),
        }
    }

    /// The FIFOs of the client that has the task in its foreground.
    pub(crate) fn foreground(&self) -> [Option<PathBuf>; 2] {
        [&self.stdout, &self.stderr].map(|target| match target {
            Target::Foreground(path) => Some(path.clone()),
            Target::Null | Target::Path(_) | Target::Own(_) | Target::ForegroundPipe(_) => None,
        })
    }
}

/// The client that has asked for a launch, for as long as it is connected.
#[derive(Debug, Clone)]
pub struct Launcher(watch::Receiver<()>);

impl Launcher {
    /// The client on whose end the sender is dropped.
    pub fn new(connection: watch::Receiver<()>) -> Launcher {
        Launcher(connection)
    }

    /// Returns once the client has gone.
    pub(crate) async fn gone(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

/// What a task is made from.
#[derive(Debug, Clone)]
pub enum Source {
    /// A task description, as from [`bowline_spec::parse`].
    Task(Box<bowline_spec::Task>),
    /// A folder with an OCI configuration, which a manager has made.
    Bundle(Bundle),
}

impl From<bowline_spec::Task> for Source {
    fn from(task: bowline_spec::Task) -> Source {
        Source::Task(Box::new(task))
    }
}

impl From<Bundle> for Source {
    fn from(bundle: Bundle) -> Source {
        Source::Bundle(bundle)
    }
}

/// A folder with `config.json`, the OCI configuration, and usually `rootfs`. The record of the task is kept there too.
#[derive(Debug, Clone)]
pub struct Bundle {
    /// The path of the folder.
    pub path: PathBuf,
    /// The layers that its root is mounted from, in their order; unmounted when the task is
    /// removed. Empty if the root is there already.
    pub layers: Vec<Layer>,
    /// What the task has from its sandbox, if it is a member of one.
    pub member: Option<Member>,
}

/// The result of a launch.
#[derive(Debug, Clone)]
pub struct Launched {
    /// The pid of init on the host.
    pub pid: i32,
    /// What was changed of the limits of a sandbox's member, a sentence each.
    pub notes: Vec<String>,
}

/// An additional process in a task.
#[derive(Debug, Clone, Default)]
pub struct Exec {
    /// If set, this describes the process, and the next four fields have no effect.
    pub process: Option<Box<oci_spec::runtime::Process>>,
    /// The program, followed by its arguments.
    pub command: Vec<String>,
    /// `KEY=value`, on top of the task's environment.
    pub env: Vec<String>,
    /// The task's own when absent.
    pub workdir: Option<PathBuf>,
    /// `user`, `user:group`, by name or number; the task's own when absent.
    pub user: Option<String>,
    /// Counted from the request on; then everything that the exec has started is killed.
    pub timeout: Option<Duration>,
    /// Where stdin comes from; [`Input::Null`] by default.
    pub stdin: Input,
    /// If set, the exec has a terminal of this size, whose output goes to `stdout`.
    pub terminal: Option<WindowSize>,
    /// The exec's name, for callers that resize its terminal or signal it.
    pub name: Option<String>,
    /// Whether output goes straight to the FIFOs that `stdout` and `stderr` below
    /// name instead of being captured.
    pub direct: bool,
    /// If set, output that goes straight to FIFOs ends once the exec is released, whatever it has left running.
    pub released: Option<Released>,
    /// Where stdout goes, besides the capture.
    pub stdout: Target,
    /// Where stderr goes, besides the capture.
    pub stderr: Target,
    /// If set, this logger takes the output instead.
    pub logger: Option<Logger>,
    /// How many bytes of output to capture; 4096 when absent.
    pub tail_bytes: Option<usize>,
    /// Whether stdout and stderr are captured separately.
    pub separate: bool,
    /// Whether the exec ends with its caller: if the [`crate::BegunExec`] is dropped before the end, its session gets
    /// SIGHUP, and what is left of it after the task's grace is killed.
    pub ends_with_caller: bool,
}

/// How an exec ended, and the last of its output.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExecOutcome {
    /// The exit code, or that the deadline came.
    pub end: ExecEnd,
    /// The number of the signal that ended it; the exit code is 128 more then.
    pub signal: Option<i32>,
    /// Whether the kernel killed it for lack of memory.
    pub oom_killed: bool,
    /// The last bytes of stdout; of both streams if not captured separately.
    pub stdout: Vec<u8>,
    /// The last bytes of stderr if captured separately.
    pub stderr: Vec<u8>,
    /// When the program was executed; the deadline if it never was.
    pub started_at: Timestamp,
    /// When the exec was reaped.
    pub exited_at: Timestamp,
}

impl ExecOutcome {
    /// An exec that has ended so, and has written nothing.
    pub fn new(end: ExecEnd, started_at: Timestamp, exited_at: Timestamp) -> ExecOutcome {
        let (stdout, stderr) = (Vec::new(), Vec::new());
        ExecOutcome { end, signal: None, oom_killed: false, stdout, stderr, started_at, exited_at }
    }
}

/// A process of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// In the shim's pid namespace.
    pub pid: i32,
    /// The exec's number, if the process is an exec.
    pub exec: Option<u64>,
    /// The name of that exec, if it has one.
    pub name: Option<String>,
}

/// A task as it is now.
#[derive(Debug, Clone)]
pub struct TaskState {
    /// The task's id, unique in the state folder.
    pub id: TaskId,
    /// Where the task is in its life.
    pub status: Status,
    /// Init's pid, while init lives.
    pub pid: Option<i32>,
    /// Whether the task has a terminal.
    pub terminal: bool,
    /// Whether the task gets what an attached client writes.
    pub takes_input: bool,
    /// The results of its health checks, if it has any and the caller asked for them.
    pub health: Option<Health>,
    /// The exit report, while it cannot be written.
    pub unwritten: Option<Box<ExitReport>>,
}

/// How a pause process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PauseEnd {
    /// 0 when it was asked to end, or 128 and the number of the signal that killed it.
    pub code: i32,
    /// When the process was reaped.
    pub at: Timestamp,
}
