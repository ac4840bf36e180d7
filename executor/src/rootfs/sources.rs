//! What a root filesystem is made from on the host's side: the root folder and
//! the source of each bind, as trees.
//!
//! ```text
//!   detached:  shim or child  open ─► child  attach
//!   staged:    worker or child  stage ─(its working directory)─► child  take_up
//! ```
//!
//! With a new user namespace, the shim opens them, or a worker with its own mount namespace stages them: the child
//! lacks the rights.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::{self as sys, MountAttributes};
use oci_spec::runtime::{LinuxIdMapping, Mount, Spec};
use rustix::fs::{self, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::handle::{file_type, open_path};
use super::host_view::Bind;
use super::options::{self, Options};
use super::stage::{self, Stage};
use super::trees::Trees;
use super::{devices, host_view};
use crate::idmap::Idmap;

/// The folder below the stage that the child's own stage is mounted over.
const OWN: &str = "own";

/// What is opened on the host's side: the root, and the source of each bind.
#[derive(Debug)]
pub struct Sources {
    /// The root folder.
    pub root: OwnedFd,
    /// One entry for each mount of the spec; `None` if it is not a bind.
    pub binds: Vec<Option<Bind>>,
    /// Device nodes that the child cannot make itself, or has no place for.
    pub nodes: Option<OwnedFd>,
    /// Where these trees are, and all that are made later.
    pub trees: Trees,
}

impl Sources {
    /// Adds the fds that must stay open until the root is set up.
    pub fn push_fds(&self, fds: &mut Vec<RawFd>) {
        let binds = self.binds.iter().flatten();
        let binds = binds.flat_map(|bind| std::iter::once(&bind.tree).chain(bind.below.iter().map(|(_, tree)| tree)));
        let all = binds.chain(&self.nodes).chain([&self.root]);
        fds.extend(all.map(|fd| fd.as_raw_fd()));
    }
}

/// Opens the root folder and every bind source, each detached. `nobody` is the user namespace that hides the owners
/// of the host view, if there is one.
///
/// # Errors
/// `BadSpec` naming the path that is missing or is not a folder.
pub fn open(spec: &Spec, bundle: &Path, in_user_namespace: bool, nobody: Option<BorrowedFd<'_>>) -> Result<Sources> {
    let path = root_path(spec, bundle)?;
    let trees = Trees::Detached;
    let root = trees.copy(&path, true).map_err(|errno| no_root(&path, errno))?;
    check_folder(&root, &path)?;
    // A copy of a shared mount is its peer: what is mounted on it would show on
    // the host.
    let slave = MountAttributes { propagation: libc::MS_SLAVE, ..MountAttributes::default() };
    trees
        .change(root.as_fd(), true, slave)
        .doing(Kind::Internal, || format!("cannot part {} from the host", path.display()))?;
    let mut binds = Vec::new();
    for mount in spec.mounts().iter().flatten() {
        let options = options::of(mount)?;
        let copy = |recursive| -> Result<Bind> {
            if bowline_spec::hides_owners(mount) {
                let bind = host_view::detached(&trees, mount, nobody)?;
                for tree in std::iter::once(&bind.tree).chain(bind.below.iter().map(|(_, tree)| tree)) {
                    apply(&trees, tree, recursive, &options, mount)?;
                }
                return Ok(bind);
            }
            let tree = trees.copy(source(mount), recursive).map_err(|errno| no_source(mount, errno))?;
            if let Some(below) = options.idmap {
                show_owners(&tree, below && recursive, mount, spec)?;
            }
            apply(&trees, &tree, recursive, &options, mount)?;
            Ok(tree.into())
        };
        binds.push(options.bind.map(copy).transpose()?);
    }
    let nodes = devices::beforehand(&trees, spec, in_user_namespace)?;
    Ok(Sources { root, binds, nodes, trees })
}

/// For kernels without detached mounts: mounts the sources on a stage, in the caller's own mount namespace, and
/// makes the stage the working directory. A child that is cloned with a new mount namespace finds the stage in its
/// copy.
pub fn stage(spec: &Spec, bundle: &Path, in_user_namespace: bool) -> Result<()> {
    let propagation = options::before_the_root(spec)?;
    let mut shared = false;
    for mount in spec.mounts().iter().flatten() {
        shared |= options::of(mount)?.propagation == Some(libc::MS_SHARED);
    }
    if shared {
        let message = "mounts cannot be shared with the host where the kernel lacks fsopen or mount_setattr";
        return Err(Error::new(Kind::Unsupported, message).hint("Linux 5.12 has both"));
    }
    let path = root_path(spec, bundle)?;
    let root = open_path(&path).map_err(|errno| no_root(&path, errno))?;
    check_folder(&root, &path)?;
    let mut binds = Vec::new();
    for mount in spec.mounts().iter().flatten() {
        let options = options::of(mount)?;
        if options.idmap.is_some() && !bowline_spec::hides_owners(mount) {
            let message = format!("mount {}: cannot be idmapped by this kernel", mount.destination().display());
            return Err(Error::new(Kind::Unsupported, message).hint("Linux 5.12 can"));
        }
        if let Some(recursive) = options.bind {
            let fd = open_path(source(mount)).map_err(|errno| no_source(mount, errno))?;
            binds.push((mount, options, recursive, fd));
        }
    }
    leave_chroot()?;
    let slash = open_path(Path::new("/")).doing(Kind::Internal, || "cannot open /")?;
    stage::change(slash.as_fd(), true, propagation).doing(Kind::Internal, || "cannot set the propagation of /")?;
    let what = || format!("cannot make a stage for the mounts of {}", path.display());
    let stage = Stage::new(root.as_fd(), || reopen(root.as_fd())).doing(Kind::Internal, what)?;
    fs::mkdirat(stage.dir(), OWN, Mode::from_raw_mode(0o755)).doing(Kind::Internal, what)?;
    rustix::process::fchdir(stage.dir()).doing(Kind::Internal, what)?;
    let here = open_path(Path::new(".")).doing(Kind::Internal, what)?;
    let trees = Trees::Staged(stage);
    trees.copy_of(root.as_fd(), true).doing(Kind::Internal, || format!("cannot bind {}", path.display()))?;
    for (mount, options, recursive, fd) in binds {
        let tree = match bowline_spec::hides_owners(mount) && host_view::is_copied(mount) {
            true => host_view::copy(&trees, fd.as_fd())?,
            false => trees.copy_of(fd.as_fd(), recursive).map_err(|errno| no_source(mount, errno))?,
        };
        apply(&trees, &tree, recursive, &options, mount)?;
    }
    devices::beforehand(&trees, spec, in_user_namespace)?;
    rustix::process::fchdir(here).doing(Kind::Internal, what)
}

/// Opens what [`stage()`] has put into the working directory.
pub fn take_up(spec: &Spec) -> Result<Sources> {
    let what = || "cannot find the staged mounts";
    let outer = open_path(Path::new(".")).doing(Kind::Internal, what)?;
    let spot = |number: usize| stage::open_spot(outer.as_fd(), &number.to_string()).doing(Kind::Internal, what);
    // In a user namespace, every copied mount is locked in its place, and a locked mount cannot become a root.
    let locked = spot(0)?;
    stage::bind(locked.as_fd(), locked.as_fd(), true).doing(Kind::Internal, || "cannot bind the root filesystem")?;
    let root = spot(0)?;
    let mut binds = Vec::new();
    let mut number = 0;
    for mount in spec.mounts().iter().flatten() {
        let is_bind = options::of(mount)?.bind.is_some();
        number += usize::from(is_bind);
        binds.push(is_bind.then(|| spot(number)).transpose()?.map(Bind::from));
    }
    // The device nodes come last, if there are any.
    let nodes = match stage::open_spot(outer.as_fd(), &(number + 1).to_string()) {
        Err(Errno::NOENT) => None,
        found => Some(found.doing(Kind::Internal, what)?),
    };
    let open_own = || stage::open_spot(outer.as_fd(), OWN);
    let own = open_own().doing(Kind::Internal, what)?;
    let stage = Stage::new(own.as_fd(), open_own).doing(Kind::Internal, || "cannot make a stage for mounts")?;
    Ok(Sources { root, binds, nodes, trees: Trees::Staged(stage) })
}

/// Makes the root of `sources` a mount of this mount namespace. Must be called before the child gives up the uid
/// that it was cloned with: every other uid may be barred from the way to the root.
pub fn attach(spec: &Spec, bundle: &Path, sources: &Sources) -> Result<()> {
    if matches!(sources.trees, Trees::Staged(_)) {
        return Ok(());
    }
    let propagation = options::before_the_root(spec)?;
    let path = root_path(spec, bundle)?;
    let target = open_path(&path).doing(Kind::Internal, || format!("cannot open {}", path.display()))?;
    leave_chroot()?;
    let old_root = open_path(Path::new("/")).doing(Kind::Internal, || "cannot open /")?;
    sources
        .trees
        .change(old_root.as_fd(), true, propagation)
        .doing(Kind::Internal, || "cannot set the propagation of /")?;
    sources
        .trees
        .attach(&sources.root, &target)
        .doing(Kind::Internal, || format!("cannot attach the root filesystem {}", path.display()))
}

/// Makes the root of this mount namespace the root of this process.
///
/// They differ if this process was started in a chroot. The task's root would then only replace the chroot: the
/// namespace's root would stay the host's, which is where an exec enters, and which a process with CAP_SYS_CHROOT
/// can reach.
fn leave_chroot() -> Result<()> {
    let what = || "cannot get to the root of the mount namespace";
    let namespace = fs::openat(CWD, "/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    sys::setns(namespace.doing(Kind::Internal, what)?.as_fd(), libc::CLONE_NEWNS).doing(Kind::Internal, what)
}

/// Whether the host view is shown without its owners.
pub fn hide_owners(spec: &Spec) -> bool {
    spec.mounts().iter().flatten().any(bowline_spec::hides_owners)
}

/// Whether a mount of the spec has its own idmap: the shim then has to open the sources, because it can map ids.
pub fn are_idmapped(spec: &Spec) -> Result<bool> {
    let mut idmapped = false;
    let hidden = |mount: &&Mount| !bowline_spec::hides_owners(mount);
    for mount in spec.mounts().iter().flatten().filter(hidden) {
        idmapped |= options::of(mount)?.idmap.is_some();
    }
    Ok(idmapped)
}

/// Makes `tree` show its files' owners by the mount's mappings, else by those of the task's user namespace.
fn show_owners(tree: &OwnedFd, recursive: bool, mount: &Mount, spec: &Spec) -> Result<()> {
    let linux = spec.linux().as_ref();
    let own = mount.uid_mappings().is_some() || mount.gid_mappings().is_some();
    let idmap = match own {
        true => Idmap { uids: flat(mount.uid_mappings()), gids: flat(mount.gid_mappings()) },
        false => Idmap {
            uids: linux.map_or_else(Vec::new, |l| flat(l.uid_mappings())),
            gids: linux.map_or_else(Vec::new, |l| flat(l.gid_mappings())),
        },
    };
    let what = || format!("mount {}", mount.destination().display());
    let owners = idmap.user_namespace().map_err(|error| error.within(what()))?;
    sys::mount_idmap(tree.as_fd(), recursive, owners.as_fd())
        .doing(Kind::Unsupported, || format!("{}: its filesystem or this kernel cannot map owners", what()))
}

fn flat(mappings: &Option<Vec<LinuxIdMapping>>) -> Vec<LinuxIdMapping> {
    mappings.clone().unwrap_or_default()
}

/// Applies a bind's options: attributes to the top mount alone unless they are recursive, propagation to all of it.
fn apply(trees: &Trees, tree: &OwnedFd, recursive: bool, options: &Options, mount: &Mount) -> Result<()> {
    let of = |what: &str| format!("mount {}: {what}", mount.destination().display());
    let tree = tree.as_fd();
    // The bind is never a peer of the host's mount unless its options ask for that.
    let propagation = options.propagation.unwrap_or(libc::MS_SLAVE);
    let propagation = MountAttributes { propagation, ..MountAttributes::default() };
    trees.change(tree, recursive, propagation).doing(Kind::Internal, || of("cannot set its propagation"))?;
    if options.set | options.clear != 0 {
        let one = MountAttributes { set: options.set, clear: options.clear, propagation: 0 };
        trees.change(tree, false, one).doing(Kind::Internal, || of("cannot set its attributes"))?;
    }
    if options.set_recursive | options.clear_recursive != 0 {
        let all = MountAttributes { set: options.set_recursive, clear: options.clear_recursive, propagation: 0 };
        trees.change(tree, true, all).doing(Kind::Unsupported, || of("cannot set its recursive attributes"))?;
    }
    Ok(())
}

fn source(mount: &Mount) -> &Path {
    mount.source().as_deref().unwrap_or(Path::new(""))
}

fn no_source(mount: &Mount, errno: Errno) -> Error {
    let (destination, source) = (mount.destination().display(), source(mount).display());
    Error::new(Kind::BadSpec, format!("mount {destination}: cannot open its source {source}: {errno}"))
}

fn no_root(path: &Path, errno: Errno) -> Error {
    let error = Error::new(Kind::BadSpec, format!("rootfs: cannot open {}: {errno}", path.display()));
    if errno == Errno::NOENT { error.hint("give a folder that exists, or none for the host view") } else { error }
}

fn check_folder(root: &OwnedFd, path: &Path) -> Result<()> {
    let kind = file_type(root).doing(Kind::Internal, || format!("cannot examine {}", path.display()))?;
    if kind != FileType::Directory {
        return Err(Error::new(Kind::BadSpec, format!("rootfs: {} is not a folder", path.display())));
    }
    Ok(())
}

/// The absolute path of the root folder.
pub fn root_path(spec: &Spec, bundle: &Path) -> Result<PathBuf> {
    let root = spec.root().as_ref().ok_or_else(|| Error::new(Kind::BadSpec, "root: missing"))?;
    Ok(bundle.join(root.path()))
}

/// Opens what is mounted on the folder `fd` by now.
fn reopen(fd: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let path = fs::readlinkat(CWD, format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new())?;
    fs::openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}
