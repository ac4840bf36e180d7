//! The task's root filesystem: attached, filled with mounts and devices,
//! sealed, and entered.
//!
//! ```text
//!   attach ─► mounts ─► devices ─► sysctls ─► read-only, masked ─► pivot
//! ```
//!
//! Runs in the child, in its own mount namespace. Every path inside the root is
//! resolved through file descriptors by `inside`, never by string: an image
//! may hold any symlink. Sources are the host's and are opened by path; with a
//! new user namespace the shim opens them beforehand, with the host's rights.
//! Must not: know who asked, or what a task is.

mod devices;
mod inside;
mod options;
mod seal;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use oci_spec::runtime::{Mount, Spec};
use rustix::fs::{self, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};

use crate::error::{Doing, Error, Kind, Result};
use crate::sys::{self, MountAttributes};

use inside::Make;
pub use inside::refuse_host_links;
use options::Options;

/// What is opened on the host's side: the root, and the source of each bind.
#[derive(Debug)]
pub struct Sources {
    root: OwnedFd,
    /// One for each mount of the spec; `None` where it is no bind.
    binds: Vec<Option<OwnedFd>>,
}

impl Sources {
    /// Adds the fds that must stay open until the root is set up.
    pub fn push_fds(&self, fds: &mut Vec<RawFd>) {
        let all = self.binds.iter().flatten().chain([&self.root]);
        fds.extend(all.map(|fd| fd.as_raw_fd()));
    }
}

/// Opens the root folder and every bind source as mounts of their own.
///
/// # Errors
/// `BadSpec` naming the path that is missing or is not a folder.
pub fn open_sources(spec: &Spec, bundle: &Path) -> Result<Sources> {
    let root = root_path(spec, bundle)?;
    let tree = open_tree(&root, true).map_err(|errno| {
        let error = Error::new(Kind::BadSpec, format!("rootfs: cannot open {}: {errno}", root.display()));
        if errno == Errno::NOENT { error.hint("give a folder that exists, or none for the host view") } else { error }
    })?;
    let kind = file_type(&tree).doing(Kind::Internal, || format!("cannot examine {}", root.display()))?;
    if kind != FileType::Directory {
        return Err(Error::new(Kind::BadSpec, format!("rootfs: {} is not a folder", root.display())));
    }
    // A copy of a shared mount is its peer: what is mounted on it would show on
    // the host.
    let slave = MountAttributes { propagation: libc::MS_SLAVE, ..MountAttributes::default() };
    sys::mount_setattr(tree.as_fd(), true, slave)
        .doing(Kind::Internal, || format!("cannot part {} from the host", root.display()))?;
    let mut binds = Vec::new();
    for mount in spec.mounts().iter().flatten() {
        binds.push(open_bind(mount)?);
    }
    Ok(Sources { root: tree, binds })
}

fn open_bind(mount: &Mount) -> Result<Option<OwnedFd>> {
    let Some(recursive) = options::of(mount)?.bind else {
        return Ok(None);
    };
    let source = mount.source().as_deref().unwrap_or(Path::new(""));
    let tree = open_tree(source, recursive).map_err(|errno| {
        Error::new(
            Kind::BadSpec,
            format!("mount {}: cannot open its source {}: {errno}", mount.destination().display(), source.display()),
        )
    })?;
    Ok(Some(tree))
}

/// Makes the root of `sources` a mount of this mount namespace. To be called
/// before the child gives up the uid that it was cloned with: the way to the
/// root may be closed to every other.
pub fn attach(spec: &Spec, bundle: &Path, sources: &Sources) -> Result<()> {
    let propagation = options::root_propagation(spec)?;
    let path = root_path(spec, bundle)?;
    let target = open_path(&path).doing(Kind::Internal, || format!("cannot open {}", path.display()))?;
    leave_chroot()?;
    let old_root = open_path(Path::new("/")).doing(Kind::Internal, || "cannot open /")?;
    sys::mount_setattr(old_root.as_fd(), true, propagation)
        .doing(Kind::Internal, || "cannot set the propagation of /")?;
    move_mount(&sources.root, &target)
        .doing(Kind::Internal, || format!("cannot attach the root filesystem {}", path.display()))
}

