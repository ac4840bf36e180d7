//! A sandbox whose shim died goes on under a new one, with all its members.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::{
    Sandbox, Task, Trace, WRITER, eventually, namespace_of, process_exists, take_lock, touch,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const IDLE: &str = "exec sleep 1000";

/// How often it was taken over, by its shims' words.
fn takeovers(sandbox: &Sandbox<'_>) -> usize {
    fs::read_to_string(sandbox.file("shim.log")).unwrap_or_default().matches("took over a sandbox").count()
}

/// The namespaces that members share, as one that is new finds them.
fn shared(sandbox: &Sandbox<'_>, kinds: &[&str]) -> Vec<String> {
    let member = sandbox.task(IDLE).start();
    let found = kinds.iter().map(|kind| namespace_of(member.pid(), kind)).collect();
    sandbox.lose(&member);
    found
}

#[test]
fn members_limits_and_namespaces_stay_and_new_members_join() {
    for flags in [&["--network=none", "--pids=50"][..], &["--network=none", "--pids=50", "--share-pid"]] {
        let host = Host::new();
        let sandbox = flags.iter().fold(host.sandbox(), |build, flag| build.flag(*flag)).create();
        let kinds: &[&str] = if flags.len() == 3 { &["net", "ipc", "uts", "pid"] } else { &["net", "ipc", "uts"] };
        let [one, two] =
            [0, 1].map(|_| sandbox.task("trap 'exit 4' TERM; echo ready; while :; do sleep 0.05; done").start());
        [&one, &two].into_iter().for_each(|task| task.wait_for_line("ready"));
        let (before, limits, pids) = (shared(&sandbox, kinds), sandbox.limits(), [one.pid(), two.pid()]);
        for round in 1..=2 {
            sandbox.kill_shim();
            assert_eq!((sandbox.status().as_str(), one.status().as_str()), ("dead", "dead"));
            one.exec("echo still there").assert_says("still there");
            assert_eq!((sandbox.status().as_str(), takeovers(&sandbox)), ("ready", round));
            assert_eq!([one.pid(), two.pid()], pids);
            assert_eq!(sandbox.limits(), limits);
            assert_eq!(shared(&sandbox, kinds), before);
            let members = sandbox.inspect()["members"].as_array().expect("a list").len();
            assert_eq!(members, 2);
        }
        assert_eq!(sandbox.stats()["pids"]["current"].as_u64().map(|pids| pids >= 2), Some(true));
        sandbox.update(["--pids=40"]);
        assert_ne!(sandbox.limits(), limits);
        one.stop(["--grace=50s"]).assert_code(4);
        assert_eq!(two.status(), "running");
        sandbox.bowline("rm", []).assert_refused(125, &[two.id()]);
        two.stop(["--grace=50s"]).assert_code(4);
        sandbox.rm([]);
        host.assert_nothing_left();
    }
}

#[test]
fn output_and_exit_codes_are_the_members_own() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let [one, two] = [0, 1].map(|_| sandbox.task(WRITER).flag("--init").start());
    let programs = [&one, &two].map(|task| task.program_pid());
    let waiters = [&one, &two].map(|task| host.spawn(["wait", task.id()]));
    for line in 1..=3 {
        [&one, &two].into_iter().for_each(|task| task.wait_for_line(&format!("line {line}")));
        let before = takeovers(&sandbox);
        one.crash_shim();
        eventually("there is a new shim", || (takeovers(&sandbox) > before).then_some(()));
        programs.into_iter().for_each(|program| touch(program, &line.to_string()));
    }
    [&one, &two].into_iter().for_each(|task| task.wait_for_line("line 4"));
    programs.into_iter().for_each(|program| touch(program, "end"));
    for waiter in waiters {
        waiter.finish().assert_says("7");
    }
    for task in [&one, &two] {
        assert_eq!(task.said("stdout"), "line 1\nline 2\nline 3\nline 4\n");
        assert_eq!(task.wait()["shim_died"], false);
    }
    sandbox.rm([]);
}

