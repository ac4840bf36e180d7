//! Undoing what a serving process has left that died before its tasks: containerd
//! runs this by itself, and wants to know how the task ended.

use std::io::Write as _;

use bowline_executor::{Doing, Kind, Result, undo_bundle};
use containerd_shim_protos::api::DeleteResponse;
use protobuf::{Message as _, MessageField};

use super::address;
use super::happenings::{KILLED, timestamp};
use super::invocation::Invocation;
use super::sandbox::files;
use bowline_client::spawn;

/// Kills and removes all that is left of the container, and prints a
/// `DeleteResponse` with its exit as it was recorded, else as if by SIGKILL.
///
/// # Errors
/// Names what is left. What is missing already is no error.
pub fn run(invocation: &Invocation) -> Result<()> {
    let systemd = spawn::systemd()?;
    let members = files::undo(&invocation.bundle, &systemd);
    let (pid, report) = undo_bundle(&invocation.bundle, &systemd)?;
    members?;
    // containerd has told it to the file, or the shim has; none, and there was
    // no shim. Other members of a pod may still be served there.
    let address = std::fs::read_to_string(address::file_in(&invocation.bundle)).unwrap_or_default();
    if !address.is_empty()
        && let Err(error) = address::remove_stale(address.trim())
    {
        tracing::warn!(%error, "a socket is left behind");
    }
    let response = DeleteResponse {
        pid: pid.unwrap_or_default().cast_unsigned(),
        exit_status: report.exit_code.unwrap_or(KILLED).cast_unsigned(),
        exited_at: MessageField::some(timestamp(report.exited_at)),
        ..DeleteResponse::default()
    };
    let what = || "cannot tell what became of the task";
    let response = response.write_to_bytes().doing(Kind::Internal, what)?;
    std::io::stdout().write_all(&response).doing(Kind::Internal, what)
}
