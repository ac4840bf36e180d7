//! Shims that live and do not answer, stopped or frozen: every command says so and ends, and what ends tasks goes past
//! them; whoever the record names beside the task is left alone.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::{Task, Trace, eventually, hierarchy, process_exists, set_frozen};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("it lives");
}

/// A shim that is stopped, until it is let go on.
struct Stopped(i32);

impl Stopped {
    fn stop(shim: i32) -> Stopped {
        signal(shim, Signal::STOP);
        let state = || fs::read_to_string(format!("/proc/{shim}/status")).unwrap_or_default();
        eventually("it is stopped", || state().contains("State:\tT").then_some(()));
        Stopped(shim)
    }

    fn goes_on(self) {
        signal(self.0, Signal::CONT);
    }
}

/// Whether the process has ended, reaped or not.
fn has_ended(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

/// A task with daemons, in the host's pid namespace: nothing of it dies by itself.
fn with_daemons(host: &Host) -> Task<'_> {
    let toml = "command = 'sh'\nargs = ['-c', 'trap \"\" TERM; setsid sleep 1000 & (setsid sleep 1000 &) ; echo ready; while :; do sleep 1000; done']\nnamespaces.pid = 'host'";
    let task = host.described(toml).start();
    task.wait_for_line("ready");
    task
}

fn edit(task: &Task<'_>, change: impl FnOnce(&mut Value)) {
    let path = task.file("task.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).expect("a record")).expect("JSON");
    change(&mut record);
    fs::write(&path, record.to_string()).expect("ours");
}

#[test]
fn it_is_shown_as_not_answering_and_the_others_as_they_are() {
    let host = Host::new();
    let (silent, well) = (host.task("exec sleep 1000").start(), host.task("exec sleep 1000").start());
    let (pid, shim) = (silent.pid(), silent.shim_pid());
    let stopped = Stopped::stop(shim);
    let listed = host.bowline(["ps", "--json"]).assert_code(0).json();
    let status =
        |id: &str| listed.as_array().and_then(|all| all.iter().find(|row| row["id"] == id))?["status"].as_str();
    assert_eq!((status(silent.id()), status(well.id())), (Some("not answering"), Some("running")), "{listed}");
    let ran = host.bowline(["ps", "--filter", "status=not answering", "--quiet"]);
    ran.assert_says(silent.id());
    let inspected = silent.inspect();
    assert_eq!(inspected["status"], "not answering");
    assert_eq!((&inspected["pid"], &inspected["shim_pid"]), (&json!(pid), &json!(shim)), "by its record");

    let ran = host.bowline(["stats"]);
    ran.assert_code(0);
    assert!(ran.out().contains(well.id()) && !ran.out().contains(silent.id()), "{ran}");
    assert!(ran.err().contains(silent.id()) && ran.err().contains("not answering"), "{ran}");
    let ran = host.bowline(["top", "--once"]);
    ran.assert_code(0);
    assert!(ran.out().contains(well.id()) && ran.err().contains("not answering"), "{ran}");
    silent.bowline("stats", []).assert_refused(125, &[silent.id(), "not answering"]);
    silent.bowline("top", ["--once"]).assert_refused(125, &[silent.id(), "not answering"]);
    for verb in ["pause", "resume"] {
        silent.bowline(verb, []).assert_refused(125, &[silent.id(), "not answering"]);
    }
    silent.bowline("update", ["--memory=64M"]).assert_refused(125, &[silent.id(), "not answering"]);
    stopped.goes_on();
    eventually("it answers again", || (silent.status() == "running").then_some(()));
    [silent, well].iter().for_each(|task| drop(task.end()));
}

#[test]
fn an_upgrade_gives_it_up_and_goes_on_with_the_others() {
    let host = Host::new();
    let (silent, well) = (host.task("exec sleep 1000").start(), host.task("exec sleep 1000").start());
    let shim = silent.shim_pid();
    let stopped = Stopped::stop(shim);
    silent.bowline("upgrade", []).assert_refused(125, &[silent.id(), "not answering"]);
    silent.bowline("upgrade", ["--dry-run"]).assert_refused(125, &[silent.id(), "not answering"]);
    let ran = host.bowline(["upgrade", "--all"]);
    assert_eq!(ran.assert_code(1).out(), well.id(), "{ran}");
    assert!(ran.err().contains(silent.id()) && ran.err().contains("not answering"), "{ran}");
    stopped.goes_on();
    // Nor is it upgraded later, when nobody waits for that any more.
    silent.exec("true").assert_code(0);
    let command = fs::read_to_string(format!("/proc/{shim}/cmdline")).expect("it lives");
    assert!(!command.contains("--take-over"), "{command}");
    [silent, well].iter().for_each(|task| drop(task.end()));
}

#[test]
fn one_that_waits_for_its_tracer_only_takes_long() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let shim = task.shim_pid();
    let tracer = Trace::of(&host, shim, []);
    tracer.hold();
    let stats = host.spawn(["stats", "--json", task.id()]);
    let state = || fs::read_to_string(format!("/proc/{shim}/status")).unwrap_or_default();
    eventually("its tracer has it", || state().contains("State:\tt").then_some(()));
    // Time in which one that is stopped would be given up.
    host.task("sleep 3").run().assert_code(0);
    tracer.end();
    stats.finish().assert_code(0);
    task.end();
}

