//! The exit code for a caller that waited for a task, and the error when output of the task is lost.

use bowline_model::log_line::LogStream;
use bowline_model::report::{ExitReport, UnwrittenOutput};
use bowline_model::{Error, Kind, Result};
use bowline_spec::Output;
use bowline_spec::id::TaskId;

use crate::exit_code::FAILED;

/// Returns the exit code for a caller that waited for the task.
pub fn code(id: &TaskId, report: &ExitReport) -> Result<u8> {
    match report.exit_code {
        Some(code) => Ok(u8::try_from(code).unwrap_or(FAILED)),
        None => Err(bowline_client::end_not_known(id, report)),
    }
}

/// Checks that the files of `output`, the task's own, took all of it.
///
/// # Errors
/// `Internal` with what one of them lacks, and why.
pub fn written(output: &Output, report: &ExitReport) -> Result<()> {
    let Some(UnwrittenOutput { stream, bytes, error, .. }) = report.output_unwritten.first() else { return Ok(()) };
    let path = match stream {
        LogStream::Stdout => &output.stdout,
        LogStream::Stderr => &output.stderr,
    };
    let path = path.as_ref().map_or_else(|| stream.as_str().into(), |path| path.display().to_string());
    Err(Error::new(Kind::Internal, format!("cannot write {bytes} bytes to {path}: {error}")))
}

/// Adds to `error` that the task ended and that output of it is lost.
pub fn lost(error: Error, id: &TaskId, report: &ExitReport) -> Error {
    let code = report.exit_code.map_or_else(String::new, |code| format!(" with {code}"));
    error.within(format!("task {id} ended{code}, and output of it is lost"))
}
