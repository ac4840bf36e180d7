//! What is handed to the caller of a command besides its answer: pid files, terminals, pidfds.

use std::fs;
use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

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

/// Writes a pid file, whole: it is renamed into its place.
///
/// # Errors
/// `Usage` where it cannot be written.
pub fn write_pid(path: &Path, pid: i32) -> Result<()> {
    let what = || format!("--pid-file: cannot write {}", path.display());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!(".{name}.{}", std::process::id()));
    // Left by a process that was killed and had our pid, or put there by another user.
    let _ = fs::remove_file(&aside);
    let made = fs::File::options().write(true).create_new(true).open(&aside);
    let written = made.and_then(|mut file| file.write_all(pid.to_string().as_bytes()));
    let put = written.and_then(|()| fs::rename(&aside, path));
    put.inspect_err(|_| drop(fs::remove_file(&aside))).doing(Kind::Usage, what)
}
