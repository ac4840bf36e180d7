//! Who runs what, with which rights.

use std::collections::{BTreeMap, BTreeSet};

use oci_spec::runtime::{
    Capabilities, LinuxCapabilities, LinuxSeccomp, PosixRlimit, PosixRlimitBuilder, Process, User as OciUser,
};

use super::host::Host;
use crate::capability::Capability;
use crate::invalid::Invalid;
use crate::rlimit::{Resource, Rlimit};
use crate::seccomp::{Abis, default_profile, native_arch};
use crate::task::{IdMapping, Namespace, Seccomp, Task};
use crate::values::Ceiling;

/// PATH where the description gives none.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// TERM where the description gives none, as with Docker.
const DEFAULT_TERM: &str = "xterm";

pub(super) fn process(task: &Task, host: &Host) -> Result<Process, Invalid> {
    let mut args = vec![task.command.clone()];
    args.extend(task.args.iter().cloned());
    let mut process = Process::default();
    process
        .set_terminal(Some(task.terminal))
        .set_user(user(task, host)?)
        .set_args(Some(args))
        .set_env(Some(environment(task, host)))
        .set_cwd(task.workdir.clone().unwrap_or_else(|| "/".into()))
        .set_capabilities(Some(capabilities(task, host)?))
        .set_rlimits(rlimits(&task.rlimits))
        .set_no_new_privileges(Some(task.no_new_privs.unwrap_or(true)))
        .set_apparmor_profile(task.apparmor.as_ref().or(host.apparmor.as_ref()).cloned())
        .set_oom_score_adj(task.oom_score_adj);
    Ok(process)
}

/// The ids as resolved; with a new user namespace, only those it has.
fn user(task: &Task, host: &Host) -> Result<OciUser, Invalid> {
    let ids = &host.user;
    if *task.namespaces.user() == Namespace::Private {
        let mapped = |mappings: &[IdMapping], id: u32| mappings.iter().any(|m| maps(m, id));
        let unmapped = |field: &str, kind: &str, id: u32, mappings: &str| {
            Invalid::new(field, format!("{kind} {id} is not in {mappings}"))
        };
        if !mapped(&task.uid_mappings, ids.uid) {
            return Err(unmapped("user", "user", ids.uid, "uid_mappings"));
        }
        if !mapped(&task.gid_mappings, ids.gid) {
            return Err(unmapped("group", "group", ids.gid, "gid_mappings"));
        }
        let stranger = ids.groups.iter().find(|g| !mapped(&task.gid_mappings, **g));
        if let Some(group) = stranger {
            return Err(unmapped("groups", "group", *group, "gid_mappings"));
        }
    }
    let mut user = OciUser::default();
    user.set_uid(ids.uid).set_gid(ids.gid).set_additional_gids((!ids.groups.is_empty()).then(|| ids.groups.clone()));
    Ok(user)
}

/// Whether `mapping` has `id` inside.
pub(super) fn maps(mapping: &IdMapping, id: u32) -> bool {
    id.checked_sub(mapping.container).is_some_and(|offset| offset < mapping.size)
}

fn environment(task: &Task, host: &Host) -> Vec<String> {
    let mut env: BTreeMap<&str, String> = BTreeMap::from([("PATH", DEFAULT_PATH.into())]);
    let home = host.user.home.as_ref().map_or_else(|| "/".into(), |home| home.to_string_lossy().into());
    env.insert("HOME", home);
    if let Some(hostname) = task.own_hostname(&host.name) {
        env.insert("HOSTNAME", hostname.to_owned());
    }
    if task.terminal {
        env.insert("TERM", DEFAULT_TERM.into());
    }
    env.extend(task.env.iter().map(|(k, v)| (k.as_str(), v.clone())));
    env.into_iter().map(|(k, v)| format!("{k}={v}")).collect()
}

