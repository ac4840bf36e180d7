//! `remount`: changes a mount that is in the root by then.
//!
//! With `bind` it changes the mount alone, otherwise its filesystem too: that is allowed only for a filesystem that was
//! made for this task, because any other is the host's. Must not: make a mount, or a place for one.

use std::io::ErrorKind;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::MountAttributes;
use oci_spec::runtime::{LinuxNamespace, LinuxNamespaceType, Mount, Spec};
use rustix::fs;

use super::filesystem::Filesystem;
use super::inside::{self, Make};
use super::options::Options;
use super::stage;
use super::trees::Trees;

/// All attributes that an option can name, except for the atime mode, which stays as it is unless it is named.
const ALL: u64 = libc::MOUNT_ATTR_RDONLY
    | libc::MOUNT_ATTR_NOSUID
    | libc::MOUNT_ATTR_NODEV
    | libc::MOUNT_ATTR_NOEXEC
    | libc::MOUNT_ATTR_NODIRATIME
    | libc::MOUNT_ATTR_NOSYMFOLLOW;

/// The filesystems that were made for this task alone, by their device numbers.
#[derive(Default)]
pub struct Made(Vec<u64>);

impl Made {
    /// An empty list, if `spec` has a use for it.
    pub fn wanted(spec: &Spec) -> Option<Made> {
        let mut mounts = spec.mounts().iter().flatten();
        mounts.any(|mount| mount.options().iter().flatten().any(|option| option == "remount")).then(Made::default)
    }

    /// Adds the filesystem of `mount`, which `tree` is the root of, if no one but the task uses it.
    pub fn add(&mut self, spec: &Spec, mount: &Mount, tree: &OwnedFd) -> Result<()> {
        let namespace = match mount.typ().as_deref() {
            Some("tmpfs" | "ramfs" | "devpts" | "overlay") => None,
            Some("proc") => Some(LinuxNamespaceType::Pid),
            Some("mqueue") => Some(LinuxNamespaceType::Ipc),
            // The kernel has one for each network namespace. A user namespace may have the host's bound there instead, which
            // the kernel lets nobody inside change.
            Some("sysfs") => Some(LinuxNamespaceType::Network),
            _ => return Ok(()),
        };
        if namespace.is_none_or(|kind| has_new(spec, kind)) {
            self.0.push(fs::fstat(tree).doing(Kind::Internal, || "cannot examine it")?.st_dev);
        }
        Ok(())
    }
}

/// Whether the task gets a new namespace of this kind.
fn has_new(spec: &Spec, kind: LinuxNamespaceType) -> bool {
    let namespaces = spec.linux().as_ref().and_then(|linux| linux.namespaces().as_ref());
    let is_new = |n: &LinuxNamespace| n.path().as_ref().is_none_or(|path| path.as_os_str().is_empty());
    namespaces.into_iter().flatten().any(|n| n.typ() == kind && is_new(n))
}

/// Changes what is mounted at the destination of `mount`, which has no other `attributes` than these for now; returns it.
///
/// # Errors
/// `BadSpec` when nothing is mounted there, or when the host's filesystem would change.
pub fn remount(
    trees: &Trees,
    root: BorrowedFd<'_>,
    mount: &Mount,
    options: &Options,
    attributes: u64,
    made: Option<&Made>,
) -> Result<OwnedFd> {
    let target = inside::open(root, mount.destination(), Make::Nothing)?;
    let what = || "cannot remount it";
    if options.bind.is_some() {
        let set = options.set & attributes;
        let change = MountAttributes { set, clear: options.clear | ALL & !set, propagation: 0 };
        let exactly = trees.change(target.as_fd(), false, change);
        let named = MountAttributes { clear: options.clear, ..change };
        let changed = match exactly {
            // Attributes that a user namespace has locked stay.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => trees.change(target.as_fd(), false, named),
            changed => changed,
        };
        changed.doing(Kind::BadSpec, what)?;
    } else {
        let device = fs::fstat(&target).doing(Kind::Internal, || "cannot examine it")?.st_dev;
        if !made.is_some_and(|made| made.0.contains(&device)) {
            let message = "a remount without bind changes a filesystem, and this one was not made for the task alone";
            return Err(Error::new(Kind::BadSpec, message).hint("add the option bind to change the mount alone"));
        }
        let kind = mount.typ().as_deref().unwrap_or("none");
        let filesystem = Filesystem { kind, source: kind, data: &options.data, attributes };
        stage::remount_filesystem(&filesystem, target.as_fd())?;
    }
    let below = MountAttributes { set: options.set_recursive, clear: options.clear_recursive, propagation: 0 };
    if !below.is_none() {
        trees.change(target.as_fd(), true, below).doing(Kind::BadSpec, what)?;
    }
    if let Some((propagation, recursive)) = options.propagation {
        let change = MountAttributes { propagation, ..MountAttributes::default() };
        trees.change(target.as_fd(), recursive, change).doing(Kind::BadSpec, what)?;
    }
    Ok(target)
}
