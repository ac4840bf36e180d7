//! From the order to execute a task's program until that is executed: whether it runs already, only init could tell.
//!
//! ```text
//!   stopped before the order, or in the hooks that follow it ─► the launch is given up: the program never runs
//!   stopped after that ─► once it is executed, with the signal and its grace
//! ```

use std::rc::Rc;
use std::time::Duration;

use bowline_error::{Error, Kind, Result};
use bowline_model::clock::Moment;
use bowline_model::shutdown::StopPlan;
use bowline_spec::signal::Signal;

use super::Task;
use crate::lifecycle::task::{Life, Trigger};
use crate::start::launch::Held;
use crate::supervise::supervisor::Supervisor;
use crate::waits;

/// How long a signal waits for the program.
const SIGNAL_WAITS: Duration = Duration::from_secs(1);

impl Task {
    /// Has init execute the program.
    ///
    /// # Errors
    /// `WrongState` where somebody has ended the task meanwhile; why the program is not executed.
    pub(crate) async fn execute(&self, held: Held) -> Result<()> {
        if self.facts.read(|facts| facts.life != Life::Created) {
            return Err(self.killed_before_start());
        }
        let started = held.start(|| self.executes.set(true)).await;
        started.map_err(|error| self.was_killed().unwrap_or(error))
    }

    /// The error of a launch whose init somebody has killed through this shim.
    pub(crate) fn was_killed(&self) -> Option<Error> {
        let was = self.facts.read(|facts| facts.history.sent.contains(&libc::SIGKILL));
        was.then(|| self.killed_before_start())
    }

    fn killed_before_start(&self) -> Error {
        Error::new(Kind::WrongState, format!("task {} was killed before it was started", self.id))
    }

    /// Whether the program may run, and nobody knows.
    fn is_executing(&self) -> bool {
        self.executes.get() && self.facts.read(|facts| facts.life == Life::Created)
    }

    /// Returns once that is known, or at this moment.
    async fn executed(&self, until: Moment) {
        let known = self.facts.until_it(|facts| facts.life != Life::Created);
        let _ = tokio::time::timeout(until.to_come(), known).await;
    }
}

impl Supervisor {
    /// Stops a task as planned, once its program is executed.
    pub(crate) fn stop_executed(self: &Rc<Self>, task: &Rc<Task>, plan: StopPlan, now: Moment) -> Result<()> {
        let is_frozen = || task.with_cgroup(|cgroup| self.layout.is_frozen(cgroup)).unwrap_or_default();
        if plan.kills_at_once(now) || !task.is_executing() || is_frozen() {
            return task.apply(&self.layout, Trigger::Stop(plan, now));
        }
        let (supervisor, task) = (self.clone(), task.clone());
        waits::work("a stop of what is being executed", Some(task.id.clone()), async move {
            task.executed(plan.kill_at).await;
            if let Err(error) = task.apply(&supervisor.layout, Trigger::Stop(plan, Moment::now())) {
                tracing::error!(%error, id = %task.id, "cannot stop a task");
            }
            task.remember();
            supervisor.changed.notify_one();
        });
        Ok(())
    }

    /// Sends a signal to init, or to all processes, once the program is executed.
    pub(crate) fn signal_executed(self: &Rc<Self>, task: &Rc<Task>, signal: Signal, all: bool) -> Result<()> {
        let send = move |supervisor: &Supervisor, task: &Rc<Task>| match all {
            true => task.signal_all(&supervisor.layout, signal),
            false => task.signal(&supervisor.layout, signal),
        };
        if signal == Signal::KILL || !task.is_executing() {
            return send(self, task);
        }
        let (supervisor, task) = (self.clone(), task.clone());
        waits::work("a signal for what is being executed", Some(task.id.clone()), async move {
            task.executed(Moment::now().after(SIGNAL_WAITS)).await;
            if let Err(error) = send(&supervisor, &task) {
                tracing::warn!(%error, id = %task.id, "a signal is lost");
            }
        });
        Ok(())
    }
}
