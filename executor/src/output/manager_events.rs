//! Events of tasks, reported to the manager as they happen: see `Config::tell`.
//!
//! The events come in order, as things happen, so that no end overtakes a beginning: an exec's end
//! comes before that of its task, unless the exec is stuck in the kernel for longer than the task's
//! end waits, and an OOM kill comes before the end that it led to. The journal, for a
//! person to read, is in `events`.

use std::fmt;
use std::path::PathBuf;

use bowline_model::report::ExitReport;
use bowline_spec::id::TaskId;
use jiff::Timestamp;

/// The receiver of events. It must not block, nor ask the executor and wait.
pub struct EventSink(Box<dyn Fn(TaskEvent)>);

/// An event of a task.
#[derive(Debug, Clone)]
pub struct TaskEvent {
    /// The id of the task.
    pub id: TaskId,
    /// What has happened to the task.
    pub what: ManagerEvent,
}

/// What happens to a task.
#[derive(Debug, Clone)]
pub enum ManagerEvent {
    /// The task is set up; its program is not executed yet.
    Created {
        /// The pid of init on the host.
        pid: i32,
    },
    /// The task's program is executed.
    Started {
        /// The pid of init on the host.
        pid: i32,
    },
    /// An exec with a name runs.
    ExecStarted {
        /// The name that the exec's caller gave it.
        name: String,
        /// The pid of the exec on the host.
        pid: i32,
    },
    /// An exec with a name has ended, or its program was never executed.
    ExecExited {
        /// The name that the exec's caller gave it.
        name: String,
        /// The pid that the exec had on the host.
        pid: i32,
        /// The exit code, or 128 and the number of the signal that ended the exec.
        code: i32,
        /// When the exec was reaped.
        at: Timestamp,
    },
    /// The OOM killer has killed processes of the task.
    OutOfMemory,
    /// All processes of the task are frozen.
    Paused,
    /// All processes of the paused task run again.
    Resumed,
    /// A checkpoint of the task was written.
    Checkpointed {
        /// The folder of its images.
        images: PathBuf,
    },
    /// Init has ended, and everything else in the task.
    Exited {
        /// The pid that init had on the host.
        pid: i32,
        /// The exit report of the task.
        report: Box<ExitReport>,
    },
}

impl EventSink {
    /// Creates a sink that calls `take` with each event.
    pub fn new(take: impl Fn(TaskEvent) + 'static) -> EventSink {
        EventSink(Box::new(take))
    }

    pub(crate) fn tell(&self, id: &TaskId, what: ManagerEvent) {
        (self.0)(TaskEvent { id: id.clone(), what });
    }
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventSink")
    }
}
