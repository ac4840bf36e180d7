//! What is written to `/proc/sys`, then closed: read-only and masked paths.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use oci_spec::runtime::Spec;
use rustix::fs::{self, FileType, OFlags};
use rustix::io::Errno;

use super::file_type;
use super::trees::{Filesystem, Trees};
use crate::error::{Doing, Error, Kind, Result};
use crate::refused;
use crate::scoped::{self, Symlinks};
use crate::sys::MountAttributes;

/// Writes the spec's sysctls, inside the namespaces they belong to.
pub fn sysctls(root: BorrowedFd<'_>, spec: &Spec) -> Result<()> {
    let linux = spec.linux().as_ref();
    for (key, value) in linux.and_then(|l| l.sysctl().as_ref()).into_iter().flatten() {
        let path = format!("proc/sys/{}", refused::sysctl_path(key)?);
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let what = || format!("sysctls: cannot set {key} to {value}");
        let fd = scoped::open(root, Path::new(&path), flags, Symlinks::Refused).doing(Kind::BadSpec, what)?;
        File::from(fd).write_all(value.as_bytes()).doing(Kind::BadSpec, what)?;
    }
    Ok(())
}

/// Makes each path and all below it read-only. What does not exist needs nothing.
pub fn read_only_paths(trees: &Trees, root: BorrowedFd<'_>, spec: &Spec) -> Result<()> {
    let linux = spec.linux().as_ref();
    for path in linux.and_then(|l| l.readonly_paths().as_ref()).into_iter().flatten() {
        let Some(target) = existing(root, path)? else { continue };
        let what = || format!("cannot make {path} read-only");
        let tree = trees.copy_of(target.as_fd(), true).doing(Kind::Internal, what)?;
        let read_only = MountAttributes { set: libc::MOUNT_ATTR_RDONLY, ..MountAttributes::default() };
        trees.change(tree.as_fd(), true, read_only).doing(Kind::Internal, what)?;
        trees.attach(&tree, &target).doing(Kind::Internal, what)?;
    }
    Ok(())
}

/// Hides each path: a file behind the host's null device, a folder behind an
/// empty read-only tmpfs.
pub fn masked_paths(trees: &Trees, root: BorrowedFd<'_>, spec: &Spec) -> Result<()> {
    let linux = spec.linux().as_ref();
    for path in linux.and_then(|l| l.masked_paths().as_ref()).into_iter().flatten() {
        let Some(target) = existing(root, path)? else { continue };
        let what = || format!("cannot mask {path}");
        let folder = file_type(&target).doing(Kind::Internal, what)? == FileType::Directory;
        let mask = if folder { empty_folder(trees) } else { null_device(trees) };
        trees.attach(&mask.map_err(|e| e.within(what()))?, &target).doing(Kind::Internal, what)?;
    }
    Ok(())
}

fn existing(root: BorrowedFd<'_>, path: &str) -> Result<Option<OwnedFd>> {
    match scoped::open(root, Path::new(path), OFlags::PATH | OFlags::CLOEXEC, Symlinks::Followed) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(Error::new(Kind::Internal, format!("cannot open {path} in the root filesystem: {errno}"))),
    }
}

/// The host's null device as a mount. That it is one is checked on the mount
/// itself: a `/dev/null` that is something else would be exposed, not hidden
/// (CVE-2025-31133).
fn null_device(trees: &Trees) -> Result<OwnedFd> {
    let path = Path::new("/dev/null");
    let tree = trees.copy(path, false).doing(Kind::Internal, || "cannot open /dev/null")?;
    let stat = fs::fstat(&tree).doing(Kind::Internal, || "cannot examine /dev/null")?;
    let is_null =
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == fs::makedev(1, 3);
    if !is_null {
        return Err(Error::new(Kind::Unsupported, "the host's /dev/null is not the null device"));
    }
    Ok(tree)
}

/// An empty read-only folder.
fn empty_folder(trees: &Trees) -> Result<OwnedFd> {
    let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    trees.make(&Filesystem { kind: "tmpfs", source: "tmpfs", data: &[], attributes })
}
