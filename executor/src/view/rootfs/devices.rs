//! Device nodes and the usual links in the task's own `/dev`.
//!
//! ```text
//!   init makes the nodes:      mknod in its /dev
//!   in a user namespace:       beforehand ─► a tmpfs with a node each ─► bound into its /dev
//!   without a /dev of its own: beforehand ─► a tmpfs with a null device
//!   bowline itself in one:     beforehand ─► the host's, bound into its /dev
//! ```
//!
//! Every node is the task's own: it shares its mode, owner and times with no other. A `/dev` that is a bind belongs
//! to the user: nothing is made there. Must not: give a node of the host to a task, where one can be made.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use oci_spec::runtime::{LinuxDevice, LinuxDeviceType, Mount, Spec};
use rustix::fs::{self, AtFlags, Dev, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{self, MountFlags, MountPropagationFlags};

use super::filesystem::Filesystem;
use super::inside::{self, Make};
use super::options::{self, Options};
use super::stage;
use super::trees::Trees;
use crate::view::idmap;
use crate::view::inside_root;

/// Devices that every container has (OCI runtime spec, "Default Devices"). The
/// null device is the first.
const DEFAULT: [(&str, u32, u32); 6] = [
    ("/dev/null", 1, 3),
    ("/dev/zero", 1, 5),
    ("/dev/full", 1, 7),
    ("/dev/random", 1, 8),
    ("/dev/urandom", 1, 9),
    ("/dev/tty", 5, 0),
];

/// Links that every container has (OCI runtime spec, "Dev symbolic links").
const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];

/// The name of the null device in a tree that is made for it.
const NULL: &str = "null";

/// The null device of a task.
pub enum Null {
    /// A node in a filesystem of the task, opened with O_PATH.
    Attached(OwnedFd),
    /// A tree that holds the node and is attached nowhere.
    Apart(OwnedFd),
}

impl Null {
    /// Opens the device for reading and writing.
    pub fn open(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = match self {
            Null::Attached(node) => fs::open(stage::at(node.as_fd()), flags, Mode::empty()),
            Null::Apart(tree) => fs::openat(tree, NULL, flags, Mode::empty()),
        };
        opened.doing(Kind::Internal, || "cannot open the task's null device")
    }

    /// Makes `count` copies of the node, each to be mounted once; `root` is covered for a moment.
    pub fn copies(&self, trees: &Trees, root: &OwnedFd, count: usize) -> Result<Vec<OwnedFd>> {
        let copies = match self {
            Null::Attached(node) => (0..count).map(|_| trees.copy_of(node.as_fd(), false)).collect(),
            Null::Apart(tree) => trees.copies_in(tree, root, (0..count).map(|_| NULL.to_owned())),
        };
        copies.doing(Kind::Internal, || "cannot copy the task's null device")
    }
}

/// A null device that a task can only reach as an open file, for new processes of a running task: the task's own
/// `/dev/null` may be anything by then.
///
/// # Errors
/// `Unsupported` where mounts cannot be detached.
pub fn null_apart() -> Result<Null> {
    Nodes::of(&Trees::Detached, &[Node::default(0)], None)?.null()
}

/// Opens a null device on kernels without detached mounts: mounts it in a separate mount namespace. The caller, a
/// worker, stays in that namespace.
pub fn open_null_in_worker() -> Result<OwnedFd> {
    let what = || "cannot make a null device";
    if !sys::in_first_user_namespace() {
        return null_apart()?.open();
    }
    sys::unshare(libc::CLONE_NEWNS).doing(Kind::Internal, what)?;
    let alone = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount::mount_change("/", alone).doing(Kind::Internal, what)?;
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount::mount("bowline", "/dev", "tmpfs", flags, c"mode=755").doing(Kind::Internal, what)?;
    let dev = super::handle::open_path(Path::new("/dev")).doing(Kind::Internal, what)?;
    let umask = rustix::process::umask(Mode::empty());
    let made = Node::default(0).make(dev.as_fd(), Path::new(NULL));
    rustix::process::umask(umask);
    made?;
    Null::Apart(dev).open()
}

/// Whether `stat` is that of the null device.
fn is_null(stat: &fs::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == fs::makedev(1, 3)
}

