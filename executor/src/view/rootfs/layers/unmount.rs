//! Finds what is mounted in a root, and takes it down.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Kind, Result};
use bowline_sys::mountinfo;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::{self as kernel, UnmountFlags};

use crate::view::inside_root::{self, Symlinks};
use crate::view::rootfs::open_path;

/// The mounts at `root` and below it, each after the one that it lies on.
pub fn mounted(root: &Path) -> Result<Vec<mountinfo::Mount>> {
    let path = "/proc/self/mountinfo";
    let mut all = mountinfo::read(path).doing(Kind::Internal, || format!("cannot read {path}"))?;
    let Some(root) = canonical(root) else { return Ok(Vec::new()) };
    all.retain(|mount| mount.target.starts_with(&root));
    let mut sorted: Vec<mountinfo::Mount> = Vec::new();
    // Each round takes the mounts whose parent is not among the rest.
    while !all.is_empty() {
        let ids: BTreeSet<u64> = all.iter().map(|mount| mount.id).collect();
        let (below, next): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|mount| mount.parent != mount.id && ids.contains(&mount.parent));
        if next.is_empty() {
            // The rest would form a circle, which mounts never do.
            break;
        }
        sorted.extend(next);
        all = below;
    }
    Ok(sorted)
}

/// `root` as mountinfo shows it: symlinks are followed on the way, but not at its end.
pub fn canonical(root: &Path) -> Option<PathBuf> {
    Some(root.parent()?.canonicalize().ok()?.join(root.file_name()?))
}

/// Takes down everything at `root` and below, last first, except mounts with these ids.
pub fn all_but(root: &Path, keep: &BTreeSet<u64>) -> Result<()> {
    let mut first = Ok(());
    for mount in mounted(root)?.iter().rev().filter(|mount| !keep.contains(&mount.id)) {
        let done = take_down(&mount.target);
        if first.is_ok() {
            first = done.doing(Kind::Internal, || format!("cannot unmount {}", mount.target.display()));
        }
    }
    first
}

/// Unmounts the topmost mount at `target`: at once if possible, else as soon as nothing uses it.
fn take_down(target: &Path) -> rustix::io::Result<()> {
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(Errno::INVAL);
    };
    // A folder on the way may have been swapped for a symlink meanwhile.
    let slash = open_path(Path::new("/"))?;
    let parent = inside_root::open(slash.as_fd(), parent, OFlags::PATH | OFlags::CLOEXEC, Symlinks::Refused)?;
    let path = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string()).join(name);
    match kernel::unmount(&path, UnmountFlags::NOFOLLOW) {
        // Nothing is mounted there any more: the mount went with the one that it lay on.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(_) => match kernel::unmount(&path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH) {
            Err(Errno::INVAL | Errno::NOENT) => Ok(()),
            done => done,
        },
    }
}
