//! `bowline stop`: stops tasks, with a grace period.

use std::time::Duration as Elapsed;

use bowline_client::Presence;
use bowline_executor::{Folder, Kind, Result, StateDir};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use bowline_spec::values::Duration;

use crate::input::named::TaskRef;
use crate::input::several::each;
use crate::reach::past_shim;
use crate::ui::progress;
use crate::{dead, starting};

/// Stops tasks and returns when they have ended.
pub async fn run(state: &StateDir, names: &[TaskRef], signal: Option<Signal>, grace: Option<Duration>) -> Result<u8> {
    let act = |id: TaskId| {
        let folder = state.folder(&id);
        async move { stop_one(&folder, &id, signal, grace).await }
    };
    let doing = |left: &[&TaskId], elapsed: Elapsed| {
        let mut line = format!("stopping {}: {} s", progress::names(left), elapsed.as_secs());
        // Read the description's grace only here: most tasks end at once.
        if let [id] = left
            && let Some(grace) = grace.map(Duration::as_std).or_else(|| grace_of(&state.folder(id)))
        {
            line += &format!(" of {} s grace", grace.as_secs());
        }
        line
    };
    each(state, names, act).with_progress(doing).await
}

/// The grace period from the task's description.
fn grace_of(folder: &Folder) -> Option<Elapsed> {
    Some(folder.record().ok()??.task?.stop.grace())
}

async fn stop_one(folder: &Folder, id: &TaskId, signal: Option<Signal>, grace: Option<Duration>) -> Result<()> {
    match stop_by_shim(folder, id, signal, grace).await {
        Err(error) if error.kind() == Kind::Unavailable => {
            past_shim(folder, id, move |task| task.stop(signal, grace.map(Duration::as_std))).await
        }
        done => done,
    }
}

async fn stop_by_shim(folder: &Folder, id: &TaskId, signal: Option<Signal>, grace: Option<Duration>) -> Result<()> {
    let shim = match bowline_client::find(folder, id).await? {
        Presence::Live(shim) => shim,
        // The task has already ended.
        Presence::Exited(_) => return Ok(()),
        Presence::Dead => return Err(dead(id)),
        Presence::Starting => return Err(starting(id)),
    };
    let grace = grace.map(|grace| u64::try_from(grace.as_std().as_millis()).unwrap_or(u64::MAX));
    let asked = shim.stop(signal.map(Signal::number), grace).await;
    if let Err(error) = &asked
        && error.kind() == Kind::Unavailable
    {
        return asked;
    }
    // The task may have ended by itself, and its shim with it, before the request.
    let report = shim.wait_answering().await?;
    if report.shim_died {
        return Err(dead(id));
    }
    match asked {
        Err(error) if error.kind() == Kind::Usage => Err(error),
        _ => Ok(()),
    }
}
