//! A root that is moved over that of the host, as `--no-pivot` asks: pivot_root(2) refuses to replace a ramfs.
//!
//! The host's root stays below it. Whoever may mount or change its root inside could get back there, so nothing that a
//! configuration has leads here.

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Kind, Result};
use bowline_sys::mountinfo;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use crate::view::namespaces;

/// Makes `root`, which is mounted, the root of this process and of its mount namespace.
pub fn enter(root: BorrowedFd<'_>) -> Result<()> {
    let what = || "cannot move it over the root of the host";
    let place = std::fs::read_link(format!("/proc/self/fd/{}", root.as_raw_fd())).doing(Kind::Internal, what)?;
    for mount in whole_kernel_views(&place)? {
        cover(&mount).doing(Kind::Internal, || format!("cannot unmount the host's {}", mount.display()))?;
    }
    rustix::process::fchdir(root).doing(Kind::Internal, what)?;
    rustix::mount::mount_move(".", "/").doing(Kind::Internal, what)?;
    namespaces::change_root(root).and_then(|()| rustix::process::chdir("/")).doing(Kind::Internal, what)
}

/// The host's whole mounts of /proc and /sys, the last first: while they are there, a user namespace below could mount others
/// with all that the container's own hide.
fn whole_kernel_views(place: &Path) -> Result<Vec<PathBuf>> {
    const LIST: &str = "/proc/self/mountinfo";
    let all = mountinfo::read(LIST).doing(Kind::Internal, || format!("cannot read {LIST}"))?;
    let is_whole = |mount: &&mountinfo::Mount| {
        ["proc", "sysfs"].contains(&&*mount.kind) && mount.root == Path::new("/") && !mount.target.starts_with(place)
    };
    Ok(all.iter().rev().filter(is_whole).map(|mount| mount.target.clone()).collect())
}

/// Takes a mount away, or covers one that a user namespace has locked.
fn cover(mount: &Path) -> rustix::io::Result<()> {
    // The host keeps its own.
    match rustix::mount::mount_change(mount, MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC) {
        // Another mount hides it, from a user namespace below too.
        Err(Errno::NOENT | Errno::INVAL) => return Ok(()),
        changed => changed?,
    }
    match rustix::mount::unmount(mount, UnmountFlags::DETACH) {
        Err(Errno::INVAL | Errno::PERM) => rustix::mount::mount("tmpfs", mount, "tmpfs", MountFlags::empty(), None),
        unmounted => unmounted,
    }
}
