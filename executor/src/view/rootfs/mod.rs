//! The task's root filesystem: attached, filled with mounts and devices,
//! sealed, and entered.
//!
//! ```text
//!   sources ─► mounts ─► devices ─► sysctls ─► read-only, masked ─► pivot
//! ```
//!
//! Runs in the child, in its own mount namespace. Every path inside the root is resolved through file descriptors
//! by `inside`, never by string: an image may hold any symlink. Sources are the host's and are opened by path; with
//! a new user namespace the shim opens them beforehand, with the host's rights. Must not: know the caller, or what
//! a task is.

mod bind_flags;
mod cgroups;
mod copy_up;
mod devices;
mod ephemeral;
mod filesystem;
mod handle;
mod host_view;
mod inside;
mod label;
pub mod layers;
mod moved_root;
mod options;
mod owners;
mod propagation;
mod remount;
mod room;
mod seal;
mod secret_files;
mod sources;
mod stage;
mod terminal;
mod trees;

use std::borrow::Cow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::{self as sys, MountAttributes};
use oci_spec::runtime::{Mount, Spec};
use rustix::fs::{self, FileType, Mode};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

pub use bind_flags::Binds;
pub use cgroups::ignored as ignored_cgroup_options;
pub use devices::has_own_dev;
pub use devices::{Null, null_apart, open_null_in_worker};
pub use ephemeral::apply as make_ephemeral;
use filesystem::Filesystem;
use handle::{file_type, open_path};
use inside::Make;
pub use inside::refuse_host_links;
use options::Options;
pub use options::names as mount_options;
pub use options::of as read_mount_options;
use propagation::RootPropagation;
use remount::Made;
pub use secret_files::{SECRETS, Secret};
pub use sources::{
    Source, Sources, are_idmapped, attach, hide_owners, open as open_sources, root_path as path,
    stage as stage_sources, take_up as take_up_sources,
};
pub use terminal::{Pty, open as open_terminal};
use trees::Trees;

use crate::view::namespaces;

/// What a task has that a configuration has no field for.
#[derive(Clone, Default)]
pub struct Additions {
    /// Files that only the user of the task's process reads.
    pub secrets: Vec<Secret>,
    /// How many bytes of changes to the root are kept, in memory and until the task ends; without it, changes go to
    /// the root folder.
    pub ephemeral: Option<u64>,
    /// Whether a bind has exactly the flags that its options name, as in a bundle.
    pub exact_binds: bool,
    /// Whether its host name is a default, without which it runs too: under systemd's `ProtectHostname=` nobody can set one.
    pub has_default_name: bool,
    /// Variables of its command alone: see [`Service`](crate::view::service::Service).
    pub service: Vec<String>,
    /// Whether the root is moved over that of the host, which pivot_root(2) cannot replace where it is a ramfs.
    pub moves_root: bool,
    /// Destinations of mounts that must not be made in the root: the folder that lacks one is covered by a view of it.
    pub covered: Vec<PathBuf>,
}

/// What init keeps when it enters its root.
pub struct Entered {
    /// Init's terminal, if it gets one.
    pub terminal: Option<Pty>,
    /// The null device, if init needs it.
    pub null: Option<OwnedFd>,
}

