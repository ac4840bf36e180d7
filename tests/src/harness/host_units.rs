//! Units of the host's that a test limits, with the kernel's files as witnesses.

use std::fs;
use std::io::ErrorKind;
use std::process::Command;

use serde_json::Value;

use super::systemd::{assert_forgotten, assert_no_unit_files, show, systemctl};
use super::{Host, Ran, hierarchy, only_v2};

/// Units of this test's own.
pub struct Units<'h> {
    host: &'h Host,
    services: Vec<String>,
}

impl<'h> Units<'h> {
    pub fn new(host: &'h Host) -> Units<'h> {
        Units { host, services: Vec::new() }
    }

    /// A slice's name, in none but the root; with a part, in that one.
    pub fn slice(&self, part: &str) -> String {
        let stem = self.host.prefix().replace('-', "\\x2d");
        if part.is_empty() { format!("{stem}.slice") } else { format!("{stem}-{part}.slice") }
    }

    /// A service that runs, in `system.slice`.
    pub fn service(&mut self, name: &str) -> String {
        self.service_with(name, &[])
    }

    /// A service that runs, started with these flags of systemd-run.
    pub fn service_with(&mut self, name: &str, properties: &[&str]) -> String {
        let unit = format!("{}-{name}.service", self.host.prefix());
        let mut run = Command::new("systemd-run");
        run.args(["--quiet", "--collect", "--unit", &unit]).args(properties).args(["sleep", "1000"]);
        let done = run.status().expect("it is there");
        assert!(done.success(), "{done}");
        self.services.push(unit.clone());
        unit
    }

    /// `limits VERB` of this manifest.
    pub fn limits(&self, verb: &[&str], manifest: &Value) -> Ran {
        let file = self.host.file("limits.json", &manifest.to_string());
        let mut args = vec!["limits"];
        args.extend(verb);
        args.push(file.to_str().expect("ASCII"));
        self.host.bowline(args)
    }

    /// Takes back all that was applied.
    pub fn reset(&self) -> Ran {
        self.host.bowline(["limits", "reset"])
    }

    /// Nothing of all this is left.
    pub fn end(self, slices: &[String]) {
        self.services.iter().for_each(|unit| systemctl(&["stop", "--", unit]));
        self.host.assert_nothing_left();
        slices.iter().for_each(|slice| assert_forgotten(slice));
        assert_no_unit_files(slices.iter().map(String::as_str).collect::<Vec<_>>().as_slice());
    }
}

/// What the kernel has in this file of the unit's cgroup; nothing where systemd has made none, as it does for who needs
/// none of the controller.
pub fn in_kernel(unit: &str, controller: &str, name: &str) -> Option<String> {
    let path = show(unit, "ControlGroup");
    let file = hierarchy(controller).join(path.trim_start_matches("ControlGroup=").trim_start_matches('/')).join(name);
    match fs::read_to_string(&file) {
        Ok(text) => Some(text.trim_end().to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => panic!("{}: {error}", file.display()),
    }
}

/// The kernel's limit of its memory, in bytes.
pub fn memory_in_kernel(unit: &str) -> Option<u64> {
    let file = if only_v2() { "memory.max" } else { "memory.limit_in_bytes" };
    let limit = in_kernel(unit, "memory", file)?;
    // v1 has no other word for "max" than the largest multiple of a page.
    (limit != "max").then(|| limit.parse().expect("a number")).filter(|limit| *limit < i64::MAX as u64 >> 1)
}

/// The kernel's limit of its CPU time, in µs for each 100 ms.
pub fn cpu_in_kernel(unit: &str) -> Option<u64> {
    let (quota, period) = if only_v2() {
        let limit = in_kernel(unit, "cpu", "cpu.max")?;
        limit.split_once(' ').map(|(quota, period)| (quota.to_owned(), period.to_owned())).expect("two words")
    } else {
        (in_kernel(unit, "cpu", "cpu.cfs_quota_us")?, in_kernel(unit, "cpu", "cpu.cfs_period_us")?)
    };
    assert_eq!(period, "100000", "{unit}");
    (quota != "max" && quota != "-1").then(|| quota.parse().expect("a number"))
}

/// The kernel limits neither its CPU time nor its memory.
#[track_caller]
pub fn assert_unlimited(unit: &str) {
    assert_eq!((cpu_in_kernel(unit), memory_in_kernel(unit)), (None, None), "{unit}");
}

/// systemd's property of the most memory, with this value.
pub fn memory_property(value: &str) -> String {
    format!("{}={value}", if only_v2() { "MemoryMax" } else { "MemoryLimit" })
}
