//! A shim that is told to leave while something is being launched: it leaves, the launch is refused or the task ended,
//! and nothing is left.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Input, Stdio, api, make_fifo};
use bowline_tests::harness::{Process, Ran, Task, eventually, process_exists};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
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
fn at_sigterm_a_shim_leaves_though_a_member_s_launch_is_frozen() {
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
}

#[test]
fn a_sandbox_with_a_frozen_launch_is_removed_by_force_alone() {
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
}

/// The shim that `start` has started, which may have ended by now.
fn shim_of(start: &Process, task: &Task<'_>) -> i32 {
    let children = format!("/proc/{0}/task/{0}/children", start.pid());
    let of_start = || fs::read_to_string(&children).ok()?.split_whitespace().next()?.parse().ok();
    let recorded = || serde_json::from_str::<Value>(&task.log("task.json")).ok()?["shim_pid"].as_i64()?.try_into().ok();
    eventually("a shim", || of_start().or_else(recorded))
}

#[test]
fn a_launch_whose_shim_is_told_to_leave_is_refused_or_ends() {
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
}

/// Listens in the place of the shim of a task or sandbox, turns one command away as a shim does that leaves, and lets `left`
/// undo what it may before the next connection is closed with the socket.
fn asked_as_it_leaves(host: &Host, folder: &Path, args: &[&str], left: impl FnOnce()) -> Ran {
    let lock = File::open(folder.join("lock")).expect("it is there");
    eventually("the shim has left its folder", || lock.try_lock().is_ok().then_some(()));
    fs::remove_file(folder.join("shim.sock")).expect("its shim was killed");
    let listener = UnixListener::bind(folder.join("shim.sock")).expect("ours");
    let command = host.spawn(args);
    let (mut client, _) = listener.accept().expect("it connects");
    client.read_exact(&mut [0]).expect("it asks");
    drop(client);
    let (mut pending, timeout) = ([PollFd::new(&listener, PollFlags::IN)], Timespec { tv_sec: 60, tv_nsec: 0 });
    assert_eq!(poll(&mut pending, Some(&timeout)), Ok(1), "it asks whether it was turned away");
    left();
    drop((listener, lock));
    command.finish()
}

#[test]
fn who_asks_a_shim_that_leaves_hears_what_it_has_left() {
    let host = Host::new();
    let aside = host.state().join(".aside");
    for args in [&["exec", "ID", "--", "true"][..], &["kill", "ID"], &["pause", "ID"], &["update", "--pids=9", "ID"]] {
        let task = host.task(IDLE).start();
        let args: Vec<_> = args.iter().map(|arg| if *arg == "ID" { task.id() } else { arg }).collect();
        task.kill_shim(task.shim_pid());
        let ran = asked_as_it_leaves(&host, &task.file(""), &args, || {
            fs::rename(task.file(""), &aside).expect("ours");
        });
        ran.assert_refused(125, &[&format!("there is no task named {}", task.id())]);
        fs::rename(&aside, task.file("")).expect("ours");
        task.bowline("rm", ["-f"]).assert_code(0);
    }
    let sandbox = host.sandbox().create();
    sandbox.kill_shim();
    let folder = host.state().join(sandbox.id());
    let ran = asked_as_it_leaves(&host, &folder, &["sandbox", "update", "--pids=9", sandbox.id()], || {
        fs::rename(&folder, &aside).expect("ours");
    });
    ran.assert_refused(125, &[&format!("there is no sandbox named {}", sandbox.id())]);
    fs::rename(&aside, &folder).expect("ours");
    sandbox.rm(["-f"]);
    host.assert_nothing_left_without_rm();
}
