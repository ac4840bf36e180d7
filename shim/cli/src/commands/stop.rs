//! `bowline stop`: stops tasks, with a grace period.

use std::time::Duration as Elapsed;

use bowline_client::spawn::Programs;
use bowline_client::unless_removed;
use bowline_executor::internal::frozen_by;
use bowline_model::folder::{Folder, StateDir};
use bowline_model::{Kind, Result};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use bowline_spec::values::Duration;
use tokio::time::timeout;

use crate::input::chosen::Chosen;
use crate::input::each_task::each_found;
use crate::reach::past_shim;
use crate::ui::print::complain;
use crate::ui::progress;

/// How long a stop may take until the command looks whether somebody else keeps the task frozen.
const LOOK: Elapsed = Elapsed::from_millis(200);

/// Stops tasks and returns when they have ended.
pub async fn run(state: &StateDir, tasks: &Chosen, signal: Option<Signal>, grace: Option<Duration>) -> Result<u8> {
    let act = |id: TaskId, folder: Folder| async move { stop_one(&folder, &id, signal, grace).await };
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
    each_found(tasks.find(state)?, act).with_progress(doing).await
}

/// The grace period from the task's description.
fn grace_of(folder: &Folder) -> Option<Elapsed> {
    Some(folder.record().ok()??.task?.stop.grace())
}

/// Says that the task waits for somebody else, who has frozen another cgroup than its own: that the stop has thawed.
fn tell_frozen(folder: &Folder, id: &TaskId) {
    let Ok(Some(record)) = folder.record() else { return };
    let Some(file) = frozen_by(&record) else { return };
    if file.parent().is_some_and(|folder| folder.ends_with(record.cgroup.trim_start_matches('/'))) {
        return;
    }
    let file = file.display();
    let waits =
        format!("task {id} is frozen by {file}: until that is thawed, it waits for the end of its grace period");
    complain(&waits, Some("somebody else has frozen it, who may thaw it"));
}

async fn stop_one(folder: &Folder, id: &TaskId, signal: Option<Signal>, grace: Option<Duration>) -> Result<()> {
    let grace = grace.map(Duration::as_std);
    // This one, whoever has its name later. One that is not there is for the client to say.
    let folder = &folder.pinned().unwrap_or_else(|_| folder.clone());
    let programs = Programs::default();
    let stopped = bowline_client::stop(folder, id, signal, grace, &programs);
    tokio::pin!(stopped);
    let stopped = match timeout(LOOK, &mut stopped).await {
        Ok(stopped) => stopped,
        Err(_) => {
            tell_frozen(folder, id);
            stopped.await
        }
    };
    match stopped {
        Err(error) if error.kind() == Kind::Unavailable => {
            let passed = past_shim(folder, id, move |task| task.stop(signal, grace)).await;
            passed.map_err(|error| unless_removed(folder, id, error))
        }
        done => done.map(drop),
    }
}
