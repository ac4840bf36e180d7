//! `bowline kill`: sends a signal to tasks.

use bowline_client::spawn::Programs;
use bowline_model::folder::{Folder, StateDir};
use bowline_model::{Kind, Result};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;

use crate::input::chosen::Chosen;
use crate::input::each_task::each_found;
use crate::input::signal::SignalOrNone;
use crate::reach::{past_shim, waiting};

pub async fn run(state: &StateDir, tasks: &Chosen, signal: SignalOrNone) -> Result<u8> {
    let by_label = !tasks.label.is_empty();
    let mut found = tasks.find(state)?;
    if by_label {
        found.retain(|found| !matches!(found, Ok((_, folder)) if has_ended(folder)));
    }
    let act = |id: TaskId, folder: Folder| async move {
        match kill_one(&folder, &id, signal.0).await {
            // It has ended meanwhile.
            Err(_) if by_label && has_ended(&folder) => Ok(()),
            done => done,
        }
    };
    each_found(found, act).with_progress(waiting).await
}

fn has_ended(folder: &Folder) -> bool {
    folder.exit().is_ok_and(|report| report.is_some())
}

async fn kill_one(folder: &Folder, id: &TaskId, signal: Option<Signal>) -> Result<()> {
    let killed = match bowline_client::live(folder, id, &Programs::default()).await {
        Ok(shim) => shim.signal(signal.map_or(0, Signal::number)).await,
        Err(error) => Err(error),
    };
    match killed {
        Err(error) if error.kind() == Kind::Unavailable => past_shim(folder, id, move |task| task.signal(signal)).await,
        done => done,
    }
}