/// A device node to create.
struct Node<'a> {
    path: &'a Path,
    kind: FileType,
    number: Dev,
    mode: Mode,
    uid: Option<u32>,
    gid: Option<u32>,
    /// Whether every container has it: then whatever is there already stands.
    by_default: bool,
}

impl<'a> Node<'a> {
    fn default(index: usize) -> Node<'static> {
        let (path, major, minor) = DEFAULT[index];
        let number = fs::makedev(major, minor);
        let (kind, mode) = (FileType::CharacterDevice, Mode::from_raw_mode(0o666));
        Node { path: Path::new(path), kind, number, mode, uid: None, gid: None, by_default: true }
    }

    fn of(device: &'a LinuxDevice) -> Result<Node<'a>> {
        let path = device.path().as_path();
        let kind = match device.typ() {
            LinuxDeviceType::B => FileType::BlockDevice,
            LinuxDeviceType::P => FileType::Fifo,
            LinuxDeviceType::C | LinuxDeviceType::U | LinuxDeviceType::A => FileType::CharacterDevice,
        };
        let number = |n: i64| {
            let number = u32::try_from(n).doing(Kind::BadSpec, || format!("{} has a bad number", path.display()));
            number.map_err(|error| error.in_field("devices"))
        };
        let number = fs::makedev(number(device.major())?, number(device.minor())?);
        // Some managers send the mode with the bits of the type.
        let mode = Mode::from_raw_mode(device.file_mode().unwrap_or(0o666) & 0o7777);
        Ok(Node { path, kind, number, mode, uid: device.uid(), gid: device.gid(), by_default: false })
    }

    /// Whether `stat` is that of such a device. A FIFO has no number.
    fn is(&self, stat: &fs::Stat) -> bool {
        let kind = FileType::from_raw_mode(stat.st_mode);
        kind == self.kind && (kind == FileType::Fifo || stat.st_rdev == self.number)
    }

    /// Refuses a file in the device's place that is none.
    fn check(&self, there: rustix::io::Result<fs::Stat>) -> Result<()> {
        if self.by_default || there.is_ok_and(|stat| self.is(&stat)) {
            return Ok(());
        }
        let message = format!("linux.devices: {} is there already and is not this device", self.path.display());
        Err(Error::new(Kind::BadSpec, message))
    }

    /// Binds the host's node.
    fn of_host(&self, trees: &Trees) -> Result<OwnedFd> {
        let opened = super::handle::open_path(self.path);
        match opened.and_then(|node| Ok((fs::fstat(&node)?, node))) {
            Ok((stat, node)) if self.is(&stat) => trees
                .copy_of(node.as_fd(), false)
                .doing(Kind::Internal, || format!("cannot bind {}", self.path.display())),
            _ => {
                let message = format!("{} is no such device of the host's", self.path.display());
                let hint = "in a user namespace no device can be made: those of the host are bound";
                Err(Error::new(Kind::BadSpec, message).in_field("linux.devices").hint(hint))
            }
        }
    }

    /// Creates the node as `name` in `parent`; `false` if something is there already.
    fn make(&self, parent: BorrowedFd<'_>, name: &Path) -> Result<bool> {
        let what = || format!("cannot create device {}", self.path.display());
        match fs::mknodat(parent, name, self.kind, self.mode, self.number) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                self.check(fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW))?;
                return Ok(false);
            }
            Err(errno) => return Err(Error::new(Kind::Internal, format!("{}: {errno}", what()))),
        }
        let (uid, gid) = (self.uid.map(Uid::from_raw), self.gid.map(Gid::from_raw));
        if uid.is_some() || gid.is_some() {
            fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).doing(Kind::Internal, what)?;
        }
        Ok(true)
    }
}

