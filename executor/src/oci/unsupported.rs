//! What an OCI configuration may ask for and the executor does not do. It is refused by name,
//! because nothing that was requested is ever left out in silence.
//!
//! Decides before anything is made. What depends on the kernel is refused where it is tried, except
//! for security modules, where nothing may be left to chance.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path};

use bowline_cgroup::huge_pages;
use bowline_error::{Error, Kind, Result};
use bowline_spec::budget::SHARES;
use bowline_spec::capability::Capability as Known;
use bowline_spec::values::IdSet;
use oci_spec::runtime::{
    Capabilities, Capability, IOPriorityClass, Linux, LinuxCapabilities, LinuxCpu, LinuxDevice, LinuxDeviceType,
    LinuxIOPriority, LinuxIdMapping, LinuxMemory, LinuxNamespaceType, LinuxResources, LinuxSchedulerFlag,
    LinuxSchedulerPolicy, Mount, Process, Scheduler, Spec, User,
};
use serde::Serialize;
use serde_json::Value;

use crate::oci::tolerance;
use crate::rights::lsm;
use crate::view::idmap;
use crate::view::inside_root::resolved;
use crate::view::memory_policy;
use crate::view::network::devices;
use crate::view::time_namespace;

/// Refuses what the executor does not do.
///
/// # Errors
/// `Unsupported`, or `BadSpec` for what would change the host.
pub fn check(spec: &Spec) -> Result<()> {
    spec.process().as_ref().map_or(Ok(()), check_process)?;
    let unsupported = |what: &str| Err(Error::new(Kind::Unsupported, format!("{what} is not supported")));
    let private = |kind| is_private(spec, kind);
    let has = |name: &Option<String>| name.as_ref().is_some_and(|name| !name.is_empty());
    for (name, value) in [("hostname", spec.hostname()), ("domainname", spec.domainname())] {
        if has(value) && !private(LinuxNamespaceType::Uts) {
            let message = format!("{name}: without a UTS namespace of its own it would be the host's");
            return Err(Error::new(Kind::BadSpec, message));
        }
    }
    let others = [
        ("solaris", spec.solaris().as_ref().is_some_and(is_set)),
        ("windows", spec.windows().as_ref().is_some_and(is_set)),
        ("vm", spec.vm().as_ref().is_some_and(is_set)),
        ("zos", spec.zos().as_ref().is_some_and(is_set)),
    ];
    if let Some((name, _)) = others.into_iter().find(|(_, set)| *set) {
        return unsupported(&format!("{name}: a container of another platform"));
    }
    // A remount changes the root itself.
    let over_root = |mount: &&Mount| {
        let changes = mount.options().iter().flatten().any(|option| option == "remount");
        !changes && resolved(mount.destination()).is_empty()
    };
    if let Some(mount) = spec.mounts().iter().flatten().find(over_root) {
        let at = mount.destination().display();
        return Err(bad(format!("mounts: {at}: it would be mounted over the root, where nobody sees it")));
    }
    let Some(linux) = spec.linux() else { return Ok(()) };
    if let Some(path) = linux.masked_paths().iter().flatten().find(|path| resolved(Path::new(path)).is_empty()) {
        return Err(bad(format!("linux.maskedPaths: {path}: the whole root would be hidden")));
    }
    check_namespaces(linux)?;
    spec.process().as_ref().map_or(Ok(()), |process| check_user(process.user(), linux))?;
    linux.resources().as_ref().map_or(Ok(()), check_resources)?;
    check_devices(spec, linux)?;
    if let Some(label) = linux.mount_label().as_deref().filter(|label| !label.is_empty()) {
        lsm::check_label("linux.mountLabel", label)?;
    }
    time_namespace::check(spec)?;
    memory_policy::check(spec)?;
    if linux.intel_rdt().as_ref().is_some_and(is_set) {
        return unsupported("linux.intelRdt");
    }
    devices::check(spec, private(LinuxNamespaceType::Network))?;
    let flags = linux.personality().as_ref().and_then(|personality| personality.flags().as_ref());
    if let Some(flag) = flags.and_then(|flags| flags.first()) {
        return Err(Error::new(Kind::BadSpec, format!("linux.personality: the flag {flag} is unknown")));
    }
    linux.sysctl().iter().flatten().try_for_each(|(key, _)| sysctl(key, &private))
}

