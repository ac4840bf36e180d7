//! `--rm`: the shim removes its task at its end, whoever has asked for that and is there by then.

use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::{Task, eventually, process_exists};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Ends with 6 where it is asked to.
const POLITE: &str = "trap 'exit 6' TERM; echo ready; while :; do sleep 0.02; done";

#[track_caller]
fn wait_until_removed(task: &Task<'_>) {
    eventually(format_args!("{} is removed", task.id()), || (!task.file("").exists()).then_some(()));
}

#[track_caller]
fn assert_told_as_removed(host: &Host, id: &str) {
    let all = eventually("its removal is an event", || {
        let all = host.bowline(["events", "--json", id]).assert_code(0).out();
        all.contains("\"removed\"").then_some(all)
    });
    let names: Vec<Value> = all
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["event"].clone())
        .filter(|event| event != "exec")
        .collect();
    assert_eq!(names, ["created", "started", "exited", "removed"]);
}

#[test]
fn who_detaches_leaves_the_removal_to_the_shim() {
    let host = Host::new();
    let (task, terminal) = host.task(POLITE).flag("-it").flag("--rm").run_in_terminal();
    terminal.wait_for("ready");
    terminal.type_keys("\x10\x11");
    let left = terminal.finish();
    left.assert_code(0);
    assert!(left.to_string().contains("removed once it has ended"), "{left}");
    host.bowline(["stop", task.id()]).assert_code(0);
    wait_until_removed(&task);
    assert_told_as_removed(&host, task.id());
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_client_that_is_killed_leaves_the_removal_to_the_shim() {
    let host = Host::new();
    let (task, run) = host.task(POLITE).flag("--rm").spawn();
    run.wait_for_out("ready");
    task.wait_until_recorded();
    run.signal(Signal::KILL);
    run.finish();
    host.bowline(["stop", task.id()]).assert_code(0);
    wait_until_removed(&task);
    assert_told_as_removed(&host, task.id());
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_task_in_the_background_is_removed_and_its_code_is_known() {
    let host = Host::new();
    for verb in [&["run", "-d"][..], &["start"]] {
        let id = host.new_id();
        let flags = ["--rm", "--name", &id, "--", "sh", "-c", "exit 3"];
        host.bowline([verb, &flags[..]].concat()).assert_says(&id);
        let task = host.adopt(&id);
        wait_until_removed(&task);
        assert_told_as_removed(&host, &id);
        host.bowline(["wait", &id]).assert_refused(125, &[&id, "was removed", "it ended with 3"]);
        // The name is free.
        host.task("exit 4").named(&id).flag("--rm").run().assert_code(4);
        host.bowline(["wait", &id]).assert_refused(125, &["it ended with 4"]);
    }
    host.bowline(["wait", "no-such-task"]).assert_refused(125, &["there is no task"]);
    host.assert_nothing_left_without_rm();
}

#[test]
fn who_waits_for_a_task_that_is_removed_is_told_how_it_ended() {
    let host = Host::new();
    let task = host.task(POLITE).flag("--rm").start();
    task.wait_for_line("ready");
    let waiters = [host.spawn(["wait", "--json", task.id()]), host.spawn(["wait", task.id()])];
    eventually("both wait", || (task.socket_ends() >= 3).then_some(()));
    let logs = host.spawn(["logs", "--follow", task.id()]);
    logs.wait_for_out("ready");
    host.bowline(["stop", task.id()]).assert_code(0);
    let [json, plain] = waiters;
    let report = json.finish().assert_code(0).json();
    assert_eq!((&report["exit_code"], &report["stopped_by"]), (&6.into(), &"request".into()), "{report}");
    assert!(report["stdout_tail"].as_str().is_some_and(|tail| tail.starts_with("ready")), "{report}");
    assert_eq!(plain.finish().assert_code(0).out(), "6");
    assert_eq!(logs.finish().assert_code(0).out(), "ready");
    wait_until_removed(&task);
    host.assert_nothing_left_without_rm();
}

#[test]
fn who_follows_the_log_of_a_removed_task_reads_all_of_it() {
    let host = Host::new();
    let task = host.task("echo ready; until [ -e /tmp/go ]; do sleep 0.02; done; seq 1 20000").flag("--rm").start();
    task.wait_for_line("ready");
    let logs = host.spawn(["logs", "--follow", task.id()]);
    logs.wait_for_out("ready");
    task.exec("touch /tmp/go").assert_code(0);
    let out = logs.finish().assert_code(0).out();
    assert_eq!(out.lines().count(), 20_001, "{}", out.lines().last().unwrap_or_default());
    wait_until_removed(&task);
}

#[test]
fn what_a_dead_shim_did_not_remove_adopt_and_gc_do() {
    let host = Host::new();
    for way in [&["adopt", "--all"][..], &["gc"]] {
        let task = host.task(POLITE).flag("--rm").start();
        task.wait_for_line("ready");
        let init = task.pid();
        task.kill_shim(task.shim_pid());
        kill_process(Pid::from_raw(init).expect("a pid"), Signal::KILL).expect("it lives");
        eventually("it has ended", || (!process_exists(init)).then_some(()));
        host.bowline(way).assert_code(0);
        wait_until_removed(&task);
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn what_ended_before_its_shim_died_adopt_and_gc_remove() {
    let host = Host::new();
    for way in [&["adopt", "--all"][..], &["gc"]] {
        // As if the shim had died between the report and the removal.
        let task = host.task("exit 3").start();
        task.wait().assert_code(3);
        let shim = task.shim_pid_on_disk();
        eventually("its shim has gone", || (!process_exists(shim)).then_some(()));
        task.change_record(|record| record["remove"] = true.into());
        let listed = host.bowline(["gc", "--dry-run"]);
        assert!(listed.assert_code(0).out().contains(task.id()), "{listed}");
        host.bowline(way).assert_code(0);
        assert!(!task.file("").exists(), "{way:?}");
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_new_shim_removes_the_task_that_it_took_over() {
    let host = Host::new();
    let task = host.task(POLITE).flag("--rm").start();
    task.wait_for_line("ready");
    task.kill_shim(task.shim_pid());
    host.bowline(["stop", task.id()]).assert_code(0);
    wait_until_removed(&task);
    assert_told_as_removed(&host, task.id());
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_task_that_was_taken_over_goes_at_once_where_nobody_waits() {
    let host = Host::alone();
    for verb in ["adopt", "upgrade"] {
        let task = host.task(POLITE).flag("--rm").start();
        task.wait_for_line("ready");
        if verb == "adopt" {
            task.kill_shim(task.shim_pid());
        }
        task.bowline(verb, []).assert_code(0);
        let begun = Instant::now();
        task.bowline("kill", ["--signal=TERM"]).assert_code(0);
        wait_until_removed(&task);
        assert!(begun.elapsed() < Duration::from_secs(4), "{verb}: {:?}", begun.elapsed());
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn whoever_is_attached_is_told_by_the_shim_that_took_over() {
    let host = Host::new();
    for flag in ["--json", "--label=a=b"] {
        let (task, run) = host.task(POLITE).flag("--rm").flag(flag).spawn();
        task.wait_until_recorded();
        eventually("it is ready", || (task.exec("kill -0 1").code == Some(0)).then_some(()));
        run.signal(Signal::STOP);
        task.kill_shim(task.shim_pid());
        task.bowline("adopt", []).assert_code(0);
        task.bowline("kill", ["--signal=TERM"]).assert_code(0);
        eventually("its exit is recorded", || task.file("exit.json").exists().then_some(()));
        run.signal(Signal::CONT);
        run.finish().assert_code(6);
        wait_until_removed(&task);
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn the_shim_of_a_sandbox_goes_on_as_a_member_is_removed() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    for code in 1..5 {
        let ran = sandbox.task(&format!("exit {code}")).flag("--rm").flag("--json").run();
        assert_eq!(ran.assert_code(code).json()["exit_code"], code);
    }
    let (member, run) = sandbox.task(POLITE).flag("--rm").spawn();
    run.wait_for_out("ready");
    member.wait_until_recorded();
    run.signal(Signal::KILL);
    run.finish();
    let other = sandbox.task(POLITE).flag("--rm").start();
    other.wait_for_line("ready");
    for task in [&member, &other] {
        host.bowline(["stop", task.id()]).assert_code(0);
        wait_until_removed(task);
        assert_told_as_removed(&host, task.id());
    }
    sandbox.task("exit 9").flag("--rm").run().assert_code(9);
    sandbox.rm([]);
    host.assert_nothing_left_without_rm();
}