/// The default devices and those of the spec.
fn nodes(spec: &Spec) -> Result<Vec<Node<'_>>> {
    let mut all: Vec<_> = (0..DEFAULT.len()).map(Node::default).collect();
    let linux = spec.linux().as_ref();
    for device in linux.and_then(|l| l.devices().as_ref()).into_iter().flatten() {
        let node = Node::of(device)?;
        // The configuration's owner and mode hold for a device that is there by default. Callers take the first for
        // the null device.
        match all.iter_mut().find(|other| other.path == node.path) {
            None => all.push(node),
            Some(other) if (other.kind, other.number) == (node.kind, node.number) => *other = node,
            Some(other) if other.by_default && node.path != Path::new(DEFAULT[0].0) => *other = node,
            Some(_) => {
                let message = format!("linux.devices: {} is given for two different devices", node.path.display());
                return Err(Error::new(Kind::BadSpec, message));
            }
        }
    }
    Ok(all)
}

/// Whether this mount is the task's own `/dev`: a new tmpfs. Any other is the user's, and a devtmpfs is even the
/// host's.
pub fn is_own(mount: &Mount, options: &Options) -> bool {
    let tmpfs = mount.typ().as_deref() == Some("tmpfs") && options.bind.is_none() && !options.remount;
    tmpfs && inside_root::is_at(mount.destination(), "dev")
}

/// Whether the task's `/dev` is its own: what is mounted there last.
pub fn has_own_dev(spec: &Spec) -> bool {
    let last = spec.mounts().iter().flatten().rfind(|mount| inside_root::is_at(mount.destination(), "dev"));
    last.is_some_and(|mount| options::of(mount).is_ok_and(|options| is_own(mount, &options)))
}

/// Nodes that are there before the task's `/dev` is, the null device first.
#[derive(Debug)]
pub enum Nodes {
    /// A tree with a node for each device.
    Made(OwnedFd),
    /// The host's, each bound by itself: in a user namespace nobody makes nodes.
    Hosts(Vec<OwnedFd>),
}

impl Nodes {
    fn of(trees: &Trees, nodes: &[Node<'_>], spec: Option<&Spec>) -> Result<Nodes> {
        match sys::in_first_user_namespace() {
            true => with_nodes(trees, nodes, spec).map(Nodes::Made),
            false => nodes.iter().map(|node| node.of_host(trees)).collect::<Result<_>>().map(Nodes::Hosts),
        }
    }

    pub fn fds(&self) -> &[OwnedFd] {
        match self {
            Nodes::Made(tree) => std::slice::from_ref(tree),
            Nodes::Hosts(all) => all,
        }
    }

    /// The null device.
    pub fn null(&self) -> Result<Null> {
        let fd = self.fds()[0].try_clone().doing(Kind::Internal, || "cannot copy an fd")?;
        Ok(if let Nodes::Made(_) = self { Null::Apart(fd) } else { Null::Attached(fd) })
    }
}

/// Makes the nodes that init cannot make itself, or has no place for: one for each device, or the null device alone; `None`
/// if init needs neither. Must be called with the host's rights.
pub fn beforehand(trees: &Trees, spec: &Spec, in_user_namespace: bool) -> Result<Option<Nodes>> {
    let mut own = false;
    for mount in spec.mounts().iter().flatten() {
        own |= is_own(mount, &options::of(mount)?);
    }
    match (own, in_user_namespace) {
        (true, false) => Ok(None),
        (true, true) => Nodes::of(trees, &nodes(spec)?, Some(spec)).map(Some),
        (false, _) => Nodes::of(trees, &[Node::default(0)], None).map(Some),
    }
}

/// The name of the node with this number in the tree of [`with_nodes`].
fn name(number: usize) -> String {
    if number == 0 { NULL.to_owned() } else { number.to_string() }
}

/// Makes a tmpfs with these nodes, the null device first. Their owners follow the id maps of `spec`.
fn with_nodes(trees: &Trees, nodes: &[Node<'_>], spec: Option<&Spec>) -> Result<OwnedFd> {
    let data = [("mode".to_owned(), Some("755".to_owned()))];
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
    let tree = trees.make(&Filesystem { kind: "tmpfs", source: "tmpfs", data: &data, attributes })?;
    let umask = rustix::process::umask(Mode::empty());
    let made = nodes.iter().enumerate().try_for_each(|(number, node)| {
        let owned = match spec.filter(|_| node.uid.is_some() || node.gid.is_some()) {
            Some(spec) => {
                let (uid, gid) = idmap::host_ids(spec, node.uid.unwrap_or(0), node.gid.unwrap_or(0));
                &Node { uid: Some(uid), gid: Some(gid), ..*node }
            }
            None => node,
        };
        owned.make(tree.as_fd(), Path::new(&name(number))).map(drop)
    });
    rustix::process::umask(umask);
    made.map(|()| tree)
}

/// Fills `dev`, the task's own `/dev`, with the devices of the spec and the
/// default ones, made here or, with a user namespace, [`beforehand`].
///
/// Works in that very filesystem: what is mounted over it by now is the user's.
pub fn create(
    trees: &Trees,
    root: BorrowedFd<'_>,
    dev: &OwnedFd,
    spec: &Spec,
    beforehand: Option<&Nodes>,
) -> Result<Null> {
    let nodes = nodes(spec)?;
    let null = match beforehand {
        Some(there) => Null::Attached(bind(trees, root, dev, &nodes, there)?),
        None => {
            for node in &nodes {
                make(root, dev, node)?;
            }
            own_null(trees, dev)?
        }
    };
    for (target, name) in LINKS {
        match fs::symlinkat(target, dev, name) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Error::new(Kind::Internal, format!("cannot link /dev/{name}: {errno}"))),
        }
    }
    Ok(null)
}

