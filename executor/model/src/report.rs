//! The exit report: everything that is known of a task that has ended.
//!
//! The report is kept in the task's state folder; it survives shim and manager.

use std::collections::VecDeque;

use bowline_spec::signal::Signal;
use bowline_sys::Ended;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::health::Health;
use crate::log_line::LogStream;
use crate::stats::Figures;
use crate::watch::Finding;

/// How a task ended. A value that this kernel cannot tell is null.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExitReport {
    /// Init's exit code, or 128 + the signal that ended it; null when the shim died and nobody was
    /// left to learn the code.
    pub exit_code: Option<i32>,
    /// The signal that ended init, by name.
    pub signal: Option<String>,
    /// Whether this shim sent that signal.
    pub signal_sent_by_shim: bool,
    /// What stopped the task, if it was stopped.
    #[serde(default)]
    pub stopped_by: Option<StoppedBy>,
    /// The finding for which its watch stopped it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_for: Option<Finding>,
    /// Whether the OOM killer killed any process of the task.
    pub oom_killed: Option<bool>,
    /// Whether init itself was the victim.
    pub oom_killed_init: Option<bool>,
    /// The cgroup whose limit was hit; null when it was not the task's own.
    pub oom_cgroup: Option<String>,
    /// When the user's program was executed.
    pub started_at: Option<Timestamp>,
    /// When init was reaped; never before `started_at`.
    pub exited_at: Timestamp,
    /// What the kernel has counted for it.
    #[serde(flatten)]
    pub figures: Figures,
    /// How many processes were killed at the task's end; null where init's end made the kernel kill them, uncounted.
    pub processes_killed: Option<u64>,
    /// The last 4 KiB of stdout, or of the terminal. In the report of an earlier bowline, of both streams.
    #[serde(default, alias = "output_tail")]
    pub stdout_tail: Option<String>,
    /// The last 4 KiB of stderr.
    #[serde(default)]
    pub stderr_tail: Option<String>,
    /// Bytes of output that no file or reader would take.
    pub output_dropped_bytes: u64,
    /// What the files that its description names for output have not taken; absent if they took all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_unwritten: Vec<UnwrittenOutput>,
    /// The results of its health checks; null without any.
    #[serde(default)]
    pub health: Option<Health>,
    /// How many events the task has had, its exit included.
    #[serde(default)]
    pub events: u64,
    /// Whether the task was in the slice that it was launched for; null when there was no such slice.
    #[serde(default)]
    pub enforcement: Option<SliceEnforcement>,
    /// The shim died before the task: how the task ended is not known.
    pub shim_died: bool,
    /// Why the new shim did not know the task's init; absent unless another process has its pid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_lost: Option<String>,
    /// Why the report is not on disk yet; set when the shim returns it, never on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwritten: Option<String>,
}

impl ExitReport {
    /// The report without output and health log, which make it long.
    pub fn shortened(&self) -> ExitReport {
        let health = self.health.as_ref().map(|health| Health { log: VecDeque::new(), ..health.clone() });
        ExitReport { stdout_tail: None, stderr_tail: None, health, ..self.clone() }
    }
}

/// A signal's name as reports have it, such as `SIGTERM`; its number where it has none.
pub fn signal_name(number: i32) -> String {
    Signal::from_number(number).map_or_else(|| number.to_string(), |signal| format!("SIG{}", signal.name()))
}

/// Output of a task that its own file could not take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UnwrittenOutput {
    /// Which output it is.
    pub stream: LogStream,
    /// How many bytes of the output it lacks.
    pub bytes: u64,
    /// Why the first of them could not be written.
    pub error: String,
}

impl UnwrittenOutput {
    /// `bytes` of `stream` that were not written, the first of them for `error`.
    pub fn new(stream: LogStream, bytes: u64, error: &std::io::Error) -> UnwrittenOutput {
        UnwrittenOutput { stream, bytes, error: error.to_string() }
    }
}

/// Whether the systemd slice that a task was launched for limits the task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SliceEnforcement {
    /// The slice that the task was launched for.
    pub slice: String,
    /// Whether the task is in the slice, and the slice has limits, or one that it is in: when the task starts, when this
    /// is looked at, and when the task ends.
    pub enforced: bool,
    /// Why not: systemd has refused the task a place in the slice, or nothing limits the slice.
    pub reason: Option<String>,
}

