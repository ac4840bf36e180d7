//! `update`: turns limits from the command line into an update of a task.

use bowline_model::folder::StateDir;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::Update;
use bowline_spec::id::TaskId;
use bowline_spec::values::ByteSize;

use crate::input::args::update::LimitFlags;
use crate::input::limits;
use crate::reach;
use crate::ui::print::complain;

pub async fn run(state: &StateDir, id: &TaskId, flags: LimitFlags) -> Result<u8> {
    let memory = || {
        let record = state.folder(id).record()?;
        Ok(record.and_then(|record| record.task).and_then(|task| task.settled().memory.limit))
    };
    let update = json(flags, memory)?;
    for note in reach::live(state, id).await?.update(update).await? {
        complain(&note, None);
    }
    Ok(0)
}

/// Makes an update from the flags, as JSON; `memory` tells the memory limit of now.
///
/// # Errors
/// `Usage` if the flags change nothing.
pub fn json(flags: LimitFlags, memory: impl FnOnce() -> Result<Option<ByteSize>>) -> Result<String> {
    let update = limits::named(flags, memory)?;
    if update == Update::default() {
        let message = "nothing to change: name at least one limit";
        return Err(Error::new(Kind::Usage, message).hint("`bowline update --help` lists the flags"));
    }
    serde_json::to_string(&update).doing(Kind::Internal, || "cannot write the update as JSON")
}
