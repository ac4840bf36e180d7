//! Freezing a task and thawing it. Others may thaw it too, as `systemctl thaw` does: the kernel is asked whenever the
//! answer matters, and nobody watches.

use std::rc::Rc;

use bowline_error::Result;
use bowline_spec::id::TaskId;

use super::supervisor::Supervisor;
use super::task::Task;
use crate::events::Event;
use crate::lifecycle::Status;
use crate::lifecycle::task::Trigger;
use crate::manager_events::ManagerEvent;
use crate::request::TaskState;

impl Supervisor {
    /// Freezes a task; returns once all its processes have stopped.
    pub async fn pause(self: &Rc<Self>, id: &TaskId) -> Result<()> {
        let task = self.task(id)?;
        self.notice_thaw(&task);
        task.happen(&self.layout, Trigger::Pause)?;
        let _turn = task.turns.pausing.lock().await;
        task.frozen(&self.layout).await?;
        self.tell(&task, Event::Paused);
        self.tell_manager(&task, || ManagerEvent::Paused);
        Ok(())
    }

    /// Thaws a paused task.
    pub fn resume(self: &Rc<Self>, id: &TaskId) -> Result<()> {
        let task = self.task(id)?;
        task.happen(&self.layout, Trigger::Resume)?;
        self.tell_resumed(&task);
        Ok(())
    }

    /// The state of a task.
    pub fn state(self: &Rc<Self>, id: &TaskId) -> Result<TaskState> {
        let task = self.task(id)?;
        self.notice_thaw(&task);
        Ok(task.state())
    }

    /// The state of each task.
    pub fn states(self: &Rc<Self>) -> Vec<TaskState> {
        self.notice_thaws();
        self.tasks.borrow().values().map(|task| task.state()).collect()
    }

    /// [`Self::notice_thaw`] of every task.
    pub(super) fn notice_thaws(self: &Rc<Self>) {
        let tasks: Vec<Rc<Task>> = self.tasks.borrow().values().cloned().collect();
        tasks.iter().for_each(|task| self.notice_thaw(task));
    }

    /// Has a task run on that was paused, and that somebody else has thawed. While it freezes, or criu reads it, it is
    /// thawed in between.
    pub(super) fn notice_thaw(self: &Rc<Self>, task: &Rc<Task>) {
        if task.status() != Status::Paused {
            return;
        }
        let (Ok(_pausing), Ok(_checkpointing)) = (task.turns.pausing.try_lock(), task.turns.checkpointing.try_lock())
        else {
            return;
        };
        if task.with_cgroup(|cgroup| self.layout.is_thawed(cgroup)).unwrap_or_default()
            && task.happen(&self.layout, Trigger::Thawed).is_ok()
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