impl SliceEnforcement {
    /// A task in its `slice`, as far as is known.
    pub fn of(slice: String) -> SliceEnforcement {
        SliceEnforcement { slice, enforced: true, reason: None }
    }
}

/// What has stopped a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StoppedBy {
    /// A request, or a signal to the shim.
    Request,
    /// The shim, because the task was unhealthy.
    Health,
    /// The shim, because a policy of the task's watch says so.
    Watch,
    /// The shim, because the task's time was over.
    Timeout,
    /// The shim, because a process that the task ends with has ended.
    Caller,
}

impl StoppedBy {
    /// The word for this in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            StoppedBy::Request => "request",
            StoppedBy::Health => "health",
            StoppedBy::Watch => "watch",
            StoppedBy::Timeout => "timeout",
            StoppedBy::Caller => "caller",
        }
    }
}

/// The facts that decide whether the OOM killer killed init itself.
#[derive(Debug, Clone)]
pub struct OomFacts {
    /// Processes of the task's cgroup that the kernel killed for memory.
    pub kills: Option<u64>,
    /// How often the task hit its own limit.
    pub own_limit_met: Option<u64>,
    /// The sandbox's cgroup, if the sandbox hit its limit.
    pub joint_limit_met: Option<String>,
    pub ended: Ended,
    /// Whether the shim sent init SIGKILL.
    pub killed_by_shim: bool,
    /// Whether init may be one of those kills: the kernel's log does not say that each was another's.
    pub may_be_init: bool,
}

impl OomFacts {
    /// Whether any process was killed.
    pub fn any(&self) -> Option<bool> {
        self.kills.map(|kills| kills > 0)
    }

    /// Whether init was killed: by SIGKILL, and by nobody else.
    pub fn init(&self) -> Option<bool> {
        let killed = self.ended == Ended::Signaled(libc::SIGKILL) && !self.killed_by_shim;
        self.any().map(|any| any && killed && self.may_be_init)
    }

    /// The cgroup whose limit was hit: `path`, which is the task's own, or the sandbox's.
    pub fn cgroup(&self, path: &str) -> Option<String> {
        if !self.any()? {
            return None;
        }
        if self.own_limit_met? > 0 { Some(path.to_owned()) } else { self.joint_limit_met.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(kills: u64, ended: Ended, killed_by_shim: bool) -> OomFacts {
        OomFacts {
            kills: Some(kills),
            own_limit_met: Some(kills),
            joint_limit_met: None,
            ended,
            killed_by_shim,
            may_be_init: true,
        }
    }

    #[test]
    fn a_child_that_was_killed_for_memory_is_not_init() {
        let survived = facts(1, Ended::Exited(0), false);
        assert_eq!((survived.any(), survived.init()), (Some(true), Some(false)));
        let killed = facts(1, Ended::Signaled(libc::SIGKILL), false);
        assert_eq!((killed.any(), killed.init()), (Some(true), Some(true)));
        assert_eq!(killed.cgroup("/x").as_deref(), Some("/x"));
        let by_itself = OomFacts { may_be_init: false, ..killed };
        assert_eq!((by_itself.any(), by_itself.init()), (Some(true), Some(false)));
    }

    #[test]
    fn a_kill_is_the_sandboxs_where_the_tasks_own_limit_was_not_met() {
        let joint = Some("/x".to_owned());
        let of_joint = |own| OomFacts {
            own_limit_met: Some(own),
            joint_limit_met: joint.clone(),
            ..facts(1, Ended::Exited(0), false)
        };
        assert_eq!(of_joint(0).cgroup("/x/y"), joint);
        assert_eq!(of_joint(1).cgroup("/x/y").as_deref(), Some("/x/y"));
    }

    #[test]
    fn our_own_kill_is_no_oom() {
        let ours = facts(0, Ended::Signaled(libc::SIGKILL), true);
        assert_eq!((ours.any(), ours.init(), ours.cgroup("/x")), (Some(false), Some(false), None));
    }

    #[test]
    fn an_unreadable_counter_is_unknown() {
        let unknown = OomFacts { kills: None, own_limit_met: None, ..facts(0, Ended::Exited(0), false) };
        assert_eq!((unknown.any(), unknown.init()), (None, None));
    }
}
