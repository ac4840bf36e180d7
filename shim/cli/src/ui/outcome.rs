//! How a task ended, for whoever waited for it: an exit code, and what is said of lost output.

use bowline_executor::{Error, ExitReport, Result};
use bowline_spec::id::TaskId;

use crate::FAILED;

/// What a task's end is for whoever waited for it.
pub fn code(id: &TaskId, report: &ExitReport) -> Result<u8> {
    match report.exit_code {
        Some(code) => Ok(u8::try_from(code).unwrap_or(FAILED)),
        None => Err(crate::dead(id)),
    }
}

/// What is said when output of a task that has ended could not be written.
pub fn lost(error: Error, id: &TaskId, report: &ExitReport) -> Error {
    let code = report.exit_code.map_or_else(String::new, |code| format!(" with {code}"));
    error.within(format!("task {id} ended{code}, and output of it is lost"))
}
