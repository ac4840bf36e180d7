//! `bowline adopt`: starts new shims for tasks and sandboxes whose shims died.

use bowline_client::spawn::Programs;
use bowline_client::{Presence, Shim, dead, find, find_or_adopt, is_overdue, look, runs, sandbox, why_not};
use bowline_model::folder::Record;
use bowline_model::folder::StateDir;
use bowline_model::{Error, Kind, Result};
use bowline_spec::id::TaskId;

use crate::commands::rm;
use crate::input::each_task::{each_of, settle};
use crate::input::task_names::{TaskRef, resolve_shims};
use crate::reach::waiting;
use crate::ui::print::say;

/// Takes over the tasks that are named, or with `all` each that can be; prints the ids of those with a new shim. With `all`,
/// removes those that a shim died before it could.
pub async fn run(state: &StateDir, names: &[TaskRef], all: bool) -> Result<u8> {
    let ids = if all { orphans(state).await? } else { resolve_shims(state, names) };
    let act = |id: TaskId| {
        let (state, seen) = (state.clone(), seen(state, &id));
        async move {
            let adopted = adopt(&state, &id).await;
            if all && adopted.is_err() && is_over(&state, &id, seen).await { Ok(()) } else { adopted }
        }
    };
    let adopted = each_of(ids, act).with_progress(waiting).await?;
    let mut code = Some(adopted).filter(|code| *code != 0);
    if all {
        for id in state.ids()?.into_iter().filter(|id| is_overdue(&state.folder(id))) {
            settle(rm::remove_overdue(state, &id).await.map(drop), &mut code);
        }
    }
    Ok(code.unwrap_or(0))
}

/// Which folder has this name now, for [`is_over`]: not its descriptor, as many are looked at.
pub fn seen(state: &StateDir, id: &TaskId) -> Option<u64> {
    state.folder(id).pinned().ok()?.inode()
}

/// Whether what was `seen` under this name has ended or is gone by now: a command about all has nothing to do with it.
pub async fn is_over(state: &StateDir, id: &TaskId, seen_before: Option<u64>) -> bool {
    if seen(state, id) != seen_before {
        return true;
    }
    match look(&state.folder(id), id).await {
        Ok(Presence::Exited(_)) => true,
        // It is being made, by what is installed, or being removed.
        Ok(Presence::Live(shim)) if shim.folder().is_sandbox() => {
            matches!(shim.sandbox_state().await, Err(error) if error.kind() == Kind::NotFound)
        }
        // Its shim is about to exit, or the task is being launched.
        Ok(Presence::Live(shim)) => {
            matches!(shim.folder().exit(), Ok(Some(_))) || matches!(shim.state().await, Ok(None))
        }
        // Of a sandbox that was taken down, or a launch that was cut off, the folder alone is left to remove.
        Ok(Presence::Dead) => {
            let folder = state.folder(id);
            folder.never_ran() || matches!(folder.sandbox(), Ok(Some(record)) if record.taken_down)
        }
        Ok(Presence::Starting) => false,
        Err(error) => error.kind() == Kind::NotFound,
    }
}

/// The tasks and the sandboxes whose shims died and that a new one can take over or whose records are damaged, and the
/// errors of those that cannot be looked at.
async fn orphans(state: &StateDir) -> Result<Vec<Result<TaskId>>> {
    let mut orphans = Vec::new();
    for id in with_shims(state)? {
        let is_one = match &id {
            Err(_) => true,
            Ok(id) => {
                let folder = state.folder(id);
                let is_wanted = runs(&folder) || !matches!(why_not(&folder), Ok(Some(_)));
                is_wanted
                    && match look(&folder, id).await {
                        Ok(presence) => matches!(presence, Presence::Dead),
                        // Somebody else has its lock: who adopts it waits for that, beside the others.
                        Err(error) => error.kind() != Kind::NotFound,
                    }
            }
        };
        if is_one {
            orphans.push(id);
        }
    }
    Ok(orphans)
}

/// What has, or had, a shim of its own: sandboxes, and tasks that are members of none. An error stands for each that
/// cannot be looked at, as by a user without the right to.
pub fn with_shims(state: &StateDir) -> Result<Vec<Result<TaskId>>> {
    let all = state.ids()?.into_iter().chain(state.sandboxes()?);
    let found = all.filter_map(|id| match state.folder(&id).record() {
        // A member has its sandbox's.
        Ok(Some(Record { sandbox: Some(_), .. })) => None,
        Err(error) if error.kind() != Kind::Damaged => Some(Err(error)),
        Ok(_) | Err(_) => Some(Ok(id)),
    });
    Ok(found.collect())
}

/// Has a new shim take over the task, if its shim died. A task that has a shim or has ended is left as it is.
async fn adopt(state: &StateDir, id: &TaskId) -> Result<()> {
    let folder = state.folder(id);
    match find(&folder, id).await? {
        Presence::Dead => {}
        // One that has just been killed may still accept connections.
        Presence::Live(shim) if shim.version().await.is_err() => {}
        Presence::Live(shim) => return knows(&shim, state, id).await,
        Presence::Exited(_) | Presence::Starting => return Ok(()),
    }
    match find_or_adopt(&folder, id, &Programs::default()).await? {
        Presence::Dead => Err(refused(state, id)?),
        Presence::Live(shim) => knows(&shim, state, id).await.and_then(|()| say(id.as_str())),
        Presence::Exited(_) | Presence::Starting => say(id.as_str()),
    }
}

/// Checks that a sandbox's shim has its member, which it may have been unable to take over.
async fn knows(shim: &Shim, state: &StateDir, id: &TaskId) -> Result<()> {
    let is_member = matches!(state.folder(id).record(), Ok(Some(Record { sandbox: Some(_), .. })));
    match is_member && runs(&state.folder(id)) && !matches!(shim.state().await, Ok(Some(_))) {
        true => Err(refused(state, id)?),
        false => Ok(()),
    }
}

/// The error for a task or a sandbox whose shim died and that cannot be taken over.
///
/// # Errors
/// `Damaged` for records that cannot be read.
pub fn refused(state: &StateDir, id: &TaskId) -> Result<Error> {
    let folder = state.folder(id);
    let dead = if folder.is_sandbox() { sandbox::dead(id) } else { dead(&folder, id) };
    Ok(match why_not(&folder)? {
        Some(why) if !runs(&folder) => dead.within(format_args!("cannot take over {id}: {why}")),
        _ => dead,
    })
}
