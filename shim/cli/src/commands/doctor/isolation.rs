//! Checks what keeps tasks apart: namespaces, seccomp, security modules.

use std::path::Path;

use bowline_executor::internal::probe::{self, NamespaceKind};

use super::fact::Fact;
use super::setting::setting;

/// The kinds of namespaces, and what is refused without each.
const NAMESPACES: [(NamespaceKind, &str, &str); 7] = [
    (NamespaceKind::Mount, "mount namespaces", "no task has a root filesystem of its own"),
    (NamespaceKind::Pid, "pid namespaces", "tasks are refused but for those with `namespaces.pid = \"host\"`"),
    (NamespaceKind::Ipc, "ipc namespaces", "tasks are refused but for those with `namespaces.ipc = \"host\"`"),
    (NamespaceKind::Uts, "uts namespaces", "tasks are refused but for those with `namespaces.uts = \"host\"`"),
    (NamespaceKind::Cgroup, "cgroup namespaces", "tasks are refused but for those with `namespaces.cgroup = \"host\"`"),
    (NamespaceKind::Network, "network namespaces", "`namespaces.network = \"private\"` is refused"),
    (NamespaceKind::User, "user namespaces", "`namespaces.user = \"private\"` is refused"),
];

pub fn facts(root: bool) -> Vec<Fact> {
    let mut facts: Vec<Fact> =
        NAMESPACES.iter().map(|(kind, name, effect)| namespace(root, *kind, name, effect)).collect();
    facts.extend([users_namespaces(), seccomp(), libseccomp(), apparmor(root), selinux()]);
    facts
}

fn namespace(root: bool, kind: NamespaceKind, name: &str, effect: &str) -> Fact {
    // Without root, only user namespaces can be created.
    if !root && kind != NamespaceKind::User {
        return Fact::unknown(name);
    }
    let error = match probe::namespace(kind) {
        Ok(()) => return Fact::has(name, "yes"),
        Err(error) => error,
    };
    // Tasks get these namespaces by default.
    let by_default = !matches!(kind, NamespaceKind::Network | NamespaceKind::User);
    let make = if by_default { Fact::blocks } else { Fact::lacks };
    let fact = make(name.to_owned(), error.to_string(), effect.to_owned());
    match fix(kind) {
        Some(command) => fact.fix(command),
        None => fact,
    }
}

/// The sysctl that allows a kind of namespace again, if that kind is switched off.
fn fix(kind: NamespaceKind) -> Option<String> {
    let most = match kind {
        NamespaceKind::Mount => "mnt",
        NamespaceKind::Pid => "pid",
        NamespaceKind::Ipc => "ipc",
        NamespaceKind::Uts => "uts",
        NamespaceKind::Cgroup => "cgroup",
        NamespaceKind::Network => "net",
        NamespaceKind::User => "user",
    };
    let off = setting(&format!("/proc/sys/user/max_{most}_namespaces")).is_some_and(|value| value == "0");
    off.then(|| format!("sysctl -w user.max_{most}_namespaces=15000"))
}

/// Checks the settings that deny user namespaces to everybody but root.
fn users_namespaces() -> Fact {
    let name = "user namespaces of users";
    let is = |file: &str, value: &str| setting(&format!("/proc/sys/kernel/{file}")).is_some_and(|is| is == value);
    let (off, switch) = if is("unprivileged_userns_clone", "0") {
        ("switched off", "kernel.unprivileged_userns_clone=1")
    } else if is("apparmor_restrict_unprivileged_userns", "1") {
        ("restricted by AppArmor", "kernel.apparmor_restrict_unprivileged_userns=0")
    } else {
        return Fact::has(name, "not restricted by a sysctl");
    };
    Fact::lacks(name, off, "nothing: bowline runs as root").fix(format!("sysctl -w {switch}"))
}

fn seccomp() -> Fact {
    let name = "seccomp filters";
    match probe::seccomp_filter() {
        Ok(()) => {
            let actions = setting("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
            Fact::has(name, if actions.is_empty() { "yes".to_owned() } else { actions })
        }
        Err(error) => {
            let effect = "tasks are refused but for those with `seccomp = \"unconfined\"`";
            Fact::blocks(name, error.to_string(), effect).fix("a kernel with CONFIG_SECCOMP_FILTER")
        }
    }
}

fn libseccomp() -> Fact {
    let name = "libseccomp";
    match probe::libseccomp() {
        Some(version) => Fact::has(name, version),
        None => Fact::lacks(name, "tells no version", "nothing: it is part of the shim"),
    }
}

fn apparmor(root: bool) -> Fact {
    let name = "AppArmor";
    let effect = "`apparmor` is refused";
    if setting("/sys/module/apparmor/parameters/enabled").as_deref() != Some("Y") {
        return Fact::lacks(name, "not in use", effect).fix("the kernel parameters apparmor=1 security=apparmor");
    }
    if !Path::new("/sys/kernel/security/apparmor").exists() {
        let fix = "mount -t securityfs securityfs /sys/kernel/security";
        return Fact::lacks(name, "in use, but its files are not mounted", effect).fix(fix);
    }
    if !root {
        return Fact::unknown(name);
    }
    if !probe::has_default_profile() {
        let found = format!("in use; the default profile {} is not loaded", probe::DEFAULT_PROFILE);
        let effect = "a task has a profile only if its description names one";
        return Fact::lacks(name, found, effect)
            .fix(format!("apparmor_parser -rW /etc/apparmor.d/{}", probe::DEFAULT_PROFILE));
    }
    Fact::has(name, format!("in use; tasks have the profile {}", probe::DEFAULT_PROFILE))
}

fn selinux() -> Fact {
    let name = "SELinux";
    match setting("/sys/fs/selinux/enforce").as_deref() {
        Some("1") => Fact::has(name, "enforcing; tasks keep the shim's label unless their manager names one"),
        Some(_) => Fact::has(name, "permissive"),
        None => Fact::lacks(name, "not in use", "`process.selinuxLabel` and `linux.mountLabel` are refused"),
    }
}
