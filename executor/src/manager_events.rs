//! Events of tasks, reported to the manager as they happen: see `Config::tell`.
//!
//! In order, as it comes about, so that no end overtakes a beginning: an
//! exec's end comes before that of its task, unless it is stuck in the kernel
//! for longer than that waits, and a kill for want of memory before the end that
//! it led to. The journal, for a person to read, is in
//! `events`.

use std::fmt;
use std::path::PathBuf;

use bowline_spec::id::TaskId;
use jiff::Timestamp;

use crate::report::ExitReport;

/// Who is told. It must not block, nor ask the executor and wait.
pub struct Teller(Box<dyn Fn(Told)>);

/// That something has happened to a task.
#[derive(Debug, Clone)]
pub struct Told {
    /// Which one.
    pub id: TaskId,
    /// What.
    pub what: Happening,
}

/// What happens to a task.
#[derive(Debug, Clone)]
pub enum Happening {
    /// It is set up, its program not executed yet.
    Created {
        /// Init's.
        pid: i32,
    },
    /// Its program is executed.
    Started {
        /// Init's.
        pid: i32,
    },
    /// An exec with a name runs.
    ExecStarted {
        /// The name.
        name: String,
        /// Its own.
        pid: i32,
    },
    /// An exec with a name has ended; also one whose program was never executed.
    ExecExited {
        /// The name.
        name: String,
        /// Its own.
        pid: i32,
        /// Its exit code, or 128 and the number of the signal that ended it.
        code: i32,
        /// When it was reaped.
        at: Timestamp,
    },
    /// The kernel has killed processes of it for want of memory.
    OutOfMemory,
    /// All its processes are frozen.
    Paused,
    /// They go on.
    Resumed,
    /// A checkpoint of it was written.
    Checkpointed {
        /// The folder of its images.
        images: PathBuf,
    },
    /// Its init has ended, and everything else in it.
    Exited {
        /// Init's.
        pid: i32,
        /// How.
        report: Box<ExitReport>,
    },
}

impl Teller {
    /// Calls `told` with all that happens.
    pub fn new(told: impl Fn(Told) + 'static) -> Teller {
        Teller(Box::new(told))
    }

    /// Tells.
    pub(crate) fn tell(&self, id: &TaskId, what: Happening) {
        (self.0)(Told { id: id.clone(), what });
    }
}

impl fmt::Debug for Teller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Teller")
    }
}
