//! Logs: every line in its order, within their bound, and what `logs` prints of them.

mod disk;
pub mod fast;

use std::fs;
use std::path::{Path, PathBuf};

use bowline_tests::Host;
use bowline_tests::harness::{Task, WRITER, binary, touch};
use serde_json::Value;

/// All lines of a JSON log, oldest first.
fn stored(path: &Path) -> Vec<Value> {
    let rotated = (1..1000).map(|age| PathBuf::from(format!("{}.{age}", path.display())));
    let mut files: Vec<PathBuf> = rotated.take_while(|path| path.exists()).collect();
    files.reverse();
    files.push(path.to_owned());
    let text: String = files.iter().map(|path| fs::read_to_string(path).expect("a log is UTF-8")).collect();
    text.lines().map(|line| serde_json::from_str(line).expect("a log is JSON")).collect()
}

fn files_of(task: &Task<'_>) -> Vec<(String, u64)> {
    let folder = task.file("");
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let all = entries
        .map(|entry| (entry.file_name().into_string().expect("ASCII"), entry.metadata().expect("it is there").len()));
    let mut logs: Vec<_> = all.filter(|(name, _)| name.contains("log") && name != "shim.log").collect();
    logs.sort();
    logs
}

#[track_caller]
fn assert_same(found: &[u8], expected: &str) {
    let differs = found.iter().zip(expected.as_bytes()).position(|(a, b)| a != b);
    let lengths = (found.len(), expected.len());
    assert!(found == expected.as_bytes(), "{lengths:?} bytes, the first wrong one at {differs:?}");
}

fn time_of(line: &str) -> &str {
    line.split_once(' ').expect("a time").0
}

#[test]
fn a_background_task_keeps_both_streams_in_their_order() {
    let host = Host::new();
    let task = host.task("for i in 1 2 3; do echo out $i; sleep 0.02; echo err $i >&2; sleep 0.02; done").start();
    task.wait().assert_code(0);
    let lines: Vec<String> = stored(&task.file("log.json"))
        .iter()
        .map(|line| {
            format!("{} {}", line["stream"].as_str().expect("a stream"), line["line"].as_str().expect("a line"))
        })
        .collect();
    assert_eq!(lines, ["stdout out 1", "stderr err 1", "stdout out 2", "stderr err 2", "stdout out 3", "stderr err 3"]);
    let ran = task.bowline("logs", []);
    ran.assert_says("out 1\nout 2\nout 3");
    assert_eq!(ran.err(), "err 1\nerr 2\nerr 3");
}

#[test]
fn logs_prints_both_streams_in_their_order() {
    let host = Host::new();
    let task = host.task("for i in 1 2 3; do echo out $i; sleep 0.02; echo err $i >&2; sleep 0.02; done").start();
    task.wait().assert_code(0);
    let mut both = host.command("sh");
    both.args(["-c", "exec \"$0\" logs \"$1\" 2>&1"]).arg(binary("bowline")).arg(task.id());
    host.execute(both).assert_says("out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3");
}

#[test]
fn a_line_has_its_time() {
    let host = Host::new();
    let task = host.task("echo one; until test -e /tmp/go; do sleep 0.05; done; echo two").start();
    task.wait_for_line("one");
    task.exec("touch /tmp/go").assert_code(0);
    task.wait();
    let ran = task.bowline("logs", ["--timestamps"]);
    let out = ran.assert_code(0).out();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].ends_with("Z one") && lines[1].ends_with("Z two"), "{ran}");
    // RFC 3339 in UTC sorts as text.
    assert!(time_of(lines[0]) < time_of(lines[1]), "{ran}");
}

#[test]
fn a_raw_log_has_the_bytes_as_they_were_written() {
    let host = Host::new();
    let task = host.task(r"printf 'a\0b\377\nno end'; printf '\r\nerr' >&2").flag("--log=raw").start();
    task.wait();
    assert_eq!(fs::read(task.file("stdout.log")).expect("a log"), b"a\0b\xff\nno end");
    assert_eq!(fs::read(task.file("stderr.log")).expect("a log"), b"\r\nerr");
    let ran = task.bowline("logs", []);
    assert_eq!(ran.assert_code(0).stdout, b"a\0b\xff\nno end");
    assert_eq!(ran.stderr, b"\r\nerr");
}

#[test]
fn bytes_that_are_no_text_come_back_from_json() {
    let host = Host::new();
    let task = host.task(r"printf 'caf\303\251\na\0b\377\001\n\303'").start();
    task.wait();
    let ran = task.bowline("logs", []);
    assert_eq!(ran.assert_code(0).stdout, b"caf\xc3\xa9\na\0b\xff\x01\n\xc3");
    let lines = stored(&task.file("log.json"));
    assert_eq!((&lines[0]["line"], &lines[1]["latin1"]), (&"café".into(), &"a\0b\u{ff}\u{1}".into()));
}

