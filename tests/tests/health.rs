//! Health checks: what they find, what becomes of it, and what they must not do.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::{Build, Task, Trace, eventually, makes_futures_again, much, process_exists, status_lines};
use serde_json::Value;

/// A shell that ends with 7 when it is asked to.
const OBEDIENT: &str = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done";

/// A command that adds a line to `/tmp/checks` each time it runs.
const COUNTED: &str = "echo >>/tmp/checks;";

/// Checks follow one another until one has succeeded, and then there are no
/// more: the log keeps what it has.
const UNTIL_HEALTHY: &str = "start_interval = '10ms'\nstart_period = '1h'\ninterval = '1h'";

/// A task that is checked by this script, again as soon as possible unless
/// `more` says otherwise.
fn checked<'h>(host: &'h Host, init: &str, script: &str, more: &str) -> Build<'h> {
    let interval = if more.contains("interval") { "" } else { "interval = '10ms'" };
    host.described(&format!(
        "command = '/bin/sh'\nargs = ['-c', \"\"\"{init}\"\"\"]\n\
         [healthcheck]\nexec = ['/bin/sh', '-c', \"\"\"{script}\"\"\"]\n{interval}\n{more}"
    ))
}

fn health(task: &Task<'_>) -> Value {
    task.inspect()["health"].clone()
}

#[track_caller]
fn wait_until(task: &Task<'_>, status: &str) -> Value {
    eventually(format_args!("{} is {status}", task.id()), || {
        let health = health(task);
        (health["status"] == status).then_some(health)
    })
}

/// Waits until there were this many checks.
#[track_caller]
fn wait_for_checks(task: &Task<'_>, count: usize) {
    eventually(format_args!("{count} checks"), || (checks(task) >= count).then_some(()));
}

#[track_caller]
fn checks(task: &Task<'_>) -> usize {
    task.exec("cat /tmp/checks 2>/dev/null || true").assert_code(0).stdout.len()
}

/// What became of its health, by its events.
#[track_caller]
fn changes(host: &Host, task: &Task<'_>) -> Vec<(String, u64)> {
    let ran = host.bowline(["events", "--json", task.id()]);
    let out = ran.assert_code(0).out();
    let events = out.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let changes = events.filter(|event| event["event"] == "health").map(|event| {
        let status = event["status"].as_str().expect("a status").to_owned();
        (status, event["failing_streak"].as_u64().expect("a number"))
    });
    changes.collect()
}

/// What the task's processes were started as, a space after each word.
fn commands(task: &Task<'_>) -> Vec<String> {
    let line = |pid| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).replace('\0', " ")
    };
    task.processes().into_iter().map(line).collect()
}

#[test]
fn a_check_that_succeeds_makes_healthy() {
    let host = Host::new();
    let task = checked(&host, OBEDIENT, "echo fine; echo really >&2", "").start();
    let health = wait_until(&task, "healthy");
    assert_eq!(health["failing_streak"], 0);
    let check = &health["log"][0];
    assert_eq!((&check["exit_code"], &check["timed_out"]), (&0.into(), &false.into()), "{health}");
    assert_eq!(check["output"], "fine\nreally\n");
    assert_eq!(changes(&host, &task), [("healthy".to_owned(), 0)]);
    task.end();
}

#[test]
fn before_the_first_check_nothing_is_known() {
    let host = Host::new();
    let task = checked(&host, OBEDIENT, "true", "interval = '1h'").start();
    let health = health(&task);
    assert_eq!((&health["status"], &health["log"]), (&"starting".into(), &Value::Array(Vec::new())));
    task.end();
}

#[test]
fn a_task_without_checks_has_no_health() {
    let host = Host::new();
    let task = host.task(OBEDIENT).start();
    assert!(health(&task).is_null());
    let report = task.end();
    assert!(report["health"].is_null(), "{report:?}");
}

#[test]
fn as_many_failures_as_retries_make_unhealthy() {
    let host = Host::new();
    let task = checked(&host, OBEDIENT, &format!("{COUNTED} exit 9"), "retries = 3").start();
    let health = wait_until(&task, "unhealthy");
    assert_eq!(health["log"][0]["exit_code"], 9);
    assert_eq!(changes(&host, &task), [("unhealthy".to_owned(), 3)]);
    // It runs on, and is checked on; the last five are kept.
    wait_for_checks(&task, 7);
    assert_eq!(task.inspect()["health"]["log"].as_array().expect("a list").len(), 5);
    assert_eq!(task.status(), "running");
    task.end();
}

