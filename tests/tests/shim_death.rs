//! A shim that dies leaves a record that says so, and `rm -f` cleans up after it.

use bowline_tests::Host;
use bowline_tests::harness::{Task, eventually, process_exists, touch};
use serde_json::{Value, json};

/// Programs that end once they are told to, and the fields of the event that tells how.
const ENDS: [(&str, Option<i64>, Option<&str>); 2] = [
    ("until [ -e /tmp/end ]; do sleep 0.02; done; exit 6", Some(6), None),
    ("until [ -e /tmp/end ]; do sleep 0.02; done; kill -KILL $$", Some(137), Some("SIGKILL")),
];

/// Ends a task without its shim, which `kill` kills: its init has kept how it ended, and has ended too.
#[track_caller]
fn end_without_shim(task: &Task<'_>, kill: impl FnOnce()) {
    task.wait_until_recorded();
    let (init, program) = (task.pid(), task.program_pid());
    kill();
    touch(program, "end");
    eventually("its init is gone", || (!process_exists(init)).then_some(()));
}

/// Checks which ends the journal has of the task.
#[track_caller]
fn assert_told(host: &Host, id: &str, code: Option<i64>, signal: Option<&str>) {
    let told = host.bowline(["events", "--json", id]).assert_code(0).out();
    let entries = told.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let ends: Vec<Value> = entries.filter(|entry| entry["event"] == "exited").collect();
    let [end] = &ends[..] else { panic!("one end: {told}") };
    let fields = ["exit_code", "signal", "shim_died", "stopped_by"].map(|name| end[name].clone());
    assert_eq!(fields, [json!(code), json!(signal), json!(code.is_none()), Value::Null], "{told}");
}

/// A task with daemons, in the host's pid namespace: nothing of it dies by itself.
fn with_daemons(host: &Host) -> Task<'_> {
    let toml = "command = 'sh'\nargs = ['-c', 'setsid sleep 1000 & (setsid sleep 1000 &) ; echo ready; exec sleep 1000']\nnamespaces.pid = 'host'";
    let task = host.described(toml).start();
    task.wait_for_line("ready");
    eventually("three processes", || (task.processes().len() == 3).then_some(()));
    task
}

#[test]
fn the_status_says_that_the_shim_is_dead() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    task.kill_shim(task.shim_pid());
    assert_eq!(task.status(), "dead");
    let listed = host.bowline(["ps", "--json"]).assert_code(0).json();
    assert_eq!(listed[0]["status"], "dead", "{listed}");
    task.bowline("rm", ["-f"]).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn rm_kills_what_still_lives_and_removes_everything() {
    let host = Host::new();
    let task = with_daemons(&host);
    let pids = task.all_processes();
    task.kill_shim(task.shim_pid());
    assert!(pids.iter().all(|pid| process_exists(*pid)), "the task outlives its shim");
    task.bowline("rm", ["-f"]).assert_code(0);
    assert!(!pids.iter().any(|pid| process_exists(*pid)), "gone when rm returns");
    host.assert_nothing_left_without_rm();
}

#[test]
fn rm_without_force_leaves_a_task_that_runs_to_a_new_shim() {
    let host = Host::new();
    let task = with_daemons(&host);
    let pids = task.all_processes();
    task.kill_shim(task.shim_pid());
    let ran = task.bowline("rm", []);
    ran.assert_refused(125, &[task.id(), "has not ended"]);
    assert!(ran.err().contains(&format!("bowline rm -f {}", task.id())), "{ran}");
    assert_eq!(task.status(), "running");
    assert!(pids.iter().all(|pid| process_exists(*pid)), "the task outlives its shim");
    task.end();
}

