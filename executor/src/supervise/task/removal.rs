//! The removal of a task by its shim, where its launch has asked for that.
//!
//! ```text
//!   report written, events told ─► callers answered ─► poststop hooks ─► folder renamed, deleted ─► lock
//! ```
//!
//! A shim of one task removes its own folder last of all, as it leaves; a sandbox's removes that of the member.
//! Must not: end anything. By then nothing of the task is left but its folder.

use std::rc::Rc;
use std::time::Duration;

use bowline_error::Result;
use bowline_model::folder::Lock;
use bowline_spec::id::TaskId;
use tokio::time::timeout;

use super::Task;
use crate::hostside::attached;
use crate::hostside::undo::{LeftAlone, remove_folder};
use crate::supervise::supervisor::Supervisor;

/// How long a task that is to be removed stays for the client that launched it, which may still ask how it ended.
const LAST_QUESTIONS: Duration = Duration::from_secs(5);

impl Task {
    /// Whether the shim removes the task once it has ended.
    pub fn is_removed_at_end(&self) -> bool {
        self.facts.read(|facts| facts.record.remove)
    }

    /// Waits until the client that launched a task which is to be removed has gone. Where that client is not known, as the
    /// shim took the task over, any caller that was told the end will do; without an attached client, nobody is waited for.
    pub(super) async fn until_launcher_knows(&self) {
        if !self.is_removed_at_end() {
            return;
        }
        let launcher = self.handles.borrow().launcher.clone();
        let knows = async {
            match launcher {
                Some(mut launcher) => launcher.gone().await,
                None if attached::is_held_in(self.folder.path()) => self.end_told.until_it(|told| *told).await,
                None => {}
            }
        };
        self.facts.update_silently(|facts| facts.step_due = None);
        let _ = timeout(self.step_due(LAST_QUESTIONS).to_come(), knows).await;
    }
}

impl Supervisor {
    /// Notes that the shim's own folder goes with the task `id`, also if the launch of that fails.
    pub(super) fn note_removal(&self, id: &TaskId) {
        if id.as_str() == self.config.folder.name() {
            self.removes_own_folder.set(true);
        }
    }

    /// Removes the shim's own folder if the launch of its task has asked for that; `lock` is the folder's. Nothing of the
    /// task is left but that, and nobody is served any more: this may block.
    ///
    /// # Errors
    /// What cannot be removed.
    pub(crate) fn remove_own_folder(&self, lock: &Lock) -> Result<LeftAlone> {
        let folder = &self.config.folder;
        let own = folder.name().parse().ok().and_then(|id: TaskId| self.task(&id).ok());
        let own = own.filter(|task| !task.owns_folder && task.is_removed_at_end());
        match own {
            Some(task) if task.facts.read(|facts| facts.record.poststop.is_some()) => {
                remove_folder(folder, lock).map(|failed| failed.into_iter().collect())
            }
            Some(_) => folder.remove_locked(lock).map(|()| LeftAlone::new()),
            None if self.removes_own_folder.get() => folder.remove_locked(lock).map(|()| LeftAlone::new()),
            None => Ok(LeftAlone::new()),
        }
    }

    /// Gives up the folder of a member, or of a further task: removes it, or lets others.
    pub(crate) fn give_up_folder(&self, task: &Rc<Task>) {
        let lock = task.handles.borrow_mut().lock.take();
        if let Some(lock) = lock
            && task.is_removed_at_end()
            && let Err(error) = task.folder.remove(lock)
        {
            tracing::error!(%error, path = %task.folder.path().display(), "a folder is left behind");
        }
    }
}
