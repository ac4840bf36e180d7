//! Reaching a task: through its shim, or directly when the shim does not answer.

use std::time::Duration as Elapsed;

use bowline_client::{Presence, Shim};
use bowline_executor::{Doing as _, Folder, Kind, PastShim, Result, StateDir};
use bowline_spec::id::TaskId;

use crate::ui::progress;
use crate::{complain, dead, exited, starting};

/// The shim of a task that runs.
pub async fn live(state: &StateDir, id: &TaskId) -> Result<Shim> {
    match bowline_client::find(&state.folder(id), id).await? {
        Presence::Live(shim) => Ok(shim),
        Presence::Exited(_) => Err(exited(id)),
        Presence::Dead => Err(dead(id)),
        Presence::Starting => Err(starting(id)),
    }
}

/// What of it comes later.
const UNTIL_IT_GOES_ON: &str = "the exit report is written when the shim goes on; `bowline rm -f` ends the shim";

/// Does `act` to a task whose shim is not answering, and says so.
pub async fn past_shim(
    folder: &Folder,
    id: &TaskId,
    act: impl FnOnce(&PastShim) -> Result<()> + Send + 'static,
) -> Result<()> {
    let folder = folder.clone();
    let done = tokio::task::spawn_blocking(move || act(&PastShim::reach(&folder)?));
    let done = done.await.doing(Kind::Internal, || "cannot go past the shim")?;
    done.map_err(|error| error.within(format_args!("task {id}")))?;
    complain(&format!("the shim of task {id} is not answering: it was gone past"), Some(UNTIL_IT_GOES_ON));
    Ok(())
}

/// What is said while a shim takes long to answer.
pub fn waiting(left: &[&TaskId], elapsed: Elapsed) -> String {
    format!("waiting for {}: {} s", progress::names(left), elapsed.as_secs())
}
