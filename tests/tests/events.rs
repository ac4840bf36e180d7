//! Events: in order over a whole life, kept beyond it, and no harm where they
//! cannot be.

use std::fs;
use std::thread;

use bowline_tests::Host;
use bowline_tests::harness::{Ran, eventually, process_exists};
use rustix::process::Signal;
use serde_json::Value;

const IDLE: &str = "exec sleep 1000";

/// A shell that ends when it is asked to.
const OBEDIENT: &str = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done";

/// The events of these tasks, or of all.
#[track_caller]
fn events(host: &Host, args: &[&str]) -> Vec<Value> {
    parsed(host.bowline(["events", "--json"].iter().chain(args)).assert_code(0))
}

#[track_caller]
fn parsed(ran: &Ran) -> Vec<Value> {
    let out = ran.out();
    out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("no JSON: {e}\n{ran}"))).collect()
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["event"].as_str()).collect()
}

fn numbers(events: &[Value]) -> Vec<u64> {
    events.iter().filter_map(|event| event["seq"].as_u64()).collect()
}

#[test]
fn a_whole_life_is_told_in_order() {
    let host = Host::new();
    let task = host.task(OBEDIENT).flag("--memory=64M").start();
    task.wait_for_line("ready");
    let pid = task.pid();
    task.exec("exit 3").assert_code(3);
    task.bowline("pause", []).assert_code(0);
    task.bowline("resume", []).assert_code(0);
    task.bowline("update", ["--pids=99"]).assert_code(0);
    task.stop(["--grace=50s"]).assert_code(0);
    task.bowline("rm", []).assert_code(0);
    let all = events(&host, &[task.id()]);
    let life = ["created", "started", "exec", "paused", "resumed", "updated", "exited", "removed"];
    assert_eq!(names(&all), life, "{all:?}");
    assert_eq!(numbers(&all), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(all[0]["command"][0], "/bin/sh");
    assert_eq!(all[1]["pid"], pid);
    assert_eq!((&all[2]["exit_code"], &all[2]["command"][2]), (&3.into(), &"exit 3".into()));
    assert_eq!(all[5]["limits"]["pids"], 99);
    assert_eq!((&all[6]["exit_code"], &all[6]["shim_died"]), (&0.into(), &false.into()));
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_run_that_removes_itself_is_told_to_its_end() {
    let host = Host::new();
    let build = host.task("exit 4").flag("--rm");
    let id = build.id().to_owned();
    build.run().assert_code(4);
    let all = events(&host, &[&id]);
    assert_eq!(names(&all), ["created", "started", "exited", "removed"]);
    assert_eq!(all[2]["exit_code"], 4);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_launch_that_fails_is_no_event() {
    let host = Host::new();
    host.task_of(["/bin/no-such-command"]).assert_refused(127, &["no-such-command"]);
    assert_eq!(events(&host, &[]), [] as [Value; 0]);
}

#[test]
fn an_exec_at_its_deadline_has_no_exit_code() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    task.exec_with(["--timeout=100ms"], IDLE).assert_code(124);
    let all = events(&host, &[]);
    assert_eq!(all[2]["event"], "exec");
    assert!(all[2]["exit_code"].is_null(), "{all:?}");
    task.end();
}

#[test]
fn an_exec_that_ends_with_its_task_is_told_before_the_exit() {
    for namespace in ["private", "host"] {
        let host = Host::new();
        let idle = format!("command = 'sleep'\nargs = ['1000']\nnamespaces.pid = '{namespace}'");
        let task = host.described(&idle).start();
        let exec = task.spawn_exec([], "echo begun; exec sleep 1000");
        exec.wait_for_out("begun");
        task.end();
        exec.finish().assert_code(137);
        assert_eq!(names(&events(&host, &[])), ["created", "started", "exec", "exited"], "{namespace}");
        host.assert_nothing_left();
    }
}

#[test]
fn a_child_that_runs_out_of_memory_is_told_while_the_task_lives() {
    let host = Host::new();
    let task = host.task(IDLE).flag("--memory=32M").start();
    let follow = host.spawn(["events", "--follow", "--json", task.id()]);
    follow.wait_for_out("started");
    task.exec("tail /dev/zero").assert_code(137);
    follow.wait_for_out("\"oom\"");
    assert_eq!(task.status(), "running");
    task.end();
    let all = events(&host, &[]);
    let ooms: Vec<_> = all.iter().filter(|event| event["event"] == "oom").collect();
    assert_eq!(ooms.len(), 1, "{all:?}");
    assert_eq!(ooms[0]["kills"], 1);
    follow.wait_for_out("exited");
    drop(follow);
}

#[test]
fn an_init_that_runs_out_of_memory_is_told_before_its_exit() {
    let host = Host::new();
    let task = host.task("exec tail /dev/zero").flag("--memory=32M").start();
    task.wait().assert_killed_by("KILL");
    let all = events(&host, &[]);
    assert_eq!(names(&all), ["created", "started", "oom", "exited"]);
    assert_eq!((&all[3]["oom_killed"], &all[3]["signal"]), (&true.into(), &"SIGKILL".into()));
}

#[test]
fn a_task_whose_shim_died_is_told_of_by_whoever_cleans_up() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    task.exec("true").assert_code(0);
    task.kill_shim(task.shim_pid());
    task.bowline("rm", ["-f"]).assert_code(0);
    let all = events(&host, &[]);
    assert_eq!(names(&all), ["created", "started", "exec", "exited", "removed"]);
    assert_eq!(numbers(&all), [1, 2, 3, 4, 5]);
    assert_eq!((&all[3]["shim_died"], &all[3]["exit_code"]), (&true.into(), &Value::Null));
    host.assert_nothing_left_without_rm();
}

#[test]
fn tasks_at_once_lose_no_event_and_each_keeps_its_order() {
    let host = Host::new();
    let tasks: Vec<_> = (0..3).map(|_| host.task(IDLE).start()).collect();
    thread::scope(|scope| {
        for task in &tasks {
            let ids = (task.id().to_owned(), host.state());
            scope.spawn(move || {
                for _ in 0..10 {
                    let mut exec = std::process::Command::new(bowline_tests::harness::binary("bowline"));
                    exec.arg("--state").arg(&ids.1).args(["exec", &ids.0, "--", "true"]);
                    assert!(exec.status().expect("bowline").success());
                }
            });
        }
    });
    for task in &tasks {
        task.end();
        let all = events(&host, &[task.id()]);
        assert_eq!(numbers(&all), (1..=13).collect::<Vec<_>>(), "{all:?}");
        assert_eq!(names(&all)[12], "exited");
    }
}

#[test]
fn follow_prints_an_event_that_comes_later() {
    let host = Host::new();
    let follow = host.spawn(["events", "-f"]);
    let task = host.task(IDLE).start();
    follow.wait_for_out("started");
    task.bowline("pause", []).assert_code(0);
    follow.wait_for_out("paused");
    task.end();
    follow.wait_for_out("exited  exit code 137, SIGKILL");
    follow.signal(Signal::INT);
    assert_eq!(follow.finish().code, None);
}

#[test]
fn follow_ends_when_nobody_reads_it_any_more() {
    let host = Host::new();
    let mut follow = host.spawn_unread(["events", "--follow"]);
    let pid = follow.pid();
    assert!(follow.is_running());
    follow.close_stdout();
    eventually("it ends without an event", || (!process_exists(pid)).then_some(()));
}

#[test]
fn follow_ends_at_the_time_that_is_asked_for() {
    let host = Host::new();
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_millis(200);
    host.bowline(["events", "--follow", "--until", &soon.to_string()]).assert_code(0);
}

#[test]
fn times_choose_events() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let between = jiff::Timestamp::now().to_string();
    task.end();
    assert_eq!(names(&events(&host, &["--until", &between])), ["created", "started"]);
    assert_eq!(names(&events(&host, &["--since", &between])), ["exited"]);
    assert_eq!(names(&events(&host, &["--since", "1h"])), ["created", "started", "exited"]);
    assert_eq!(events(&host, &["--until", "1h"]), [] as [Value; 0]);
}

