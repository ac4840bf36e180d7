//! A start on a slow machine. A command that connects late: whether it still lives, the shim learns from the kernel, never
//! from a clock. A shim that leaves its manager's cgroup slowly. strace holds them up.

use std::fs;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{binary, eventually, hierarchies, process_exists};
use rustix::process::{Pid, Signal, kill_process};

/// `bowline ARGS`, each of whose connections takes so many seconds to begin.
fn held_up(host: &Host, seconds: u32, args: &[&str]) -> Command {
    let mut strace = host.command("strace");
    strace.args(["-qq", "-o", "/dev/null", "-e", "trace=connect"]);
    strace.args(["-e", &format!("inject=connect:delay_enter={seconds}000000")]);
    strace.arg(binary("bowline")).args(args);
    strace
}

#[test]
fn a_shim_waits_for_as_long_as_its_command_lives() {
    let host = Host::new();
    let (sandbox, task) = (host.new_id(), host.new_id());
    let both =
        [&["sandbox", "create", "--name", &sandbox][..], &["start", "--name", &task, "--", "/bin/sleep", "1000"]];
    // Longer than shims used to wait.
    let both = both.map(|args| host.spawn_command(held_up(&host, 12, args)));
    for ran in both.map(|process| process.finish()) {
        ran.assert_code(0);
    }
    host.adopt_sandbox(&sandbox).rm([]);
    host.adopt(task).end();
}

#[test]
fn it_leaves_with_a_command_that_has_asked_for_nothing() {
    let host = Host::new();
    let id = host.new_id();
    let strace = host.spawn_command(held_up(&host, 1000, &["start", "--name", &id, "--", "/bin/true"]));
    let socket = host.state().join(&id).join("shim.sock");
    eventually("the shim is started", || socket.exists().then_some(()));
    let children = |pid: i32| {
        let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()
    };
    let bowline = children(strace.pid())[0];
    let shim = eventually("it is its child", || children(bowline).first().copied());
    kill_process(Pid::from_raw(bowline).expect("a pid"), Signal::KILL).expect("it lives");
    // It would go on waiting.
    drop(strace);
    eventually("the shim leaves", || (!process_exists(shim)).then_some(()));
    host.bowline(["rm", &id]).assert_code(0);
}

#[test]
fn a_shim_answers_while_it_leaves_its_managers_cgroup() {
    let host = Host::new();
    let id = host.new_id();
    let managers = host.elsewhere("managers");
    let (_, unified) = hierarchies().into_iter().find(|(names, _)| names.is_empty()).expect("cgroup2 is mounted");
    let mut strace = host.command("strace");
    strace.args(["-f", "-qq", "-o", "/dev/null", "-P"]).arg(unified.join("cgroup.procs"));
    strace.args(["-e", "trace=write", "-e", "inject=write:delay_enter=1000s:when=1"]);
    strace.arg(binary("bowline")).args(["start", "--name", &id, "--", "/bin/sleep", "1000"]);
    let strace = host.spawn_command(managers.inside(&strace));
    eventually("there is a task to ask for", || host.state().join(&id).join("shim.sock").exists().then_some(()));
    let ran = host.bowline(["ps"]);
    ran.assert_code(0);
    assert!(ran.out().lines().any(|line| line.starts_with(&format!("{id}  created "))), "{ran}");
    // Its shim goes on.
    drop(strace);
    let task = host.adopt(id);
    task.wait_until_running();
    task.end();
    managers.remove();
}
