//! `bowline adopt`: starts new shims for tasks and sandboxes whose shims died.

use bowline_client::spawn::Programs;
use bowline_client::{Presence, dead, find, find_or_adopt, sandbox};
use bowline_executor::{Folder, Record, Result, StateDir};
use bowline_spec::id::TaskId;

use crate::input::each_task::each_of;
use crate::input::task_names::{TaskRef, resolve_shims};
use crate::reach::waiting;
use crate::ui::print::say;

/// Takes over the tasks that are named, or with `all` each that can be; prints the ids of those with a new shim.
pub async fn run(state: &StateDir, names: &[TaskRef], all: bool) -> Result<u8> {
    let ids = if all { orphans(state).await?.into_iter().map(Ok).collect() } else { resolve_shims(state, names) };
    let act = |id: TaskId| {
        let state = state.clone();
        async move { adopt(&state, &id).await }
    };
    each_of(ids, act).with_progress(waiting).await
}

/// The tasks and the sandboxes whose shims died and that a new one can take over.
async fn orphans(state: &StateDir) -> Result<Vec<TaskId>> {
    let mut orphans = Vec::new();
    for id in state.ids()?.into_iter().chain(state.sandboxes()?) {
        let folder = state.folder(&id);
        // A member is taken over with its sandbox.
        let adoptable = match (folder.record().ok().flatten(), folder.sandbox().ok().flatten()) {
            (Some(task), _) => task.sandbox.is_none() && task.adoptable().is_ok(),
            (None, Some(sandbox)) => sandbox.adoptable().is_ok(),
            (None, None) => false,
        };
        if adoptable && matches!(find(&folder, &id).await, Ok(Presence::Dead)) {
            orphans.push(id);
        }
    }
    Ok(orphans)
}

/// Has a new shim take over the task, if its shim died. A task that has a shim or has ended is left as it is.
async fn adopt(state: &StateDir, id: &TaskId) -> Result<()> {
    let folder = state.folder(id);
    match find(&folder, id).await? {
        Presence::Dead => {}
        // One that has just been killed may still accept connections.
        Presence::Live(shim) if shim.version().await.is_err() => {}
        Presence::Live(_) | Presence::Exited(_) | Presence::Starting => return Ok(()),
    }
    let found = find_or_adopt(&folder, id, &Programs::default()).await?;
    if matches!(found, Presence::Dead) {
        let why = why_not(state, &folder)?;
        let dead = if folder.is_sandbox() { sandbox::dead(id) } else { dead(id) };
        return Err(why.map_or(dead.clone(), |why| dead.within(format!("cannot take over {id}: {why}"))));
    }
    say(id.as_str())
}

/// Why what is in `folder` cannot be taken over, as far as its records say.
fn why_not(state: &StateDir, folder: &Folder) -> Result<Option<&'static str>> {
    let task = folder.record()?;
    if let Some(why) = task.as_ref().and_then(|task| task.adoptable().err()) {
        return Ok(Some(why));
    }
    let (folder, none) = match task {
        None => (folder.clone(), "it has no record"),
        Some(Record { sandbox: Some(sandbox), .. }) => (state.folder(&sandbox), "its sandbox is gone"),
        Some(Record { sandbox: None, .. }) => return Ok(None),
    };
    Ok(folder.sandbox()?.map_or(Some(none), |sandbox| sandbox.adoptable().err()))
}