#[test]
fn a_run_in_the_foreground_goes_on_reading() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--share-pid").create();
    let (task, run) = sandbox.task(WRITER).flag("--init").spawn();
    run.read_stdout();
    run.wait_for_out("line 1\n");
    let program = task.program_pid();
    for line in 1..=2 {
        run.wait_for_out(&format!("line {line}\n"));
        task.crash_shim();
        eventually("there is a new shim", || (takeovers(&sandbox) == line).then_some(()));
        touch(program, &line.to_string());
    }
    run.wait_for_out("line 3\n");
    touch(program, "end");
    let ran = run.finish();
    ran.assert_code(7);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "line 1\nline 2\nline 3\n");
    sandbox.rm([]);
}

#[test]
fn one_without_members_goes_on() {
    for flags in [&[][..], &["--share-pid", "--network=none"]] {
        let host = Host::new();
        let sandbox = flags.iter().fold(host.sandbox(), |build, flag| build.flag(*flag)).create();
        sandbox.task("true").run().assert_code(0);
        sandbox.kill_shim();
        host.bowline(["adopt", "--all"]).assert_says(sandbox.id());
        let named = sandbox.task("hostname").run();
        named.assert_code(0).assert_says(sandbox.id());
        host.bowline(["adopt", "--all"]).assert_says("");
        sandbox.rm([]);
        host.assert_nothing_left();
    }
}

#[test]
fn members_that_ended_meanwhile_are_reported_and_not_counted() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let [ends, stays] = [0, 1].map(|_| sandbox.task(WRITER).flag("--init").start());
    let program = ends.program_pid();
    [&ends, &stays].into_iter().for_each(|task| task.wait_for_line("line 1"));
    sandbox.kill_shim();
    touch(program, "1");
    touch(program, "end");
    eventually("it has ended", || (!process_exists(program)).then_some(()));
    host.bowline(["adopt", stays.id()]).assert_says(stays.id());
    ends.wait().assert_code(7);
    eventually("it is no member", || (sandbox.inspect()["members"] == json!([stays.id()])).then_some(()));
    sandbox.rm(["-f"]);
}

#[test]
fn a_member_whose_lock_is_held_for_a_moment_is_adopted_too() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let task = sandbox.task(IDLE).start();
    sandbox.kill_shim();
    // As any command has it that looks at whose the member is.
    let lock = take_lock(task.file("lock"));
    let adopting = host.spawn(["adopt", sandbox.id()]);
    let log = sandbox.file("shim.log");
    let said = || fs::read_to_string(&log).unwrap_or_default();
    eventually("the new shim waits", || said().contains("waits for the lock of a member").then_some(()));
    drop(lock);
    adopting.finish().assert_says(sandbox.id());
    task.exec("exit 3").assert_code(3);
    sandbox.rm(["-f"]);
}

#[test]
fn many_who_need_it_at_once_get_the_same_new_shim() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let members: Vec<Task<'_>> = (0..4).map(|_| sandbox.task(IDLE).start()).collect();
    sandbox.kill_shim();
    let asked: Vec<_> = members.iter().cycle().take(12).map(|task| task.spawn_exec([], "echo here")).collect();
    for exec in asked {
        exec.finish().assert_says("here");
    }
    assert_eq!(takeovers(&sandbox), 1);
    sandbox.rm(["-f"]);
}

#[test]
fn it_is_upgraded_after_it_was_taken_over() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--share-pid").create();
    let task = sandbox.task("trap 'exit 4' TERM; echo ready; while :; do sleep 0.05; done").start();
    task.wait_for_line("ready");
    sandbox.kill_shim();
    task.exec("true").assert_code(0);
    host.bowline(["upgrade", sandbox.id()]).assert_says(sandbox.id());
    task.exec("true").assert_code(0);
    sandbox.task("true").run().assert_code(0);
    task.stop(["--grace=50s"]).assert_code(4);
    sandbox.rm([]);
}

