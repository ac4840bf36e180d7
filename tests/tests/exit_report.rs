//! The exit report: what it says, when it is there, what it survives.

use bowline_tests::Host;
use bowline_tests::harness::{Report, Task, lacks, process_exists};
use jiff::Timestamp;
use serde_json::{Value, json};

const FIELDS: [&str; 27] = [
    "exit_code",
    "signal",
    "signal_sent_by_shim",
    "stopped_by",
    "oom_killed",
    "oom_killed_init",
    "oom_cgroup",
    "started_at",
    "exited_at",
    "cpu_usec",
    "memory_peak_bytes",
    "memory_limit_bytes",
    "memory_limit_hits",
    "memory_high_hits",
    "oom_kills",
    "cpu_periods",
    "throttled_periods",
    "throttled_usec",
    "pids_limit",
    "pids_limit_hits",
    "processes_killed",
    "stdout_tail",
    "stderr_tail",
    "output_dropped_bytes",
    "health",
    "events",
    "shim_died",
];

/// The report within the JSON of `wait`, whose first field is the version of that form.
fn without_format(Report(mut answer): Report) -> Value {
    assert_eq!(answer.as_object_mut().expect("an object").remove("format"), Some(json!(1)));
    answer
}

fn on_disk(task: &Task<'_>) -> Value {
    serde_json::from_str(&task.log("exit.json")).expect("exit.json is JSON")
}

#[test]
fn it_has_every_field() {
    let host = Host::new();
    let task = host.task("true").start();
    let report = task.wait();
    let fields = report.0.as_object().expect("an object");
    let missing: Vec<_> = FIELDS.iter().filter(|field| !fields.contains_key(**field)).collect();
    assert!(missing.is_empty(), "{missing:?} missing in {report:?}");
}

#[test]
fn an_ordinary_exit_is_no_signal_and_no_lack_of_memory() {
    let host = Host::new();
    let task = host.task("exit 4").start();
    let report = task.wait();
    report.assert_code(4);
    assert!(report["signal"].is_null());
    for field in ["signal_sent_by_shim", "oom_killed", "oom_killed_init", "shim_died"] {
        assert_eq!(report[field], false, "{field} in {report:?}");
    }
    assert_eq!(report.number("output_dropped_bytes"), 0);
}

#[test]
fn a_signal_that_the_task_gave_itself_was_not_sent_by_the_shim() {
    let host = Host::new();
    let task = host.described("command = 'sh'\nargs = ['-c', 'kill -SEGV $$']\nnamespaces.pid = 'host'").start();
    let report = task.wait();
    report.assert_killed_by("SEGV").assert_code(139);
    assert_eq!(report["signal_sent_by_shim"], false);
}

#[test]
fn times_are_in_order() {
    let host = Host::new();
    let before = Timestamp::now();
    let task = host.task("sleep 0.1").start();
    let report = task.wait();
    let time = |value: &Value| value.as_str().and_then(|t| t.parse::<Timestamp>().ok()).expect("RFC 3339");
    let created = time(&task.inspect()["created_at"]);
    let (started, exited) = (time(&report["started_at"]), time(&report["exited_at"]));
    assert!(before <= created && created <= started && started <= exited && exited <= Timestamp::now(), "{report:?}");
    assert!(exited.duration_since(started).as_millis() >= 100, "{report:?}");
}

#[test]
fn cpu_time_and_peak_memory_are_the_tasks() {
    let host = Host::new();
    // 40 MiB held at a time, and some work.
    let task = host.task("head -c 41943040 /dev/zero | tail -c 41943040 | wc -c").start();
    let report = task.wait();
    assert!(report.number("cpu_usec") > 1000, "{report:?}");
    let peak = || report.number("memory_peak_bytes");
    assert!(lacks("memory.peak") || (40 << 20..200 << 20).contains(&peak()), "{report:?}");
}

