//! `delete`: cleans up after a serving process that died before its tasks. containerd runs it by itself, and expects
//! the exit of the task.

use std::io::Write as _;

use bowline_executor::internal::undo_bundle;
use bowline_model::{Doing, Kind, Result};
use containerd_shim_protos::api::DeleteResponse;
use protobuf::{Message as _, MessageField};

use super::address;
use super::invocation::Invocation;
use super::manager_events::{KILLED, timestamp};
use super::sandbox::files;
use bowline_client::spawn;

/// Kills and removes everything left of the container. Prints a `DeleteResponse` with the recorded exit, or with that
/// of SIGKILL if none is recorded.
///
/// # Errors
/// Names what is left. Something already gone is no error.
pub fn run(invocation: &Invocation) -> Result<()> {
    let systemd = spawn::systemd()?;
    let members = files::undo(&invocation.bundle, &systemd);
    let (pid, report) = undo_bundle(&invocation.bundle, &systemd)?;
    members?;
    // containerd or the shim has written the address to this file; without the file there was no shim. The socket may
    // still serve other members of a pod.
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