/// Bounding and permitted are the allowed ones, whoever the user is: the kernel gives a program with file capabilities
/// only permitted ones under no_new_privs, and the bounding set limits what set-user-ID programs could bring back.
/// Inheritable is what the kernel asks for of ambient ones and nothing else (CVE-2022-24769). Effective is what the
/// program will have, so that execve refuses a file that is closed to its user: see [`effective_until_execve`].
///
/// # Errors
/// An ambient capability that is named, and that this host does not give.
fn capabilities(task: &Task, host: &Host) -> Result<LinuxCapabilities, Invalid> {
    let all = host.capabilities.clone().unwrap_or_else(Capability::all);
    let allowed = task.capabilities.allowed_of(all);
    let ambient = task.capabilities.ambient_of(&allowed, host.user.uid == 0);
    if let Some(lacking) = ambient.difference(&allowed).next() {
        return Err(Invalid::new("capabilities.ambient", format!("this host has no {lacking} to give")));
    }
    let set = |of: &BTreeSet<Capability>| -> Capabilities { of.iter().map(|c| c.to_oci()).collect() };
    let kept = || (!ambient.is_empty()).then(|| set(&ambient));
    let mut sets = LinuxCapabilities::default();
    sets.set_bounding(Some(set(&allowed)))
        .set_permitted(Some(set(&allowed)))
        .set_inheritable(kept())
        .set_ambient(kept());
    sets.set_effective(effective_until_execve(&sets, host.user.uid == 0));
    Ok(sets)
}

/// The effective capabilities of a user until execve, which computes them anew: all permitted ones of root, the ambient
/// ones of another user.
pub fn effective_until_execve(sets: &LinuxCapabilities, is_root: bool) -> Option<Capabilities> {
    let of = if is_root { sets.permitted() } else { sets.ambient() };
    Some(of.clone().unwrap_or_default())
}

fn rlimits(limits: &BTreeMap<Resource, Rlimit>) -> Option<Vec<PosixRlimit>> {
    // RLIM_INFINITY is 2^64 - 1.
    let value = |limit| match limit {
        Ceiling::At(value) => value,
        Ceiling::Unlimited => u64::MAX,
    };
    let rlimit = |(resource, limit): (&Resource, &Rlimit)| {
        PosixRlimitBuilder::default()
            .typ(resource.to_oci())
            .soft(value(limit.soft))
            .hard(value(limit.hard))
            .build()
            .expect("every required field is set")
    };
    (!limits.is_empty()).then(|| limits.iter().map(rlimit).collect())
}

