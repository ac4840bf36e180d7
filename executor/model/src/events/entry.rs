//! One event, and the line of JSON that it is in the journal.

use bowline_spec::id::TaskId;
use bowline_spec::values::Cpus;
use bowline_spec::{Update, WatchAction};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::health;
use crate::json::record;
use crate::report::{ExitReport, StoppedBy};
use crate::stats::Figures;
use crate::watch::{Finding, Kill};

/// The longest line, its newline included: what one write(2) writes whole.
const LONGEST_LINE: usize = 4096;

/// The most bytes of a command that are kept: in JSON a byte may take six.
const LONGEST_COMMAND: usize = 512;

/// One event of one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Entry {
    /// When it happened, by the host's clock.
    pub time: Timestamp,
    /// The id of the task.
    pub id: TaskId,
    /// The number of the event among the task's events, from 1.
    pub seq: u64,
    /// What happened; in JSON its fields are among those of the entry.
    #[serde(flatten)]
    pub event: Event,
    /// How many events before this one the same writer could not write.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What CPU limits have held back.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Throttled {
    /// The last of these limits, in CPUs; null without one.
    pub limit: Option<Cpus>,
    /// Enforcement periods in which the task wanted to run.
    pub periods: u64,
    /// The periods in which a limit held the task back.
    pub throttled_periods: u64,
    /// How long the task was held back in total, in µs.
    pub throttled_usec: u64,
}

impl Throttled {
    /// What was held back up to the limit `limit`, by the counters of the task's cgroup; `None` if nothing was.
    pub fn of(limit: Option<Cpus>, counters: &Figures) -> Option<Throttled> {
        let throttled_periods = counters.throttled_periods.filter(|periods| *periods > 0)?;
        let (periods, throttled_usec) = (counters.cpu_periods?, counters.throttled_usec.unwrap_or_default());
        Some(Throttled { limit, periods, throttled_periods, throttled_usec })
    }
}

/// What can happen to a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// The launch began. The event exists only if the launch succeeded.
    #[non_exhaustive]
    Created {
        /// The command and its arguments, cut short where they are long.
        command: Vec<String>,
    },
    /// The task's program was executed.
    #[non_exhaustive]
    Started {
        /// The pid of init on the host.
        pid: i32,
    },
    /// A command that was run in the task has ended.
    #[non_exhaustive]
    Exec {
        /// The command and its arguments, cut short where they are long.
        command: Vec<String>,
        /// Null when the deadline came first, or where nobody knows it.
        exit_code: Option<i32>,
        /// Whether it has ended after its shim had died, and nobody knows how; absent otherwise.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        shim_died: bool,
        /// When its program was executed.
        started_at: Timestamp,
    },
    /// The task's health has changed.
    #[non_exhaustive]
    Health {
        /// The health after the change.
        status: health::HealthStatus,
        /// How many checks have failed in a row.
        failing_streak: u32,
    },
    /// The OOM killer killed processes of the task.
    #[non_exhaustive]
    Oom {
        /// How many were killed so far.
        kills: u64,
        /// The last process killed, where the kernel's log names it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last: Option<Kill>,
        /// Whether that was init, whose end is the task's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        init: Option<bool>,
    },
    /// The task's watch has found something.
    #[non_exhaustive]
    Watch {
        /// The finding, with its figures.
        #[serde(flatten)]
        finding: Finding,
        /// The action that the policy asks of the shim.
        action: WatchAction,
        /// Why the action failed; absent in the event that reports the finding.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
    },
    /// All processes of the task are frozen.
    Paused,
    /// All processes of the paused task run again.
    Resumed,
    /// Limits of the task were changed, by a caller or by its watch.
    #[non_exhaustive]
    Updated {
        /// The requested limits; left out where they are long.
        #[serde(default, deserialize_with = "record::known_or_none", skip_serializing_if = "Option::is_none")]
        limits: Option<Box<Update>>,
        /// What the CPU limits until then had held back; left out where this changes none, or nothing was held back.
        #[serde(default, deserialize_with = "record::known_or_none", skip_serializing_if = "Option::is_none")]
        throttled: Option<Throttled>,
    },
    /// Init has ended, and everything else in the task.
    #[non_exhaustive]
    Exited {
        /// As in the exit report.
        exit_code: Option<i32>,
        /// The signal that ended init, by name.
        signal: Option<String>,
        /// Whether the OOM killer killed any process of the task.
        oom_killed: Option<bool>,
        /// Who stopped it, if it was stopped.
        stopped_by: Option<StoppedBy>,
        /// The shim died before the task: nobody saw the end.
        shim_died: bool,
        /// Why the next shim did not find its init, where it looked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        init_lost: Option<String>,
    },
    /// The task's folder is gone, and everything that was known of the task.
    Removed,
}

impl Event {
    /// A launch that began.
    pub fn created(command: Vec<String>) -> Event {
        Event::Created { command }
    }

    /// The program of init, with this pid, was executed.
    pub fn started(pid: i32) -> Event {
        Event::Started { pid }
    }

