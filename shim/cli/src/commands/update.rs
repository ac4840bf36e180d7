//! `update`: turns limits from the command line into an update of a task.

use bowline_model::folder::StateDir;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::id::TaskId;
use bowline_spec::values::ByteSize;
use bowline_spec::{Invalid, Task, Update};

use crate::input::args::update::LimitFlags;
use crate::input::description;
use crate::input::limits;
use crate::reach;
use crate::ui::print::complain;

pub async fn run(state: &StateDir, id: &TaskId, flags: LimitFlags) -> Result<u8> {
    let memory = || {
        let record = state.folder(id).record()?;
        Ok(record.and_then(|record| record.task).and_then(|task| task.settled().memory.limit))
    };
    let update = of(flags, memory)?;
    let updated = reach::live(state, id).await?.update(json(&update)?).await;
    let any = Task { command: "any".to_owned(), ..Task::default() };
    for note in updated.map_err(|error| refused(error, update.applied_to(&any).err()))? {
        complain(&note, None);
    }
    Ok(0)
}

/// The error of an update that was refused: that of a wrong command line where it is wrong `alone`, whoever gets it.
pub fn refused(error: Error, alone: Option<Invalid>) -> Error {
    match alone {
        Some(invalid) if error.kind() == Kind::BadSpec && error.field() == Some(&*invalid.field) => {
            description::of_command_line(&invalid)
        }
        _ => error,
    }
}

/// Makes an update from the flags; `memory` tells the memory limit of now.
///
/// # Errors
/// `Usage` if the flags change nothing.
pub fn of(flags: LimitFlags, memory: impl FnOnce() -> Result<Option<ByteSize>>) -> Result<Update> {
    let update = limits::named(flags, memory)?;
    if update == Update::default() {
        let message = "nothing to change: name at least one limit";
        return Err(Error::new(Kind::Usage, message).hint("`bowline update --help` lists the flags"));
    }
    Ok(update)
}

/// The update as a shim gets it.
pub fn json(update: &Update) -> Result<String> {
    serde_json::to_string(update).doing(Kind::Internal, || "cannot write the update as JSON")
}
