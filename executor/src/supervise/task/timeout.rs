//! Stops a task when its time is over, as its description limits it.
//!
//! ```text
//!   executed ─► until times_out_at ─► stop: signal, grace, SIGKILL
//! ```
//!
//! A task without a limit has no future for it. Must not: decide how a task is stopped, which is the job of
//! `lifecycle`.

use std::rc::Rc;
use std::time::Duration;

use bowline_model::clock::Moment;
use bowline_model::report::StoppedBy;
use jiff::Timestamp;

use super::Task;
use super::watching::until_end;
use crate::facts::TaskFacts;
use crate::supervise::supervisor::Supervisor;

impl Supervisor {
    /// Begins to wait until the time of a task that runs is over, if its description limits it.
    pub(crate) fn begin_timeout(self: &Rc<Self>, task: &Rc<Task>) {
        task.note_timeout();
        if task.facts.read(|facts| facts.times_out_at.is_some()) {
            self.time_out_on_time(task);
        }
    }

    /// Stops the task when its time is over.
    pub(crate) fn time_out_on_time(self: &Rc<Self>, task: &Rc<Task>) {
        let supervisor = self.clone();
        until_end(task, async move |task| supervisor.time_out(task).await);
    }

    async fn time_out(self: &Rc<Self>, task: &Rc<Task>) {
        let Some(then) = task.facts.read(|facts| facts.times_out_at) else { return };
        crate::waits::sleep_until(then).await;
        task.facts.update(|facts| facts.times_out_at = None);
        if let Err(error) = self.shutdown(&task.id, None, None, StoppedBy::Timeout) {
            tracing::error!(%error, id = %task.id, "cannot stop a task whose time is over");
        }
    }
}

impl Task {
    /// Notes when its time is over, if its description limits it.
    pub(crate) fn note_timeout(&self) {
        let limit = self.facts.read(|facts| facts.record.task.as_ref().and_then(|task| task.timeout));
        let Some(limit) = limit else { return };
        let left = limit.as_std().saturating_sub(self.facts.read(has_run));
        self.facts.update(|facts| facts.times_out_at = Some(Moment::now().after(left)));
    }
}

/// For how long a task's program has run, by the clock of the day: more than nothing at first if an earlier shim has
/// launched it.
pub fn has_run(facts: &TaskFacts) -> Duration {
    let started = facts.record.started_at;
    let millis = started.map_or(0, |started| Timestamp::now().as_millisecond() - started.as_millisecond());
    Duration::from_millis(u64::try_from(millis).unwrap_or_default())
}
