//! Which namespaces a task gets new, which it joins, and which it shares with the host.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use libc::c_int;
use oci_spec::runtime::{LinuxIdMapping, LinuxNamespaceType, Spec};
use rustix::fs;

pub use crate::view::idmap::host_ids;

/// The namespaces of one task, as CLONE_NEW* bits and paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespaces {
    new: c_int,
    join: Vec<(c_int, PathBuf)>,
}

impl Namespaces {
    /// Reads the namespaces from the spec.
    ///
    /// # Errors
    /// `Unsupported` without a mount namespace, but with a user namespace: its root may not enter the host's mounts.
    pub fn of(spec: &Spec) -> Result<Namespaces> {
        let mut namespaces = Namespaces::default();
        let linux = spec.linux().as_ref();
        for namespace in linux.and_then(|l| l.namespaces().as_ref()).into_iter().flatten() {
            let flag = flag(namespace.typ());
            match namespace.path() {
                Some(path) if !path.as_os_str().is_empty() => namespaces.join.push((flag, path.clone())),
                _ => namespaces.new |= flag,
            }
        }
        if namespaces.shares_mounts() && namespaces.in_user_namespace() {
            let message = "a user namespace without a mount namespace is not supported";
            return Err(Error::new(Kind::Unsupported, message)
                .in_field("namespaces")
                .hint("add a namespace of type mount"));
        }
        Ok(namespaces)
    }

    /// Whether the namespace of this kind is made for the task.
    pub fn is_new(&self, flag: c_int) -> bool {
        self.new & flag != 0
    }

    /// Whether the task's root user is not the host's.
    pub fn in_user_namespace(&self) -> bool {
        self.is_new(libc::CLONE_NEWUSER) || self.joins(libc::CLONE_NEWUSER)
    }

    /// Whether the namespace of this kind is joined.
    pub fn joins(&self, flag: c_int) -> bool {
        self.join.iter().any(|(f, _)| *f == flag)
    }

    /// Whether the task has the shim's mount namespace, which is the host's.
    pub fn shares_mounts(&self) -> bool {
        !self.is_new(libc::CLONE_NEWNS) && !self.joins(libc::CLONE_NEWNS)
    }

    /// The namespaces that `clone3` makes. The cgroup namespace is not among them: the child
    /// unshares it once it is in its cgroup, so that this cgroup is its root; nor is the time
    /// namespace, whose offsets are set before anybody is in it; nor an IPC namespace that
    /// [`Namespaces::makes_ipc_as_root`]. A task in the host's
    /// mount namespace has its root set up in another, so that no mount of it is left behind.
    pub fn clone_flags(&self) -> u64 {
        let setup = if self.shares_mounts() { libc::CLONE_NEWNS } else { 0 };
        let ipc = if self.makes_ipc_as_root() { libc::CLONE_NEWIPC } else { 0 };
        (self.new & !(libc::CLONE_NEWCGROUP | sys::CLONE_NEWTIME | ipc) | setup) as u64
    }

    /// Whether the child unshares the IPC namespace once it is root in its user namespace: the folder of the message
    /// queues, which is made with that namespace, belongs to whoever makes it.
    pub fn makes_ipc_as_root(&self) -> bool {
        self.is_new(libc::CLONE_NEWIPC) && self.in_user_namespace()
    }

    /// The namespaces that an exec must enter by `setns` on init's pidfd: all that differ from the
    /// shim's except the cgroup namespace. The exec joins this one once it is in the task's cgroup
    /// (under `nsdelegate` it could not get there otherwise).
    pub fn exec_flags(&self) -> c_int {
        let joined = self.join.iter().fold(0, |flags, (flag, _)| flags | flag);
        (self.new | joined) & !libc::CLONE_NEWCGROUP
    }

    /// All kinds of namespaces that an exec enters, the user namespace last.
    pub fn entered(&self) -> Vec<c_int> {
        let cgroup = if self.own_cgroup_namespace() { libc::CLONE_NEWCGROUP } else { 0 };
        let entered = self.exec_flags() | cgroup;
        FILES.iter().map(|(flag, _)| *flag).filter(|flag| entered & flag != 0).collect()
    }

