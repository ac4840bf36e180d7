//! Ends that are cut short: of a shim after its report, of a launch without descriptors, of a sandbox that is not made
//! yet. Nothing is left, and nobody is told that all is well who has done nothing.

use std::fs;
use std::path::{Path, PathBuf};

use bowline_tests::Host;
use bowline_tests::harness::containerd::make_fifo;
use bowline_tests::harness::{Process, binary, eventually, process_exists, unix_sockets, write_program};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

#[test]
fn rm_cleans_up_after_a_shim_that_dies_once_its_report_exists() {
    let host = Host::new();
    for _ in 0..24 {
        let task = host.task("trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done").start();
        task.wait_for_line("ready");
        let shim = task.shim_pid();
        let pidfd = pidfd_open(Pid::from_raw(shim).expect("a pid"), PidfdFlags::empty()).expect("it lives");
        let stop = host.spawn(["stop", "--grace=50s", task.id()]);
        let report = task.file("exit.json");
        // At once: what comes after it takes milliseconds.
        eventually("its report", || (0..10_000).any(|_| report.exists()).then_some(()));
        // It may have left.
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        stop.finish();
        eventually("it is gone", || (!process_exists(shim)).then_some(()));
        task.bowline("wait", []).assert_says("5");
        task.bowline("rm", []).assert_code(0);
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_launch_that_runs_out_of_descriptors_leaves_nothing() {
    let host = Host::new();
    // The filter is compiled once, for all tasks to come.
    host.task("true").flag("--rm").run().assert_code(0);
    for most in (8..72).step_by(2) {
        let mut run = host.command("sh");
        let script = format!("ulimit -n {most}; exec \"$@\"");
        run.args(["-c", &script, "sh"]).arg(binary("bowline"));
        run.args(["run", "--rm", "--name", &host.new_id(), "--", "true"]);
        let ran = host.execute(run);
        assert!(ran.code == Some(0) || ran.err().starts_with("bowline: "), "with {most}: {ran}");
    }
    host.assert_nothing_left_without_rm();
}

/// A folder with a CNI plugin that does nothing, but for the command that the test names: then it waits at a gate.
struct Plugin {
    folder: PathBuf,
}

impl Plugin {
    fn new(host: &Host, stalls_at: &str) -> Plugin {
        let folder = host.work().join("plugins");
        fs::create_dir(&folder).expect("the work folder is writable");
        make_fifo(&folder.join("gate"));
        let script = format!(
            r#"#!/bin/sh
cd {}
if [ "$(cat stalls_at)" = "$CNI_COMMAND" ]; then echo > began; read line < gate; fi
case $CNI_COMMAND in
VERSION) echo '{{"cniVersion": "1.0.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0"]}}' ;;
ADD) echo '{{"cniVersion": "1.0.0", "interfaces": [], "ips": []}}' ;;
esac
"#,
            folder.display()
        );
        for name in ["bridge", "firewall", "portmap", "host-local"] {
            write_program(&folder.join(name), &script);
        }
        let plugin = Plugin { folder };
        plugin.stall_at(stalls_at);
        plugin
    }

    fn stall_at(&self, command: &str) {
        fs::write(self.folder.join("stalls_at"), command).expect("the work folder is writable");
    }

    fn toml(&self) -> String {
        let folder = self.folder.display();
        format!(
            "network.plugin_folders = ['{folder}']\n[[network.interfaces]]\nassociation = 'bridge'\nsubnets = ['10.231.78.0/24']"
        )
    }

    /// Waits until `command` has it run, which then waits for it.
    #[track_caller]
    fn wait_until_it_stalls(&self, command: Process) -> Process {
        let began = self.folder.join("began");
        eventually("the plugin waits", || (began.exists() || !process_exists(command.pid())).then_some(()));
        if !began.exists() {
            panic!("no plugin was run\n{}", command.finish());
        }
        command
    }

    fn let_go(&self) {
        self.stall_at("");
        fs::write(self.folder.join("gate"), "\n").expect("somebody reads");
    }
}