/// Where `path` is: in `dev`, or elsewhere in `root`.
fn place<'p>(root: BorrowedFd<'p>, dev: &'p OwnedFd, path: &'p Path) -> (BorrowedFd<'p>, PathBuf) {
    match path.strip_prefix("/dev") {
        Ok(rest) => (dev.as_fd(), Path::new("/").join(rest)),
        Err(_) => (root, path.to_owned()),
    }
}

fn make(root: BorrowedFd<'_>, dev: &OwnedFd, node: &Node<'_>) -> Result<()> {
    let (base, path) = place(root, dev, node.path);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::new(Kind::BadSpec, format!("{} names no file", node.path.display())).in_field("devices"));
    };
    // A device may be given by the description and by default, or be mounted: the first one stands.
    if parent == Path::new("/") {
        return node.make(base, Path::new(name)).map(drop);
    }
    let parent = inside::open(base, parent, Make::Folder)?;
    node.make(parent.as_fd(), Path::new(name)).map(drop)
}

/// The null device that was made in `dev`, or another one if the user has mounted something in its place.
fn own_null(trees: &Trees, dev: &OwnedFd) -> Result<Null> {
    let what = || "cannot open the task's null device";
    let node = stage::open_spot(dev.as_fd(), "null").doing(Kind::Internal, what)?;
    let (stat, of_dev) = (fs::fstat(&node).doing(Kind::Internal, what)?, fs::fstat(dev).doing(Kind::Internal, what)?);
    if is_null(&stat) && stat.st_dev == of_dev.st_dev {
        return Ok(Null::Attached(node));
    }
    with_nodes(trees, &[Node::default(0)], None).map(Null::Apart)
}

/// Mounts the nodes that are `there` in their places; returns the null device.
fn bind(trees: &Trees, root: BorrowedFd<'_>, dev: &OwnedFd, nodes: &[Node<'_>], there: &Nodes) -> Result<OwnedFd> {
    let what = || "cannot copy the task's devices";
    let mut copies = match there {
        Nodes::Made(tree) => trees.copies_in(tree, dev, (0..nodes.len()).map(name)).doing(Kind::Internal, what)?,
        Nodes::Hosts(all) => {
            all.iter().map(OwnedFd::try_clone).collect::<std::io::Result<_>>().doing(Kind::Internal, what)?
        }
    };
    for (node, copy) in nodes.iter().zip(&copies) {
        let (base, path) = place(root, dev, node.path);
        let what = || format!("cannot create device {}", node.path.display());
        let target = match inside::open(base, &path, Make::Nothing) {
            Ok(there) => {
                node.check(fs::fstat(&there))?;
                there
            }
            Err(error) if error.kind() == Kind::NotFound => inside::open(base, &path, Make::File)?,
            Err(error) => return Err(error),
        };
        trees.attach(copy, &target).doing(Kind::Internal, what)?;
    }
    Ok(copies.swap_remove(0))
}