/// Fills the attached root, seals it, and makes it the root of this process: of its mount namespace or, in the
/// namespace `shared` if that is given, of this process and its children alone. Secrets are written once all mounts are
/// there. `hooks` is called when all mounts are
/// in place, nothing is read-only or masked yet, and the root is still the host's.
pub fn enter(
    spec: &Spec,
    sources: &Sources,
    in_user_namespace: bool,
    shared: Option<BorrowedFd<'_>>,
    wants_null: bool,
    additions: &Additions,
    hooks: impl FnOnce() -> Result<()>,
) -> Result<Entered> {
    rustix::process::umask(Mode::empty());
    let root = sources.root.as_fd();
    inside::refuse_host_links(root)?;
    let (made, covered) = (Made::wanted(spec), &*additions.covered);
    let mut filling = Filling { sources, root, spec, in_user_namespace, covered, made, read_only: Vec::new() };
    let (mut dev, mut propagation) = (None, RootPropagation::of(spec)?);
    for (mount, source) in spec.mounts().iter().flatten().zip(&sources.all) {
        let options = options::of(mount)?;
        let within = |error: Error| error.within(format_args!("mount {}", mount.destination().display()));
        let made = filling.mount(mount, &options, source).map_err(within)?;
        propagation.spare(root, mount, &options).map_err(within)?;
        if devices::is_own(mount, &options) {
            dev = made;
        }
    }
    let read_only = filling.read_only;
    secret_files::write(&additions.secrets, root, spec)?;
    let null = match (&dev, &sources.nodes) {
        (Some(dev), nodes) => devices::create(&sources.trees, root, dev, spec, nodes.as_ref())?,
        (None, Some(nodes)) => nodes.null()?,
        (None, None) => return Err(Error::new(Kind::Internal, "nobody has made a null device")),
    };
    let wanted = spec.process().as_ref().and_then(|process| process.terminal()).unwrap_or(false);
    let terminal = wanted.then(|| terminal::open(root)).transpose()?;
    if let (Some(terminal), Some(dev)) = (&terminal, &dev) {
        terminal::mount_console(&sources.trees, dev.as_fd(), terminal.slave.as_fd())?;
    }
    make_working_directory(root, spec)?;
    hooks()?;
    let place = seal::Place::new(root, spec)?;
    seal::sysctls(&place, spec)?;
    seal::read_only_paths(&sources.trees, &place, spec)?;
    seal::masked_paths(&sources.trees, &place, &sources.root, spec, &null)?;
    let null = wants_null.then(|| null.open()).transpose()?;
    let closed = MountAttributes { set: libc::MOUNT_ATTR_RDONLY, ..MountAttributes::default() };
    for tree in read_only {
        sources.trees.change(tree.as_fd(), false, closed).doing(Kind::Internal, || "cannot make a mount read-only")?;
    }
    if spec.root().as_ref().and_then(|r| r.readonly()).unwrap_or(false) {
        sources
            .trees
            .change(root, false, closed)
            .doing(Kind::Internal, || "cannot make the root filesystem read-only")?;
    }
    propagation.apply_below(&sources.trees, root)?;
    let copy = shared.map(|shared| leave(&sources.trees, root, shared)).transpose()?;
    match (&copy, additions.moves_root) {
        (Some(_), _) => {}
        (None, true) => moved_root::enter(root)?,
        (None, false) => pivot(&sources.trees, root)?,
    }
    // Only now, because a shared mount cannot become the root.
    propagation.apply(&sources.trees, copy.as_ref().map_or(root, OwnedFd::as_fd))?;
    Ok(Entered { terminal, null })
}

/// Creates a missing working directory, as other runtimes do, before the root may become read-only.
fn make_working_directory(root: BorrowedFd<'_>, spec: &Spec) -> Result<()> {
    let Some(process) = spec.process() else {
        return Ok(());
    };
    inside::open(root, process.cwd(), Make::Folder)
        .map(drop)
        .map_err(|error| error.within(format_args!("workdir {}", process.cwd().display())))
}

/// The root while it is filled with mounts.
struct Filling<'a> {
    sources: &'a Sources,
    root: BorrowedFd<'a>,
    spec: &'a Spec,
    in_user_namespace: bool,
    /// See [`Additions::covered`].
    covered: &'a [PathBuf],
    made: Option<Made>,
    /// The tmpfs, views of the host's folders among them, and the root that become read-only in the end: until then, places for devices and later mounts are
    /// made in them.
    read_only: Vec<OwnedFd>,
}

