//! Reaches a task through its shim, or directly if the shim does not answer.

use std::pin::Pin;
use std::time::Duration as Elapsed;

use bowline_client::spawn::Programs;
use bowline_client::{Presence, Shim, find_or_adopt, look, unknown, unless_removed};
use bowline_executor::internal::PastShim;
use bowline_model::folder::{Folder, StateDir};
use bowline_model::{Doing as _, Error, Kind, Result};
use bowline_spec::id::TaskId;

use crate::ui::print::complain;
use crate::ui::progress;

/// Returns the shim of a running task: a new one, if that died.
pub async fn live(state: &StateDir, id: &TaskId) -> Result<Shim> {
    bowline_client::live(&state.folder(id), id, &Programs::default()).await
}

/// Like [`live`], for a caller that waits for the end of this task, and not of a later one of its name.
pub async fn live_pinned(state: &StateDir, id: &TaskId) -> Result<Shim> {
    bowline_client::live(&pinned(state, id)?, id, &Programs::default()).await
}

/// Like [`live_pinned`], for a caller that only reads: does not wait until another process lets go of the task.
pub async fn live_to_read(state: &StateDir, id: &TaskId) -> Result<Shim> {
    live_in_to_read(&pinned(state, id)?, id).await
}

/// Like [`live_to_read`], of the task in `folder`.
pub async fn live_in_to_read(folder: &Folder, id: &TaskId) -> Result<Shim> {
    match look(folder, id).await? {
        Presence::Live(shim) => Ok(shim),
        _ => bowline_client::live(folder, id, &Programs::default()).await,
    }
}

fn pinned(state: &StateDir, id: &TaskId) -> Result<Folder> {
    let unknown = |error: Error| if error.kind() == Kind::NotFound { unknown(id) } else { error };
    state.folder(id).pinned().map_err(unknown)
}

/// Waits until the shim's task has ended, or its shim died: then a new one is started, and answers for the task if it can
/// be taken over.
pub fn until_end(id: &TaskId, shim: &Shim) -> Pin<Box<dyn Future<Output = Result<Presence>>>> {
    let (id, shim) = (id.clone(), shim.clone());
    Box::pin(async move {
        match shim.wait().await? {
            Some(report) => Ok(Presence::Exited(Box::new(report))),
            None => {
                let found = find_or_adopt(shim.folder(), &id, &Programs::default()).await;
                found.map_err(|error| unless_removed(shim.folder(), &id, error))
            }
        }
    })
}

/// The hint after going past a shim: when the exit report is written.
const UNTIL_IT_GOES_ON: &str = "the exit report is written when the shim goes on; `bowline rm -f` ends the shim";

/// Runs `act` on a task whose shim does not answer, and reports that it went past the shim.
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

/// The progress line while a shim takes long to answer.
pub fn waiting(left: &[&TaskId], elapsed: Elapsed) -> String {
    format!("waiting for {}: {} s", progress::names(left), elapsed.as_secs())
}
