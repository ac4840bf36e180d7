//! What the agent's configuration lets a job ask for.

use std::path::{Path, PathBuf};

use bowline_executor::internal::user_ids;
use bowline_model::{Error, Kind, Result};
use bowline_spec::capability::{Capability, Entry};
use bowline_spec::user::{NameOrId, User};
use bowline_spec::{Namespace, Seccomp, Task};

use super::names::Offsets;
use crate::settings::Settings;

/// Checks what the agent allows jobs.
pub fn check(task: &mut Task, settings: &Settings, offsets: Offsets, folder: &Path) -> Result<()> {
    let refused = |option: &str, what: &str, setting: &str| {
        let message = format!("config.{option}: {what}, and the agent does not set {setting}");
        Err(Error::new(Kind::BadSpec, message))
    };
    capabilities(task, settings)?;
    user(task, settings)?;
    let privileged = |option: &str, what: &str| refused(option, what, "allow_privileged");
    let host_path = |option: &str, what: String| refused(option, &what, "allow_host_paths");
    if !settings.allow_privileged {
        let modes = [
            ("pid_mode", task.namespaces.pid(), &settings.default_pid_mode),
            ("ipc_mode", task.namespaces.ipc(), &settings.default_ipc_mode),
        ];
        for (option, namespace, default) in modes {
            if *namespace != Namespace::Private && namespace.to_string() != **default {
                return privileged(option, &format!("{namespace} is not the task's own"));
            }
        }
        if task.devices.len() > offsets.devices {
            return privileged("devices", "names a device of the host");
        }
        if task.seccomp() == &Seccomp::Unconfined {
            return privileged("seccomp", "takes the filter away");
        }
        if task.apparmor.as_deref() == Some("unconfined") {
            return privileged("apparmor", "takes the profile away");
        }
        if task.no_new_privs == Some(false) {
            return privileged("no_new_privs", "gives set-user-ID programs their power");
        }
        if task.oom_score_adj.is_some_and(|score| score < 0) {
            return privileged("oom_score_adj", "has the kernel kill others instead");
        }
    }
    if !settings.allow_host_paths {
        if let Seccomp::File(path) = task.seccomp() {
            return host_path("seccomp", format!("{} is a file of the host", path.display()));
        }
        for (index, mount) in task.mounts.iter().skip(offsets.mounts).enumerate() {
            let own = |source: &PathBuf| {
                source.starts_with(folder) && !source.components().any(|part| part.as_os_str() == "..")
            };
            if let Some(source) = mount.source.as_ref().filter(|source| !own(source)) {
                let what = format!("{} is not in the task's own folder", source.display());
                return host_path(&format!("mount[{index}].source"), what);
            }
        }
    }
    Ok(())
}

/// Refuses root, as Nomad does for its own drivers (`user.denylist`), whose list does not name others', by whatever name
/// the task's root has it. The files of an image may change until the task starts: its user is the one that was checked.
fn user(task: &mut Task, settings: &Settings) -> Result<()> {
    let Some(user) = task.user.clone().filter(|_| !settings.allow_root) else { return Ok(()) };
    let is_root = match &user.user {
        NameOrId::Id(id) => *id == 0,
        NameOrId::Name(name) if name == "root" => true,
        NameOrId::Name(_) => {
            let ids = user_ids(task)?;
            if task.rootfs.is_some() {
                task.user = Some(User { user: NameOrId::Id(ids.uid), group: Some(NameOrId::Id(ids.gid)) });
                task.groups = ids.groups.into_iter().map(NameOrId::Id).collect();
            }
            ids.uid == 0
        }
    };
    if !is_root {
        return Ok(());
    }
    Err(Error::new(Kind::BadSpec, format!("user: {user} is root, and the agent does not set allow_root"))
        .hint("name another user, or set `allow_root = true` in the agent's configuration of this plugin"))
}

fn capabilities(task: &Task, settings: &Settings) -> Result<()> {
    for entry in &task.capabilities.add {
        let every = match entry {
            Entry::All => Capability::all().is_subset(&settings.allow_caps),
            Entry::One(capability) => settings.allow_caps.contains(capability),
        };
        if !every {
            let message = format!("config.cap_add: {entry} is not among the agent's allow_caps");
            return Err(Error::new(Kind::BadSpec, message));
        }
    }
    Ok(())
}
