//! Who answers for a task: a shim that lives, or what a shim has left behind.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use bowline_model::folder::Folder;
use bowline_model::folder::Owner;
use bowline_model::report::ExitReport;
use bowline_model::{Error, Kind, Result};
use tokio::time::timeout;

use crate::connection::connect_watched;
use crate::errors::unknown;
use crate::left_behind::{Socket, gone, has_report, replaced, socket_of, was_begun};
use crate::patience::{Patience, kept_or_silent, silent};
use crate::shim::Shim;

/// The state of a task, by who can answer for it.
pub enum Presence {
    /// A shim that answers calls about the task.
    Live(Shim),
    /// The task has ended and left this report.
    Exited(Box<ExitReport>),
    /// The shim died before the task ended.
    Dead,
    /// The shim is not up yet.
    Starting,
}

/// Finds out who answers for the task in `folder`. A later task of this name is another one, to the shim that is found
/// too if `folder` is pinned: many shims are kept where that would be a descriptor for each.
///
/// # Errors
/// `NotFound` when there is no such task; `Unavailable` when its shim accepts no connections and does not end.
pub async fn find(folder: &Folder, id: &str) -> Result<Presence> {
    let (asked, folder) = (folder, &pinned(folder, id)?);
    let mut patience = Patience::with(folder);
    loop {
        let socket = socket_of(folder);
        // Before the connection: what ends meanwhile loses its link to the sandbox's socket.
        let member = folder.sandbox_by_socket().and(folder.inode());
        let found = match connect_watched(folder).await {
            Ok((client, connection)) => {
                let (id, folder, connection) = (id.to_owned(), asked.clone(), Some(Arc::new(connection)));
                return Ok(Presence::Live(Shim { client, id, folder, socket, connection, member }));
            }
            Err(_) if !folder.exists()? => return Err(unknown(id)),
            // The socket's backlog is full: the shim accepts nobody.
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(silent(id)),
            Err(error) => without_shim(folder, error.kind(), socket, &mut patience).await,
        };
        // The folder was removed while we looked.
        match found.map_err(|error| if error.kind() == Kind::NotFound { unknown(id) } else { error })? {
            Some(presence) => return Ok(presence),
            None => continue,
        }
    }
}

/// How long callers that only read wait for a shim that comes or goes.
const COMES_OR_GOES: Duration = Duration::from_millis(500);

/// Like [`find`], for callers that only read: does not wait until another process lets go of the task's lock.
///
/// # Errors
/// As [`find`]; `Unavailable` also where another process has the lock, and no shim answers.
pub async fn look(folder: &Folder, id: &str) -> Result<Presence> {
    let held = || {
        Error::new(Kind::Unavailable, format!("no shim answers for {id}, and another process holds its lock"))
            .hint("somebody takes it over or removes it; try again in a moment")
    };
    timeout(COMES_OR_GOES, find(folder, id)).await.unwrap_or_else(|_| Err(held()))
}

/// The folder of the task `id` as it is now: see [`Folder::pinned`].
///
/// # Errors
/// `NotFound` when there is no such task.
pub(crate) fn pinned(folder: &Folder, id: &str) -> Result<Folder> {
    folder.pinned().map_err(|error| if error.kind() == Kind::NotFound { unknown(id) } else { error })
}

/// Finds out who answers after connecting to `socket` failed with `refused`; `None` if there is another socket by now,
/// so that the caller retries, or there may be in a moment.
async fn without_shim(
    folder: &Folder,
    refused: ErrorKind,
    socket: Option<Socket>,
    patience: &mut Patience<'_>,
) -> Result<Option<Presence>> {
    // A socket that exists and refuses belongs to a shim that is leaving or gone.
    if refused == ErrorKind::NotFound || socket.is_none() {
        if socket_of(folder).is_some() {
            return Ok(None);
        }
        // A member of a sandbox that has ended has no socket either.
        if !has_report(folder)? && matches!(folder.owner()?, Owner::Shim) {
            // Its shim had one, which somebody has removed; or the next shim is about to make one.
            return match was_begun(folder) {
                true if patience.is_over().await => Err(kept_or_silent(folder, &folder.name())),
                true => Ok(None),
                false => Ok(Some(Presence::Starting)),
            };
        }
    }
    tokio::select! {
        biased;
        left = gone(folder) => left.map(|report| Some(report.map_or(Presence::Dead, Presence::Exited))),
        // Somebody else has had a new shim take the task over. That holds the lock for as long as the task lives.
        () = replaced(folder, socket) => Ok(None),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::net::UnixListener;

    use bowline_executor::StateDir;

    use super::*;

    #[test]
    fn a_shim_that_comes_up_while_somebody_looks_is_not_taken_for_one_that_goes() {
        let root = tempfile::tempdir().unwrap();
        let (folder, lock) = StateDir::new(root.path()).create(&"web".parse().unwrap()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let look = |refused| {
            let mut patience = Patience::with(&folder);
            runtime.block_on(without_shim(&folder, refused, socket_of(&folder), &mut patience)).unwrap()
        };
        assert!(matches!(look(ErrorKind::NotFound), Some(Presence::Starting)));
        let listener = UnixListener::bind(folder.socket()).unwrap();
        // Waiting for the lock would mean waiting for the end of the shim.
        assert!(look(ErrorKind::NotFound).is_none());
        drop((listener, lock));
        assert!(matches!(look(ErrorKind::ConnectionRefused), Some(Presence::Dead)));
    }
}
