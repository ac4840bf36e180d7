//! The facts about a task, and the findings that `explain` derives from them.

use std::collections::BTreeMap;

use bowline_executor::internal::housekeeping::Difference;
use bowline_model::events::Entry;
use bowline_model::health::Health;
use bowline_model::report::ExitReport;
use bowline_model::stats::Stats;
use bowline_model::status::Shown;
use bowline_spec::Task;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

/// All facts about a task; unknown facts are empty.
#[derive(Debug, Default)]
pub struct Facts {
    pub status: Shown,
    /// The path of the task's cgroup.
    pub cgroup: Option<String>,
    /// The sandbox that the task is a member of.
    pub sandbox: Option<String>,
    pub task: Option<Task>,
    /// When the task's program was started.
    pub started_at: Option<Timestamp>,
    pub exit: Option<ExitReport>,
    /// The result of the health checks.
    pub health: Option<Health>,
    /// The task's events, oldest first.
    pub events: Vec<Entry>,
    /// The limits of which the cgroup's files say something else than was asked for.
    pub differing_limits: Vec<Difference>,
    /// Those of its sandbox's cgroup.
    pub differing_joint_limits: Vec<Difference>,
    /// Two readings of the task, a moment apart.
    pub readings: Option<(Stats, Stats)>,
    /// Two readings of the task's sandbox.
    pub joint: Option<(Stats, Stats)>,
    /// The names of processes that were in uninterruptible sleep at both readings.
    pub stuck: Vec<String>,
    /// The log of the task's shim, if the shim died.
    pub shim_said: Option<String>,
    /// The end of what the log of a task that has ended keeps of its stderr.
    pub stderr: Option<String>,
    /// Why a task whose shim died has got no new one, where that was tried.
    pub no_new_shim: Option<String>,
    /// Whether its shim died before it had started the command.
    pub never_ran: bool,
}

/// How closely a finding answers the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It explains why the task ended or is slow.
    Cause,
    /// It may have contributed to the task's end or slowness.
    Warning,
    /// It explains neither, but is worth knowing, such as the task's last output.
    Note,
}

impl Severity {
    /// The severity in lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Cause => "cause",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

/// One finding about a task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// A stable name for programs.
    pub kind: &'static str,
    /// How closely the finding answers the question.
    pub severity: Severity,
    /// The finding in words, on one line.
    pub sentence: String,
    /// The figures behind it, as they were read.
    pub figures: BTreeMap<&'static str, Value>,
}

impl Finding {
    fn new(kind: &'static str, severity: Severity, sentence: impl Into<String>) -> Finding {
        Finding { kind, severity, sentence: sentence.into(), figures: BTreeMap::new() }
    }

    /// Makes a finding that explains the end or the slowness.
    pub fn cause(kind: &'static str, sentence: impl Into<String>) -> Finding {
        Finding::new(kind, Severity::Cause, sentence)
    }

    /// Makes a finding that may have contributed.
    pub fn warning(kind: &'static str, sentence: impl Into<String>) -> Finding {
        Finding::new(kind, Severity::Warning, sentence)
    }

    /// Makes a finding that is worth knowing.
    pub fn note(kind: &'static str, sentence: impl Into<String>) -> Finding {
        Finding::new(kind, Severity::Note, sentence)
    }

    /// Makes the finding a cause if `is_cause`; otherwise leaves it unchanged.
    pub fn a_cause_if(self, is_cause: bool) -> Finding {
        if is_cause { Finding { severity: Severity::Cause, ..self } } else { self }
    }

    /// Adds a figure, if it is known.
    pub fn with(mut self, name: &'static str, figure: Option<impl Into<Value>>) -> Finding {
        if let Some(figure) = figure {
            self.figures.insert(name, figure.into());
        }
        self
    }
}
