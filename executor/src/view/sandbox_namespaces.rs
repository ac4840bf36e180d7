//! Namespaces that the members of a sandbox share, or that a task has besides those that are cloned with it: made or joined once, and held by the shim.
//!
//! ```text
//!   shim ─fork─► worker: unshare, setns ─► loopback, host name, settings
//!     ▲                                      │
//!     └── /proc/self/ns/… ── SCM_RIGHTS ─────┘     others: /proc/<shim>/fd/<n>
//! ```
//!
//! The namespaces live for as long as the shim holds them or a member is in them; no process has to
//! stay for that. Must not: know who the members are, run plugins.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::json::handover::Fd;
use bowline_model::sandbox::Inodes;
use bowline_spec::NetworkMode;
use bowline_sys as sys;
use libc::c_int;
use oci_spec::runtime::LinuxNamespaceType;
use rustix::fs::fstat;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize};

use crate::oci::unsupported;
use crate::process::worker;
use crate::view::network;

/// What the members will share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The network: with "host" none is shared; with "none" and "cni" a new one, its loopback
    /// interface up; or the one at a path, as it is.
    pub network: NetworkMode,
    /// Whether to share System V objects and POSIX message queues.
    pub ipc: bool,
    /// Whether to share the names of the host.
    pub uts: bool,
    /// The host name; without it a new namespace has the host's.
    pub hostname: Option<String>,
    /// Kernel settings, only of what is shared.
    pub sysctls: BTreeMap<String, String>,
}

/// The shared namespaces, and the ports of their network, held until this is dropped. Processes that are inside then stay.
#[derive(Debug, Default)]
pub struct Shared {
    network: Option<OwnedFd>,
    ipc: Option<OwnedFd>,
    uts: Option<OwnedFd>,
    /// Settings of interfaces that do not exist yet.
    later: BTreeMap<String, String>,
    /// Ports of the host that are taken for the network.
    pub ports: Vec<OwnedFd>,
}

/// Each kind, in the order in which they are sent.
const KINDS: [(c_int, &str); 3] =
    [(libc::CLONE_NEWNET, "net"), (libc::CLONE_NEWIPC, "ipc"), (libc::CLONE_NEWUTS, "uts")];

/// Makes the requested namespaces, or joins them.
///
/// # Errors
/// `BadSpec` for a path that is no network namespace, or for a setting that the kernel does not
/// take or that would change the host's; `Unsupported` where the kernel refuses a namespace.
pub async fn make(wanted: &Wanted) -> Result<Shared> {
    let shared = wanted.kinds();
    for key in wanted.sysctls.keys() {
        unsupported::sysctl(key, &|kind| shared & flag(kind) != 0)?;
    }
    if wanted.hostname.is_some() && !wanted.uts {
        let message = "without a UTS namespace of the sandbox it would be the host's";
        return Err(Error::new(Kind::BadSpec, message).in_field("hostname"));
    }
    if shared == 0 {
        return Ok(Shared::default());
    }
    let (mut now, mut later) = (Vec::new(), BTreeMap::new());
    for (key, value) in &wanted.sysctls {
        let path = unsupported::sysctl_path(key)?;
        if awaits_interface(&path) {
            later.insert(key.clone(), value.clone());
        } else {
            now.push((key, path, value));
        }
    }
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.doing(Kind::Internal, || "cannot make a socket for namespaces")?;
    worker::run("a sandbox's namespaces", || {
        enter(wanted)?;
        now.iter().try_for_each(|(key, path, value)| set(key, path, value))?;
        hand_over(theirs.as_fd(), shared)
    })
    .await?;
    let [network, ipc, uts] = take_over(&ours, shared)?;
    Ok(Shared { network, ipc, uts, later, ports: Vec::new() })
}