    /// Whether an exec has a cgroup namespace to join.
    pub fn own_cgroup_namespace(&self) -> bool {
        self.is_new(libc::CLONE_NEWCGROUP) || self.joins(libc::CLONE_NEWCGROUP)
    }

    /// Opens the namespaces to join, with the host's rights.
    ///
    /// # Errors
    /// `BadSpec` naming the path.
    pub fn open_joined<'a>(&'a self) -> Result<Vec<Joined<'a>>> {
        let open = |(flag, path): &'_ (c_int, PathBuf)| {
            let opened = File::open(path).doing(Kind::BadSpec, || format!("cannot open {}", path.display()));
            opened.map_err(|error| error.in_field(format!("namespaces.{}", name(*flag))))
        };
        let joined = |pair: &'a (c_int, PathBuf)| -> Result<Joined<'a>> {
            let fd = open(pair)?.into();
            if pair.0 == libc::CLONE_NEWNS {
                refuse_hosts_mounts(&fd)?;
            }
            Ok(Joined { flag: pair.0, path: &pair.1, fd })
        };
        self.join.iter().map(joined).collect()
    }
}

/// Refuses a mount namespace that is the shim's or the host's: the task's root becomes the root of the namespace that
/// it joins, and of every process in it.
fn refuse_hosts_mounts(namespace: &OwnedFd) -> Result<()> {
    let what = || "cannot examine the mount namespace to join";
    let id = |stat: fs::Stat| (stat.st_dev, stat.st_ino);
    let joined = id(fs::fstat(namespace).doing(Kind::Internal, what)?);
    let own = id(fs::stat("/proc/self/ns/mnt").doing(Kind::Internal, what)?);
    // A shim in a container has no access to the first process of the host.
    let hosts = fs::stat("/proc/1/ns/mnt").ok().map(id);
    if joined == own || Some(joined) == hosts {
        let message = "it is the host's, whose root would be replaced by the task's";
        return Err(Error::new(Kind::BadSpec, message)
            .in_field("namespaces.mount")
            .hint("leave the mount namespace out to share the host's"));
    }
    Ok(())
}

/// Opens the shim's mount namespace, for a task that shares it.
///
/// # Errors
/// `Unsupported` on kernels without detached mounts.
pub fn open_shared_mounts() -> Result<OwnedFd> {
    if !sys::has_mount_fds() {
        let message = "a task without a mount namespace needs detached mounts, which this kernel lacks";
        return Err(Error::new(Kind::Unsupported, message)
            .in_field("namespaces")
            .hint("add a namespace of type mount, or use Linux 5.12"));
    }
    open_own_mounts()
}

/// Opens the caller's mount namespace.
pub fn open_own_mounts() -> Result<OwnedFd> {
    let opened = File::open("/proc/self/ns/mnt").doing(Kind::Internal, || "cannot open the mount namespace")?;
    Ok(opened.into())
}

/// Makes `root` the root and the working directory of this process, which keeps its mount namespace.
pub fn change_root(root: BorrowedFd<'_>) -> rustix::io::Result<()> {
    rustix::process::fchdir(root)?;
    rustix::process::chroot(".")
}

/// An open namespace to join.
#[derive(Debug)]
pub struct Joined<'a> {
    flag: c_int,
    path: &'a Path,
    fd: OwnedFd,
}