/// Makes the root of this mount namespace the root of this process.
///
/// They differ if we were started in a chroot. The task's root would then be
/// pivoted in the chroot's place alone: the host's would stay the namespace's,
/// where an exec enters by, and which CAP_SYS_CHROOT finds the way to.
fn leave_chroot() -> Result<()> {
    let what = || "cannot get to the root of the mount namespace";
    let namespace = fs::openat(CWD, "/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    sys::setns(namespace.doing(Kind::Internal, what)?.as_fd(), libc::CLONE_NEWNS).doing(Kind::Internal, what)
}

/// Fills the attached root, seals it, and makes it the root of this process.
pub fn enter(spec: &Spec, sources: &Sources, in_user_namespace: bool) -> Result<()> {
    rustix::process::umask(Mode::empty());
    let root = sources.root.as_fd();
    inside::refuse_host_links(root)?;
    let mut own_dev = false;
    for (mount, source) in spec.mounts().iter().flatten().zip(&sources.binds) {
        let options = options::of(mount)?;
        perform(root, mount, &options, source.as_ref())
            .map_err(|error| error.within(format_args!("mount {}", mount.destination().display())))?;
        own_dev |= mount.destination() == Path::new("/dev") && source.is_none();
    }
    if own_dev {
        devices::create(root, spec, in_user_namespace)?;
    }
    make_working_directory(root, spec)?;
    seal::sysctls(root, spec)?;
    seal::read_only_paths(root, spec)?;
    seal::masked_paths(root, spec)?;
    if spec.root().as_ref().and_then(|r| r.readonly()).unwrap_or(false) {
        let read_only = MountAttributes { set: libc::MOUNT_ATTR_RDONLY, ..MountAttributes::default() };
        sys::mount_setattr(root, false, read_only)
            .doing(Kind::Internal, || "cannot make the root filesystem read-only")?;
    }
    pivot(root)
}

/// Other runtimes make a missing working directory; so do we, before the root
/// may become read-only.
fn make_working_directory(root: BorrowedFd<'_>, spec: &Spec) -> Result<()> {
    let Some(process) = spec.process() else {
        return Ok(());
    };
    inside::open(root, process.cwd(), Make::Folder)
        .map(drop)
        .map_err(|error| error.within(format_args!("workdir {}", process.cwd().display())))
}

fn perform(root: BorrowedFd<'_>, mount: &Mount, options: &Options, source: Option<&OwnedFd>) -> Result<()> {
    let (tree, make) = match source {
        Some(tree) => {
            let folder = file_type(tree).doing(Kind::Internal, || "cannot examine its source")? == FileType::Directory;
            let tree = tree.as_fd();
            // Never a peer of the host's mount unless that was asked for.
            let change = MountAttributes {
                set: options.set,
                clear: options.clear,
                propagation: options.propagation.unwrap_or(libc::MS_SLAVE),
            };
            apply(tree, options.bind == Some(true), options, change)?;
            (None, if folder { Make::Folder } else { Make::File })
        }
        None => (Some(new_filesystem(mount, options)?), Make::Folder),
    };
    let target = inside::open(root, mount.destination(), make)?;
    refuse_proc(&target, mount)?;
    let tree = tree.as_ref().or(source);
    let tree = tree.ok_or_else(|| Error::new(Kind::Internal, "nothing to mount"))?;
    move_mount(tree, &target).doing(Kind::Internal, || "cannot attach it")
}

/// Files of procfs that may be mounted over: what they tell is accounting, and
/// lxcfs and its like replace them. The set is runc's.
const REPLACEABLE: [&str; 10] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/net/dev",
    "/proc/slabinfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/uptime",
    "/proc/sys/kernel/ns_last_pid",
];

/// Refuses to mount over procfs, by whatever way its destination got there: a
/// false /proc/self/attr or /proc/sys would undo a protection.
fn refuse_proc(target: &OwnedFd, mount: &Mount) -> Result<()> {
    let what = || "cannot examine its destination";
    let on_proc = fs::fstatfs(target).doing(Kind::Internal, what)?.f_type == libc::PROC_SUPER_MAGIC;
    let replaceable = REPLACEABLE.iter().any(|path| mount.destination() == Path::new(path));
    if on_proc && !replaceable {
        return Err(Error::new(Kind::BadSpec, "its destination is in /proc, which must not be mounted over"));
    }
    Ok(())
}

