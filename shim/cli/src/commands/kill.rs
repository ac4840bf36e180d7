//! `bowline kill`: sends a signal to tasks.

use bowline_model::folder::StateDir;
use bowline_model::{Kind, Result};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;

use crate::input::each_task::each;
use crate::input::signal::SignalOrNone;
use crate::input::task_names::TaskRef;
use crate::reach::{live, past_shim, waiting};

pub async fn run(state: &StateDir, names: &[TaskRef], signal: SignalOrNone) -> Result<u8> {
    let act = |id: TaskId| {
        let state = state.clone();
        async move { kill_one(&state, &id, signal.0).await }
    };
    each(state, names, act).with_progress(waiting).await
}

async fn kill_one(state: &StateDir, id: &TaskId, signal: Option<Signal>) -> Result<()> {
    let killed = match live(state, id).await {
        Ok(shim) => shim.signal(signal.map_or(0, Signal::number)).await,
        Err(error) => Err(error),
    };
    match killed {
        Err(error) if error.kind() == Kind::Unavailable => {
            past_shim(&state.folder(id), id, move |task| task.signal(signal)).await
        }
        done => done,
    }
}
