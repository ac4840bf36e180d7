//! A sandbox's namespace, mounted in its folder for as long as plugins have
//! something to undo there.
//!
//! A namespace that only a process holds would disappear with that process, and plugins cannot undo everything
//! without it: bridge, for instance, learns the addresses of its rules from the interface.

use std::fs;
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};

const FILE: &str = "netns";

/// Where the namespace is while it is pinned.
pub fn path(folder: &Path) -> PathBuf {
    folder.join(FILE)
}

/// Returns the path of `netns` until it is unpinned: one in `folder` if it is a process's, else its own.
pub fn pin(netns: &Path, folder: &Path) -> Result<PathBuf> {
    if !netns.starts_with("/proc") {
        return Ok(netns.to_owned());
    }
    unpin(folder)?;
    let path = path(folder);
    let what = || format!("cannot keep network namespace {} as {}", netns.display(), path.display());
    fs::write(&path, "").doing(Kind::Internal, what)?;
    if let Err(errno) = mount_bind(netns, &path) {
        let _ = fs::remove_file(&path);
        let kind = if errno == Errno::NOENT { Kind::NotFound } else { Kind::Internal };
        return Err(Error::new(kind, format!("{}: {errno}", what())));
    }
    Ok(path)
}

/// Unpins the namespace. Does nothing if none is pinned.
pub fn unpin(folder: &Path) -> Result<()> {
    let path = path(folder);
    let what = || format!("cannot give up network namespace {}", path.display());
    // Lazily, so that a process that looks at it does not keep it.
    match unmount(&path, UnmountFlags::DETACH) {
        // It is not mounted, or in another mount namespace, where this process does not see it.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT | Errno::PERM) => {}
        Err(errno) => return Err(Error::new(Kind::Internal, format!("{}: {errno}", what()))),
    }
    sys::remove_if_there(&path).doing(Kind::Internal, what)
}
