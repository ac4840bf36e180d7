//! Writes to `/proc/sys`, then seals the root: read-only and masked paths.
//!
//! Procfs and sysfs are opened once and everything in them is found from there: another task with the same root
//! folder may rename the folder `/proc` between any two steps, and a mount moves with its folder.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::MountAttributes;
use oci_spec::runtime::Spec;
use rustix::fs::{self, FileType, OFlags};
use rustix::io::Errno;

use super::devices::Null;
use super::filesystem::Filesystem;
use super::handle::file_type;
use super::label;
use super::trees::Trees;
use crate::oci::unsupported;
use crate::view::inside_root::{self, Symlinks};

/// SYSFS_MAGIC (linux/magic.h).
const SYSFS: fs::FsWord = 0x6265_6572;

/// The inode of procfs's root (PROC_ROOT_INO, linux/proc_fs.h).
const PROC_ROOT: u64 = 1;

/// The root of a task, and the kernel's filesystems in it.
pub struct Place<'a> {
    root: BorrowedFd<'a>,
    proc: Option<OwnedFd>,
    sys: Option<OwnedFd>,
}

impl<'a> Place<'a> {
    /// # Errors
    /// `BadSpec` when `/proc` or `/sys` is not what the spec mounts there.
    pub fn new(root: BorrowedFd<'a>, spec: &Spec) -> Result<Place<'a>> {
        let is_mounted = |name: &str, kind: Option<&str>| {
            let mut mounts = spec.mounts().iter().flatten();
            mounts.any(|mount| {
                inside_root::is_at(mount.destination(), name) && (kind.is_none() || mount.typ().as_deref() == kind)
            })
        };
        let proc = open_folder(root, "proc").ok().filter(|proc| is_procfs(proc.as_fd()));
        if proc.is_none() && is_mounted("proc", None) {
            return Err(replaced("proc"));
        }
        let mut sys = None;
        if is_mounted("sys", Some("sysfs")) {
            let found = open_folder(root, "sys").ok();
            let is_sysfs = |fd: &OwnedFd| fs::fstatfs(fd).is_ok_and(|stat| stat.f_type == SYSFS);
            sys = Some(found.filter(is_sysfs).ok_or_else(|| replaced("sys"))?);
        }
        Ok(Place { root, proc, sys })
    }

    /// Opens `path`, if it exists. `BadSpec` if it would be below a file.
    fn existing(&self, path: &str) -> Result<Option<OwnedFd>> {
        let (from, rest) = self.start(Path::new(path));
        match inside_root::open(from, rest, OFlags::PATH | OFlags::CLOEXEC, Symlinks::Followed) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => {
                let kind = if errno == Errno::NOTDIR { Kind::BadSpec } else { Kind::Internal };
                Err(Error::new(kind, format!("cannot open {path} in the root filesystem: {errno}")))
            }
        }
    }

    /// Where the walk to `path` starts, and what is left of it from there.
    fn start<'p>(&self, path: &'p Path) -> (BorrowedFd<'_>, &'p Path) {
        let climbs = path.components().any(|part| part == Component::ParentDir);
        for (name, fd) in [("/proc", &self.proc), ("/sys", &self.sys)] {
            if let (Some(fd), Ok(rest), false) = (fd, path.strip_prefix(name), climbs) {
                return (fd.as_fd(), rest);
            }
        }
        (self.root, path)
    }
}

/// Whether `fd` is the root of a procfs.
pub fn is_procfs(fd: BorrowedFd<'_>) -> bool {
    fs::fstatfs(fd).is_ok_and(|stat| stat.f_type == libc::PROC_SUPER_MAGIC)
        && fs::fstat(fd).is_ok_and(|stat| stat.st_ino == PROC_ROOT)
}

fn open_folder(root: BorrowedFd<'_>, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    inside_root::open(root, Path::new(name), flags, Symlinks::Refused)
}

fn replaced(name: &str) -> Error {
    Error::new(Kind::BadSpec, format!("/{name} is not the filesystem that was mounted there"))
        .in_field("rootfs")
        .hint("something changes the folder of the root filesystem meanwhile; give each task a folder of its own")
}

