//! `explain`: what it says of tasks that really ended, or are really held back,
//! against their reports and the kernel's counters.

use bowline_tests::Host;
use bowline_tests::harness::{Ran, Task, eventually, only_v2, process_exists};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const IDLE: &str = "exec sleep 1000";

/// Takes memory without end, first once, so that the shell goes on.
const HOG: &str = "tail /dev/zero";

#[track_caller]
fn explained(task: &Task<'_>) -> Value {
    let found = task.bowline("explain", ["--json"]).assert_code(0).json();
    assert_eq!(found["id"], task.id(), "{found}");
    found
}

/// The finding of this kind.
#[track_caller]
fn finding(explained: &Value, kind: &str) -> Value {
    let all = explained["findings"].as_array().expect("a list");
    all.iter().find(|finding| finding["kind"] == kind).unwrap_or_else(|| panic!("no {kind} in {explained:#}")).clone()
}

/// It says all of `parts` in its sentence, and is of this severity.
#[track_caller]
fn assert_says(finding: &Value, severity: &str, parts: &[&str]) {
    let sentence = finding["sentence"].as_str().expect("a sentence");
    assert_eq!(finding["severity"], severity, "{finding:#}");
    for part in parts {
        assert!(sentence.contains(part), "{part:?} in {finding:#}");
    }
}

/// The value of `key` in a file of the task's cgroup.
#[track_caller]
fn counter(task: &Task<'_>, controller: &str, file: &str, key: &str) -> u64 {
    let text = task.cgroup_file(controller, file);
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {key} in {file}: {text}"))
}

/// What it says to a person.
#[track_caller]
fn said(task: &Task<'_>) -> Ran {
    let ran = task.bowline("explain", []);
    ran.assert_code(0);
    assert!(ran.out().starts_with(task.id()), "{ran}");
    ran
}

#[test]
fn an_init_that_ran_out_of_memory() {
    let host = Host::new();
    let task = host.task(&format!("exec {HOG}")).flag("--memory=32M").start();
    let report = task.wait();
    report.assert_killed_by("KILL");
    assert_eq!((report.number("memory_limit_bytes"), report.number("oom_kills")), (32 << 20, 1), "{report:?}");
    let found = explained(&task);
    let oom = finding(&found, "oom_killed");
    assert_says(&oom, "cause", &["its own limit of 32 MiB was met", "1 OOM kill"]);
    assert_eq!(oom["figures"]["oom_kills"], report["oom_kills"]);
    assert_eq!(oom["figures"]["memory_peak_bytes"], report["memory_peak_bytes"]);
    assert_eq!(found["findings"][0], oom, "the cause comes first");
    assert!(said(&task).out().contains("cause    the kernel killed its command"), "{}", said(&task));
}

#[test]
fn a_child_that_ran_out_of_memory_and_an_init_that_lives_on() {
    let host = Host::new();
    let script = format!("{HOG}; {HOG}; echo survived; sleep 1000");
    let task = host.task(&script).flag("--memory=32M").start();
    task.wait_for_line("survived");
    let (controller, file) = if only_v2() { ("memory", "memory.events") } else { ("memory", "memory.oom_control") };
    let kills = counter(&task, controller, file, "oom_kill ");
    assert_eq!(kills, 2);
    let found = finding(&explained(&task), "oom_killed_child");
    assert_says(&found, "warning", &["killed 2 processes of it so far", "32 MiB"]);
    assert_eq!(found["figures"]["oom_kills"], kills);
    let report = task.end();
    assert_eq!(
        (&report["oom_killed"], &report["oom_killed_init"], report.number("oom_kills")),
        (&true.into(), &false.into(), 2)
    );
    let found = explained(&task);
    assert_says(
        &finding(&found, "oom_killed_child"),
        "warning",
        &["2 processes", "not its first", "its own limit of 32 MiB"],
    );
    assert_says(&finding(&found, "stopped_by_request"), "cause", &["stopped by a request", "SIGKILL"]);
}

#[test]
fn a_loop_that_its_limit_holds_back() {
    let host = Host::new();
    let task = host.task("while :; do :; done").flag("--cpus=0.1").start();
    eventually("it is held back", || (counter(&task, "cpu", "cpu.stat", "nr_throttled ") > 3).then_some(()));
    let before = counter(&task, "cpu", "cpu.stat", "nr_throttled ");
    let found = finding(&explained(&task), "cpu_throttled");
    let after = counter(&task, "cpu", "cpu.stat", "nr_throttled ");
    assert_says(&found, "cause", &["throttled just now in", "its limit of 0.1 CPUs"]);
    let figure = |name: &str| found["figures"][name].as_u64().unwrap_or_else(|| panic!("{name} in {found:#}"));
    assert!((before..=after).contains(&figure("throttled_periods")), "{before}, {found:#}, {after}");
    assert!((1..=after - before).contains(&figure("throttled_periods_lately")), "{before}, {found:#}, {after}");
    let report = task.end();
    let (periods, throttled) = (report.number("cpu_periods"), report.number("throttled_periods"));
    assert!(throttled >= after && periods >= throttled, "{report:?}");
    let share = format!("{:.0} % of periods ({throttled} of {periods})", throttled as f64 / periods as f64 * 100.0);
    assert_says(&finding(&explained(&task), "cpu_throttled"), "warning", &[&share, "0.1 CPUs"]);
}

