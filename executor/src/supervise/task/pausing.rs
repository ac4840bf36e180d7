//! Freezing a task and thawing it. Others may do so too, as `systemctl freeze` and `thaw` do: the kernel is asked whenever
//! the answer matters, and nobody watches: the checks and the watch of a paused task ask when they would be due.

use std::rc::Rc;
use std::time::Duration;

use bowline_cgroup::{Cgroup, Freezing, Layout};
use bowline_error::{Error, Kind, Result};
use bowline_model::clock::Moment;
use bowline_model::events::Event;
use bowline_model::status::Status;
use bowline_spec::id::TaskId;

use super::Task;
use crate::facts::TaskFacts;
use crate::hostside::strangers;
use crate::lifecycle::task::Trigger;
use crate::output::manager_events::ManagerEvent;
use crate::request::TaskState;
use crate::supervise::supervisor::Supervisor;

/// How long a freeze may take: a process in the kernel freezes only when it returns from there.
const FREEZE: Duration = Duration::from_secs(10);

/// How long an exec may take to enter the last of its cgroups, and when it is looked at again.
const ENTRY: Duration = Duration::from_secs(1);
const ENTRY_LOOK: Duration = Duration::from_millis(1);

/// How long an exec may take to begin until it is asked whether the task is frozen.
const FROZEN_AFTER: Duration = Duration::from_secs(1);

impl Supervisor {
    /// Freezes a task; returns once all its processes have stopped.
    ///
    /// # Errors
    /// `WrongState` naming processes that somebody has moved to where they would run on; `Timeout`. The task runs then.
    pub async fn pause(self: &Rc<Self>, id: &TaskId) -> Result<()> {
        let task = self.task(id)?;
        self.notice_thaw(&task);
        task.apply(&self.layout, Trigger::Pause)?;
        let _turn = task.turns.pausing.lock().await;
        task.frozen(&self.layout).await?;
        self.tell(&task, Event::Paused);
        self.tell_manager(&task, || ManagerEvent::Paused);
        Ok(())
    }

    /// Thaws a paused task.
    pub fn resume(self: &Rc<Self>, id: &TaskId) -> Result<()> {
        let task = self.task(id)?;
        if self.is_frozen_by_others(&task) {
            return task.with_cgroup(|cgroup| self.layout.freeze(cgroup, false))?;
        }
        task.apply(&self.layout, Trigger::Resume)?;
        self.tell_resumed(&task);
        Ok(())
    }

    /// The state of a task.
    pub fn state(self: &Rc<Self>, id: &TaskId) -> Result<TaskState> {
        let task = self.task(id)?;
        self.notice_thaw(&task);
        Ok(self.state_now(&task))
    }

    /// The state of each task.
    pub fn states(self: &Rc<Self>) -> Vec<TaskState> {
        self.notice_thaws();
        self.tasks.borrow().values().map(|task| self.state_now(task)).collect()
    }

    /// The state of a task, which is paused too where somebody else has frozen it.
    fn state_now(&self, task: &Task) -> TaskState {
        let state = task.state();
        if self.is_frozen_by_others(task) { TaskState { status: Status::Paused, ..state } } else { state }
    }

    /// Whether somebody else has frozen a task that runs.
    fn is_frozen_by_others(&self, task: &Task) -> bool {
        let is_frozen = |cgroup: &Cgroup| self.layout.is_frozen_itself(cgroup);
        task.status() == Status::Running && task.with_cgroup(is_frozen).unwrap_or_default()
    }

    /// Whether the processes of a task are frozen, whoever froze them, by its cgroup or one above.
    pub(crate) fn is_held(&self, task: &Task) -> bool {
        task.with_cgroup(|cgroup| self.layout.is_frozen(cgroup)).unwrap_or_default()
    }

    /// The output of `begins`, the beginning of an exec, unless the task is frozen: then that never comes.
    ///
    /// # Errors
    /// `WrongState` where it is.
    pub(crate) async fn unless_frozen<T>(&self, task: &Task, begins: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::pin!(begins);
        loop {
            if let Ok(begun) = tokio::time::timeout(FROZEN_AFTER, &mut begins).await {
                return begun;
            }
            if self.is_held(task) {
                let message = format!("task {} is frozen: nothing can be run in it", task.id);
                return Err(Error::new(Kind::WrongState, message)
                    .hint("`bowline resume` lets it go on, unless a cgroup above its own is frozen"));
            }
        }
    }

