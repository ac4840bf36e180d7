//! What becomes of a task when `bowline run` is interrupted or killed, or its
//! shim asked to leave.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::{Ran, binary};
use rustix::process::{Pid, Signal, kill_process};

use crate::faults::numbered;

const GRACEFUL: &str = "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.1; done";

#[test]
fn interrupting_run_stops_the_task_gracefully() {
    for signal in [Signal::INT, Signal::TERM] {
        let host = Host::new();
        let (_, run) = host.task(GRACEFUL).spawn();
        run.wait_for_out("ready");
        run.signal(signal);
        let ran = run.finish();
        ran.assert_code(3);
        assert!(ran.out().ends_with("bye"), "{ran}");
        host.assert_nothing_left();
    }
}

/// Ends with 3 when it is asked to, after a moment.
const SLOW: &str = "trap 'sleep 0.2; echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done";

/// Does not end when it is asked to.
const DEAF: &str = "trap '' TERM; echo ready; while :; do sleep 0.1; done";

#[test]
fn the_command_timeout_leaves_the_task_its_grace() {
    let host = Host::new();
    for options in [["-s", "TERM"], ["-s", "INT"], ["--foreground", "--preserve-status"]] {
        let build = host.task(SLOW).flag("--rm");
        let run = host.spawn_command(build.under(["timeout", options[0], options[1], "1.5"], "run"));
        run.wait_for_out("ready");
        let ran = run.finish();
        ran.assert_code(if options[0] == "-s" { 124 } else { 3 });
        assert!(ran.out().ends_with("bye"), "{ran}");
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_signal_other_than_an_interrupt_never_kills() {
    let host = Host::new();
    let (task, run) = host.task(DEAF).toml("stop.grace = '100s'").spawn();
    run.wait_for_out("ready");
    run.signal(Signal::TERM);
    run.wait_for_err("Ctrl-C kills it now");
    for signal in [Signal::TERM, Signal::HUP, Signal::QUIT] {
        run.signal(signal);
    }
    let task = host.adopt(task.id());
    task.exec("sleep 0.1; echo alive").assert_says("alive");
    assert_eq!(task.status(), "stopping");
    run.signal(Signal::INT);
    run.finish().assert_code(137);
}

#[test]
fn control_c_that_is_typed_twice_kills_at_once() {
    let host = Host::new();
    let (_, terminal) = host.task(DEAF).toml("stop.grace = '100s'").flag("--rm").run_in_terminal();
    terminal.wait_for("ready");
    terminal.type_keys("\x03");
    terminal.wait_for("^C");
    terminal.type_keys("\x03");
    // Long before its grace is over.
    terminal.finish().assert_code(137);
    host.assert_nothing_left_without_rm();
}

#[test]
fn interrupting_run_with_rm_removes_the_task() {
    let host = Host::new();
    let (_, run) = host.task(GRACEFUL).flag("--rm").spawn();
    run.wait_for_out("ready");
    run.signal(Signal::INT);
    run.finish().assert_code(3);
    host.assert_nothing_left_without_rm();
}

#[test]
fn interrupting_run_sends_the_stop_signal_of_the_description() {
    let host = Host::new();
    let toml = "command = 'sh'\nargs = ['-c', 'trap \"exit 4\" USR1; echo ready; while :; do sleep 0.1; done']\nstop.signal = 'USR1'";
    let (_, run) = host.described(toml).spawn();
    run.wait_for_out("ready");
    run.signal(Signal::INT);
    run.finish().assert_code(4);
}

#[test]
fn killing_run_leaves_a_task_that_survives_losing_its_reader() {
    let host = Host::new();
    let ticks = "echo ready; while :; do echo tick; sleep 0.05; done";
    // The first process of a pid namespace is not ended by SIGPIPE.
    for (script, init) in [(format!("trap '' PIPE; {ticks}"), "--init"), (ticks.to_owned(), "--init=false")] {
        let (task, run) = host.task(&script).flag(init).spawn();
        run.wait_for_out("ready");
        let task = host.adopt(task.id());
        run.signal(Signal::KILL);
        assert_eq!(run.finish().code, None);
        assert_eq!(task.status(), "running");
        task.exec("echo alive").assert_says("alive");
        task.end();
    }
}

#[test]
fn a_shim_that_is_asked_to_leave_stops_its_task_gracefully() {
    let host = Host::new();
    let task = host.task(GRACEFUL).start();
    task.wait_for_line("ready");
    kill_process(Pid::from_raw(task.shim_pid()).expect("a pid"), Signal::TERM).expect("it lives");
    task.wait().assert_code(3);
}

/// Runs `bowline` below strace, with its children if `follows`, and with a signal or without. What strace saw goes with it.
#[track_caller]
fn traced(host: &Host, follows: bool, inject: Option<&str>, args: &[&str]) -> (Ran, String) {
    let log = host.work().join(host.new_id());
    let mut strace = host.command("strace");
    strace.args(["-qq", "-e", "trace=rt_sigaction,execve,listen", "-o"]).arg(&log);
    strace.args(follows.then_some("-f")).args(inject.into_iter().flat_map(|inject| ["-e", inject]));
    let ran = host.execute({
        strace.arg(binary("bowline")).args(args);
        strace
    });
    (ran, fs::read_to_string(log).expect("strace writes it"))
}

/// The lines in a trace of the process that a command of this name was executed by.
fn lines_of<'t>(trace: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    let is_execve = |line: &&str| line.contains("execve(") && line.contains(name);
    let split = |line: &'t str| line.split_once(' ').map(|(pid, call)| (pid, call.trim_start()));
    let (of_it, _) = trace.lines().find(is_execve).and_then(split).expect("strace names each process");
    trace.lines().filter_map(split).filter_map(move |(pid, call)| (pid == of_it).then_some(call))
}

/// A signal that comes as soon as its handler is installed, before the next instruction: whoever installs it must have
/// said by then what is to be done.
fn at_its_handler<'t>(calls: impl Iterator<Item = &'t str>, signal: &str) -> String {
    let installs = format!("SIG{signal}, {{sa_handler=0x");
    let calls = numbered(calls.filter(|line| line.starts_with("rt_sigaction(")));
    let call = calls.iter().find(|(_, _, arguments)| arguments.starts_with(&installs));
    let (name, number, _) = call.expect("it handles the signal");
    format!("inject={name}:signal={signal}:when={number}")
}

