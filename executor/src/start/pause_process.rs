//! A process that does nothing: its pid leads to a sandbox's namespaces, and it is the first
//! process of a pid namespace that the members share.
//!
//! ```text
//!   start ─clone─► child: fds, cgroup, network ─► names, sysctls ─► empty root
//!     └► Starting ◄─ READY ─ rights given up ◄───────────────────────┘
//!
//! In a user namespace, a worker joins that first and clones the child there, so that it owns the other namespaces.
//!                            └► waits for signals: reaps, or ends
//! ```
//!
//! The pause process is a copy of the shim that never executes anything, and a member may share its
//! pid namespace: so it has no fds, no rights and an empty root of its own, and a process without
//! CAP_SYS_PTRACE cannot look into it. It dies with the shim, unless it is told that a record names it: then
//! another shim takes it over, or whoever undoes the sandbox ends it. Must not: outlive the shim unrecorded, wake up for
//! nothing.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::CStr;
use std::fs::{self, File};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::Duration;

use bowline_cgroup::Entry;
use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::clock::Moment;
use bowline_model::liveness::Live;
use bowline_sys::{self as sys, SharedPid};
use libc::c_int;
use oci_spec::runtime::LinuxNamespaceType;
use rustix::fs::{Stat, fstat, stat};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::oci::unsupported;
use crate::output::io;
use crate::process::inheritance;
use crate::start::child::{self, ChildFds};
use crate::start::cloning::{Report, clone_child, clone_through_worker};
use crate::view::idmap::Idmap;
use crate::view::network;

/// Its name in every list of processes.
const NAME: &CStr = c"pause";

/// How long a worker may take to clone the process.
const CLONING: Duration = Duration::from_secs(10);

/// The namespaces of a pause process. It shares with the shim what is not named here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseProcess {
    /// The network of the process.
    pub net: Net,
    /// Whether the process gets an IPC namespace.
    pub ipc: bool,
    /// Whether the process gets a UTS namespace.
    pub uts: bool,
    /// Whether the process is the first of a new pid namespace.
    pub pid: bool,
    /// The maps of a user namespace that owns the others. A network at a path comes with its own, which is taken.
    pub users: Option<Idmap>,
    /// The host name in its UTS namespace.
    pub hostname: Option<String>,
    /// The sysctls of its namespaces, by key.
    pub sysctls: BTreeMap<String, String>,
}

/// The network of a pause process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Net {
    /// The network namespace of the shim itself.
    #[default]
    Host,
    /// A new network, with a loopback interface that is up.
    New,
    /// The network that is bound at this path.
    Path(PathBuf),
}

/// The process is cloned and sets itself up.
pub struct Starting {
    live: Option<Live>,
    report: Report,
}

/// Starts the process, in the cgroups of `entry` if there is one.
///
/// # Errors
/// `BadSpec` for a name or a sysctl that would change the host's, a network that cannot be opened or that does not
/// belong to the wanted user namespace, or maps that the kernel refuses; `Unsupported` when the kernel makes no such
/// namespaces.
pub fn start(wanted: &PauseProcess, entry: Option<&Entry>) -> Result<Starting> {
    wanted.check()?;
    let joined = wanted.open_network()?;
    let users = wanted.open_users(joined.as_ref())?;
    let (report, tell) = io::pipe()?;
    let alone = Entry::none();
    let become_it = |entry: &Entry| {
        let Err(error) = become_pause(wanted, joined.as_ref(), entry, tell.as_raw_fd());
        child::tell_error(tell.as_raw_fd(), &error);
    };
    let child_fds = ChildFds::new(tell.as_fd(), joined.iter().map(|fd| fd.as_raw_fd()).collect());
    let (flags, entry) = (wanted.clone_flags(), entry.unwrap_or(&alone));
    let (live, worker) = match &users {
        None => (Some(clone_child(flags, entry, &child_fds, become_it)?), None),
        Some(users) => {
            let enter = || {
                let what = || "cannot join the pod's user namespace";
                sys::setns(users.as_fd(), libc::CLONE_NEWUSER).doing(Kind::Unsupported, what).map(|()| None)
            };
            (None, Some(clone_through_worker(flags, entry, &child_fds, SharedPid::new(), enter, become_it)?))
        }
    };
    drop(tell);
    Ok(Starting { live, report: Report::new(report, worker, None, None)? })
}