#[test]
fn a_pause_process_killed_with_the_shim_is_replaced_unreaped() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--share-pid").create();
    let pause = sandbox.pause_pid();
    let task = sandbox.task(IDLE).start();
    // The kernel ends all of a pid namespace with its first process, which ends when all of them are reaped.
    let tracer = Trace::of(&host, task.pid(), []);
    tracer.hold();
    sandbox.kill_shim();
    kill_process(Pid::from_raw(pause).expect("a pid"), Signal::KILL).expect("it lives");
    sandbox.task("echo here").run().assert_says("here");
    assert!(process_exists(pause), "nobody reaps it");
    assert_ne!(sandbox.pause_pid(), pause);
    tracer.end();
    task.wait();
    sandbox.rm([]);
}

#[test]
fn rm_without_force_leaves_running_members_to_a_new_shim() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let task = sandbox.task(IDLE).start();
    sandbox.kill_shim();
    sandbox.bowline("rm", []).assert_refused(125, &[task.id()]);
    assert_eq!((task.status().as_str(), takeovers(&sandbox)), ("running", 1));
    task.end();
    sandbox.kill_shim();
    sandbox.rm([]);
}

#[test]
fn an_upgrade_gives_it_a_new_shim() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let task = sandbox.task(IDLE).start();
    for (round, which) in (1..).zip(["--all", sandbox.id(), task.id()]) {
        sandbox.kill_shim();
        let ran = host.bowline(["upgrade", which]);
        let (what, id) = if which == task.id() { ("task", task.id()) } else { ("sandbox", sandbox.id()) };
        ran.assert_says(id);
        assert!(ran.err().contains(&format!("the shim of {what} {id} had died")), "{ran}");
        assert_eq!((task.status().as_str(), takeovers(&sandbox)), ("running", round));
    }
    sandbox.rm(["-f"]);
}

/// Changes the record of a sandbox, as its shim would have written it.
fn change_record(sandbox: &Sandbox<'_>, change: impl FnOnce(&mut Value)) {
    let text = fs::read_to_string(sandbox.file("sandbox.json")).expect("readable");
    let mut record: Value = serde_json::from_str(&text).expect("JSON");
    change(&mut record);
    fs::write(sandbox.file("sandbox.json"), record.to_string()).expect("writable");
}

#[test]
fn what_cannot_be_taken_over_is_refused_with_the_reason() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--share-pid").create();
    let task = sandbox.task(IDLE).start();
    let (pause, init) = (sandbox.pause_pid(), task.pid());
    sandbox.kill_shim();
    change_record(&sandbox, |record| record["whole"]["boot"] = json!("another"));
    for verb in ["stats", "stop"] {
        task.bowline(verb, []).assert_refused(125, &[task.id(), "shim"]);
    }
    sandbox.bowline("stats", []).assert_refused(125, &[sandbox.id(), "shim"]);
    sandbox.bowline("update", ["--pids=9"]).assert_refused(125, &[sandbox.id(), "shim"]);
    sandbox.task("true").assert_refused(125, &[sandbox.id(), "shim"]);
    host.bowline(["adopt", sandbox.id()]).assert_refused(125, &[sandbox.id(), "an earlier boot"]);
    host.bowline(["adopt", task.id()]).assert_refused(125, &[task.id(), "an earlier boot"]);
    for flags in [&[][..], &["--dry-run"]] {
        let ran = host.bowline([&["upgrade", sandbox.id()], flags].concat());
        ran.assert_refused(125, &["the shim of sandbox", sandbox.id(), "an earlier boot"]);
    }
    host.bowline(["upgrade", "--all"]).assert_says("");
    change_record(&sandbox, |record| drop(record.as_object_mut().expect("an object").remove("whole")));
    host.bowline(["adopt", sandbox.id()]).assert_refused(125, &[sandbox.id(), "older bowline"]);
    sandbox.bowline("rm", []).assert_refused(125, &[task.id(), "has not ended"]);
    assert!(process_exists(pause) && process_exists(init), "nothing has changed");
    sandbox.rm(["-f"]);
    assert!(!process_exists(pause), "it holds nothing any more");
}

#[test]
fn a_damaged_record_does_not_keep_the_pause_process_alive() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--share-pid").create();
    let pause = sandbox.pause_pid();
    sandbox.task(IDLE).start();
    sandbox.kill_shim();
    fs::write(sandbox.file("sandbox.json"), "{").expect("writable");
    sandbox.rm(["-f"]);
    assert!(!process_exists(pause));
}
