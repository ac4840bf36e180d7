//! The task description: what a person writes in TOML or JSON, field by field.
//!
//! Whatever is not written is `None` or empty, and stays out of what is
//! serialised; the defaults stand with each field and are filled in by `build`.
//! A caller merges flags by writing fields, then calls [`Task::validate`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::capability::Capabilities;
use crate::id::TaskId;
use crate::invalid::Invalid;
use crate::rlimit::{Resource, Rlimit};
use crate::signal::Signal;
use crate::text::text_value;
use crate::units::{ByteSize, Ceiling, Cpus, Duration, IdSet, Mode};
use crate::user::{NameOrId, User};

/// A task: what to run, as whom, in which root, and how much it may use.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Task {
    /// The task's id. Without one, whoever launches makes one up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<TaskId>,

    /// The program: a path inside the root, or a name looked up in the task's PATH.
    pub command: String,
    /// Its arguments, without the program's own name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment variables. PATH, HOME and, with a hostname, HOSTNAME are
    /// supplied unless given here; nothing else is inherited.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
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

    /// The root filesystem: an absolute path of a folder on the host. Without
    /// one, the host view: read-only binds of the host's `/usr`, `/etc` and
    /// the like, with private `/tmp`, `/dev`, `/proc` and `/sys`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<PathBuf>,
    /// Whether the root itself is read-only: true by default for the host
    /// view, false for a folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readonly_rootfs: Option<bool>,
    /// The host name inside; needs a uts namespace of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Mounts on top of the standard ones, made in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Device nodes of the host that the task may use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,

    /// Capabilities added to and dropped from the default 13.
    #[serde(skip_serializing_if = "is_default")]
    pub capabilities: Capabilities,
    /// Whether set-user-ID programs and file capabilities are powerless; true by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_new_privs: Option<bool>,
    /// The system call filter: `default` (the default), `unconfined`, or the
    /// absolute path of a profile on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp: Option<Seccomp>,
    /// The name of a loaded AppArmor profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apparmor: Option<String>,
    /// Resource limits of the process, such as `nofile = 1024`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rlimits: BTreeMap<Resource, Rlimit>,
    /// Kernel settings, of the namespaces that are the task's own only.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctls: BTreeMap<String, String>,
    /// Which namespaces are the task's own.
    #[serde(skip_serializing_if = "is_default")]
    pub namespaces: Namespaces,
    /// Users inside and outside; with `namespaces.user = "private"` only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uid_mappings: Vec<IdMapping>,
    /// Groups inside and outside; with `namespaces.user = "private"` only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gid_mappings: Vec<IdMapping>,
    /// Paths that are hidden from the task; replaces the default set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masked_paths: Option<Vec<PathBuf>>,
    /// Paths that are read-only for the task; replaces the default set.
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
    /// Raw cgroup v2 files, such as `"memory.oom.group" = "1"`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unified: BTreeMap<String, String>,
    /// How eagerly the kernel kills the task when memory is short: −1000 (never) to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// The task's cgroup: an absolute path below each hierarchy. Without one,
    /// whoever launches chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,

    /// How the task is brought down.
    #[serde(skip_serializing_if = "is_default")]
    pub stop: Stop,
    /// Where its output goes.
    #[serde(skip_serializing_if = "is_default")]
    pub output: Output,
    /// Names and values that are kept with the task; annotations in OCI.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
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

    /// The most processes and threads, with its default.
    pub fn pids(&self) -> Ceiling<u64> {
        self.pids.unwrap_or(Ceiling::At(crate::build::DEFAULT_PIDS))
    }
}

/// A mount inside the root.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Mount {
    /// What is mounted: `bind` (the default) or `tmpfs`.
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub kind: MountKind,
    /// Where inside the root; absolute.
    pub destination: PathBuf,
    /// bind: what of the host; absolute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<PathBuf>,
    /// Whether nothing can be written there; for a recursive bind, nor to the mounts below it.
    #[serde(skip_serializing_if = "is_default")]
    pub read_only: bool,
    /// bind: whether the mounts below the source come along; true by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// bind: whether later mounts show on the other side; `rprivate` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub propagation: Option<Propagation>,
    /// tmpfs: the most it holds; half the memory by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteSize>,
    /// tmpfs: the permission bits of its top folder, in octal; 1777 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Whether nothing there can be executed; false by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noexec: Option<bool>,
    /// Whether set-user-ID bits there do nothing; by default true for tmpfs,
    /// false for bind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nosuid: Option<bool>,
    /// Whether device nodes there do nothing; by default true for tmpfs,
    /// false for bind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodev: Option<bool>,
}

