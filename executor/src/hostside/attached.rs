//! What clients that were killed have left in a task's folder: the folder with the FIFOs of their attachment.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use bowline_model::folder::ATTACHED;

use super::owners;

/// Locks the folder at `path`, of this process, until what it returns is closed: a client in another pid namespace cannot be
/// found by its pid.
pub fn hold(path: &Path) -> io::Result<File> {
    let folder = File::open(path)?;
    folder.try_lock_shared()?;
    Ok(folder)
}

fn is_held(path: &Path) -> bool {
    File::open(path).is_ok_and(|folder| matches!(folder.try_lock(), Err(TryLockError::WouldBlock)))
}

/// The folders in a task's `folder` whose clients have ended. Each is named by its client's pid, and held by it.
pub fn left_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let is_left = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let pid = || name.to_str()?.strip_prefix(ATTACHED)?.split_once('-')?.0.parse().ok();
        pid().is_some_and(|pid| !owners::is_bowline(pid)) && !is_held(&entry.path())
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(is_left).map(|entry| entry.path())
}

/// Removes them; what cannot be removed is left to `gc`, which says so.
pub fn remove_left_in(folder: &Path) {
    left_in(folder).for_each(|path| drop(fs::remove_dir_all(path)));
}
