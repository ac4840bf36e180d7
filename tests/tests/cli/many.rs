//! Several tasks in one command.

use std::os::unix::fs::DirBuilderExt as _;

use bowline_tests::Host;
use bowline_tests::harness::{eventually, process_exists};
use rustix::process::{Pid, Signal, kill_process};

const IDLE: &str = "exec sleep 1000";
const DEAF: &str = "trap '' TERM; echo ready; while :; do sleep 0.1; done";

#[test]
fn several_are_stopped_at_the_same_time() {
    let host = Host::new();
    let (one, two) = (host.task(DEAF).start(), host.task(DEAF).start());
    one.wait_for_line("ready");
    two.wait_for_line("ready");
    let stop = host.spawn(["stop", one.id(), two.id(), "--grace=1h"]);
    // One after the other, the second would still run when the first is deaf.
    eventually("both are being stopped", || (one.status() == "stopping" && two.status() == "stopping").then_some(()));
    host.bowline(["kill", one.id(), two.id()]).assert_says("");
    stop.finish().assert_says("");
}

#[test]
fn one_that_fails_keeps_no_other_from_being_done() {
    let host = Host::new();
    let (one, two) = (host.task(IDLE).start(), host.task(IDLE).start());
    let ran = host.bowline(["pause", one.id(), "nobody", two.id(), "nothing"]);
    ran.assert_code(125);
    assert!(ran.err().contains("nobody") && ran.err().contains("nothing"), "{ran}");
    assert_eq!((one.status(), two.status()), ("paused".to_owned(), "paused".to_owned()));
    host.bowline(["resume", one.id(), two.id()]).assert_says("");
    host.bowline(["stop", one.id(), two.id(), "--grace=0"]).assert_says("");
}

#[test]
fn the_first_error_decides_the_exit_code() {
    let host = Host::new();
    let (one, two) = (host.task(IDLE).start(), host.task(IDLE).start());
    host.bowline(["pause", "nobody", host.prefix()]).assert_code(125);
    host.bowline(["pause", host.prefix(), "nobody"]).assert_code(2);
    one.end();
    two.end();
}

#[test]
fn wait_prints_the_codes_in_the_order_given() {
    let host = Host::new();
    let (slow, quick) =
        (host.task("while [ ! -e /tmp/go ]; do sleep 0.02; done; exit 4").start(), host.task("exit 3").start());
    quick.wait();
    let wait = host.spawn(["wait", slow.id(), quick.id()]);
    // The task may be gone, and the command with it, before that has ended.
    slow.exec("touch /tmp/go");
    wait.finish().assert_says("4\n3");
    let reports = host.bowline(["wait", "--json", slow.id(), quick.id()]).assert_code(0).json();
    let told: Vec<_> =
        reports.as_array().expect("a list").iter().map(|r| (r["id"].clone(), r["exit_code"].clone())).collect();
    assert_eq!(told, [(slow.id().into(), 4.into()), (quick.id().into(), 3.into())]);
}

#[test]
fn rm_removes_those_that_have_ended_and_refuses_those_that_run() {
    let host = Host::new();
    let (ended, running) = (host.task("true").start(), host.task(IDLE).start());
    ended.wait();
    host.bowline(["rm", running.id(), ended.id()]).assert_refused(125, &[running.id(), "not ended"]);
    assert!(!host.state().join(ended.id()).exists());
    host.bowline(["rm", "-f", running.id()]).assert_says("");
    host.assert_nothing_left_without_rm();
}

#[test]
fn by_force_it_is_no_error_that_a_task_is_gone_already() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let ran = host.bowline(["rm", "-f", "nobody", task.id()]);
    ran.assert_code(0);
    assert_eq!(ran.err(), "bowline: there is no task named nobody");
    host.bowline(["rm", "nobody"]).assert_refused(125, &["nobody"]);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_task_that_is_named_twice_is_removed_once() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    host.bowline(["rm", "-f", task.id(), task.id(), host.prefix()]).assert_says("");
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_task_that_ended_without_a_shim_is_removed_with_the_others() {
    let host = Host::new();
    let (dead, lives) = (host.task(IDLE).flag("--init=false").start(), host.task(IDLE).start());
    let init = dead.pid();
    dead.kill_shim(dead.shim_pid());
    lives.kill_shim(lives.shim_pid());
    kill_process(Pid::from_raw(init).expect("a pid"), Signal::KILL).expect("it lives");
    eventually("its end", || (!process_exists(init)).then_some(()));
    // Whoever launches a task is killed just after its folder was made, with its lock.
    let begun = host.new_id();
    std::fs::DirBuilder::new().mode(0o700).create(host.state().join(&begun)).expect("the state folder is writable");
    std::fs::write(host.state().join(&begun).join("lock"), "").expect("the state folder is writable");
    assert_eq!((dead.status(), lives.status()), ("dead".into(), "dead".into()));
    let mut removed = [dead.id(), &begun];
    removed.sort_unstable();
    host.bowline(["rm", "--exited"]).assert_says(&removed.join("\n"));
    lives.exec("echo alive").assert_says("alive");
    lives.end();
}

#[test]
fn all_that_have_ended_can_be_removed_at_once() {
    let host = Host::new();
    let (one, two, running) = (host.task("true").start(), host.task("exit 3").start(), host.task(IDLE).start());
    one.wait();
    two.wait();
    host.bowline(["rm", "--exited"]).assert_says(&format!("{}\n{}", one.id(), two.id()));
    host.bowline(["rm", "--exited"]).assert_says("");
    assert_eq!(running.status(), "running");
    for args in [&["rm"][..], &["rm", "--exited", running.id()], &["rm", "--exited", "-f"]] {
        host.bowline(args).assert_refused(2, &[]);
    }
    running.end();
}

#[test]
fn without_any_task_it_is_bad_usage() {
    let host = Host::new();
    for verb in ["stop", "kill", "pause", "resume", "wait", "inspect", "rm"] {
        host.bowline([verb]).assert_refused(2, &["<ID>"]);
    }
}
