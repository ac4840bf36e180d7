//! The host's own folders, for a task without its own root. Their files have no owner inside, so that root there
//! reads only what everybody may read, whatever the host does to them meanwhile.
//!
//! ```text
//!   idmapped, where kernel and filesystem can
//!      └ else  /etc: a copy of what programs need
//!              /opt: nothing
//!              the others: each mount of them that can be, the rest as it is
//! ```
//!
//! CAP_DAC_OVERRIDE has no power over a file whose owner or group has no id in the task's user namespace
//! (`capable_wrt_inode_uidgid`), and a mount that maps no file's owner leaves every file without one.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Kind, Result};
use bowline_spec::{ETC, OPT};
use bowline_sys::{self as sys, mountinfo};
use oci_spec::runtime::Mount;
use rustix::fs::{self, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::filesystem::Filesystem;
use super::trees::Trees;

/// The parts of `/etc` that are copied where owners cannot be hidden: those that name lookup, the linker, locales,
/// certificates and shells need.
const COPIED: [&str; 47] = [
    "alternatives",
    "bash.bashrc",
    "bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "environment",
    "fonts",
    "gai.conf",
    "group",
    "host.conf",
    "hostname",
    "hosts",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "login.defs",
    "lsb-release",
    "magic",
    "mime.types",
    "netconfig",
    "networks",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "pki",
    "profile",
    "profile.d",
    "protocols",
    "redhat-release",
    "resolv.conf",
    "resolvconf",
    "rpc",
    "services",
    "shells",
    "ssl",
    "static",
    "system-release",
    "terminfo",
    "timezone",
    "xattr.conf",
    "zsh",
];

/// Mode bits that let everybody read a file, and list and enter a folder.
const READ: u32 = 0o004;
const LOOK: u32 = 0o005;

/// How deep folders may nest in what is copied.
const DEEPEST: usize = 16;

#[derive(Debug)]
pub struct Bind {
    /// The tree at the bind's destination.
    pub tree: OwnedFd,
    /// The trees that are attached below, in this order, where one tree does not hold everything.
    pub below: Vec<(PathBuf, OwnedFd)>,
}

impl From<OwnedFd> for Bind {
    fn from(tree: OwnedFd) -> Bind {
        Bind { tree, below: Vec::new() }
    }
}

/// The folder that `mount` shows; `nobody` is the user namespace that maps no file's owner, if there is one.
pub fn detached(trees: &Trees, mount: &Mount, nobody: Option<BorrowedFd<'_>>) -> Result<Bind> {
    let path = mount.destination();
    let what = || "cannot open it on the host";
    let tree = trees.copy(path, true).doing(Kind::BadSpec, what)?;
    let Some(nobody) = nobody else {
        return without_idmap(trees, mount, tree);
    };
    match sys::mount_idmap(tree.as_fd(), true, nobody) {
        Ok(()) => Ok(tree.into()),
        Err(_) if copied(mount).is_some() => without_idmap(trees, mount, tree),
        Err(_) => mount_by_mount(trees, path, nobody).doing(Kind::BadSpec, what),
    }
}

fn without_idmap(trees: &Trees, mount: &Mount, tree: OwnedFd) -> Result<Bind> {
    match copied(mount) {
        Some(names) => copy(trees, tree.as_fd(), names).map(Bind::from),
        None => Ok(tree.into()),
    }
}

/// Copies each mount at `path` and below as a separate tree, without owners where possible: a mount that is part of
/// a tree cannot be changed separately.
fn mount_by_mount(trees: &Trees, path: &Path, nobody: BorrowedFd<'_>) -> io::Result<Bind> {
    let hidden = |path: &Path| -> io::Result<OwnedFd> {
        let tree = trees.copy(path, false)?;
        // A mount whose owners cannot be hidden is shown as it is.
        let _ = sys::mount_idmap(tree.as_fd(), false, nobody);
        Ok(tree)
    };
    let path = path.canonicalize()?;
    let mut bind = Bind::from(hidden(&path)?);
    let all = mountinfo::read("/proc/self/mountinfo")?;
    // Each mount comes after the one that it lies on; of several in one place, only the last counts.
    let below: BTreeSet<&Path> = all.iter().filter_map(|mount| mount.target.strip_prefix(&path).ok()).collect();
    for place in below.into_iter().filter(|place| !place.as_os_str().is_empty()) {
        match hidden(&path.join(place)) {
            Ok(tree) => bind.below.push((place.to_owned(), tree)),
            // The mount is covered by another, or is gone by now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bind)
}

/// The names in a folder whose copies replace the mount where its owners cannot be hidden; `None` where the mount is
/// shown as it is.
pub fn copied(mount: &Mount) -> Option<&'static [&'static str]> {
    match mount.destination() {
        path if path == Path::new(ETC) => Some(&COPIED),
        path if path == Path::new(OPT) => Some(&[]),
        _ => None,
    }
}

/// Copies `names` from the host's `folder`, as far as everybody may read them.
pub fn copy(trees: &Trees, from: BorrowedFd<'_>, names: &[&str]) -> Result<OwnedFd> {
    let what = || "cannot copy what a task needs of a folder of the host";
    let data = [("mode".to_owned(), Some("0755".to_owned()))];
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    let tree = trees.make(&Filesystem { kind: "tmpfs", source: "tmpfs", data: &data, attributes })?;
    let to = folder(tree.as_fd()).doing(Kind::Internal, what)?;
    let from = folder(from).doing(Kind::Internal, what)?;
    for name in names {
        copy_one(from.as_fd(), to.as_fd(), Path::new(name), DEEPEST).doing(Kind::Internal, what)?;
    }
    Ok(tree)
}

fn folder(fd: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    fs::openat(fd, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Copies `name` from `from`, with everything below it, except for what not everybody may read. Files that the host
/// replaces meanwhile are checked as they are opened.
fn copy_one(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &Path, deeper: usize) -> io::Result<()> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = match fs::openat(from, name, flags, Mode::empty()) {
        Ok(opened) => opened,
        Err(Errno::LOOP) => return copy_link(from, to, name),
        // Nothing has that name, or it is a socket.
        Err(Errno::NOENT | Errno::NXIO) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    let stat = fs::fstat(&opened)?;
    // Nothing in a copy may run with another user's rights.
    let mode = Mode::from_raw_mode(stat.st_mode & 0o755);
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if stat.st_mode & READ == READ => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let made = fs::openat(to, name, flags, Mode::from_raw_mode(0o600))?;
            fs::fchmod(&made, mode)?;
            io::copy(&mut File::from(opened), &mut File::from(made)).map(drop)
        }
        FileType::Directory if stat.st_mode & LOOK == LOOK && deeper > 0 => {
            fs::mkdirat(to, name, Mode::from_raw_mode(0o700))?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let made = fs::openat(to, name, flags, Mode::empty())?;
            fs::fchmod(&made, mode)?;
            for entry in Dir::read_from(&opened)? {
                let entry = entry?;
                if entry.file_name() != c"." && entry.file_name() != c".." {
                    let name = Path::new(OsStr::from_bytes(entry.file_name().to_bytes()));
                    copy_one(opened.as_fd(), made.as_fd(), name, deeper - 1)?;
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn copy_link(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &Path) -> io::Result<()> {
    let target = fs::readlinkat(from, name, Vec::new())?;
    Ok(fs::symlinkat(&target, to, name)?)
}