#[test]
fn rm_cleans_up_when_init_is_dead_too() {
    let host = Host::new();
    let task = host.task("echo ready; exec sleep 1000").start();
    task.wait_for_line("ready");
    let (init, shim) = (task.pid(), task.shim_pid());
    task.kill_shim(shim);
    rustix::process::kill_process(rustix::process::Pid::from_raw(init).expect("a pid"), rustix::process::Signal::KILL)
        .expect("it lives");
    eventually("init is gone", || (!process_exists(init)).then_some(()));
    task.bowline("rm", []).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_paused_task_whose_shim_died_is_removed_too() {
    let host = Host::new();
    let task = with_daemons(&host);
    task.bowline("pause", []).assert_code(0);
    task.kill_shim(task.shim_pid());
    task.bowline("rm", ["-f"]).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn an_exec_whose_shim_dies_is_an_error_and_is_cleaned_up() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let exec = task.spawn_exec(["--timeout=50s"], "echo begun; exec sleep 1000");
    exec.wait_for_out("begun");
    task.kill_shim(task.shim_pid());
    let ran = exec.finish();
    ran.assert_code(125);
    let message = format!("bowline: the shim of task {} was killed or broke off while it served this call", task.id());
    let hint = format!("hint: `bowline inspect {}` shows the state of the task", task.id());
    assert!(ran.err().starts_with(&message) && ran.err().contains(&hint), "{ran}");
    task.bowline("rm", ["-f"]).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn the_id_is_free_again_after_rm() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    task.kill_shim(task.shim_pid());
    host.task("true").named(task.id()).assert_refused_as_taken();
    task.bowline("rm", ["-f"]).assert_code(0);
    host.task("echo again").named(task.id()).run().assert_says("again");
}

#[test]
fn rm_removes_a_dead_shim_s_user_namespace_and_network_too() {
    let host = Host::new();
    let root = host.busybox_root();
    let toml = "command = 'sleep'\nargs = ['1000']\nnamespaces = {user = 'private', network = 'private'}\n\
                uid_mappings = [{container = 0, host = 300000, size = 65536}]\n\
                gid_mappings = [{container = 0, host = 300000, size = 65536}]";
    let task = host.described(toml).rootfs(root.path()).start();
    task.kill_shim(task.shim_pid());
    task.bowline("rm", ["-f"]).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn the_shims_of_other_tasks_do_not_notice() {
    let host = Host::new();
    let (one, other) = (host.task("exec sleep 1000").start(), host.task("exec sleep 1000").start());
    one.kill_shim(one.shim_pid());
    one.bowline("rm", ["-f"]).assert_code(0);
    other.exec("echo well").assert_says("well");
    other.end();
}

#[test]
fn a_shim_asked_to_leave_stops_its_task_and_records_the_exit() {
    // As when the host goes down: SIGTERM to everybody.
    let host = Host::new();
    let task = host.task("trap 'echo bye; exit 6' TERM; echo ready; while :; do sleep 0.1; done").start();
    task.wait_for_line("ready");
    let shim = rustix::process::Pid::from_raw(task.shim_pid()).expect("a pid");
    rustix::process::kill_process(shim, rustix::process::Signal::TERM).expect("the shim lives");
    task.wait().assert_code(6);
    assert!(task.said("stdout").ends_with("bye\n"));
}

#[test]
fn whoever_removes_a_task_tells_the_exit_that_its_init_has_kept() {
    let host = Host::new();
    for verb in [&["rm"][..], &["rm", "-f"], &["rm", "--exited"], &["gc"]] {
        for (script, code, signal) in ENDS {
            let removes = if verb == ["gc"] { "--rm=true" } else { "--rm=false" };
            let task = host.task(script).flag("--init").flag(removes).start();
            end_without_shim(&task, || task.kill_shim(task.shim_pid()));
            let id = if verb.contains(&"--exited") { None } else { Some(task.id()) };
            host.bowline(verb.iter().copied().chain(id)).assert_code(0);
            assert!(!task.file("").exists(), "{verb:?}");
            assert_told(&host, task.id(), code, signal);
            let ended = format!("it ended with {}", code.expect("it is kept"));
            task.bowline("wait", []).assert_refused(125, &["was removed", &ended]);
        }
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn gc_writes_the_exit_that_init_has_kept() {
    let host = Host::new();
    for (script, code, signal) in ENDS {
        let task = host.task(script).flag("--init").start();
        end_without_shim(&task, || task.kill_shim(task.shim_pid()));
        task.bowline("gc", []).assert_code(0);
        assert_eq!(task.status(), "exited");
        let explained = task.bowline("explain", []).assert_code(0).out();
        assert!(explained.contains("ended by itself") || explained.contains("SIGKILL"), "{explained}");
        let report = task.wait();
        assert_eq!((&report["exit_code"], &report["signal"]), (&json!(code), &json!(signal)));
        assert!(report["started_at"].as_str() < report["exited_at"].as_str(), "{report:?}");
        task.bowline("gc", []).assert_says("");
        task.bowline("rm", []).assert_code(0);
        assert_told(&host, task.id(), code, signal);
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn an_exit_that_nobody_has_kept_stays_unknown() {
    let host = Host::new();
    let (script, ..) = ENDS[0];
    for verb in ["rm", "gc"] {
        let task = host.task(script).toml("init = false").start();
        end_without_shim(&task, || task.kill_shim(task.shim_pid()));
        task.bowline(verb, []).assert_code(0);
        if verb == "gc" {
            assert_eq!(task.status(), "dead");
            task.bowline("rm", []).assert_code(0);
        }
        assert_told(&host, task.id(), None, None);
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn the_exit_of_a_member_is_told_though_the_sandbox_lost_its_shim() {
    let host = Host::new();
    let (script, code, signal) = ENDS[0];
    for way in ["rm", "sandbox rm", "gc of the member", "gc of the sandbox"] {
        let sandbox = host.sandbox().create();
        let member = sandbox.task(script).flag("--init").start();
        end_without_shim(&member, || sandbox.kill_shim());
        match way {
            "rm" => drop(member.bowline("rm", []).assert_code(0)),
            "sandbox rm" => {}
            _ => {
                if way == "gc of the sandbox" {
                    // As of an older bowline: it cannot be taken over.
                    sandbox.change_record(|record| drop(record.as_object_mut().expect("an object").remove("whole")));
                }
                host.bowline(["gc", if way == "gc of the member" { member.id() } else { sandbox.id() }]).assert_code(0);
                member.wait().assert_code(6);
            }
        }
        sandbox.rm(["-f"]);
        assert_told(&host, member.id(), code, signal);
    }
    host.assert_nothing_left_without_rm();
}
