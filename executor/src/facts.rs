//! What a shim knows: plain values that can be written down and read again.
//!
//! What it holds open belongs to them and is in `supervise/handles`; futures wait.
//!
//! Must not: hold a descriptor, wait, or act.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

use bowline_spec::budget::{Class, Joint, Share};
use bowline_spec::id::TaskId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::checkpoint::Criu;
use crate::claim::End;
use crate::clock::Moment;
use crate::figures::ExecStarts;
use crate::folder::Record;
use crate::health::Health;
use crate::io::Progress;
use crate::lifecycle::{exec, sandbox, shim, task};
use crate::report::{ExitReport, StoppedBy};
use crate::sandbox::SandboxRecord;
use crate::stats::Last;
use crate::waits::Work;
use crate::watch::{Begins, Counted, Finding, ProcessIdentity, Seen};

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
    /// What it is doing, and brings to its end.
    pub work: Vec<Work>,
    /// Children that have ended and that nobody has asked for yet, by pid.
    pub unclaimed: BTreeMap<i32, End>,
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
    pub helpers: BTreeSet<ProcessIdentity>,
    /// The cgroup of its own in which it is charged, once it has entered that; gathered for whoever asks.
    pub charged_in: Option<String>,
    /// The pause process that there is, or was last; gathered for whoever asks.
    pub pause: Option<PauseFacts>,
}

/// What a shim knows of a pause process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PauseFacts {
    /// Its pid, once it is set up, until it was reaped.
    pub pid: Option<i32>,
    /// How it has ended, once it was reaped.
    pub end: Option<End>,
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
    /// What its manager wants to be otherwise than usual.
    pub particulars: Particulars,
    /// It is a checkpoint's, and stopped until it is started.
    pub restored: bool,
    /// Where its root is mounted, if that is ours to take down.
    pub mounted: Option<PathBuf>,
    /// When the shim is charged where it belongs, for it, if that is to come.
    pub settles_at: Option<Moment>,
    /// What its checks have come to, if it has any.
    pub health: Option<Health>,
    /// How its checks go on, if it has any.
    pub checks: Option<Checks>,
    /// What its watch has seen.
    pub watched: Watched,
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
    /// When kills for want of memory are counted again.
    pub oom_looks: VecDeque<Moment>,
    /// How init has ended, as its claim knows; read for whoever asks.
    pub end: Option<End>,
    /// What its cgroup had counted then, where systemd may remove that.
    pub counted: Option<Last>,
    /// Processes that were killed after init's end.
    pub rest_killed: u64,
    /// What has become of its cgroup, and of its shim's.
    pub cgroups: Cgroups,
    /// When the step of its end that is under way is given up, or tried again.
    pub step_due: Option<Moment>,
    /// Somebody removes it, and has its report.
    pub fetched: bool,
    /// Its exit report, once it is made.
    pub report: Option<ExitReport>,
    /// What of its output went where; read for whoever asks.
    pub output: Option<Output>,
}

/// What a manager wants to be otherwise than usual, of all processes of a task.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Particulars {
    /// They stay in the session keyring of whoever has started the shim, instead
    /// of each getting one of its own.
    pub keeps_keyring: bool,
    /// The group that their streams belong to, as the host counts; the process's
    /// own when absent.
    pub stream_group: Option<u32>,
    /// What makes and restores its checkpoints.
    pub criu: Criu,
}

/// What has become of a task's cgroup, and of its shim's, which goes with the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cgroups {
    /// They are in use.
    InUse,
    /// They are being removed.
    Removing,
    /// They were removed.
    Removed,
}

/// How the health checks of a task go on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Checks {
    /// When the first could begin.
    pub begun: Moment,
    /// When the next is due, while the task runs.
    pub due: Option<Moment>,
    /// The one that is under way.
    pub under_way: Option<UnderWay>,
}

/// A health check that is under way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UnderWay {
    /// When it was begun.
    pub started_at: Timestamp,
    /// How many steps of the task's life there were then.
    pub steps: u64,
    /// Whether it was begun in the start period.
    pub in_start_period: bool,
    /// The number of its exec, once that is begun.
    pub exec: Option<u64>,
    /// Why it could not be begun.
    pub failed: Option<String>,
}

