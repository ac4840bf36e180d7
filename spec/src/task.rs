//! The task description: what a person writes in TOML or JSON, field by field.
//!
//! Whatever is not written is `None` or empty, and stays out of what is
//! serialised; the defaults stand with each field and are filled in by `build`.
//! A caller merges flags by writing fields, then calls [`Task::validate`].

mod app_mesh;
mod health;
mod isolation;
mod left_out;
mod limits;
mod log;
mod mount;
mod network;
mod profile;
mod sandbox;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use app_mesh::AppMesh;
pub use health::{Healthcheck, OnUnhealthy};
pub use isolation::{IdMapping, Namespace, Namespaces, Seccomp};
pub(crate) use left_out::is_default;
pub(crate) use limits::REALTIME_PERIOD_US;
pub use limits::{Cpu, DEFAULT_PERIOD_US, Io, IoDevice, Memory};
pub use log::{Log, LogFormat};
pub use mount::{Access, Device, Mount, MountKind, Propagation};
pub use network::{
    Association, Egress, Ingress, Interface, Network, NetworkMode, PLUGIN_FOLDERS, Plugins, Port, Protocol, Proxy,
    Redirect,
};
pub use profile::TaskProfile;
pub use sandbox::{Budget, Enforcement, Overhead, Sandbox};
pub use watch::{
    Stalled, Watch, WatchAction, WatchCount, WatchMemory, WatchOom, WatchPressure, WatchProcesses, WatchThrottled,
};

use crate::capability::Capabilities;
use crate::id::TaskId;
use crate::rlimit::{Resource, Rlimit};
use crate::signal::Signal;
use crate::user::{NameOrId, User};
use crate::values::{ByteSize, Ceiling, Duration};

/// The most processes and threads where the description says nothing.
pub const DEFAULT_PIDS: u64 = 4096;

/// A task: what to run, as whom, in which root, and how much it may use.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
// Not required to serde: `validate` says better what to write, and flags may bring it.
#[schemars(extend("anyOf" = [{"required": ["command"]}, {"required": ["bundle"]}]))]
pub struct Task {
    /// The task's id; made up by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<TaskId>,

    /// An OCI bundle: the absolute path of a folder on the host with `config.json`, which then says what the other fields
    /// would, but for how the task is watched, stopped and logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle: Option<PathBuf>,
    /// The program: a path inside the root, or a name looked up in `/local`, in `/`, then in the task's `PATH`. Needed
    /// without a bundle, whose own command and arguments it replaces.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// Its arguments, without the program's own name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment variables. `PATH`, `HOME` and, with a hostname, `HOSTNAME` are
    /// supplied unless given here; nothing else is inherited.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Whether it has a terminal, which then takes the place of stdin, stdout
    /// and stderr; false by default.
    #[serde(skip_serializing_if = "is_default")]
    pub terminal: bool,
    /// Whether its stdin is open to those who attach, instead of at its end;
    /// false by default. A terminal always is.
    #[serde(skip_serializing_if = "is_default")]
    pub stdin: bool,
    /// Whether a small init of bowline's is above the program: it forwards signals, reaps orphans, and keeps output and
    /// exit status when the shim dies; true by default for the host view, unless `pids` or `rlimits.nproc` allow one
    /// process alone, and false for a folder or a bundle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init: Option<bool>,
    /// The working directory inside the root; `/` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<PathBuf>,
    /// The user, perhaps with the primary group, resolved inside the root; root by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    /// The primary group, where `user` does not name it; the user's own by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<NameOrId>,
    /// Supplementary groups, in addition to the user's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<NameOrId>,

    /// The root filesystem: an absolute path of a folder on the host, where missing mount points are made and stay.
    /// Without one, the host view: read-only binds of the host's `/usr`, `/etc` and the like, with private `/tmp`,
    /// `/dev`, `/proc` and `/sys`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<PathBuf>,
    /// Whether the root itself is read-only: true by default for the host
    /// view, false for a folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readonly_rootfs: Option<bool>,
    /// Keeps changes to the root in memory, at most so much, until the task ends: the root folder stays as it is. The
    /// memory counts as the task's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<ByteSize>,
    /// The host name inside, the host's by default; needs a uts namespace of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Mounts on top of the standard ones, made in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Device nodes of the host that the task may use, besides the usual harmless ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,

    /// Protections by one name: `untrusted` is for code that nobody vouches for,
    /// and refuses every field that would take one of its protections away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<TaskProfile>,
    /// Capabilities added to and dropped from the default 13.
    #[serde(skip_serializing_if = "is_default")]
    pub capabilities: Capabilities,
    /// Whether set-user-ID programs and file capabilities are powerless; true by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_new_privs: Option<bool>,
    /// The system call filter: `default` (the default); `native`, which also kills 32-bit and x32 programs, and is the
    /// default with `profile = "untrusted"`; `unconfined`; or the absolute path of a profile on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp: Option<Seccomp>,
    /// The name of a loaded AppArmor profile, or `unconfined` for none; by default
    /// `bowline-default` where that is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apparmor: Option<String>,
    /// Resource limits of the process, such as `nofile = 1024`; by default a fixed set, whoever launches it
    /// (docs/task-description.md).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rlimits: BTreeMap<Resource, Rlimit>,
    /// Kernel settings, such as `"net.ipv4.ip_forward" = "1"`; of the namespaces
    /// that are the task's own only.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctls: BTreeMap<String, String>,
    /// Which namespaces are the task's own.
    #[serde(skip_serializing_if = "is_default")]
    pub namespaces: Namespaces,
    /// A network with interfaces and ports, instead of `namespaces.network`, for a task that is in no sandbox.
    #[serde(skip_serializing_if = "is_default")]
    pub network: Network,
    /// Users inside and outside; with `namespaces.user = "private"` only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uid_mappings: Vec<IdMapping>,
    /// Groups inside and outside; with `namespaces.user = "private"` only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gid_mappings: Vec<IdMapping>,
    /// Paths that are hidden from the task; those of the OCI defaults by default, which this replaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masked_paths: Option<Vec<PathBuf>>,
    /// Paths that are read-only for the task; those of the OCI defaults by default, which this replaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readonly_paths: Option<Vec<PathBuf>>,

