//! Logs of a task that writes faster than they are read: they end, go forward, and say what rotation has removed.

use bowline_tests::Host;
use bowline_tests::harness::{Ran, Task, eventually, touch};
use rustix::process::Signal;

/// Waits for `/tmp/go`, then writes numbered lines of one length; after half of them it makes `/tmp/half`, and waits while
/// there is `/tmp/stay`.
const COUNTS: &str = "echo 0000000; while [ ! -e /tmp/go ]; do sleep 0.01; done; seq -f %07.0f 1 10000; >/tmp/half; \
                      while [ -e /tmp/stay ]; do sleep 0.01; done; seq -f %07.0f 10001 20000";

/// The number of the last line.
const LAST: u64 = 20_000;

/// How many bytes of the log `logs` has said to be missing.
fn missing(said: &str) -> u64 {
    let note = |line: &str| {
        line.strip_prefix("bowline: ")?.split_once(" bytes of the log are missing here")?.0.parse::<u64>().ok()
    };
    said.lines().filter_map(note).sum::<u64>()
}

/// Each line came once, in its order, and what is missing was said to the byte; returns how much that is.
#[track_caller]
pub fn assert_accounted(ran: &Ran, line: u64) -> u64 {
    let missing = missing(&ran.err());
    let skipped = LAST + 1 - assert_in_order(ran);
    assert_eq!(missing, skipped * line, "{skipped} lines are not there: {}", ran.err());
    missing
}

/// Each line came once, in its order, to the last; returns how many came.
#[track_caller]
fn assert_in_order(ran: &Ran) -> u64 {
    let out = ran.assert_code(0).out();
    let numbers: Vec<u64> = out.lines().map(|line| line.parse().expect("a number")).collect();
    let back = numbers.windows(2).find(|pair| pair[1] <= pair[0]);
    assert_eq!(back, None, "it goes back");
    assert_eq!((numbers.first(), numbers.last()), (Some(&0), Some(&LAST)));
    numbers.len() as u64
}

/// How long a line of [`COUNTS`] is in a log of this format.
pub fn length(format: &str) -> u64 {
    match format {
        "json" => "{'time':'2026-05-01T12:00:00.123456789Z','stream':'stdout','line':'0000001'}\n".len() as u64,
        _ => 8,
    }
}

/// A task that has written its first line, and `logs -f` that has printed it.
pub fn followed<'h>(host: &'h Host, flags: &[&str]) -> (Task<'h>, bowline_tests::harness::Process) {
    followed_in(host, flags, 3)
}

/// The same, with a log of so many files.
pub fn followed_in<'h>(host: &'h Host, flags: &[&str], files: usize) -> (Task<'h>, bowline_tests::harness::Process) {
    let build = flags.iter().fold(host.task(COUNTS), |build, flag| build.flag(*flag));
    let task = build.flag("--log-size=4K").flag(format!("--log-files={files}")).start();
    let logs = host.spawn(["logs", "-f", task.id()]);
    logs.wait_for_out("0000000\n");
    (task, logs)
}

#[test]
fn logs_of_a_fast_writer_end() {
    for (format, all) in [
        ("json", &[&[][..], &["--since=1h"], &["--tail=1"], &["--json"], &["--stream=stdout"]][..]),
        ("raw", &[&[][..], &["--tail=1"]]),
    ] {
        let host = Host::new();
        let task = host.task("yes").flag(format!("--log={format}")).flag("--log-size=256K").start();
        eventually("it writes", || (!task.bowline("logs", ["--tail=1"]).out().is_empty()).then_some(()));
        for flags in all {
            let ran = host.bowline(["logs", task.id()].iter().chain(*flags));
            let out = ran.assert_code(0).out();
            assert!(!out.is_empty(), "{flags:?}");
            assert!(flags.contains(&"--json") || out.lines().all(|line| line == "y"), "{flags:?}");
            assert!(!flags.contains(&"--tail=1") || out == "y", "{flags:?}: {out}");
        }
        task.end();
        host.assert_nothing_left();
    }
}

#[test]
fn what_rotation_removed_before_it_was_read_is_said() {
    for format in ["json", "raw"] {
        let host = Host::new();
        let (task, logs) = followed(&host, &[&format!("--log={format}")]);
        logs.signal(Signal::STOP);
        touch(task.program_pid(), "go");
        task.wait();
        logs.signal(Signal::CONT);
        assert!(assert_accounted(&logs.finish(), length(format)) > 0);
        host.assert_nothing_left();
    }
}

#[test]
fn json_has_what_rotation_removed_where_it_is_missing() {
    let host = Host::new();
    let task = host.task(COUNTS).flag("--log-size=4K").flag("--log-files=3").start();
    let logs = host.spawn(["logs", "-f", "--json", task.id()]);
    logs.wait_for_out("0000000");
    logs.signal(Signal::STOP);
    touch(task.program_pid(), "go");
    task.wait();
    logs.signal(Signal::CONT);
    let ran = logs.finish();
    let out = ran.assert_code(0).out();
    let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let at = lines.iter().position(|line| line["removed"].is_u64()).expect("a note");
    assert!(lines[at].get("stream").is_none() && lines[at]["time"].is_string(), "{}", lines[at]);
    assert_eq!(lines[at]["removed"].as_u64(), Some(missing(&ran.err())));
    let number = |line: &serde_json::Value| line["line"].as_str().expect("a line").parse::<u64>().expect("a number");
    let skipped = number(&lines[at + 1]) - number(&lines[at - 1]) - 1;
    assert_eq!(missing(&ran.err()), skipped * length("json"));
}

/// The files of one stream have no end while it is written so fast.
#[test]
fn a_busy_stdout_keeps_no_stderr_back() {
    let host = Host::new();
    let task = host.task("yes & sleep 0.1; echo err >&2; wait").flag("--log=raw").start();
    let mut logs = host.command("sh");
    logs.args(["-c", "exec \"$0\" logs -f \"$1\" >/dev/null"]);
    logs.arg(bowline_tests::harness::binary("bowline")).arg(task.id());
    let logs = host.spawn_command(logs);
    logs.wait_for_err("err\n");
    task.end();
    assert!(logs.finish().assert_code(0).err().starts_with("err"));
}
