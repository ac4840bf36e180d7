//! What a shim knows: plain values that can be written down and read again.
//!
//! What the shim holds open for these facts is in `supervise/handles`; futures wait.
//!
//! Must not: hold a descriptor, wait, or act.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

use bowline_model::clock::{Moment, SinceBoot};
use bowline_model::folder::{History, Record};
use bowline_model::json::handover;
use bowline_model::report::ExitReport;
use bowline_model::sandbox::SandboxRecord;
use bowline_model::stats::Last;
use bowline_model::stats::figures::ExecStarts;
use bowline_model::watch::{NamedKills, ProcessIdentity};
use bowline_spec::budget::{Class, Joint, Share};
use bowline_spec::id::TaskId;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::lifecycle::{exec, sandbox, shim, task};
use crate::output::io::Progress;
use crate::start::checkpoint::Criu;
use crate::waits::Work;
use crate::waits::claim::End;

/// Everything that one shim knows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Facts {
    /// The version of the shim's program, [`crate::VERSION`].
    pub version: String,
    /// The shim's pid on the host.
    pub pid: i32,
    /// When the shim started, in clock ticks since the boot (proc_pid_stat(5)).
    pub pid_started: Option<u64>,
    /// The boot that the pids, start times and moments belong to.
    pub boot_id: Option<String>,
    /// What the shim knows of itself.
    pub shim: ShimFacts,
    /// What the shim knows of its sandbox, if it has one.
    pub sandbox: Option<SandboxFacts>,
    /// The jobs that the shim has begun and not finished, oldest first.
    pub work: Vec<Work>,
    /// Ends of children that nobody has asked for yet, by pid.
    pub unclaimed: BTreeMap<i32, End>,
    /// What the shim knows of its tasks, including those that are over and not yet removed.
    pub tasks: BTreeMap<TaskId, TaskFacts>,
}

/// What a shim knows of itself.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ShimFacts {
    /// The state of the shim.
    pub life: shim::Life,
    /// The tasks that are being launched; there may be no facts of them yet.
    pub launching: BTreeSet<TaskId>,
    /// Processes that were charged to the shim's cgroup by request.
    pub helpers: BTreeSet<ProcessIdentity>,
    /// The shim's own cgroup, once the shim has entered it; gathered when facts are read.
    pub charged_in: Option<String>,
    /// The pause process, or the last one; gathered when facts are read.
    pub pause: Option<PauseProcessFacts>,
    /// What is known of upgrades of the shim.
    #[serde(default)]
    pub upgrades: Upgrades,
}

/// What a shim knows of its upgrades.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Upgrades {
    /// How many upgrades were begun so far, which is the number of the last one.
    pub begun: u64,
    /// The upgrade under way, as it was requested.
    pub wanted: Option<WantedUpgrade>,
    /// How the last one ended.
    pub outcome: Option<Result<(), bowline_error::Error>>,
}

/// What a shim knows of a pause process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PauseProcessFacts {
    /// The pid of the process, from its set-up until it was reaped.
    pub pid: Option<i32>,
    /// The end of the process, once it was reaped.
    pub end: Option<End>,
}

/// An upgrade that was asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WantedUpgrade {
    /// The path of the program that takes over.
    pub program: PathBuf,
    /// Whether it is only asked whether it could take over.
    pub dry_run: bool,
}

/// What a shim knows of its sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxFacts {
    /// The state of the sandbox.
    pub life: sandbox::Life,
    /// The record that is also on disk: its description, its cgroups, namespaces and interfaces.
    pub record: SandboxRecord,
    /// The members that have not ended, with what each may use.
    pub shares: BTreeMap<TaskId, Share>,
    /// The joint limits in effect.
    pub joint: Joint,
    /// The class that goes with these limits.
    pub class: Class,
}

