//! What this node has for tasks: attributes that a job can constrain on, and what is missing, with its fix.
//!
//! Reads files and looks for binaries; tries nothing, as the agent waits for the first answer. `bowline doctor` tries.

use std::collections::BTreeMap;
use std::fs;

use bowline_client::spawn;
use bowline_executor::VERSION;
use bowline_executor::internal::is_cgroup_v2;

use crate::NAME;
use crate::proto::driver::FingerprintResponse;
use crate::proto::driver::fingerprint_response::HealthState;
use crate::proto::structs::{Attribute, attribute};
use crate::settings::Settings;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    enabled: bool,
    root: bool,
    shim: Result<(), String>,
    init: bool,
    /// The program with which shims ask systemd, and a person looks at tasks.
    cli: bool,
    cgroup_v2: bool,
    cgroups: bool,
    seccomp: bool,
    apparmor: bool,
}

/// The fingerprint of this node.
pub fn taken(settings: &Settings) -> FingerprintResponse {
    Node::look(settings).response()
}

fn reads(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

impl Node {
    fn look(settings: &Settings) -> Node {
        let programs = settings.programs();
        let shim = programs.shim();
        Node {
            enabled: settings.enabled,
            root: rustix::process::geteuid().is_root(),
            init: programs.init().is_some(),
            cli: shim.as_ref().is_ok_and(|shim| spawn::bowline(shim).is_file()),
            shim: shim.map(drop).map_err(|error| error.message().to_owned()),
            cgroup_v2: is_cgroup_v2(),
            cgroups: reads("/proc/cgroups").is_some()
                && fs::metadata("/sys/fs/cgroup").is_ok_and(|found| found.is_dir()),
            seccomp: reads("/proc/sys/kernel/seccomp/actions_avail").is_some(),
            apparmor: reads("/sys/module/apparmor/parameters/enabled").as_deref() == Some("Y"),
        }
    }

    /// What no task can do without, and the fix.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if !self.root {
            faults.push("the agent does not run as root; start it as root".to_owned());
        }
        if let Err(why) = &self.shim {
            faults.push(format!("{why}; install bowline, or set bin_dir to the folder that it is in"));
        } else if !self.init {
            let fix = "install it beside bowline-shim; until then a job needs init = false";
            faults.push(format!("bowline-init is missing; {fix}"));
        } else if !self.cli {
            faults.push("bowline is missing; install it beside bowline-shim".to_owned());
        }
        if !self.cgroups {
            faults.push("cgroups are not mounted at /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup".to_owned());
        }
        if !self.seccomp {
            faults.push("the kernel has no seccomp filters; boot one with CONFIG_SECCOMP_FILTER".to_owned());
        }
        faults
    }

    fn response(&self) -> FingerprintResponse {
        if !self.enabled {
            return FingerprintResponse {
                health: HealthState::Undetected.into(),
                health_description: "the agent's configuration sets enabled = false".to_owned(),
                ..FingerprintResponse::default()
            };
        }
        let faults = self.faults();
        let (health, health_description) = match faults.as_slice() {
            [] => (HealthState::Healthy, "Healthy".to_owned()),
            some => (HealthState::Unhealthy, format!("{}; `bowline doctor` tells more", some.join("; "))),
        };
        let text = |text: &str| attribute::Value::StringVal(text.to_owned());
        let flag = attribute::Value::BoolVal;
        let mut attributes = vec![
            ("version", text(VERSION)),
            ("cgroup_version", text(if self.cgroup_v2 { "2" } else { "1" })),
            ("seccomp", flag(self.seccomp)),
            ("apparmor", flag(self.apparmor)),
        ];
        if !faults.is_empty() {
            attributes.push(("missing", text(&faults.join("; "))));
        }
        let named =
            |(name, value)| (format!("driver.{NAME}.{name}"), Attribute { value: Some(value), unit: String::new() });
        let attributes: BTreeMap<_, _> = attributes.into_iter().map(named).collect();
        FingerprintResponse { attributes, health: health.into(), health_description, err: String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete() -> Node {
        let (cgroup_v2, apparmor) = (true, false);
        Node {
            enabled: true,
            root: true,
            shim: Ok(()),
            init: true,
            cli: true,
            cgroup_v2,
            cgroups: true,
            seccomp: true,
            apparmor,
        }
    }

    #[test]
    fn a_complete_node_is_healthy_and_says_what_it_has() {
        let response = complete().response();
        assert_eq!((response.health(), response.health_description.as_str()), (HealthState::Healthy, "Healthy"));
        let value = |name: &str| response.attributes[&format!("driver.bowline.{name}")].value.clone();
        assert_eq!(value("cgroup_version"), Some(attribute::Value::StringVal("2".to_owned())));
        assert_eq!(value("apparmor"), Some(attribute::Value::BoolVal(false)));
        assert_eq!(value("version"), Some(attribute::Value::StringVal(VERSION.to_owned())));
    }

    #[test]
    fn what_is_missing_is_named_with_its_fix() {
        let node = Node { shim: Err("cannot find /x/bowline-shim".to_owned()), seccomp: false, ..complete() };
        let response = node.response();
        assert_eq!(response.health(), HealthState::Unhealthy);
        for part in ["cannot find /x/bowline-shim", "bin_dir", "CONFIG_SECCOMP_FILTER"] {
            assert!(response.health_description.contains(part), "{}", response.health_description);
        }
        assert!(response.attributes.contains_key("driver.bowline.missing"));
    }

    #[test]
    fn a_driver_that_is_switched_off_is_not_there() {
        let response = Node { enabled: false, ..complete() }.response();
        assert!(response.health() == HealthState::Undetected && response.attributes.is_empty());
    }
}
