//! What a child and the shim say to each other until execve, a byte each or a little more.

use std::os::fd::RawFd;

use bowline_error::Error;
use bowline_sys as sys;

/// Order to init: its creator has recorded it, and leaves; [`START`] comes from another process.
pub const LEFT: u8 = b'L';
/// First byte of a message on the report pipe: init is set up and waits for [`START`].
pub const READY: u8 = b'R';
/// First byte of a message on the report pipe: four bytes of pid follow.
pub const PID: u8 = b'P';
/// A byte on the report pipe: the cgroup takes no process itself, because it has handed controllers down or is part
/// of a threaded subtree.
pub const CLOSED: u8 = b'C';
/// First byte of a message on the report pipe: four bytes of length and an
/// [`Error`] as JSON follow. It may overtake the worker's [`PID`].
pub const ERROR: u8 = b'E';
/// A byte on the report pipe: namespaces and mounts exist, and the shim must run the configuration's hooks before
/// the root is changed.
pub const HOOKS: u8 = b'H';
/// A byte on the report pipe: init has run the container's last hooks, and executes the program.
pub const EXECUTES: u8 = b'X';
/// A byte down to init: the hooks have run.
pub const HOOKED: u8 = b'h';
/// A byte down to init: its user namespace is mapped.
pub const MAPPED: u8 = b'm';
/// A byte down to init: execute the program.
pub const START: u8 = b's';

/// Sends an error up the report pipe.
pub fn tell_error(report: RawFd, error: &Error) {
    let json = serde_json::to_vec(error).unwrap_or_default();
    let mut message = vec![ERROR];
    message.extend((json.len() as u32).to_ne_bytes());
    message.extend(json);
    // If the reader has gone, the error no longer matters.
    let _ = sys::write_fd(report, &message);
}
