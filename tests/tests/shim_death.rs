//! A shim that dies leaves a record that says so, and `rm -f` cleans up after it.

use bowline_tests::Host;
use bowline_tests::harness::{Task, eventually, process_exists};

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
