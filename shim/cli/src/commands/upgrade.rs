//! `bowline upgrade`: replaces the program of running shims.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bowline_client::spawn::Programs;
use bowline_client::{Presence, Shim, exited, find, find_or_adopt, runs, sandbox, starting, upgrade_at, why_not};
use bowline_metrics::bundles::{Bundle, Containerd, Place};
use bowline_model::folder::StateDir;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::id::TaskId;

use crate::commands::adopt;
use crate::exit_code::PARTLY;
use crate::input::each_task::{each_of, settle};
use crate::input::task_names::{TaskRef, resolve_shims};
use crate::reach::waiting;
use crate::ui::print::{complain, say};

/// The program that takes over, and whether it does or is only asked.
#[derive(Clone)]
struct Wanted {
    program: Arc<Path>,
    /// Whether it is the installed one, which a new shim has anyway.
    installed: bool,
    dry_run: bool,
}

/// Has the installed shim, or the one at `shim`, take over from the shims of the tasks that are named, or with `all`
/// from each; prints the id of each that was upgraded, or with `dry_run` could be. A task whose shim died gets a new one.
pub async fn run(state: &StateDir, names: &[TaskRef], all: bool, dry_run: bool, shim: Option<PathBuf>) -> Result<u8> {
    let installed = shim.is_none();
    let wanted = Wanted { program: program(shim, Programs::shim)?.into(), installed, dry_run };
    let ids = if all { shims(state).await? } else { resolve_shims(state, names) };
    let act = |id: TaskId| {
        let (state, wanted, seen) = (state.clone(), wanted.clone(), adopt::seen(state, &id));
        async move {
            let upgraded = match upgrade(&state, &id, &wanted).await {
                // It may have begun, or come to its end, meanwhile.
                Err(error) if all && error.kind() == Kind::WrongState => {
                    if adopt::is_over(&state, &id, seen).await {
                        return Ok(());
                    }
                    upgrade(&state, &id, &wanted).await
                }
                upgraded => upgraded,
            };
            match upgraded {
                // Its shim leaves, or it was removed.
                Err(error) if all && error.kind() == Kind::NotFound => Ok(()),
                Err(error) => {
                    if all && adopt::is_over(&state, &id, seen).await {
                        Ok(())
                    } else {
                        Err(error)
                    }
                }
                Ok(()) => Ok(()),
            }
        }
    };
    each_of(ids, act).failing_with(all.then_some(PARTLY)).with_progress(waiting).await
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
    Ok(code.map_or(0, |code| if names.is_empty() { PARTLY } else { code }))
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

/// What has a running shim of its own, or could be given one: sandboxes, and tasks that are members of none. An error
/// stands for each that cannot be looked at.
async fn shims(state: &StateDir) -> Result<Vec<Result<TaskId>>> {
    let mut shims = Vec::new();
    for id in adopt::with_shims(state)? {
        let id = match id {
            Ok(id) => id,
            Err(error) => {
                shims.push(Err(error));
                continue;
            }
        };
        let folder = state.folder(&id);
        match find(&folder, &id).await {
            Ok(Presence::Live(_)) => shims.push(Ok(id)),
            // Damaged records are named as it is taken over.
            Ok(Presence::Dead) if runs(&folder) || !matches!(why_not(&folder), Ok(Some(_))) => shims.push(Ok(id)),
            Ok(Presence::Dead | Presence::Exited(_) | Presence::Starting) => {}
            // It was removed meanwhile, or can only be removed.
            Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Damaged) => {}
            Err(error) => shims.push(Err(error)),
        }
    }
    Ok(shims)
}

async fn upgrade(state: &StateDir, id: &TaskId, wanted: &Wanted) -> Result<()> {
    match upgrade_once(state, id, wanted).await? {
        Ok(()) => Ok(()),
        // Like one that had died before.
        Err(_) => upgrade_once(state, id, wanted).await?,
    }
}

/// The inner error is that of a shim that died meanwhile.
async fn upgrade_once(state: &StateDir, id: &TaskId, wanted: &Wanted) -> Result<Result<()>> {
    let folder = state.folder(id);
    match find(&folder, id).await? {
        Presence::Live(shim) => replace(id, &shim, wanted).await,
        Presence::Dead => give_shim(state, id, wanted).await,
        Presence::Exited(_) => Err(exited(id)),
        Presence::Starting if folder.is_sandbox() => Err(sandbox::starting(id)),
        Presence::Starting => Err(starting(id)),
    }
}

/// Replaces the program of a running shim; the inner error is that of one that died meanwhile.
async fn replace(id: &TaskId, shim: &Shim, wanted: &Wanted) -> Result<Result<()>> {
    match shim.upgrade(&wanted.program, wanted.dry_run).await {
        Ok(Ok(_)) => say(id).map(Ok),
        Ok(Err(died)) => Ok(Err(died)),
        // It may be upgraded once it goes on.
        Err(error) if error.kind() == Kind::Unavailable => Err(error),
        Err(error) => Err(error.within(format_args!("the shim of {id} runs on as it was"))),
    }
}

/// Starts a new shim for a task or a sandbox whose shim died, of the installed program first; the inner error is that of
/// a new one that died too.
async fn give_shim(state: &StateDir, id: &TaskId, wanted: &Wanted) -> Result<Result<()>> {
    let folder = state.folder(id);
    let what = if folder.is_sandbox() { "sandbox" } else { "task" };
    if wanted.dry_run {
        if why_not(&folder)?.is_some() {
            return Err(adopt::refused(state, id)?);
        }
        complain(&format!("the shim of {what} {id} died: a new one would take the {what} over"), None);
        return say(id).map(Ok);
    }
    match find_or_adopt(&folder, id, &Programs::default()).await? {
        Presence::Live(shim) => {
            complain(&format!("the shim of {what} {id} had died: a new one has taken the {what} over"), None);
            if wanted.installed { say(id).map(Ok) } else { replace(id, &shim, wanted).await }
        }
        Presence::Dead => Err(adopt::refused(state, id)?),
        Presence::Exited(_) => Err(exited(id)),
        Presence::Starting => Err(starting(id)),
    }
}
