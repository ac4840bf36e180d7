//! A sandbox's namespace, mounted in its folder for as long as plugins have
//! something to undo there.
//!
//! One that nobody but a process holds would go with that, and plugins cannot undo
//! everything without: of rules for addresses, bridge learns them from the interface.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Error, Kind, Result};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};

const FILE: &str = "netns";

/// The path by which `netns` is reached until it is unpinned: one in `folder` if it
/// is a process's, else its own.
pub fn pin(netns: &Path, folder: &Path) -> Result<PathBuf> {
    if !netns.starts_with("/proc") {
        return Ok(netns.to_owned());
    }
    unpin(folder)?;
    let path = folder.join(FILE);
    let what = || format!("cannot keep network namespace {} as {}", netns.display(), path.display());
    fs::write(&path, "").doing(Kind::Internal, what)?;
    if let Err(errno) = mount_bind(netns, &path) {
        let _ = fs::remove_file(&path);
        let kind = if errno == Errno::NOENT { Kind::NotFound } else { Kind::Internal };
        return Err(Error::new(kind, format!("{}: {errno}", what())));
    }
    Ok(path)
}

/// Keeps it no longer. Nothing there is nothing to do.
pub fn unpin(folder: &Path) -> Result<()> {
    let path = folder.join(FILE);
    let what = || format!("cannot give up network namespace {}", path.display());
    // Lazily: who is looking at it does not keep it.
    match unmount(&path, UnmountFlags::DETACH) {
        // Not mounted, or somewhere else, where this does not see it.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT | Errno::PERM) => {}
        Err(errno) => return Err(Error::new(Kind::Internal, format!("{}: {errno}", what()))),
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.doing(Kind::Internal, what),
    }
}
