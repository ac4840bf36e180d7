//! Commands that change a task: stop, kill, pause, resume, rm; and wait.

use bowline_executor::{Error, ExitReport, Folder, Kind, Owner, Result, StateDir, died_with_shim, undo};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use bowline_spec::units::Duration;

use super::{dead, exited, say, say_json, starting};
use crate::client::{self, Presence, Shim};

/// `bowline stop`: returns when the task has ended.
pub async fn stop(state: &StateDir, id: &TaskId, signal: Option<Signal>, grace: Option<Duration>) -> Result<u8> {
    let shim = match client::find(&state.folder(id), id).await? {
        Presence::Live(shim) => shim,
        // What was wanted.
        Presence::Exited(_) => return Ok(0),
        Presence::Dead => return Err(dead(id)),
        Presence::Starting => return Err(starting(id)),
    };
    let grace = grace.map(|grace| u64::try_from(grace.as_std().as_millis()).unwrap_or(u64::MAX));
    let asked = shim.stop(signal.map(Signal::number), grace).await;
    // It may have ended by itself, and its shim with it, before it was asked.
    let report = shim.wait().await?;
    if report.shim_died {
        return Err(dead(id));
    }
    match asked {
        Err(error) if error.kind() == Kind::Usage => Err(error),
        _ => Ok(0),
    }
}

/// `bowline kill`.
pub async fn kill(state: &StateDir, id: &TaskId, signal: Signal) -> Result<u8> {
    live(state, id).await?.signal(signal.number()).await.map(|()| 0)
}

/// `bowline pause`.
pub async fn pause(state: &StateDir, id: &TaskId) -> Result<u8> {
    live(state, id).await?.pause().await.map(|()| 0)
}

/// `bowline resume`.
pub async fn resume(state: &StateDir, id: &TaskId) -> Result<u8> {
    live(state, id).await?.resume().await.map(|()| 0)
}

/// The shim of a task that runs.
pub async fn live(state: &StateDir, id: &TaskId) -> Result<Shim> {
    match client::find(&state.folder(id), id).await? {
        Presence::Live(shim) => Ok(shim),
        Presence::Exited(_) => Err(exited(id)),
        Presence::Dead => Err(dead(id)),
        Presence::Starting => Err(starting(id)),
    }
}

/// `bowline wait`.
pub async fn wait(state: &StateDir, id: &TaskId, json: bool) -> Result<u8> {
    let folder = state.folder(id);
    let report = match client::find(&folder, id).await? {
        Presence::Live(shim) => shim.wait().await?,
        Presence::Exited(report) => *report,
        Presence::Dead => died_with_shim(folder.record()?.as_ref()),
        Presence::Starting => return Err(starting(id)),
    };
    print(id, &report, json).map(|()| 0)
}

fn print(id: &TaskId, report: &ExitReport, json: bool) -> Result<()> {
    if json {
        return say_json(report);
    }
    match report.exit_code {
        Some(code) => say(&code.to_string()),
        None => Err(dead(id)),
    }
}

/// `bowline rm`.
pub async fn rm(state: &StateDir, id: &TaskId, force: bool) -> Result<u8> {
    let folder = state.folder(id);
    match client::find(&folder, id).await? {
        // Its report is there before anybody hears of its end.
        Presence::Live(shim) if folder.exit()?.is_none() => end(&shim, id, force).await?,
        Presence::Live(_) | Presence::Exited(_) => {}
        Presence::Dead => return clean_up(&folder).map(|()| 0),
        Presence::Starting => return Err(starting(id)),
    }
    // Waits for the shim to finish with output and cgroups.
    let lock = folder.lock()?;
    if folder.exit()?.is_none() {
        drop(lock);
        return clean_up(&folder).map(|()| 0);
    }
    folder.remove(lock).map(|()| 0)
}

/// Ends a task that runs, if that may be forced.
async fn end(shim: &Shim, id: &TaskId, force: bool) -> Result<()> {
    if !force {
        return Err(Error::new(Kind::WrongState, format!("task {id} has not ended"))
            .hint(format!("stop it with `bowline stop {id}`, or kill and remove it with `bowline rm -f {id}`")));
    }
    // It may end before it hears us.
    let _ = shim.stop(Some(Signal::KILL.number()), Some(0)).await;
    shim.wait().await.map(drop)
}

/// Removes what a shim that died has left.
fn clean_up(folder: &Folder) -> Result<()> {
    let Owner::Nobody(lock) = folder.owner()? else {
        return Err(Error::new(Kind::WrongState, format!("{} is in use", folder.path().display())));
    };
    undo(folder)?;
    folder.remove(lock)
}
