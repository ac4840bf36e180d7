//! `start`, which ends at once, for a manager.

use std::fs;

use bowline_tests::Host;

use super::Manager;

#[test]
fn init_becomes_the_main_process() {
    let host = Host::new();
    let manager = Manager::new();
    let build = host.task("echo ${NOTIFY_SOCKET-none}; exec sleep 1000");
    host.execute(manager.asks(build.command("start"))).assert_says(build.id());
    let task = host.adopt(build.id());
    let (said, sender) = manager.hears();
    assert_eq!(said, format!("READY=1\nMAINPID={}", task.pid()));
    assert_ne!(sender, task.pid());
    task.wait_for_line("none");
    task.end();
    manager.hears_nothing_more();
    host.assert_nothing_left();
}

#[test]
fn one_that_fails_says_nothing() {
    let host = Host::new();
    let manager = Manager::new();
    let build = host.task_of(["/no/such"]);
    host.execute(manager.asks(build.command("start"))).assert_code(127);
    manager.hears_nothing_more();
    host.assert_nothing_left();
}

#[test]
fn a_pid_file_has_the_pid_of_the_shim() {
    let host = Host::new();
    let file = host.work().join("pid");
    let task = host.task("exec sleep 1000").flag(format!("--pid-file={}", file.display())).start();
    assert_eq!(fs::read_to_string(&file).expect("written"), task.shim_pid().to_string());
    task.end();
    host.assert_nothing_left();
}

#[test]
fn without_its_pid_file_nothing_runs() {
    let host = Host::new();
    let refused = host.task("exec sleep 1000").flag("--pid-file=/no/such/pid").try_start();
    refused.assert_refused(2, &["--pid-file: cannot write /no/such/pid"]);
    host.assert_nothing_left();
}