/// What a mount shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MountKind {
    /// A file or folder of the host.
    #[default]
    Bind,
    /// An empty filesystem in memory.
    Tmpfs,
}

/// Whether mounts made later show on the other side; mount_namespaces(7).
/// With `r`, the mounts below are included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // the kernel's own terms
pub enum Propagation {
    Private,
    Rprivate,
    Slave,
    Rslave,
    Shared,
    Rshared,
    Unbindable,
    Runbindable,
}

impl Propagation {
    /// As a mount option.
    pub fn as_str(self) -> &'static str {
        match self {
            Propagation::Private => "private",
            Propagation::Rprivate => "rprivate",
            Propagation::Slave => "slave",
            Propagation::Rslave => "rslave",
            Propagation::Shared => "shared",
            Propagation::Rshared => "rshared",
            Propagation::Unbindable => "unbindable",
            Propagation::Runbindable => "runbindable",
        }
    }
}

/// A device node of the host inside the task.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Device {
    /// The node inside the root; absolute.
    pub path: PathBuf,
    /// The node on the host; the same path by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<PathBuf>,
    /// What the task may do with it: of `r` (read), `w` (write), `m` (mknod); all by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
}

impl Device {
    /// The node on the host.
    pub fn host_path(&self) -> &Path {
        self.host_path.as_deref().unwrap_or(&self.path)
    }
}

/// What may be done with a device: some of `rwm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct Access {
    pub read: bool,
    pub write: bool,
    pub mknod: bool,
}

impl Default for Access {
    fn default() -> Access {
        Access {
            read: true,
            write: true,
            mknod: true,
        }
    }
}

impl FromStr for Access {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Access, Invalid> {
        let once = |letter| text.matches(letter).count() <= 1;
        let known = text.chars().all(|c| "rwm".contains(c));
        if text.is_empty() || !known || !(once('r') && once('w') && once('m')) {
            return Err(Invalid::value(format!(
                "{text:?} is not an access; write some of \"rwm\""
            )));
        }
        Ok(Access {
            read: text.contains('r'),
            write: text.contains('w'),
            mknod: text.contains('m'),
        })
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (allowed, letter) in [(self.read, "r"), (self.write, "w"), (self.mknod, "m")] {
            if allowed {
                f.write_str(letter)?;
            }
        }
        Ok(())
    }
}

text_value!(
    Access,
    "Access",
    string,
    "some of \"rwm\": read, write, mknod",
    "rw"
);

/// The system call filter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Seccomp {
    /// The profile that containerd and Docker users know.
    #[default]
    Default,
    /// No filter.
    Unconfined,
    /// A profile in a file of the host, in OCI's or Docker's form.
    File(PathBuf),
}

impl FromStr for Seccomp {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Seccomp, Invalid> {
        match text {
            "default" => Ok(Seccomp::Default),
            "unconfined" => Ok(Seccomp::Unconfined),
            path if path.starts_with('/') => Ok(Seccomp::File(path.into())),
            _ => Err(Invalid::value(format!(
                "{text:?} is neither \"default\", \"unconfined\" nor the absolute path of a profile"
            ))),
        }
    }
}

impl fmt::Display for Seccomp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Seccomp::Default => f.write_str("default"),
            Seccomp::Unconfined => f.write_str("unconfined"),
            Seccomp::File(path) => path.display().fmt(f),
        }
    }
}

text_value!(
    Seccomp,
    "Seccomp",
    string,
    "\"default\", \"unconfined\", or the absolute path of a profile",
    "default",
    "unconfined",
    "/etc/seccomp/web.json"
);

/// One namespace: the task's own, the host's, or one that exists already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespace {
    /// A new one.
    Private,
    /// That of whoever launches.
    Host,
    /// The one at this path, such as `/run/netns/blue`.
    Path(PathBuf),
}

