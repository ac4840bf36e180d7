//! `rm`: removes tasks that have ended, and what a dead shim has left.

use bowline_client::Presence;
use bowline_client::spawn::Programs;
use bowline_executor::LeftAlone;
use bowline_model::folder::{Folder, StateDir};
use bowline_model::{Kind, Result};
use bowline_spec::id::TaskId;

use crate::input::chosen::{Chosen, labelled};
use crate::input::each_task::{each_found, settle};
use crate::input::filter::Labelled;
use crate::ui::print::{complain, say};
use crate::ui::progress;

/// Runs `bowline rm`. With `force`, a task that does not exist is no error.
pub async fn run(state: &StateDir, tasks: &Chosen, force: bool) -> Result<u8> {
    let act = |id: TaskId, folder: Folder| async move { remove_this(folder, &id, force).await.map(drop) };
    let mut work = each_found(tasks.find(state)?, act);
    if force {
        work.forgive(Kind::NotFound);
    }
    work.with_progress(|left, elapsed| format!("removing {}: {} s", progress::names(left), elapsed.as_secs())).await
}

/// Runs `bowline rm --exited`, for tasks with all of these labels; prints the ids of the tasks it removed.
pub async fn exited(state: &StateDir, labels: &[Labelled]) -> Result<u8> {
    let mut code = None;
    let all = match labels {
        [] => state.ids()?.into_iter().map(|id| Ok((id.clone(), state.folder(&id)))).collect(),
        labels => labelled(state, labels)?,
    };
    for found in all {
        let (id, folder) = match found {
            Ok(found) => found,
            Err(error) => {
                settle(Err(error), &mut code);
                continue;
            }
        };
        // As it is now: a later task of this name has not ended.
        let outcome = match folder.pinned() {
            Ok(folder) => remove_exited(folder, &id).await,
            Err(error) => Err(error),
        };
        match outcome {
            // Somebody else removed it first.
            Err(error) if error.kind() == Kind::NotFound => {}
            // It is not known to have ended.
            Err(error) if error.kind() == Kind::Damaged => complain(&error.to_string(), error.hint_text()),
            outcome => settle(outcome, &mut code),
        }
    }
    Ok(code.unwrap_or(0))
}

async fn remove_exited(folder: Folder, id: &TaskId) -> Result<()> {
    let has_ended = match bowline_client::find(&folder, id).await? {
        Presence::Exited(_) => true,
        // Its shim may be about to exit.
        Presence::Live(shim) if shim.never_begun() => true,
        Presence::Live(_) => folder.exit().is_ok_and(|report| report.is_some()),
        // Its shim died: so did the task, or it runs on.
        Presence::Dead => !bowline_client::runs(&folder),
        Presence::Starting => false,
    };
    if has_ended && remove_this(folder, id, false).await? { say(id.as_str()) } else { Ok(()) }
}

/// Removes the task that another one of its name replaces, if there is one.
pub async fn replaced(state: &StateDir, id: &TaskId) -> Result<()> {
    match remove(state, id, true).await {
        Err(error) if error.kind() == Kind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes a task that its shim should have removed, unless somebody else does. Returns whether this removed it.
pub async fn remove_overdue(state: &StateDir, id: &TaskId) -> Result<bool> {
    match remove_this(state.folder(id), id, false).await {
        Err(error) if error.kind() == Kind::NotFound => Ok(false),
        removed => removed,
    }
}

async fn remove(state: &StateDir, id: &TaskId, force: bool) -> Result<()> {
    remove_this(state.folder(id), id, force).await.map(drop)
}

/// Removes the task in this folder. Returns whether it was there, and nobody else was quicker.
async fn remove_this(folder: Folder, id: &TaskId, force: bool) -> Result<bool> {
    let removal = bowline_client::remove(folder, id, force, &Programs::default()).await?;
    // Aside, so that other tasks are handled meanwhile.
    let removed = removal.carry_out_aside().await?;
    say_left_alone(&removed.left_alone);
    if removed.past_shim {
        complain(&format!("the shim of task {id} was not answering: it was killed with the task"), None);
    }
    Ok(!removed.was_gone)
}

/// Reports what a record names that is not known to be the task's, and what its hooks may have left.
pub fn say_left_alone(alone: &LeftAlone) {
    for left in alone {
        complain(left, None);
    }
}
