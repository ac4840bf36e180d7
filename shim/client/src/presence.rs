//! Who answers for a task: a shim that lives, or what a shim has left behind.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use bowline_executor::{Error, ExitReport, Folder, Kind, Owner, Result};
use tokio::time::sleep;

use crate::connection::connect_watched;
use crate::patience::{BETWEEN_POLLS, lock_after, silent};
use crate::shim::Shim;

/// Which socket a shim has: its inode, and when that was made.
pub(crate) type Socket = (u64, (i64, i64));

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

/// The error for a task that does not exist.
pub fn unknown(id: &str) -> Error {
    Error::new(Kind::NotFound, format!("there is no task named {id}")).hint("`bowline ps` lists all tasks")
}

/// The error for a call that needs a running task while the task is still being launched.
pub fn starting(id: &str) -> Error {
    Error::new(Kind::WrongState, format!("task {id} is still being launched")).hint("try again in a moment")
}

/// The error for a call that needs a running task after the task has ended.
pub fn exited(id: &str) -> Error {
    Error::new(Kind::WrongState, format!("task {id} has exited"))
        .hint(format!("`bowline wait --json {id}` tells how, `bowline rm {id}` removes it"))
}

/// The error for a task whose shim died.
pub fn dead(id: &str) -> Error {
    dead_because(id, "")
}

/// As [`dead`], with what the task's report says of that.
pub fn end_not_known(id: &str, report: &ExitReport) -> Error {
    let why = report.init_lost.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    dead_because(id, &why)
}

fn dead_because(id: &str, why: &str) -> Error {
    let message = format!("the shim of task {id} died before the task; how that ended is not known{why}");
    Error::new(Kind::WrongState, message).hint(format!("`bowline rm {id}` cleans up after it"))
}

/// Finds out who answers for the task in `folder`. A later task of this name is another one, to the shim that is found
/// too if `folder` is pinned: many shims are kept where that would be a descriptor for each.
///
/// # Errors
/// `NotFound` when there is no such task; `Unavailable` when its shim accepts no connections and does not end.
pub async fn find(folder: &Folder, id: &str) -> Result<Presence> {
    let (asked, folder) = (folder, &pinned(folder, id)?);
    loop {
        let socket = socket_of(folder);
        let found = match connect_watched(folder).await {
            Ok((client, connection)) => {
                let (id, folder, connection) = (id.to_owned(), asked.clone(), Some(Arc::new(connection)));
                return Ok(Presence::Live(Shim { client, id, folder, socket, connection }));
            }
            Err(_) if !folder.exists()? => return Err(unknown(id)),
            // The socket's backlog is full: the shim accepts nobody.
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(silent(id)),
            Err(error) => without_shim(folder, error.kind(), socket).await,
        };
        // The folder was removed while we looked.
        match found.map_err(|error| if error.kind() == Kind::NotFound { unknown(id) } else { error })? {
            Some(presence) => return Ok(presence),
            None => continue,
        }
    }
}

/// The folder of the task `id` as it is now: see [`Folder::pinned`].
///
/// # Errors
/// `NotFound` when there is no such task.
pub(crate) fn pinned(folder: &Folder, id: &str) -> Result<Folder> {
    folder.pinned().map_err(|error| if error.kind() == Kind::NotFound { unknown(id) } else { error })
}

/// Finds out who answers after connecting to `socket` failed with `refused`; `None` if there is another socket by now,
/// so that the caller retries.
async fn without_shim(folder: &Folder, refused: ErrorKind, socket: Option<Socket>) -> Result<Option<Presence>> {
    // A socket that exists and refuses belongs to a shim that is leaving or gone.
    if refused == ErrorKind::NotFound {
        if folder.socket().exists() {
            return Ok(None);
        }
        // A member of a sandbox that has ended has no socket either.
        if !has_report(folder)? && matches!(folder.owner()?, Owner::Shim) {
            return Ok(Some(Presence::Starting));
        }
    }
    tokio::select! {
        biased;
        left = gone(folder) => left.map(Some),
        // Somebody else has had a new shim take the task over. That holds the lock for as long as the task lives.
        () = replaced(folder, socket) => Ok(None),
    }
}

/// Returns once the folder has another socket than this one.
pub(crate) async fn replaced(folder: &Folder, socket: Option<Socket>) {
    while socket_of(folder).is_none_or(|now| Some(now) == socket) {
        sleep(BETWEEN_POLLS).await;
    }
}

/// Which socket is in the folder; a new shim has a new one.
pub(crate) fn socket_of(folder: &Folder) -> Option<Socket> {
    let meta = std::fs::metadata(folder.socket()).ok()?;
    Some((meta.ino(), (meta.ctime(), meta.ctime_nsec())))
}

/// Whether a shim holds the folder of a task that has not ended.
pub fn is_held(folder: &Folder) -> Result<bool> {
    Ok(!has_report(folder)? && matches!(folder.owner()?, Owner::Shim))
}

fn has_report(folder: &Folder) -> Result<bool> {
    Ok(report_in(folder)?.is_some())
}

/// The report of a task that has ended. A damaged one does not count: a live shim writes another.
pub(crate) fn report_in(folder: &Folder) -> Result<Option<ExitReport>> {
    match folder.exit() {
        Err(error) if error.kind() == Kind::Damaged => Ok(None),
        exit => exit,
    }
}

/// What a leaving shim has left behind. Waits until it is gone, because its report is complete before it ends.
pub(crate) async fn gone(folder: &Folder) -> Result<Presence> {
    if let Some(report) = folder.exit()? {
        return Ok(Presence::Exited(Box::new(report)));
    }
    drop(lock_after(folder).await?);
    let report = folder.exit()?;
    Ok(report.map_or(Presence::Dead, |report| Presence::Exited(Box::new(report))))
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
        let look = |refused| runtime.block_on(without_shim(&folder, refused, socket_of(&folder))).unwrap();
        assert!(matches!(look(ErrorKind::NotFound), Some(Presence::Starting)));
        let listener = UnixListener::bind(folder.socket()).unwrap();
        // Waiting for the lock would mean waiting for the end of the shim.
        assert!(look(ErrorKind::NotFound).is_none());
        drop((listener, lock));
        assert!(matches!(look(ErrorKind::ConnectionRefused), Some(Presence::Dead)));
    }
}
