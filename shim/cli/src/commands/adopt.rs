//! `bowline adopt`: starts new shims for tasks whose shims died.

use bowline_client::spawn::Programs;
use bowline_client::{Presence, dead, find, find_or_adopt};
use bowline_executor::{Result, StateDir};
use bowline_spec::id::TaskId;

use crate::input::named::TaskRef;
use crate::input::several::each;
use crate::reach::waiting;
use crate::say;

/// Takes over the tasks that are named, or with `all` each that can be; prints the ids of those with a new shim.
pub async fn run(state: &StateDir, names: &[TaskRef], all: bool) -> Result<u8> {
    let dead = if all { orphans(state).await? } else { Vec::new() };
    let names = if all { &dead } else { names };
    let act = |id: TaskId| {
        let state = state.clone();
        async move { adopt(&state, &id).await }
    };
    each(state, names, act).with_progress(waiting).await
}

/// The tasks whose shims died and that a new one can take over.
async fn orphans(state: &StateDir) -> Result<Vec<TaskRef>> {
    let mut orphans = Vec::new();
    for id in state.ids()? {
        let folder = state.folder(&id);
        if folder.is_sandbox() || !matches!(find(&folder, &id).await, Ok(Presence::Dead)) {
            continue;
        }
        if folder.record().ok().flatten().is_some_and(|record| record.adoptable().is_ok()) {
            orphans.push(TaskRef::from(id));
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
        let record = folder.record()?;
        let why = record.as_ref().map_or(Err("it has no record"), |record| record.adoptable());
        return Err(match why {
            Err(why) => dead(id).within(format!("cannot take over task {id}: {why}")),
            Ok(()) => dead(id),
        });
    }
    say(id.as_str())
}
