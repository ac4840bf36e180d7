//! What contradicts a profile: refused by name, as one that asks for
//! protections must not get fewer.

use super::rules::require;
use crate::invalid::Invalid;
use crate::task::{MountKind, Namespace, Network, Propagation, Seccomp, Task, TaskProfile};
use crate::values::Ceiling;

pub(super) fn check(task: &Task) -> Result<(), Invalid> {
    match task.profile {
        None => Ok(()),
        Some(TaskProfile::Untrusted) => untrusted(task),
    }
}

fn untrusted(task: &Task) -> Result<(), Invalid> {
    let contradicts = |field: &str, holds: bool, why: &str| {
        require(holds, field, || format!("contradicts profile = \"untrusted\", {why}; leave one of the two out"))
    };
    let user = "whose tasks have a user of their own each";
    contradicts("user", task.user.is_none(), user)?;
    contradicts("group", task.group.is_none(), user)?;
    contradicts("groups", task.groups.is_empty(), user)?;
    let of = &task.namespaces;
    for (name, namespace) in
        [("pid", &of.pid), ("ipc", &of.ipc), ("uts", &of.uts), ("network", &of.network), ("cgroup", &of.cgroup)]
    {
        let own = namespace.as_ref().is_none_or(|namespace| *namespace == Namespace::Private);
        contradicts(&format!("namespaces.{name}"), own, "which has all of these to itself")?;
    }
    contradicts("network", task.network == Network::default(), "whose tasks have no network")?;
    contradicts("namespaces.user", *of.user() == Namespace::Host, user)?;
    contradicts("capabilities.add", task.capabilities.add.is_empty(), "which has no capabilities")?;
    let ambient = task.capabilities.ambient.as_ref().is_none_or(Vec::is_empty);
    contradicts("capabilities.ambient", ambient, "which has no capabilities")?;
    contradicts("no_new_privs", task.no_new_privs != Some(false), "which gets no new privileges")?;
    let filtered = matches!(task.seccomp(), Seccomp::Default | Seccomp::Native);
    contradicts("seccomp", filtered, "which has the default filter for native programs")?;
    let confined = task.apparmor.as_deref() != Some("unconfined");
    contradicts("apparmor", confined, "which is confined wherever it can be")?;
    contradicts("readonly_rootfs", task.readonly_rootfs != Some(false), "whose root is read-only")?;
    let nothing = "which has no devices of the host's";
    contradicts("devices", task.devices.is_empty(), nothing)?;
    contradicts("cdi_devices", task.cdi_devices.is_empty() && task.cdi_edits.is_none(), nothing)?;
    let hidden = "which hides and protects all that is by default";
    contradicts("masked_paths", task.masked_paths.is_none(), hidden)?;
    contradicts("readonly_paths", task.readonly_paths.is_none(), hidden)?;
    contradicts("pids", task.pids != Some(Ceiling::Unlimited), "which has a limit")?;
    let swap = task.memory.swap != Some(Ceiling::Unlimited);
    contradicts("memory.swap", swap, "whose memory has a limit")?;
    contradicts("unified", task.unified.is_empty(), "whose limits are those of the other fields")?;
    let sparing = task.oom_score_adj.is_none_or(|adjustment| adjustment >= 0);
    contradicts("oom_score_adj", sparing, "which nothing else is killed for")?;
    for (index, mount) in task.mounts.iter().enumerate().filter(|(_, mount)| mount.kind == MountKind::Bind) {
        let field = format!("mounts[{index}]");
        contradicts(&format!("{field}.read_only"), mount.read_only, "which writes to nothing of the host's")?;
        let apart = matches!(mount.propagation, None | Some(Propagation::Private | Propagation::Rprivate));
        contradicts(&format!("{field}.propagation"), apart, "whose mounts are its own")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{accepted, refused};

    #[test]
    fn nothing_takes_a_protection_away_from_what_is_untrusted() {
        for (line, field) in [
            ("user = 'nobody'", "user"),
            ("user = 2130706432", "user"),
            ("group = 5", "group"),
            ("groups = [5]", "groups"),
            ("namespaces.network = 'host'", "namespaces.network"),
            ("namespaces.network = '/run/netns/a'", "namespaces.network"),
            ("namespaces.pid = 'host'", "namespaces.pid"),
            ("namespaces.ipc = 'host'", "namespaces.ipc"),
            ("namespaces.uts = 'host'", "namespaces.uts"),
            ("namespaces.cgroup = 'host'", "namespaces.cgroup"),
            ("namespaces.user = '/proc/1/ns/user'", "namespaces.user"),
            ("capabilities.add = ['CHOWN']", "capabilities.add"),
            ("capabilities.ambient = ['CHOWN']", "capabilities.ambient"),
            ("no_new_privs = false", "no_new_privs"),
            ("seccomp = 'unconfined'", "seccomp"),
            ("seccomp = '/a.json'", "seccomp"),
            ("apparmor = 'unconfined'", "apparmor"),
            ("readonly_rootfs = false", "readonly_rootfs"),
            ("devices = [{path = '/dev/kvm'}]", "devices"),
            ("cdi_devices = ['nvidia.com/gpu=all']", "cdi_devices"),
            ("masked_paths = []", "masked_paths"),
            ("readonly_paths = []", "readonly_paths"),
            ("pids = 'unlimited'", "pids"),
            ("memory = {limit = '64M', swap = 'unlimited'}", "memory.swap"),
            ("unified = {'pids.max' = 'max'}", "unified"),
            ("oom_score_adj = -1", "oom_score_adj"),
            ("mounts = [{source = '/a', destination = '/b'}]", "mounts[0].read_only"),
            (
                "mounts = [{source = '/a', destination = '/b', read_only = true, propagation = 'rslave'}]",
                "mounts[0].propagation",
            ),
        ] {
            accepted(line);
            refused(&format!("profile = 'untrusted'\n{line}"), field, "untrusted");
        }
    }

    #[test]
    fn what_takes_more_away_or_moves_a_limit_is_fine() {
        for line in [
            "namespaces.network = 'private'",
            "capabilities.drop = ['CHOWN']",
            "pids = 1000",
            "memory.limit = '1G'",
            "readonly_rootfs = true",
            "rootfs = '/srv/a'",
            "mounts = [{source = '/a', destination = '/b', read_only = true}, {type = 'tmpfs', destination = '/c'}]",
            "oom_score_adj = 500",
        ] {
            accepted(&format!("profile = 'untrusted'\n{line}"));
        }
        refused("profile = 'trusted'", "profile", "untrusted");
    }
}