#[test]
fn an_unfinished_line_is_marked_and_a_long_one_is_split() {
    let host = Host::new();
    let task = host.task("head -c 40000 /dev/zero | tr '\\0' x; echo; printf prompt").start();
    task.wait();
    let lines = stored(&task.file("log.json"));
    let parts: Vec<(usize, bool)> =
        lines.iter().map(|line| (line["line"].as_str().expect("text").len(), line["partial"] == true)).collect();
    assert_eq!(parts, [(16384, true), (16384, true), (7232, false), (6, true)]);
    let ran = task.bowline("logs", []);
    assert_eq!(ran.assert_code(0).stdout, ("x".repeat(40_000) + "\nprompt").as_bytes());
    // One line, so one time.
    let ran = task.bowline("logs", ["-t"]);
    assert_eq!(ran.assert_code(0).out().matches('Z').count(), 2);
}

/// Two processes that write 100,000 numbered lines each, and a line at the end.
const UNDER_LOAD: &str = "seq -f 'a %.0f' 1 100000 & seq -f 'b %.0f' 1 100000 >&2 & wait; echo end";

fn assert_complete(lines: &[String], who: &str) {
    let numbers: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix(who)?.strip_prefix(' ')).collect();
    assert_eq!(numbers.len(), 100_000, "lines of {who}");
    for (index, number) in numbers.iter().enumerate() {
        assert_eq!(*number, (index + 1).to_string(), "line {index} of {who}");
    }
}

#[test]
fn rotation_under_load_loses_no_line() {
    let host = Host::new();
    let task = host.task(UNDER_LOAD).flag("--log-size=256K").flag("--log-files=200").start();
    assert_eq!(task.wait().number("output_dropped_bytes"), 0);
    let files = files_of(&task);
    assert!(files.len() > 20, "{files:?}");
    assert!(files.iter().all(|(_, size)| *size <= 256 << 10), "{files:?}");
    let lines: Vec<String> =
        stored(&task.file("log.json")).iter().map(|line| line["line"].as_str().expect("text").to_owned()).collect();
    assert_eq!(lines.len(), 200_001);
    assert_complete(&lines, "a");
    assert_complete(&lines, "b");
}

#[test]
fn a_raw_log_is_rotated_between_lines() {
    let host = Host::new();
    let task = host.task(UNDER_LOAD).flag("--log=raw").flag("--log-size=64K").flag("--log-files=200").start();
    assert_eq!(task.wait().number("output_dropped_bytes"), 0);
    let files = files_of(&task);
    for (name, size) in &files {
        assert!(*size <= 64 << 10, "{name}: {size}");
        assert!(fs::read(task.file(name)).expect("a log").ends_with(b"\n"), "{name} ends within a line");
    }
    let ran = task.bowline("logs", []);
    let lines = |text: String| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_complete(&lines(ran.assert_code(0).out()), "a");
    assert_complete(&lines(ran.err()), "b");
}

#[test]
fn a_log_stays_within_its_bound() {
    for format in ["json", "raw"] {
        let host = Host::new();
        let task = host
            .task("seq 1 200000")
            .flag(format!("--log={format}"))
            .flag("--log-size=64K")
            .flag("--log-files=3")
            .start();
        assert_eq!(task.wait().number("output_dropped_bytes"), 0, "what is rotated away is not dropped");
        let files: Vec<(String, u64)> =
            files_of(&task).into_iter().filter(|(name, _)| !name.contains("stderr")).collect();
        assert_eq!(files.len(), 3, "{files:?}");
        assert!(files.iter().all(|(_, size)| *size <= 64 << 10), "{files:?}");
        let out = task.bowline("logs", []).assert_code(0).out();
        assert!(out.ends_with("199999\n200000"), "the newest lines are kept");
        host.assert_nothing_left();
    }
}

#[test]
fn a_log_of_one_file_begins_anew() {
    let host = Host::new();
    let task = host.task("seq 1 1000").flag("--log-size=4K").flag("--log-files=1").start();
    task.wait();
    assert_eq!(files_of(&task).len(), 1);
    assert!(task.bowline("logs", []).assert_code(0).out().ends_with("999\n1000"));
}

#[test]
fn follow_prints_each_line_once_through_rotations_to_the_end() {
    let host = Host::new();
    let script =
        "echo begin; while [ ! -e /tmp/go ]; do sleep 0.01; done; for i in $(seq 1 40); do seq 1 50; done; printf end";
    let task = host.task(script).flag("--log-size=8K").flag("--log-files=100").start();
    task.wait_for_line("begin");
    let logs = host.spawn(["logs", "-f", task.id()]);
    logs.wait_for_out("begin");
    // It may be killed with the task that it has let end.
    let _ = task.exec("touch /tmp/go");
    let ran = logs.finish();
    let expected = "begin\n".to_owned() + &(1..=50).map(|n| format!("{n}\n")).collect::<String>().repeat(40) + "end";
    assert_same(&ran.assert_code(0).stdout, &expected);
    assert!(files_of(&task).len() > 5);
}