#[test]
fn a_sandbox_that_is_being_made_is_removed_by_force_alone() {
    let host = Host::new();
    let plugin = Plugin::new(&host, "ADD");
    let build = host.sandbox().toml(&plugin.toml());
    let id = build.id().to_owned();
    let create = plugin.wait_until_it_stalls(build.spawn());
    host.bowline(["sandbox", "rm", &id]).assert_refused(125, &[&id, "being made"]);
    let rm = host.spawn(["sandbox", "rm", "-f", &id]);
    let socket = host.state().join(&id).join("shim");
    // The listening one, and those of both commands.
    eventually("it has asked", || (unix_sockets(&socket) >= 3).then_some(()));
    plugin.let_go();
    rm.finish().assert_code(0);
    create.finish();
    assert!(!host.state().join(&id).exists(), "it was said to be removed");
    host.assert_nothing_left_without_rm();
}

#[test]
fn gc_removes_a_sandbox_whose_creation_was_cut_short() {
    let host = Host::new();
    let plugin = Plugin::new(&host, "ADD");
    let build = host.sandbox().toml(&plugin.toml());
    let id = build.id().to_owned();
    let create = plugin.wait_until_it_stalls(build.spawn());
    host.bowline(["gc", &id]).assert_says("");
    let shims: Vec<i32> = holders(&host.state().join(&id).join("lock"));
    create.signal(Signal::KILL);
    create.finish();
    for shim in shims.into_iter().filter(|pid| process_exists(*pid)) {
        kill_process(Pid::from_raw(shim).expect("a pid"), Signal::KILL).expect("it lives");
        eventually("the shim has gone", || (!process_exists(shim)).then_some(()));
    }
    plugin.stall_at("");
    let ran = host.bowline(["sandbox", "stats", &id]);
    ran.assert_refused(125, &[&id, "creation", "cut short"]);
    host.bowline(["gc", "--dry-run", &id]).assert_code(0);
    let ran = host.bowline(["gc", &id]);
    let told = format!("remains {id}: its creation was cut short; nothing ran in it");
    assert!(ran.assert_code(0).out().starts_with(&told), "{ran}");
    assert!(!host.state().join(&id).exists());
    host.assert_nothing_left_without_rm();
}

/// The processes that have this file open.
fn holders(file: &Path) -> Vec<i32> {
    let has = |pid: &i32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.into_iter().any(|fd| fs::read_link(fd.path()).is_ok_and(|path| path == file))
    };
    let pids = fs::read_dir("/proc").expect("mounted").flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(has).collect()
}

#[test]
fn a_sandbox_whose_shim_dies_while_it_is_removed_is_removed() {
    for flags in [&[][..], &["-f"]] {
        let host = Host::new();
        let plugin = Plugin::new(&host, "");
        let sandbox = host.sandbox().toml(&plugin.toml()).create();
        let shim = sandbox.shim_pid();
        plugin.stall_at("DEL");
        let rm = host.spawn([&["sandbox", "rm", sandbox.id()], flags].concat());
        let rm = plugin.wait_until_it_stalls(rm);
        plugin.stall_at("");
        kill_process(Pid::from_raw(shim).expect("a pid"), Signal::KILL).expect("it lives");
        rm.finish().assert_code(0);
        assert!(!sandbox.file("").exists());
        host.assert_nothing_left_without_rm();
    }
}

#[test]
fn rm_of_a_half_made_sandbox_removes_it_or_says_try_again() {
    let host = Host::new();
    // What comes about while it is made, in this order: a file of its folder.
    for moment in ["", "lock", "shim.sock", "shim.log", "shm"] {
        let build = host.sandbox().flag("--share-pid").flag("--network=none");
        let folder = host.state().join(build.id());
        let create = build.spawn();
        let file = folder.join(moment);
        eventually(file.display(), || file.exists().then_some(()));
        eventually("it is removed, or told to be in the making", || {
            let ran = host.bowline(["sandbox", "rm", "-f", build.id()]);
            assert!(ran.code == Some(0) || ran.err().contains("try again"), "{ran}");
            (ran.code == Some(0)).then_some(())
        });
        create.finish();
        assert!(!folder.exists(), "{moment}");
    }
    host.assert_nothing_left_without_rm();
}
