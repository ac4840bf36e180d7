//! Mounts that are made where nobody else sees them, and are gone once this process leaves that place or dies.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use rustix::fs::{self, CWD, Mode, OFlags};
use rustix::mount::{self as kernel, MountPropagationFlags};

use crate::view::rootfs::open_path;

/// Runs `make` in a mount namespace of its own, where an empty filesystem in memory is over `root`. What it returns may be a
/// detached mount. Changes the working directory. Linux 5.12, without which `asked_for` is refused.
pub fn with_scratch<T>(asked_for: &str, root: &Path, make: impl FnOnce(BorrowedFd<'_>) -> Result<T>) -> Result<T> {
    let what = || "cannot make a mount namespace for layers";
    if !sys::has_mount_fds() {
        return Err(Error::new(Kind::Unsupported, format!("{asked_for} need mount_setattr (Linux 5.12)")));
    }
    let namespace = fs::openat(CWD, "/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let namespace = namespace.doing(Kind::Internal, what)?;
    sys::unshare(libc::CLONE_NEWNS).doing(Kind::Internal, what)?;
    let made = scratch(root).doing(Kind::Internal, what).and_then(|scratch| make(scratch.as_fd()));
    // Leaving the namespace takes down everything mounted there.
    sys::setns(namespace.as_fd(), libc::CLONE_NEWNS).doing(Kind::Internal, || "cannot get back")?;
    made
}

fn scratch(root: &Path) -> std::io::Result<OwnedFd> {
    kernel::mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    let over = open_path(root)?;
    let scratch = sys::fsopen("tmpfs").and_then(|context| sys::fsmount(&context, 0))?;
    sys::move_mount(scratch.as_fd(), over.as_fd())?;
    Ok(scratch)
}