    /// CPU time.
    #[serde(skip_serializing_if = "is_default")]
    pub cpu: Cpu,
    /// Memory and swap.
    #[serde(skip_serializing_if = "is_default")]
    pub memory: Memory,
    /// The most processes and threads, at least 1; 4096 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<Ceiling<u64>>,
    /// Block device weights and rates.
    #[serde(skip_serializing_if = "is_default")]
    pub io: Io,
    /// Huge pages: the most memory by page size, such as `2MB = "64M"`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hugepages: BTreeMap<String, ByteSize>,
    /// Raw cgroup v2 files, such as `"memory.oom.group" = "1"`; cgroup v2 only.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unified: BTreeMap<String, String>,
    /// How eagerly the kernel kills the task when memory is short: −1000 (never) to 1000;
    /// 0 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// The task's cgroup: an absolute path below each hierarchy, `/bowline/ID/ID` by default; or a unit that systemd
    /// makes, as `slice:prefix:name`. One that is there already, empty and not frozen, is used with the limits it has,
    /// and stays. Whatever is in it or below it ends with the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,

    /// How long the task may run, from the execution of its command on, pauses included; then it is stopped as `stop`
    /// says. No limit by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// A command by which the shim asks whether the task is healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<Healthcheck>,
    /// What the shim looks out for while the task runs, and what it does then.
    #[serde(skip_serializing_if = "is_default")]
    pub watch: Watch,
    /// How the task is brought down.
    #[serde(skip_serializing_if = "is_default")]
    pub stop: Stop,
    /// Where its output goes.
    #[serde(skip_serializing_if = "is_default")]
    pub output: Output,
    /// What is kept of it.
    #[serde(skip_serializing_if = "is_default")]
    pub log: Log,
    /// Names and values that are kept with the task and do nothing; annotations in OCI.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl Task {
    /// Paths on the host of every device named: what `build` wants to find in
    /// [`Host::devices`](crate::Host::devices).
    pub fn device_paths(&self) -> impl Iterator<Item = &Path> {
        let nodes = self.devices.iter().map(Device::host_path);
        let disks = self.io.devices.iter().map(|device| device.path.as_str());
        nodes.chain(disks.filter(|path| path.starts_with('/')).map(Path::new))
    }

    /// The user as written, root where nothing is.
    pub fn user_name(&self) -> NameOrId {
        let user = self.user.as_ref().map(|user| user.user.clone());
        user.unwrap_or(NameOrId::Id(0))
    }

    /// The primary group as written, in `user` or in `group`.
    pub fn group_name(&self) -> Option<&NameOrId> {
        let with_user = self.user.as_ref().and_then(|user| user.group.as_ref());
        with_user.or(self.group.as_ref())
    }

    /// The system call filter, with its default.
    pub fn seccomp(&self) -> &Seccomp {
        self.seccomp.as_ref().unwrap_or(&Seccomp::Default)
    }

    /// Whether an init is above the program, with its default. A default takes no process from a task that may have one
    /// alone.
    pub fn init(&self) -> bool {
        let nproc = self.rlimits.iter().find(|(resource, _)| resource.name() == "nproc");
        let has_room = |limit| !matches!(limit, Ceiling::At(0 | 1));
        let roomy = has_room(self.pids()) && nproc.is_none_or(|(_, limit)| has_room(limit.soft));
        self.init.unwrap_or(self.rootfs.is_none() && self.bundle.is_none() && roomy)
    }

    /// The most processes and threads, with its default.
    pub fn pids(&self) -> Ceiling<u64> {
        self.pids.unwrap_or(Ceiling::At(DEFAULT_PIDS))
    }
}

/// How the task is brought down.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Stop {
    /// The signal that asks it to end; SIGTERM by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<Signal>,
    /// How long it may take before it is killed; 10s by default, 0 kills at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace: Option<Duration>,
}

impl Stop {
    /// The signal, with its default.
    pub fn signal(&self) -> Signal {
        self.signal.unwrap_or(Signal::TERM)
    }

    /// The grace period, with its default.
    pub fn grace(&self) -> std::time::Duration {
        self.grace.unwrap_or(Duration::from_secs(10)).as_std()
    }
}

/// Files that the output is appended to; absolute paths on the host. By default
/// `run` passes it through, and `start` keeps it in the task's folder.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Output {
    /// The file that standard output is appended to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<PathBuf>,
    /// The file that standard error is appended to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use crate::{Format, parse};

    #[test]
    fn the_host_view_has_an_init_unless_the_task_may_have_one_process_alone() {
        let init = |more: &str| {
            let task = parse(&format!("command = 'x'\n{more}"), Format::Toml).expect("a description");
            task.init()
        };
        for with in ["", "pids = 2", "pids = 'max'", "rlimits.nproc = 2", "rootfs = '/r'\ninit = true"] {
            assert!(init(with), "{with}");
        }
        for without in ["rootfs = '/r'", "pids = 1", "rlimits.nproc = '1:9'", "init = false"] {
            assert!(!init(without), "{without}");
        }
    }
}
