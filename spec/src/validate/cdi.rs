//! What files of CDI say of devices.

use super::mounts;
use super::rules::{absolute, no_nul, require};
use crate::invalid::Invalid;
use crate::task::{Access, CdiEdits, CdiHook, CdiMount, CdiNode, HOOK_NAMES};

impl CdiEdits {
    /// Whether a task can be given all of it.
    ///
    /// # Errors
    /// The first edit that makes no sense, or that bowline cannot give effect to.
    pub fn check(&self) -> Result<(), Invalid> {
        require(self.intel_rdt.is_none(), "intelRdt", || "bowline gives no task a class of Intel RDT".into())?;
        require(self.net_devices.is_none(), "netDevices", || {
            "bowline moves no interfaces of the host to a task; a bundle's linux.netDevices can".into()
        })?;
        variables("env", &self.env)?;
        each("deviceNodes", &self.device_nodes, node)?;
        each("mounts", &self.mounts, mount)?;
        each("hooks", &self.hooks, hook)
    }
}

fn each<T>(list: &str, all: &[T], check: impl Fn(&str, &T) -> Result<(), Invalid>) -> Result<(), Invalid> {
    all.iter().enumerate().try_for_each(|(index, one)| check(&format!("{list}[{index}]"), one))
}

fn variables(field: &str, env: &[String]) -> Result<(), Invalid> {
    each(field, env, |field, variable: &String| {
        no_nul(field, variable)?;
        let is_named = variable.split_once('=').is_some_and(|(name, _)| !name.is_empty());
        require(is_named, field, || format!("{variable:?} is not NAME=value"))
    })
}

fn node(field: &str, node: &CdiNode) -> Result<(), Invalid> {
    mounts::device_path(&format!("{field}.path"), &node.path)?;
    if let Some(host) = &node.host_path {
        absolute(&format!("{field}.hostPath"), host)?;
    }
    require(["", "b", "c", "u", "p"].contains(&&*node.kind), &format!("{field}.type"), || {
        format!("{:?} is no type of a device: b, c, u or p", node.kind)
    })?;
    require(node.major >= 0 && node.minor >= 0, field, || format!("{}:{} is no device", node.major, node.minor))?;
    match &*node.permissions {
        "" | "none" => Ok(()),
        permissions => {
            permissions.parse::<Access>().map(drop).map_err(|error| error.in_field(format!("{field}.permissions")))
        }
    }
}

fn mount(field: &str, mount: &CdiMount) -> Result<(), Invalid> {
    mounts::destination(&format!("{field}.containerPath"), &mount.container_path)?;
    require(!mount.host_path.as_os_str().is_empty(), &format!("{field}.hostPath"), || "is missing".into())?;
    if mount.is_bind() {
        return absolute(&format!("{field}.hostPath"), &mount.host_path);
    }
    require(!["", "none"].contains(&&*mount.kind), &format!("{field}.type"), || {
        "is missing, and no option is bind or rbind".into()
    })
}

fn hook(field: &str, hook: &CdiHook) -> Result<(), Invalid> {
    require(HOOK_NAMES.contains(&&*hook.hook_name), &format!("{field}.hookName"), || {
        format!("{:?} is none of {}", hook.hook_name, HOOK_NAMES.join(", "))
    })?;
    absolute(&format!("{field}.path"), &hook.path)?;
    variables(&format!("{field}.env"), &hook.env)?;
    each(&format!("{field}.args"), &hook.args, |field, arg| no_nul(field, arg))?;
    require(hook.timeout.is_none_or(|seconds| seconds > 0), &format!("{field}.timeout"), || "is not positive".into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::task::CdiEdits;
    use serde_json::{Value, json};

    fn wrong_in(edits: Value) -> String {
        let edits: CdiEdits = serde_json::from_value(edits).unwrap();
        edits.check().expect_err("wrong").field
    }

    #[test]
    fn edits_without_effect_or_sense_are_named() {
        for (edits, field) in [
            (json!({"intelRdt": {"closID": "x"}}), "intelRdt"),
            (json!({"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}), "netDevices"),
            (json!({"env": ["A=", "=b"]}), "env[1]"),
            (json!({"deviceNodes": [{"hostPath": "/dev/a"}]}), "deviceNodes[0].path"),
            (json!({"deviceNodes": [{"path": "/proc/a"}]}), "deviceNodes[0].path"),
            (json!({"deviceNodes": [{"path": "/dev/a", "type": "x"}]}), "deviceNodes[0].type"),
            (json!({"deviceNodes": [{"path": "/dev/a", "permissions": "rx"}]}), "deviceNodes[0].permissions"),
            (json!({"deviceNodes": [{"path": "/dev/a", "major": -1}]}), "deviceNodes[0]"),
            (
                json!({"mounts": [{"hostPath": "/a", "containerPath": "/proc/b", "options": ["bind"]}]}),
                "mounts[0].containerPath",
            ),
            (json!({"mounts": [{"containerPath": "/b", "options": ["bind"]}]}), "mounts[0].hostPath"),
            (json!({"mounts": [{"hostPath": "a", "containerPath": "/b", "options": ["bind"]}]}), "mounts[0].hostPath"),
            (json!({"mounts": [{"hostPath": "/a", "containerPath": "/b"}]}), "mounts[0].type"),
            (json!({"hooks": [{"hookName": "later", "path": "/a"}]}), "hooks[0].hookName"),
            (json!({"hooks": [{"hookName": "poststop", "path": "a"}]}), "hooks[0].path"),
            (json!({"hooks": [{"hookName": "poststop", "path": "/a", "timeout": 0}]}), "hooks[0].timeout"),
        ] {
            assert_eq!(wrong_in(edits.clone()), field, "{edits}");
        }
        assert_eq!(CdiEdits::default().check(), Ok(()));
    }
}
