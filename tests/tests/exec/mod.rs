//! Additional processes in a live task.

mod delegated;
mod interrupted;
pub(crate) mod made_up;
mod security;
mod takeover;

use bowline_tests::Host;
use bowline_tests::harness::{eventually, fds_of, wait_for_its_cgroup};
use serde_json::Value;

const IDLE: &str = "echo ready; exec sleep 1000";

#[test]
fn exec_passes_both_streams_and_the_exit_code_through() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let ran = task.exec("echo out; echo err >&2; exit 7");
    ran.assert_code(7);
    assert_eq!((ran.out(), ran.err()), ("out".into(), "err".into()), "{ran}");
    task.end();
}

#[test]
fn a_signal_becomes_128_plus_its_number() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    task.exec("kill -TERM $$").assert_code(143);
    task.end();
}

#[test]
fn a_missing_command_is_127_and_one_not_executable_is_126() {
    let host = Host::new();
    let root = host.busybox_root();
    root.file("bin/plain", "#!/bin/sh\n", 0o644);
    let task = host.task_of(["sleep", "1000"]).rootfs(root.path()).start();
    task.bowline("exec", ["--", "nothing-here"]).assert_refused(127, &["nothing-here"]);
    task.bowline("exec", ["--", "/bin/plain"]).assert_refused(126, &["/bin/plain"]);
    task.bowline("exec", ["--", "/no/such"]).assert_refused(127, &["/no/such"]);
    assert_eq!(task.processes().len(), 1, "a failed exec leaves a process");
    task.end();
}

#[test]
fn environment_and_workdir_are_the_tasks_unless_overridden() {
    let host = Host::new();
    let toml = "command = 'sleep'\nargs = ['1000']\nworkdir = '/usr'\nenv = {A = 'task', B = 'task'}";
    let task = host.described(toml).start();
    task.exec("echo $A $B; pwd").assert_says("task task\n/usr");
    task.exec_with(["--env=A=exec", "--env=C=new", "--workdir=/etc"], "echo $A $B $C; pwd")
        .assert_says("exec task new\n/etc");
    task.end();
}

#[test]
fn the_user_is_the_tasks_own_unless_asked_otherwise() {
    let host = Host::new();
    let root = host.busybox_root();
    let task = host.task_of(["sleep", "1000"]).rootfs(root.path()).flag("--user=app").start();
    task.exec("id -u; id -g; id -G").assert_says("1234\n2345\n2345 3456");
    task.exec_with(["--user=4321:8765"], "id -u; id -g").assert_says("4321\n8765");
    task.exec_with(["--user=root"], "id -u; id -g").assert_says("0\n0");
    task.bowline("exec", ["--user=nobody-knows", "--", "true"]).assert_refused(125, &["user", "nobody-knows"]);
    task.end();
}

#[test]
fn home_is_that_of_the_user_unless_it_is_set() {
    let host = Host::new();
    let root = host.busybox_root();
    let task = host.task_of(["sleep", "1000"]).rootfs(root.path()).flag("--user=app").start();
    task.exec_with(["--user=root"], "echo $HOME").assert_says("/root");
    task.exec_with(["--user=4321"], "echo $HOME").assert_says("/");
    task.exec_with(["--user=root", "--env=HOME=/set"], "echo $HOME").assert_says("/set");
    task.exec("echo $HOME").assert_says("/home/app");
    task.end();
    let task = host.task_of(["sleep", "1000"]).rootfs(root.path()).flag("--user=4321").flag("--env=HOME=/set").start();
    task.exec_with(["--user=root"], "echo $HOME").assert_says("/set");
    task.end();
    let nobody = host.task_of(["/bin/sh", "-c", "echo $HOME"]).rootfs(root.path()).flag("--user=4321").run();
    nobody.assert_says("/");
}

#[test]
fn exec_into_a_paused_task_is_an_error() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    task.bowline("pause", []).assert_code(0);
    task.bowline("exec", ["--", "true"]).assert_refused(125, &["paused"]);
    task.end();
}

#[test]
fn exec_into_a_task_that_has_exited_is_an_error() {
    let host = Host::new();
    let task = host.task("true").start();
    task.wait();
    task.bowline("exec", ["--", "true"]).assert_refused(125, &[task.id(), "exited"]);
}

#[test]
fn exec_into_no_task_is_an_error() {
    let host = Host::new();
    host.bowline(["exec", "nobody", "--", "true"]).assert_refused(125, &["nobody"]);
}