impl Wanted {
    /// The wanted namespaces that `shared` lacks.
    pub fn beyond(self, shared: &Shared) -> Wanted {
        let network = if shared.network.is_some() { NetworkMode::Host } else { self.network };
        let (ipc, uts) = (self.ipc && shared.ipc.is_none(), self.uts && shared.uts.is_none());
        let rest = Wanted { network, ipc, uts, hostname: self.hostname.filter(|_| uts), sysctls: BTreeMap::new() };
        let kinds = rest.kinds();
        let sysctls = self
            .sysctls
            .into_iter()
            .filter(|(key, _)| unsupported::sysctl(key, &|kind| kinds & flag(kind) != 0).is_ok());
        Wanted { sysctls: sysctls.collect(), ..rest }
    }

    /// The requested namespaces, as CLONE_NEW* bits.
    fn kinds(&self) -> c_int {
        let all = [self.network != NetworkMode::Host, self.ipc, self.uts];
        KINDS.iter().zip(all).filter(|(_, wanted)| *wanted).fold(0, |bits, ((flag, _), _)| bits | flag)
    }
}

/// The namespaces, as a shim hands them over. Their numbers are in the paths by which members join them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Handed {
    network: Option<Fd>,
    ipc: Option<Fd>,
    uts: Option<Fd>,
    #[serde(default)]
    ports: Vec<Fd>,
}

impl Handed {
    pub(crate) fn take(self) -> Result<Shared> {
        let taken = |fd: Option<Fd>| fd.map(Fd::take).transpose();
        let (network, ipc, uts) = (taken(self.network)?, taken(self.ipc)?, taken(self.uts)?);
        let ports = self.ports.into_iter().map(Fd::take).collect::<Result<_>>()?;
        Ok(Shared { network, ipc, uts, later: BTreeMap::new(), ports })
    }
}

impl Shared {
    /// No namespace, but these ports of the host.
    pub fn with_ports(ports: Vec<OwnedFd>) -> Shared {
        Shared { ports, ..Shared::default() }
    }

    /// What shows whether a namespace is one of these.
    pub fn inodes(&self) -> Inodes {
        let inode = |fd: &Option<OwnedFd>| fstat(fd.as_ref()?).ok().map(|stat| stat.st_ino);
        let all = [&self.network, &self.ipc, &self.uts].into_iter().zip(KINDS);
        all.filter_map(|(fd, (_, name))| Some((name.to_owned(), inode(fd)?))).collect()
    }

    /// Those that a shim which died has made, as far as one of `processes` is in them; a network also by the file `pinned`.
    ///
    /// # Errors
    /// `Internal` where one may be there and cannot be opened.
    pub fn found(inodes: &Inodes, processes: &[i32], pinned: &Path) -> Result<Shared> {
        let find = |(flag, name): (c_int, &str)| -> Result<Option<OwnedFd>> {
            let Some(wanted) = inodes.get(name) else { return Ok(None) };
            let of_processes = processes.iter().map(|pid| format!("/proc/{pid}/ns/{name}").into());
            let pinned = (flag == libc::CLONE_NEWNET).then(|| pinned.to_owned());
            let what = |path: &Path| format!("cannot open namespace {}", path.display());
            for path in of_processes.chain(pinned) {
                let path: PathBuf = path;
                let opened = sys::unless_gone(File::open(&path).map(Some)).doing(Kind::Internal, || what(&path))?;
                let Some(opened) = opened.map(OwnedFd::from) else { continue };
                let inode = fstat(&opened).doing(Kind::Internal, || what(&path))?.st_ino;
                if inode == *wanted && is_ours(flag, opened.as_fd()) {
                    return Ok(Some(opened));
                }
            }
            Ok(None)
        };
        let [network, ipc, uts] = KINDS.map(find);
        Ok(Shared { network: network?, ipc: ipc?, uts: uts?, ..Shared::default() })
    }

    /// These, and of `others` what is missing here.
    pub fn or(self, others: Shared) -> Shared {
        Shared {
            network: self.network.or(others.network),
            ipc: self.ipc.or(others.ipc),
            uts: self.uts.or(others.uts),
            later: others.later,
            ports: self.ports,
        }
    }

    /// The namespaces for the program that is executed in the shim's place. All interfaces have their settings.
    pub fn hand_over(&self) -> Handed {
        let handed = |fd: &Option<OwnedFd>| fd.as_ref().map(Fd::of);
        let ports = self.ports.iter().map(Fd::of).collect();
        Handed { network: handed(&self.network), ipc: handed(&self.ipc), uts: handed(&self.uts), ports }
    }

