//! What a later shim goes on from: the record of a task or a sandbox on disk, kept as it is now.
//!
//! ```text
//!   facts ─► history ─► task.json ─► the next shim's facts
//!               └─ refused, as by a full disk ─► tried again after an adoption, else with the next change
//! ```
//!
//! Must not: fail a task whose record cannot be written.

use std::rc::Rc;
use std::time::Duration;

use bowline_error::Result;

use crate::disk::folder::{History, Record};
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

impl Supervisor {
    /// Writes down what a later shim cannot find out by itself, should this one die.
    pub(crate) fn remember(&self, task: &Task) {
        // A task that is being killed ends whoever watches it.
        let lives_on = |life: Life| matches!(life, Life::Running | Life::Paused | Life::Stopping(_));
        if task.facts.read(|facts| lives_on(facts.life) && facts.record.outlives_shim()) {
            self.keep_record(task);
        }
    }

    /// Writes the record of a sandbox once the disk takes it.
    pub(crate) fn record_sandbox_later(self: &Rc<Self>, sandbox: &Rc<Sandbox>) {
        let (supervisor, sandbox) = (self.clone(), sandbox.clone());
        waits::begin(move || {
            let (supervisor, sandbox) = (supervisor.clone(), sandbox.clone());
            async move {
                let mut wait = FIRST_TRY;
                while sandbox.facts.read(|facts| facts.life.is_there()) {
                    if sandbox.keep_record().is_ok() {
                        return supervisor.pause_is_recorded();
                    }
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(LONGEST_WAIT);
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
        self.facts.read(|facts| self.folder.write_record(&facts.record))
    }

    /// Writes the record once the disk takes it.
    pub(crate) fn record_later(self: &Rc<Self>) {
        until_end(self, async |task: &Rc<Task>| {
            let mut wait = FIRST_TRY;
            loop {
                if task.write_record().is_ok() {
                    return;
                }
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
        });
    }
}

impl Record {
    /// What a shim before this one knew: the task was launched, and what its record tells has happened.
    pub(crate) fn facts(&self, frozen: bool) -> TaskFacts {
        let mut history = self.history.as_deref().cloned().unwrap_or_default();
        let life = match history.stop.take() {
            Some(plan) => Life::Stopping(plan),
            None if frozen => Life::Paused,
            None => Life::Running,
        };
        TaskFacts { life, history, ..TaskFacts::default() }
    }
}

impl TaskFacts {
    fn lasting(&self) -> History {
        let stop = if let Life::Stopping(plan) = self.life { Some(plan) } else { None };
        History { stop, watched: self.history.watched.told(), ..self.history.clone() }
    }
}