/// Whether anything of a section says more than false, 0 and empty.
fn is_set(section: &impl Serialize) -> bool {
    serde_json::to_value(section).is_ok_and(|section| !is_empty(&section))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_i64() == Some(0),
    }
}

/// Refuses limits that the kernel would change without a word.
///
/// # Errors
/// `BadSpec` naming the field.
pub fn check_resources(resources: &LinuxResources) -> Result<()> {
    let shares = resources.cpu().as_ref().and_then(LinuxCpu::shares);
    if let Some(shares) = shares.filter(|shares| *shares != 0 && !SHARES.contains(shares)) {
        let (least, most) = SHARES.into_inner();
        return Err(bad(format!("linux.resources.cpu.shares: {shares} is not {least} to {most}")));
    }
    let swappiness = resources.memory().as_ref().and_then(LinuxMemory::swappiness);
    if let Some(swappiness) = swappiness.filter(|swappiness| *swappiness > 100) {
        return Err(bad(format!("linux.resources.memory.swappiness: {swappiness} is not 0 to 100")));
    }
    check_page_sizes(resources)
}

/// Refuses limits of huge pages without a size, or of one that this host lacks.
///
/// # Errors
/// `BadSpec` or `Unsupported`, naming the field.
pub fn check_page_sizes(resources: &LinuxResources) -> Result<()> {
    let limits = resources.hugepage_limits().as_deref().unwrap_or_default();
    let sizes = if limits.is_empty() { BTreeSet::new() } else { huge_pages::sizes() };
    for (index, limit) in limits.iter().enumerate().filter(|(_, limit)| !sizes.contains(limit.page_size())) {
        let at = format!("linux.resources.hugepageLimits[{index}].pageSize");
        let size = limit.page_size();
        if size.is_empty() {
            return Err(bad(format!("{at}: missing")));
        }
        // Where there are none, the controller is missing too, which is refused where it is used.
        if size.ends_with('B') && !sizes.is_empty() {
            let sizes = sizes.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            let error = Error::new(Kind::Unsupported, format!("{at}: this host has no pages of {size:?}"));
            return Err(error.hint(format!("it has pages of {sizes}")));
        }
    }
    Ok(())
}

/// Like [`check`], for the configuration of one process, such as an exec.
///
/// # Errors
/// As [`check`].
pub fn check_process(process: &Process) -> Result<()> {
    let has = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    for (name, set) in [("commandLine", process.command_line()), ("user.username", process.user().username())] {
        if has(set) {
            let message = format!("process.{name} is for Windows and not supported");
            return Err(Error::new(Kind::Unsupported, message));
        }
    }
    let most = u64::from(u16::MAX);
    if let Some(size) = process.console_size().filter(|size| size.height() > most || size.width() > most) {
        return Err(bad(format!("process.consoleSize: {}x{} is too large", size.height(), size.width())));
    }
    let rlimits = process.rlimits().as_deref().unwrap_or_default();
    for (index, rlimit) in rlimits.iter().enumerate() {
        if rlimits[..index].iter().any(|other| other.typ() == rlimit.typ()) {
            return Err(bad(format!("process.rlimits: {} is there twice", rlimit.typ())));
        }
    }
    if let Some(umask) = process.user().umask().filter(|umask| *umask > 0o777) {
        return Err(bad(format!("process.user.umask: {umask:#o} is not 0 to 0o777")));
    }
    process.io_priority().as_ref().map_or(Ok(()), check_io_priority)?;
    check_affinity(process)?;
    if let Some(adjustment) = process.oom_score_adj().filter(|adjustment| !(-1000..=1000).contains(adjustment)) {
        return Err(bad(format!("process.oomScoreAdj: {adjustment} is not -1000 to 1000")));
    }
    process.scheduler().as_ref().map_or(Ok(()), check_scheduler)?;
    process.capabilities().as_ref().into_iter().for_each(warn_of_ambient);
    lsm::check(process)
}