impl Starting {
    /// Returns the process, as soon as its pid is known. It is signalled by its pidfd, and reaped as every child is.
    pub async fn live(&mut self) -> Result<Live> {
        if let Some(live) = self.live.take() {
            return Ok(live);
        }
        let closed = || Error::new(Kind::WrongState, "the cgroup of the pause process takes no process");
        let pid =
            self.report.cloned(crate::waits::sleep_until(Moment::now().after(CLONING))).await?.ok_or_else(closed)?;
        self.report.open(pid).await
    }

    /// Waits until the namespaces are set up as requested.
    ///
    /// # Errors
    /// What the process could not do: it then ends by itself.
    pub async fn ready(mut self) -> Result<()> {
        self.report.set_up().await
    }
}

impl PauseProcess {
    fn check(&self) -> Result<()> {
        if self.hostname.is_some() && !self.uts {
            let message = "hostname: without a UTS namespace of its own it would be the host's";
            return Err(Error::new(Kind::BadSpec, message));
        }
        for key in self.sysctls.keys() {
            unsupported::sysctl(key, &|kind| self.has(kind))?;
        }
        Ok(())
    }

    fn has(&self, kind: LinuxNamespaceType) -> bool {
        match kind {
            LinuxNamespaceType::Network => self.net != Net::Host,
            LinuxNamespaceType::Ipc => self.ipc,
            LinuxNamespaceType::Uts => self.uts,
            LinuxNamespaceType::Pid => self.pid,
            _ => false,
        }
    }

    fn open_network(&self) -> Result<Option<OwnedFd>> {
        let Net::Path(path) = &self.net else { return Ok(None) };
        let opened = File::open(path).doing(Kind::BadSpec, || format!("network: cannot open {}", path.display()))?;
        Ok(Some(opened.into()))
    }

    /// The user namespace, if one is wanted: that of the network, which is `joined`, or a new one.
    fn open_users(&self, joined: Option<&OwnedFd>) -> Result<Option<OwnedFd>> {
        let Some(maps) = &self.users else { return Ok(None) };
        let Some(network) = joined else { return maps.user_namespace().map(Some) };
        let what = || "network: cannot find the user namespace that it belongs to";
        let owner = sys::owner_of_namespace(network.as_fd()).doing(Kind::BadSpec, what)?;
        let id = |stat: Stat| (stat.st_dev, stat.st_ino);
        let own = id(stat("/proc/self/ns/user").doing(Kind::Internal, what)?);
        if id(fstat(&owner).doing(Kind::Internal, what)?) == own {
            let message = "network: it belongs to the host's user namespace, and the pod wants one of its own";
            return Err(Error::new(Kind::BadSpec, message).hint("make the network in the pod's user namespace"));
        }
        Ok(Some(owner))
    }

    fn clone_flags(&self) -> u64 {
        let wanted = [
            (true, libc::CLONE_NEWNS),
            (self.net == Net::New, libc::CLONE_NEWNET),
            (self.ipc && self.users.is_none(), libc::CLONE_NEWIPC),
            (self.uts, libc::CLONE_NEWUTS),
            (self.pid, libc::CLONE_NEWPID),
        ];
        let flags = wanted.into_iter().filter(|(wanted, _)| *wanted).fold(0, |flags, (_, flag)| flags | flag);
        flags as u64
    }
}

