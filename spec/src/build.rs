//! From a description and facts about the host to an OCI configuration.
//!
//!   host ─ what has to be known of the host
//!   process ─ who runs what, with which rights
//!   mounts ─ the root as the task sees it
//!   resources ─ the cgroup's limits, devices
//!   cdi ─ what vendors' files say of devices
//!   update ─ limits that change while the task runs
//!
//! Every default protection is decided here or in the files below.
//! Must not: look at the host; `Host` has what is needed.

mod cdi;
mod host;
mod mounts;
mod process;
mod resources;
mod update;

use std::path::PathBuf;

use oci_spec::runtime::{Linux, LinuxIdMapping, LinuxIdMappingBuilder, LinuxNamespace, LinuxNamespaceType, Spec};
use serde_json::Value;

use crate::invalid::Invalid;
use crate::task::{IdMapping, Namespace, Task};
pub use host::{DeviceNode, Host, UserIds};
pub use mounts::{ETC, HOST_VIEW, OPT, hides_owners, shows_host};
pub use process::{DEFAULT_PATH, effective_until_execve};
pub use resources::common_device_rules;
use resources::filled;
pub use update::build_update;

/// What runc 1.1 and crun 1.8, as Debian 12 has them, both take.
const OCI_VERSION: &str = "1.0.2";

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

/// The most terminals at a time in a task's own `/dev/pts`. All tasks share those of the host (`kernel.pty.max`, 4096).
pub(crate) const PTYS: u32 = 512;

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
    spec.set_hostname(task.own_hostname(&host.name).map(str::to_owned));
    spec.set_annotations(filled(task.labels.clone()));
    spec.set_linux(Some(linux(task, host)?));
    cdi::apply(task, &host.user, &mut spec)?;
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
