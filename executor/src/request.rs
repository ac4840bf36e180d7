//! What a shim can be asked, and what it answers. Plain data that may cross
//! threads; the wire formats are made from it elsewhere.

use std::path::PathBuf;
use std::time::Duration;

use bowline_cgroup::Driver;
use bowline_spec::id::TaskId;
use jiff::Timestamp;

use crate::facts::{ExecEnd, Particulars};
use crate::health::Health;
use crate::io::{Attachment, Input, Logger, Target, WindowSize};
use crate::lifecycle::Status;
use crate::member::Member;
use crate::report::ExitReport;
use crate::rootfs::layers::Layer;

/// A new task.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Its id, unique among all tasks of the state folder.
    pub id: TaskId,
    /// What it is.
    pub source: Source,
    /// Where its stdin comes from, where nothing is said by the description.
    pub stdin: Input,
    /// Where its stdout goes.
    pub stdout: Target,
    /// Where its stderr goes.
    pub stderr: Target,
    /// With it, what takes its output instead.
    pub logger: Option<Logger>,
    /// Whether output goes straight to the FIFOs that `stdout` and `stderr` name:
    /// then the shim keeps neither its tail nor a log. Not where it has a terminal.
    pub direct: bool,
    /// How large its terminal is at first, if it has one.
    pub size: WindowSize,
    /// Who is attached from the beginning.
    pub attached: Option<Attachment>,
    /// Whether its exit report is to survive a power loss: then it is synced
    /// before anybody is told.
    pub durable: bool,
    /// Who makes its cgroup.
    pub driver: Driver,
    /// The slice of systemd's that it is to be in. Where systemd refuses, it is not,
    /// and its exit report says so. Of a task from a description, in no sandbox.
    pub slice: Option<String>,
    /// With it, it goes on from the checkpoint in this folder. Of a bundle that
    /// is created and started apart.
    pub checkpoint: Option<PathBuf>,
    /// What is to be otherwise than usual.
    pub particulars: Particulars,
}

impl Launch {
    /// A task with nothing to read, nowhere to write to, and nobody attached.
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
            driver: Driver::default(),
            slice: None,
            checkpoint: None,
            particulars: Particulars::default(),
        }
    }
}

/// What a task is made from.
#[derive(Debug, Clone)]
pub enum Source {
    /// A description.
    Task(Box<bowline_spec::Task>),
    /// A manager's folder.
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

/// A folder with `config.json`, the OCI configuration, and mostly `rootfs`. What
/// is known of the task is kept there too.
#[derive(Debug, Clone)]
pub struct Bundle {
    /// Where it is.
    pub path: PathBuf,
    /// What its root is mounted from, in their order; taken down when the task
    /// is removed. None where the root is there already.
    pub layers: Vec<Layer>,
    /// What it has from its sandbox, if it is a member of one.
    pub member: Option<Member>,
}

/// What a launch has led to.
#[derive(Debug, Clone)]
pub struct Launched {
    /// Init's pid.
    pub pid: i32,
}

/// An additional process in a task.
#[derive(Debug, Clone, Default)]
pub struct Exec {
    /// With it, the whole of what the process is, and the next four say nothing.
    pub process: Option<Box<oci_spec::runtime::Process>>,
    /// Command and arguments.
    pub command: Vec<String>,
    /// `KEY=value`, on top of the task's environment.
    pub env: Vec<String>,
    /// The task's own when absent.
    pub workdir: Option<PathBuf>,
    /// `user`, `user:group`, by name or number; the task's own when absent.
    pub user: Option<String>,
    /// Counted from the request on; everything it started is then killed.
    pub timeout: Option<Duration>,
    /// Where stdin comes from.
    pub stdin: Input,
    /// With it, it has a terminal of this size, whose output goes to `stdout`.
    pub terminal: Option<WindowSize>,
    /// What it is called, by whoever resizes its terminal or signals it.
    pub name: Option<String>,
    /// Whether output goes straight to the FIFOs that `stdout` and `stderr` below
    /// name instead of being captured.
    pub direct: bool,
    /// Where stdout goes, besides the capture.
    pub stdout: Target,
    /// Where stderr goes, besides the capture.
    pub stderr: Target,
    /// With it, what takes its output instead.
    pub logger: Option<Logger>,
    /// How many bytes of output to capture; 4096 when absent.
    pub tail_bytes: Option<usize>,
    /// Whether stdout and stderr are captured each on their own.
    pub separate: bool,
}

/// How an exec ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutcome {
    /// What became of it.
    pub end: ExecEnd,
    /// The last bytes of stdout; of both streams if not captured separately.
    pub stdout: Vec<u8>,
    /// The last bytes of stderr if captured separately.
    pub stderr: Vec<u8>,
    /// When its program was executed; at the deadline if it never was.
    pub started_at: Timestamp,
    /// When it was reaped.
    pub exited_at: Timestamp,
}

/// A process of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// In the shim's pid namespace.
    pub pid: i32,
    /// The number of the exec that it is, if it is one.
    pub exec: Option<u64>,
    /// The name of that exec, if it has one.
    pub name: Option<String>,
}

/// A task as it is now.
#[derive(Debug, Clone)]
pub struct TaskState {
    /// Its id.
    pub id: TaskId,
    /// Where it is in its life.
    pub status: Status,
    /// Init's pid, while it lives.
    pub pid: Option<i32>,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// Whether what somebody who attaches writes comes to it.
    pub takes_input: bool,
    /// What its health checks have come to, if it has any and was asked for it.
    pub health: Option<Health>,
    /// Its exit report, while that cannot be written.
    pub unwritten: Option<Box<ExitReport>>,
}

/// How a pause process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PauseEnd {
    /// 0 when it was to, or 128 and the number of the signal that killed it.
    pub code: i32,
    /// When it was reaped.
    pub at: Timestamp,
}
