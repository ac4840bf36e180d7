//! From a description and facts about the host to an OCI configuration.
//!
//!   process ─ who runs what, with which rights
//!   mounts ─ the root as the task sees it
//!   resources ─ the cgroup's limits, devices
//!   update ─ limits that change while the task runs
//!
//! Every default protection is decided here or in the files below.
//! Must not: look at the host; `Host` has what is needed.

mod mounts;
mod process;
mod resources;
mod update;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

use oci_spec::runtime::{
    Linux, LinuxIdMapping, LinuxIdMappingBuilder, LinuxNamespace, LinuxNamespaceType, LinuxSeccomp, Spec,
};
use serde_json::Value;

use crate::capability::Capability;
use crate::invalid::Invalid;
use crate::task::{IdMapping, Namespace, Task};
pub use mounts::{ETC, OPT, RESOLV_CONF, hides_owners};
pub use resources::common_device_rules;
pub use update::build_update;

/// What runc 1.1 and crun 1.8, as Debian 12 has them, both take.
const OCI_VERSION: &str = "1.0.2";

/// PATH where the description gives none.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where a command without a `/` is looked for before PATH, inside the root: the task's folder and the one that it
/// brings its own files in.
///
/// Source: nomad, `lookupTaskBin` in drivers/shared/executor.
pub const OWN_FOLDERS: &[&str] = &["/local", "/"];

/// What of the host a task without a root filesystem of its own sees, read-only.
pub const HOST_VIEW: &[&str] = &["/bin", ETC, "/lib", "/lib32", "/lib64", OPT, "/sbin", "/usr"];

/// Files of `/proc` and `/sys` that reveal the host and that no task needs: hidden.
pub const MASKED_PATHS: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

