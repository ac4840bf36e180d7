//! What files of CDI say of a task's devices, put into its configuration: last, as other runtimes do.
//!
//! An edit replaces what the task has of that name, path or place. Must not: read files; `cdi_edits` has what they say.

use oci_spec::runtime::{Hook, Hooks, Linux, LinuxDevice, LinuxDeviceType, Mount as OciMount, Process, Spec};

use super::host::UserIds;
use super::process::maps;
use super::resources::rule;
use crate::invalid::Invalid;
use crate::task::{CdiEdits, CdiHook, CdiNode, Namespace, Task};

pub(super) fn apply(task: &Task, user: &UserIds, spec: &mut Spec) -> Result<(), Invalid> {
    let Some(edits) = &task.cdi_edits else {
        let is_read = task.cdi_devices.is_empty();
        let unread = || Invalid::new("cdi_devices", "their files have not been read: `bowline run` and `start` do");
        return if is_read { Ok(()) } else { Err(unread()) };
    };
    // Such a hook finds the root by the folder of the task, which is closed to users of another namespace.
    let is_inside = |hook: &CdiHook| hook.hook_name == "createContainer";
    if *task.namespaces.user() != Namespace::Host && edits.hooks.iter().any(is_inside) {
        let reason = "their files have createContainer hooks, which need namespaces.user = \"host\"";
        return Err(Invalid::new("cdi_devices", reason));
    }
    let process = spec.process_mut().get_or_insert_default();
    add_variables(process, &edits.env);
    add_groups(process, task, &edits.additional_gids)?;
    let linux = spec.linux_mut().get_or_insert_default();
    edits.device_nodes.iter().for_each(|node| add_device(linux, node, user));
    add_mounts(spec, task, edits);
    if !edits.hooks.is_empty() {
        let hooks = spec.hooks_mut().get_or_insert_default();
        edits.hooks.iter().for_each(|hook| add_hook(hooks, hook));
    }
    Ok(())
}

fn add_variables(process: &mut Process, variables: &[String]) {
    let env = process.env_mut().get_or_insert_default();
    let name = |variable: &str| variable.split('=').next().unwrap_or_default().to_owned();
    for variable in variables {
        env.retain(|other| name(other) != name(variable));
        env.push(variable.clone());
    }
}

fn add_groups(process: &mut Process, task: &Task, groups: &[u32]) -> Result<(), Invalid> {
    let user = process.user_mut();
    let mut all = user.additional_gids().clone().unwrap_or_default();
    for group in groups.iter().copied().filter(|group| *group != 0) {
        let is_mapped = || task.gid_mappings.iter().any(|mapping| maps(mapping, group));
        if *task.namespaces.user() == Namespace::Private && !is_mapped() {
            return Err(Invalid::new("cdi_devices", format!("group {group} of their files is not in gid_mappings")));
        }
        if group != user.gid() && !all.contains(&group) {
            all.push(group);
        }
    }
    user.set_additional_gids((!all.is_empty()).then_some(all));
    Ok(())
}

/// A node whose file names no owner belongs to the task's user, as with other runtimes.
fn add_device(linux: &mut Linux, node: &CdiNode, user: &UserIds) {
    let kind = match &*node.kind {
        "b" => LinuxDeviceType::B,
        "p" => LinuxDeviceType::P,
        _ => LinuxDeviceType::C,
    };
    let mut device = LinuxDevice::default();
    device
        .set_path(node.path.clone())
        .set_typ(kind)
        .set_major(node.major)
        .set_minor(node.minor)
        .set_file_mode(Some(node.file_mode.unwrap_or(0o666) & 0o7777))
        .set_uid(Some(node.uid.unwrap_or(user.uid)))
        .set_gid(Some(node.gid.unwrap_or(user.gid)));
    let devices = linux.devices_mut().get_or_insert_default();
    devices.retain(|other| *other.path() != node.path);
    devices.push(device);
    let access = if node.permissions.is_empty() { "rwm" } else { &node.permissions };
    if kind != LinuxDeviceType::P && access != "none" {
        let rules = linux.resources_mut().get_or_insert_default().devices_mut().get_or_insert_default();
        rules.push(rule(true, Some(kind), Some(node.major), Some(node.minor), access));
    }
}

