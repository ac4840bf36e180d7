//! `exec`: a command in a running task, its output passed through.

use bowline_executor::{Error, Kind, Result, StateDir};
use bowline_spec::id::TaskId;

use super::streams::Streams;
use super::{ExecArgs, FAILED, dead, exited, starting};
use crate::client::{self, Presence};
use crate::wire::proto::bowline::ExecRequest;

/// `bowline exec`: exits with the command's code.
///
/// # Errors
/// `Timeout` when the deadline came first.
pub async fn run(state: &StateDir, id: &TaskId, args: ExecArgs) -> Result<u8> {
    let folder = state.folder(id);
    let shim = match client::find(&folder, id).await? {
        Presence::Live(shim) => shim,
        Presence::Exited(_) => return Err(exited(id)),
        Presence::Dead => return Err(dead(id)),
        Presence::Starting => return Err(starting(id)),
    };
    let streams = Streams::attach(&folder)?;
    let timeout = args.timeout.map(|timeout| timeout.as_std());
    let request = ExecRequest {
        command: args.command,
        env: args.env.into_iter().map(|(key, value)| format!("{key}={value}")).collect(),
        workdir: args.workdir.map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default(),
        user: args.user.map(|user| user.to_string()).unwrap_or_default(),
        timeout_ms: timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
        stdout: streams.stdout.clone(),
        stderr: streams.stderr.clone(),
        direct: true,
        ..ExecRequest::default()
    };
    let outcome = shim.exec(request).await;
    // All that the command itself wrote is in the FIFOs by now.
    streams.what_is_there();
    match (outcome?.exit_code, timeout) {
        (Some(code), _) => Ok(u8::try_from(code).unwrap_or(FAILED)),
        (None, timeout) => {
            let after = timeout.unwrap_or_default();
            Err(Error::new(Kind::Timeout, format!("the command did not end within {after:?}; it was killed with all it had started")))
        }
    }
}