    /// Waits until a task has run for `span` without a pause. Returns false once the task is ending. `due` keeps the time
    /// when the wait is over.
    pub(crate) async fn runs_for(
        self: &Rc<Self>,
        task: &Rc<Task>,
        span: Duration,
        due: fn(&mut TaskFacts) -> Option<&mut Option<Moment>>,
    ) -> bool {
        let set = |moment| task.facts.update_silently(|facts| due(facts).map(|due| *due = moment));
        loop {
            let was = task.status();
            let changed = task.facts.until_it(|facts| facts.life.status() != was);
            match was {
                Status::Running => {
                    let then = Moment::now().after(span);
                    let then = task.facts.update_silently(|facts| due(facts).map(|due| *due.get_or_insert(then)));
                    let Some(then) = then else { return false };
                    let has_run = tokio::time::timeout(then.to_come(), changed).await.is_err();
                    set(None);
                    if has_run {
                        return true;
                    }
                }
                Status::Created => {
                    set(None);
                    changed.await;
                }
                Status::Paused => {
                    set(None);
                    if tokio::time::timeout(span, changed).await.is_err() {
                        self.notice_thaw(task);
                    }
                }
                Status::Stopping | Status::Exited => return false,
            }
        }
    }

    /// [`Self::notice_thaw`] of every task.
    pub(crate) fn notice_thaws(self: &Rc<Self>) {
        let tasks: Vec<Rc<Task>> = self.tasks.borrow().values().cloned().collect();
        tasks.iter().for_each(|task| self.notice_thaw(task));
    }

    /// Has a task run on that was paused, and that somebody else has thawed. While it freezes, or criu reads it, it is
    /// thawed in between.
    pub(crate) fn notice_thaw(self: &Rc<Self>, task: &Rc<Task>) {
        if task.status() != Status::Paused {
            return;
        }
        let (Ok(_pausing), Ok(_checkpointing)) = (task.turns.pausing.try_lock(), task.turns.checkpointing.try_lock())
        else {
            return;
        };
        if task.with_cgroup(|cgroup| self.layout.is_thawed(cgroup)).unwrap_or_default()
            && task.apply(&self.layout, Trigger::Thawed).is_ok()
        {
            tracing::info!(task = %task.id, "somebody else has resumed the task");
            self.tell_resumed(task);
        }
    }

    fn tell_resumed(&self, task: &Rc<Task>) {
        self.tell(task, Event::Resumed);
        self.tell_manager(task, || ManagerEvent::Resumed);
    }
}

impl Task {
    /// Waits until a freeze is complete. Polls, because cgroup v1 does not report it.
    async fn frozen(self: &Rc<Self>, layout: &Rc<Layout>) -> Result<()> {
        let (give_up, entered_by) = (Moment::now().after(FREEZE), Moment::now().after(ENTRY));
        let mut freezing = Freezing::default();
        let steps = self.facts.read(|facts| facts.steps);
        loop {
            let look = self.with_cgroup(|cgroup| freezing.look(layout, cgroup))?;
            if self.facts.read(|facts| facts.steps) != steps {
                let message = format!("task {} was resumed or stopped before it was frozen", self.id);
                return Err(Error::new(Kind::WrongState, message));
            }
            let wait = match look {
                Some(wait) => wait,
                None => {
                    let outside = self.with_cgroup(|cgroup| layout.outside(cgroup, &self.known_processes()))?;
                    if outside.is_empty() {
                        return Ok(());
                    }
                    if Moment::now() > entered_by || !outside.iter().all(|pid| strangers::may_enter(*pid)) {
                        self.apply(layout, Trigger::Resume)?;
                        return Err(self.has_outside(layout, &outside));
                    }
                    ENTRY_LOOK
                }
            };
            if Moment::now() > give_up {
                self.apply(layout, Trigger::Resume)?;
                let message = format!("task {} would not freeze within {FREEZE:?}; it runs on", self.id);
                return Err(Error::new(Kind::Timeout, message));
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Its processes that the shim knows by their pids.
    fn known_processes(&self) -> Vec<i32> {
        self.facts.read(|facts| {
            let execs = facts.execs.values().filter_map(|exec| exec.pid);
            execs.chain(facts.record.pid).chain(facts.record.program_pid()).collect()
        })
    }

    /// The error for a pause that would leave these processes running.
    fn has_outside(&self, layout: &Layout, outside: &[i32]) -> Error {
        let folder = self.with_cgroup(|cgroup| layout.freezer_folder(cgroup)).ok().flatten().unwrap_or_default();
        let (named, folder) = (strangers::named(outside), folder.display());
        let message = format!(
            "task {} runs on: a pause does not reach {named}, which somebody has moved out of {folder}",
            self.id
        );
        Error::new(Kind::WrongState, message).hint(format!("`echo PID > {folder}/cgroup.procs` moves a process back"))
    }
}