/// Among the task's own mounts, what is mounted below another comes later, as other runtimes sort them.
fn add_mounts(spec: &mut Spec, task: &Task, edits: &CdiEdits) {
    if edits.mounts.is_empty() {
        return;
    }
    let mounts = spec.mounts_mut().get_or_insert_default();
    let mut own = mounts.split_off(mounts.len() - task.mounts.len());
    for edit in &edits.mounts {
        for all in [&mut *mounts, &mut own] {
            all.retain(|other| *other.destination() != edit.container_path);
        }
        let mut mount = OciMount::default();
        let kind = if edit.is_bind() { "bind" } else { &edit.kind };
        mount
            .set_destination(edit.container_path.clone())
            .set_typ(Some(kind.to_owned()))
            .set_source(Some(edit.host_path.clone()))
            .set_options(Some(edit.options.clone()));
        own.push(mount);
    }
    own.sort_by_key(|mount| mount.destination().components().count());
    mounts.append(&mut own);
}

fn add_hook(hooks: &mut Hooks, asked: &CdiHook) {
    let some = |list: &Vec<String>| (!list.is_empty()).then(|| list.clone());
    let mut hook = Hook::default();
    hook.set_path(asked.path.clone());
    hook.set_args(some(&asked.args)).set_env(some(&asked.env)).set_timeout(asked.timeout);
    #[allow(deprecated, reason = "files have it")]
    let of_point = match &*asked.hook_name {
        "prestart" => hooks.prestart_mut(),
        "createRuntime" => hooks.create_runtime_mut(),
        "createContainer" => hooks.create_container_mut(),
        "startContainer" => hooks.start_container_mut(),
        "poststart" => hooks.poststart_mut(),
        _ => hooks.poststop_mut(),
    };
    of_point.get_or_insert_default().push(hook);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::super::testing::{built, refused};
    use super::*;

    fn edited(toml: &str, edits: serde_json::Value) -> Spec {
        let text = edits.to_string().replace("\":", "\"=");
        built(&format!("cdi_devices = ['v.com/c=a']\ncdi_edits = {text}\n{toml}"), |host| {
            host.user = UserIds { uid: 7, gid: 8, groups: vec![9], home: None };
        })
    }

    #[test]
    fn edits_take_the_place_of_what_the_task_has() {
        let edits = json!({
            "env": ["A=2"], "additionalGids": [0, 8, 9, 10],
            "deviceNodes": [{"path": "/dev/sda", "type": "c", "major": 1, "minor": 2, "permissions": "r"},
                            {"path": "/dev/q", "type": "c", "major": 3, "permissions": "none", "uid": 0}],
            "mounts": [{"hostPath": "/h", "containerPath": "/m/n", "options": ["ro", "bind"]},
                       {"hostPath": "/h", "containerPath": "/o", "options": ["bind"]}],
        });
        let own = "env = {A = '1', B = '1'}\ndevices = [{path = '/dev/sda'}]\n\
                   mounts = [{source = '/x', destination = '/m/n/o'}, {source = '/x', destination = '/o'}]";
        let spec = edited(own, edits);
        let process = spec.process().as_ref().unwrap();
        let env = process.env().as_ref().unwrap();
        assert!(env.contains(&"A=2".into()) && env.contains(&"B=1".into()) && !env.contains(&"A=1".into()), "{env:?}");
        assert_eq!(process.user().additional_gids().as_deref(), Some(&[9, 10][..]));
        let linux = spec.linux().as_ref().unwrap();
        let devices = linux.devices().as_ref().unwrap();
        let [sda, q] = &devices[..] else { panic!("{devices:?}") };
        assert_eq!((sda.major(), sda.uid(), sda.file_mode()), (1, Some(7), Some(0o666)));
        assert_eq!((q.uid(), q.gid()), (Some(0), Some(8)));
        let rules = linux.resources().as_ref().unwrap().devices().clone().unwrap();
        let last: Vec<String> = rules.iter().rev().take(2).map(ToString::to_string).collect();
        assert_eq!(last, ["c 1:2 r", "b 8:0 rwm"], "a node without permissions has no rule");
        let mounts = spec.mounts().as_ref().unwrap();
        let own: Vec<_> =
            mounts[mounts.len() - 3..].iter().map(|mount| mount.destination().to_str().unwrap()).collect();
        assert_eq!(own, ["/o", "/m/n", "/m/n/o"]);
    }

    #[test]
    fn devices_whose_files_nobody_has_read_are_refused() {
        refused("cdi_devices = ['v.com/c=a']", "cdi_devices", "not been read");
        assert!(built("", |_| ()).hooks().is_none());
    }
}
