//! An overlay whose lower layers show owners by an idmap.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use rustix::fs::{self, CWD, Mode, OFlags};
use rustix::mount::{self as kernel, MountPropagationFlags};

use super::{Layer, make, map, overlay};
use crate::idmap::Idmap;
use crate::rootfs::open_path;
use crate::rootfs::options::Options;

/// Makes an overlay whose lower layers show owners by `idmap`, attached nowhere.
///
/// An overlay only takes layers by path, and copies their mounts. So the layers are attached on a tmpfs in a
/// separate mount namespace, which goes away when this process leaves it. Linux ≥ 5.19.
pub fn tree(root: &Path, layer: &Layer, options: &Options, idmap: &Idmap) -> Result<OwnedFd> {
    let what = || "cannot make a mount namespace for idmapped layers";
    if !sys::has_mount_fds() {
        return Err(Error::new(Kind::Unsupported, "uidmap and gidmap need mount_setattr (Linux 5.12)"));
    }
    let owners = idmap.user_namespace()?;
    let namespace = fs::openat(CWD, "/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let namespace = namespace.doing(Kind::Internal, what)?;
    sys::unshare(libc::CLONE_NEWNS).doing(Kind::Internal, what)?;
    let made = here(root, layer, options, owners.as_fd());
    // Leaving the namespace takes down everything mounted there.
    sys::setns(namespace.as_fd(), libc::CLONE_NEWNS).doing(Kind::Internal, || "cannot get back")?;
    made
}

fn here(root: &Path, layer: &Layer, options: &Options, owners: BorrowedFd<'_>) -> Result<OwnedFd> {
    let what = || "cannot lay out idmapped layers";
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    kernel::mount_change("/", private).doing(Kind::Internal, what)?;
    let lowers = overlay::lower_folders(&options.data)?;
    let open = |lower: &PathBuf| -> Result<OwnedFd> {
        let tree = sys::open_tree(CWD, lower, false);
        let tree = tree.doing(Kind::BadSpec, || format!("cannot open {}", lower.display()))?;
        map(&tree, false, owners, lower)?;
        Ok(tree)
    };
    let layers: Vec<OwnedFd> = lowers.iter().map(open).collect::<Result<_>>()?;
    let over = open_path(root).doing(Kind::Internal, what)?;
    let tmpfs = sys::fsopen("tmpfs").and_then(|context| sys::fsmount(&context, 0)).doing(Kind::Internal, what)?;
    sys::move_mount(tmpfs.as_fd(), over.as_fd()).doing(Kind::Internal, what)?;
    let folder = |name: &str| -> rustix::io::Result<OwnedFd> {
        fs::mkdirat(&tmpfs, name, Mode::from_raw_mode(0o755))?;
        fs::openat(&tmpfs, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
    };
    for (number, layer) in layers.iter().enumerate() {
        let at = folder(&number.to_string()).doing(Kind::Internal, what)?;
        sys::move_mount(layer.as_fd(), at.as_fd()).doing(Kind::Internal, what)?;
    }
    let merged = folder("merged").doing(Kind::Internal, what)?;
    rustix::process::fchdir(&tmpfs).doing(Kind::Internal, what)?;
    make(layer, options, &overlay::numbered(&options.data, layers.len()), merged.as_fd())?;
    sys::open_tree(tmpfs.as_fd(), Path::new("merged"), false).doing(Kind::Internal, what)
}
