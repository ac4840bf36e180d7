//! Watches files by inotify(7). Each user has so many watches, and a task of that user may hold all of them.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use bowline_model::{Error, Kind, Result};
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

/// Makes an instance, which the event loop waits for. `what` could not be done without it.
///
/// # Errors
/// `Internal`, with the limit of the user that is reached.
pub fn begin(flags: CreateFlags, what: impl FnOnce() -> String) -> Result<OwnedFd> {
    init(flags | CreateFlags::CLOEXEC).map_err(|errno| {
        // The error is the same where this process has no descriptor left.
        let is_users = errno == Errno::MFILE && fcntl_dupfd_cloexec(std::io::stderr().as_fd(), 3).is_ok();
        refused(what(), errno, is_users.then_some("fs.inotify.max_user_instances"))
    })
}

/// Watches `path`.
///
/// # Errors
/// As [`begin`].
pub fn add(instance: &OwnedFd, path: &Path, flags: WatchFlags, what: impl FnOnce() -> String) -> Result<()> {
    add_watch(instance, path, flags)
        .map(drop)
        .map_err(|errno| refused(what(), errno, (errno == Errno::NOSPC).then_some("fs.inotify.max_user_watches")))
}

fn refused(what: String, errno: Errno, limit: Option<&str>) -> Error {
    match limit {
        Some(limit) => Error::new(Kind::Internal, format!("{what}: this user has as many as {limit} allows"))
            .hint("end what holds them, such as a task of this user; a user of its own for a task keeps them apart"),
        None => Error::new(Kind::Internal, format!("{what}: {errno}")),
    }
}
