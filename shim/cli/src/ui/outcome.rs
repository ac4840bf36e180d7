//! The exit code for a caller that waited for a task, and the error when output of the task is lost.

use bowline_executor::{Error, ExitReport, Result};
use bowline_spec::id::TaskId;

use crate::exit_code::FAILED;

/// Returns the exit code for a caller that waited for the task.
pub fn code(id: &TaskId, report: &ExitReport) -> Result<u8> {
    match report.exit_code {
        Some(code) => Ok(u8::try_from(code).unwrap_or(FAILED)),
        None => Err(bowline_client::end_not_known(id, report)),
    }
}

/// Adds to `error` that the task ended and that output of it is lost.
pub fn lost(error: Error, id: &TaskId, report: &ExitReport) -> Error {
    let code = report.exit_code.map_or_else(String::new, |code| format!(" with {code}"));
    error.within(format!("task {id} ended{code}, and output of it is lost"))
}
