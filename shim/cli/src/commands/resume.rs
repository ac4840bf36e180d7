//! `bowline resume`: resumes paused tasks.

use bowline_model::Result;
use bowline_model::folder::StateDir;
use bowline_spec::id::TaskId;

use crate::input::each_task::each;
use crate::input::task_names::TaskRef;
use crate::reach::{live, waiting};

pub async fn run(state: &StateDir, names: &[TaskRef]) -> Result<u8> {
    let act = |id: TaskId| {
        let state = state.clone();
        async move { live(&state, &id).await?.resume().await }
    };
    each(state, names, act).with_progress(waiting).await
}
