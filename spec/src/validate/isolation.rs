//! Namespaces, kernel settings, filters and labels of security modules.

use super::rules::{absolute, no_nul, no_parent, require};
use crate::capability::Capability;
use crate::invalid::Invalid;
use crate::task::{Namespace, NetworkMode, Seccomp, Task};

/// The settings of kernel.* that belong to an IPC namespace (ipc/ipc_sysctl.c).
const IPC_SETTINGS: [&str; 8] = ["msgmax", "msgmnb", "msgmni", "sem", "shmall", "shmmax", "shmmni", "shm_rmid_forced"];

pub(super) fn check(task: &Task) -> Result<(), Invalid> {
    namespaces(task)?;
    for (name, value) in &task.sysctls {
        let field = format!("sysctls.{name}");
        sysctl(task, &field, name)?;
        no_nul(&field, value)?;
    }
    ambient(task)?;
    if let Seccomp::File(path) = task.seccomp() {
        absolute("seccomp", path)?;
    }
    if let Some(profile) = &task.apparmor {
        no_nul("apparmor", profile)?;
        require(!profile.is_empty(), "apparmor", || "is empty; leave it out for none, or write \"unconfined\"".into())?;
    }
    if let Some(cgroup) = &task.cgroup {
        cgroup_path(cgroup)?;
    }
    Ok(())
}

/// A capability can be ambient only in a task that has it.
fn ambient(task: &Task) -> Result<(), Invalid> {
    let allowed = task.capabilities.allowed();
    let lacking = task.capabilities.ambient_of(&allowed, true).difference(&allowed).next().copied();
    require(lacking.is_none(), "capabilities.ambient", || {
        let name = lacking.map_or("", Capability::name);
        format!("names {name}, which the task does not have; add {name} to capabilities.add, or leave it out here")
    })
}

fn namespaces(task: &Task) -> Result<(), Invalid> {
    let of = &task.namespaces;
    for (name, namespace) in [
        ("pid", of.pid()),
        ("ipc", of.ipc()),
        ("uts", of.uts()),
        ("network", of.network()),
        ("cgroup", of.cgroup()),
        ("user", of.user()),
    ] {
        if let Namespace::Path(path) = namespace {
            absolute(&format!("namespaces.{name}"), path)?;
        }
    }
    // The kernel mounts proc and mqueue only for whoever owns the namespace
    // they show, and a new user namespace owns only what is made with it.
    let private_user = *of.user() == Namespace::Private;
    require(!private_user || *of.pid() == Namespace::Private, "namespaces.pid", || {
        "must be \"private\" with namespaces.user = \"private\": /proc cannot be mounted otherwise".into()
    })?;
    require(!private_user || !matches!(of.ipc(), Namespace::Path(_)), "namespaces.ipc", || {
        "cannot be a path with namespaces.user = \"private\": /dev/mqueue cannot be mounted".into()
    })
}

/// Only what belongs to a namespace of the task's own: the rest is the host's.
fn sysctl(task: &Task, field: &str, name: &str) -> Result<(), Invalid> {
    sysctl_name(field, name)?;
    let of = &task.namespaces;
    let owns = |namespace: &Namespace, which: &str| {
        require(*namespace != Namespace::Host, field, || {
            format!("would change the host; it needs namespaces.{which} other than \"host\"")
        })
    };
    let (top, rest) = name.split_once(['.', '/']).unwrap_or((name, ""));
    match (top, rest) {
        ("net", _) if task.network.mode() != NetworkMode::Host => Ok(()),
        ("net", _) => owns(of.network(), "network"),
        ("kernel", setting) if IPC_SETTINGS.contains(&setting) => owns(of.ipc(), "ipc"),
        ("fs", setting) if setting.starts_with("mqueue.") || setting.starts_with("mqueue/") => owns(of.ipc(), "ipc"),
        ("kernel", "domainname") => owns(of.uts(), "uts"),
        ("user", _) => owns(of.user(), "user"),
        ("kernel", "hostname") => Err(Invalid::new(field, "is set by the field hostname")),
        _ => Err(Invalid::new(field, "belongs to no namespace: setting it would change the host")),
    }
}

/// What can be a setting's name at all.
pub(super) fn sysctl_name(field: &str, name: &str) -> Result<(), Invalid> {
    // `/` as separator is for interfaces with a dot in their name: net/ipv4/conf/eth0.7/…
    let part = |part: &str| {
        let fine = |b: u8| b.is_ascii_alphanumeric() || b"_-:@".contains(&b);
        !part.is_empty() && part.bytes().all(fine)
    };
    require(name.split(['.', '/']).all(part), field, || format!("{name:?} is not the name of a kernel setting"))
}

fn cgroup_path(path: &std::path::Path) -> Result<(), Invalid> {
    let text = path.to_string_lossy();
    if !text.starts_with('/') && text.contains(':') {
        return unit("cgroup", &text);
    }
    absolute("cgroup", path)?;
    no_parent("cgroup", path)?;
    let parts = text.strip_prefix('/').unwrap_or(&text);
    require(!parts.is_empty(), "cgroup", || "is the root cgroup".into())?;
    let sound = |part: &str| !part.is_empty() && part != "." && part.len() <= 255;
    require(parts.split('/').all(sound), "cgroup", || {
        format!("{text:?} has an empty part, \".\", or one of more than 255 bytes")
    })?;
    require(!text.contains(char::is_control), "cgroup", || format!("{text:?} contains a control character"))
}