#[test]
fn one_success_makes_healthy_again() {
    let host = Host::new();
    let task = checked(&host, OBEDIENT, "test -e /tmp/ok", "retries = 2").start();
    wait_until(&task, "unhealthy");
    task.exec("touch /tmp/ok").assert_code(0);
    wait_until(&task, "healthy");
    task.exec("rm /tmp/ok").assert_code(0);
    wait_until(&task, "unhealthy");
    let seen: Vec<String> = changes(&host, &task).into_iter().map(|(status, _)| status).collect();
    assert_eq!(seen, ["unhealthy", "healthy", "unhealthy"]);
    task.end();
}

#[test]
fn failures_in_the_start_period_do_not_count() {
    let host = Host::new();
    let more = "retries = 1\ninterval = '10ms'\nstart_period = '1h'\nstart_interval = '10ms'";
    let task = checked(&host, OBEDIENT, &format!("{COUNTED} test -e /tmp/ok"), more).start();
    wait_for_checks(&task, 4);
    let before = health(&task);
    assert_eq!((&before["status"], &before["failing_streak"]), (&"starting".into(), &0.into()));
    task.exec("touch /tmp/ok").assert_code(0);
    wait_until(&task, "healthy");
    // It has started now, whatever the time.
    task.exec("rm /tmp/ok").assert_code(0);
    wait_until(&task, "unhealthy");
    task.end();
}

#[test]
fn failures_after_the_start_period_count() {
    let host = Host::new();
    let more = "retries = 1\nstart_period = '300ms'\ninterval = '10ms'\nstart_interval = '10ms'";
    let task = checked(&host, OBEDIENT, "exit 1", more).start();
    wait_until(&task, "unhealthy");
    task.end();
}

#[test]
fn an_unhealthy_task_is_stopped_gracefully_if_so_described() {
    let host = Host::new();
    let more = "retries = 2\non_unhealthy = 'stop'";
    let task = checked(&host, OBEDIENT, "echo sick; exit 1", more).start();
    let report = task.wait();
    report.assert_code(7);
    assert_eq!(report["stopped_by"], "health");
    assert_eq!((&report["health"]["status"], &report["health"]["failing_streak"]), (&"unhealthy".into(), &2.into()));
    let inspected = task.inspect();
    assert_eq!(inspected["health"]["log"][1]["output"], "sick\n", "{inspected}");
    let told = host.bowline(["events", task.id()]);
    assert!(told.out().ends_with("exited  exit code 7, stopped by health"), "{told}");
}

#[test]
fn an_unhealthy_task_that_hears_no_signal_is_killed() {
    let host = Host::new();
    let more = "retries = 1\non_unhealthy = 'stop'\n[stop]\ngrace = '100ms'";
    let task = checked(&host, "trap '' TERM; while :; do sleep 0.1; done", "exit 1", more).start();
    let report = task.wait();
    report.assert_killed_by("KILL");
    assert_eq!(report["stopped_by"], "health");
}

#[test]
fn who_stopped_a_task_is_in_its_report() {
    let host = Host::new();
    let stopped = host.task(OBEDIENT).start();
    stopped.wait_for_line("ready");
    assert_eq!(stopped.stop(["--grace=50s"])["stopped_by"], "request");
    let exited = host.task("exit 0").start();
    assert!(exited.wait()["stopped_by"].is_null());
    let killed = host.task(OBEDIENT).start();
    killed.bowline("kill", []).assert_code(0);
    assert!(killed.wait()["stopped_by"].is_null(), "a signal is not a stop");
}

#[test]
fn a_check_that_hangs_is_killed_whole_and_the_next_one_runs() {
    let host = Host::new();
    let script = "test -e /tmp/hung && exit 0; touch /tmp/hung; echo so far; setsid sleep 4242 & exec sleep 4242";
    let task = checked(&host, OBEDIENT, script, &format!("timeout = '3s'\n{UNTIL_HEALTHY}")).start();
    let health = wait_until(&task, "healthy");
    let hung = &health["log"][0];
    assert_eq!((&hung["timed_out"], &hung["exit_code"]), (&true.into(), &Value::Null), "{health}");
    assert_eq!(hung["output"], "so far\n");
    let left = commands(&task);
    assert!(!left.iter().any(|command| command == "sleep 4242 "), "{left:?}");
    task.end();
}