/// Applies `change` to a bind: attributes to the mount alone unless they were
/// asked for recursively, propagation to all of it.
fn apply(tree: BorrowedFd<'_>, recursive: bool, options: &Options, change: MountAttributes) -> Result<()> {
    let propagation = MountAttributes { propagation: change.propagation, ..MountAttributes::default() };
    sys::mount_setattr(tree, recursive, propagation).doing(Kind::Internal, || "cannot set its propagation")?;
    let attributes = MountAttributes { propagation: 0, ..change };
    if attributes.set | attributes.clear != 0 {
        sys::mount_setattr(tree, false, attributes).doing(Kind::Internal, || "cannot set its attributes")?;
    }
    if options.set_recursive | options.clear_recursive != 0 {
        let all = MountAttributes { set: options.set_recursive, clear: options.clear_recursive, propagation: 0 };
        sys::mount_setattr(tree, true, all).doing(Kind::Internal, || "cannot set its recursive attributes")?;
    }
    Ok(())
}

fn new_filesystem(mount: &Mount, options: &Options) -> Result<OwnedFd> {
    let kind = mount.typ().as_deref().unwrap_or("none");
    if kind == "cgroup" || kind == "none" {
        return Err(Error::new(Kind::Unsupported, format!("a mount of type {kind} is not supported")));
    }
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)
        .doing(Kind::Unsupported, || format!("this kernel cannot open a filesystem of type {kind}"))?;
    let source = mount.source().as_deref().and_then(Path::to_str).unwrap_or(kind);
    let mut outcome = rustix::mount::fsconfig_set_string(context.as_fd(), "source", source);
    for (key, value) in &options.data {
        outcome = outcome.and_then(|()| match value {
            Some(value) => rustix::mount::fsconfig_set_string(context.as_fd(), key.as_str(), value.as_str()),
            None => rustix::mount::fsconfig_set_flag(context.as_fd(), key.as_str()),
        });
    }
    outcome.and_then(|()| rustix::mount::fsconfig_create(context.as_fd())).map_err(|errno| {
        let why = kernel_message(&context).map_or_else(String::new, |m| format!(" ({m})"));
        Error::new(Kind::Internal, format!("cannot make a {kind} filesystem: {errno}{why}"))
    })?;
    let attributes = MountAttrFlags::from_bits_retain(options.all_set() as u32);
    let tree = rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .doing(Kind::Internal, || format!("cannot mount a {kind} filesystem"))?;
    Ok(tree)
}

/// What the kernel says about a filesystem that it would not make.
fn kernel_message(context: &OwnedFd) -> Option<String> {
    let mut buffer = [0u8; 256];
    let length = rustix::io::read(context, &mut buffer).ok()?;
    let text = String::from_utf8_lossy(&buffer[..length]);
    Some(text.trim_start_matches("e ").trim().to_owned())
}

fn pivot(root: BorrowedFd<'_>) -> Result<()> {
    let what = || "cannot make it the root";
    let old_root = open_path(Path::new("/")).doing(Kind::Internal, what)?;
    rustix::process::fchdir(root).doing(Kind::Internal, what)?;
    // Stacks the old root upon the new one; it is then detached from there
    // (pivot_root(2), "pivot_root(".", ".")").
    rustix::process::pivot_root(".", ".").doing(Kind::Internal, what)?;
    rustix::process::fchdir(&old_root).doing(Kind::Internal, what)?;
    let slave = MountAttributes { propagation: libc::MS_SLAVE, ..MountAttributes::default() };
    sys::mount_setattr(old_root.as_fd(), true, slave).doing(Kind::Internal, what)?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).doing(Kind::Internal, || "cannot detach the host's root")?;
    rustix::process::chdir("/").doing(Kind::Internal, what)
}

/// The absolute path of the root folder.
fn root_path(spec: &Spec, bundle: &Path) -> Result<std::path::PathBuf> {
    let root = spec.root().as_ref().ok_or_else(|| Error::new(Kind::BadSpec, "root: missing"))?;
    Ok(bundle.join(root.path()))
}

fn open_path(path: &Path) -> rustix::io::Result<OwnedFd> {
    fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// A copy of the mount at `path`, attached nowhere.
fn open_tree(path: &Path, recursive: bool) -> rustix::io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(CWD, path, flags)
}

/// As [`open_tree`], of what `fd` refers to.
fn clone_tree(fd: BorrowedFd<'_>, recursive: bool) -> rustix::io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(fd, "", flags)
}

/// Attaches the detached mount `tree` onto what `target` refers to.
fn move_mount<A: AsFd, B: AsFd>(tree: A, target: B) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree.as_fd(), "", target.as_fd(), "", flags)
}

fn file_type<Fd: AsFd>(fd: Fd) -> rustix::io::Result<FileType> {
    fs::fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode))
}