    /// The end of a command; `exit_code` is `None` where its deadline came first or, with `shim_died`, nobody knows it.
    pub fn exec(command: Vec<String>, exit_code: Option<i32>, shim_died: bool, started_at: Timestamp) -> Event {
        Event::Exec { command, exit_code, shim_died, started_at }
    }

    /// A change of health.
    pub fn health(status: health::HealthStatus, failing_streak: u32) -> Event {
        Event::Health { status, failing_streak }
    }

    /// `kills` by the OOM killer so far, the `last` of them and whether that was init, where it is known.
    pub fn oom(kills: u64, last: Option<Kill>, init: Option<bool>) -> Event {
        Event::Oom { kills, last, init }
    }

    /// A finding, and why the `action` on it has `failed`.
    pub fn watch(finding: Finding, action: WatchAction, failed: Option<String>) -> Event {
        Event::Watch { finding, action, failed }
    }

    /// A change of limits.
    pub fn updated(limits: &Update, throttled: Option<Throttled>) -> Event {
        Event::Updated { limits: Some(Box::new(limits.clone())), throttled }
    }

    /// The event of the end that a report describes.
    pub fn of_exit(report: &ExitReport) -> Event {
        Event::Exited {
            exit_code: report.exit_code,
            signal: report.signal.clone(),
            oom_killed: report.oom_killed,
            stopped_by: report.stopped_by,
            shim_died: report.shim_died,
            init_lost: report.init_lost.clone(),
        }
    }

    /// The event's name, as the field `event` has it.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Created { .. } => "created",
            Event::Started { .. } => "started",
            Event::Exec { .. } => "exec",
            Event::Health { .. } => "health",
            Event::Oom { .. } => "oom",
            Event::Watch { .. } => "watch",
            Event::Paused => "paused",
            Event::Resumed => "resumed",
            Event::Updated { .. } => "updated",
            Event::Exited { .. } => "exited",
            Event::Removed => "removed",
        }
    }
}

/// Shortens a command for an event: keeps words until there are too many.
pub fn shortened<'a>(words: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    shortened_to(LONGEST_COMMAND, words)
}

/// Like [`shortened`], to this many bytes.
pub fn shortened_to<'a>(most: usize, words: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let mut left = most;
    let mut kept = Vec::new();
    for word in words {
        if word.len() > left || kept.len() >= most / 8 {
            let end = (0..=left.min(word.len())).rev().find(|end| word.is_char_boundary(*end)).unwrap_or(0);
            kept.push(format!("{}…", &word[..end]));
            break;
        }
        left -= word.len();
        kept.push(word.clone());
    }
    kept
}

impl Entry {
    /// The entry number `seq` of the task `id`.
    pub fn new(time: Timestamp, id: TaskId, seq: u64, event: Event) -> Entry {
        Entry { time, id, seq, event, lost: 0 }
    }

    /// The entry as a line, at most 4,096 bytes with its newline.
    pub fn line(&self) -> serde_json::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        if line.len() >= LONGEST_LINE {
            let event = match &self.event {
                Event::Updated { throttled, .. } => Event::Updated { limits: None, throttled: throttled.clone() },
                other => other.clone(),
            };
            line = serde_json::to_vec(&Entry { event, ..self.clone() })?;
        }
        line.push(b'\n');
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(event: Event) -> Entry {
        let id = "web".parse().expect("an id");
        let time = "2026-05-01T12:00:00Z".parse().expect("a time");
        Entry { time, id, seq: 3, event, lost: 0 }
    }

    #[test]
    fn an_event_is_a_line_of_json_that_reads_back() {
        let entry = entry(Event::Started { pid: 4711 });
        let line = String::from_utf8(entry.line().expect("JSON")).expect("text");
        assert_eq!(
            line,
            "{\"time\":\"2026-05-01T12:00:00Z\",\"id\":\"web\",\"seq\":3,\"event\":\"started\",\"pid\":4711}\n"
        );
        assert_eq!(serde_json::from_str::<Entry>(&line).expect("an entry"), entry);
    }

    #[test]
    fn no_event_is_longer_than_what_is_written_whole() {
        let long = vec!["\u{1}".repeat(100_000), "x".to_owned()];
        let many = vec![String::new(); 10_000];
        for words in [long, many] {
            let command = shortened(&words);
            let line =
                entry(Event::Exec { command, exit_code: Some(0), shim_died: false, started_at: Timestamp::MAX }).line();
            assert!(line.expect("JSON").len() <= LONGEST_LINE);
        }
        let unified = (0..1000).map(|n| (format!("file.{n}"), "1".to_owned())).collect();
        let limits = Some(Box::new(Update { unified, ..Update::default() }));
        let line = entry(Event::Updated { limits, throttled: None }).line().expect("JSON");
        assert!(line.len() <= LONGEST_LINE, "{}", line.len());
    }

    #[test]
    fn a_command_is_cut_between_characters() {
        let words = ["é".repeat(400)];
        let kept = shortened(&words);
        assert!(kept[0].ends_with("é…") && kept[0].len() <= LONGEST_COMMAND + 3, "{kept:?}");
        let fits = ["sleep".to_owned(), "1000".to_owned()];
        assert_eq!(shortened(&fits), fits);
    }
}
