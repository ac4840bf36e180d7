//! Waiting for a task: any number, before and after its end.

use bowline_tests::Host;
use bowline_tests::harness::{eventually, process_exists};

const POLITE: &str = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done";

#[test]
fn wait_prints_the_exit_code_and_succeeds() {
    let host = Host::new();
    let task = host.task("exit 42").start();
    task.bowline("wait", []).assert_says("42");
}

#[test]
fn eight_waiters_all_get_the_same_report() {
    let host = Host::new();
    let task = host.task(POLITE).start();
    task.wait_for_line("ready");
    let waiters: Vec<_> = (0..8).map(|_| host.spawn(["wait", "--json", task.id()])).collect();
    // The shim's own socket, and one for each that it has accepted.
    eventually("all wait", || (task.socket_ends() >= 9).then_some(()));
    let report = task.stop(["--grace=50s"]);
    for waiter in waiters {
        let ran = waiter.finish();
        assert_eq!(ran.assert_code(0).json(), report.0, "{ran}");
    }
}

#[test]
fn wait_answers_after_the_shim_has_gone() {
    let host = Host::new();
    let task = host.task("exit 6").start();
    let shim = task.shim_pid_on_disk();
    let at_the_end = task.wait();
    eventually("the shim leaves", || (!process_exists(shim)).then_some(()));
    assert_eq!(task.wait(), at_the_end);
    task.bowline("wait", []).assert_says("6");
}

#[test]
fn a_waiter_that_goes_away_disturbs_nobody() {
    let host = Host::new();
    let task = host.task(POLITE).start();
    task.wait_for_line("ready");
    let waiter = host.spawn(["wait", task.id()]);
    eventually("it waits", || (task.socket_ends() >= 2).then_some(()));
    drop(waiter);
    eventually("it is forgotten", || (task.socket_ends() == 1).then_some(()));
    task.stop(["--grace=50s"]).assert_code(5);
}

#[test]
fn each_line_is_of_the_task_in_its_place() {
    let host = Host::new();
    let (runs, ended) = (host.task("exec sleep 1000").start(), host.task("exit 3").start());
    ended.wait();
    let ran = host.bowline(["wait", "--timeout=100ms", runs.id(), ended.id()]);
    assert_eq!(ran.assert_code(124).out(), "-\n3", "{ran}");
    assert!(ran.err().contains(&format!("task {} has not ended", runs.id())), "{ran}");
    let ran = host.bowline(["wait", "nobody", ended.id()]);
    assert_eq!(ran.assert_code(125).out(), "-\n3", "{ran}");
    let alone = host.bowline(["wait", "--timeout=100ms", runs.id()]);
    assert_eq!(alone.assert_code(124).out(), "", "{alone}");
    runs.end();
}

#[test]
fn wait_for_a_task_that_does_not_exist_is_an_error() {
    let host = Host::new();
    host.bowline(["wait", "nobody"]).assert_refused(125, &["nobody"]);
}