#[test]
fn a_time_that_is_none_says_what_to_write() {
    let host = Host::new();
    for flag in ["--since", "--until"] {
        host.bowline(["events", flag, "yesterday"]).assert_refused(2, &["yesterday", "10m"]);
    }
}

#[test]
fn ids_choose_events_and_an_unknown_one_is_an_error() {
    let host = Host::new();
    let (a, b) = (host.task(IDLE).start(), host.task(IDLE).start());
    a.end();
    b.end();
    let both = events(&host, &[a.id(), b.id()]);
    assert_eq!(both.len(), 6);
    assert!(events(&host, &[a.id()]).iter().all(|event| event["id"] == a.id()));
    a.bowline("rm", []).assert_code(0);
    assert_eq!(names(&events(&host, &[a.id()])).last(), Some(&"removed"));
    for follow in [&[][..], &["-f"]] {
        host.bowline(["events", "no-such"].iter().chain(follow)).assert_refused(125, &["no-such"]);
    }
}

#[test]
fn an_unwritable_journal_harms_no_task_and_counts_what_it_lost() {
    let host = Host::new();
    let task = host.task(OBEDIENT).start();
    task.wait_for_line("ready");
    // Not even root can make a file there.
    let folder = host.state().join(".events");
    fs::remove_dir_all(&folder).expect("it was made");
    fs::write(&folder, "").expect("the state folder is writable");
    task.exec("true").assert_code(0);
    task.exec("true").assert_code(0);
    fs::remove_file(&folder).expect("it was made");
    task.exec("true").assert_code(0);
    let all = events(&host, &[]);
    assert_eq!((names(&all), &all[0]["seq"], &all[0]["lost"]), (vec!["exec"], &5.into(), &2.into()));
    task.stop(["--grace=50s"]).assert_code(0);
}