/// Names the capabilities that cannot be ambient, as the kernel has it (capabilities(7)). Every runtime leaves them out:
/// the usual example of a configuration has some.
fn warn_of_ambient(sets: &LinuxCapabilities) {
    let has = |set: &Option<Capabilities>, one: &Capability| set.as_ref().is_some_and(|set| set.contains(one));
    let can_be = |one: &&Capability| has(sets.permitted(), one) && has(sets.inheritable(), one);
    let lost = sets.ambient().iter().flatten().filter(|one| !can_be(one)).map(|one| Known::of_oci(one).to_string());
    let lost: BTreeSet<String> = lost.collect();
    if !lost.is_empty() {
        let names = lost.into_iter().collect::<Vec<_>>().join(" ");
        tracing::warn!(
            "process.capabilities.ambient: [{names}] have no effect: they are not permitted and inheritable"
        );
    }
}

fn bad(message: String) -> Error {
    Error::new(Kind::BadSpec, message)
}

fn check_io_priority(wanted: &LinuxIOPriority) -> Result<()> {
    let priority = wanted.priority();
    if !(0..8).contains(&priority) {
        return Err(bad(format!("process.ioPriority.priority: {priority} is not 0 to 7")));
    }
    if priority != 0 && wanted.class() == IOPriorityClass::IoprioClassIdle {
        // As with runc. The kernel takes it, and asks nobody for it.
        tracing::warn!("process.ioPriority.priority has no effect: {} has none", wanted.class());
    }
    Ok(())
}

/// Refuses lists of CPUs that cannot be parsed, before the process starts. Which CPUs exist may change until then.
fn check_affinity(process: &Process) -> Result<()> {
    let Some(affinity) = process.exec_cpu_affinity() else { return Ok(()) };
    for (name, cpus) in [("initial", affinity.initial()), ("final", affinity.cpu_affinity_final())] {
        let Some(cpus) = cpus.as_deref().filter(|cpus| !cpus.is_empty()) else { continue };
        if cpus.parse::<IdSet>().is_err() {
            return Err(bad(format!("process.execCPUAffinity.{name}: {cpus:?} is no list of CPUs"))
                .hint("list CPUs and ranges of them, such as 0-3,7"));
        }
    }
    Ok(())
}

/// Refuses attributes that the kernel would leave out, or change, for this policy (sched_setattr(2)).
fn check_scheduler(scheduler: &Scheduler) -> Result<()> {
    use LinuxSchedulerPolicy::{SchedBatch, SchedDeadline, SchedFifo, SchedOther, SchedRr};
    let policy = scheduler.policy();
    let is = |policies: &[LinuxSchedulerPolicy]| policies.contains(policy);
    let (nice, priority) = (scheduler.nice().unwrap_or(0), scheduler.priority().unwrap_or(0));
    let times = [("runtime", scheduler.runtime()), ("deadline", scheduler.deadline()), ("period", scheduler.period())];
    let time = times.into_iter().find(|(_, time)| time.is_some_and(|time| time != 0));
    let refused = |name: &str| Err(bad(format!("process.scheduler.{name}: {policy} has none")));
    if nice != 0 && !is(&[SchedOther, SchedBatch]) {
        // As with runc: a manager may set one whatever the policy.
        tracing::warn!("process.scheduler.nice has no effect: {policy} has none");
    }
    // The only flags that ask for what other policies do not know.
    let of_deadlines = [LinuxSchedulerFlag::SchedFlagReclaim, LinuxSchedulerFlag::SchedFlagDLOverrun];
    let flag = scheduler.flags().iter().flatten().find(|flag| of_deadlines.contains(flag));
    if let Some(flag) = flag.filter(|_| !is(&[SchedDeadline])) {
        return Err(bad(format!("process.scheduler.flags: {policy} has no {}", tolerance::name_of_flag(flag))));
    }
    match time {
        _ if !(-20..=19).contains(&nice) => Err(bad(format!("process.scheduler.nice: {nice} is not -20 to 19"))),
        _ if priority != 0 && !is(&[SchedFifo, SchedRr]) => refused("priority"),
        Some((name, _)) if !is(&[SchedDeadline]) => refused(name),
        _ => Ok(()),
    }
}

