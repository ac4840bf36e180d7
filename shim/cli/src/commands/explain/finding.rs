//! What is known of a task, and what is found in it.

use std::collections::BTreeMap;

use bowline_executor::events::Entry;
use bowline_executor::{ExitReport, Health, Stats};
use bowline_spec::Task;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

/// What is known of a task. What nobody knows is not there.
#[derive(Debug, Default)]
pub struct Facts {
    /// Where it is in its life, in one word.
    pub status: String,
    /// Its cgroup's path.
    pub cgroup: Option<String>,
    /// The sandbox that it is a member of.
    pub sandbox: Option<String>,
    /// Its description.
    pub task: Option<Task>,
    /// When its program was executed.
    pub started_at: Option<Timestamp>,
    /// How it ended.
    pub exit: Option<ExitReport>,
    /// What its checks have come to.
    pub health: Option<Health>,
    /// What has happened to it, oldest first.
    pub events: Vec<Entry>,
    /// Two readings, a moment apart.
    pub readings: Option<(Stats, Stats)>,
    /// Two readings of its sandbox.
    pub joint: Option<(Stats, Stats)>,
    /// Processes that waited in the kernel, uninterruptible, at both readings:
    /// what they call themselves.
    pub stuck: Vec<String>,
    /// The last that its shim has logged, of one that died.
    pub shim_said: Option<String>,
}

/// How much a finding has to do with the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Why it ended, or is slow.
    Cause,
    /// What may have to do with it.
    Warning,
    /// What else is worth knowing.
    Note,
}

impl Severity {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Cause => "cause",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// A name that does not change.
    pub kind: &'static str,
    /// How much it has to do with the question.
    pub severity: Severity,
    /// It in words, on one line.
    pub sentence: String,
    /// The figures behind it, as they were read.
    pub figures: BTreeMap<&'static str, Value>,
}

impl Finding {
    fn new(kind: &'static str, severity: Severity, sentence: impl Into<String>) -> Finding {
        Finding { kind, severity, sentence: sentence.into(), figures: BTreeMap::new() }
    }

    /// What it is because of.
    pub fn cause(kind: &'static str, sentence: impl Into<String>) -> Finding {
        Finding::new(kind, Severity::Cause, sentence)
    }

    /// What may have to do with it.
    pub fn warning(kind: &'static str, sentence: impl Into<String>) -> Finding {
        Finding::new(kind, Severity::Warning, sentence)
    }

    /// What else is worth knowing.
    pub fn note(kind: &'static str, sentence: impl Into<String>) -> Finding {
        Finding::new(kind, Severity::Note, sentence)
    }

    /// As a cause, if `is_cause`; else as it is.
    pub fn a_cause_if(self, is_cause: bool) -> Finding {
        if is_cause { Finding { severity: Severity::Cause, ..self } } else { self }
    }

    /// With a figure, if it is known.
    pub fn with(mut self, name: &'static str, figure: Option<impl Into<Value>>) -> Finding {
        if let Some(figure) = figure {
            self.figures.insert(name, figure.into());
        }
        self
    }
}
