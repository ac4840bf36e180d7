//! `rm`: removes tasks that have ended, and what a dead shim has left.

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

/// Runs `bowline rm`. With `force`, a task that does not exist is no error.
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

/// Runs `bowline rm --exited`; prints the ids of the tasks it removed.
pub async fn exited(state: &StateDir) -> Result<u8> {
    let mut code = None;
    for id in state.ids()? {
        let outcome = match bowline_client::find(&state.folder(&id), &id).await {
            Ok(Presence::Exited(_)) => remove_and_say(state, &id).await,
            // The task has ended and its shim is about to exit.
            Ok(Presence::Live(_)) if has_ended(state, &id) => remove_and_say(state, &id).await,
            Ok(Presence::Live(_) | Presence::Dead | Presence::Starting) => Ok(()),
            // Somebody else removed it first.
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

/// Removes a task whose shim lives but does not answer: kills both.
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
        // No shim answers, and its records cannot be read.
        Err(error) if force && error.kind() == Kind::Damaged => Presence::Dead,
        found => found?,
    };
    match found {
        // A task whose folder is not held has ended, as its report is written before anybody hears of its end. Or it is
        // a member whose starter was killed: the sandbox's shim knows nothing of it.
        Presence::Live(shim) if bowline_client::is_held(&folder)? => {
            if let Some(report) = end(&shim, &folder, id, force).await? {
                return blocking(move || folder.remove_unwritten(&report)).await;
            }
        }
        Presence::Live(_) | Presence::Exited(_) => {}
        Presence::Dead => return blocking(move || clean_up(&folder, force)).await,
        Presence::Starting => return Err(starting(id)),
    }
    // Wait until the shim is done with output and cgroups.
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

/// Removes a task whose report is written, and what its shim left if that died afterwards.
pub fn remove_ended(folder: &Folder, lock: Lock) -> Result<()> {
    let alone = undo_rest(folder, spawn::systemd)?;
    folder.remove(lock)?;
    say_left_alone(&alone);
    Ok(())
}

/// Runs blocking work on a thread, so that other tasks are handled meanwhile.
async fn blocking(act: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    tokio::task::spawn_blocking(act).await.doing(Kind::Internal, || "cannot remove the task")?
}

/// Ends a running task if `force` allows it. Returns its report if the shim cannot write that.
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
        // The shim runs before it is asked to launch the task. While somebody holds the folder, that request is still
        // to come; otherwise the process that would have sent it was killed.
        Err(error) if error.kind() == Kind::NotFound && folder.exit()?.is_none() => {
            if bowline_client::is_held(folder)? { Err(starting(id)) } else { Ok(None) }
        }
        Err(error) if error.kind() == Kind::Unavailable => Err(error),
        // The task may end before the shim gets the request.
        Ok(()) | Err(_) => {
            shim.wait_answering().await.map(|report| Some(report).filter(|report| report.unwritten.is_some()))
        }
    }
}

/// Reports what a record names that is not known to be the task's.
pub fn say_left_alone(alone: &LeftAlone) {
    for left in alone {
        complain(left, Some("look into it yourself: the task's record was edited, or is older than what is there"));
    }
}

/// Removes what a dead shim has left. If its records are damaged, `force` is needed.
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
