//! Commands for several tasks: those that are named, or all with a label.

use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::Task;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const IDLE: &str = "exec sleep 1000";

/// Tasks with a label `of=NAME`, where NAME is this host's, and one without.
fn labelled<'h>(host: &'h Host, scripts: [&str; 2]) -> ([Task<'h>; 2], Task<'h>, String) {
    let label = format!("--label=of={}", host.prefix());
    let tasks = scripts.map(|script| host.task(script).flag(&label).start());
    (tasks, host.task(IDLE).flag("--label=of=other").start(), label)
}

#[test]
fn a_label_chooses_who_is_stopped_killed_and_removed() {
    let host = Host::new();
    let ([one, two], other, label) =
        labelled(&host, [IDLE, "trap 'exit 4' HUP; echo ready; while :; do sleep 0.1; done"]);
    two.wait_for_line("ready");
    one.end();
    // One that has ended is none that a signal is for.
    host.bowline(["kill", "--signal=HUP", &label]).assert_says("");
    two.wait().assert_code(4);
    host.bowline(["stop", &label]).assert_says("");
    host.bowline(["wait", &label]).assert_code(0);
    host.bowline(["rm", &label]).assert_says("");
    assert_eq!(host.bowline(["ps", "-q"]).assert_code(0).out(), other.id());
    for verb in ["stop", "kill", "wait", "rm", "logs", "explain"] {
        host.bowline([verb, &label]).assert_says("");
        host.bowline([verb, "--label=of", other.id()]).assert_refused(2, &["--label"]);
        host.bowline([verb, "--label=of=="]).assert_says("");
        host.bowline([verb, "--label="]).assert_refused(2, &["--label"]);
    }
    // All of the labels, and any value of one.
    host.bowline(["stop", "--label=of", "--label=tier", "--grace=0"]).assert_says("");
    assert_eq!(other.status(), "running");
    host.bowline(["stop", "--label=of", "--label=of=other", "--grace=0"]).assert_says("");
    assert_eq!(other.status(), "exited");
    host.bowline(["rm", "--exited", "--label=of=nobody"]).assert_says("");
    host.bowline(["rm", "--exited", "--label=of"]).assert_says(other.id());
    assert_eq!(host.bowline(["ps", "-q"]).assert_code(0).out(), "");
}

#[test]
fn a_running_task_with_the_label_is_removed_by_force_alone() {
    let host = Host::new();
    let ([one, two], other, label) = labelled(&host, [IDLE, "true"]);
    two.wait();
    host.bowline(["rm", &label]).assert_refused(125, &[one.id()]);
    host.bowline(["rm", "-f", &label]).assert_says("");
    assert_eq!(host.bowline(["ps", "-q"]).assert_code(0).out(), other.id());
    other.end();
}

#[test]
fn one_with_the_label_that_goes_meanwhile_is_no_error() {
    let host = Host::new();
    let label = format!("--label=of={}", host.prefix());
    for _ in 0..5 {
        let tasks: Vec<Task<'_>> = (0..6).map(|_| host.task("true").flag(&label).start()).collect();
        for task in &tasks {
            task.wait();
        }
        // Each finds what the others remove.
        let removing: Vec<_> = (0..4).map(|_| host.spawn(["rm", &label])).collect();
        for rm in removing {
            rm.finish().assert_says("");
        }
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn each_line_of_several_logs_says_whose_it_is() {
    let host = Host::new();
    let ([one, two], other, label) = labelled(&host, ["echo a; echo b >&2; printf c", "echo d; exit 3"]);
    let longest = one.id().len().max(two.id().len());
    let line = |task: &Task<'_>, text: &str| format!("{:<longest$} | {text}", task.id());
    for task in [&one, &two] {
        task.wait();
    }
    for names in [&[one.id(), two.id()][..], &[label.as_str()]] {
        for how in [&["logs"][..], &["logs", "-f"]] {
            let ran = host.bowline([how, names].concat());
            let mut lines: Vec<String> = ran.assert_code(0).out().lines().map(str::to_owned).collect();
            // With -f they come as they are read.
            lines.sort();
            let mut wanted = [line(&one, "a"), line(&one, "c"), line(&two, "d")];
            wanted.sort();
            assert_eq!((lines, ran.err()), (wanted.to_vec(), line(&one, "b")), "{how:?}");
        }
    }
    let json = host.bowline(["logs", "--json", one.id(), two.id()]).assert_code(0).out();
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let said: Vec<String> = lines.iter().map(|line| format!("{} {}", line["task"], line["line"])).collect();
    let quoted = |task: &Task<'_>, text: &str| format!("\"{}\" \"{text}\"", task.id());
    assert_eq!(said.iter().filter(|said| **said == quoted(&two, "d")).count(), 1, "{said:?}");
    assert_eq!(said.len(), 4, "{said:?}");
    // One that is not there leaves the others.
    let ran = host.bowline(["logs", "nobody", two.id()]);
    assert_eq!((ran.code, ran.out()), (Some(125), format!("{} | d", format_args!("{:<1$}", two.id(), two.id().len()))));
    // A label that one task has names that.
    host.bowline(["logs", "--label=of=other"]).assert_says("");
    host.bowline(["logs", "--tail=1", two.id()]).assert_says("d");
    other.end();
}

#[test]
fn several_logs_are_followed_at_once() {
    let host = Host::new();
    let script = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let ([one, two], other, label) = labelled(&host, [script, script]);
    let follower = host.spawn(["logs", "-f", &label]);
    for task in [&one, &two] {
        follower.wait_for_out(&format!("{} | ready", task.id()));
    }
    two.stop(["--grace=500s"]);
    follower.wait_for_out(&format!("{} | bye", two.id()));
    one.stop(["--grace=500s"]);
    assert!(follower.finish().assert_code(0).out().contains(&format!("{} | bye", one.id())));
    other.end();
}

#[test]
fn lines_of_a_log_that_match_are_printed_as_they_are() {
    let host = Host::new();
    // A line of pieces, and one that is not UTF-8.
    let script = "echo begin; head -c 40000 /dev/zero | tr '\\0' x; echo needle; printf 'a\\377b\\n'; echo error 7 >&2; \
                  echo Error 8; printf end";
    let of = |log: &str| {
        let task = host.task(script).flag(format!("--log={log}")).start();
        task.wait();
        task
    };
    for task in ["json", "raw"].map(of) {
        let lines = |pattern: &str| task.bowline("logs", ["--grep", pattern]).assert_code(0).stdout.clone();
        let long = format!("{}needle\n", "x".repeat(40000));
        assert_eq!(lines("^x+needle$"), long.as_bytes());
        assert_eq!(lines("^a.b$"), b"a\xffb\n");
        assert_eq!((lines("^end$").as_slice(), lines("nothing").as_slice()), (&b"end"[..], &b""[..]));
        let both = task.bowline("logs", ["-g", "(?i)error [0-9]"]);
        assert_eq!((both.assert_code(0).out(), both.err()), ("Error 8".to_owned(), "error 7".to_owned()));
        task.bowline("logs", ["--grep", "("]).assert_refused(2, &["--grep"]);
        task.bowline("logs", ["--tail=1", "--grep=begin"]).assert_says("");
    }
    let task = of("json");
    let stored = task.bowline("logs", ["--json", "--grep=needle"]).assert_code(0).out();
    let pieces: Vec<Value> = stored.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((pieces.len(), pieces.last().map(|last| &last["partial"])), (3, Some(&Value::Null)), "{stored}");
}

#[test]
fn several_tasks_are_explained_in_their_order() {
    let host = Host::new();
    let ([one, two], other, label) = labelled(&host, ["exit 3", "exit 4"]);
    for task in [&one, &two] {
        task.wait();
    }
    let said = host.bowline(["explain", one.id(), two.id()]).assert_code(0).out();
    assert_eq!(said.split("\n\n").count(), 2, "{said}");
    let all = host.bowline(["explain", "--json", &label]).assert_code(0).json();
    let ids: Vec<&Value> = all.as_array().expect("a list").iter().map(|one| &one["id"]).collect();
    assert!(ids.len() == 2 && ids.contains(&&Value::from(one.id())), "{all}");
    let ran = host.bowline(["explain", "nobody", two.id()]);
    assert!(ran.code == Some(125) && ran.out().contains("exit code 4"), "{ran}");
    other.end();
}

#[test]
fn a_wait_may_have_an_end() {
    let host = Host::new();
    let ([idle, ended], other, _) = labelled(&host, [IDLE, "exit 3"]);
    ended.wait();
    let begun = Instant::now();
    let ran = host.bowline(["wait", "--timeout=300ms", idle.id(), ended.id()]);
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!((ran.code, ran.out().as_str()), (Some(124), "-\n3"), "{ran}");
    assert!(ran.err().contains(&format!("task {} has not ended within 300ms", idle.id())), "{ran}");
    let ran = host.bowline(["wait", "--json", "--timeout=0", ended.id(), idle.id()]);
    assert_eq!((ran.code, &ran.json()[0]["exit_code"]), (Some(124), &Value::from(3)), "{ran}");
    host.bowline(["wait", "--timeout=300s", ended.id()]).assert_says("3");
    host.bowline(["wait", "--timeout=-1", ended.id()]).assert_refused(2, &["--timeout"]);
    // A shim that does not answer holds nobody up.
    let shim = Pid::from_raw(idle.shim_pid()).expect("a pid");
    kill_process(shim, Signal::STOP).expect("it lives");
    let begun = Instant::now();
    let ran = host.bowline(["wait", "--timeout=300ms", idle.id()]);
    assert!(ran.code == Some(124) && begun.elapsed() < Duration::from_secs(60), "{ran}");
    kill_process(shim, Signal::CONT).expect("it lives");
    for task in [idle, other] {
        task.end();
    }
}
