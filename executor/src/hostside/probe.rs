//! What this host can do, tried for real: a child that does nothing else makes a namespace or loads
//! a filter, and a mount is changed while it is attached nowhere. Nothing of it is left.
//!
//! For `bowline doctor`, in a process with one thread. The shim uses none of this: it finds out
//! what is missing when it needs it. Must not: judge the effect of what is missing, or make a
//! cgroup.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use bowline_cgroup::{self as cgroup, Membership, UNIFIED, Version};
use bowline_error::Result;
use bowline_sys::{self as sys, Cloned};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Access, AtFlags, CWD, OFlags, ResolveFlags};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::process::sealed;
pub use crate::rights::lsm::{DEFAULT_PROFILE, has_default_profile};
use crate::rights::seccomp;

/// The cgroup hierarchies of this host.
#[derive(Debug)]
pub struct Cgroups {
    /// Whether the controllers are those of cgroup v2.
    pub v2: bool,
    /// Each hierarchy that is mounted.
    pub hierarchies: Vec<Hierarchy>,
    /// The caller's cgroup in the unified hierarchy, where there is one.
    pub own: Option<PathBuf>,
}

/// A cgroup hierarchy that is mounted.
#[derive(Debug)]
pub struct Hierarchy {
    /// Where it is mounted, such as `/sys/fs/cgroup`.
    pub mount: PathBuf,
    /// The controllers that it has; of a v1 hierarchy without any its name, `name=systemd`.
    pub controllers: Vec<String>,
    /// Whether it is cgroup v2's.
    pub unified: bool,
    /// Whether the caller may make cgroups at its top.
    pub writable: bool,
    /// Whether its cgroups have `cgroup.kill`; `None` if there is no cgroup that would show it.
    pub has_kill: Option<bool>,
    /// Whether its cgroups measure the most memory in use at a time by `memory.peak`; `None` if
    /// there is no cgroup that would show it.
    pub has_peak: Option<bool>,
    /// Whether its cgroups can limit swap, by `memory.swap.max` or on v1
    /// `memory.memsw.limit_in_bytes`; `None` if there is no cgroup that would show it.
    pub has_swap_limit: Option<bool>,
    /// Whether its cgroups can save up CPU time beyond their limit, by `cpu.max.burst` or on v1 `cpu.cfs_burst_us`;
    /// `None` if there is no cgroup that would show it.
    pub has_cpu_burst: Option<bool>,
    /// Whether its cgroups can have the CPU time that nobody else wants alone, by `cpu.idle`; `None` if there is no
    /// cgroup that would show it.
    pub has_cpu_idle: Option<bool>,
}

/// The cgroup hierarchies of this host.
///
/// # Errors
/// `Unsupported` if there is none by which the processes of a task can be found.
pub fn cgroups() -> Result<Cgroups> {
    let layout = cgroup::detect()?;
    let describe = |hierarchy: &cgroup::Hierarchy| {
        let mount = hierarchy.mount();
        let writable = rustix::fs::accessat(CWD, mount, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok();
        // A hierarchy without the controller would not have it in any case.
        let counts = hierarchy.has_below("memory.current") == Some(true);
        let of_memory = |file: &str| counts.then(|| hierarchy.has_below(file)).flatten();
        let of_cpu = |v2: &str, v1: &str| match hierarchy.unified {
            true => (hierarchy.has_below("cpu.weight") == Some(true)).then(|| hierarchy.has_below(v2)).flatten(),
            false => Some(mount.join(v1).exists()),
        };
        let has_swap_limit = if hierarchy.unified {
            of_memory("memory.swap.max")
        } else {
            Some(mount.join("memory.memsw.limit_in_bytes").exists())
        };
        Hierarchy {
            mount: mount.to_owned(),
            controllers: hierarchy.controllers.clone(),
            unified: hierarchy.unified,
            writable,
            has_kill: hierarchy.has_below("cgroup.kill").map(|has| has && !sys::absent("cgroup.kill")),
            has_peak: of_memory("memory.peak"),
            has_swap_limit,
            has_cpu_burst: of_cpu("cpu.max.burst", "cpu.cfs_burst_us"),
            has_cpu_idle: of_cpu("cpu.idle", "cpu.idle"),
        }
    };
    Ok(Cgroups {
        v2: layout.version() == Version::V2,
        hierarchies: layout.hierarchies().iter().map(describe).collect(),
        own: Membership::own().ok().and_then(|own| own.path(UNIFIED).map(Path::to_owned)),
    })
}

/// A kind of namespace that a launch may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "namespaces(7)")]
pub enum NamespaceKind {
    Mount,
    Pid,
    Ipc,
    Uts,
    Cgroup,
    Network,
    User,
}

/// Starts a child in a new namespace, as a launch does.
///
/// # Errors
/// What the kernel answered.
pub fn namespace(kind: NamespaceKind) -> io::Result<()> {
    let flag = match kind {
        NamespaceKind::Mount => libc::CLONE_NEWNS,
        NamespaceKind::Pid => libc::CLONE_NEWPID,
        NamespaceKind::Ipc => libc::CLONE_NEWIPC,
        NamespaceKind::Uts => libc::CLONE_NEWUTS,
        NamespaceKind::Cgroup => libc::CLONE_NEWCGROUP,
        NamespaceKind::Network => libc::CLONE_NEWNET,
        NamespaceKind::User => libc::CLONE_NEWUSER,
    };
    in_child(flag, || Ok(()))
}

/// Lets a child load a seccomp filter that allows everything.
///
/// # Errors
/// What the kernel answered.
pub fn seccomp_filter() -> io::Result<()> {
    in_child(0, || {
        rustix::thread::set_no_new_privs(true)?;
        let mut allow = [0; 8];
        allow[..2].copy_from_slice(&((libc::BPF_RET | libc::BPF_K) as u16).to_ne_bytes());
        allow[4..].copy_from_slice(&libc::SECCOMP_RET_ALLOW.to_ne_bytes());
        sys::seccomp_load(&allow, 0).map(drop)
    })
}

/// The version of libseccomp that compiles filters.
pub fn libseccomp() -> Option<String> {
    seccomp::library()
}

/// Whether mounts can be made, copied, changed and attached through fds.
pub fn mounts_through_fds() -> bool {
    sys::has_mount_fds()
}

/// Whether many fds can be marked close-on-exec in one call.
pub fn marks_many_fds() -> bool {
    sys::marks_many_fds()
}

/// Whether the kernel resolves paths below a root.
pub fn openat2() -> bool {
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty());
    root.is_ok_and(|root| sys::openat2(root.as_fd(), Path::new("."), OFlags::PATH, ResolveFlags::IN_ROOT).is_ok())
}