#[test]
fn follow_reads_raw_logs_through_rotations() {
    let host = Host::new();
    let script = "echo begin; while [ ! -e /tmp/go ]; do sleep 0.01; done; seq 1 20000; echo end >&2";
    let task = host.task(script).flag("--log=raw").flag("--log-size=8K").flag("--log-files=100").start();
    let logs = host.spawn(["logs", "--follow", task.id()]);
    logs.wait_for_out("begin");
    // It may be killed with the task that it has let end.
    let _ = task.exec("touch /tmp/go");
    let ran = logs.finish();
    let expected: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    assert_same(&ran.assert_code(0).stdout, &("begin\n".to_owned() + &expected));
    assert_eq!(ran.err(), "end");
}

#[test]
fn follow_goes_on_under_new_shims_until_the_task_has_ended() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    for build in [host.task(WRITER), sandbox.task(WRITER)] {
        let task = build.flag("--init").start();
        task.wait_for_line("line 1");
        let program = task.program_pid();
        task.kill_shim(task.shim_pid());
        let logs = host.spawn(["logs", "-f", task.id()]);
        touch(program, "1");
        logs.wait_for_out("line 2\n");
        task.crash_shim();
        touch(program, "2");
        logs.wait_for_out("line 3\n");
        touch(program, "end");
        logs.finish().assert_says("line 1\nline 2\nline 3");
        assert_eq!(task.wait()["exit_code"], 7);
    }
    sandbox.rm([]);
}

#[test]
fn the_last_lines_only() {
    let host = Host::new();
    let task = host.task("seq 1 5000; echo err >&2").flag("--log-size=4K").flag("--log-files=300").start();
    task.wait();
    task.bowline("logs", ["--tail=3", "--stream=stdout"]).assert_says("4998\n4999\n5000");
    task.bowline("logs", ["--tail", "0"]).assert_says("");
    // Over several files.
    let expected: String = (4_000..=5_000).map(|n| format!("{n}\n")).collect();
    task.bowline("logs", ["--tail=1001", "--stream=stdout"]).assert_says(expected.trim_end());
    task.bowline("logs", ["-n", "1", "--stream=stdout"]).assert_says("5000");
    let all = task.bowline("logs", ["-n", "all"]);
    assert_eq!(all.assert_code(0).out().lines().count(), 5_000);
}

#[test]
fn one_stream_only() {
    let host = Host::new();
    for format in ["json", "raw"] {
        let task = host.task("echo out; echo err >&2").flag(format!("--log={format}")).start();
        task.wait();
        let ran = task.bowline("logs", ["--stream=stderr"]);
        assert_eq!((ran.assert_says("").err(), ran.code), ("err".into(), Some(0)));
        assert_eq!(task.bowline("logs", ["--stream=stdout"]).assert_says("out").err(), "");
    }
}

#[test]
fn since_and_until_choose_by_time() {
    let host = Host::new();
    let task = host.task("echo one; sleep 0.1; echo two; sleep 0.1; echo three").start();
    task.wait();
    let out = task.bowline("logs", ["-t"]).assert_code(0).out();
    let second = time_of(out.lines().nth(1).expect("three lines")).to_owned();
    task.bowline("logs", [&format!("--since={second}")]).assert_says("two\nthree");
    task.bowline("logs", [&format!("--until={second}")]).assert_says("one\ntwo");
    task.bowline("logs", [&format!("--since={second}"), &format!("--until={second}")]).assert_says("two");
    task.bowline("logs", ["--since=1h"]).assert_says("one\ntwo\nthree");
    task.bowline("logs", ["--until=1h"]).assert_says("");
    task.bowline("logs", ["--since=1h", "--tail=1"]).assert_says("three");
    task.bowline("logs", [&format!("--until={second}"), "--tail=1"]).assert_says("two");
}

#[test]
fn a_since_that_is_no_time_says_what_to_write() {
    let host = Host::new();
    host.bowline(["logs", "x", "--since=yesterday"]).assert_refused(2, &["--since", "yesterday", "10m"]);
    host.bowline(["logs", "x", "--until", "12:00"]).assert_refused(2, &["--until", "12:00"]);
}

