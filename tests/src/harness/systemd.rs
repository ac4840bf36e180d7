//! What systemd says of its units, where it runs this host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{eventually, skip_version};

/// Where units are installed until the next boot.
const UNITS: &str = "/run/systemd/system";

/// Whether systemd runs this host.
pub fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Like [`has_systemd`], for a case that makes no sense without: says so. CI has it in the virtual machine, as
/// `named_tests` asserts.
pub fn lacks_systemd() -> bool {
    if !has_systemd() {
        skip_version("systemd does not run this host");
    }
    !has_systemd()
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

/// A unit's file that is installed, until this is dropped.
pub struct Installed {
    pub name: String,
    file: PathBuf,
    /// Its other names, as links, and what else was put beside it.
    beside: Vec<PathBuf>,
}

impl Installed {
    /// A unit of this name, which does not run yet.
    pub fn new(name: String, text: &str) -> Installed {
        let file = Path::new(UNITS).join(&name);
        fs::write(&file, text).expect("root may");
        systemctl(&["daemon-reload"]);
        Installed { name, file, beside: Vec::new() }
    }

    /// Installs another name of the unit, which systemd has read.
    pub fn also(&mut self, name: &str) {
        let link = Path::new(UNITS).join(name);
        std::os::unix::fs::symlink(&self.file, &link).expect("root may");
        self.beside.push(link);
        systemctl(&["daemon-reload"]);
    }

    /// A drop-in of it, which systemd has read.
    pub fn drop_in(&mut self, name: &str, text: &str) -> PathBuf {
        let folder = Path::new(UNITS).join(format!("{}.d", self.name));
        fs::create_dir_all(&folder).expect("root may");
        let file = folder.join(name);
        fs::write(&file, text).expect("root may");
        self.beside.push(file.clone());
        systemctl(&["daemon-reload"]);
        file
    }

    pub fn said(&self) -> String {
        let mut journalctl = Command::new("journalctl");
        journalctl.args(["--quiet", "--no-pager", "--output=cat", "--unit", &self.name]);
        String::from_utf8(journalctl.output().expect("it is there").stdout).expect("text")
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = Command::new("systemctl").args(["stop", "--", &self.name]).status();
        for file in self.beside.iter().chain([&self.file]) {
            let _ = fs::remove_file(file);
        }
        let _ = fs::remove_dir(Path::new(UNITS).join(format!("{}.d", self.name)));
        let _ = Command::new("systemctl").arg("daemon-reload").status();
    }
}
