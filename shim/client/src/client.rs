//! Where tasks are started and found.

use std::path::{Path, PathBuf};

use bowline_model::folder::StateDir;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_protocol::wire::proto::bowline::LaunchRequest;
use bowline_spec::Invalid;
use bowline_spec::id::TaskId;

use crate::children;
use crate::errors::unknown;
use crate::events::Events;
use crate::launching_shim::Up;
use crate::spawn::Programs;
use crate::start::Start;
use crate::task::Task;

/// The tasks of one state folder. Holds no connection and no process; cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    state: StateDir,
    programs: Programs,
}

/// The state folder of `bowline` without `--state` and `BOWLINE_STATE`.
pub const STATE: &str = "/run/bowline";

impl Client {
    /// The tasks in the state folder at `path`, such as [`STATE`]. The folder need not exist before a task is started.
    ///
    /// # Errors
    /// `WrongState` naming what on the way to the folder another user owns or may write: that user could have us end
    /// any process as root.
    pub fn new(path: impl AsRef<Path>) -> Result<Client> {
        let path = std::path::absolute(path).doing(Kind::Usage, || "the state folder's path is not a path")?;
        let state = StateDir::new(path);
        state.check()?;
        Ok(Client { state, programs: Programs::default() })
    }

    /// Starts shims from the binary `bowline-shim` at this path. By default they are started from the one beside the
    /// program's own binary, else from the first in the `PATH`; `bowline` is looked for in the same places.
    #[must_use]
    pub fn with_shim(self, binary: impl Into<PathBuf>) -> Client {
        Client { programs: Programs::with_shim(binary.into()), ..self }
    }

    /// Starts a task; returns once its program is executed. Needs root.
    ///
    /// The launch goes on to its end when the future is dropped: look for the task by its name then.
    ///
    /// # Errors
    /// `AlreadyExists` when the id is taken; `BadSpec` for a description that is wrong or does not fit this host;
    /// `CommandNotFound`, `NotExecutable`; `NotFound` without that sandbox; `Unsupported` for what this host cannot do,
    /// and for a shim that is older than this library; `Internal` when `bowline-shim` cannot be found. Nothing of the
    /// task is left then.
    pub async fn start(&self, start: Start) -> Result<Task> {
        let client = self.clone();
        let started = tokio::spawn(async move { client.start_here(start).await }).await;
        started.doing(Kind::Internal, || "the launch was given up")?
    }

    async fn start_here(&self, start: Start) -> Result<Task> {
        children::collect();
        let (sandbox, shim_cgroup) = (start.sandbox.clone(), start.shim_cgroup.clone());
        let (id, request) = start.request()?;
        let mut up = Up::for_task(&self.state, &id, sandbox.as_ref(), &shim_cgroup, &self.programs).await?;
        if let Err(error) = self.launch(&mut up, request).await {
            return Err(up.abandon(error));
        }
        up.let_go();
        Ok(Task::new(&self.state, id, &self.programs))
    }

    /// Asks the shim for the launch. No version check for a binary already checked.
    async fn launch(&self, up: &mut Up, request: LaunchRequest) -> Result<()> {
        if up.binary.as_ref().is_some_and(|binary| self.programs.is_known_to_serve(binary)) {
            let shim = up.shim.clone();
            return tokio::select! {
                biased;
                launched = up.launch(request) => launched.map(drop),
                silent = shim.silence_at_first() => Err(silent),
            };
        }
        up.shim.check_revision().await?;
        if let Some(binary) = &up.binary {
            self.programs.serves(binary);
        }
        up.launch(request).await.map(drop)
    }

    /// The task `id`, whoever has started it, running or ended.
    ///
    /// # Errors
    /// `Usage` for what is not an id; `NotFound` when there is no such task, or no state folder; `WrongState` when it is
    /// a sandbox.
    pub fn task(&self, id: &str) -> Result<Task> {
        let id: TaskId = id.parse().map_err(|invalid: Invalid| Error::new(Kind::Usage, invalid.to_string()))?;
        let folder = self.state.folder(&id);
        if !folder.exists()? {
            return Err(self.no_folder().unwrap_or_else(|| unknown(&id)));
        }
        if folder.is_sandbox() {
            return Err(Error::new(Kind::WrongState, format!("{id} is a sandbox, and no task"))
                .hint(format!("`bowline sandbox inspect {id}` names its members")));
        }
        Ok(Task::new(&self.state, id, &self.programs))
    }

    /// Like this client, whose shims are started from these programs.
    #[doc(hidden)]
    pub fn with_programs(self, programs: Programs) -> Client {
        Client { programs, ..self }
    }

    fn no_folder(&self) -> Option<Error> {
        let path = self.state.path();
        let missing = || {
            Error::new(Kind::NotFound, format!("there is no state folder {}", path.display()))
                .hint("the first task makes it; check the path that was given to `Client::new`")
        };
        (!path.exists()).then(missing)
    }

    /// All tasks that are not removed, sorted by id; none where there is no state folder.
    ///
    /// # Errors
    /// `Internal` when the folder cannot be read.
    pub fn tasks(&self) -> Result<Vec<Task>> {
        let ids = self.state.ids()?;
        Ok(ids.into_iter().map(|id| Task::new(&self.state, id, &self.programs)).collect())
    }

    /// The events of all tasks, from the oldest that is known. Makes the state folder where there is none, to watch it.
    ///
    /// # Errors
    /// `Internal` when the journal cannot be read or watched.
    pub fn events(&self) -> Result<Events> {
        Events::open(self.state.events(), None)
    }
}