/// Writes the spec's sysctls, inside the namespaces they belong to.
pub fn sysctls(place: &Place<'_>, spec: &Spec) -> Result<()> {
    let linux = spec.linux().as_ref();
    for (key, value) in linux.and_then(|l| l.sysctl().as_ref()).into_iter().flatten() {
        let path = format!("sys/{}", unsupported::sysctl_path(key)?);
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let refused = |why: &dyn Display| {
            Error::new(Kind::BadSpec, format!("cannot set {key} to {value}: {why}")).in_field("sysctls")
        };
        // Anything else at /proc would swallow the write (CVE-2025-52881).
        let proc = place.proc.as_ref().ok_or_else(|| refused(&"there is no procfs at /proc"))?;
        let opened = inside_root::open(proc.as_fd(), Path::new(&path), flags, Symlinks::Refused);
        let mut file = File::from(opened.map_err(|errno| refused(&errno))?);
        file.write_all(value.as_bytes()).map_err(|error| refused(&error))?;
    }
    Ok(())
}

/// Makes each path and everything below it read-only. Skips paths that do not exist.
pub fn read_only_paths(trees: &Trees, place: &Place<'_>, spec: &Spec) -> Result<()> {
    let linux = spec.linux().as_ref();
    for path in linux.and_then(|l| l.readonly_paths().as_ref()).into_iter().flatten() {
        let what = || format!("cannot make {path} read-only");
        let Some(target) = place.existing(path).map_err(|error| error.within(what()))? else { continue };
        let read_only = MountAttributes { set: libc::MOUNT_ATTR_RDONLY, ..MountAttributes::default() };
        if inside_root::resolved(Path::new(path)).is_empty() {
            // Nobody would see what is attached there.
            trees.change(place.root, false, read_only).doing(Kind::Internal, what)?;
            continue;
        }
        let tree = trees.copy_of(target.as_fd(), true).doing(Kind::Internal, what)?;
        trees.change(tree.as_fd(), true, read_only).doing(Kind::Internal, what)?;
        trees.attach(&tree, &target).doing(Kind::Internal, what)?;
    }
    Ok(())
}

/// Hides each path: a file behind the task's null device, folders behind one empty read-only tmpfs. Never uses a
/// device node of the host: a process that may change its mode inside would change it for the host.
pub fn masked_paths(trees: &Trees, place: &Place<'_>, root: &OwnedFd, spec: &Spec, null: &Null) -> Result<()> {
    let linux = spec.linux().as_ref();
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    // One that is there twice is hidden once.
    let all = linux.and_then(|l| l.masked_paths().as_ref()).into_iter().flatten();
    let once: BTreeMap<_, &String> = all.map(|path| (inside_root::resolved(Path::new(path)), path)).collect();
    for path in once.into_values() {
        let Some(target) = place.existing(path).map_err(|error| error.within(cannot_mask(path)))? else { continue };
        let kind = file_type(&target).doing(Kind::Internal, || cannot_mask(path))?;
        let all = if kind == FileType::Directory { &mut folders } else { &mut files };
        all.push((path, target));
    }
    let masks = null.copies(trees, root, files.len())?;
    for ((path, target), mask) in files.iter().zip(&masks) {
        trees.attach(mask, target).doing(Kind::Internal, || cannot_mask(path))?;
    }
    let Some(((path, target), rest)) = folders.split_first() else { return Ok(()) };
    let empty = empty_folder(trees, spec).map_err(|error| error.within(cannot_mask(path)))?;
    trees.attach(&empty, target).doing(Kind::Internal, || cannot_mask(path))?;
    for (path, target) in rest {
        let mask = trees.copy_of(empty.as_fd(), false).doing(Kind::Internal, || cannot_mask(path))?;
        trees.attach(&mask, target).doing(Kind::Internal, || cannot_mask(path))?;
    }
    Ok(())
}

fn cannot_mask(path: &str) -> String {
    format!("cannot mask {path}")
}

/// Makes an empty tmpfs that is read-only.
fn empty_folder(trees: &Trees, spec: &Spec) -> Result<OwnedFd> {
    let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    let data = label::within(spec, "tmpfs", &[]);
    trees.make(&Filesystem { kind: "tmpfs", source: "tmpfs", data: &data, attributes })
}