#[test]
fn an_exec_keeps_its_deadline_and_one_without_is_refused() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let under_way = task.spawn_exec(["--timeout=5s"], "echo begun; exec sleep 1000");
    under_way.wait_for_out("begun");
    let stopped = Stopped::stop(task.shim_pid());
    under_way.finish().assert_code(124);
    task.exec_with(["--timeout=100ms"], "exec sleep 1000").assert_refused(124, &["100ms", "not answering"]);
    task.exec("exec sleep 1000").assert_refused(125, &[task.id(), "not answering"]);
    task.bowline("attach", []).assert_refused(125, &[task.id(), "not answering"]);
    stopped.goes_on();
    task.end();
}

#[test]
fn stop_goes_past_it_and_the_exit_is_reported_once_it_goes_on() {
    let host = Host::new();
    let graceful = host.task("trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done").start();
    graceful.wait_for_line("ready");
    let deaf = with_daemons(&host);
    let processes = deaf.all_processes();
    let stopped = [&graceful, &deaf].map(|task| Stopped::stop(task.shim_pid()));
    for (task, grace) in [(&graceful, "--grace=60s"), (&deaf, "--grace=100ms")] {
        let ran = task.bowline("stop", [grace]);
        ran.assert_code(0);
        assert!(ran.err().contains(task.id()) && ran.err().contains("not answering"), "{ran}");
    }
    assert!(processes.iter().all(|pid| has_ended(*pid)), "all of it has ended when stop returns");
    stopped.into_iter().for_each(Stopped::goes_on);
    graceful.wait().assert_code(3);
    deaf.wait().assert_killed_by("KILL");
}

#[test]
fn so_it_is_for_a_task_that_is_paused() {
    let host = Host::new();
    let task = host.task("trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done").start();
    task.wait_for_line("ready");
    task.bowline("pause", []).assert_code(0);
    let stopped = Stopped::stop(task.shim_pid());
    task.bowline("stop", ["--grace=60s"]).assert_code(0);
    stopped.goes_on();
    task.wait().assert_code(3);
}

#[test]
fn kill_goes_past_it_with_any_signal() {
    let host = Host::new();
    let task = host.task("trap 'echo heard' USR1; echo ready; while :; do sleep 0.1; done").start();
    task.wait_for_line("ready");
    let (init, shim) = (task.pid(), task.shim_pid());
    let stopped = Stopped::stop(shim);
    task.bowline("kill", ["--signal=USR1"]).assert_code(0);
    stopped.goes_on();
    task.wait_for_line("heard");
    task.exec("true").assert_code(0);
    assert_eq!(task.said("stdout").matches("heard").count(), 1, "nor does it come twice");
    let stopped = Stopped::stop(shim);
    task.bowline("kill", []).assert_code(0);
    eventually("init has ended", || has_ended(init).then_some(()));
    stopped.goes_on();
    task.wait().assert_killed_by("KILL");
}

#[test]
fn rm_by_force_ends_the_task_and_the_shim() {
    let host = Host::new();
    let task = with_daemons(&host);
    let (processes, shim) = (task.all_processes(), task.shim_pid());
    let _stopped = Stopped::stop(shim);
    task.bowline("rm", []).assert_refused(125, &[task.id(), "not ended"]);
    task.bowline("rm", ["-f"]).assert_code(0);
    assert!(!processes.iter().chain([&shim]).any(|pid| process_exists(*pid)), "gone when rm returns");
    host.assert_nothing_left_without_rm();
}