/// A unit of systemd's, by slice, prefix and name. What systemd makes of the
/// three is the executor's to say.
fn unit(field: &str, text: &str) -> Result<(), Invalid> {
    let parts: Vec<&str> = text.split(':').collect();
    require(parts.len() == 3, field, || format!("{text:?} is not of the form slice:prefix:name"))?;
    require(!parts[2].is_empty(), field, || format!("{text:?} has no name after the last colon"))?;
    require(!text.contains(char::is_control), field, || format!("{text:?} contains a control character"))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{accepted, refused};

    #[test]
    fn namespaces_are_private_host_or_a_path() {
        for name in ["pid", "ipc", "uts", "network", "cgroup", "user"] {
            accepted(&format!("namespaces.{name} = 'host'"));
            accepted(&format!("namespaces.{name} = '/run/ns/a'"));
            let field = format!("namespaces.{name}");
            refused(&format!("namespaces.{name} = 'shared'"), &field, "neither");
            refused(&format!("namespaces.{name} = ''"), &field, "neither");
        }
        refused("namespaces.mount = 'host'", "namespaces.mount", "unknown field");
    }

    #[test]
    fn a_new_user_namespace_owns_what_is_mounted_in_it() {
        let user = "uid_mappings = [{container = 0, host = 1, size = 1}]\n\
                    gid_mappings = [{container = 0, host = 1, size = 1}]\n\
                    namespaces.user = 'private'\n";
        accepted(user);
        refused(&format!("{user}namespaces.pid = 'host'"), "namespaces.pid", "/proc");
        refused(&format!("{user}namespaces.pid = '/a'"), "namespaces.pid", "/proc");
        refused(&format!("{user}namespaces.ipc = '/a'"), "namespaces.ipc", "/dev/mqueue");
        accepted(&format!("{user}namespaces.ipc = 'host'"));
    }

    #[track_caller]
    fn refused_sysctl(name: &str, namespaces: &str, reason: &str) {
        let toml = format!("sysctls = {{'{name}' = '1'}}\n{namespaces}");
        refused(&toml, &format!("sysctls.{name}"), reason);
    }

    #[test]
    fn only_what_the_task_has_is_ambient() {
        accepted("capabilities.ambient = ['CHOWN']");
        accepted("capabilities = {add = ['NET_ADMIN'], ambient = ['ALL']}");
        accepted("capabilities = {add = ['NET_ADMIN'], ambient = []}");
        refused("capabilities.ambient = ['NET_ADMIN']", "capabilities.ambient", "NET_ADMIN, which the task does not");
        refused("capabilities = {drop = ['KILL'], ambient = ['KILL']}", "capabilities.ambient", "add KILL");
        refused("capabilities.ambient = ['ROOT']", "capabilities.ambient[0]", "not a capability");
    }

    #[test]
    fn kernel_settings_must_be_the_tasks_own() {
        accepted("sysctls = {'kernel.msgmax' = '1', 'fs.mqueue.msg_max' = '1'}");
        accepted("sysctls = {'kernel.domainname' = 'a'}");
        accepted("sysctls = {'net.core.somaxconn' = '1'}\nnamespaces.network = 'private'");
        accepted("sysctls = {'net/ipv4/conf/eth0.7/forwarding' = '1'}\nnamespaces.network = '/a'");
        refused_sysctl("net.core.somaxconn", "", "namespaces.network");
        refused_sysctl("kernel.sem", "namespaces.ipc = 'host'", "namespaces.ipc");
        refused_sysctl("fs.mqueue.msg_max", "namespaces.ipc = 'host'", "namespaces.ipc");
        refused_sysctl("kernel.domainname", "namespaces.uts = 'host'", "namespaces.uts");
        refused_sysctl("user.max_inotify_instances", "", "namespaces.user");
        refused_sysctl("kernel.hostname", "", "field hostname");
        for name in ["vm.swappiness", "kernel.panic", "fs.file-max", "kernel", "fs.mqueue"] {
            refused_sysctl(name, "", "no namespace");
        }
        for name in ["", ".", "net..a", "net/../kernel/panic", "net.a b", "/net"] {
            refused_sysctl(name, "namespaces.network = 'private'", "not the name");
        }
    }

    #[test]
    fn filters_and_profiles_are_checked() {
        accepted("seccomp = 'unconfined'");
        accepted("seccomp = '/etc/a.json'");
        refused("seccomp = 'a.json'", "seccomp", "neither");
        refused("apparmor = ''", "apparmor", "empty");
    }

    #[test]
    fn cgroups_are_plain_absolute_paths_or_units() {
        accepted("cgroup = '/a/b.slice'");
        accepted("cgroup = '/a:b/c'");
        accepted("cgroup = 'a-b.slice:web:1'");
        accepted("cgroup = ':web:1'");
        refused("cgroup = 'a:b'", "cgroup", "slice:prefix:name");
        refused("cgroup = 'a:b:c:d'", "cgroup", "slice:prefix:name");
        refused("cgroup = 'a:b:'", "cgroup", "no name");
        refused("cgroup = \"a:b:\\nc\"", "cgroup", "control");
        refused("cgroup = 'a'", "cgroup", "absolute");
        refused("cgroup = '/a/../b'", "cgroup", "..");
        refused("cgroup = '/..'", "cgroup", "..");
        refused("cgroup = '/'", "cgroup", "root cgroup");
        for path in ["//", "/a//b", "/a/", "/a/./b"] {
            refused(&format!("cgroup = '{path}'"), "cgroup", "empty part");
        }
        refused("cgroup = \"/a\\nb\"", "cgroup", "control");
    }
}
