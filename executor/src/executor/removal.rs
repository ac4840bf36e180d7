//! The removal of the executor's own folder, as it leaves.

use bowline_error::Result;
use bowline_model::folder::Lock;

use super::{Executor, Loop};
use crate::hostside::undo::LeftAlone;

impl Executor {
    /// Removes the executor's own folder where the launch of its task has asked for that. Called last of all, once the loop
    /// has ended and all callers are answered; blocks. `lock` is the folder's, and held beyond this.
    ///
    /// # Errors
    /// What cannot be removed.
    pub fn remove_own_folder(&self, lock: &Lock) -> Result<LeftAlone> {
        self.state.read(|turns| match turns {
            Loop::Gone(Some(supervisor)) => supervisor.remove_own_folder(lock),
            Loop::Begins | Loop::Turns(_) | Loop::Failed(_) | Loop::Gone(None) => Ok(LeftAlone::new()),
        })
    }
}