/// Files of `/proc` that change the host: read-only.
pub const READONLY_PATHS: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Facts about this host and root that [`build`] needs; the executor gathers them.
#[derive(Debug, Clone, Default)]
pub struct Host {
    /// The task's user, already resolved inside the root.
    pub user: UserIds,
    /// The paths of [`HOST_VIEW`] that exist on this host.
    pub view: Vec<PathBuf>,
    /// The file to bind at `/etc/resolv.conf`: what the host's leads to outside of [`HOST_VIEW`], or one with servers
    /// that the task reaches.
    pub resolver: Option<PathBuf>,
    /// The capabilities that the host gives a task: what `add = ["ALL"]` stands for. `None` for all there are.
    pub capabilities: Option<BTreeSet<Capability>>,
    /// The CPUs that are online; a description's `cpu.cpuset` must name some of these alone.
    pub cpus: BTreeSet<u32>,
    /// The NUMA nodes that are online; a description's `cpu.mems` must name some of these alone.
    pub mems: BTreeSet<u32>,
    /// What is found at [`Task::device_paths`].
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
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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

/// The OCI configuration that `task` stands for on `host`.
///
/// # Errors
/// What [`Task::validate`] finds, and what does not fit this host: CPUs, memory
/// nodes, devices or huge pages that it does not have, a limit that its cgroup
/// version cannot enforce, a user that the mappings leave out.
pub fn build(task: &Task, host: &Host) -> Result<Spec, Invalid> {
    let mut spec = build_unfiltered(task, host)?;
    let profile = process::seccomp(&task.settled(), host)?;
    spec.linux_mut().get_or_insert_default().set_seccomp(profile);
    Ok(spec)
}

/// Like [`build`], but without the seccomp profile, which is by far the longest part: for
/// callers that have its filter already. `host.seccomp` and `host.kernel` are ignored.
///
/// # Errors
/// As [`build`].
pub fn build_unfiltered(task: &Task, host: &Host) -> Result<Spec, Invalid> {
    task.validate()?;
    let task = &*task.settled();
    let mut spec = Spec::default();
    spec.set_version(OCI_VERSION.into());
    spec.set_root(Some(mounts::root(task)));
    spec.set_mounts(Some(mounts::mounts(task, host)));
    spec.set_process(Some(process::process(task, host)?));
    spec.set_hostname(task.hostname.clone());
    spec.set_annotations(filled(task.labels.clone()));
    spec.set_linux(Some(linux(task, host)?));
    Ok(spec)
}

fn linux(task: &Task, host: &Host) -> Result<Linux, Invalid> {
    let strings = |paths: &Option<Vec<PathBuf>>, default: &[&str]| match paths {
        Some(paths) => paths.iter().map(|p| p.to_string_lossy().into()).collect(),
        None => default.iter().map(|p| (*p).into()).collect(),
    };
    let (devices, rules) = resources::devices(task, host)?;
    let mut linux = Linux::default();
    linux
        .set_namespaces(Some(namespaces(task)))
        .set_uid_mappings(mappings(&task.uid_mappings))
        .set_gid_mappings(mappings(&task.gid_mappings))
        .set_sysctl(filled(task.sysctls.clone()))
        .set_devices((!devices.is_empty()).then_some(devices))
        .set_resources(Some(resources::resources(task, host, rules)?))
        .set_cgroups_path(Some(host.cgroup_path.clone().into()))
        .set_rootfs_propagation(mounts::root_propagation(task))
        .set_masked_paths(Some(strings(&task.masked_paths, MASKED_PATHS)))
        .set_readonly_paths(Some(strings(&task.readonly_paths, READONLY_PATHS)));
    Ok(linux)
}

/// Those that are not the host's; the mount namespace always is the task's own.
fn namespaces(task: &Task) -> Vec<LinuxNamespace> {
    let of = &task.namespaces;
    let mut namespaces = Vec::new();
    for (kind, namespace) in [
        (LinuxNamespaceType::User, of.user()),
        (LinuxNamespaceType::Mount, &Namespace::Private),
        (LinuxNamespaceType::Pid, of.pid()),
        (LinuxNamespaceType::Ipc, of.ipc()),
        (LinuxNamespaceType::Uts, of.uts()),
        (LinuxNamespaceType::Network, of.network()),
        (LinuxNamespaceType::Cgroup, of.cgroup()),
    ] {
        let path = match namespace {
            Namespace::Host => continue,
            Namespace::Private => None,
            Namespace::Path(path) => Some(path.clone()),
        };
        let mut entry = LinuxNamespace::default();
        entry.set_typ(kind).set_path(path);
        namespaces.push(entry);
    }
    namespaces
}

fn mappings(mappings: &[IdMapping]) -> Option<Vec<LinuxIdMapping>> {
    let mapping = |m: &IdMapping| {
        LinuxIdMappingBuilder::default()
            .container_id(m.container)
            .host_id(m.host)
            .size(m.size)
            .build()
            .expect("every required field is set")
    };
    (!mappings.is_empty()).then(|| mappings.iter().map(mapping).collect())
}

/// `None` for an empty map.
fn filled(map: BTreeMap<String, String>) -> Option<HashMap<String, String>> {
    (!map.is_empty()).then(|| map.into_iter().collect())
}

/// `spec` as the text of a config.json. The order is stable, unlike that of
/// oci-spec's hash maps and sets.
pub fn render(spec: &Spec) -> String {
    let mut value = serde_json::to_value(spec).expect("every key in a Spec is a string");
    value.sort_all_objects();
    if let Some(Value::Object(sets)) = value.pointer_mut("/process/capabilities") {
        for set in sets.values_mut().filter_map(Value::as_array_mut) {
            set.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
        }
    }
    let mut text = serde_json::to_string_pretty(&value).expect("a Value is always JSON");
    text.push('\n');
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod testing {
    use super::{DeviceNode, Host, Spec, build};
    use crate::parse::{Format, parse};

    fn on(toml: &str, change: impl Fn(&mut Host)) -> Result<Spec, crate::Invalid> {
        let node = |kind, major, minor| DeviceNode { kind, major, minor, mode: 0o660, uid: 0, gid: 0 };
        let mut host = Host {
            view: vec!["/etc".into(), "/usr".into()],
            cpus: [0, 1].into(),
            mems: [0].into(),
            devices: [("/dev/sda".into(), node('b', 8, 0)), ("/dev/tty1".into(), node('c', 4, 1))].into(),
            hugepage_sizes: ["2MB".to_string()].into(),
            kernel: (6, 12),
            cgroup_path: "/bowline/a/a".into(),
            ..Host::default()
        };
        change(&mut host);
        let task = parse(&format!("command = 'true'\n{toml}"), Format::Toml);
        build(&task.expect(toml), &host)
    }

    /// The configuration of such a task on a small host, changed so.
    #[track_caller]
    pub fn built(toml: &str, change: impl Fn(&mut Host)) -> Spec {
        on(toml, change).expect(toml)
    }

    #[track_caller]
    pub fn refused_on(toml: &str, change: impl Fn(&mut Host), field: &str, reason: &str) {
        let error = on(toml, change).expect_err(toml);
        assert_eq!(error.field, field, "{toml}: {error}");
        assert!(error.reason.contains(reason), "{toml}: {error}");
    }

    #[track_caller]
    pub fn refused(toml: &str, field: &str, reason: &str) {
        refused_on(toml, |_| (), field, reason);
    }
}
