//! Programs that stand in for other versions of bowline, and upgrades to them.
//!
//! A debug program whose file ends with `facts=N;` has version N of the facts: see `executor/src/upgrade/versions.rs`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::containerd::Containerd;
use super::{Host, Ran, binary, is_debug};

/// This program with what it says at its end; a debug one, wherever the binaries under test are.
#[track_caller]
pub fn stand_in(host: &Host, name: &str, says: &str) -> PathBuf {
    let switchable = if is_debug() { binary(name) } else { beside_absent(name) };
    let to = host.work().join(format!("{name}-{}", says.trim_end_matches(';')));
    // By another program, as `copy_program` does.
    let mut copy = Command::new("sh");
    copy.args(["-c", "cp \"$0\" \"$1\" && printf %s \"$2\" >>\"$1\""]).args([&switchable, &to]).arg(says);
    assert!(copy.status().expect("a shell").success(), "cannot copy {name}");
    to
}

/// As `make debug` leaves it, beside the tests or where the virtual machine has them.
#[track_caller]
fn beside_absent(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let mut all = test.ancestors().map(|folder| folder.join("absent").join(name));
    all.find(|path| path.exists()).unwrap_or_else(|| panic!("absent/{name} is missing: build it with `make debug`"))
}

/// A folder as containerd's state, in which the bundles are that the harness has made.
#[track_caller]
pub fn state_of(host: &Host, containerd: &Containerd<'_>) -> PathBuf {
    let state = host.work().join("containerd");
    let tasks = state.join("io.containerd.runtime.v2.task");
    if !tasks.exists() {
        fs::create_dir_all(&tasks).expect("the work folder is writable");
        let namespace = containerd.namespace();
        symlink(host.work().join("b").join(namespace), tasks.join(namespace)).expect("the work folder is writable");
    }
    state
}

/// Upgrades the shims of the containerd with this state folder, or finds out whether that works.
pub fn upgrade_containerds(host: &Host, state: &Path, args: &[&str]) -> Ran {
    let containerd = format!("--containerd={}", state.display());
    host.bowline([&["upgrade", containerd.as_str()], args].concat())
}
