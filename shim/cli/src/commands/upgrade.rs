//! `bowline upgrade`: replaces the program of running shims.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bowline_client::spawn::Programs;
use bowline_client::{Presence, dead, exited, find, starting};
use bowline_executor::{Doing, Kind, Result, StateDir};
use bowline_spec::id::TaskId;

use crate::input::named::{TaskRef, resolve_shims};
use crate::input::several::each_of;
use crate::reach::waiting;
use crate::say;

/// Has the installed shim, or the one at `shim`, take over from the shims of the tasks that are named, or with `all`
/// from each; prints the id of each that was upgraded, or with `dry_run` could be.
pub async fn run(state: &StateDir, names: &[TaskRef], all: bool, dry_run: bool, shim: Option<PathBuf>) -> Result<u8> {
    let program = match shim {
        Some(shim) => std::path::absolute(&shim).doing(Kind::Usage, || format!("cannot find {}", shim.display()))?,
        None => Programs::default().shim()?,
    };
    let program: Arc<Path> = program.into();
    let ids = if all { shims(state).await? } else { resolve_shims(state, names) };
    let act = |id: TaskId| {
        let (state, program) = (state.clone(), program.clone());
        async move { upgrade(&state, &id, &program, dry_run).await }
    };
    each_of(ids, act).with_progress(waiting).await
}

/// What has a running shim of its own: a sandbox, or a task that is a member of none.
async fn shims(state: &StateDir) -> Result<Vec<Result<TaskId>>> {
    let mut shims = Vec::new();
    for id in state.ids()?.into_iter().chain(state.sandboxes()?) {
        let folder = state.folder(&id);
        let is_member = folder.record().ok().flatten().is_some_and(|record| record.sandbox.is_some());
        if !is_member && matches!(find(&folder, id.as_str()).await, Ok(Presence::Live(_))) {
            shims.push(Ok(id));
        }
    }
    Ok(shims)
}

async fn upgrade(state: &StateDir, id: &TaskId, program: &Path, dry_run: bool) -> Result<()> {
    let name = id.as_str();
    let shim = match find(&state.folder(id), name).await? {
        Presence::Live(shim) => shim,
        Presence::Exited(_) => return Err(exited(name)),
        Presence::Dead => return Err(dead(name)),
        Presence::Starting => return Err(starting(name)),
    };
    shim.upgrade(program, dry_run)
        .await
        .map_err(|error| error.within(format_args!("the shim of {name} runs on as it was")))?;
    say(name)
}