#[test]
fn the_tail_is_the_last_4_kib_of_output() {
    let host = Host::new();
    let task = host.task("seq 1 100000; exit 1").start();
    let report = task.wait();
    let tail = report["stdout_tail"].as_str().expect("text");
    assert_eq!(tail.len(), 4096);
    assert!(tail.ends_with("\n99999\n100000\n"), "{tail:?}");
}

#[test]
fn each_stream_has_a_tail_of_its_own() {
    let host = Host::new();
    let tails = |report: &Value| ["stdout_tail", "stderr_tail"].map(|tail| report[tail].clone());
    let script = "seq 1 100000; echo one; echo two >&2; seq 1 100000 >&2; exit 3";
    let report = host.task(script).flag("--json").run().assert_code(3).json();
    for (tail, end) in tails(&report).iter().zip(["\n100000\none\n", "\n99999\n100000\n"]) {
        let tail = tail.as_str().expect("text");
        assert!(tail.len() == 4096 && tail.ends_with(end), "{tail:?}");
    }
    let task = host.task("echo one; echo two >&2").start();
    assert_eq!(tails(&task.wait().0), ["one\n", "two\n"]);
    let task = host.task("echo one; echo two >&2").flag("--tty").start();
    assert_eq!(tails(&task.wait().0), ["one\r\ntwo\r\n", ""]);
    // Also in the program that takes the shim's place.
    let script = "echo one; echo two >&2; trap 'echo three; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
    let task = host.task(script).start();
    task.wait_for_line("ready");
    task.bowline("upgrade", []).assert_says(task.id());
    assert_eq!(tails(&task.stop(["--grace=500s"]).0), ["one\nready\nthree\n", "two\n"]);
}

#[test]
fn a_tail_that_is_no_text_is_still_reported() {
    let host = Host::new();
    let task = host.task("printf 'a\\377b\\n'").start();
    let report = task.wait();
    let tail = report["stdout_tail"].as_str().expect("text");
    assert!(tail.starts_with('a') && tail.ends_with("b\n"), "{tail:?}");
}

#[test]
fn it_is_on_disk_whole_when_the_exit_is_published() {
    let host = Host::new();
    for _ in 0..10 {
        let task = host.task("exit 3").start();
        let answer = without_format(task.wait());
        let mut kept = on_disk(&task);
        assert_eq!(kept.as_object_mut().expect("an object").remove("version"), Some(json!(1)));
        assert_eq!(kept, answer);
    }
}

#[test]
fn it_survives_a_shim_that_is_killed_right_after_the_exit() {
    let host = Host::new();
    // Nobody reads stdout: after the exit the shim cannot leave yet.
    let script = "seq 1 1000000 & trap 'exit 9' TERM; echo ready >&2; while :; do sleep 0.1; done";
    let (task, run) = host.task(script).spawn();
    run.wait_for_err("ready");
    let shim = task.shim_pid();
    let answer = task.stop(["--grace=50s"]);
    answer.assert_code(9);
    assert!(process_exists(shim), "it drains the output");
    task.kill_shim(shim);
    assert_eq!(task.wait(), answer);
    assert_eq!(task.status(), "exited");
    assert_eq!(task.inspect()["exit"], without_format(answer));
    run.finish();
    host.adopt(task.id());
}

#[test]
fn inspect_has_it_too() {
    let host = Host::new();
    let task = host.task("exit 2").start();
    let report = task.wait();
    assert_eq!(task.inspect()["exit"], without_format(report));
}

#[test]
fn a_published_exit_is_never_taken_back_while_the_shim_leaves() {
    let host = Host::new();
    // A shim on its way out knew of no task any more, and `inspect` once made
    // "created" of that, although the report was there.
    for _ in 0..20 {
        let task = host.task("exit 2").start();
        let report = without_format(task.wait());
        for _ in 0..5 {
            let inspected = task.inspect();
            assert_eq!((&inspected["status"], &inspected["exit"]), (&"exited".into(), &report));
        }
    }
}