impl Filling<'_> {
    /// Carries out one mount of the spec; returns the new filesystem, if it makes one.
    fn mount(&mut self, mount: &Mount, options: &Options, source: &Source) -> Result<Option<OwnedFd>> {
        let Filling { sources, root, spec, in_user_namespace, .. } = *self;
        let trees = &sources.trees;
        match source {
            Source::Opened(bind) => {
                self.attach(mount, &bind.tree)?;
                for (place, tree) in &bind.below {
                    let target = inside::open(root, &mount.destination().join(place), Make::Nothing)?;
                    trees.attach(tree, &target).doing(Kind::Internal, || "cannot attach what is below")?;
                }
                Ok(None)
            }
            Source::Later(source) => {
                let tree = sources::open_late(sources, root, mount, options, source)?;
                self.attach(mount, &tree).map(|()| None)
            }
            Source::None if options.remount => {
                let target =
                    remount::remount(trees, root, mount, options, self.attributes(mount, options), self.made.as_ref())?;
                self.keep_for_later(mount, options, &target).map(|()| None)
            }
            Source::None if cgroups::is_one(mount) => {
                cgroups::mount(trees, root, spec, mount, options, in_user_namespace).map(|()| None)
            }
            Source::None => self.make(mount, options).map(Some),
        }
    }

    fn attach(&mut self, mount: &Mount, tree: &OwnedFd) -> Result<()> {
        let target = self.place(mount, || {
            let kind = file_type(tree).doing(Kind::Internal, || "cannot examine its source")?;
            Ok(if kind == FileType::Directory { Make::Folder } else { Make::File })
        })?;
        self.put(mount, tree, &target)
    }

    /// Where `mount` goes; what is missing is made.
    fn place(&mut self, mount: &Mount, make: impl FnOnce() -> Result<Make>) -> Result<OwnedFd> {
        let is_covered = self.covered.iter().any(|path| path == mount.destination());
        self.read_only.extend(room::make(&self.sources.trees, self.root, self.spec, mount, is_covered)?);
        inside::open_or(self.root, mount.destination(), make)
    }

    fn put(&self, mount: &Mount, tree: &OwnedFd, target: &OwnedFd) -> Result<()> {
        refuse_proc(target, tree, mount)?;
        refuse_false_proc(tree, mount)?;
        self.sources.trees.attach(tree, target).map_err(|errno| not_attached(target, tree, errno))
    }

    fn make(&mut self, mount: &Mount, options: &Options) -> Result<OwnedFd> {
        let mut data = Cow::Borrowed(&options.data);
        let covered = match is_tmpfs(mount) && !options.data.iter().any(|(key, _)| key == "mode") {
            true => inside::open(self.root, mount.destination(), Make::Nothing).ok(),
            false => None,
        };
        if let Some(covered) = &covered {
            let mode = fs::fstat(covered).doing(Kind::Internal, || "cannot examine what it covers")?.st_mode & 0o7777;
            data.to_mut().push(("mode".to_owned(), Some(format!("{mode:o}"))));
        }
        let tree = new_filesystem(self, mount, options, &data)?;
        let target = match covered {
            Some(covered) => covered,
            None => self.place(mount, || Ok(Make::Folder))?,
        };
        if options.copy_up {
            copy_up::copy(target.as_fd(), tree.as_fd())
                .doing(Kind::Internal, || "cannot copy what it hides (tmpcopyup)")?;
        }
        self.put(mount, &tree, &target)?;
        if let Some(made) = &mut self.made {
            made.add(self.spec, mount, &tree)?;
        }
        self.keep_for_later(mount, options, &tree)?;
        Ok(tree)
    }

    /// MOUNT_ATTR_* of a new or changed filesystem for now.
    fn attributes(&self, mount: &Mount, options: &Options) -> u64 {
        options.all_set() & if is_written_to(mount, options) { !libc::MOUNT_ATTR_RDONLY } else { !0 }
    }

    /// Keeps a tmpfs, or the root, that becomes read-only later.
    fn keep_for_later(&mut self, mount: &Mount, options: &Options, tree: &OwnedFd) -> Result<()> {
        if is_written_to(mount, options) && options.all_set() & libc::MOUNT_ATTR_RDONLY != 0 {
            self.read_only.push(tree.try_clone().doing(Kind::Internal, || "cannot copy an fd")?);
        }
        Ok(())
    }
}

/// Whether places are made in it after this mount, so that it becomes read-only only in the end.
fn is_written_to(mount: &Mount, options: &Options) -> bool {
    is_tmpfs(mount) && options.bind.is_none() || crate::view::inside_root::resolved(mount.destination()).is_empty()
}

fn is_tmpfs(mount: &Mount) -> bool {
    mount.typ().as_deref() == Some("tmpfs")
}

/// Procfs files that may be mounted over: they only hold accounting, and lxcfs and similar tools replace them. The
/// set is runc's, without `/proc/net/dev`: `/proc/net` leads to what each process has, which such a mount would not
/// cover.
const REPLACEABLE: [&str; 10] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/slabinfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/uptime",
    "/proc/sys/crypto/fips_enabled",
    "/proc/sys/kernel/ns_last_pid",
];

/// Why the kernel did not attach `tree`: a folder goes over no file, nor the reverse.
fn not_attached(target: &OwnedFd, tree: &OwnedFd, errno: Errno) -> Error {
    let is_folder = |fd: &OwnedFd| file_type(fd).map(|kind| kind == FileType::Directory);
    match (is_folder(tree), is_folder(target)) {
        (Ok(true), Ok(false)) => Error::new(Kind::BadSpec, "its destination is a file: not a directory"),
        (Ok(false), Ok(true)) => Error::new(Kind::BadSpec, "it is a file over a folder: not a directory"),
        _ => Error::new(Kind::Internal, format!("cannot attach it: {errno}")),
    }
}