impl SandboxFacts {
    /// The facts of a sandbox that is being made.
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
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TaskFacts {
    /// The state of the task.
    pub life: task::Life,
    /// How many steps its life has had: a caller that looks twice sees whether the task was in another state meanwhile.
    pub steps: u64,
    /// The record that is also on disk: its description, its init, its cgroups.
    pub record: Box<Record>,
    /// The manager's special wishes for the task.
    pub particulars: Particulars,
    /// Whether the task is restored from a checkpoint, and stopped until it is started.
    pub restored: bool,
    /// Where its root is mounted, if the shim must unmount it.
    pub mounted: Option<PathBuf>,
    /// When the shim is charged to its own cgroup for this task, if that is yet to happen.
    pub settles_at: Option<Moment>,
    /// What has happened to it that a later shim cannot find out. In JSON, its fields are beside the others;
    /// [`TaskFacts::read`] reads them.
    #[serde(flatten, skip_deserializing)]
    pub history: History,
    /// The state of its health checks, if it has any.
    pub checks: Option<Checks>,
    /// When its time is over, if it is limited and not over yet.
    pub times_out_at: Option<Moment>,
    /// How many processes besides init a kill hit.
    pub killed: Option<u64>,
    /// Its execs by number, until the end of each was reported.
    pub execs: BTreeMap<u64, ExecFacts>,
    /// How many execs it has had.
    pub execs_begun: u64,
    /// How long its execs took to start, except health checks.
    pub exec_starts: ExecStarts,
    /// The highest number of a cgroup that was made for an exec.
    pub exec_groups_made: u64,
    /// The numbers of those in which an exec has left processes.
    pub exec_groups_left: VecDeque<u64>,
    /// How many events it has had.
    pub events: u64,
    /// The OOM kills that its own slice has counted and its cgroup has not: those of an earlier task.
    #[serde(default)]
    pub kills_before: Option<u64>,
    /// The OOM kills that the kernel's log has named to this shim.
    #[serde(default)]
    pub named_kills: NamedKills,
    /// When to count OOM kills again.
    pub oom_looks: VecDeque<Moment>,
    /// How the task's program has ended, once init was reaped or keeps nothing but output.
    pub end: Option<End>,
    /// Why its init was not known to a new shim.
    pub init_lost: Option<String>,
    /// The counters of its cgroup at that time, or when memory ran out last, where systemd may remove the cgroup.
    pub counted: Option<Last>,
    /// Processes that were killed after init's end.
    pub rest_killed: u64,
    /// The state of its cgroup, and of its shim's.
    pub cgroups: Cgroups,
    /// When the current step of its end is given up or tried again.
    pub step_due: Option<Moment>,
    /// Whether a caller removes the task, and has its report.
    pub fetched: bool,
    /// Its exit report, once it is made.
    pub report: Option<ExitReport>,
    /// Where its output went; gathered when facts are read.
    pub output: Option<Output>,
}

/// A manager's special wishes for all processes of a task.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Particulars {
    /// The processes stay in the session keyring of the shim's starter, instead of each getting one of its own.
    pub keeps_keyring: bool,
    /// The group that owns the streams, in host ids; the process's own when absent.
    pub stream_group: Option<u32>,
    /// The criu that makes and restores checkpoints.
    pub criu: Criu,
}

/// The state of a task's cgroup, and of its shim's, which goes with the last task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cgroups {
    /// The cgroups are in use.
    #[default]
    InUse,
    /// The cgroups are being removed.
    Removing,
    /// The cgroups were removed.
    Removed,
}

/// The state of a task's health checks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Checks {
    /// When the task was started, from where its start period counts.
    pub begun: Moment,
    /// When the next check is due, while the task runs.
    pub due: Option<Moment>,
    /// The check that is under way.
    pub under_way: Option<UnderWay>,
}

/// A health check that is under way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UnderWay {
    /// When the shim began the check, which may be before its exec started.
    pub started_at: Timestamp,
    /// How many steps the task's life had then.
    pub steps: u64,
    /// Whether it was begun in the start period.
    pub in_start_period: bool,
    /// The number of its exec, once that has begun.
    pub exec: Option<u64>,
    /// Why the check could not be begun.
    pub failed: Option<String>,
}

/// Where a process's output went.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Output {
    /// The last bytes of its streams, as text.
    pub tails: Vec<String>,
    /// How far each stream has come.
    pub streams: Vec<Progress>,
}

impl TaskFacts {
    /// Reads all facts of a task. serde's own code for fields beside each other would be 40 KB.
    ///
    /// # Errors
    /// An error for what are no facts.
    pub fn read<'de, D: Deserializer<'de>>(from: D) -> Result<TaskFacts, D::Error> {
        let value = Value::deserialize(from)?;
        let read = || {
            let history = handover::read_value(value.clone())?;
            Ok(TaskFacts { history, ..handover::read_value(value)? })
        };
        read().map_err(|error: serde_json::Error| serde::de::Error::custom(error))
    }

    /// The facts of a task whose init was cloned.
    pub fn new(record: Box<Record>, particulars: Particulars) -> TaskFacts {
        TaskFacts { record, particulars, ..TaskFacts::default() }
    }

    /// The number of the running exec with this name.
    pub fn exec_named(&self, name: &str) -> Option<u64> {
        let is_it = |exec: &ExecFacts| exec.name.as_deref() == Some(name) && !exec.life.has_ended();
        self.execs.iter().find(|(_, exec)| is_it(exec)).map(|(number, _)| *number)
    }