#[test]
fn a_signal_that_comes_with_its_handler_interrupts_a_launch() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let (_, trace) = traced(&host, false, None, &["run", "--rm", "--", "/bin/true"]);
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129), ("QUIT", 131)] {
        let inject = at_its_handler(trace.lines(), signal);
        let id = host.new_id();
        let launches: [&[&str]; 3] = [
            &["run", "--rm", "--name", &id, "--", "/bin/echo", "went on"],
            &["start", "--name", &id, "--", "/bin/true"],
            &["sandbox", "create", "--name", &id],
        ];
        for launch in launches {
            let (ran, _) = traced(&host, false, Some(&inject), launch);
            ran.assert_code(code);
            assert!(!host.state().join(&id).exists(), "{inject}: {ran}");
        }
        let exec = ["exec", task.id(), "--", "/bin/sh", "-c", "sleep 5; echo went on"];
        let (ran, _) = traced(&host, false, Some(&inject), &exec);
        ran.assert_code(code);
    }
    task.end();
    host.assert_nothing_left();
}

#[test]
fn a_shim_that_is_told_to_leave_as_it_begins_leaves() {
    let host = Host::new();
    let (_, trace) = traced(&host, true, None, &["run", "--rm", "--", "/bin/true"]);
    for signal in ["TERM", "INT"] {
        let inject = at_its_handler(lines_of(&trace, "bowline-shim"), signal);
        let id = host.new_id();
        let run = ["run", "--rm", "--name", &id, "--", "/bin/echo", "went on"];
        let (ran, _) = traced(&host, true, Some(&inject), &run);
        ran.assert_code(125);
        assert!(!host.state().join(&id).exists(), "{inject}: {ran}");
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn metrics_that_are_stopped_as_they_begin_end() {
    let host = Host::new();
    let (_, trace) = traced(&host, false, Some("inject=listen:signal=KILL"), &["metrics"]);
    for signal in ["TERM", "INT"] {
        let (ran, _) = traced(&host, false, Some(&at_its_handler(trace.lines(), signal)), &["metrics"]);
        ran.assert_code(0);
    }
}