#[test]
fn a_check_that_prints_without_end_takes_no_memory() {
    let host = Host::new();
    let print = format!("yes | head -c {}; echo last", much());
    let script = format!("test -e /tmp/printed && exit 0; {print}; touch /tmp/printed; exit 3");
    let task = checked(&host, OBEDIENT, &script, &format!("timeout = '1m'\n{UNTIL_HEALTHY}")).start();
    let shim = task.shim_pid();
    let before = anonymous_kib(shim);
    let health = wait_until(&task, "healthy");
    let output = health["log"][0]["output"].as_str().expect("text");
    assert!(output.len() == 1024 && output.ends_with("y\nlast\n"), "{health}");
    let grown = anonymous_kib(shim).saturating_sub(before);
    assert!(grown < 512, "the shim has grown by {grown} KiB");
    task.end();
}

fn anonymous_kib(pid: i32) -> u64 {
    let line = status_lines(pid, &["RssAnon:"]);
    let number = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok());
    number.unwrap_or_else(|| panic!("no number in {line:?}"))
}

#[test]
fn a_check_that_leaves_a_daemon_has_ended_all_the_same() {
    let host = Host::new();
    // It holds the check's output open.
    let script = format!("{COUNTED} test -e /tmp/daemon || {{ touch /tmp/daemon; sleep 4242 & }}");
    let task = checked(&host, OBEDIENT, &script, "").start();
    wait_for_checks(&task, 3);
    wait_until(&task, "healthy");
    assert!(commands(&task).iter().any(|command| command == "sleep 4242 "), "what a check leaves runs on");
    task.end();
}

#[test]
fn checks_never_overlap() {
    let host = Host::new();
    let script = format!("mkdir /tmp/lock || touch /tmp/overlap; sleep 0.2; rmdir /tmp/lock; {COUNTED}");
    let task = checked(&host, OBEDIENT, &script, "interval = '1ns'").start();
    wait_for_checks(&task, 4);
    task.exec("test ! -e /tmp/overlap").assert_code(0);
    assert_eq!(health(&task)["status"], "healthy");
    task.end();
}

#[test]
fn a_paused_task_is_not_checked() {
    let host = Host::new();
    let task = checked(&host, OBEDIENT, COUNTED, "timeout = '2s'\nretries = 1").start();
    wait_for_checks(&task, 2);
    task.bowline("pause", []).assert_code(0);
    let log = |task: &Task<'_>| health(task)["log"].clone();
    let before = log(&task);
    // Long enough for many checks, and for one that was under way to time out.
    host.task("sleep 3").run().assert_code(0);
    assert_eq!(log(&task), before);
    task.bowline("resume", []).assert_code(0);
    eventually("it is checked again", || (log(&task) != before).then_some(()));
    assert_eq!(health(&task)["status"], "healthy");
    task.end();
}

#[test]
fn a_task_that_somebody_else_has_frozen_is_not_checked() {
    let host = Host::new();
    let task = checked(&host, OBEDIENT, COUNTED, "timeout = '500ms'\nretries = 1").start();
    wait_for_checks(&task, 2);
    task.freeze();
    let beside = checked(&host, OBEDIENT, COUNTED, "interval = '100ms'").start();
    // Long enough for a check of the other to time out, or to be refused.
    wait_for_checks(&beside, 20);
    assert_eq!(health(&task)["status"], "healthy");
    task.thaw();
    let before = checks(&task);
    wait_for_checks(&task, before + 2);
    assert_eq!(changes(&host, &task), [("healthy".to_owned(), 0)]);
    task.end();
    beside.end();
}

#[test]
fn a_paused_task_that_somebody_else_thaws_is_checked_again() {
    let host = Host::new();
    let task = checked(&host, OBEDIENT, COUNTED, "").start();
    wait_for_checks(&task, 2);
    task.bowline("pause", []).assert_code(0);
    task.thaw();
    let before = checks(&task);
    wait_for_checks(&task, before + 2);
    assert_eq!((task.status().as_str(), &health(&task)["status"]), ("running", &"healthy".into()));
    task.end();
}

#[test]
fn a_check_that_the_tasks_end_cuts_short_is_none() {
    let host = Host::new();
    let init = "while [ ! -e /tmp/checking ]; do sleep 0.05; done; exit 3";
    let more = "retries = 1\non_unhealthy = 'stop'";
    let task = checked(&host, init, "touch /tmp/checking; exec sleep 1000", more).start();
    let report = task.wait();
    report.assert_code(3);
    assert_eq!((&report["stopped_by"], &report["health"]["status"]), (&Value::Null, &"starting".into()), "{report:?}");
}