/// Whether processes can be cloned into a cgroup of the unified hierarchy.
pub fn clones_into_cgroups() -> bool {
    sys::clones_into_cgroups()
}

/// Whether the shim can run through a read-only overlay of the folder of `binary`.
///
/// # Errors
/// What the kernel answered.
pub fn overlay(binary: &Path) -> io::Result<()> {
    let (Some(folder), Some(name)) = (binary.parent(), binary.file_name().and_then(|name| name.to_str())) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    sealed::overlay(folder, name).map(drop)
}

/// Makes a mount that maps owners: of a tmpfs, or else of the filesystem of `/`.
///
/// # Errors
/// What the kernel answered for the second one.
pub fn idmapped_mount() -> io::Result<()> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    match sys::clone3(libc::CLONE_NEWUSER as u64, None)? {
        Cloned::Child => {
            // The child only holds its namespace open until the parent is done.
            sys::close_all_but(&mut [read.as_raw_fd()]);
            let _ = sys::read_fd(read.as_raw_fd(), &mut [0]);
            sys::exit_now(0)
        }
        Cloned::Parent { pid, pidfd } => {
            let mapped = map_owners(pid);
            drop(write);
            end_of(&pidfd)?;
            mapped
        }
    }
}

/// Maps owners as the user namespace of `pid` does, and gives this namespace its maps.
fn map_owners(pid: i32) -> io::Result<()> {
    for map in ["uid_map", "gid_map"] {
        std::fs::write(format!("/proc/{pid}/{map}"), "0 0 1")?;
    }
    let owners = File::open(format!("/proc/{pid}/ns/user"))?;
    let tmpfs = || -> io::Result<OwnedFd> { Ok(sys::fsmount(&sys::fsopen("tmpfs")?, 0)?) };
    let root = || -> io::Result<OwnedFd> { Ok(sys::open_tree(CWD, Path::new("/"), false)?) };
    let map = |mount: OwnedFd| sys::mount_idmap(mount.as_fd(), false, owners.as_fd());
    tmpfs().and_then(map).or_else(|_| root().and_then(map))
}

/// Runs `attempt` in a child that is cloned with these CLONE_* `flags`.
fn in_child(flags: i32, attempt: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    match sys::clone3(flags as u64, None)? {
        Cloned::Child => {
            let errno = attempt().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
            sys::exit_now(errno)
        }
        Cloned::Parent { pidfd, .. } => match end_of(&pidfd)? {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        },
    }
}

/// Waits for the only child and returns its exit code.
fn end_of(pidfd: &OwnedFd) -> io::Result<i32> {
    // A pidfd is readable once its process has ended.
    while let Err(rustix::io::Errno::INTR) = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], None) {}
    let ended = sys::reap()?;
    Ok(ended.map_or(libc::ECHILD, |child| child.ended.code()))
}
