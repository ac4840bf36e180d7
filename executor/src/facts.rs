//! What a shim knows: plain values that can be written down and read again.
//!
//! What it holds open belongs to them and is in `supervise/handles`; futures wait.
//! What they still keep beside that is listed in ARCHITECTURE.md, "A task's life".
//!
//! Must not: hold a descriptor, wait, or act.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

use bowline_spec::budget::{Class, Joint, Share};
use bowline_spec::id::TaskId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::clock::Moment;
use crate::figures::ExecStarts;
use crate::folder::Record;
use crate::health::Health;
use crate::lifecycle::{exec, sandbox, shim, task};
use crate::report::{ExitReport, StoppedBy};
use crate::sandbox::SandboxRecord;
use crate::watch::{Finding, Identity};

/// Everything that one shim knows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Facts {
    /// The shim's version.
    pub version: String,
    /// Its pid.
    pub pid: i32,
    /// When it started, in clock ticks since the boot (proc_pid_stat(5)).
    pub pid_started: Option<u64>,
    /// The boot that pids, start times and moments are of.
    pub boot_id: Option<String>,
    /// Of itself.
    pub shim: ShimFacts,
    /// Of its sandbox, if it has one.
    pub sandbox: Option<SandboxFacts>,
    /// Of its tasks, those that are over and not yet removed included.
    pub tasks: BTreeMap<TaskId, TaskFacts>,
}

/// What a shim knows of itself.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ShimFacts {
    /// Where it is in its life.
    pub life: shim::Life,
    /// Who is being launched; there may be no task of it yet.
    pub launching: BTreeSet<TaskId>,
    /// Processes that somebody has charged where the shim is.
    pub helpers: BTreeSet<Identity>,
}

/// What a shim knows of its sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxFacts {
    /// Where it is in its life.
    pub life: sandbox::Life,
    /// What is also on disk: its description, its cgroups, namespaces and interfaces.
    pub record: SandboxRecord,
    /// The members that have not ended, with what each may use.
    pub shares: BTreeMap<TaskId, Share>,
    /// The joint limits in effect.
    pub joint: Joint,
    /// The class that goes with them.
    pub class: Class,
}

impl SandboxFacts {
    /// Of one that is being made.
    pub fn new(record: SandboxRecord) -> SandboxFacts {
        SandboxFacts {
            life: sandbox::Life::default(),
            class: record.sandbox.class(&[]),
            record,
            shares: BTreeMap::new(),
            joint: Joint::default(),
        }
    }
}

/// What a shim knows of a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TaskFacts {
    /// Where it is in its life.
    pub life: task::Life,
    /// How many steps of it there were: who looks twice sees whether it was another meanwhile.
    pub steps: u64,
    /// What is also on disk: its description, its init, its cgroups.
    pub record: Box<Record>,
    /// It is a checkpoint's, and stopped until it is started.
    pub restored: bool,
    /// Where its root is mounted, if that is ours to take down.
    pub mounted: Option<PathBuf>,
    /// What its checks have come to, if it has any.
    pub health: Option<Health>,
    /// Who has it stopped.
    pub stopped_by: Option<StoppedBy>,
    /// What its watch has stopped it for.
    pub stopped_for: Option<Finding>,
    /// Signals that were sent to init, each once.
    pub sent: BTreeSet<i32>,
    /// Processes beside init that a kill met.
    pub killed: Option<u64>,
    /// Its execs by number, until the end of each was told.
    pub execs: BTreeMap<u64, ExecFacts>,
    /// How many execs it has had.
    pub execs_begun: u64,
    /// How long those that somebody asked for took to start.
    pub exec_starts: ExecStarts,
    /// How many cgroups were made for execs, which are numbered.
    pub exec_groups_made: u64,
    /// Those in which an exec has left somebody.
    pub exec_groups_left: VecDeque<u64>,
    /// How many events it has had.
    pub events: u64,
    /// Kills for want of memory that were told.
    pub oom_kills: u64,
    /// How often its own limit was met when the last was told, where what counts may
    /// go before its end is known.
    pub limit_met: Option<u64>,
    /// Somebody removes it, and has its report.
    pub fetched: bool,
    /// Its exit report, once it is told.
    pub report: Option<ExitReport>,
}

impl TaskFacts {
    /// Of one whose init was cloned.
    pub fn new(record: Box<Record>) -> TaskFacts {
        TaskFacts {
            life: task::Life::Starting,
            steps: 0,
            record,
            restored: false,
            mounted: None,
            health: None,
            stopped_by: None,
            stopped_for: None,
            sent: BTreeSet::new(),
            killed: None,
            execs: BTreeMap::new(),
            execs_begun: 0,
            exec_starts: ExecStarts::default(),
            exec_groups_made: 0,
            exec_groups_left: VecDeque::new(),
            events: 0,
            oom_kills: 0,
            limit_met: None,
            fetched: false,
            report: None,
        }
    }

    /// The number of the exec of that name, which runs.
    pub fn exec_named(&self, name: &str) -> Option<u64> {
        self.execs.iter().find(|(_, exec)| exec.name.as_deref() == Some(name)).map(|(number, _)| *number)
    }

    /// Keeps an exec by the next number, which this returns.
    pub fn begin_exec(&mut self, exec: ExecFacts) -> u64 {
        self.execs_begun += 1;
        self.execs.insert(self.execs_begun, exec);
        self.execs_begun
    }

    /// Whether the program of an exec that has not ended was executed.
    pub fn is_executed(&self, number: u64) -> bool {
        self.execs.get(&number).is_some_and(|exec| exec.life != exec::Life::Starting)
    }

    /// The execs that have a pid, by it.
    pub fn execs_by_pid(&self) -> BTreeMap<i32, (u64, &ExecFacts)> {
        self.execs.iter().filter_map(|(number, exec)| Some((exec.pid?, (*number, exec)))).collect()
    }
}

/// What a shim knows of an exec.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ExecFacts {
    /// Where it is in its life.
    pub life: exec::Life,
    /// What it is called, by whoever resizes its terminal or signals it.
    pub name: Option<String>,
    /// Its pid, once its program is executed or its deadline has come, until it was reaped.
    pub pid: Option<i32>,
    /// When that process started, in clock ticks since the boot; read for whoever asks.
    pub pid_started: Option<u64>,
    /// When it is killed, with all that it has started.
    pub deadline: Option<Moment>,
    /// When its program was executed; when its deadline came if it never was.
    pub started_at: Option<Timestamp>,
    /// The number of the cgroup that was made for it.
    pub group: Option<u64>,
    /// Whether it is in that.
    pub in_group: bool,
    /// How it has ended, while that is not told: its exit code, or 128 and the
    /// number of the signal that ended it.
    pub code: Option<i32>,
    /// When it was reaped.
    pub exited_at: Option<Timestamp>,
}
