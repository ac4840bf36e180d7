//! `bowline upgrade`: replaces the program of running shims.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bowline_client::spawn::Programs;
use bowline_client::{Presence, dead, exited, find, starting, upgrade_at};
use bowline_executor::{Doing, Error, Kind, Result, StateDir};
use bowline_metrics::bundles::{Bundle, Containerd, Place};
use bowline_spec::id::TaskId;

use crate::input::each_task::{each_of, settle};
use crate::input::task_names::{TaskRef, resolve_shims};
use crate::reach::waiting;
use crate::ui::print::say;

/// Has the installed shim, or the one at `shim`, take over from the shims of the tasks that are named, or with `all`
/// from each; prints the id of each that was upgraded, or with `dry_run` could be.
pub async fn run(state: &StateDir, names: &[TaskRef], all: bool, dry_run: bool, shim: Option<PathBuf>) -> Result<u8> {
    let program: Arc<Path> = program(shim, Programs::shim)?.into();
    let ids = if all { shims(state).await? } else { resolve_shims(state, names) };
    let act = |id: TaskId| {
        let (state, program) = (state.clone(), program.clone());
        async move { upgrade(&state, &id, &program, dry_run).await }
    };
    each_of(ids, act).with_progress(waiting).await
}

/// Like [`run`], for the shims of the containerd with this state folder: those of the containers or pods that are
/// named, or each. One after the other, so that the containers of a node are never without an answer all at once.
pub async fn run_containerd(
    folder: Option<PathBuf>,
    names: &[TaskRef],
    dry_run: bool,
    shim: Option<PathBuf>,
) -> Result<u8> {
    let program = program(shim, Programs::containerd_shim)?;
    let mut unread = 0;
    let shims = Containerd::at(folder)?.shims(&mut unread);
    let mut code = None;
    let mut missing: BTreeSet<&str> = names.iter().map(|name| name.as_typed().as_str()).collect();
    for (place, bundles) in &shims {
        let is_named = |id: &str| names.iter().any(|name| name.as_typed().as_str() == id);
        let ids = bundles.iter().flat_map(|bundle| [Some(&bundle.id), bundle.sandbox.as_ref()]).flatten();
        let named: Vec<&str> = ids.map(String::as_str).filter(|id| is_named(id)).collect();
        if named.is_empty() && !names.is_empty() {
            continue;
        }
        missing.retain(|id| !named.contains(id));
        settle(upgrade_containerds(place, bundles, &program, dry_run).await, &mut code);
    }
    for id in missing {
        let unknown = Error::new(Kind::NotFound, format!("no shim of bowline's has a container or pod named {id}"));
        settle(Err(unknown.hint("`ctr -n NAMESPACE containers ls` lists those of a namespace")), &mut code);
    }
    if unread > 0 {
        let message = format!("{unread} of containerd's folders could not be read: their shims are as they were");
        settle(Err(Error::new(Kind::Internal, message)), &mut code);
    }
    Ok(code.unwrap_or(0))
}

async fn upgrade_containerds(place: &Place, bundles: &[Bundle], program: &Path, dry_run: bool) -> Result<()> {
    let (namespace, socket) = place;
    let pod = bundles.iter().find_map(|bundle| bundle.sandbox.clone());
    let id = pod.or_else(|| bundles.first().map(|bundle| bundle.id.clone())).unwrap_or_default();
    match upgrade_at(socket, program, dry_run).await {
        Ok(_) => say(&format!("{namespace}/{id}")),
        // It ended while we looked.
        Err(error) if error.kind() == Kind::NotFound => Ok(()),
        // It may be upgraded once it goes on.
        Err(error) if error.kind() == Kind::Unavailable => Err(error.within(format_args!("{namespace}/{id}"))),
        Err(error) => Err(error.within(format_args!("the shim of {namespace}/{id} runs on as it was"))),
    }
}

/// The new program: the one that is named, or the one that is installed.
fn program(named: Option<PathBuf>, installed: impl FnOnce(&Programs) -> Result<PathBuf>) -> Result<PathBuf> {
    match named {
        Some(shim) => std::path::absolute(&shim).doing(Kind::Usage, || format!("cannot find {}", shim.display())),
        None => installed(&Programs::default()),
    }
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
    match shim.upgrade(program, dry_run).await {
        Ok(_) => say(name),
        // It may be upgraded once it goes on.
        Err(error) if error.kind() == Kind::Unavailable => Err(error),
        Err(error) => Err(error.within(format_args!("the shim of {name} runs on as it was"))),
    }
}