/// Joins each of `joined`, the user namespace last: the rights to join the others go with it.
pub fn join(joined: &[Joined<'_>]) -> Result<()> {
    let (users, others): (Vec<_>, Vec<_>) = joined.iter().partition(|j| j.flag == libc::CLONE_NEWUSER);
    if !users.is_empty() {
        drop_groups()?;
    }
    for Joined { flag, path, fd } in others.into_iter().chain(users) {
        let joined = sys::setns(fd.as_fd(), *flag).doing(Kind::BadSpec, || format!("cannot join {}", path.display()));
        joined.map_err(|error| error.in_field(format!("namespaces.{}", name(*flag))))?;
    }
    Ok(())
}

/// Drops the calling process's groups before it enters a user namespace: where that has setgroups(2) denied, nobody
/// can drop those of who started bowline.
pub fn drop_groups() -> Result<()> {
    rustix::thread::set_thread_groups(&[]).doing(Kind::Internal, || "cannot drop the shim's groups")
}

/// Writes the id maps of a new user namespace, with the shim's rights, through its first process.
/// Format: `container host size` a line (user_namespaces(7)).
pub fn write_id_maps(pid: i32, spec: &Spec) -> Result<()> {
    let linux = spec.linux().as_ref();
    let maps = [
        ("uid_map", linux.and_then(|l| l.uid_mappings().clone())),
        ("gid_map", linux.and_then(|l| l.gid_mappings().clone())),
    ];
    for (file, mappings) in maps {
        let text: String = mappings.iter().flatten().map(line).collect();
        let path = format!("/proc/{pid}/{file}");
        std::fs::write(&path, &text)
            .doing(Kind::BadSpec, || format!("cannot write {:?} to {file} of the user namespace", text.trim_end()))?;
    }
    Ok(())
}

fn line(mapping: &LinuxIdMapping) -> String {
    format!("{} {} {}\n", mapping.container_id(), mapping.host_id(), mapping.size())
}

fn flag(kind: LinuxNamespaceType) -> c_int {
    match kind {
        LinuxNamespaceType::Mount => libc::CLONE_NEWNS,
        LinuxNamespaceType::Cgroup => libc::CLONE_NEWCGROUP,
        LinuxNamespaceType::Uts => libc::CLONE_NEWUTS,
        LinuxNamespaceType::Ipc => libc::CLONE_NEWIPC,
        LinuxNamespaceType::User => libc::CLONE_NEWUSER,
        LinuxNamespaceType::Pid => libc::CLONE_NEWPID,
        LinuxNamespaceType::Network => libc::CLONE_NEWNET,
        LinuxNamespaceType::Time => sys::CLONE_NEWTIME,
    }
}

/// The files in `/proc/PID/ns` (namespaces(7)), the user namespace last.
const FILES: [(c_int, &str); 8] = [
    (libc::CLONE_NEWNS, "mnt"),
    (libc::CLONE_NEWCGROUP, "cgroup"),
    (libc::CLONE_NEWUTS, "uts"),
    (libc::CLONE_NEWIPC, "ipc"),
    (libc::CLONE_NEWPID, "pid"),
    (libc::CLONE_NEWNET, "net"),
    (sys::CLONE_NEWTIME, "time"),
    (libc::CLONE_NEWUSER, "user"),
];

/// The name of a kind's file in `/proc/PID/ns`.
pub fn file(kind: c_int) -> &'static str {
    FILES.iter().find(|(flag, _)| *flag == kind).map_or("mnt", |(_, file)| file)
}

/// The name of a kind in a configuration.
pub fn name(flag: c_int) -> &'static str {
    match flag {
        libc::CLONE_NEWCGROUP => "cgroup",
        libc::CLONE_NEWUTS => "uts",
        libc::CLONE_NEWIPC => "ipc",
        libc::CLONE_NEWUSER => "user",
        libc::CLONE_NEWPID => "pid",
        libc::CLONE_NEWNET => "network",
        sys::CLONE_NEWTIME => "time",
        _ => "mount",
    }
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::{LinuxBuilder, LinuxIdMappingBuilder, SpecBuilder};

    use super::*;

    #[test]
    fn ids_inside_are_found_on_the_host() {
        let mapping = LinuxIdMappingBuilder::default().container_id(10u32).host_id(1000u32).size(5u32).build();
        let linux = LinuxBuilder::default().uid_mappings(vec![mapping.expect("a mapping")]).build();
        let spec = SpecBuilder::default().linux(linux.expect("a section")).build().expect("a spec");
        assert_eq!(host_ids(&spec, 12, 12), (1002, 12));
        assert_eq!(host_ids(&spec, 15, 0), (15, 0), "beyond the range");
        assert_eq!(host_ids(&spec, 9, 0), (9, 0), "below the range");
    }
}
