//! A task's time: its shim stops it when that is over, whoever waits for it.

use bowline_tests::Host;
use bowline_tests::harness::eventually;
use rustix::process::Signal;
use serde_json::Value;

/// Long enough for what comes before, also where the machine is busy.
const LATE: &str = "--timeout=8s";

const IDLE: &str = "exec sleep 1000";

/// Ends with 3 when it is asked to.
const POLITE: &str = "trap 'echo bye; exit 3' TERM; echo ready; sleep 1000 & wait";

/// Does not end when it is asked to.
const DEAF: &str = "trap '' TERM; echo ready; while :; do sleep 0.1; done";

#[test]
fn a_command_whose_time_is_over_is_stopped_with_grace() {
    let host = Host::new();
    let ran = host.task(POLITE).flag("--timeout=700ms").flag("--json").flag("--rm").run();
    ran.assert_code(124);
    let report = ran.json();
    assert_eq!((&report["exit_code"], &report["stopped_by"]), (&3.into(), &"timeout".into()), "{ran}");
    assert_eq!(report["stdout_tail"], "ready\nbye\n", "{ran}");
    assert!(
        ran.err().starts_with("bowline: task ") && ran.err().ends_with(" is stopped: its timeout has passed"),
        "{ran}"
    );
}

#[test]
fn one_that_does_not_hear_is_killed() {
    let host = Host::new();
    let ran = host.task(DEAF).toml("timeout = '300ms'\nstop.grace = '200ms'").flag("--json").flag("--rm").run();
    ran.assert_code(124);
    assert_eq!((&ran.json()["signal"], &ran.json()["stopped_by"]), (&"SIGKILL".into(), &"timeout".into()), "{ran}");
}

#[test]
fn one_that_ends_in_time_has_its_own_code_and_output() {
    let host = Host::new();
    let ran = host.task("echo out; exit 3").flag("--timeout=1h").run();
    ran.assert_code(3);
    assert_eq!((ran.out().as_str(), ran.err().as_str()), ("out", ""), "{ran}");
}

#[test]
fn the_shim_keeps_the_time_of_a_task_in_the_background() {
    let host = Host::new();
    let task = host.task(POLITE).toml("timeout = '700ms'").start();
    let report = task.wait();
    assert_eq!((&report["exit_code"], &report["stopped_by"]), (&3.into(), &"timeout".into()), "{report:?}");
    task.bowline("wait", []).assert_says("3");
    let found = task.bowline("explain", ["--json"]).assert_code(0).json();
    let kinds: Vec<&Value> = found["findings"].as_array().expect("a list").iter().map(|one| &one["kind"]).collect();
    assert_eq!(kinds[0], "stopped_by_timeout", "{found}");
    let events = host.bowline(["events", "--json", task.id()]).assert_code(0).out();
    let exited = events.lines().find(|line| line.contains("\"exited\"")).expect("an event");
    assert!(exited.contains("\"stopped_by\":\"timeout\""), "{exited}");
}

#[test]
fn a_flag_overrides_the_description() {
    let host = Host::new();
    let task = host.task(IDLE).toml("timeout = '700ms'").flag("--timeout=1h").start();
    assert_eq!(task.inspect()["task"]["timeout"], "1h");
    task.end();
    let report = host.task(IDLE).toml("timeout = '1h'").flag("--timeout=300ms").start().wait();
    assert_eq!(report["stopped_by"], "timeout", "{report:?}");
}

#[test]
fn it_ends_in_time_after_whoever_ran_it_was_killed() {
    let host = Host::new();
    let (task, run) = host.task(POLITE).flag(LATE).spawn();
    run.wait_for_out("ready");
    let task = host.adopt(task.id());
    run.signal(Signal::KILL);
    assert_eq!(run.finish().code, None);
    assert_eq!(task.wait()["stopped_by"], "timeout");
}

#[test]
fn a_member_of_a_sandbox_has_a_time_of_its_own() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let (other, task) = (sandbox.task(IDLE).start(), sandbox.task(POLITE).toml("timeout = '500ms'").start());
    assert_eq!(task.wait()["stopped_by"], "timeout");
    assert_eq!(other.status(), "running");
    other.end();
}

#[test]
fn one_that_is_paused_is_stopped_too() {
    let host = Host::new();
    let task = host.task(POLITE).flag(LATE).start();
    task.wait_for_line("ready");
    task.bowline("pause", []).assert_code(0);
    let report = task.wait();
    assert_eq!((&report["exit_code"], &report["stopped_by"]), (&3.into(), &"timeout".into()), "{report:?}");
}

#[test]
fn one_that_was_stopped_before_was_not_stopped_by_its_time() {
    let host = Host::new();
    let task = host.task(DEAF).toml("stop.grace = '300ms'").flag(LATE).start();
    task.wait_for_line("ready");
    let report = task.stop(["--grace=50s"]);
    // What comes second may shorten the grace, and is not why.
    report.assert_killed_by("KILL");
    assert_eq!(report["stopped_by"], "request");
}

#[test]
fn the_time_is_among_the_facts_until_it_is_over() {
    let host = Host::new();
    let (timed, other) = (host.task(IDLE).flag("--timeout=1h").start(), host.task(IDLE).start());
    let fact = |task: &bowline_tests::harness::Task<'_>| {
        let facts = task.bowline("inspect", ["--facts"]).assert_code(0).json();
        facts["tasks"][task.id()]["times_out_at"].clone()
    };
    assert!(fact(&timed).is_u64() && fact(&other).is_null());
    timed.end();
    other.end();
}

#[test]
fn run_announces_the_grace_and_a_further_interrupt_kills() {
    let host = Host::new();
    for first in ["interrupt", "timeout"] {
        let mut build = host.task(DEAF).toml("stop.grace = '100s'").flag("--rm");
        if first == "timeout" {
            build = build.flag("--timeout=500ms");
        }
        let (_, run) = build.spawn();
        run.wait_for_out("ready");
        if first == "interrupt" {
            run.signal(Signal::INT);
        }
        run.wait_for_err("has not ended on SIGTERM: it is killed in 99 s\nhint: Ctrl-C kills it now");
        run.signal(Signal::INT);
        run.finish().assert_code(if first == "timeout" { 124 } else { 137 });
    }
}

#[test]
fn no_time_at_all_is_refused() {
    let host = Host::new();
    for time in ["0", "0s", "", "-1s", "x", "5y"] {
        host.task(IDLE).flag(format!("--timeout={time}")).assert_refused(2, &["--timeout"]);
    }
    host.task(IDLE).toml("timeout = 0").assert_refused(125, &["timeout: is 0"]);
    host.task(IDLE).toml("timeout = 'x'").assert_refused(125, &["timeout", "\"x\" is not a duration"]);
}

#[test]
fn a_silent_shim_is_bypassed_when_the_time_is_over() {
    let host = Host::new();
    let (task, run) = host.task(POLITE).flag(LATE).spawn();
    run.wait_for_out("ready");
    let shim = rustix::process::Pid::from_raw(task.shim_pid()).expect("a pid");
    rustix::process::kill_process(shim, Signal::STOP).expect("it lives");
    run.finish().assert_code(125);
    rustix::process::kill_process(shim, Signal::CONT).expect("it lives");
    let task = host.adopt(task.id());
    eventually("its report", || (task.status() == "exited").then_some(()));
}