#[test]
fn a_check_that_a_slow_end_cuts_short_is_not_counted() {
    let host = Host::new();
    let task = checked(&host, OBEDIENT, "exec sleep 4242", "timeout = '1h'\nretries = 1").flag("--init=false").start();
    task.wait_for_line("ready");
    let exec = task.spawn_exec([], "echo begun; exec sleep 1000");
    exec.wait_for_out("begun");
    let (check, held) = (pid_of(&task, "sleep 4242 "), pid_of(&task, "sleep 1000 "));
    // The kernel ends all of a pid namespace with its init, which ends when all of them are reaped: the exec is not as
    // long as a tracer may still ask how it has ended.
    let tracer = Trace::of(&host, held, []);
    tracer.hold();
    task.bowline("kill", ["--signal=TERM"]).assert_code(0);
    eventually("the check is reaped", || (!process_exists(check)).then_some(()));
    // Time in which it could be taken for a check that has failed.
    host.task("sleep 0.5").run().assert_code(0);
    assert!(process_exists(held), "nobody reaps it");
    assert_eq!(task.status(), "running");
    assert_eq!(changes(&host, &task), []);
    tracer.end();
    exec.finish().assert_code(137);
    let report = task.wait();
    report.assert_code(7);
    let health = &report["health"];
    assert_eq!((&health["status"], &health["log"]), (&"starting".into(), &Value::Array(Vec::new())), "{report:?}");
}

#[test]
fn a_check_that_somebody_kills_has_failed() {
    let host = Host::new();
    let task = checked(&host, OBEDIENT, "kill -9 $$", "retries = 2").start();
    let health = wait_until(&task, "unhealthy");
    assert_eq!(health["log"][0]["exit_code"], 137);
    task.end();
}

/// The host's pid of a task's process that was started as this.
#[track_caller]
fn pid_of(task: &Task<'_>, command: &str) -> i32 {
    eventually(format_args!("{command}runs"), || {
        task.processes().into_iter().find(|pid| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).replace('\0', " ") == command
        })
    })
}

#[test]
fn a_task_that_stops_is_not_checked() {
    let host = Host::new();
    let init = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    let task = checked(&host, init, COUNTED, "").start();
    task.wait_for_line("ready");
    wait_for_checks(&task, 1);
    let stop = host.spawn(["stop", task.id(), "--grace=1h"]);
    eventually("it is stopping", || (task.status() == "stopping").then_some(()));
    // One may have been under way.
    let before = health(&task)["log"].clone();
    host.task("sleep 0.5").run().assert_code(0);
    assert_eq!(health(&task)["log"], before);
    task.end();
    stop.finish().assert_code(0);
}

#[test]
fn a_check_that_cannot_be_run_says_why() {
    let host = Host::new();
    let toml =
        "command = 'sleep'\nargs = ['1000']\n[healthcheck]\nexec = ['no-such-command']\ninterval = '10ms'\nretries = 1";
    let task = host.described(toml).start();
    let health = wait_until(&task, "unhealthy");
    let error = health["log"][0]["error"].as_str().unwrap_or_default();
    assert!(error.contains("no-such-command"), "{health}");
    task.end();
}

#[test]
fn a_command_that_is_no_list_is_refused() {
    let host = Host::new();
    let idle = "command = 'true'\n";
    host.described(&format!("{idle}healthcheck.exec = 'true'"))
        .assert_refused(125, &["healthcheck.exec", "expected a list"]);
    host.described(&format!("{idle}healthcheck = {{ exec = ['true'], interval = 0 }}"))
        .assert_refused(125, &["healthcheck.interval"]);
}

#[test]
fn without_checks_an_idle_shim_does_not_wake_up() {
    if makes_futures_again() {
        return;
    }
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let shim = task.shim_pid();
    let switches = || status_lines(shim, &["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"]);
    let after = |script: &str| {
        host.task(script).run().assert_code(0);
        switches()
    };
    // Where it is charged, and what it watches, is settled some time after the launch.
    eventually("it has settled", || (switches() == after("sleep 0.5")).then_some(()));
    assert_eq!(switches(), after("sleep 2"));
    task.end();
}

#[test]
fn ps_tells_how_a_task_is_while_it_runs() {
    let host = Host::new();
    let task = checked(&host, OBEDIENT, "exit 1", "retries = 1").start();
    wait_until(&task, "unhealthy");
    let ran = host.bowline(["ps"]);
    assert!(ran.assert_code(0).out().contains(" running (unhealthy) "), "{ran}");
    assert_eq!(host.bowline(["ps", "--json"]).json()[0]["health"], "unhealthy");
    task.end();
    assert!(host.bowline(["ps", "--json"]).json()[0]["health"].is_null());
}
