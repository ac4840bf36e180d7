//! A real containerd, with `ctr`: what people do, and what the task sees when the daemon stops, dies and comes back.

use std::fs;
use std::path::PathBuf;

use bowline_tests::Host;
use bowline_tests::harness::containerd::Output;
use bowline_tests::harness::{Daemon, eventually, only_v2, process_exists};
use rustix::process::Signal;

/// A megabyte a second, in lines of a thousand bytes that are counted, for three seconds.
const WRITER: &str = "line=$(printf '%0990d' 0); i=0; while [ $i -lt 3000 ]; do echo \"$i $line\"; i=$((i+1)); \
                      [ $((i % 100)) != 0 ] || sleep 0.1; done; exit 7";

/// Waits for the word of [`go`].
const UNTIL_GO: &str = "while [ ! -e /go ]; do sleep 0.05; done; ";

/// Has a task go on that waits for it.
fn go(daemon: &Daemon<'_>) {
    fs::write(daemon.root.path().join("go"), "").expect("the root is ours");
}

/// What is done beside a task that sleeps, where there is a containerd.
#[track_caller]
fn beside_a_sleeper(test: impl FnOnce(&mut Daemon<'_>, &str)) {
    let host = Host::new();
    let Some(mut daemon) = host.daemon() else { return };
    let id = host.new_id();
    daemon.run_detached(&id, "sleep 1000");
    test(&mut daemon, &id);
    daemon.remove(&id);
    daemon.end();
}

#[track_caller]
fn wait_until_stopped(daemon: &Daemon<'_>, id: &str) {
    eventually("the end", || (daemon.status(id)? == "STOPPED").then_some(()));
}

/// Stopped, or nothing that containerd knows of any more.
#[track_caller]
fn wait_until_stopped_or_gone(daemon: &Daemon<'_>, id: &str) {
    eventually("the end is known", || daemon.status(id).is_none_or(|status| status == "STOPPED").then_some(()));
}

/// The FIFO that `ctr` has made for a task's stdout.
fn stdout_of(host: &Host, id: &str) -> PathBuf {
    let folders = fs::read_dir(host.work().join("fifos")).expect("ctr's folder");
    let name = format!("{id}-stdout");
    folders.flatten().map(|folder| folder.path().join(&name)).find(|path| path.exists()).expect("a FIFO")
}

/// Every line up to the last whole one has the number after that of the line before.
#[track_caller]
fn assert_complete(text: &[u8], lines: usize) {
    let text = String::from_utf8_lossy(text);
    let mut count = 0;
    for (index, line) in text.lines().enumerate() {
        assert_eq!(line.split(' ').next(), Some(index.to_string().as_str()), "after {index} lines");
        count += 1;
    }
    assert_eq!(count, lines);
}

/// Waits until the task waits for room in its pipe.
fn wait_until_full(pid: i32) {
    eventually("the task waits for room", || {
        let wchan = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        wchan.contains("pipe").then_some(())
    });
}

#[test]
fn ctr_run_runs_and_removes() {
    let host = Host::new();
    let Some(daemon) = host.daemon() else { return };
    let ran = host.execute(daemon.run(&["--rm"], &host.new_id(), "echo hello; echo trouble >&2; exit 3"));
    assert_eq!((ran.code, ran.out().as_str(), ran.err().contains("trouble")), (Some(3), "hello", true), "{ran}");
    assert!(daemon.ctr(["container", "ls", "-q"]).out().is_empty());
    daemon.end();
}

#[test]
fn ctr_run_at_a_terminal() {
    let host = Host::new();
    let Some(daemon) = host.daemon() else { return };
    let command = daemon.run(&["--rm", "--tty"], &host.new_id(), "test -t 0 && echo it is a terminal");
    let pty = host.command_in_terminal(&command);
    pty.wait_for("it is a terminal");
    pty.finish();
    daemon.end();
}

#[test]
fn ctr_task_exec_runs_in_the_task() {
    beside_a_sleeper(|daemon, id| {
        let ran = daemon.ctr(["task", "exec", "--exec-id", "e", id, "/bin/sh", "-c", "echo in; exit 5"]);
        assert_eq!((ran.code, ran.out().as_str()), (Some(5), "in"), "{ran}");
    });
}

#[test]
fn ctr_lists_kills_and_tells_the_status() {
    let host = Host::new();
    let Some(daemon) = host.daemon() else { return };
    let id = host.new_id();
    daemon.run_detached(&id, "trap 'exit 9' TERM; while :; do sleep 0.1; done");
    assert_eq!(daemon.status(&id).as_deref(), Some("RUNNING"));
    let pid = daemon.task_pid(&id);
    assert!(daemon.ctr(["task", "ps", &id]).out().contains(&pid.to_string()));
    daemon.ctr(["task", "kill", &id]).assert_code(0);
    wait_until_stopped(&daemon, &id);
    daemon.remove_ended(&id, 9);
    daemon.end();
}

#[test]
fn ctr_pauses_and_resumes() {
    beside_a_sleeper(|daemon, id| {
        daemon.ctr(["task", "pause", id]).assert_code(0);
        assert_eq!(daemon.status(id).as_deref(), Some("PAUSED"));
        daemon.ctr(["task", "resume", id]).assert_code(0);
        assert_eq!(daemon.status(id).as_deref(), Some("RUNNING"));
    });
}

#[test]
fn ctr_metrics_has_figures() {
    beside_a_sleeper(|daemon, id| {
        let ran = daemon.ctr(["task", "metrics", id]);
        ran.assert_code(0);
        let name = if only_v2() { "memory.usage " } else { "memory.usage_in_bytes" };
        let line = ran.out().lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{ran}")).to_owned();
        let value: u64 = line.split_whitespace().last().expect("a figure").parse().expect("a number");
        assert!(value > 0, "{line}");
    });
}

#[test]
fn ctr_events_tells_a_life() {
    let host = Host::new();
    let Some(daemon) = host.daemon() else { return };
    let id = host.new_id();
    let events = host.spawn_command(daemon.command(["events"]));
    events.read_stdout();
    // It says nothing when it has begun: something is made to happen until it hears of it.
    let label = |number: usize| daemon.ctr(["namespaces", "label", host.prefix(), &format!("n={number}")]);
    let mut number = 0;
    eventually("ctr listens", || {
        number += 1;
        label(number).assert_code(0);
        events.has_said("/namespaces/").then_some(())
    });
    host.execute(daemon.run(&["--rm", "--null-io"], &id, "exit 4")).assert_code(4);
    for topic in ["/tasks/create", "/tasks/start", "/tasks/exit", "/tasks/delete"] {
        events.wait_for_out(topic);
    }
    drop(events);
    daemon.end();
}

#[test]
fn a_command_that_is_not_there_is_told_as_such() {
    beside_a_sleeper(|daemon, id| {
        let ran = daemon.ctr(["task", "exec", "--exec-id", "e", id, "nowhere"]);
        assert!(ran.code != Some(0) && ran.err().contains("executable file not found"), "{ran}");
    });
}

#[test]
fn nothing_is_lost_while_containerd_and_its_reader_are_stopped() {
    let host = Host::new();
    let Some(daemon) = host.daemon() else { return };
    let id = host.new_id();
    let fifos = host.work().join("fifos");
    daemon.run_detached_with(&["--fifo-dir", fifos.to_str().expect("ASCII")], &id, &format!("{UNTIL_GO}{WRITER}"));
    let stdout = Output::open(&stdout_of(&host, &id));
    let pid = daemon.task_pid(&id);
    go(&daemon);
    stdout.wait_for("\n");
    daemon.signal(Signal::STOP);
    stdout.pause();
    wait_until_full(pid);
    daemon.signal(Signal::CONT);
    stdout.resume();
    wait_until_stopped(&daemon, &id);
    assert!(!process_exists(pid));
    assert_complete(stdout.to_end().as_bytes(), 3000);
    daemon.remove_ended(&id, 7);
    daemon.end();
}

#[test]
fn nothing_is_lost_when_containerd_dies_and_comes_back() {
    let host = Host::new();
    let Some(mut daemon) = host.daemon() else { return };
    let id = host.new_id();
    let fifos = host.work().join("fifos");
    daemon.run_detached_with(&["--fifo-dir", fifos.to_str().expect("ASCII")], &id, &format!("{UNTIL_GO}{WRITER}"));
    let path = stdout_of(&host, &id);
    let pid = daemon.task_pid(&id);
    let stdout = Output::open(&path);
    go(&daemon);
    stdout.wait_for("\n");
    daemon.kill();
    let mut text = stdout.leave();
    wait_until_full(pid);
    daemon.come_back();
    let stdout = Output::open(&path);
    assert_eq!(daemon.status(&id).as_deref(), Some("RUNNING"));
    assert_eq!(daemon.task_pid(&id), pid);
    wait_until_stopped(&daemon, &id);
    text.extend(stdout.to_end().as_bytes());
    assert_complete(&text, 3000);
    daemon.remove_ended(&id, 7);
    daemon.end();
}

#[test]
fn an_end_while_containerd_is_away_is_reported_afterwards() {
    let host = Host::new();
    let Some(mut daemon) = host.daemon() else { return };
    let id = host.new_id();
    daemon.run_detached(&id, &format!("{UNTIL_GO}exit 6"));
    let pid = daemon.task_pid(&id);
    daemon.kill();
    go(&daemon);
    eventually("the end", || (!process_exists(pid)).then_some(()));
    daemon.come_back();
    // containerd 1.7 takes a shim without processes for a dead one, and reaps it before it answers anybody.
    wait_until_stopped_or_gone(&daemon, &id);
    if daemon.status(&id).is_some() {
        daemon.remove_ended(&id, 6);
    } else {
        daemon.ctr(["container", "rm", &id]).assert_code(0);
    }
    daemon.end();
}

#[test]
fn a_task_can_be_used_as_before_once_containerd_is_back() {
    beside_a_sleeper(|daemon, id| {
        daemon.kill();
        daemon.come_back();
        let ran = daemon.ctr(["task", "exec", "--exec-id", "e", id, "/bin/sh", "-c", "echo still"]);
        assert_eq!(ran.out(), "still", "{ran}");
    });
}

#[test]
fn a_dead_shim_is_cleaned_up_after() {
    let host = Host::new();
    let Some(daemon) = host.daemon() else { return };
    let id = host.new_id();
    daemon.run_detached(&id, "sleep 1000");
    let pid = daemon.task_pid(&id);
    let socket = daemon.socket_of(&id);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a live process");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("a parent").trim();
    let shim = rustix::process::Pid::from_raw(parent.parse().expect("a pid")).expect("a pid");
    rustix::process::kill_process(shim, Signal::KILL).expect("the shim lives");
    eventually("the task is ended", || (!process_exists(pid)).then_some(()));
    wait_until_stopped_or_gone(&daemon, &id);
    daemon.ctr(["task", "rm", "-f", &id]);
    eventually("it is forgotten", || (daemon.ctr(["container", "rm", &id]).code == Some(0)).then_some(()));
    // Nobody unlinks what a killed shim has left; the next one of that address does.
    let _ = fs::remove_file(socket);
    daemon.end();
}
