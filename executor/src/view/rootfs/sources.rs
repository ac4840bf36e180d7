//! What a root filesystem is made from on the host's side: the root folder and
//! the source of each bind, as trees.
//!
//! ```text
//!   detached:  shim or child  open ─► child  attach
//!   staged:    worker or child  stage ─(its working directory)─► child  take_up
//! ```
//!
//! With a new user namespace, the shim opens them, or a worker with its own mount namespace stages them: the child
//! lacks the rights. Otherwise the child opens each source when its turn comes: then mountinfo lists the mounts in the
//! order of the spec. A source below the root folder is always opened so, inside the root: it may lie in an earlier
//! mount, and the image's symlinks must not lead to the host.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::{self as sys, MountAttributes};
use oci_spec::runtime::{LinuxIdMapping, Mount, Spec};
use rustix::fs::{self, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::bind_flags::{self, Binds};
use super::devices::Nodes;
use super::handle::{file_type, open_path};
use super::host_view::Bind;
use super::options::{self, Options};
use super::owners::{Mapper, Owners};
use super::stage::{self, Stage};
use super::trees::Trees;
use super::{devices, host_view};
use crate::view::idmap::Idmap;
use crate::view::inside_root::{self, Symlinks};
use crate::view::joined_users;

/// The folder below the stage that the child's own stage is mounted over.
const OWN: &str = "own";

/// What is opened on the host's side: the root, and the source of each bind.
#[derive(Debug)]
pub struct Sources {
    pub root: OwnedFd,
    /// One entry for each mount of the spec.
    pub all: Vec<Source>,
    /// Device nodes that the child cannot make itself, or has no place for.
    pub nodes: Option<Nodes>,
    /// Where these trees are, and all that are made later.
    pub trees: Trees,
    /// Who maps the owners of sources that are opened later.
    mapper: Option<Mapper>,
    /// How the flags of those are set that are opened later.
    binds: Binds,
}

/// The source of one mount of the spec.
#[derive(Debug)]
pub enum Source {
    /// The mount is not a bind.
    None,
    Opened(Bind),
    /// To be opened once all earlier mounts are in place.
    Later(BindSource),
}

/// Where the source of a bind is.
#[derive(Debug)]
pub enum BindSource {
    /// A path on the host.
    Host(PathBuf),
    /// A path in the root filesystem.
    Root(PathBuf),
}

impl Source {
    fn opened(&self) -> Option<&Bind> {
        if let Source::Opened(bind) = self { Some(bind) } else { None }
    }
}

impl Sources {
    /// Adds the fds that must stay open until the root is set up.
    pub fn push_fds(&self, fds: &mut Vec<RawFd>) {
        let binds = self.all.iter().filter_map(Source::opened);
        let binds = binds.flat_map(|bind| std::iter::once(&bind.tree).chain(bind.below.iter().map(|(_, tree)| tree)));
        let all = binds
            .chain(self.nodes.iter().flat_map(Nodes::fds))
            .chain([&self.root])
            .chain(self.mapper.as_ref().map(Mapper::fd));
        fds.extend(all.map(|fd| fd.as_raw_fd()));
    }
}

/// Opens the root folder and every bind source, each detached. `nobody` is the user namespace that hides the owners
/// of the host view, if there is one.
///
/// # Errors
/// `BadSpec` naming the path that is missing or is not a folder.
pub fn open(spec: &Spec, bundle: &Path, binds: Binds, nobody: Option<BorrowedFd<'_>>) -> Result<Sources> {
    let in_user_namespace = binds.in_user_namespace;
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
    let (mut all, mut mapped_later) = (Vec::new(), Vec::new());
    for mount in spec.mounts().iter().flatten() {
        let options = options::of(mount)?;
        let mut copied = |recursive| -> Result<Source> {
            if bowline_spec::hides_owners(mount) {
                let bind = host_view::detached(&trees, mount, nobody)?;
                for tree in std::iter::once(&bind.tree).chain(bind.below.iter().map(|(_, tree)| tree)) {
                    apply(&trees, tree, recursive, &options, Binds { exact: false, ..binds })?;
                }
                return Ok(Source::Opened(bind));
            }
            // By then, a mount of the host is the host's peer no more.
            let shared = options.propagation.is_some_and(|(propagation, _)| propagation == libc::MS_SHARED);
            let mut below = Ok(());
            let copy = |source: OwnedFd| {
                if recursive {
                    below = bind_flags::check_below(source.as_fd(), &options, binds);
                }
                trees.copy_of(source.as_fd(), recursive)
            };
            let tree = match bind_source(mount, bundle, &path)? {
                source @ BindSource::Root(_) if options.idmap.is_none() => return Ok(Source::Later(source)),
                source @ BindSource::Host(_) if !in_user_namespace && !shared && options.idmap.is_none() => {
                    return Ok(Source::Later(source));
                }
                BindSource::Host(source) => open_path(&source).and_then(copy),
                source @ BindSource::Root(_) if is_in_earlier(spec, mount, &source) => {
                    mapped_later.push(owners(mount, spec, options.idmap == Some(true) && recursive)?);
                    return Ok(Source::Later(source));
                }
                BindSource::Root(inside) => {
                    open_path(&path).and_then(|root| open_inside(root.as_fd(), &inside)).and_then(copy)
                }
            };
            let tree = tree.map_err(|errno| no_source(mount, errno))?;
            below?;
            if let Some(below) = options.idmap {
                owners(mount, spec, below && recursive)?.show(tree.as_fd())?;
            }
            apply(&trees, &tree, recursive, &options, binds)?;
            Ok(Source::Opened(tree.into()))
        };
        let copy = |recursive| copied(recursive).map_err(|error| within(mount, error));
        all.push(options.is_new_bind().map(copy).transpose()?.unwrap_or(Source::None));
    }
    let nodes = devices::beforehand(&trees, spec, in_user_namespace)?;
    let mapper = Mapper::start(&mapped_later)?;
    Ok(Sources { root, all, nodes, trees, mapper, binds })
}

/// For kernels without detached mounts: mounts the sources on a stage, in the caller's own mount namespace, and
/// makes the stage the working directory. A child that is cloned with a new mount namespace finds the stage in its
/// copy.
pub fn stage(spec: &Spec, bundle: &Path, binds: Binds) -> Result<()> {
    let propagation = options::before_the_root(spec)?;
    let mut shared = false;
    for mount in spec.mounts().iter().flatten() {
        shared |= options::of(mount)?.propagation.is_some_and(|(propagation, _)| propagation == libc::MS_SHARED);
    }
    if shared {
        let message = "mounts cannot be shared with the host where the kernel lacks fsopen or mount_setattr";
        return Err(Error::new(Kind::Unsupported, message).hint("Linux 5.12 has both"));
    }
    let path = root_path(spec, bundle)?;
    let root = open_path(&path).map_err(|errno| no_root(&path, errno))?;
    check_folder(&root, &path)?;
    let mut opened = Vec::new();
    for mount in spec.mounts().iter().flatten() {
        let options = options::of(mount)?;
        if options.idmap.is_some() && !bowline_spec::hides_owners(mount) {
            let error = Error::new(Kind::Unsupported, "cannot be idmapped by this kernel").hint("Linux 5.12 can");
            return Err(within(mount, error));
        }
        if let Some(recursive) = options.is_new_bind()
            && let BindSource::Host(source) = bind_source(mount, bundle, &path).map_err(|error| within(mount, error))?
        {
            let fd = open_path(&source).map_err(|errno| within(mount, no_source(mount, errno)))?;
            opened.push((mount, options, recursive, fd));
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
    for (mount, options, recursive, fd) in opened {
        let hidden = bowline_spec::hides_owners(mount);
        let tree = match host_view::copied(mount).filter(|_| hidden) {
            Some(names) => host_view::copy(&trees, fd.as_fd(), names),
            None => trees.copy_of(fd.as_fd(), recursive).map_err(|errno| no_source(mount, errno)),
        };
        let binds = Binds { exact: binds.exact && !hidden, ..binds };
        let done = tree.and_then(|tree| apply(&trees, &tree, recursive, &options, binds));
        done.map_err(|error| within(mount, error))?;
    }
    devices::beforehand(&trees, spec, binds.in_user_namespace)?;
    rustix::process::fchdir(here).doing(Kind::Internal, what)
}

/// Opens what [`stage()`] has put into the working directory.
pub fn take_up(spec: &Spec, bundle: &Path, binds: Binds) -> Result<Sources> {
    let what = || "cannot find the staged mounts";
    let outer = open_path(Path::new(".")).doing(Kind::Internal, what)?;
    let spot = |number: usize| stage::open_spot(outer.as_fd(), &number.to_string()).doing(Kind::Internal, what);
    // In a user namespace, every copied mount is locked in its place, and a locked mount cannot become a root.
    let locked = spot(0)?;
    stage::bind(locked.as_fd(), locked.as_fd(), true).doing(Kind::Internal, || "cannot bind the root filesystem")?;
    let root = spot(0)?;
    let path = root_path(spec, bundle)?;
    let (mut all, mut number) = (Vec::new(), 0);
    for mount in spec.mounts().iter().flatten() {
        let source = options::of(mount)?.is_new_bind().map(|_| bind_source(mount, bundle, &path)).transpose();
        let source = source.map_err(|error| within(mount, error))?;
        all.push(match source {
            None => Source::None,
            Some(source @ BindSource::Root(_)) => Source::Later(source),
            Some(BindSource::Host(_)) => {
                number += 1;
                Source::Opened(spot(number)?.into())
            }
        });
    }
    // The device nodes come last, if there are any.
    let nodes = match stage::open_spot(outer.as_fd(), &(number + 1).to_string()) {
        Err(Errno::NOENT) => None,
        found => Some(found.doing(Kind::Internal, what)?),
    };
    let open_own = || stage::open_spot(outer.as_fd(), OWN);
    let own = open_own().doing(Kind::Internal, what)?;
    let stage = Stage::new(own.as_fd(), open_own).doing(Kind::Internal, || "cannot make a stage for mounts")?;
    Ok(Sources { root, all, nodes: nodes.map(Nodes::Made), trees: Trees::Staged(stage), mapper: None, binds })
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

/// Opens the source of the bind `mount`, with whatever is mounted in `root` by now.
///
/// # Errors
/// `BadSpec` naming the source, without the mount.
pub fn open_late(
    sources: &Sources,
    root: BorrowedFd<'_>,
    mount: &Mount,
    options: &Options,
    source: &BindSource,
) -> Result<OwnedFd> {
    let Sources { trees, mapper, binds, .. } = sources;
    let recursive = options.bind.unwrap_or(false);
    let tree = match source {
        BindSource::Host(path) => trees.copy(path, recursive),
        BindSource::Root(path) => open_inside(root, path).and_then(|source| trees.copy_of(source.as_fd(), recursive)),
    };
    let tree = tree.map_err(|errno| no_source(mount, errno))?;
    if options.idmap.is_some() {
        let mapper = mapper.as_ref().ok_or_else(|| Error::new(Kind::Internal, "nobody maps its owners"))?;
        mapper.show(tree.as_fd())?;
    }
    apply(trees, &tree, recursive, options, *binds)?;
    Ok(tree)
}

fn open_inside(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    inside_root::open(root, path, OFlags::PATH | OFlags::CLOEXEC, Symlinks::Followed)
}

/// Where the source of the bind `mount` is: a relative one is in the bundle. `root` is the path of the root folder.
fn bind_source(mount: &Mount, bundle: &Path, root: &Path) -> Result<BindSource> {
    if bowline_spec::hides_owners(mount) {
        return Ok(BindSource::Host(mount.destination().clone()));
    }
    let source = mount.source().as_deref().filter(|source| !source.as_os_str().is_empty());
    let source = source.ok_or_else(|| Error::new(Kind::BadSpec, "it has no source"))?;
    let path = bundle.join(source);
    // By its text, as runc takes it: `..` leads to the parent of what the path says, not of where a symlink leads.
    let path = if source.is_relative() || path.starts_with(root) { cleaned(&path) } else { path };
    let root = cleaned(root);
    Ok(match path.strip_prefix(&root) {
        Ok(inside) if root != Path::new("/") => BindSource::Root(inside.to_owned()),
        _ => BindSource::Host(path),
    })
}

/// Whether `source` is in the root, and is what is mounted before `mount`, or is below that.
fn is_in_earlier(spec: &Spec, mount: &Mount, source: &BindSource) -> bool {
    let BindSource::Root(inside) = source else { return false };
    let mut earlier = spec.mounts().iter().flatten().take_while(|other| !std::ptr::eq(*other, mount));
    let inside = inside_root::resolved(inside);
    // One of the root itself is a remount, and no other place.
    let at = |other: &Mount| inside_root::resolved(other.destination());
    earlier.any(|other| !at(other).is_empty() && inside.starts_with(&at(other)))
}

/// The absolute `path` without `..`.
fn cleaned(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in inside_root::parts(path) {
        if part == ".." {
            clean.pop();
        } else {
            clean.push(part);
        }
    }
    clean
}

/// What the owners of `mount` are shown by: its own mappings, else those of the task's user namespace.
fn owners(mount: &Mount, spec: &Spec, recursive: bool) -> Result<Owners> {
    let linux = spec.linux().as_ref();
    let users = match (options::has_mappings(mount), joined_users::path(spec)) {
        (false, Some(path)) => {
            File::open(path).map(OwnedFd::from).doing(Kind::BadSpec, || format!("cannot open {}", path.display()))
        }
        (own, _) => {
            let idmap = match own {
                true => Idmap { uids: flat(mount.uid_mappings()), gids: flat(mount.gid_mappings()) },
                false => Idmap {
                    uids: linux.map_or_else(Vec::new, |l| flat(l.uid_mappings())),
                    gids: linux.map_or_else(Vec::new, |l| flat(l.gid_mappings())),
                },
            };
            idmap.user_namespace()
        }
    }?;
    Ok(Owners { users, recursive })
}

fn flat(mappings: &Option<Vec<LinuxIdMapping>>) -> Vec<LinuxIdMapping> {
    mappings.clone().unwrap_or_default()
}

/// Applies a bind's options: attributes and propagation to the top mount alone unless they are recursive.
fn apply(trees: &Trees, tree: &OwnedFd, recursive: bool, options: &Options, binds: Binds) -> Result<()> {
    let tree = tree.as_fd();
    if let (Trees::Staged(_), true) = (trees, recursive) {
        bind_flags::check_below(tree, options, binds)?;
    }
    let propagate = |propagation, recursive| {
        let change = MountAttributes { propagation, ..MountAttributes::default() };
        trees.change(tree, recursive, change).doing(Kind::Internal, || "cannot set its propagation")
    };
    let (wanted, below) = options.propagation.unwrap_or((libc::MS_SLAVE, true));
    // No mount is a peer of the host's unless the options ask for that.
    if recursive && !below {
        propagate(libc::MS_SLAVE, true)?;
    }
    // One call does both where they are about the same mounts.
    let of_top = match recursive && below {
        true => propagate(wanted, true).map(|()| 0)?,
        false => wanted,
    };
    bind_flags::set(trees, tree, of_top, options, binds)?;
    bind_flags::set_below(trees, tree, options, binds)
}

/// The error of this mount.
fn within(mount: &Mount, error: Error) -> Error {
    error.within(format_args!("mount {}", mount.destination().display()))
}

fn no_source(mount: &Mount, errno: Errno) -> Error {
    let source = mount.source().as_deref().unwrap_or(Path::new("")).display();
    Error::new(Kind::BadSpec, format!("cannot open its source {source}: {errno}"))
}

fn no_root(path: &Path, errno: Errno) -> Error {
    let error = Error::new(Kind::BadSpec, format!("cannot open {}: {errno}", path.display())).in_field("rootfs");
    if errno == Errno::NOENT { error.hint("give a folder that exists, or none for the host view") } else { error }
}

fn check_folder(root: &OwnedFd, path: &Path) -> Result<()> {
    let kind = file_type(root).doing(Kind::Internal, || format!("cannot examine {}", path.display()))?;
    if kind != FileType::Directory {
        return Err(Error::new(Kind::BadSpec, format!("{} is not a folder", path.display())).in_field("rootfs"));
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
