//! What is written to `/proc/sys`, then closed: read-only and masked paths.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use oci_spec::runtime::Spec;
use rustix::fs::{self, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use super::{clone_tree, file_type, move_mount, open_tree};
use crate::error::{Doing, Error, Kind, Result};
use crate::sys::{self, MountAttributes};

/// Writes the spec's sysctls, inside the namespaces they belong to.
pub fn sysctls(root: BorrowedFd<'_>, spec: &Spec) -> Result<()> {
    let linux = spec.linux().as_ref();
    for (key, value) in linux.and_then(|l| l.sysctl().as_ref()).into_iter().flatten() {
        let path = format!("proc/sys/{}", key.replace('.', "/"));
        let beneath = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let what = || format!("sysctls: cannot set {key} to {value}");
        let fd = fs::openat2(root, path.as_str(), flags, Mode::empty(), beneath).doing(Kind::BadSpec, what)?;
        File::from(fd).write_all(value.as_bytes()).doing(Kind::BadSpec, what)?;
    }
    Ok(())
}

/// Makes each path and all below it read-only. What does not exist needs nothing.
pub fn read_only_paths(root: BorrowedFd<'_>, spec: &Spec) -> Result<()> {
    let linux = spec.linux().as_ref();
    for path in linux.and_then(|l| l.readonly_paths().as_ref()).into_iter().flatten() {
        let Some(target) = existing(root, path)? else { continue };
        let what = || format!("cannot make {path} read-only");
        let tree = clone_tree(target.as_fd(), true).doing(Kind::Internal, what)?;
        let read_only = MountAttributes { set: libc::MOUNT_ATTR_RDONLY, ..MountAttributes::default() };
        sys::mount_setattr(tree.as_fd(), true, read_only).doing(Kind::Internal, what)?;
        move_mount(&tree, &target).doing(Kind::Internal, what)?;
    }
    Ok(())
}

/// Hides each path: a file behind the host's null device, a folder behind an
/// empty read-only tmpfs.
pub fn masked_paths(root: BorrowedFd<'_>, spec: &Spec) -> Result<()> {
    let linux = spec.linux().as_ref();
    for path in linux.and_then(|l| l.masked_paths().as_ref()).into_iter().flatten() {
        let Some(target) = existing(root, path)? else { continue };
        let what = || format!("cannot mask {path}");
        let folder = file_type(&target).doing(Kind::Internal, what)? == FileType::Directory;
        let mask = if folder { empty_folder() } else { null_device() };
        move_mount(mask.map_err(|e| e.within(what()))?, &target).doing(Kind::Internal, what)?;
    }
    Ok(())
}

fn existing(root: BorrowedFd<'_>, path: &str) -> Result<Option<OwnedFd>> {
    let relative = path.trim_start_matches('/');
    let scoped = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    match fs::openat2(root, relative, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), scoped) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(Error::new(Kind::Internal, format!("cannot open {path} in the root filesystem: {errno}"))),
    }
}

/// The host's null device as a mount. That it is one is checked on the mount
/// itself: a `/dev/null` that is something else would be exposed, not hidden
/// (CVE-2025-31133).
fn null_device() -> Result<OwnedFd> {
    let path = Path::new("/dev/null");
    let tree = open_tree(path, false).doing(Kind::Internal, || "cannot open /dev/null")?;
    let stat = fs::fstat(&tree).doing(Kind::Internal, || "cannot examine /dev/null")?;
    let is_null =
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == fs::makedev(1, 3);
    if !is_null {
        return Err(Error::new(Kind::Unsupported, "the host's /dev/null is not the null device"));
    }
    Ok(tree)
}

/// An empty read-only folder, mounted nowhere.
fn empty_folder() -> Result<OwnedFd> {
    let what = || "cannot make an empty folder";
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).doing(Kind::Internal, what)?;
    rustix::mount::fsconfig_create(context.as_fd()).doing(Kind::Internal, what)?;
    let attributes =
        MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).doing(Kind::Internal, what)
}