#[test]
fn so_it_does_where_all_of_it_is_frozen() {
    let host = Host::new();
    let task = with_daemons(&host);
    // Its shim gets there once the task has run for a moment.
    let above = hierarchy("freezer").join("bowline").join(task.on_host());
    let (overhead, shim) = (above.join("overhead/cgroup.procs"), task.shim_pid());
    let is_there = || fs::read_to_string(&overhead).is_ok_and(|all| all.lines().any(|pid| pid == shim.to_string()));
    eventually("the shim is charged there", || is_there().then_some(()));
    set_frozen(&above, true);
    assert_eq!(task.status(), "not answering");
    set_frozen(&above, false);
    eventually("it answers again", || (task.status() == "running").then_some(()));
    set_frozen(&above, true);
    task.bowline("rm", ["-f"]).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn whoever_a_record_names_that_is_not_the_tasks_is_left_alone() {
    let host = Host::new();
    let other = host.task("trap 'exit 9' USR1; echo ready; while :; do sleep 0.1; done").start();
    other.wait_for_line("ready");
    let (victim, cgroup) = (other.pid(), other.inspect()["cgroup"].clone());
    type Edit<'a> = (&'a str, &'a dyn Fn(&mut Value));
    let edits: [Edit<'_>; 2] = [
        ("another's init", &|record| record["pid"] = json!(victim)),
        ("another's cgroup", &|record| record["cgroup"] = cgroup.clone()),
    ];
    for (what, change) in edits {
        let task = host.task("exec sleep 1000").start();
        let kept = fs::read(task.file("task.json")).expect("a record");
        let stopped = Stopped::stop(task.shim_pid());
        edit(&task, change);
        let ran = task.bowline("kill", ["--signal=USR1"]);
        ran.assert_refused(125, &[task.id()]);
        assert!(process_exists(victim) && !has_ended(victim), "{what}: {ran}");
        fs::write(task.file("task.json"), kept).expect("ours");
        stopped.goes_on();
        task.end();
    }
    // Nor is another process of the task, which may have been given init's number since.
    // The kernel says in hundredths of a second when a process started.
    let task = host.task("sleep 0.1; sleep 1000 & echo ready; wait").start();
    task.wait_for_line("ready");
    let child = *task.processes().iter().find(|pid| **pid != task.program_pid()).expect("sleep");
    let kept = fs::read(task.file("task.json")).expect("a record");
    let stopped = Stopped::stop(task.shim_pid());
    edit(&task, |record| record["pid"] = json!(child));
    let ran = task.bowline("kill", ["--signal=USR1"]);
    ran.assert_refused(125, &[task.id(), "ended"]);
    assert!(!has_ended(child), "{ran}");
    fs::write(task.file("task.json"), kept).expect("ours");
    stopped.goes_on();
    task.end();
    // Nor is it taken for the shim.
    let task = host.task("exec sleep 1000").start();
    let shim = task.shim_pid();
    let _stopped = Stopped::stop(shim);
    edit(&task, |record| record["shim_pid"] = json!(victim));
    task.bowline("rm", ["-f"]).assert_refused(125, &[task.id(), "shim"]);
    assert!(!has_ended(victim) && process_exists(shim));
    edit(&task, |record| record["shim_pid"] = json!(shim));
    task.bowline("rm", ["-f"]).assert_code(0);
    other.end();
}

#[test]
fn a_sandbox_with_a_silent_shim_is_shown_and_removed_by_force() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let members = [sandbox.task("exec sleep 1000").start(), sandbox.task("exec sleep 1000").start()];
    let pids: Vec<i32> = members.iter().map(Task::pid).chain([sandbox.shim_pid()]).collect();
    let _stopped = Stopped::stop(sandbox.shim_pid());
    let listed = host.bowline(["sandbox", "ls", "--json"]).assert_code(0).json();
    assert_eq!(listed[0]["status"], "not answering", "{listed}");
    assert!(host.bowline(["ps"]).assert_code(0).out().matches("not answering").count() == 2);
    members[0].bowline("stop", ["--grace=0"]).assert_code(0);
    assert!(has_ended(pids[0]) && !has_ended(pids[1]), "that one alone");
    // The others are its shim's too.
    members[0].bowline("rm", ["-f"]).assert_refused(125, &[members[0].id(), sandbox.id()]);
    assert!(process_exists(pids[2]));
    sandbox.rm(["-f"]);
    assert!(!pids.iter().any(|pid| process_exists(*pid)));
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_run_in_the_foreground_can_be_interrupted_past_it() {
    let host = Host::new();
    let (task, run) = host.task("trap '' TERM; echo ready; while :; do sleep 0.1; done").spawn();
    run.wait_for_out("ready");
    let task = host.adopt(task.id());
    let (init, shim) = (task.pid(), task.shim_pid());
    let stopped = Stopped::stop(shim);
    run.signal(Signal::INT);
    run.wait_for_err("not answering");
    run.signal(Signal::INT);
    let ran = run.finish();
    ran.assert_code(125);
    assert!(has_ended(init), "{ran}");
    stopped.goes_on();
    task.wait().assert_killed_by("KILL");
}
