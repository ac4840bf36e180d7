//! The serving process: containerd's calls in, the executor's answers out.

use std::os::unix::net::UnixListener;

use bowline_executor::{Doing, Kind, Result};
use tokio::io::AsyncReadExt as _;

use super::address;
use super::invocation::Invocation;

const SIGTERM: i32 = 15;

/// Serves the socket until it is told to end.
///
/// # Errors
/// `Internal` when the event loop cannot be had.
pub fn run(invocation: Invocation, listener: UnixListener) -> Result<()> {
    let what = || "cannot serve the shim's socket";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    runtime.doing(Kind::Internal, what)?.block_on(async move {
        listener.set_nonblocking(true).doing(Kind::Internal, what)?;
        let listener = tokio::net::UnixListener::from_std(listener).doing(Kind::Internal, what)?;
        let (mut terminated, told) = tokio::net::UnixStream::pair().doing(Kind::Internal, what)?;
        let told = told.into_std().doing(Kind::Internal, what)?;
        signal_hook::low_level::pipe::register(SIGTERM, told).doing(Kind::Internal, what)?;
        let mut held = Vec::new();
        loop {
            tokio::select! {
                _ = terminated.read_u8() => break,
                Ok((connection, _)) = listener.accept() => held.push(connection),
            }
        }
        address::remove(&invocation.socket)
    })
}
