//! `rm`: a task that has ended goes, and what a shim that died has left.

use bowline_executor::{
    Doing, Error, ExitReport, Folder, Kind, LeftAlone, Lock, Owner, Result, StateDir, kill_shim, undo, undo_rest,
    until_free,
};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;

use crate::input::named::TaskRef;
use crate::input::several::{each, settle};
use crate::ui::progress;
use crate::{complain, say, starting};
use bowline_client::patience::lock_after;
use bowline_client::spawn;
use bowline_client::{Presence, Shim};

/// `bowline rm`. By force, that there is no such task is what was wanted.
pub async fn run(state: &StateDir, names: &[TaskRef], force: bool) -> Result<u8> {
    let act = |id: TaskId| {
        let state = state.clone();
        async move { remove(&state, &id, force).await }
    };
    let mut work = each(state, names, act);
    if force {
        work.forgive(Kind::NotFound);
    }
    work.with_progress(|left, elapsed| format!("removing {}: {} s", progress::names(left), elapsed.as_secs())).await
}

/// `bowline rm --exited`: prints the ids of the tasks it removed.
pub async fn exited(state: &StateDir) -> Result<u8> {
    let mut code = None;
    for id in state.ids()? {
        let outcome = match bowline_client::find(&state.folder(&id), &id).await {
            Ok(Presence::Exited(_)) => remove_and_say(state, &id).await,
            // Its shim is on its way out.
            Ok(Presence::Live(_)) if has_ended(state, &id) => remove_and_say(state, &id).await,
            Ok(Presence::Live(_) | Presence::Dead | Presence::Starting) => Ok(()),
            // Somebody else was faster.
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        settle(outcome, &mut code);
    }
    Ok(code.unwrap_or(0))
}

fn has_ended(state: &StateDir, id: &TaskId) -> bool {
    state.folder(id).exit().is_ok_and(|report| report.is_some())
}

async fn remove_and_say(state: &StateDir, id: &TaskId) -> Result<()> {
    remove(state, id, false).await?;
    say(id.as_str())
}

async fn remove(state: &StateDir, id: &TaskId, force: bool) -> Result<()> {
    match remove_by_shim(state, id, force).await {
        Err(error) if force && error.kind() == Kind::Unavailable => remove_past_shim(state.folder(id), id).await,
        done => done,
    }
}

/// Removes a task whose shim lives and is not answering, and ends both.
async fn remove_past_shim(folder: Folder, id: &TaskId) -> Result<()> {
    blocking(move || {
        kill_shim(&folder)?;
        drop(until_free(&folder)?);
        clean_up(&folder, true)
    })
    .await?;
    complain(&format!("the shim of task {id} was not answering: it was killed with the task"), None);
    Ok(())
}

async fn remove_by_shim(state: &StateDir, id: &TaskId, force: bool) -> Result<()> {
    let folder = state.folder(id);
    let found = match bowline_client::find(&folder, id).await {
        // No shim answers, and what it has left cannot be read.
        Err(error) if force && error.kind() == Kind::Damaged => Presence::Dead,
        found => found?,
    };
    match found {
        // Its report is there before anybody hears of its end; and a sandbox's
        // shim knows nothing of a member whose starter was killed.
        Presence::Live(shim) if bowline_client::is_held(&folder)? => {
            if let Some(report) = end(&shim, &folder, id, force).await? {
                return blocking(move || folder.remove_unwritten(&report)).await;
            }
        }
        Presence::Live(_) | Presence::Exited(_) => {}
        Presence::Dead => return blocking(move || clean_up(&folder, force)).await,
        Presence::Starting => return Err(starting(id)),
    }
    // Waits for the shim to finish with output and cgroups.
    let lock: Lock = lock_after(&folder).await?;
    blocking(move || match folder.exit() {
        Ok(Some(_)) => remove_ended(&folder, lock),
        Err(error) if !force || error.kind() != Kind::Damaged => Err(error),
        Ok(None) | Err(_) => {
            drop(lock);
            clean_up(&folder, force)
        }
    })
    .await
}

/// Removes a task whose report is written, and what a shim that died after that has left.
pub fn remove_ended(folder: &Folder, lock: Lock) -> Result<()> {
    let alone = undo_rest(folder, spawn::systemd)?;
    folder.remove(lock)?;
    say_left_alone(&alone);
    Ok(())
}

/// Does what waits for a shim or for processes, while other tasks are seen to.
async fn blocking(act: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    tokio::task::spawn_blocking(act).await.doing(Kind::Internal, || "cannot remove the task")?
}

/// Ends a task that runs, if that may be forced. Gives its report where that cannot be written.
async fn end(shim: &Shim, folder: &Folder, id: &TaskId, force: bool) -> Result<Option<ExitReport>> {
    if !force {
        if let Ok(Some(state)) = shim.state().await
            && let Some(report) = bowline_client::unwritten(&state)?
        {
            return Ok(Some(report));
        }
        return Err(Error::new(Kind::WrongState, format!("task {id} has not ended"))
            .hint(format!("stop it with `bowline stop {id}`, or kill and remove it with `bowline rm -f {id}`")));
    }
    match shim.stop(Some(Signal::KILL.number()), Some(0)).await {
        // The shim is there before it is asked to launch anything: by who has
        // the folder, unless that one has been killed meanwhile.
        Err(error) if error.kind() == Kind::NotFound && folder.exit()?.is_none() => {
            if bowline_client::is_held(folder)? { Err(starting(id)) } else { Ok(None) }
        }
        Err(error) if error.kind() == Kind::Unavailable => Err(error),
        // It may end before it hears us.
        Ok(()) | Err(_) => {
            shim.wait_answering().await.map(|report| Some(report).filter(|report| report.unwritten.is_some()))
        }
    }
}

/// Says what a record names that is not the task's.
pub fn say_left_alone(alone: &LeftAlone) {
    for left in alone {
        complain(left, Some("look into it yourself: the task's record was edited, or is older than what is there"));
    }
}

/// Removes what a shim that died has left; where that is damaged, by force alone.
fn clean_up(folder: &Folder, force: bool) -> Result<()> {
    let Owner::Nobody(lock) = folder.owner()? else {
        return Err(Error::new(Kind::WrongState, format!("{} is in use", folder.path().display()))
            .hint("somebody else is launching or removing this task; try again in a moment"));
    };
    if !force {
        folder.record()?;
        folder.exit()?;
    }
    let alone = undo(folder, &spawn::systemd()?)?;
    folder.remove(lock)?;
    say_left_alone(&alone);
    Ok(())
}