/// Refuses to mount over procfs, however the destination leads there: a false /proc/self/attr or /proc/sys would
/// undo a protection. A whole procfs may be mounted over a whole one, because a root that was prepared for
/// chroot(1) has one already.
fn refuse_proc(target: &OwnedFd, tree: &OwnedFd, mount: &Mount) -> Result<()> {
    let kind = fs::fstatfs(target).doing(Kind::Internal, || "cannot examine its destination")?.f_type;
    let replaced = || seal::is_procfs(target.as_fd()) && seal::is_procfs(tree.as_fd());
    let replaceable = || REPLACEABLE.iter().any(|path| mount.destination() == Path::new(path));
    if kind != libc::PROC_SUPER_MAGIC || replaceable() || replaced() {
        return Ok(());
    }
    Err(Error::new(Kind::BadSpec, "its destination is in /proc, which must not be mounted over"))
}

/// Refuses anything but procfs at `/proc` (CVE-2019-19921): it would hold no kernel files to protect, and programs
/// would believe what it says.
fn refuse_false_proc(tree: &OwnedFd, mount: &Mount) -> Result<()> {
    if !crate::view::inside_root::is_at(mount.destination(), "proc") || seal::is_procfs(tree.as_fd()) {
        return Ok(());
    }
    Err(Error::new(Kind::BadSpec, "only procfs may be mounted at /proc").hint("mount it elsewhere"))
}

fn new_filesystem(
    filling: &Filling<'_>,
    mount: &Mount,
    options: &Options,
    data: &[(String, Option<String>)],
) -> Result<OwnedFd> {
    let Filling { sources, spec, in_user_namespace, .. } = *filling;
    let trees = &sources.trees;
    let kind = mount.typ().as_deref().unwrap_or("none");
    if kind == "none" {
        return Err(Error::new(Kind::Unsupported, format!("a mount of type {kind} is not supported")));
    }
    let source = mount.source().as_deref().and_then(Path::to_str).unwrap_or(kind);
    let data = label::within(spec, kind, data);
    let attributes = filling.attributes(mount, options);
    let tree = match trees.make(&Filesystem { kind, source, data: &data, attributes }) {
        // A user namespace can only mount a sysfs if it has its own network namespace.
        Err(_) if kind == "sysfs" && in_user_namespace => hosts_sys(trees)?,
        made => made?,
    };
    label::put(spec, kind, tree.as_fd())?;
    if let Some((propagation, _)) = options.propagation {
        let change = MountAttributes { propagation, ..MountAttributes::default() };
        trees.change(tree.as_fd(), false, change).doing(Kind::Internal, || "cannot set its propagation")?;
    }
    Ok(tree)
}

/// The host's `/sys` and all that is mounted in it, read-only.
fn hosts_sys(trees: &Trees) -> Result<OwnedFd> {
    let what = || "cannot bind the host's /sys";
    let tree = trees.copy(Path::new("/sys"), true).doing(Kind::Internal, what)?;
    let set = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    let change = MountAttributes { set, clear: 0, propagation: libc::MS_SLAVE };
    trees.change(tree.as_fd(), true, change).doing(Kind::Internal, what)?;
    Ok(tree)
}

/// Enters the mount namespace `shared`, and there a copy of the root that belongs to no namespace: it goes away with the
/// last process that has it as its root, and nothing in the namespace shows it. Returns the copy.
fn leave(trees: &Trees, root: BorrowedFd<'_>, shared: BorrowedFd<'_>) -> Result<OwnedFd> {
    let copy = trees.copy_of(root, true).doing(Kind::Internal, || "cannot copy the root filesystem")?;
    sys::setns(shared, libc::CLONE_NEWNS).doing(Kind::Unsupported, || "cannot enter the host's mount namespace")?;
    namespaces::change_root(copy.as_fd()).doing(Kind::Internal, || "cannot make it the root")?;
    Ok(copy)
}

fn pivot(trees: &Trees, root: BorrowedFd<'_>) -> Result<()> {
    let what = || "cannot make it the root";
    let old_root = open_path(Path::new("/")).doing(Kind::Internal, what)?;
    rustix::process::fchdir(root).doing(Kind::Internal, what)?;
    // Stacks the old root on the new one, and then detaches it from there (pivot_root(2), "pivot_root(".", ".")").
    rustix::process::pivot_root(".", ".").doing(Kind::Internal, what)?;
    rustix::process::fchdir(&old_root).doing(Kind::Internal, what)?;
    let slave = MountAttributes { propagation: libc::MS_SLAVE, ..MountAttributes::default() };
    trees.change(old_root.as_fd(), true, slave).doing(Kind::Internal, what)?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).doing(Kind::Internal, || "cannot detach the host's root")?;
    rustix::process::chdir("/").doing(Kind::Internal, what)
}
