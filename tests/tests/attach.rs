//! `attach`: who comes to a running task, what it sees, and how it leaves.

use bowline_tests::Host;
use bowline_tests::harness::{binary, eventually};
use rustix::process::Signal;

/// Echoes each line that it reads in brackets.
const ECHO: &str = "echo ready; while read -r line; do echo \"[$line]\"; done; echo over";

#[test]
fn one_leaves_a_terminal_and_comes_back() {
    let host = Host::new();
    let (task, first) = host.task(ECHO).flag("-it").run_in_terminal();
    first.wait_for("ready\n");
    first.type_keys("one\r");
    first.wait_for("[one]\n");
    first.type_keys("\x10\x11");
    let left = first.finish();
    left.assert_code(0);
    assert!(left.err().contains(&format!("bowline attach {}", task.id())), "{left}");

    let second = task.in_terminal("attach", []);
    second.wait_until_raw();
    second.type_keys("two\r");
    second.wait_for("[two]\n");
    second.type_keys("\x04");
    let ended = second.finish();
    ended.assert_code(0);
    assert!(ended.out().ends_with("over"), "{ended}");
}

#[test]
fn a_task_in_the_background_may_have_a_terminal() {
    let host = Host::new();
    let task = host.task(ECHO).flag("-it").start();
    let terminal = task.in_terminal("attach", []);
    terminal.wait_until_raw();
    terminal.type_keys("hello\r");
    terminal.wait_for("[hello]\n");
    terminal.type_keys("\x04");
    terminal.finish().assert_code(0);
}

#[test]
fn two_may_be_attached_at_once() {
    let host = Host::new();
    let task = host.task(ECHO).flag("-it").start();
    let one = task.in_terminal("attach", []);
    let other = task.in_terminal("attach", []);
    one.wait_until_raw();
    other.wait_until_raw();
    // A terminal is raw before the shim has heard of it.
    eventually("both are attached", || (attached(&task) == 2).then_some(()));
    one.type_keys("from one\r");
    other.wait_for("[from one]\n");
    one.wait_for("[from one]\n");
    other.type_keys("from the other\r");
    one.wait_for("[from the other]\n");
    one.type_keys("\x10\x11");
    one.finish().assert_code(0);
    other.type_keys("alone\r");
    other.wait_for("[alone]\n");
    other.type_keys("\x04");
    other.finish().assert_code(0);
}

#[test]
fn a_task_that_ends_ends_what_is_attached_with_its_code() {
    let host = Host::new();
    let task = host.task("read x; seq 1 20000; echo err >&2; exit 4").flag("-i").start();
    let one = host.spawn(["attach", "--no-stdin", task.id()]);
    let other = host.spawn(["attach", "--no-stdin", task.id()]);
    eventually("both are attached", || (attached(&task) == 2).then_some(()));
    let mut go = host.command("sh");
    go.args(["-c", "echo go | $BOWLINE attach $TASK"]).env("BOWLINE", binary("bowline")).env("TASK", task.id());
    let third = host.execute(go);
    let expected: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    for ran in [one.finish(), other.finish(), third] {
        ran.assert_code(4);
        assert!(ran.stdout == expected.as_bytes(), "{ran}");
        assert_eq!(ran.err(), "err");
    }
}

/// How many are attached: each has FIFOs in the task's folder, opened by its shim.
fn attached(task: &bowline_tests::harness::Task<'_>) -> usize {
    let fds = bowline_tests::harness::fds_of(task.shim_pid());
    fds.iter().filter(|target| target.contains("/attach-") && target.ends_with("/stdout")).count()
}

#[test]
fn attached_or_not_a_task_without_i_reads_nothing() {
    let host = Host::new();
    let task = host.task("cat; echo read; trap 'exit 3' TERM; while :; do sleep 0.1; done").start();
    task.wait_for_line("read");
    let attach = host.spawn(["attach", task.id()]);
    eventually("it is attached", || (attached(&task) == 1).then_some(()));
    task.stop([]).assert_code(3);
    attach.finish().assert_code(3);
}

#[test]
fn control_c_leaves_a_task_without_a_terminal_running() {
    let host = Host::new();
    let task = host.task("echo ready; exec sleep 1000").start();
    let attach = host.spawn(["attach", task.id()]);
    eventually("it is attached", || (attached(&task) == 1).then_some(()));
    attach.signal(Signal::INT);
    let left = attach.finish();
    left.assert_code(130);
    assert!(left.err().starts_with("bowline: left"), "{left}");
    assert_eq!(task.status(), "running");
    eventually("its FIFOs are gone", || (attached(&task) == 0 && folders(&task) == 0).then_some(()));
    task.end();
}

fn folders(task: &bowline_tests::harness::Task<'_>) -> usize {
    let entries = std::fs::read_dir(task.file("")).expect("the task's folder");
    entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("attach-")).count()
}