fn become_pause(wanted: &PauseProcess, joined: Option<&OwnedFd>, entry: &Entry, report: RawFd) -> Result<Infallible> {
    sys::default_signals(1..=64);
    let what = || "cannot set the pause process up";
    if wanted.users.is_some() {
        // Its ids are still those of the shim, which are not mapped.
        child::set_ids(0, 0, Some(&[]))?;
    }
    // If the shim has died by now, it takes no report, and SIGPIPE ends this process.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).doing(Kind::Internal, what)?;
    entry.join().doing(Kind::Internal, || format!("cannot join cgroup {}", entry.path()))?;
    rustix::process::setsid().doing(Kind::Internal, what)?;
    if wanted.ipc && wanted.users.is_some() {
        // The folder of the message queues belongs to whoever makes this namespace: the pod's root.
        sys::unshare(libc::CLONE_NEWIPC).doing(Kind::Unsupported, || "cannot make an IPC namespace")?;
    }
    if let Some(network) = joined {
        sys::setns(network.as_fd(), libc::CLONE_NEWNET).doing(Kind::BadSpec, || match &wanted.net {
            Net::Path(path) => format!("network: cannot join {}", path.display()),
            Net::Host | Net::New => "network: cannot join it".to_owned(),
        })?;
    }
    if wanted.net == Net::New {
        network::prepare_new()?;
    }
    if let Some(hostname) = &wanted.hostname {
        let what = || format!("cannot set the hostname to {hostname}");
        rustix::system::sethostname(hostname.as_bytes()).doing(Kind::BadSpec, what)?;
    }
    for (key, value) in &wanted.sysctls {
        let path = format!("/proc/sys/{}", unsupported::sysctl_path(key)?);
        fs::write(path, value).doing(Kind::BadSpec, || format!("sysctls: cannot set {key} to {value}"))?;
    }
    // Without this it would look like a second shim. Nothing depends on the name.
    let _ = rustix::thread::set_name(NAME);
    let _ = sys::overwrite_command_line(NAME.to_bytes());
    enter_empty_root().map_err(|errno| {
        Error::new(Kind::Unsupported, format!("cannot give the pause process a root of its own: {errno}"))
    })?;
    rustix::thread::set_no_new_privs(true).doing(Kind::Internal, what)?;
    child::give_up_capabilities()?;
    inheritance::hide()?;
    sys::block_signals(&HEARD);
    sys::write_fd(report, &[child::READY]).doing(Kind::Internal, || "the shim has gone")?;
    sys::close_all();
    wait()
}

/// Tells the process that a record names it.
pub const RECORDED: c_int = libc::SIGUSR1;

/// The signals that wake the process.
const HEARD: [c_int; 4] = [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, RECORDED];

/// Reaps orphans of its pid namespace, until a signal ends it. The first process of a namespace
/// takes no such signal from inside: a sender inside has a pid, any other sender has none here.
fn wait() -> ! {
    let first = std::process::id() == 1;
    loop {
        match sys::wait_for_signal(&HEARD) {
            Ok((libc::SIGTERM | libc::SIGINT, sender)) if sender == 0 || !first => sys::exit_now(0),
            Ok((RECORDED, 0)) => drop(rustix::process::set_parent_process_death_signal(None)),
            Ok(_) => while let Ok(Some(_)) = sys::reap() {},
            Err(_) => {}
        }
    }
}

/// Enters an empty, read-only root without any other mount. The kernel shows every process's root at `/proc/PID/root`.
fn enter_empty_root() -> rustix::io::Result<()> {
    // Any folder that exists: everything above it goes with the host's root.
    const AT: &str = "/proc";
    rustix::mount::mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("pause", AT, "tmpfs", flags, c"mode=0555,size=4k,nr_inodes=1")?;
    rustix::process::chdir(AT)?;
    rustix::process::pivot_root(".", ".")?;
    // pivot_root(2) has stacked the host's root on top of the new one.
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")
}
