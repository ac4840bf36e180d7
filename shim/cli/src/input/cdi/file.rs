//! One vendor's file of CDI.
//!
//! Takes what the specification takes, from version 0.1 to 1.1; as there, a file with a field that nobody knows, or that is
//! younger than the version it names, is none. Must not: decide which file counts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bowline_model::trust;
use bowline_spec::{CdiDevice, CdiEdits};
use serde::Deserialize;

use super::{lenient, yaml};

/// The most bytes of a file: those for hosts with many devices have some hundred KiB.
const LARGEST: u64 = 4 << 20;

/// The versions of the specification, the oldest first.
const VERSIONS: [&str; 10] = ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];

/// What a file says.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    cdi_version: String,
    pub kind: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    pub devices: Vec<Device>,
    /// What a task gets with any of the devices.
    #[serde(default)]
    pub container_edits: CdiEdits,
}

/// A device of a file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    pub name: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    pub container_edits: CdiEdits,
}

/// Reads the file at `path`, whose name ends with `.json` or `.yaml`.
///
/// # Errors
/// Why it is none: others can change it, or it is wrong.
pub fn read(path: &Path) -> Result<Spec, String> {
    let bytes = trust::read_trusted(path, LARGEST).map_err(|error| error.to_string())?;
    let text = String::from_utf8(bytes).map_err(|error| error.to_string())?;
    let of_yaml = || lenient::read(yaml::parse(&text)?).map_err(|wrong| wrong.to_string());
    let spec: Spec = match path.extension().is_some_and(|end| end == "json") {
        // JSON is YAML, and CDI's own library reads it as that.
        true => serde_json::from_str(&text).or_else(|error| of_yaml().map_err(|_| error.to_string()))?,
        false => of_yaml()?,
    };
    spec.check().map(|()| spec)
}

impl Spec {
    fn check(&self) -> Result<(), String> {
        let plain = self.cdi_version.strip_prefix('v').unwrap_or(&self.cdi_version);
        let Some(version) = VERSIONS.iter().position(|known| *known == plain) else {
            let (first, last) = (VERSIONS[0], VERSIONS[VERSIONS.len() - 1]);
            return Err(format!("cdiVersion {:?} is none from {first} to {last}", self.cdi_version));
        };
        if !CdiDevice::is_kind(&self.kind) {
            return Err(format!("kind {:?} is not vendor.com/class", self.kind));
        }
        if self.devices.is_empty() {
            return Err("it has no devices".to_owned());
        }
        if self.edits().any(|edits| edits.hooks.iter().any(|hook| hook.file.is_some())) {
            return Err("unknown field `file` of a hook".to_owned());
        }
        let mut names = BTreeSet::new();
        for device in &self.devices {
            let name = &device.name;
            if !CdiDevice::is_name(name) {
                return Err(format!("{name:?} is no name of a device"));
            }
            if !names.insert(name) {
                return Err(format!("device {name} is there twice"));
            }
            if device.container_edits == CdiEdits::default() {
                return Err(format!("device {name} has no containerEdits"));
            }
        }
        match self.needs().find(|(needed, _)| VERSIONS.iter().position(|known| known == needed) > Some(version)) {
            None => Ok(()),
            Some((needed, what)) => Err(format!("cdiVersion {plain} has no {what}, which came with {needed}")),
        }
    }

    fn edits(&self) -> impl Iterator<Item = &CdiEdits> {
        self.devices.iter().map(|device| &device.container_edits).chain([&self.container_edits])
    }

    /// What it uses that the first version lacks, with the version that brought it, the youngest first.
    fn needs(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let any = |uses: fn(&CdiEdits) -> bool| self.edits().any(uses);
        let is_annotated = |device: &Device| !device.annotations.is_empty();
        let is_dotted = self.kind.split_once('/').is_some_and(|(_, class)| class.contains('.'));
        let is_numbered = |device: &Device| device.name.starts_with(|first: char| first.is_ascii_digit());
        let used = [
            (any(|edits| edits.net_devices.is_some()), "1.1.0", "netDevices"),
            (any(|edits| edits.intel_rdt.is_some()), "0.7.0", "intelRdt"),
            (any(|edits| !edits.additional_gids.is_empty()), "0.7.0", "additionalGids"),
            (!self.annotations.is_empty() || self.devices.iter().any(is_annotated), "0.6.0", "annotations"),
            (is_dotted, "0.6.0", "dots in a class"),
            (
                any(|edits| edits.device_nodes.iter().any(|node| node.host_path.is_some())),
                "0.5.0",
                "hostPath of a node",
            ),
            (self.devices.iter().any(is_numbered), "0.5.0", "names that begin with a digit"),
            (any(|edits| edits.mounts.iter().any(|mount| !mount.kind.is_empty())), "0.4.0", "type of a mount"),
        ];
        used.into_iter().filter_map(|(is_used, version, what)| is_used.then_some((version, what)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn wrong(version: &str, change: impl FnOnce(&mut Value)) -> Result<(), String> {
        let mut file = json!({
            "cdiVersion": version, "kind": "v.com/c",
            "devices": [{"name": "a", "containerEdits": {"env": ["A=1"]}}],
        });
        change(&mut file);
        serde_json::from_value::<Spec>(file).map_err(|error| error.to_string())?.check()
    }

    #[test]
    fn each_version_has_what_came_by_then() {
        for version in ["0.3.0", "0.5.0", "0.8.0", "1.0.0", "v1.1.0"] {
            assert_eq!(wrong(version, |_| ()), Ok(()), "{version}");
        }
        for version in ["", "1.2.0", "9", "0.5"] {
            assert!(wrong(version, |_| ()).is_err_and(|why| why.contains("none from 0.1.0 to 1.1.0")), "{version}");
        }
        let numbered = |file: &mut Value| file["devices"][0]["name"] = json!("0");
        assert!(wrong("0.4.0", numbered).is_err_and(|why| why.contains("digit, which came with 0.5.0")));
        assert_eq!(wrong("0.5.0", numbered), Ok(()));
        let groups = |file: &mut Value| file["containerEdits"] = json!({"additionalGids": [5]});
        assert!(wrong("0.6.0", groups).is_err_and(|why| why.contains("0.7.0")));
    }

    #[test]
    fn what_the_specification_does_not_know_is_no_file() {
        for (change, why) in [
            (json!({"kind": "c"}), "vendor.com/class"),
            (json!({"devices": []}), "no devices"),
            (json!({"devices": [{"name": "a/b", "containerEdits": {"env": ["A=1"]}}]}), "no name"),
            (json!({"devices": [{"name": "a"}]}), "no containerEdits"),
            (json!({"device": 1}), "unknown field `device`"),
            (json!({"containerEdits": {"envs": []}}), "unknown field `envs`"),
        ] {
            let found = wrong("1.0.0", |file| {
                file.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
            });
            assert!(found.as_ref().is_err_and(|found| found.contains(why)), "{change}: {found:?}");
        }
    }
}
