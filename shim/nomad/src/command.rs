//! A command in a task that answers with its end: script checks, `change_mode = "script"`.

use std::time::Duration;

use bowline_client::{Exec, Task};
use bowline_executor::ExecEnd;
use bowline_model::Result;

use crate::proto::driver::{ExecTaskRequest, ExecTaskResponse, ExitResult};

/// What Nomad keeps of a check's output, in bytes.
const OUTPUT: u32 = 4096;

/// The exit code of a command that was killed at its deadline, as timeout(1) has it; to a check it is critical.
const TIMED_OUT: i32 = 124;

/// Runs the command with the task's own user, environment and limits. Nomad reads stdout alone, so both streams are
/// there.
///
/// # Errors
/// As [`Task::exec`].
pub async fn run(task: &Task, request: ExecTaskRequest) -> Result<ExecTaskResponse> {
    let timeout =
        request.timeout.and_then(|timeout| Duration::try_from(timeout).ok()).filter(|timeout| !timeout.is_zero());
    let exec = Exec::new(request.command).merged().tail_bytes(OUTPUT);
    let exec = timeout.into_iter().fold(exec, Exec::timeout);
    let outcome = task.exec(exec).await?;
    let mut stdout = outcome.stdout;
    let exit_code = match outcome.end {
        ExecEnd::Exited(code) => code,
        ExecEnd::TimedOut(_) => {
            let after = timeout.unwrap_or_default();
            let said = format!("\nkilled: the command did not end within {after:?}");
            let room = (OUTPUT as usize).saturating_sub(said.len());
            stdout.drain(..stdout.len().saturating_sub(room));
            stdout.extend_from_slice(said.trim_start_matches(|c| c == '\n' && stdout.is_empty()).as_bytes());
            TIMED_OUT
        }
    };
    let result = Some(ExitResult { exit_code, signal: outcome.signal.unwrap_or_default(), ..ExitResult::default() });
    Ok(ExecTaskResponse { stdout, stderr: Vec::new(), result })
}
