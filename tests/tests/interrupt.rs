//! What becomes of a task when `bowline run` is interrupted or killed, or its
//! shim asked to leave.

use bowline_tests::Host;
use rustix::process::{Pid, Signal, kill_process};

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
