//! What systemd says of its units, where it runs this host.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::eventually;

/// Whether systemd runs this host.
pub fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// What systemd says of a unit's properties, a line each.
pub fn show(unit: &str, properties: &str) -> String {
    let mut systemctl = Command::new("systemctl");
    systemctl.args(["show", "--property", properties, "--", unit]);
    let shown = systemctl.output().expect("systemctl runs");
    String::from_utf8(shown.stdout).expect("text").trim_end().to_owned()
}

/// Each of `expected` is a property of the unit, with its value.
#[track_caller]
pub fn assert_shows(unit: &str, expected: &[&str]) {
    for line in expected {
        let name = line.split('=').next().unwrap_or_default();
        assert_eq!(show(unit, name), *line, "{unit}");
    }
}

/// It is no unit any more, nor becomes one: systemd has forgotten it.
#[track_caller]
pub fn assert_forgotten(unit: &str) {
    eventually(format_args!("{unit} is forgotten"), || {
        // A slice is whatever is called so; none that runs is left.
        let shown = show(unit, "LoadState,ActiveState,FragmentPath");
        (shown.contains("ActiveState=inactive") && shown.contains("FragmentPath=\n") || shown.contains("not-found"))
            .then_some(())
            .or_else(|| (shown.contains("ActiveState=inactive") && shown.ends_with("FragmentPath=")).then_some(()))
    });
}

/// No file of systemd's has any of `names` in its name.
#[track_caller]
pub fn assert_no_unit_files(names: &[&str]) {
    let folders = ["/run/systemd/transient", "/run/systemd/system.control"];
    let all = folders.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    let all: Vec<_> = all.map(|entry| entry.path().to_string_lossy().into_owned()).collect();
    let left: Vec<_> = all.iter().filter(|path| names.iter().any(|name| path.contains(name))).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Has systemd do something, which it does.
#[track_caller]
pub fn systemctl(args: &[&str]) {
    let done = Command::new("systemctl").args(args).status().expect("systemctl runs");
    assert!(done.success(), "systemctl {args:?}: {done}");
}