/// Refuses namespaces that are asked for twice or whose path would begin in the shim's folder, and id maps that belong
/// to none.
fn check_namespaces(linux: &Linux) -> Result<()> {
    let namespaces = linux.namespaces().as_deref().unwrap_or_default();
    for (index, namespace) in namespaces.iter().enumerate() {
        if namespaces[..index].iter().any(|other| other.typ() == namespace.typ()) {
            return Err(bad(format!("linux.namespaces: {} is there twice", namespace.typ())));
        }
        let path = namespace.path().as_deref().filter(|path| !path.as_os_str().is_empty());
        if let Some(path) = path.filter(|path| path.is_relative()) {
            let path = path.display().to_string();
            return Err(bad(format!("linux.namespaces[{index}].path: {path:?} is not absolute")));
        }
    }
    let user = namespaces.iter().find(|namespace| namespace.typ() == LinuxNamespaceType::User);
    let new = user.is_some_and(|user| user.path().as_ref().is_none_or(|path| path.as_os_str().is_empty()));
    for (name, mappings) in [("uidMappings", linux.uid_mappings()), ("gidMappings", linux.gid_mappings())] {
        let none = mappings.as_ref().is_none_or(Vec::is_empty);
        if !none && user.is_none() {
            return Err(bad(format!("linux.{name}: there is no user namespace to map")));
        }
        if none && new {
            return Err(bad(format!("linux.{name}: missing for a new user namespace")));
        }
        if new {
            idmap::check(&format!("linux.{name}"), mappings.as_deref().unwrap_or_default())?;
        }
    }
    Ok(())
}

/// Refuses a user or group that the mappings of the user namespace do not have.
///
/// # Errors
/// `BadSpec` naming the field of the process.
pub fn check_user(user: &User, linux: &Linux) -> Result<()> {
    let groups = user.additional_gids().iter().flatten().map(|gid| ("additionalGids", *gid, linux.gid_mappings()));
    let ids = [("uid", user.uid(), linux.uid_mappings()), ("gid", user.gid(), linux.gid_mappings())];
    for (name, id, mappings) in ids.into_iter().chain(groups) {
        if is_unmapped(mappings.as_deref(), id) {
            let maps = if name == "uid" { "uidMappings" } else { "gidMappings" };
            return Err(bad(format!("process.user.{name}: {id} is not mapped in the task's user namespace"))
                .hint(format!("map it by linux.{maps}, or choose one that is")));
        }
    }
    Ok(())
}

/// Whether there are mappings, and none has this id.
fn is_unmapped(mappings: Option<&[LinuxIdMapping]>, id: u32) -> bool {
    let mappings = mappings.unwrap_or_default();
    !mappings.is_empty() && !mappings.iter().any(|mapping| idmap::outside(mapping, id).is_some())
}

/// Refuses devices that are none, and those that nobody would make.
fn check_devices(spec: &Spec, linux: &Linux) -> Result<()> {
    let devices = linux.devices().as_deref().unwrap_or_default();
    if let Some(device) = devices.iter().find(|device| device.typ() == LinuxDeviceType::A) {
        return Err(bad(format!("linux.devices: {}: the type has to be c, u, b or p", device.path().display())));
    }
    // How many bits the kernel has for them (linux/kdev_t.h); it would cut the others off.
    let is_number =
        |device: &&LinuxDevice| (0..1 << 12).contains(&device.major()) && (0..1 << 20).contains(&device.minor());
    let is_node = |device: &&LinuxDevice| device.typ() != LinuxDeviceType::P;
    if let Some(device) = devices.iter().filter(is_node).find(|device| !is_number(device)) {
        let (path, major, minor) = (device.path().display(), device.major(), device.minor());
        return Err(bad(format!("linux.devices: {path}: {major}:{minor} is no device number")));
    }
    for device in devices {
        let ids = [("uid", device.uid(), linux.uid_mappings()), ("gid", device.gid(), linux.gid_mappings())];
        let unmapped = |(_, id, mappings): &(_, Option<u32>, &Option<Vec<LinuxIdMapping>>)| {
            id.is_some_and(|id| is_unmapped(mappings.as_deref(), id))
        };
        if let Some((name, Some(id), _)) = ids.into_iter().find(unmapped) {
            let message = format!("{name} {id} is not mapped in the task's user namespace");
            return Err(bad(format!("linux.devices: {}: {message}", device.path().display()))
                .hint(format!("map it by linux.{name}Mappings, or choose one that is")));
        }
    }
    for path in devices.iter().map(|device| device.path()) {
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(bad(format!("linux.devices: {}: write the path without `..`", path.display())));
        }
        if resolved(path).first().is_some_and(|first| first == "proc" || first == "sys") {
            return Err(bad(format!("linux.devices: {}: the kernel takes no files there", path.display())));
        }
    }
    let at_dev = spec.mounts().iter().flatten().filter(|mount| mount.destination() == Path::new("/dev"));
    // A tmpfs counts even if another entry mounts /dev again, or over it.
    let own = at_dev.map(|mount| mount.typ().as_deref() == Some("tmpfs")).max();
    // runc does the same, and `docker run -v /dev:/dev --device …` asks for both.
    if own == Some(false) && !devices.is_empty() {
        tracing::warn!("linux.devices has no effect: /dev is a mount of the configuration's own");
    }
    Ok(())
}

