//! What is mounted in a root, and taking it down.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Kind, Result};
use bowline_sys::mountinfo;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::{self as kernel, UnmountFlags};

use crate::inside_root::{self, Symlinks};
use crate::rootfs::open_path;

/// What is mounted at `root` and below it, each after what it lies upon.
pub fn mounted(root: &Path) -> Result<Vec<mountinfo::Mount>> {
    let path = "/proc/self/mountinfo";
    let text = std::fs::read(path).doing(Kind::Internal, || format!("cannot read {path}"))?;
    let mut all = mountinfo::parse(&String::from_utf8_lossy(&text));
    let Some(root) = canonical(root) else { return Ok(Vec::new()) };
    all.retain(|mount| mount.target.starts_with(&root));
    let mut sorted: Vec<mountinfo::Mount> = Vec::new();
    // Each round takes those whose parent is not among the rest.
    while !all.is_empty() {
        let ids: BTreeSet<u64> = all.iter().map(|mount| mount.id).collect();
        let (below, next): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|mount| mount.parent != mount.id && ids.contains(&mount.parent));
        if next.is_empty() {
            // Mounts in a circle: there are none.
            break;
        }
        sorted.extend(next);
        all = below;
    }
    Ok(sorted)
}

/// `root` as mountinfo has it: a link is followed on the way, not at its end.
pub fn canonical(root: &Path) -> Option<PathBuf> {
    Some(root.parent()?.canonicalize().ok()?.join(root.file_name()?))
}

/// Takes down all of it, last first, but mounts with these ids.
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

/// Unmounts what is topmost at `target`; at once if it can be, else as soon as
/// nobody uses it.
fn take_down(target: &Path) -> rustix::io::Result<()> {
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(Errno::INVAL);
    };
    // A folder on the way may have been swapped for a symlink meanwhile.
    let slash = open_path(Path::new("/"))?;
    let parent = inside_root::open(slash.as_fd(), parent, OFlags::PATH | OFlags::CLOEXEC, Symlinks::Refused)?;
    let path = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string()).join(name);
    match kernel::unmount(&path, UnmountFlags::NOFOLLOW) {
        // Nothing is mounted there any more: it went with what it lay upon.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(_) => match kernel::unmount(&path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH) {
            Err(Errno::INVAL | Errno::NOENT) => Ok(()),
            done => done,
        },
    }
}
