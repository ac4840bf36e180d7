//! The tasks that this process of the plugin knows: those it has started, and those it has found again.
//!
//! Holds names only; each call asks the task's shim for its state. A task that is not here is looked for on disk by its
//! id, as the agent may ask to destroy one whose recovery has failed.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_client::{Client, Kept, Task, nomad_labels};
use bowline_model::folder::{Folder, StateDir};
use bowline_model::{Kind, Result};
use bowline_spec::TaskId;
use jiff::Timestamp;

use crate::describe::NONCE;
use crate::settings::Settings;
use crate::task_id;

/// A task, by all its names.
#[derive(Debug, Clone)]
pub struct Known {
    /// As Nomad calls it: `<allocation>/<task>/<eight characters>`.
    pub nomads: String,
    pub allocation: String,
    pub name: String,
    /// The id in bowline, which is derived from Nomad's.
    pub id: TaskId,
    /// When its command was executed.
    pub started_at: Option<Timestamp>,
    client: Client,
    state: StateDir,
    /// The connection to its shim, which checks and readings share.
    kept: Kept,
}

impl Known {
    /// The task that Nomad calls `nomads`.
    pub fn new(nomads: &str, allocation: &str, name: &str, client: Client, state: StateDir) -> Known {
        let (allocation, name) = (allocation.to_owned(), name.to_owned());
        let (id, kept) = (task_id::of(nomads), Kept::default());
        Known { nomads: nomads.to_owned(), allocation, name, id, started_at: None, client, state, kept }
    }

    /// Sets when the task was started.
    pub fn since(self, started_at: Option<Timestamp>) -> Known {
        Known { started_at, ..self }
    }

    /// The state folder that it is in.
    pub fn state_dir(&self) -> &Path {
        self.state.path()
    }

    pub fn folder(&self) -> Folder {
        self.state.folder(&self.id)
    }

    /// How its shim is asked.
    ///
    /// # Errors
    /// `NotFound` when it was removed.
    pub fn task(&self) -> Result<Task> {
        Ok(self.client.task(&self.id)?.keeping(&self.kept))
    }

    /// How it is started and found.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The label `name` of the task on disk.
    fn label(&self, name: &str) -> Result<Option<String>> {
        let record = self.folder().record()?;
        Ok(record.and_then(|record| record.task).and_then(|mut task| task.labels.remove(name)))
    }

    /// Whether the task on disk is the one that Nomad means. One whose record is damaged has the id, and no other has.
    pub fn is_nomads(&self) -> Result<bool> {
        match self.label(nomad_labels::ID) {
            Err(error) if error.kind() == Kind::Damaged => Ok(true),
            label => Ok(label?.as_deref() == Some(self.nomads.as_str())),
        }
    }

    /// What tells the start of the task on disk from any other.
    pub fn nonce(&self) -> Result<Option<String>> {
        self.label(NONCE)
    }
}

#[derive(Debug, Clone, Default)]
pub struct Tasks(Arc<Mutex<HashMap<String, Arc<Known>>>>);

impl Tasks {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Known>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, known: Known) {
        self.all().insert(known.nomads.clone(), Arc::new(known));
    }

    pub fn remove(&self, nomads: &str) {
        self.all().remove(nomads);
    }

    pub fn get(&self, nomads: &str) -> Option<Arc<Known>> {
        self.all().get(nomads).cloned()
    }

    /// The one that bowline calls `id`.
    pub fn of_id(&self, id: &TaskId) -> Option<Arc<Known>> {
        self.all().values().find(|known| known.id == *id).cloned()
    }

    /// The task that Nomad calls `nomads`, also if another process of the plugin has started it; `None` where there is no
    /// such task.
    ///
    /// # Errors
    /// `Internal` where the state folder cannot be read.
    pub fn find(&self, nomads: &str, settings: &Settings) -> Result<Option<Arc<Known>>> {
        if let Some(known) = self.get(nomads) {
            return Ok(Some(known));
        }
        let mut parts = nomads.split('/');
        let (allocation, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let known = Known::new(nomads, allocation, name, settings.client()?, settings.state());
        let is_there = known.folder().exists()? && known.is_nomads()?;
        Ok(is_there.then(|| Arc::new(known)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const ID: &str = "1c2f3a4b-6bb6-11e6-bc26-28d2444e470d/web/0f0e0d0c";

    #[test]
    fn a_task_is_found_by_either_name_until_it_is_removed() {
        let state = tempfile::tempdir().unwrap();
        let tasks = Tasks::default();
        let client = Client::new(state.path()).unwrap();
        let known = Known::new(ID, "1c2f3a4b", "web", client, StateDir::new(state.path()));
        let id = known.id.clone();
        tasks.add(known);
        assert_eq!(tasks.get(ID).unwrap().id, id);
        assert_eq!(tasks.of_id(&id).unwrap().nomads, ID);
        tasks.remove(ID);
        assert!(tasks.get(ID).is_none() && tasks.of_id(&id).is_none());
    }

    #[test]
    fn a_folder_of_somebody_else_is_not_taken_for_the_task() {
        let state = tempfile::tempdir().unwrap();
        let dir = StateDir::new(state.path());
        let known = Known::new(ID, "1c2f3a4b", "web", Client::new(state.path()).unwrap(), dir.clone());
        let (_folder, _lock) = dir.create(&known.id).unwrap();
        assert!(!known.is_nomads().unwrap());
    }
}