#[test]
fn json_prints_the_lines_as_they_are_kept() {
    let host = Host::new();
    let task = host.task("echo out; echo err >&2").start();
    task.wait();
    let kept = fs::read(task.file("log.json")).expect("a log");
    assert_eq!(task.bowline("logs", ["--json"]).assert_code(0).stdout, kept);
    let one = task.bowline("logs", ["--json", "--stream=stderr"]).assert_code(0).json();
    assert_eq!((&one["stream"], &one["line"]), (&"stderr".into(), &"err".into()));
}

#[test]
fn what_a_raw_log_has_not_is_refused() {
    let host = Host::new();
    let task = host.task("echo out").flag("--log=raw").start();
    task.wait();
    for flag in ["--since=1h", "--until=1h", "--timestamps", "--json"] {
        let name = flag.split('=').next().expect("a name");
        task.bowline("logs", [flag]).assert_refused(125, &[name, "raw logs have no times"]);
    }
}

#[test]
fn an_unknown_task_is_named() {
    let host = Host::new();
    host.bowline(["logs", "nobody"]).assert_refused(125, &["no task named nobody"]);
}

#[test]
fn a_task_without_a_log_says_what_keeps_one() {
    let host = Host::new();
    let task = host.task("echo out").flag("--log=none").start();
    task.wait();
    let refused = task.bowline("logs", []);
    refused.assert_refused(125, &["keeps no log"]);
    assert!(refused.err().contains("--log json"), "{refused}");
    assert!(files_of(&task).is_empty());
    for flag in ["--log-size=1M", "--log-files=2"] {
        host.task("true").flag("--log=none").flag(flag).assert_refused(2, &["log.max_", "none"]);
    }
}

#[test]
fn a_foreground_task_keeps_a_log_when_it_is_asked_to() {
    let host = Host::new();
    let build = host.task("echo out; echo err >&2");
    let task = host.adopt(build.id());
    let ran = build.run();
    assert_eq!((ran.assert_says("out").err(), files_of(&task).len()), ("err".into(), 0));
    task.bowline("logs", []).assert_refused(125, &["keeps no log"]);
    let build = host.task("echo out; echo err >&2").flag("--log=json");
    let task = host.adopt(build.id());
    assert_eq!(build.run().assert_says("out").err(), "err");
    assert_eq!(task.bowline("logs", []).assert_says("out").err(), "err");
}

#[test]
fn a_stream_with_a_file_of_its_own_is_not_kept_twice() {
    let host = Host::new();
    let out = host.work().join("out");
    let toml = format!("command = 'sh'\nargs = ['-c', 'echo out; echo err >&2']\noutput.stdout = '{}'", out.display());
    let task = host.described(&toml).start();
    task.wait();
    assert_eq!(fs::read_to_string(&out).expect("it was made"), "out\n");
    assert_eq!(task.bowline("logs", []).assert_says("").err(), "err");
    let refused = task.bowline("logs", ["--stream=stdout"]);
    refused.assert_refused(125, &["keeps no log"]);
    assert!(refused.err().contains(&*out.to_string_lossy()), "{refused}");
}

#[test]
fn a_log_may_be_kept_elsewhere_and_stays_there() {
    let host = Host::new();
    let folder = host.work().join("logs");
    fs::create_dir(&folder).expect("a folder");
    let toml = format!("command = 'echo'\nargs = ['hello']\nlog.path = '{}'", folder.display());
    let task = host.described(&toml).start();
    task.wait();
    assert!(files_of(&task).is_empty());
    task.bowline("logs", []).assert_says("hello");
    task.bowline("rm", []).assert_code(0);
    let kept = stored(&folder.join(format!("{}.json", task.id())));
    assert_eq!(kept[0]["line"], "hello");
}

#[test]
fn a_reader_that_leaves_early_hears_no_complaint() {
    let host = Host::new();
    let task = host.task("seq 1 100000").start();
    task.wait();
    let mut head = host.command("sh");
    let script = "\"$0\" logs \"$1\" | head -n 1";
    head.args(["-c", script]).arg(binary("bowline")).arg(task.id());
    let ran = host.execute(head);
    assert_eq!((ran.assert_says("1").err(), ran.code), (String::new(), Some(0)));
}

#[test]
fn a_log_that_makes_no_sense_is_refused() {
    let host = Host::new();
    host.task("true").flag("--log-size=1K").assert_refused(2, &["log.max_size", "4K"]);
    host.task("true").flag("--log-files=0").assert_refused(2, &["log.max_files"]);
    host.task("true").flag("--log=text").assert_refused(2, &["--log", "json"]);
}

#[test]
fn a_prompt_is_in_the_log_once_the_task_has_ended() {
    let host = Host::new();
    let task = host.task("printf '> '; sleep 0.05; printf 'yes\\n> '").start();
    task.wait();
    let lines = stored(&task.file("log.json"));
    assert_eq!((lines.len(), &lines[0]["line"]), (2, &"> yes".into()), "{lines:?}");
}