/// The file of a sysctl below `/proc/sys`. If a slash comes first, dots are part of names;
/// otherwise slashes are (sysctl(8)).
///
/// # Errors
/// `BadSpec` for an invalid key.
pub fn sysctl_path(key: &str) -> Result<String> {
    let path = match key.find(['.', '/']) {
        Some(at) if key[at..].starts_with('/') => key.to_owned(),
        _ => key
            .chars()
            .map(|c| {
                if c == '.' {
                    '/'
                } else if c == '/' {
                    '.'
                } else {
                    c
                }
            })
            .collect(),
    };
    if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(Error::new(Kind::BadSpec, format!("sysctl: {key:?} is no key")));
    }
    Ok(path)
}

/// The sysctls of System V's message queues, semaphores and shared memory.
const IPC: [&str; 8] = ["msgmax", "msgmnb", "msgmni", "sem", "shmall", "shmmax", "shmmni", "shm_rmid_forced"];

/// Refuses a sysctl unless it belongs to a namespace that is `private`.
///
/// # Errors
/// `BadSpec` naming the sysctl.
pub fn sysctl(key: &str, private: &impl Fn(LinuxNamespaceType) -> bool) -> Result<()> {
    let path = sysctl_path(key)?;
    let (first, rest) = path.split_once('/').unwrap_or((&path, ""));
    if (first, rest) == ("kernel", "hostname") {
        return Err(bad(format!("sysctl: {key} is not allowed: name the host by `hostname`")));
    }
    let namespace = match first {
        "net" => LinuxNamespaceType::Network,
        "fs" if rest.starts_with("mqueue/") => LinuxNamespaceType::Ipc,
        "kernel" if IPC.contains(&rest) => LinuxNamespaceType::Ipc,
        "kernel" if rest == "domainname" => LinuxNamespaceType::Uts,
        "user" => LinuxNamespaceType::User,
        _ => {
            let message = format!("sysctl: {key} is in no namespace: it would be set for the host");
            return Err(Error::new(Kind::BadSpec, message));
        }
    };
    if !private(namespace) {
        let message = format!("sysctl: {key} needs a {namespace} namespace other than the host's");
        return Err(Error::new(Kind::BadSpec, message));
    }
    Ok(())
}