/// What a task's watch has seen, by policy, and when it looks again.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Watched {
    /// How often memory.high was exceeded.
    pub high: Policy<Counted>,
    /// Whether memory in use is above what it may be: of all, anonymous, and cache.
    pub memory: Policy<[Begins; 3]>,
    /// Whether it is held back longer than it may be.
    pub throttled: Policy<Begins>,
    /// For how long it was held back in all at the last look, in µs.
    pub throttled_usec: u64,
    /// How long it waits for CPU, memory and block devices.
    pub pressures: [Policy<()>; 3],
    /// Who was in the shim's cgroup.
    pub processes: Policy<Seen>,
}

/// What a policy has seen.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Policy<R> {
    /// By its rule.
    pub rule: R,
    /// When it looks again.
    pub due: Option<Moment>,
}

/// What of a process's output went where.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Output {
    /// The last bytes of its streams, as text.
    pub tails: Vec<String>,
    /// How far each stream is.
    pub streams: Vec<Progress>,
}

impl TaskFacts {
    /// Of one whose init was cloned.
    pub fn new(record: Box<Record>, particulars: Particulars) -> TaskFacts {
        TaskFacts {
            life: task::Life::Starting,
            steps: 0,
            record,
            particulars,
            restored: false,
            mounted: None,
            settles_at: None,
            health: None,
            checks: None,
            watched: Watched::default(),
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
            oom_looks: VecDeque::new(),
            end: None,
            counted: None,
            rest_killed: 0,
            cgroups: Cgroups::InUse,
            step_due: None,
            fetched: false,
            report: None,
            output: None,
        }
    }

    /// The number of the exec of that name, which runs.
    pub fn exec_named(&self, name: &str) -> Option<u64> {
        let is_it = |exec: &ExecFacts| exec.name.as_deref() == Some(name) && !exec.life.has_ended();
        self.execs.iter().find(|(_, exec)| is_it(exec)).map(|(number, _)| *number)
    }

    /// Keeps an exec by the next number, which this returns.
    pub fn keep_exec(&mut self, exec: ExecFacts) -> u64 {
        self.execs_begun += 1;
        self.execs.insert(self.execs_begun, exec);
        self.execs_begun
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
    /// Who has asked for it.
    pub by: AskedBy,
    /// Whether that has gone, and its end is told as an event alone.
    pub unwanted: bool,
    /// What it is called, by whoever resizes its terminal or signals it.
    pub name: Option<String>,
    /// Its pid, until it was reaped.
    pub pid: Option<i32>,
    /// When that process started, in clock ticks since the boot; read for whoever asks.
    pub pid_started: Option<u64>,
    /// When it is killed, with all that it has started.
    pub deadline: Option<Moment>,
    /// When it was.
    pub killed_at: Option<Moment>,
    /// Whether nothing is left of what was killed then.
    pub all_dead: bool,
    /// When its program was executed; when its deadline came if it never was.
    pub started_at: Option<Timestamp>,
    /// The number of the cgroup that was made for it.
    pub group: Option<u64>,
    /// Whether it is in that.
    pub in_group: bool,
    /// How it has ended.
    pub end: Option<ExecEnd>,
    /// When it was reaped.
    pub exited_at: Option<Timestamp>,
    /// What of its output went where; read for whoever asks.
    pub output: Option<Output>,
}

impl ExecFacts {
    /// Whether everybody who is to know its end knows it; nobody has to know that of a health check.
    pub fn is_told(&self) -> bool {
        self.by == AskedBy::Check || self.life == exec::Life::Told
    }
}

/// What became of an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecEnd {
    /// It ended with this code, or was ended by the signal code − 128.
    Exited(i32),
    /// Its deadline came.
    TimedOut(Killed),
}

/// What was killed at an exec's deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Killed {
    /// Everything that it had started: it had a cgroup of its own.
    Cgroup,
    /// What was in its session: the kernel gave it no cgroup of its own, as
    /// where the task has made its cgroup a threaded one.
    Session,
}

impl Killed {
    /// The word for it in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Killed::Cgroup => "cgroup",
            Killed::Session => "session",
        }
    }
}

/// Who has asked for an exec, and is to know its end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskedBy {
    /// The shim: a health check, which tells by what it comes to.
    #[default]
    Check,
    /// Somebody who waits for what this command comes to.
    Caller(Vec<String>),
    /// The manager, which is told.
    Manager,
}
