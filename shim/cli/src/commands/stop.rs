//! `bowline stop`: stops tasks, with a grace period.

use std::time::Duration as Elapsed;

use bowline_client::spawn::Programs;
use bowline_model::folder::{Folder, StateDir};
use bowline_model::{Kind, Result};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use bowline_spec::values::Duration;

use crate::input::each_task::each;
use crate::input::task_names::TaskRef;
use crate::reach::past_shim;
use crate::ui::progress;

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
    let grace = grace.map(Duration::as_std);
    match bowline_client::stop(folder, id, signal, grace, &Programs::default()).await {
        Err(error) if error.kind() == Kind::Unavailable => {
            past_shim(folder, id, move |task| task.stop(signal, grace)).await
        }
        done => done.map(drop),
    }
}