    /// The path by which others reach the network namespace, while this shim lives.
    pub fn network(&self) -> Option<PathBuf> {
        self.network.as_ref().map(path)
    }

    /// The path by which others reach the IPC namespace, while this shim lives.
    pub fn ipc(&self) -> Option<PathBuf> {
        self.ipc.as_ref().map(path)
    }

    /// The path by which others reach the UTS namespace, while this shim lives.
    pub fn uts(&self) -> Option<PathBuf> {
        self.uts.as_ref().map(path)
    }

    /// Applies the settings of interfaces, which exist by now.
    ///
    /// # Errors
    /// `BadSpec` for a setting that the kernel does not take, or that has no interface.
    pub async fn settle(&self) -> Result<()> {
        let Some(network) = self.network.as_ref().filter(|_| !self.later.is_empty()) else { return Ok(()) };
        worker::run("the settings of interfaces", || {
            let what = || "cannot enter a sandbox's network";
            sys::setns(network.as_fd(), libc::CLONE_NEWNET).doing(Kind::Internal, what)?;
            self.later.iter().try_for_each(|(key, value)| set(key, &unsupported::sysctl_path(key)?, value))
        })
        .await
    }
}

fn path(fd: &OwnedFd) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd()).into()
}

fn flag(kind: LinuxNamespaceType) -> c_int {
    match kind {
        LinuxNamespaceType::Network => libc::CLONE_NEWNET,
        LinuxNamespaceType::Ipc => libc::CLONE_NEWIPC,
        LinuxNamespaceType::Uts => libc::CLONE_NEWUTS,
        _ => 0,
    }
}

/// Whether a setting belongs to an interface that a new namespace does not have:
/// `net/ipv4/conf/eth0/…` and `net/ipv6/neigh/eth0/…`.
fn awaits_interface(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(parts[..], ["net", _, "conf" | "neigh", name, _] if !["all", "default", "lo"].contains(&name))
}

/// In a worker: leaves the shim's namespaces.
fn enter(wanted: &Wanted) -> Result<()> {
    let mut new = wanted.kinds();
    if let NetworkMode::Path(path) = &wanted.network {
        join(path, wanted.sysctls.keys().any(|key| key.starts_with("net")))?;
        new &= !libc::CLONE_NEWNET;
    }
    let names: Vec<&str> = KINDS.iter().filter(|(flag, _)| new & flag != 0).map(|(_, name)| *name).collect();
    sys::unshare(new).doing(Kind::Unsupported, || format!("cannot make the namespaces {}", names.join(", ")))?;
    if new & libc::CLONE_NEWNET != 0 {
        network::prepare_new()?;
    }
    if let Some(hostname) = &wanted.hostname {
        let what = || format!("cannot set the hostname to {hostname}");
        rustix::system::sethostname(hostname.as_bytes()).doing(Kind::BadSpec, what)?;
    }
    Ok(())
}

/// Joins the network at `path`; `to_be_set` says whether sysctls will be set in it.
fn join(path: &Path, to_be_set: bool) -> Result<()> {
    let what = || format!("cannot open {}", path.display());
    let in_mode = |error: Error| error.in_field("network.mode");
    // Do not wait if something else is there instead.
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let of = opened.doing(Kind::BadSpec, what).map_err(in_mode)?;
    if to_be_set {
        let which = |of: fs::Metadata| (of.dev(), of.ino());
        let there = of.metadata().map(which).doing(Kind::Internal, what).map_err(in_mode)?;
        let host = fs::metadata("/proc/self/ns/net").map(which).doing(Kind::Internal, || "cannot find the network")?;
        if there == host {
            let message = format!("{} is the host's network, which they would change", path.display());
            return Err(Error::new(Kind::BadSpec, message).in_field("network.sysctls"));
        }
    }
    let what = || format!("cannot join {}: it is no network namespace, or not ours to join", path.display());
    sys::setns(of.as_fd(), libc::CLONE_NEWNET).doing(Kind::BadSpec, what).map_err(in_mode)
}