#[test]
fn signals_are_passed_on_if_that_is_asked_for() {
    let host = Host::new();
    let task = host.task("trap 'echo got it; exit 8' INT; echo ready; while :; do sleep 0.1; done").start();
    task.wait_for_line("ready");
    let attach = host.spawn(["attach", "--sig-proxy", task.id()]);
    eventually("it is attached", || (attached(&task) == 1).then_some(()));
    attach.signal(Signal::INT);
    let ran = attach.finish();
    assert_eq!(ran.assert_code(8).out(), "got it");
}

#[test]
fn who_passes_signals_on_leaves_with_its_terminal() {
    let host = Host::new();
    let task = host.task("trap 'echo hung up' HUP; echo ready; while :; do sleep 0.1; done").start();
    task.wait_for_line("ready");
    let terminal = task.in_terminal("attach", ["--sig-proxy"]);
    eventually("it is attached", || (attached(&task) == 1).then_some(()));
    terminal.hang_up().finish().assert_code(129);
    assert_eq!(folders(&task), 0);
    task.bowline("kill", ["--signal=HUP"]).assert_code(0);
    task.wait_for_line("hung up");
    assert_eq!(task.bowline("logs", []).out().matches("hung up").count(), 1, "the loss is no signal");
    task.end();
}

#[test]
fn who_can_watch_no_files_is_told_which_limit_that_is() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").toml("stdin = true").start();
    let id = task.id();
    for (call, errno, limit, verbs) in [
        ("inotify_init1", "EMFILE", "fs.inotify.max_user_instances", 4),
        ("inotify_add_watch", "ENOSPC", "fs.inotify.max_user_watches", 3),
    ] {
        let all = [&["exec", "-i", id, "true"][..], &["attach", id], &["events", "--follow"], &["logs", "-f", id]];
        for args in &all[..verbs] {
            let mut command = host.command("strace");
            command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("inject={call}:error={errno}")]);
            command.arg(binary("bowline")).args(*args);
            host.execute(command).assert_refused(125, &[limit]);
        }
    }
    task.end();
}

#[test]
fn the_keys_to_leave_can_be_chosen() {
    let host = Host::new();
    let task = host.task(ECHO).flag("-it").start();
    let terminal = task.in_terminal("attach", ["--detach-keys=ctrl-a,d"]);
    terminal.wait_until_raw();
    terminal.type_keys("\x10\x11not these\r");
    terminal.wait_for("not these]\n");
    terminal.type_keys("\x01d");
    terminal.finish().assert_code(0);

    let mut attach = host.command(binary("bowline"));
    attach.args(["attach", task.id()]).env("BOWLINE_DETACH_KEYS", "x");
    let terminal = host.command_in_terminal(&attach);
    terminal.wait_until_raw();
    terminal.type_keys("x");
    terminal.finish().assert_code(0);

    let ran = task.bowline("attach", ["--detach-keys=meta-q"]);
    ran.assert_refused(2, &["meta-q", "--detach-keys"]);
    assert_eq!(task.status(), "running");
    task.end();
}

#[test]
fn a_reader_that_is_stopped_is_let_go_and_the_task_runs_on() {
    let host = Host::new();
    let task = host.task("read x; seq 1 1000000; echo all >&2; exec sleep 1000").flag("-i").start();
    let attach = host.spawn(["attach", "--no-stdin", task.id()]);
    eventually("it is attached", || (attached(&task) == 1).then_some(()));
    attach.signal(Signal::STOP);
    let mut go = host.command("sh");
    go.args(["-c", "echo go | $BOWLINE attach $TASK"]).env("BOWLINE", binary("bowline")).env("TASK", task.id());
    let other = host.spawn_command(go);
    other.read_stdout();
    // Once the stopped one has taken nothing for ten seconds.
    other.wait_for_err("all");
    eventually("the stopped one is let go", || (attached(&task) == 1).then_some(()));
    attach.signal(Signal::CONT);
    task.end();
    let ran = other.finish();
    assert!(ran.out().ends_with("\n1000000"), "nothing is lost by the other one\n{ran}");
    attach.finish();
}

#[test]
fn there_is_nothing_to_attach_to_but_what_runs() {
    let host = Host::new();
    host.bowline(["attach", "nobody"]).assert_refused(125, &["there is no task named nobody"]);
    let task = host.task("exit 3").start();
    task.wait();
    task.bowline("attach", []).assert_refused(125, &[task.id(), "has exited"]);
    let task = host.task("exec sleep 1000").start();
    task.bowline("pause", []).assert_code(0);
    let paused = task.bowline("attach", []);
    paused.assert_refused(125, &[task.id(), "is paused"]);
    assert!(paused.err().contains("bowline resume"), "{paused}");
    task.bowline("resume", []).assert_code(0);
    task.end();
}
