//! Client for the shim of a sandbox: calls about the sandbox itself, and access to its members.

use bowline_model::folder::{Folder, StateDir};
use bowline_model::sandbox::SandboxState;
use bowline_model::stats::Stats;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::id::TaskId;

use crate::adopt::find_or_adopt;
use crate::connection::patient;
use crate::patience::{Patience, turned_away};
use crate::presence::Presence;
use crate::shim::Shim;
use crate::spawn::Programs;
use bowline_protocol::wire::from_status;
use bowline_protocol::wire::proto::bowline::{ChargeHelpersRequest, Empty, RemoveSandboxRequest, UpdateRequest};

/// The error for a sandbox that does not exist.
pub fn unknown(id: &TaskId) -> Error {
    Error::new(Kind::NotFound, format!("there is no sandbox named {id}")).hint("`bowline sandbox ls` lists all")
}

/// The error for a sandbox whose shim died, and that no other can take over.
pub fn dead(id: &TaskId) -> Error {
    Error::new(Kind::WrongState, format!("the shim of sandbox {id} died"))
        .hint(format!("`bowline sandbox rm -f {id}` cleans up after it"))
}

/// The error for a sandbox whose shim died before it had made it.
fn cut_short(id: &TaskId) -> Error {
    Error::new(Kind::WrongState, format!("the creation of sandbox {id} was cut short: nothing ran in it"))
        .hint(format!("`bowline sandbox rm {id}` or `bowline gc` removes the rest"))
}

/// The error for a sandbox that its shim has taken down, and whose records are about to be removed.
pub(crate) fn removed(id: &TaskId) -> Error {
    Error::new(Kind::WrongState, format!("sandbox {id} is being removed"))
}

/// Whether the sandbox in this folder, which is pinned, was taken down.
pub(crate) fn has_gone(folder: &Folder) -> bool {
    let is_taken_down = matches!(folder.sandbox(), Ok(Some(record)) if record.taken_down);
    // In this order, as it may be removed meanwhile.
    is_taken_down || !folder.is_still_there()
}

/// The error for a call that needs a sandbox while the sandbox is still being made.
pub fn starting(id: &TaskId) -> Error {
    Error::new(Kind::WrongState, format!("sandbox {id} is still being made")).hint("try again in a moment")
}

/// The folder of the sandbox `id`.
///
/// # Errors
/// `NotFound` when there is none; `WrongState` when `id` is a task.
pub fn folder(state: &StateDir, id: &TaskId) -> Result<Folder> {
    let folder = state.folder(id);
    // It may come or go meanwhile.
    let pinned = folder.pinned().map_err(|error| if error.kind() == Kind::NotFound { unknown(id) } else { error })?;
    if pinned.is_sandbox() {
        return Ok(folder);
    }
    if pinned.is_still_there() {
        return Err(Error::new(Kind::WrongState, format!("{id} is a task, and no sandbox"))
            .hint(format!("`bowline inspect {id}` tells how it stands")));
    }
    Err(unknown(id))
}

/// Connects to the shim of the sandbox `id`; to a new one if that died.
///
/// # Errors
/// As [`folder`]; `WrongState` when its shim died and it cannot be taken over.
pub async fn of(state: &StateDir, id: &TaskId, programs: &Programs) -> Result<Shim> {
    let folder = folder(state, id)?.pinned().map_err(|_| unknown(id))?;
    match find_or_adopt(&folder, id, programs).await {
        Ok(Presence::Live(shim)) => Ok(shim),
        Ok(Presence::Starting) => Err(starting(id)),
        Ok(Presence::Dead | Presence::Exited(_)) => Err(match folder.sandbox() {
            _ if !folder.is_still_there() => unknown(id),
            Ok(Some(record)) if record.taken_down => removed(id),
            Ok(Some(record)) if record.whole.is_none() => cut_short(id),
            _ => dead(id),
        }),
        Err(error) if error.kind() == Kind::NotFound => Err(unknown(id)),
        Err(error) => Err(error),
    }
}