#[test]
fn a_journal_on_a_read_only_disk_harms_no_task() {
    let host = Host::new();
    fs::create_dir(host.state()).expect("the test's own");
    let disk = host.tmpfs("../s/.events", "size=64k");
    disk.read_only();
    let build = host.task("exit 5").flag("--rm");
    build.run().assert_code(5);
    assert_eq!(events(&host, &[]), [] as [Value; 0]);
    drop(disk);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_journal_on_a_full_disk_harms_no_task() {
    let host = Host::new();
    fs::create_dir(host.state()).expect("the test's own");
    let disk = host.tmpfs("../s/.events", "size=16k");
    // An error, as meant: no byte is free then.
    assert!(fs::write(disk.path().join("filler"), vec![0; 1 << 20]).is_err());
    let task = host.task(IDLE).start();
    fs::remove_file(disk.path().join("filler")).expect("it was made");
    task.end();
    let all = events(&host, &[]);
    assert_eq!((names(&all), &all[0]["lost"], &all[0]["seq"]), (vec!["exited"], &2.into(), &3.into()));
    drop(disk);
}

#[test]
fn a_journal_that_is_corrupt_harms_no_task_and_is_said_to_be() {
    let host = Host::new();
    let folder = host.state().join(".events");
    fs::create_dir_all(&folder).expect("the test's own");
    fs::write(folder.join("journal"), b"\0\0\xff\xfe garbage\n{\"time\":\"yesterday\"}\n").expect("the test's own");
    let throttled = "cpu.limit = 0.1\n[watch.throttled]\nabove = '50ms'\nevery = '300ms'\naction = 'stop'";
    let busy = "command = '/bin/sh'\nargs = ['-c', 'while :; do :; done']\nstop.grace = '1s'\n";
    let task = host.described(&format!("{busy}{throttled}")).start();
    assert_eq!(task.wait()["stopped_by"], "watch");
    let ran = host.bowline(["events", "--json"]);
    assert_eq!(names(&parsed(ran.assert_code(0))), ["created", "started", "watch", "exited"]);
    assert!(ran.err().contains("2 lines of the journal are damaged"), "{ran}");
    let ran = host.bowline(["explain", task.id()]);
    assert!(ran.assert_code(0).out().contains("stopped by its watch"), "{ran}");
    assert!(ran.err().contains("2 lines of the journal are damaged"), "{ran}");
}

#[test]
fn a_full_journal_is_rotated_and_followers_go_on() {
    let host = Host::new();
    let folder = host.state().join(".events");
    fs::create_dir_all(&folder).expect("the test's own");
    let line =
        |seq: u32| format!("{{\"time\":\"2026-05-01T12:00:00Z\",\"id\":\"old\",\"seq\":{seq},\"event\":\"paused\"}}\n");
    let lines: String = (1..=20_000).map(line).collect();
    assert!(lines.len() > 1 << 20);
    fs::write(folder.join("journal"), &lines).expect("the test's own");
    let follow = host.spawn(["events", "-f", "--since", "1h"]);
    let task = host.task(IDLE).start();
    follow.wait_for_out("started");
    assert_eq!(fs::read_to_string(folder.join("journal.1")).expect("it was put aside"), lines);
    task.end();
    follow.wait_for_out("exited");
    let all = events(&host, &[]);
    assert_eq!((all.len(), names(&all).last()), (20_003, Some(&"exited")));
    drop(follow);
}

#[test]
fn a_launch_whose_events_cannot_be_written_runs() {
    let host = Host::new();
    fs::create_dir(host.state()).expect("the test's own");
    fs::write(host.state().join(".events"), "").expect("the state folder is writable");
    let build = host.task("exit 5").flag("--rm");
    build.run().assert_code(5);
    host.bowline(["events"]).assert_refused(125, &[".events"]);
    host.assert_nothing_left_without_rm();
}

#[test]
fn without_any_task_there_are_no_events() {
    let host = Host::new();
    host.bowline(["events"]).assert_code(0).assert_says("");
    assert!(!host.state().exists(), "reading makes nothing");
}
