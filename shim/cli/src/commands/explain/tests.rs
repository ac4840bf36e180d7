//! Tests of the rules of `explain`, case by case.

use bowline_executor::internal::housekeeping::Difference;
use bowline_model::health::Health;
use bowline_model::report::ExitReport;
use bowline_model::stats::Stats;
use bowline_model::status::Shown;
use serde_json::{Value, json};

use super::finding::{Facts, Finding, Severity};
use super::{ended, explain, lines, running};

/// A report of a normal end, with the fields in `changed` replaced.
fn report(changed: Value) -> ExitReport {
    let mut report = json!({
        "exit_code": 0, "signal": null, "signal_sent_by_shim": false, "oom_killed": false, "oom_killed_init": false,
        "oom_cgroup": null, "started_at": "2026-05-01T12:00:00Z", "exited_at": "2026-05-01T12:00:12.3Z",
        "cpu_usec": 1000, "memory_peak_bytes": 1 << 20, "oom_kills": 0, "throttled_periods": 0, "throttled_usec": 0,
        "processes_killed": 0, "stdout_tail": "", "stderr_tail": "", "output_dropped_bytes": 0, "shim_died": false,
    });
    merge(&mut report, changed);
    serde_json::from_value(report).expect("a report")
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn facts() -> Facts {
    Facts { status: Shown::Exited, cgroup: Some("/bowline/web/web".to_owned()), ..Facts::default() }
}

fn of_end(changed: Value) -> Vec<Finding> {
    ended::findings(&facts(), &report(changed))
}

/// Checks that there is a finding of this kind and severity whose sentence contains all of `parts`.
#[track_caller]
fn has(findings: &[Finding], kind: &str, severity: Severity, parts: &[&str]) {
    let found = findings.iter().find(|finding| finding.kind == kind);
    let found = found.unwrap_or_else(|| panic!("no {kind} in {findings:#?}"));
    assert_eq!(found.severity, severity, "{found:?}");
    for part in parts {
        assert!(found.sentence.contains(part), "{part:?} in {:?}", found.sentence);
    }
    assert!(!found.sentence.contains('\n') && !found.sentence.ends_with('.'), "{:?}", found.sentence);
}

#[test]
fn an_end_is_explained_by_what_is_known_of_it() {
    let killed = json!({"exit_code": 137, "signal": "SIGKILL"});
    let oom = json!({"oom_killed": true, "oom_killed_init": true, "oom_kills": 3, "memory_limit_bytes": 64 << 20,
                     "memory_peak_bytes": 64 << 20});
    let ended = |changes: &[&Value], more: Value| {
        let mut all = json!({});
        changes.iter().for_each(|change| merge(&mut all, (*change).clone()));
        merge(&mut all, more);
        of_end(all)
    };
    let cause = Severity::Cause;
    let own = json!({"oom_cgroup": "/bowline/web/web"});
    let parts = ["its own limit of 64 MiB was met", "peak 64 MiB", "3 OOM kills"];
    has(&ended(&[&killed, &oom], own), "oom_killed", cause, &parts);
    has(&ended(&[&killed, &oom], json!({"oom_cgroup": "/bowline/shop"})), "oom_killed", cause, &["/bowline/shop"]);
    has(&ended(&[&killed, &oom], json!({})), "oom_killed", cause, &["not its own limit of 64 MiB", "above it"]);
    let unknown = json!({"memory_limit_bytes": null, "memory_peak_bytes": null, "oom_kills": null, "oom_cgroup": "/bowline/web/web"});
    has(&ended(&[&killed, &oom], unknown), "oom_killed", cause, &["memory ran out: its own limit was met"]);
    has(&ended(&[&killed], json!({})), "signal", cause, &["SIGKILL", "0 OOM kills"]);
    has(
        &of_end(json!({"exit_code": 139, "signal": "SIGSEGV"})),
        "signal",
        cause,
        &["SIGSEGV", "memory that it does not"],
    );
    has(&ended(&[&killed], json!({"signal_sent_by_shim": true})), "killed_by_request", cause, &["SIGKILL", "`kill`"]);
    let timeout = json!({"exit_code": 3, "stopped_by": "timeout"});
    has(&of_end(timeout), "stopped_by_timeout", cause, &["its time was over", "exit code 3"]);
    let stop = json!({"signal_sent_by_shim": true, "stopped_by": "request"});
    has(&ended(&[&killed], stop), "stopped_by_request", cause, &["grace was over", "SIGKILL"]);
    has(&of_end(json!({"exit_code": 7, "stopped_by": "request"})), "stopped_by_request", cause, &["exit code 7"]);
    let lost = json!({"shim_died": true, "exit_code": null, "init_lost": "pid 7 is another's"});
    has(&of_end(lost.clone()), "shim_died", cause, &["shim died", "pid 7", "has ended what was left"]);
    let dead = Facts { status: Shown::Dead, no_new_shim: Some("no new shim can".to_owned()), ..facts() };
    has(&ended::findings(&dead, &report(lost)), "shim_died", cause, &["may still run", "no new shim can"]);
    has(&of_end(json!({})), "success", Severity::Note, &["exit code 0"]);
}

#[test]
fn an_exit_code_has_a_shells_meaning_and_the_last_word() {
    let ended = |code: i32, tail: &str| of_end(json!({"exit_code": code, "stdout_tail": tail}));
    let cause = Severity::Cause;
    has(
        &ended(127, "sh: 1: nosuch: not found\n"),
        "exit_code",
        cause,
        &["127", "not found", "last word: sh: 1: nosuch"],
    );
    has(&ended(126, ""), "exit_code", cause, &["126", "could not be executed"]);
    has(&ended(137, ""), "exit_code", cause, &["137", "SIGKILL"]);
    has(&ended(3, "a\nb\nc\nd\n"), "exit_code", cause, &["exit code 3; its last word: d"]);
    has(&ended(3, "a\nb\nc\nd\n"), "last_output", Severity::Note, &["b ⏎ c"]);
    let once = ended(3, "\u{1b}[2J\n");
    has(&once, "exit_code", cause, &["\\u{1b}[2J"]);
    assert_eq!(once.len(), 1, "{once:?}");
    let both = of_end(json!({"exit_code": 1, "stdout_tail": "bye\n", "stderr_tail": "no disk\n"}));
    has(&both, "exit_code", cause, &["exit code 1; its last word: no disk"]);
    has(&both, "last_output", Severity::Note, &["last output: bye"]);
}

#[test]
fn a_32_bit_program_is_named_where_the_filter_kills_it() {
    let of = |description: &str, end: Value| {
        let task = bowline_spec::parse(description, bowline_spec::Format::Toml).expect("a description");
        ended::findings(&Facts { task: Some(task), ..facts() }, &report(end))
    };
    let killed = json!({"exit_code": 159, "signal": "SIGSYS"});
    let named = &["SIGSYS", "32-bit", "`native`"];
    for description in ["command = 'x'\nprofile = 'untrusted'", "command = 'x'\nseccomp = 'native'"] {
        has(&of(description, killed.clone()), "signal", Severity::Cause, named);
        has(&of(description, json!({"exit_code": 159})), "exit_code", Severity::Cause, named);
    }
    let default = of("command = 'x'", killed);
    has(&default, "signal", Severity::Cause, &["SIGSYS", "seccomp filter"]);
    assert!(!default[0].sentence.contains("32-bit"), "{default:?}");
}

#[test]
fn what_held_it_back_is_told_with_its_share() {
    let cpu = json!({"cpu_periods": 300, "throttled_periods": 123, "throttled_usec": 12_300_000});
    has(&of_end(cpu.clone()), "cpu_throttled", Severity::Warning, &["41 % of periods (123 of 300)", "12.3 s in all"]);
    let mut little = cpu.clone();
    merge(&mut little, json!({"throttled_periods": 1}));
    has(&of_end(little), "cpu_throttled", Severity::Note, &["under 1 %"]);
    let mut old = cpu;
    merge(&mut old, json!({"cpu_periods": null}));
    has(&of_end(old), "cpu_throttled", Severity::Warning, &["throttled in 123 periods"]);
    let pids = json!({"pids_limit": 8, "pids_limit_hits": 5});
    has(&of_end(pids), "pids_limit", Severity::Warning, &["5 forks failed", "8"]);
    let met = json!({"memory_limit_bytes": 1 << 20, "memory_limit_hits": 4});
    has(&of_end(met), "memory_limit_met", Severity::Warning, &["1 MiB 4 times"]);
    has(&of_end(json!({"memory_high_hits": 2})), "memory_high", Severity::Warning, &["memory.high 2 times"]);
    let child =
        json!({"oom_killed": true, "oom_kills": 1, "oom_cgroup": "/bowline/web/web", "memory_limit_bytes": 32 << 20});
    has(&of_end(child.clone()), "oom_killed_child", Severity::Warning, &["1 process", "not its first", "32 MiB"]);
    let mut passed = child;
    merge(&mut passed, json!({"exit_code": 137}));
    has(&of_end(passed), "oom_killed_child", Severity::Cause, &[]);
    has(&of_end(json!({"output_dropped_bytes": 2048})), "output_dropped", Severity::Warning, &["2 KiB"]);
    assert!(
        of_end(json!({"cpu_periods": null, "throttled_periods": null, "oom_killed": null, "oom_kills": null})).len()
            == 1
    );
}

fn health(output: &str) -> Value {
    let check = json!({"started_at": "2026-05-01T12:00:00Z", "ended_at": "2026-05-01T12:00:01Z", "exit_code": 4,
                       "timed_out": false, "output": output, "error": null});
    json!({"status": "unhealthy", "failing_streak": 2, "log": [check]})
}

#[test]
fn health_is_told_with_the_last_check() {
    let parts = ["2 checks failed in a row", "exit code 4", "said: no db"];
    let stopped = json!({"exit_code": 7, "stopped_by": "health", "health": health("x\nno db\n")});
    has(&of_end(stopped), "stopped_by_health", Severity::Cause, &parts);
    has(&of_end(json!({"health": health("no db")})), "unhealthy", Severity::Warning, &parts);
    let health: Health = serde_json::from_value(health("no db")).expect("health");
    let facts = Facts { health: Some(health), status: Shown::Running, ..facts() };
    has(&running::findings(&facts), "unhealthy", Severity::Cause, &parts);
}

/// Two readings a second apart, with these figures.
fn readings(before: Value, now: Value) -> Option<(Stats, Stats)> {
    let one = |time: &str, changed: Value| {
        let mut stats = json!({"read_at": time, "measured": [], "cpu": {}, "memory": {"events": {}}, "pids": {}, "io": {},
                               "hugepages": {}, "processes": []});
        merge(&mut stats, changed);
        serde_json::from_value(stats).expect("statistics")
    };
    Some((one("2026-05-01T12:00:00Z", before), one("2026-05-01T12:00:01Z", now)))
}

fn of_run(before: Value, now: Value) -> Vec<Finding> {
    running::findings(&Facts { status: Shown::Running, readings: readings(before, now), ..facts() })
}

#[test]
fn what_holds_a_task_back_is_found_in_two_readings() {
    let cpu = |periods: u64, throttled: u64| {
        json!({"cpu": {"periods": periods, "throttled_periods": throttled, "throttled_usec": 900_000,
                       "limit_usec": 50_000, "period_usec": 100_000}})
    };
    let parts = ["80 % of periods (8 of 10)", "limit of 0.5 CPUs", "50 % of periods (10 of 20), 900 ms in all"];
    has(&of_run(cpu(10, 2), cpu(20, 10)), "cpu_throttled", Severity::Cause, &parts);
    has(&of_run(cpu(10, 2), cpu(20, 2)), "cpu_throttled", Severity::Note, &["earlier", "10 %"]);
    let memory = json!({"memory": {"usage_bytes": 62 << 20, "inactive_file_bytes": 1 << 20, "limit_bytes": 64 << 20}});
    has(&of_run(json!({}), memory), "memory_near_limit", Severity::Warning, &["61 MiB of 64 MiB (95 %)"]);
    let high = |hits: u64| json!({"memory": {"high_bytes": 48 << 20, "events": {"high": hits}}});
    has(&of_run(high(3), high(7)), "memory_high", Severity::Cause, &["48 MiB", "4 times, 7 since"]);
    has(&of_run(high(7), high(7)), "memory_high", Severity::Note, &["earlier", "7 times"]);
    let pids = json!({"pids": {"current": 8, "limit": 8, "limit_hits": 5}});
    has(&of_run(pids.clone(), pids), "pids_limit", Severity::Cause, &["limit of 8", "5 forks failed"]);
    let some = json!({"avg10": 45.2, "avg60": 1.0, "avg300": 1.0, "total_usec": 7});
    let full = json!({"avg10": 12.0, "avg60": 1.0, "avg300": 1.0, "total_usec": 7});
    let io = json!({"io": {"pressure": {"some": some, "full": full}}});
    has(&of_run(json!({}), io), "io_pressure", Severity::Cause, &["for a disk in 45 %", "all of them in 12 %"]);
    let kills = json!({"memory": {"oom_kills": 1, "limit_bytes": 32 << 20}});
    has(&of_run(kills.clone(), kills), "oom_killed_child", Severity::Warning, &["killed 1 process of it", "32 MiB"]);
    has(&of_run(json!({}), json!({"memory": {"under_oom": true}})), "waits_for_memory", Severity::Cause, &[]);
}

#[test]
fn nothing_is_found_where_nothing_is() {
    let idle =
        |usec: u64| json!({"cpu": {"usage_usec": usec}, "memory": {"usage_bytes": 1 << 20, "limit_bytes": 64 << 20}});
    let found = of_run(idle(0), idle(30_000));
    has(&found, "nothing", Severity::Note, &["nothing holds it back: CPU 3 %, memory 1 MiB of 64 MiB"]);
    assert_eq!(found.len(), 1);
    // Unknown figures are not invented.
    has(&of_run(json!({}), json!({})), "nothing", Severity::Note, &["nothing holds it back"]);
    let paused = Facts { status: Shown::Paused, readings: readings(json!({}), json!({})), ..facts() };
    let found = running::findings(&paused);
    has(&found, "paused", Severity::Cause, &["frozen"]);
    assert_eq!(found.len(), 1);
}

#[test]
fn a_limit_that_somebody_else_has_changed_is_told() {
    let [file, asked, is] = ["memory.max", "67108864", "max"].map(str::to_owned);
    let differing = vec![Difference { file, asked, is }];
    let running = || Facts { status: Shown::Running, ..facts() };
    let own = Facts { differing_limits: differing.clone(), ..running() };
    let joint = Facts { differing_joint_limits: differing, ..running() };
    for (facts, whose) in [(own, "of its cgroup"), (joint, "of its sandbox's cgroup")] {
        let found = running::findings(&facts);
        has(&found, "limit_differs", Severity::Warning, &["memory.max", whose, "is max, not 67108864"]);
    }
}

#[test]
fn a_member_is_held_back_by_its_sandbox_too() {
    let joint = |throttled: u64| json!({"cpu": {"periods": 10 * throttled, "throttled_periods": throttled}});
    let facts = Facts { status: Shown::Running, joint: readings(joint(1), joint(2)), ..facts() };
    has(&running::findings(&facts), "cpu_throttled", Severity::Cause, &["its sandbox's CPU limit"]);
}

#[test]
fn a_person_reads_the_cause_first() {
    let id = "web".parse().expect("an id");
    let exit = report(json!({"exit_code": 3, "stdout_tail": "x\n", "output_dropped_bytes": 1}));
    let facts = Facts { exit: Some(exit), ..facts() };
    let explanation = explain(&id, &facts, "2026-05-01T12:02:12.3Z".parse().expect("a time"));
    let plain: Vec<String> =
        lines(&explanation).iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect();
    assert_eq!(plain[0], "web ended 2 min ago with exit code 3, after it ran for 12.3 s");
    assert_eq!(plain[1], "cause    its command ended by itself with exit code 3; its last word: x");
    assert!(plain[2].starts_with("warning  1 B of its output") && plain.len() == 3, "{plain:?}");
}

#[test]
fn a_watch_that_had_it_stopped_says_for_what() {
    let found = json!({"policy": "throttled", "usec": 2_500_000, "above_usec": 2_000_000, "every_usec": 10_000_000});
    let stopped = json!({"exit_code": 143, "signal": "SIGTERM", "stopped_by": "watch", "stopped_for": found});
    let parts = ["by its watch", "throttled", "2.5 s in 10 s, above 2 s", "SIGTERM"];
    has(&of_end(stopped), "stopped_by_watch", Severity::Cause, &parts);
}

#[test]
fn what_a_watch_has_found_is_told_beside_the_end() {
    let event = json!({"time": "2026-05-01T12:00:00Z", "id": "web", "seq": 3, "event": "watch", "policy": "oom",
                       "kills": 2, "action": "report"});
    let events = vec![serde_json::from_value(event).expect("an event")];
    let found = ended::findings(&Facts { events, ..facts() }, &report(json!({})));
    has(&found, "watch", Severity::Warning, &["found something once", "oom", "2 so far"]);
}