impl Shim {
    /// The error of a failed call about the sandbox itself.
    async fn refused(&self, error: &ttrpc::Error) -> Error {
        match from_status(error) {
            Some(told) => told,
            None if self.turns_away().await => turned_away(&self.id),
            None if matches!(self.folder.exists(), Ok(false)) => {
                Error::new(Kind::NotFound, format!("there is no sandbox named {}", self.id))
                    .hint("`bowline sandbox ls` lists all")
            }
            None => self.broke_off(),
        }
    }

    /// The result of `call`, or an error when the shim stops answering.
    async fn told<T>(&self, call: impl Future<Output = ttrpc::Result<T>>) -> Result<T> {
        let answer = async {
            match call.await {
                Ok(answer) => Ok(answer),
                Err(error) => Err(self.refused(&error).await),
            }
        };
        self.unless_silent(answer).await
    }

    /// This shim, asked about the member with this folder.
    pub fn member(&self, id: &TaskId, folder: Folder) -> Shim {
        let (client, id, socket, member) = (self.client.clone(), id.to_string(), self.socket, folder.inode());
        Shim { client, id, folder, socket, connection: None, member }
    }

    pub async fn create_sandbox(&self) -> Result<()> {
        self.create_sandbox_or_break_off().await?
    }

    /// Like [`Shim::create_sandbox`]; the inner error is a connection that broke off before the answer.
    pub(crate) async fn create_sandbox_or_break_off(&self) -> Result<Result<()>> {
        let answer = async {
            match self.client.create_sandbox(patient(), &Empty::default()).await {
                Ok(_) => Ok(Ok(())),
                Err(error) => match from_status(&error) {
                    None => Ok(Err(self.refused(&error).await)),
                    Some(told) => Err(told),
                },
            }
        };
        self.unless_silent(answer).await
    }

    /// Everything that is known of the sandbox.
    pub async fn sandbox_state(&self) -> Result<SandboxState> {
        let answer = self.told(self.client.sandbox_state(patient(), &Empty::default())).await?;
        serde_json::from_str(&answer.state).doing(Kind::Internal, || "the shim's word on its sandbox is damaged")
    }

    /// The total resource usage of the members.
    pub async fn sandbox_stats(&self) -> Result<Stats> {
        let answer = self.told(self.client.sandbox_stats(patient(), &Empty::default())).await?;
        serde_json::from_str(&answer.stats).doing(Kind::Internal, || "the shim's statistics are damaged")
    }

    /// Changes the sandbox's limits, given as JSON.
    pub async fn update_sandbox(&self, update: String) -> Result<()> {
        let request = UpdateRequest { update, ..UpdateRequest::default() };
        self.told(self.client.update_sandbox(patient(), &request)).await.map(drop)
    }

    /// Charges helper processes beside the sandbox; returns the pids that are not processes.
    pub async fn charge_helpers(&self, pids: Vec<i32>) -> Result<Vec<i32>> {
        let request = ChargeHelpersRequest { pids, ..ChargeHelpersRequest::default() };
        let answer = self.told(self.client.charge_helpers(patient(), &request)).await?;
        Ok(answer.skipped)
    }

    /// Removes the sandbox; `force` kills its members first. Returns the helpers that live on in the root cgroup.
    /// `None` if the shim dies or leaves by itself: another may have the sandbox, or the caller cleans up the rest. A shim
    /// that turns us away is asked again until it counts as not answering.
    pub async fn remove_sandbox(&mut self, force: bool) -> Result<Option<Vec<i32>>> {
        let request = RemoveSandboxRequest { force, ..RemoveSandboxRequest::default() };
        let folder = self.folder.clone();
        let mut patience = Patience::with(&folder);
        loop {
            let removed = async { Ok(self.client.remove_sandbox(patient(), &request).await) };
            match self.unless_silent(removed).await? {
                Ok(response) => return Ok(Some(response.moved)),
                Err(error) if self.connects_again(&error, &mut patience).await? => {}
                Err(error) => match from_status(&error) {
                    None => return Ok(None),
                    Some(told) if told.kind() == Kind::NotFound => return Ok(Some(Vec::new())),
                    Some(told) => return Err(told),
                },
            }
        }
    }
}
