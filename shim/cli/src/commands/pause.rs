//! `bowline pause`: freezes tasks.

use bowline_executor::{Result, StateDir};
use bowline_spec::id::TaskId;

use crate::input::named::TaskRef;
use crate::input::several::each;
use crate::reach::{live, waiting};

pub async fn run(state: &StateDir, names: &[TaskRef]) -> Result<u8> {
    let act = |id: TaskId| {
        let state = state.clone();
        async move { live(&state, &id).await?.pause().await }
    };
    each(state, names, act).with_progress(waiting).await
}