#[test]
fn at_the_deadline_the_exec_times_out_and_the_task_lives_on() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let ran = task.exec_with(["--timeout=3s"], "echo begun; exec sleep 1000");
    ran.assert_code(124);
    assert_eq!(ran.out(), "begun", "what it said before is passed on");
    assert!(ran.err().starts_with("bowline: "), "{ran}");
    assert_eq!((task.status().as_str(), task.processes().len()), ("running", 1));
    task.exec("echo alive").assert_says("alive");
    task.end();
}

#[test]
fn at_the_deadline_daemons_in_their_own_sessions_are_gone_too() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let daemons = "setsid sh -c '(setsid sleep 1000 & exit) & echo one; exec sleep 1000' & \
                   (setsid sh -c 'trap \"\" TERM HUP; echo two; while :; do sleep 1; done' & exit) & \
                   exec sleep 1000";
    let ran = task.exec_with(["--timeout=4s"], daemons);
    ran.assert_code(124);
    assert!(ran.out().contains("one") && ran.out().contains("two"), "both daemons were there\n{ran}");
    assert_eq!(task.processes(), [task.program_pid()], "only init is left");
    task.end();
}

#[test]
fn at_the_deadline_a_fork_bomb_is_gone_too() {
    let host = Host::new();
    let task = host.task(IDLE).flag("--pids=64").start();
    // The exec itself goes on until then: what an exec leaves that ends before its deadline is not killed.
    task.exec_with(["--timeout=3s"], "f() { f & f; }; f 2>/dev/null & exec sleep 1000").assert_code(124);
    eventually("only init is left", || (task.processes() == [task.program_pid()]).then_some(()));
    task.exec("true").assert_code(0);
    task.end();
}

#[test]
fn a_deadline_that_is_met_changes_nothing() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    for _ in 0..5 {
        task.exec_with(["--timeout=50s"], "echo quick; exit 3").assert_code(3);
    }
    assert_eq!(task.processes(), [task.program_pid()]);
    let groups = std::fs::read_dir(task.cgroup("freezer")).expect("a cgroup").flatten().filter(|e| e.path().is_dir());
    assert!(groups.count() <= 1, "at most one is kept, for the next exec");
    task.end();
}

#[test]
fn a_daemon_of_an_exec_in_time_survives_the_next_deadline() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    task.exec_with(["--timeout=50s"], "setsid sleep 1000 >/dev/null 2>&1 & exit 0").assert_code(0);
    task.exec_with(["--timeout=200ms"], "exec sleep 1000").assert_code(124);
    assert_eq!(task.processes().len(), 2, "init and the daemon");
    task.end();
}

#[test]
fn a_daemon_of_an_exec_without_deadline_belongs_to_the_task() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    task.exec("setsid sleep 1000 >/dev/null 2>&1 & exit 0").assert_code(0);
    eventually("it is there", || (task.processes().len() == 2).then_some(()));
    task.exec("echo still").assert_says("still");
    task.end();
}

#[test]
fn ten_megabytes_of_output_are_complete() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let ran = task.exec("seq 1 2000000 | head -c 10000000");
    let expected: String = (1..2_000_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(ran.code, Some(0), "{ran}");
    assert!(ran.stdout == expected.as_bytes()[..10_000_000], "{} bytes, or wrong ones", ran.stdout.len());
    task.end();
}

#[test]
fn thirty_two_execs_at_a_time_are_all_answered_rightly() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let scripts: Vec<_> = (0..32).map(|n| format!("echo {n}; exit {n}")).collect();
    let execs: Vec<_> = scripts.iter().map(|script| task.spawn_exec([], script)).collect();
    for (n, exec) in execs.into_iter().enumerate() {
        let ran = exec.finish();
        ran.assert_code(n.try_into().expect("small"));
        assert_eq!(ran.out(), n.to_string(), "{ran}");
    }
    task.end();
}

#[test]
fn execs_leave_no_fd_and_no_child_in_the_shim() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let shim = task.shim_pid();
    // What is kept for the next exec is made once, as is the shim's own cgroup.
    task.exec_with(["--timeout=50s"], "true").assert_code(0);
    wait_for_its_cgroup(shim);
    // The connection that asked is closed by and by.
    let fds = || fds_of(shim).into_iter().filter(|fd| !fd.starts_with("socket:")).count();
    let before = fds();
    for script in ["true", "exit 1", "kill -KILL $$"] {
        task.exec(script);
        task.exec_with(["--timeout=50s"], script);
    }
    task.bowline("exec", ["--", "/no/such"]).assert_code(127);
    task.bowline("exec", ["--timeout=1s", "--", "/no/such"]).assert_code(127);
    task.exec_with(["--timeout=10ms"], "exec sleep 1000").assert_code(124);
    eventually("as many fds as before", || (fds() == before).then_some(()));
    let children = std::fs::read_to_string(format!("/proc/{shim}/task/{shim}/children")).expect("a live shim");
    assert_eq!(children.trim(), task.pid().to_string(), "init is the shim's only child");
    task.end();
}