    /// Whether an exec with this name is not executed yet.
    pub fn starts_exec(&self, name: &str) -> bool {
        let named = self.exec_named(name).and_then(|number| self.execs.get(&number));
        named.is_some_and(|exec| exec.life == exec::Life::Starting)
    }

    /// Stores an exec under the next number and returns the number.
    pub fn add_exec(&mut self, exec: ExecFacts) -> u64 {
        self.execs_begun += 1;
        self.execs.insert(self.execs_begun, exec);
        self.execs_begun
    }

    /// The execs that have a pid, by pid.
    pub fn execs_by_pid(&self) -> BTreeMap<i32, (u64, &ExecFacts)> {
        self.execs.iter().filter_map(|(number, exec)| Some((exec.pid?, (*number, exec)))).collect()
    }
}

/// What a shim knows of an exec.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ExecFacts {
    /// The state of the exec.
    pub life: exec::Life,
    /// The origin of the request for the exec.
    pub by: AskedBy,
    /// Whether the caller has gone, so that the end is reported as an event alone.
    pub unwanted: bool,
    /// Whether the exec is hung up once it is unwanted, because its caller has died.
    #[serde(default)]
    pub ends_with_caller: bool,
    /// The exec's name, for callers that resize its terminal or signal it.
    pub name: Option<String>,
    /// The exec's pid, until it was reaped.
    pub pid: Option<i32>,
    /// When that process started, in clock ticks since the boot; gathered when facts are read.
    pub pid_started: Option<u64>,
    /// Between these that process has begun.
    #[serde(default)]
    pub cloned_between: Option<[SinceBoot; 2]>,
    /// When the exec is killed, with all that it has started.
    pub deadline: Option<Moment>,
    /// When the exec was killed.
    pub killed_at: Option<Moment>,
    /// Whether nothing is left of what was killed then.
    pub all_dead: bool,
    /// When its process, and not what that has started, was sent SIGKILL.
    #[serde(default)]
    pub sent_kill: Option<Moment>,
    /// When its program was executed; when its deadline came if it never was.
    pub started_at: Option<Timestamp>,
    /// The number of the cgroup that was made for it.
    pub group: Option<u64>,
    /// Whether the exec is in that cgroup.
    pub in_group: bool,
    /// How the exec has ended; `None` for one that has ended under another shim, where nobody has kept how.
    pub end: Option<ExecEnd>,
    /// The signal that ended it, if one did before its deadline.
    #[serde(default)]
    pub signal: Option<i32>,
    /// The OOM kills of the task when the exec began.
    #[serde(default)]
    pub oom_kills_before: u64,
    /// Those of them that the kernel's log has not named.
    #[serde(default)]
    pub unnamed_kills_before: u64,
    /// Whether the kernel killed it for lack of memory.
    #[serde(default)]
    pub oom_killed: bool,
    /// The number of the task's event that tells its end, right before that is written.
    #[serde(default)]
    pub told_as: Option<u64>,
    /// When the exec was reaped; `None` until then.
    pub exited_at: Option<Timestamp>,
    /// Where the output went; gathered when facts are read.
    pub output: Option<Output>,
}

impl ExecFacts {
    /// Whether the end was reported to everybody who must know; for a health check nobody must.
    pub fn is_exit_published(&self) -> bool {
        self.by == AskedBy::Check || self.life == exec::Life::ExitPublished
    }

    /// Its code, if it has ended by itself and the code is known.
    pub fn exit_code(&self) -> Option<i32> {
        match self.end {
            Some(ExecEnd::Exited(code)) => Some(code),
            Some(ExecEnd::TimedOut(_)) | None => None,
        }
    }
}

/// How an exec ended: by itself, or at its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecEnd {
    /// It ended with this code, or was ended by the signal code − 128.
    Exited(i32),
    /// Its deadline came first, and what the value names was killed.
    TimedOut(Killed),
}

/// What was killed at an exec's deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Killed {
    /// Everything that the exec had started: it had a cgroup of its own.
    Cgroup,
    /// What was in the exec's session: the kernel gave the exec no cgroup of its own, for example
    /// because the task has made its cgroup a threaded one.
    Session,
}

impl Killed {
    /// The word for this in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Killed::Cgroup => "cgroup",
            Killed::Session => "session",
        }
    }
}

/// The origin of a request for an exec, which learns of its end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskedBy {
    /// The shim: a health check, whose result is its report.
    #[default]
    Check,
    /// A caller that waits for the result of this command.
    Caller(Vec<String>),
    /// The manager, which gets an event.
    Manager,
}