#[test]
fn what_an_earlier_limit_held_back_is_not_a_later_one_s() {
    let host = Host::new();
    let task = host.task("while :; do :; done").flag("--cpus=0.1").start();
    eventually("it is held back", || (counter(&task, "cpu", "cpu.stat", "nr_throttled ") > 3).then_some(()));
    // More than one loop can use.
    task.bowline("update", ["--cpus=2"]).assert_code(0);
    let found = finding(&explained(&task), "cpu_throttled");
    let parts = ["throttled earlier in ", "by an earlier limit of 0.1 CPUs, and not by its limit of 2 CPUs"];
    assert_says(&found, "note", &parts);
    task.end();
    let found = finding(&explained(&task), "cpu_throttled");
    assert_says(&found, "note", &["by an earlier limit of 0.1 CPUs, and never by its limit of 2 CPUs"]);
}

#[test]
fn forks_that_a_limit_refuses() {
    let host = Host::new();
    // Not more than the limit lets there be; who fails stays.
    let bomb = "exec perl -e 'for (1..20) { my $p = fork; if (defined $p && !$p) { sleep 1000; exit } } sleep 1000'";
    let task = host.task(IDLE).flag("--pids=8").start();
    let exec = task.spawn_exec([], bomb);
    eventually("a fork fails", || (counter(&task, "pids", "pids.events", "max ") > 0).then_some(()));
    let found = finding(&explained(&task), "pids_limit");
    assert_says(&found, "cause", &["limit of 8 processes and threads", "failed so far"]);
    let hits = counter(&task, "pids", "pids.events", "max ");
    assert!(
        found["figures"]["pids_limit_hits"].as_u64().is_some_and(|told| told > 0 && told <= hits),
        "{found:#}, {hits}"
    );
    let report = task.end();
    exec.finish();
    let hits = report.number("pids_limit_hits");
    assert_eq!(report.number("pids_limit"), 8);
    let found = finding(&explained(&task), "pids_limit");
    assert_says(&found, "warning", &[&format!("{hits} fork"), "its own is 8"]);
}

#[test]
fn exit_codes_in_a_shells_words() {
    let host = Host::new();
    for (script, parts) in [
        ("echo 'no such table' >&2; exit 1", &["exit code 1", "its last word: no such table"][..]),
        ("cat /etc/hostname >/tmp/x; /tmp/x", &["exit code 126", "could not be executed", "/tmp/x"]),
        ("no-such-command", &["exit code 127", "not found", "no-such-command"]),
    ] {
        let task = host.task(script).start();
        task.wait();
        assert_says(&finding(&explained(&task), "exit_code"), "cause", parts);
    }
    // Of stderr, whatever else was written after it, and told once.
    let task = host.task("trap 'echo bye; exit 1' USR1; echo no disk >&2; while :; do sleep 0.1; done").start();
    eventually("it is in the log", || task.said("stderr").contains("no disk").then_some(()));
    task.bowline("kill", ["--signal=USR1"]).assert_code(0);
    task.wait();
    let found = explained(&task);
    assert_says(&finding(&found, "exit_code"), "cause", &["exit code 1; its last word: no disk"]);
    assert_says(&finding(&found, "last_output"), "note", &["last output: bye"]);
    let task = host.task("true").start();
    task.wait();
    assert_says(&finding(&explained(&task), "success"), "note", &["exit code 0"]);
}

#[test]
fn a_signal_of_its_own_and_one_that_was_asked_for() {
    let host = Host::new();
    let task = host.described("command = 'sh'\nargs = ['-c', 'kill -SEGV $$']\nnamespaces.pid = 'host'").start();
    task.wait();
    assert_says(&finding(&explained(&task), "signal"), "cause", &["SIGSEGV", "memory that it does not have"]);
    let task = host.task(IDLE).start();
    task.bowline("kill", []).assert_code(0);
    task.wait();
    assert_says(&finding(&explained(&task), "killed_by_request"), "cause", &["SIGKILL", "`kill`"]);
}

#[test]
fn a_stop_that_is_heard() {
    let host = Host::new();
    let task = host.task("trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done").start();
    task.wait_for_line("ready");
    task.stop(["--grace=50s"]).assert_code(5);
    assert_says(&finding(&explained(&task), "stopped_by_request"), "cause", &["by a request", "exit code 5"]);
}

