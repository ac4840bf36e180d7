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

/// The folders of attachments in a task's `folder`, each with whether its client lives, by whose pid it is named and who
/// holds it.
fn all_in(folder: &Path) -> impl Iterator<Item = (PathBuf, bool)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.strip_prefix(ATTACHED)?.split_once('-')?.0.parse().ok()?;
        let path = entry.path();
        let lives = owners::is_bowline(pid) || is_held(&path);
        Some((path, lives))
    })
}

/// Those whose clients have ended.
pub fn left_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    all_in(folder).filter_map(|(path, lives)| (!lives).then_some(path))
}

/// Whether a client is attached to the task in `folder`.
pub fn is_held_in(folder: &Path) -> bool {
    all_in(folder).any(|(_, lives)| lives)
}

/// Removes them; what cannot be removed is left to `gc`, which says so.
pub fn remove_left_in(folder: &Path) {
    left_in(folder).for_each(|path| drop(fs::remove_dir_all(path)));
}
