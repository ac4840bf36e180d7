//! A shim's worker that runs plugins: what becomes of them when it or the shim is
//! killed. With stand-ins that tell who runs them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

use bowline_executor::internal::network::{self, LONGEST, Sandbox};
use bowline_executor::internal::sandbox_namespaces::make;
use bowline_spec::NetworkMode;
use bowline_spec::network::{List, NetworkAttachment};
use serde_json::json;

use super::sandbox_namespaces::wanted;
use crate::{Case, PATIENCE, block_on};

pub(crate) const ALL: [Case; 2] = [
    ("serving_a_worker_that_is_killed_takes_its_plugin_along", worker_killed),
    ("serving_a_shim_that_is_killed_takes_its_plugins_along", shim_killed),
];

/// Not a case: a shim that is to connect a sandbox, and prints what came of it.
pub(crate) const SHIM: Case = ("helper_slow_shim", shim);

const FOLDER: &str = "BOWLINE_NETWORKS_FOLDER";

/// ADD hangs, in a child of its own too, once it has told who is there.
const PLUGIN: &str = r#"#!/bin/sh
dir=${0%/bin/*}
echo "$CNI_COMMAND $CNI_NETNS" >>$dir/calls
[ $CNI_COMMAND = ADD ] || exit 0
sleep 1000 &
echo $PPID $$ $! >$dir/new && mv $dir/new $dir/pids
wait
"#;

fn shim() {
    let dir = PathBuf::from(std::env::var_os(FOLDER).expect("a folder"));
    let shared = block_on(make(&wanted(NetworkMode::None))).expect("it is made");
    let sandbox = Sandbox {
        id: "web".to_owned(),
        netns: shared.network().expect("it is new"),
        folders: vec![dir.join("bin")],
        args: BTreeMap::new(),
        capabilities: BTreeMap::new(),
        timeout: LONGEST,
    };
    let list = List::Made(json!({"name": "net", "cniVersion": "1.0.0", "plugins": [{"type": "slow"}]}));
    let attachments = [NetworkAttachment { interface: "eth0".to_owned(), list }];
    let added = block_on(network::worker::add(&dir.join("state"), &sandbox, &attachments));
    fs::write(dir.join("said"), added.expect_err("it cannot end").to_string()).expect("written");
}

/// A shim whose plugin hangs, with the numbers of its worker, the plugin, and a
/// child of that.
struct Slow {
    dir: tempfile::TempDir,
    shim: Child,
    pids: [i32; 3],
}

impl Slow {
    fn new() -> Slow {
        let dir = tempfile::tempdir().expect("a folder");
        for name in ["bin", "state"] {
            fs::create_dir(dir.path().join(name)).expect("made");
        }
        let plugin = dir.path().join("bin/slow");
        fs::write(&plugin, PLUGIN).expect("written");
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).expect("ours");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        let shim = command.env(crate::CASE, SHIM.0).env(FOLDER, dir.path()).spawn().expect("it runs");
        let pids = dir.path().join("pids");
        until("the plugin runs", || pids.exists());
        let pids = fs::read_to_string(pids).expect("readable");
        let pids: Vec<i32> = pids.split_whitespace().map(|pid| pid.parse().expect("a number")).collect();
        Slow { dir, shim, pids: pids.try_into().expect("three") }
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.dir.path().join("calls")).expect("readable")
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

fn runs(pid: i32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !(state.is_empty() || state.contains(") Z ") || state.contains(") X "))
}

fn kill(pid: i32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().expect("it runs").success());
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).expect("a folder").next().is_none()
}

fn worker_killed() {
    let mut slow = Slow::new();
    let [worker, plugin, child] = slow.pids;
    kill(worker);
    assert!(slow.shim.wait().expect("it was ours").success());
    let said = fs::read_to_string(slow.dir.path().join("said")).expect("written");
    assert_eq!(said, "the worker for networks died without an answer");
    until("the plugin is gone", || !runs(plugin));
    let netns = slow.state().join("netns").display().to_string();
    assert_eq!(slow.calls(), format!("ADD {netns}\nDEL {netns}\n"));
    assert!(is_empty(&slow.state()));
    // What a plugin has started does not end with it: whoever clears the shim's cgroup finds it.
    kill(child);
}

fn shim_killed() {
    let mut slow = Slow::new();
    slow.shim.kill().expect("it runs");
    slow.shim.wait().expect("it was ours");
    for pid in slow.pids {
        until("all of them are gone", || !runs(pid));
    }
    let netns = slow.state().join("netns").display().to_string();
    assert_eq!(slow.calls(), format!("ADD {netns}\n"), "nobody undoes it besides who finds it");
    network::del(&slow.state(), LONGEST).expect("it is undone");
    assert_eq!(slow.calls(), format!("ADD {netns}\nDEL {netns}\n"));
    assert!(is_empty(&slow.state()));
}
