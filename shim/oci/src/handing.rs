//! What is handed to the caller of a command besides its answer: terminals and pidfds.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use bowline_executor::internal::send_fd;
use bowline_model::{Doing, Kind, Result};

/// Connects to the socket that `flag` names.
///
/// # Errors
/// `Usage` where nobody listens there.
pub fn connect(flag: &str, path: &str) -> Result<OwnedFd> {
    UnixStream::connect(path).map(OwnedFd::from).doing(Kind::Usage, || format!("--{flag}: cannot connect to {path}"))
}

/// Sends a pidfd to a socket.
///
/// # Errors
/// `Internal` where the other end has gone.
pub fn send_pidfd(socket: &OwnedFd, pidfd: BorrowedFd<'_>) -> Result<()> {
    let sent = send_fd(socket.as_fd(), b"pidfd", pidfd);
    sent.map(drop).doing(Kind::Internal, || "cannot send the pidfd to its socket")
}
