//! A change of limits while the task runs: all of it, or none.

use std::rc::Rc;

use bowline_spec::Update;
use bowline_spec::id::TaskId;

use super::Supervisor;
use crate::error::Result;
use crate::events::Event;
use crate::{host, worker};

impl Supervisor {
    pub(super) async fn update(self: &Rc<Self>, id: &TaskId, update: &Update) -> Result<()> {
        let task = self.task(id)?;
        let _turn = task.updating.lock().await;
        let (merged, changes) = host::change(&task.record.borrow().task, update)?;
        // The kernel may have to reclaim memory first; the loop goes on meanwhile.
        let worker = task.with_cgroup(|c| worker::start("the update", || self.layout.change(c, &changes)))??;
        let changed = worker.answer().await;
        if task.state.borrow().live().is_none() {
            return Err(task.has_exited());
        }
        changed?;
        task.record.borrow_mut().task = merged;
        self.tell(&task, Event::Updated { limits: Some(Box::new(update.clone())) });
        self.config.folder.write_record(&task.record.borrow())
    }
}
