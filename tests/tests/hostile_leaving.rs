//! A shim that is told to leave while something is being launched: it leaves, the launch is refused or the task ended,
//! and nothing is left.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Input, Stdio, api, make_fifo};
use bowline_tests::harness::{Process, Task, eventually, process_exists};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const IDLE: &str = "exec sleep 1000";

#[track_caller]
fn terminate(pid: i32) {
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::TERM).expect("it lives");
}

#[track_caller]
fn wait_until_gone(shim: i32) {
    eventually(format_args!("the shim {shim} has left"), || (!process_exists(shim)).then_some(()));
}

#[test]
fn a_sandbox_whose_member_is_frozen_as_it_is_launched_is_left_at_sigterm() {
    let host = Host::new();
    for members in [0, 1] {
        let sandbox = host.sandbox().create();
        let running: Vec<_> = (0..members)
            .map(|_| sandbox.task("trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done").start())
            .collect();
        running.iter().for_each(|task| task.wait_for_line("ready"));
        let shim = sandbox.shim_pid();
        sandbox.freeze();
        let before = sandbox.processes().len();
        let (_, start) = sandbox.task(IDLE).spawn_start();
        eventually("its init is in the cgroup", || (sandbox.processes().len() > before).then_some(()));
        terminate(shim);
        start.finish().assert_refused(125, &["told to leave"]);
        for task in &running {
            task.wait().assert_code(5);
        }
        wait_until_gone(shim);
    }
    host.assert_nothing_left();
}

#[test]
fn a_sandbox_whose_member_is_frozen_as_it_is_launched_is_removed_by_force_alone() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    sandbox.freeze();
    let (task, start) = sandbox.task(IDLE).spawn_start();
    eventually("its init is in the cgroup", || (!sandbox.processes().is_empty()).then_some(()));
    sandbox.bowline("rm", []).assert_refused(125, &[sandbox.id(), task.id(), "being launched"]);
    sandbox.rm(["-f"]);
    start.finish().assert_refused(125, &["being removed"]);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_member_that_is_stopped_while_it_is_launched_keeps_nobody() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let shim = sandbox.shim_pid();
    for _ in 0..8 {
        let (task, start) = sandbox.task(IDLE).spawn_start();
        let record = task.file("task.json");
        eventually("its launch has begun", || record.exists().then_some(()));
        let wait = host.spawn(["wait", task.id()]);
        eventually("it is gone, or told to be in use", || {
            let ran = host.bowline(["rm", "-f", task.id()]);
            assert!(ran.code == Some(0) || ran.err().contains("try again"), "{ran}");
            (ran.code == Some(0)).then_some(())
        });
        start.finish();
        wait.finish();
    }
    terminate(shim);
    wait_until_gone(shim);
    host.assert_nothing_left();
}

/// The shim that `start` has started, which may have ended by now.
fn shim_of(start: &Process, task: &Task<'_>) -> i32 {
    let children = format!("/proc/{0}/task/{0}/children", start.pid());
    let of_start = || fs::read_to_string(&children).ok()?.split_whitespace().next()?.parse().ok();
    let recorded = || serde_json::from_str::<Value>(&task.log("task.json")).ok()?["shim_pid"].as_i64()?.try_into().ok();
    eventually("a shim", || of_start().or_else(recorded))
}

#[test]
fn a_launch_at_any_moment_of_which_the_shim_is_told_to_leave_is_refused_or_ends() {
    // What comes about while a task is launched, in this order: a file of its folder.
    for moment in ["", "lock", "shim.sock", "rootfs", "task.json", "log.json"] {
        // Its own, where no filter is compiled yet: that takes a while, before there is a task to stop.
        let host = Host::new();
        let toml = "command = 'sh'\nargs = ['-c', 'while :; do sleep 0.1; done']\nstop.grace = '500ms'";
        let (task, start) = host.described(toml).spawn_start();
        let file = task.file(moment);
        eventually(file.display(), || file.exists().then_some(()));
        let shim = shim_of(&start, &task);
        terminate(shim);
        wait_until_gone(shim);
        let ran = start.finish();
        if ran.code == Some(0) {
            // What does not run yet is killed at once.
            let signal = task.wait()["signal"].clone();
            assert!(signal == "SIGTERM" || signal == "SIGKILL", "{signal}");
        } else {
            ran.assert_refused(125, &[]);
        }
        host.assert_nothing_left();
    }
}

/// Streams whose logger is not ready for as long as nobody opens the gate.
fn gated(bundle: &Bundle) -> (std::path::PathBuf, Stdio) {
    let gate = bundle.path.join("gate");
    make_fifo(&gate);
    let logger = bundle.path.join("logger");
    let script = format!("read line <{}; exec 5>&-; cat <&3 >/dev/null", gate.display());
    fs::write(&logger, script).expect("the work folder is writable");
    (gate, Stdio::uri(&format!("binary:///bin/sh?{}=x", logger.display())))
}

#[test]
fn a_create_that_stalls_as_the_shim_is_told_to_leave_is_refused() {
    let host = Host::new();
    if host.reference_fails("its shim ignores SIGTERM") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script(IDLE);
    let (gate, io) = gated(&bundle);
    let shim = containerd.start(&bundle);
    let create = shim.send::<api::CreateTaskResponse>("Create", &shim.creation(&bundle, &io));
    // It is open once the logger reads, which nothing is written to: it is never ready.
    let _gate = Input::open(&gate);
    let pid = shim.pid();
    terminate(pid);
    let failure = create.wait().expect_err("nothing is created any more");
    // The manager acts by the code; the words are for who reads its log.
    assert!(failure.message.contains("told to leave"), "{failure:?}");
    wait_until_gone(pid);
    host.assert_nothing_left();
}
