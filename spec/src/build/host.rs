//! Facts about a host that a configuration is built with.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use oci_spec::runtime::LinuxSeccomp;
use serde::{Deserialize, Serialize};

use crate::capability::Capability;

/// Facts about this host and root that [`build`](super::build()) needs; the executor gathers them.
#[derive(Debug, Clone, Default)]
pub struct Host {
    /// The host name of a task whose description has none; empty for the host's.
    pub name: String,
    /// The task's user, already resolved inside the root.
    pub user: UserIds,
    /// The paths of [`HOST_VIEW`](super::HOST_VIEW) that exist on this host.
    pub view: Vec<PathBuf>,
    /// The file to bind at `/etc/resolv.conf`: what the host's leads to outside of [`HOST_VIEW`](super::HOST_VIEW), or
    /// one with servers that the task reaches.
    pub resolver: Option<PathBuf>,
    /// The capabilities that the host gives a task: what `add = ["ALL"]` stands for. `None` for all there are.
    pub capabilities: Option<BTreeSet<Capability>>,
    /// The CPUs that are online; a description's `cpu.cpuset` must name some of these alone.
    pub cpus: BTreeSet<u32>,
    /// The NUMA nodes that are online; a description's `cpu.mems` must name some of these alone.
    pub mems: BTreeSet<u32>,
    /// What is found at [`Task::device_paths`](crate::Task::device_paths).
    pub devices: BTreeMap<PathBuf, DeviceNode>,
    /// The parsed profile, where the description names a file; see
    /// [`seccomp::parse_profile`](crate::seccomp::parse_profile).
    pub seccomp: Option<LinuxSeccomp>,
    /// Whether the controllers are on cgroup v2.
    pub cgroup_v2: bool,
    /// The sizes of huge pages the kernel offers, such as `2MB`.
    pub hugepage_sizes: BTreeSet<String>,
    /// The kernel's version: 6.12 is (6, 12).
    pub kernel: (u32, u32),
    /// The AppArmor profile of a task that names none, where this host has one.
    pub apparmor: Option<String>,
    /// Where the task's cgroup goes, already decided.
    pub cgroup_path: String,
}

/// The ids of a user, whose names are looked up already.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UserIds {
    /// User id, inside the user namespace.
    pub uid: u32,
    /// The primary group id, inside the user namespace.
    pub gid: u32,
    /// The supplementary group ids, without the primary one.
    pub groups: Vec<u32>,
    /// The home directory as the root's `/etc/passwd` has it.
    pub home: Option<PathBuf>,
}

/// A device node on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceNode {
    /// `c` for character devices, `b` for block devices.
    pub kind: char,
    /// Major number.
    pub major: i64,
    /// Minor number.
    pub minor: i64,
    /// Permission bits, at most 0o7777.
    pub mode: u32,
    /// The user id of its owner.
    pub uid: u32,
    /// The id of its group.
    pub gid: u32,
}
