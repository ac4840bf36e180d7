//! Which tasks a command is for: those that are named, or all with some labels.

use bowline_model::folder::{Folder, StateDir};
use bowline_model::{Kind, Result};
use bowline_spec::id::TaskId;
use clap::Args;

use super::filter::Labelled;
use super::task_names::{self, TaskRef};
use crate::ui::print::complain;

// The tasks as typed.
#[derive(Debug, Args)]
pub struct Chosen {
    /// The tasks
    #[arg(required_unless_present = "label", conflicts_with = "label", value_name = "ID")]
    pub ids: Vec<TaskRef>,
    /// Instead of ids, all tasks with this label: tier=web, or tier with any value; of several, with all; may be repeated
    #[arg(long, value_name = "K[=V]")]
    pub label: Vec<Labelled>,
}

/// A task that was found, and its folder: pinned where it was found by its labels, so that nothing is done to a later task
/// of its name, and that its removal is no error.
pub type Found = Result<(TaskId, Folder)>;

impl Chosen {
    /// Finds the tasks. A name that no task has gives an error in its place.
    ///
    /// # Errors
    /// Where the state folder cannot be read.
    pub fn find(&self, state: &StateDir) -> Result<Vec<Found>> {
        self.find_by(state, task_names::resolve)
    }

    /// Like [`Chosen::find`], for a command that asks how tasks have ended.
    pub fn find_ended(&self, state: &StateDir) -> Result<Vec<Found>> {
        self.find_by(state, task_names::resolve_ended)
    }

    fn find_by(
        &self,
        state: &StateDir,
        resolve: impl FnOnce(&StateDir, &[TaskRef]) -> Vec<Result<TaskId>>,
    ) -> Result<Vec<Found>> {
        if !self.label.is_empty() {
            return labelled(state, &self.label);
        }
        let named = resolve(state, &self.ids).into_iter();
        Ok(named.map(|id| id.map(|id| (id.clone(), state.folder(&id)))).collect())
    }

    /// Whether there may be more than one.
    pub fn is_several(&self) -> bool {
        self.ids.len() != 1
    }
}

/// All tasks with these labels. One whose record is damaged is named on stderr, and left alone.
///
/// # Errors
/// Where the state folder cannot be read.
pub fn labelled(state: &StateDir, labels: &[Labelled]) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    for id in state.ids()? {
        let fitting = state.folder(&id).pinned().and_then(|folder| {
            let task = folder.record()?.and_then(|record| record.task);
            let fits = task.is_some_and(|task| labels.iter().all(|label| label.is_among(&task.labels)));
            Ok(fits.then_some(folder))
        });
        match fitting {
            Ok(folder) => found.extend(folder.map(|folder| Ok((id, folder)))),
            // It was removed meanwhile.
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) if error.kind() == Kind::Damaged => complain(&error.to_string(), error.hint_text()),
            Err(error) => found.push(Err(error)),
        }
    }
    Ok(found)
}
