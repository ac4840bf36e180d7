//! A root whose changes vanish with the task: an overlay of the root folder, with its upper folder in memory.
//!
//! ```text
//!   root ◄─ tmpfs: lower, a copy of the root's mount; upper; work ◄─ overlay, which becomes the root
//! ```
//!
//! Both are mounts of the task's own mount namespace, above the root, so nothing of them is left when that goes. The
//! kernel charges the tmpfs to the cgroup of whoever writes. The overlay keeps copies of the mounts that it is made of;
//! the tmpfs itself is out of reach from inside.

use std::os::fd::AsFd as _;

use bowline_error::{Doing, Kind, Result};
use rustix::fs::{self, Gid, Mode, Uid};

use super::filesystem::Filesystem;
use super::handle::open_path;
use super::sources::Sources;

/// One inode of the tmpfs for this many of its bytes, so that empty files are bounded too.
const BYTES_OF_AN_INODE: u64 = 4096;

/// Makes the root of `sources` ephemeral, for at most `size` bytes of changes.
///
/// # Errors
/// `Unsupported` where the kernel has no overlayfs; else what it answered.
pub fn apply(sources: &mut Sources, size: u64, in_user_namespace: bool) -> Result<()> {
    let what = || "cannot make an ephemeral root";
    let (trees, root) = (&sources.trees, &sources.root);
    let stat = fs::fstat(root).doing(Kind::Internal, what)?;
    let option = |key: &str, value: String| (key.to_owned(), Some(value));
    let data = [
        option("size", size.to_string()),
        option("nr_inodes", (size / BYTES_OF_AN_INODE + 64).to_string()),
        option("mode", "0700".to_owned()),
    ];
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    let memory = trees.make(&Filesystem { kind: "tmpfs", source: "ephemeral", data: &data, attributes })?;
    // Recursive, as a mount cannot be copied without those that are locked below it.
    let lower = trees.copy_of(root.as_fd(), true).doing(Kind::Internal, what)?;
    trees.attach(&memory, root).doing(Kind::Internal, what)?;
    for name in ["lower", "upper", "work"] {
        fs::mkdirat(&memory, name, Mode::from_raw_mode(0o700)).doing(Kind::Internal, what)?;
    }
    // The root folder of an overlay is its upper one.
    let (owner, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    fs::chownat(&memory, "upper", Some(owner), Some(group), fs::AtFlags::empty()).doing(Kind::Internal, what)?;
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    fs::chmodat(&memory, "upper", mode, fs::AtFlags::empty()).doing(Kind::Internal, what)?;
    // By relative paths, which need no /proc.
    rustix::process::fchdir(&memory).doing(Kind::Internal, what)?;
    let place = open_path("lower".as_ref()).doing(Kind::Internal, what)?;
    trees.attach(&lower, &place).doing(Kind::Internal, what)?;
    let folder = |name: &str| option(&format!("{name}dir"), name.to_owned());
    let mut data = ["lower", "upper", "work"].map(folder).to_vec();
    if in_user_namespace {
        // Only the host's root may use the other attributes.
        data.push(("userxattr".to_owned(), None));
    }
    let overlay = trees.make(&Filesystem { kind: "overlay", source: "ephemeral", data: &data, attributes: 0 })?;
    trees.attach(&overlay, &memory).doing(Kind::Internal, what)?;
    rustix::process::fchdir(&overlay).doing(Kind::Internal, what)?;
    sources.root = overlay;
    Ok(())
}