/// Whether the container's namespace of this kind is new, or at least not ours.
fn is_private(spec: &Spec, kind: LinuxNamespaceType) -> bool {
    let namespaces = spec.linux().as_ref().and_then(|linux| linux.namespaces().as_ref());
    let Some(namespace) = namespaces.into_iter().flatten().find(|n| n.typ() == kind) else { return false };
    match namespace.path().as_deref().filter(|path| !path.as_os_str().is_empty()) {
        None => true,
        Some(path) => {
            let ours = Path::new("/proc/self/ns").join(kind.to_string());
            let of = |path: &Path| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
            // A namespace that cannot be opened is reported when it is joined.
            of(path) != of(&ours)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_text(namespaces: &str, more: &str) -> std::result::Result<(), (Kind, String)> {
        let text = format!(r#"{{"ociVersion":"1.2.0","linux":{{"namespaces":[{namespaces}]}}{more}}}"#);
        let text = if more.starts_with("\"") {
            format!(r#"{{"ociVersion":"1.2.0","linux":{{"namespaces":[{namespaces}],{more}}}}}"#)
        } else {
            text
        };
        let spec: Spec = serde_json::from_str(&text).expect("a configuration");
        check(&spec).map_err(|error| (error.kind(), error.to_string()))
    }

    #[test]
    fn what_is_not_done_is_named() {
        for (more, name) in [
            (r#""mountLabel":"system_u:object_r:x:s0""#, "mountLabel"),
            (r#""intelRdt":{"closID":"x"}"#, "intelRdt"),
            (r#","process":{"user":{"uid":0,"gid":0},"cwd":"/","selinuxLabel":"u:r:t:s0"}"#, "selinuxLabel"),
        ] {
            let (kind, message) = check_text("", more).expect_err(name);
            assert_eq!(kind, Kind::Unsupported, "{message}");
            assert!(message.contains(name), "{message}");
        }
        let empty = r#","process":{"user":{"uid":0,"gid":0},"cwd":"/","selinuxLabel":""}"#;
        assert_eq!(check_text("", empty), Ok(()));
    }

    #[test]
    fn devices_are_moved_into_a_network_of_the_task_s_own_alone() {
        let devices = r#""netDevices":{"eth0":{"name":"eth1"}}"#;
        assert_eq!(check_text("", devices).map_err(|e| e.0), Err(Kind::BadSpec));
        assert_eq!(check_text(r#"{"type":"network"}"#, devices), Ok(()));
        let host = r#"{"type":"network","path":"/proc/self/ns/net"}"#;
        assert_eq!(check_text(host, devices).map_err(|e| e.0), Err(Kind::BadSpec), "joined, but the host's");
    }

    #[test]
    fn a_name_is_not_given_to_the_host() {
        for name in ["hostname", "domainname"] {
            let more = format!(r#","{name}":"x""#);
            assert_eq!(check_text("", &more).map_err(|e| e.0), Err(Kind::BadSpec));
            assert_eq!(check_text(r#"{"type":"uts"}"#, &more), Ok(()));
            let host = r#"{"type":"uts","path":"/proc/self/ns/uts"}"#;
            assert_eq!(check_text(host, &more).map_err(|e| e.0), Err(Kind::BadSpec), "joined, but the host's");
        }
    }

    #[test]
    fn sysctls_are_set_in_namespaces_alone() {
        let sysctl = |key: &str| format!(r#""sysctl":{{"{key}":"1"}}"#);
        for (key, namespace) in [
            ("net.ipv4.ip_forward", "network"),
            ("net/ipv4/conf/eth0.100/forwarding", "network"),
            ("kernel.msgmax", "ipc"),
            ("fs.mqueue.msg_max", "ipc"),
            ("kernel.domainname", "uts"),
        ] {
            let new = format!(r#"{{"type":"{namespace}"}}"#);
            assert_eq!(check_text(&new, &sysctl(key)), Ok(()), "{key}");
            assert_eq!(check_text("", &sysctl(key)).map_err(|e| e.0), Err(Kind::BadSpec), "{key}");
        }
        let all = r#"{"type":"network"},{"type":"ipc"},{"type":"uts"}"#;
        for key in
            ["kernel.core_pattern", "vm.swappiness", "net/../kernel/core_pattern", "net", "net...x", "", "fs.mqueue"]
        {
            assert_eq!(check_text(all, &sysctl(key)).map_err(|e| e.0).is_err(), key != "net", "{key}");
        }
    }

    #[test]
    fn a_key_names_its_file() {
        assert_eq!(
            sysctl_path("net.ipv4.conf.eth0/100.forwarding").as_deref(),
            Ok("net/ipv4/conf/eth0.100/forwarding")
        );
        assert_eq!(
            sysctl_path("net/ipv4/conf/eth0.100/forwarding").as_deref(),
            Ok("net/ipv4/conf/eth0.100/forwarding")
        );
    }
}