fn set(key: &str, path: &str, value: &str) -> Result<()> {
    let file = File::options().write(true).open(Path::new("/proc/sys").join(path));
    let written = file.and_then(|mut file| file.write_all(value.as_bytes()));
    let set = written.doing(Kind::BadSpec, || format!("cannot set {key} to {value}"));
    set.map_err(|error| error.in_field("sysctls"))
}

/// Whether a namespace can be the one that a shim has made. Once nobody holds that, a member may make another one with its
/// number, in a user namespace of its own. The number of a network is held by a file.
fn is_ours(flag: c_int, namespace: BorrowedFd<'_>) -> bool {
    let own = || fs::metadata("/proc/self/ns/user").map(|own| own.ino());
    let is_own = |owner: OwnedFd| fstat(&owner).is_ok_and(|owner| own().is_ok_and(|own| own == owner.st_ino));
    sys::owner_of_namespace(namespace).is_ok_and(|owner| flag == libc::CLONE_NEWNET || is_own(owner))
}

/// Sends this process's namespaces. These fds do not come from a path: such an fd would keep what
/// is mounted there busy.
fn hand_over(socket: BorrowedFd<'_>, shared: c_int) -> Result<()> {
    let what = || "cannot hand over namespaces";
    let files = KINDS.iter().filter(|(flag, _)| shared & flag != 0);
    let files = files.map(|(_, name)| File::open(format!("/proc/self/ns/{name}"))).collect::<std::io::Result<Vec<_>>>();
    let files = files.doing(Kind::Internal, what)?;
    let fds: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KINDS.len()))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    // A message needs at least a byte.
    sendmsg(socket, &[IoSlice::new(b"n")], &mut ancillary, SendFlags::NOSIGNAL).map(drop).doing(Kind::Internal, what)
}

/// The namespaces that a worker has sent before it answered, each at its kind's place.
fn take_over(socket: &OwnedFd, shared: c_int) -> Result<[Option<OwnedFd>; KINDS.len()]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KINDS.len()))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    recvmsg(socket, &mut [IoSliceMut::new(&mut [0u8])], &mut ancillary, flags)
        .doing(Kind::Internal, || "cannot take over namespaces")?;
    let sent = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let mut sent = sent.flatten();
    let all = KINDS.map(|(flag, _)| if shared & flag != 0 { sent.next() } else { None });
    let whole = KINDS.iter().zip(&all).all(|((flag, _), fd)| (shared & flag != 0) == fd.is_some());
    if whole { Ok(all) } else { Err(Error::new(Kind::Internal, "a worker has sent fewer namespaces than are wanted")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_interfaces_are_for_later() {
        for (path, later) in [
            ("net/ipv4/conf/eth0/rp_filter", true),
            ("net/ipv6/neigh/net.7/gc_stale_time", true),
            ("net/ipv6/conf/all/disable_ipv6", false),
            ("net/ipv6/conf/default/disable_ipv6", false),
            ("net/ipv4/conf/lo/rp_filter", false),
            ("net/ipv4/ip_unprivileged_port_start", false),
            ("kernel/shmmax", false),
        ] {
            assert_eq!(awaits_interface(path), later, "{path}");
        }
    }

    #[test]
    fn only_what_is_shared_is_set() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        let nothing =
            Wanted { network: NetworkMode::Host, ipc: false, uts: false, hostname: None, sysctls: BTreeMap::new() };
        let refused = |wanted: Wanted| runtime.block_on(make(&wanted)).map(drop).map_err(|error| error.kind());
        assert_eq!(refused(nothing.clone()), Ok(()));
        for key in
            ["net.ipv4.ip_forward", "kernel.shmmax", "fs.mqueue.msg_max", "kernel.pid_max", "user.max_net_namespaces"]
        {
            let sysctls = BTreeMap::from([(key.to_owned(), "1".to_owned())]);
            assert_eq!(refused(Wanted { sysctls, ..nothing.clone() }), Err(Kind::BadSpec), "{key}");
        }
        let hostname = Some("web".to_owned());
        assert_eq!(refused(Wanted { hostname, ..nothing.clone() }), Err(Kind::BadSpec));
    }
}