impl FromStr for Namespace {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Namespace, Invalid> {
        match text {
            "private" => Ok(Namespace::Private),
            "host" => Ok(Namespace::Host),
            path if path.starts_with('/') => Ok(Namespace::Path(path.into())),
            _ => Err(Invalid::value(format!(
                "{text:?} is neither \"private\", \"host\" nor the absolute path of a namespace"
            ))),
        }
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Namespace::Private => f.write_str("private"),
            Namespace::Host => f.write_str("host"),
            Namespace::Path(path) => path.display().fmt(f),
        }
    }
}

text_value!(
    Namespace,
    "Namespace",
    string,
    "\"private\", \"host\", or the absolute path of a namespace",
    "private",
    "host",
    "/run/netns/blue"
);

/// Which namespaces are the task's own. The mount namespace always is: without
/// it the task's root would be mounted over the host's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Namespaces {
    /// Processes; private by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<Namespace>,
    /// System V IPC, POSIX message queues and `/dev/shm`; private by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipc: Option<Namespace>,
    /// Host and domain name; private by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uts: Option<Namespace>,
    /// Interfaces, addresses, ports; the host's by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Namespace>,
    /// What `/proc/self/cgroup` shows; private by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<Namespace>,
    /// Users and groups; the host's by default. Private needs mappings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<Namespace>,
}

/// Each with its default.
#[allow(missing_docs)]
impl Namespaces {
    pub fn pid(&self) -> &Namespace {
        self.pid.as_ref().unwrap_or(&Namespace::Private)
    }

    pub fn ipc(&self) -> &Namespace {
        self.ipc.as_ref().unwrap_or(&Namespace::Private)
    }

    pub fn uts(&self) -> &Namespace {
        self.uts.as_ref().unwrap_or(&Namespace::Private)
    }

    pub fn network(&self) -> &Namespace {
        self.network.as_ref().unwrap_or(&Namespace::Host)
    }

    pub fn cgroup(&self) -> &Namespace {
        self.cgroup.as_ref().unwrap_or(&Namespace::Private)
    }

    pub fn user(&self) -> &Namespace {
        self.user.as_ref().unwrap_or(&Namespace::Host)
    }
}

/// A range of users or groups inside and the one it stands for outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IdMapping {
    /// The first id inside.
    pub container: u32,
    /// The first id outside.
    pub host: u32,
    /// How many; at least 1.
    pub size: u32,
}

/// CPU time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cpu {
    /// The weight against other cgroups when CPU time is short: 2 to 262144,
    /// the kernel's default is 1024.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<u64>,
    /// The most CPU time, in CPUs; at least 0.01 with the default period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Cpus>,
    /// How often the limit is renewed: 1ms to 1s; 100ms by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<Duration>,
    /// The CPUs the task may run on, such as `0-1,3`; all by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<IdSet>,
    /// The memory nodes it may use; all by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mems: Option<IdSet>,
}

impl Cpu {
    /// The period in µs, with its default.
    pub fn period_us(&self) -> u64 {
        let period = self.period.unwrap_or(Duration::from_millis(100));
        u64::try_from(period.as_std().as_micros()).unwrap_or(u64::MAX)
    }

    /// The quota per period, in µs, where there is a limit.
    pub fn quota_us(&self) -> Option<i64> {
        self.limit.map(|limit| limit.quota_us(self.period_us()))
    }
}

/// Memory and swap.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// The most memory, at least 6M; beyond it the task's processes are killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<ByteSize>,
    /// Beyond this the task is slowed down and reclaimed from; cgroup v2 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<ByteSize>,
    /// Up to this the kernel spares the task when memory is short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<ByteSize>,
    /// Swap beyond the memory limit; none by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<Ceiling<ByteSize>>,
}

/// Block devices.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Io {
    /// The weight against other cgroups: 10 to 1000, as in OCI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Weights and rates by device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<IoDevice>,
}

/// Weight and rates on one block device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IoDevice {
    /// The device: a path on the host, or its numbers as `8:0`.
    pub path: String,
    /// The weight on it: 10 to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// The most read, in bytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bps: Option<ByteSize>,
    /// The most written, in bytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bps: Option<ByteSize>,
    /// The most reads a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_iops: Option<u64>,
    /// The most writes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_iops: Option<u64>,
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

/// Files that the output is appended to; absolute paths on the host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Output {
    /// For standard output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<PathBuf>,
    /// For standard error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<PathBuf>,
}