#[test]
fn a_client_that_goes_away_does_not_disturb_the_task() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let exec = task.spawn_exec([], "echo begun; exec sleep 1000");
    exec.wait_for_out("begun");
    drop(exec);
    task.exec("echo alive").assert_says("alive");
    assert_eq!(task.status(), "running");
    task.end();
}

#[test]
fn a_detached_exec_runs_on_after_the_command_has_returned() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    task.exec("mkfifo /tmp/in").assert_code(0);
    wait_for_its_cgroup(task.shim_pid());
    // What streams that lead nowhere are opened from is made once.
    task.exec_with(["-d"], "true").assert_code(0);
    let events = || host.bowline(["events", task.id()]).out();
    eventually("its end is an event", || (events().matches("exit code 0, /bin/sh -c").count() == 2).then_some(()));
    let fds = || fds_of(task.shim_pid()).into_iter().filter(|fd| !fd.starts_with("socket:")).count();
    let before = fds();
    let ran = task.exec_with(["-d"], "echo unheard; cat /tmp/in >/tmp/out");
    ran.assert_code(0);
    assert_eq!((ran.out(), ran.err()), (String::new(), String::new()), "{ran}");
    task.exec("echo heard >/tmp/in").assert_code(0);
    eventually("what it was given", || (task.exec("cat /tmp/out").out() == "heard").then_some(()));
    eventually("its end is an event", || events().contains("cat /tmp/in").then_some(()));
    eventually("no more fds than before", || (fds() <= before).then_some(()));
    task.end();
}

#[test]
fn detached_execs_report_failed_starts_and_keep_deadlines() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    task.bowline("exec", ["-d", "/no/such"]).assert_code(127);
    for other in ["-i", "-t", "--json"] {
        task.bowline("exec", ["-d", other, "true"]).assert_code(2);
    }
    task.exec_with(["-d", "--timeout=200ms"], "exec sleep 1234").assert_code(0);
    let events = || host.bowline(["events", task.id()]).out();
    eventually("its end is an event", || events().contains("exec sleep 1234").then_some(()));
    task.end();
}

#[test]
fn exec_works_while_the_task_is_stopping() {
    let host = Host::new();
    let task = host.task("trap '' TERM; echo ready; while :; do sleep 0.1; done").start();
    task.wait_for_line("ready");
    let stop = host.spawn(["stop", task.id(), "--grace=1h"]);
    eventually("it is stopping", || (task.status() == "stopping").then_some(()));
    task.exec("echo flush").assert_says("flush");
    task.end();
    stop.finish().assert_code(0);
}

#[test]
fn an_exec_that_runs_when_the_task_ends_ends_with_it() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let exec = task.spawn_exec([], "echo begun; exec sleep 1000");
    exec.wait_for_out("begun");
    task.end();
    exec.finish().assert_code(137);
}

#[test]
fn json_has_the_end_and_the_last_4_kib_of_each_stream() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let ran = task.exec_with(["--json"], "seq 1 5000; echo oops >&2; exit 4");
    ran.assert_code(4);
    let outcome = ran.json();
    assert_eq!((&outcome["exit_code"], &outcome["timed_out"]), (&4.into(), &false.into()), "{ran}");
    let stdout = outcome["stdout"].as_str().expect("text");
    assert!(stdout.len() == 4096 && stdout.ends_with("4999\n5000\n"), "{ran}");
    assert_eq!(outcome["stderr"], "oops\n", "{ran}");
    task.end();
}

#[test]
fn json_of_a_command_that_was_killed_for_lack_of_memory_says_so() {
    let host = Host::new();
    let task = host.task(IDLE).flag("--memory=32M").start();
    for (script, killed) in [("exec tail /dev/zero", "oom".into()), ("kill -KILL $$", Value::Null)] {
        let ran = task.exec_with(["--json"], script);
        ran.assert_code(137);
        assert_eq!(ran.json()["killed"], killed, "{script}: {ran}");
    }
    task.end();
}

#[test]
fn json_of_an_exec_that_timed_out_has_no_exit_code() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let ran = task.exec_with(["--json", "--timeout=3s"], "echo so far; exec sleep 1000");
    ran.assert_code(124);
    let outcome = ran.json();
    assert!(outcome["exit_code"].is_null() && outcome["timed_out"] == true, "{ran}");
    assert_eq!(outcome["stdout"], "so far\n", "{ran}");
    task.end();
}