#[test]
fn checks_that_fail() {
    let host = Host::new();
    let check = "[healthcheck]\nexec = ['/bin/sh', '-c', 'echo no table; exit 4']\ninterval = '10ms'\nretries = 2";
    let task = host.described(&format!("command = 'sleep'\nargs = ['1000']\n{check}")).start();
    eventually("it is unhealthy", || (task.inspect()["health"]["status"] == "unhealthy").then_some(()));
    let found = finding(&explained(&task), "unhealthy");
    assert_says(&found, "cause", &["failed in a row; the last: exit code 4, and said: no table"]);
    task.end();
    let stopping = format!("command = 'sleep'\nargs = ['1000']\n{check}\non_unhealthy = 'stop'\n[stop]\ngrace = 0");
    let task = host.described(&stopping).start();
    let report = task.wait();
    let streak = report["health"]["failing_streak"].as_u64().expect("a number");
    let parts = ["it was unhealthy", &format!("{streak} checks failed"), "exit code 4", "no table"];
    assert_says(&finding(&explained(&task), "stopped_by_health"), "cause", &parts);
}

#[test]
fn a_paused_task_and_an_idle_one() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let found = explained(&task);
    assert_eq!(found["status"], "running");
    // What else the machine does may be felt here.
    let kinds: Vec<&str> =
        found["findings"].as_array().expect("a list").iter().filter_map(|one| one["kind"].as_str()).collect();
    if !kinds.iter().all(|kind| kind.ends_with("_pressure") || *kind == "uninterruptible") || kinds.is_empty() {
        assert_eq!(kinds, ["nothing"], "{found:#}");
        assert_says(&finding(&found, "nothing"), "note", &["nothing holds it back"]);
    }
    task.bowline("pause", []).assert_code(0);
    let found = explained(&task);
    assert_eq!(found["status"], "paused");
    assert_says(&finding(&found, "paused"), "cause", &["frozen", "`resume`"]);
    task.end();
}

#[test]
fn a_member_and_limits_that_have_changed() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--cpus=0.1").create();
    let task = host.task("while :; do :; done").in_sandbox(&sandbox).start();
    task.bowline("update", ["--pids=99"]).assert_code(0);
    eventually("the sandbox is held back", || {
        let found = explained(&task);
        let all = found["findings"].as_array().expect("a list");
        let joint = all.iter().find(|one| one["kind"] == "cpu_throttled" && one["figures"]["of"] == "sandbox")?;
        assert_says(joint, "cause", &["its sandbox's limit of 0.1 CPUs"]);
        assert_says(&finding(&found, "limits_changed"), "note", &["once", "\"pids\":99"]);
        Some(())
    });
    task.end();
}

#[test]
fn a_shim_that_died() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    task.kill_shim(task.shim_pid());
    let found = explained(&task);
    assert_eq!(found["status"], "running", "it has a new shim: {found}");
    assert_eq!(task.status(), "running");
    task.end();
}

/// Replaces a value in the record of a task whose shim died.
fn change_record(task: &Task<'_>, at: &str, to: Value) {
    let mut record: Value = serde_json::from_str(&task.log("task.json")).expect("JSON");
    *record.pointer_mut(at).expect("a field") = to;
    std::fs::write(task.file("task.json"), record.to_string()).expect("writable");
}

#[test]
fn a_shim_that_died_and_gets_no_successor() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let init = task.pid();
    task.kill_shim(task.shim_pid());
    let cgroup = serde_json::from_str::<Value>(&task.log("task.json")).expect("JSON")["cgroup"].clone();
    change_record(&task, "/cgroup", "/bowline".into());
    let found = explained(&task);
    assert_eq!(found["status"], "dead");
    let parts = ["its shim died before it", "may still run", "no new shim can", "cgroup is gone"];
    assert_says(&finding(&found, "shim_died"), "cause", &parts);
    change_record(&task, "/cgroup", cgroup);
    // Its init has gone, and another process has its pid.
    kill_process(Pid::from_raw(init).expect("a pid"), Signal::KILL).expect("it lives");
    eventually("it has ended", || (!process_exists(init)).then_some(()));
    change_record(&task, "/pid", std::process::id().into());
    let found = explained(&task);
    assert_eq!(found["status"], "exited");
    let sentence = finding(&found, "shim_died");
    assert_says(&sentence, "cause", &["another process's now", "ended what was left of it"]);
    assert!(!sentence.to_string().contains("may still run"), "{sentence}");
}

#[test]
fn what_a_task_writes_does_nothing_to_a_terminal() {
    let host = Host::new();
    let task = host.task("printf '\\033[2J\\033]0;x\\007evil\\r\\n'; exit 3").flag("--label=job=a\u{1b}[2J").start();
    task.wait();
    assert_eq!(explained(&task)["labels"]["job"], "a\u{1b}[2J");
    let ran = said(&task);
    assert!(ran.out().contains("labels   job=a\\u{1b}[2J"), "{ran}");
    assert!(!ran.stdout.iter().any(|byte| byte.is_ascii_control() && *byte != b'\n'), "{ran}");
    assert!(ran.out().contains("\\u{1b}[2J\\u{1b}]0;x\\u{7}evil"), "{ran}");
}

#[test]
fn what_is_no_task_is_refused() {
    let host = Host::new();
    host.bowline(["explain", "no-such-task"]).assert_refused(125, &["no-such-task"]);
    let sandbox = host.sandbox().create();
    host.bowline(["explain", sandbox.id()]).assert_refused(125, &["is a sandbox"]);
    host.bowline(["explain"]).assert_code(2);
    host.bowline(["explain", "../x"]).assert_code(2);
}