/// The filter, unless the description asks for none.
pub(super) fn seccomp(task: &Task, host: &Host) -> Result<Option<LinuxSeccomp>, Invalid> {
    let default = |abis| default_profile(&task.capabilities.allowed(), native_arch(), host.kernel, abis);
    match task.seccomp() {
        Seccomp::Unconfined => Ok(None),
        Seccomp::Default => Ok(Some(default(Abis::All))),
        Seccomp::Native => Ok(Some(default(Abis::Native))),
        Seccomp::File(path) => match &host.seccomp {
            Some(profile) => Ok(Some(profile.clone())),
            None => Err(Invalid::new("seccomp", format!("the profile {} has not been read", path.display()))),
        },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{built, refused, refused_on};
    use crate::seccomp::parse_profile;

    #[test]
    fn the_environment_is_what_is_written_and_two_more() {
        let env = |toml: &str| {
            let spec = built(toml, |host| host.user.home = Some("/home/a".into()));
            spec.process().as_ref().unwrap().env().clone().unwrap()
        };
        let path = format!("PATH={}", super::DEFAULT_PATH);
        assert_eq!(env(""), ["HOME=/home/a", path.as_str()]);
        assert_eq!(env("env = {PATH = '/a', HOME = '/b', A = '1'}"), ["A=1", "HOME=/b", "PATH=/a"]);
        assert!(env("hostname = 'web'").contains(&"HOSTNAME=web".into()));
        let named = |toml: &str| built(toml, |host| host.name = "id".into()).hostname().clone();
        assert_eq!((named(""), named("hostname = 'web'")), (Some("id".into()), Some("web".into())));
        for of_host in ["hostname = ''", "namespaces.uts = 'host'", "namespaces.uts = '/proc/1/ns/uts'"] {
            assert_eq!(named(of_host), None, "{of_host}");
        }
    }

    #[test]
    fn ambient_capabilities_are_inheritable_and_nothing_else_is() {
        let sets = |toml: &str, uid: u32| {
            let spec = built(toml, |host| host.user.uid = uid);
            let sets = spec.process().as_ref().unwrap().capabilities().clone().unwrap();
            let names = |set: &Option<super::Capabilities>| {
                let mut names: Vec<String> = set.iter().flatten().map(ToString::to_string).collect();
                names.sort();
                names
            };
            assert_eq!(names(sets.ambient()), names(sets.inheritable()), "{toml}");
            names(sets.ambient())
        };
        let add = "capabilities.add = ['NET_RAW', 'CHOWN']";
        assert_eq!(sets(add, 1000), ["CHOWN", "NET_RAW"]);
        assert!(sets(add, 0).is_empty() && sets("", 1000).is_empty());
        assert_eq!(sets("capabilities = {add = ['NET_RAW'], ambient = ['KILL']}", 0), ["KILL"]);
        let few = |host: &mut crate::Host| host.capabilities = Some(["CHOWN".parse().unwrap()].into());
        let toml = "capabilities = {add = ['ALL'], ambient = ['SYS_TIME']}";
        refused_on(toml, few, "capabilities.ambient", "no CAP_SYS_TIME to give");
    }

    #[test]
    fn users_outside_the_mappings_are_refused() {
        let toml = "namespaces.user = 'private'\n\
                    uid_mappings = [{container = 0, host = 1000, size = 10}]\n\
                    gid_mappings = [{container = 0, host = 1000, size = 10}]";
        refused_on(toml, |host| host.user.uid = 10, "user", "user 10 is not in uid_mappings");
        refused_on(toml, |host| host.user.gid = 10, "group", "group 10 is not in gid_mappings");
        refused_on(toml, |host| host.user.groups = vec![9, 11], "groups", "group 11");
        built(toml, |host| host.user.uid = 9);
    }

    #[test]
    fn a_profile_from_a_file_is_taken_as_read() {
        let toml = "seccomp = '/a.json'";
        refused(toml, "seccomp", "/a.json has not been read");
        let profile = parse_profile("{\"defaultAction\": \"SCMP_ACT_LOG\"}", &[].into(), (6, 12));
        let profile = Some(profile.unwrap());
        let spec = built(toml, |host| host.seccomp = profile.clone());
        assert_eq!(spec.linux().as_ref().unwrap().seccomp(), &profile);
    }

    #[test]
    fn the_hosts_apparmor_profile_is_of_who_names_none() {
        let profile = |toml: &str, of_host: Option<&str>| {
            let spec = built(toml, |host| host.apparmor = of_host.map(str::to_owned));
            spec.process().as_ref().unwrap().apparmor_profile().clone()
        };
        assert_eq!(profile("", None), None);
        assert_eq!(profile("", Some("default")).as_deref(), Some("default"));
        assert_eq!(profile("apparmor = 'web'", Some("default")).as_deref(), Some("web"));
        assert_eq!(profile("apparmor = 'unconfined'", Some("default")).as_deref(), Some("unconfined"));
    }

    #[test]
    fn unlimited_is_all_ones() {
        let spec = built("rlimits = {core = 'unlimited', nofile = '1:2'}", |_| ());
        let limits = spec.process().as_ref().unwrap().rlimits().clone().unwrap();
        assert_eq!((limits[0].soft(), limits[0].hard()), (u64::MAX, u64::MAX));
        assert_eq!((limits[1].soft(), limits[1].hard()), (1, 2));
    }
}
