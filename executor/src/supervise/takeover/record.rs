//! What a later shim goes on from: the record of a task or a sandbox on disk, kept as it is now.
//!
//! ```text
//!   facts ─► history ─► task.json ─► the next shim's facts
//!               └─ refused, as by a full disk ─► tried again after a takeover, else with the next change
//! ```
//!
//! Must not: fail a task whose record cannot be written.

use std::mem;
use std::rc::Rc;
use std::time::Duration;

use bowline_error::Result;
use bowline_model::folder::{History, Record};
use bowline_model::status::Status;

use crate::facts::TaskFacts;
use crate::lifecycle::task::Life;
use crate::supervise::sandbox::Sandbox;
use crate::supervise::supervisor::Supervisor;
use crate::supervise::task::Task;
use crate::supervise::task::watching::until_end;
use crate::waits;

/// When a record is tried again that the disk does not take, and the longest time between two tries.
const FIRST_TRY: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

impl Task {
    /// Writes down what a later shim cannot find out by itself, should this one die.
    pub(crate) fn remember(&self) {
        let lives_on = |facts: &TaskFacts| match facts.life {
            Life::Running | Life::Paused | Life::Stopping(_) => true,
            // Not of a launch that is given up.
            Life::Killing(_) => facts.record.started_at.is_some(),
            _ => false,
        };
        let is_news =
            |facts: &TaskFacts| facts.record.history.as_deref().cloned().unwrap_or_default() != facts.lasting();
        if self.facts.read(|facts| lives_on(facts) && facts.record.outlives_shim() && is_news(facts)) {
            self.keep_record();
        }
    }

    /// Writes the record as it is now, as far as the disk takes it.
    pub(crate) fn keep_record(&self) {
        if let Err(error) = self.write_record() {
            tracing::error!(%error, "the record lacks what became of the task");
        }
    }
}

impl Supervisor {
    /// Writes the record of a sandbox that was taken over, now or once the disk takes it.
    pub(crate) fn record_sandbox_at_last(self: &Rc<Self>, sandbox: &Rc<Sandbox>) {
        match sandbox.keep_record() {
            // The pause process may be a new one, whose own record the disk has not taken.
            Ok(()) => return self.pause_is_recorded(),
            Err(error) => tracing::warn!(%error, id = %sandbox.id, "the record does not name the new shim yet"),
        }
        let (supervisor, sandbox) = (self.clone(), sandbox.clone());
        waits::begin(move || {
            let (supervisor, sandbox) = (supervisor.clone(), sandbox.clone());
            async move {
                let is_there = || sandbox.facts.read(|facts| facts.life.is_there());
                until_written(|| !is_there() || sandbox.keep_record().is_ok()).await;
                if is_there() {
                    supervisor.pause_is_recorded();
                }
            }
        });
    }
}

impl Task {
    /// Writes the record as it is now, with what a later shim must know.
    pub(crate) fn write_record(&self) -> Result<()> {
        self.facts.update_silently(|facts| {
            let lasting = Some(facts.lasting()).filter(|_| facts.record.outlives_shim());
            facts.record.history = lasting.filter(|some| *some != History::default()).map(Box::new);
        });
        let written = self.facts.read(|facts| self.folder.write_record(&facts.record));
        if written.is_err() {
            // The next change writes all of it.
            self.facts.update_silently(|facts| facts.record.history = None);
        }
        written
    }

    /// Writes the record as it will be with another description.
    pub(crate) fn write_record_as(&self, task: &bowline_spec::Task) -> Result<()> {
        let mut other = Some(task.clone());
        let swap = |other: &mut Option<_>| self.facts.update_silently(|facts| mem::swap(&mut facts.record.task, other));
        swap(&mut other);
        let written = self.write_record();
        swap(&mut other);
        written
    }

    /// Writes the record of a task that was taken over, now or once the disk takes it.
    pub(crate) fn record_at_last(self: &Rc<Self>) {
        if let Err(error) = self.write_record() {
            // As on a full disk. All that matters for the next shim is in the record already.
            tracing::warn!(%error, id = %self.id, "the record does not name the new shim yet");
            until_end(self, async |task: &Rc<Task>| until_written(|| task.write_record().is_ok()).await);
        }
    }
}

/// Returns once `write` succeeds.
async fn until_written(write: impl Fn() -> bool) {
    let mut wait = FIRST_TRY;
    while !write() {
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// The facts of a task that was launched, by what its record tells has happened; without the record.
pub(crate) fn facts_after_death(record: &Record, frozen: bool) -> TaskFacts {
    let history = record.history.as_deref().cloned().unwrap_or_default();
    TaskFacts { life: life(&history, frozen), history: History { stop: None, ..history }, ..TaskFacts::default() }
}

fn life(history: &History, frozen: bool) -> Life {
    match history.stop {
        _ if history.sent.contains(&libc::SIGKILL) => {
            Life::Killing(if history.stopped_by.is_some() { Status::Stopping } else { Status::Running })
        }
        Some(plan) => Life::Stopping(plan),
        None if frozen => Life::Paused,
        None => Life::Running,
    }
}

impl TaskFacts {
    fn lasting(&self) -> History {
        let stop = if let Life::Stopping(plan) = self.life { Some(plan) } else { None };
        History { stop, watched: self.history.watched.told(), ..self.history.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_model::report::StoppedBy;

    #[test]
    fn who_was_sent_sigkill_is_killed_on() {
        let sent = |signal| History { sent: [signal].into(), ..History::default() };
        assert_eq!(life(&sent(libc::SIGTERM), false), Life::Running);
        assert_eq!(life(&sent(libc::SIGKILL), false), Life::Killing(Status::Running));
        let stopped = History { stopped_by: Some(StoppedBy::Request), ..sent(libc::SIGKILL) };
        assert_eq!(life(&stopped, true), Life::Killing(Status::Stopping));
    }
}
