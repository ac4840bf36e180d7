//! Ending, signalling, freezing a task.

use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::{eventually, is_slow, only_v2};

const DEAF: &str = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
const POLITE: &str = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done";
/// Says which signal it got, and goes on.
const TALKATIVE: &str = "trap 'echo usr1' USR1; trap 'echo hup' HUP; echo ready; while :; do sleep 0.05; done";

#[test]
fn stop_ends_a_task_that_handles_term() {
    let host = Host::new();
    let task = host.task(POLITE).start();
    task.wait_for_line("ready");
    let report = task.stop(["--grace=50s"]);
    report.assert_code(5);
    assert!(report["signal"].is_null(), "{report:?}");
}

#[test]
fn stop_kills_after_grace_when_term_is_ignored() {
    let host = Host::new();
    let task = host.task(DEAF).start();
    task.wait_for_line("ready");
    let before = Instant::now();
    let report = task.stop(["--signal=TERM", "--grace=200ms"]);
    assert!(before.elapsed() >= Duration::from_millis(200), "killed before its grace was over");
    report.assert_killed_by("KILL").assert_code(137);
    assert_eq!(report["signal_sent_by_shim"], true);
}

#[test]
fn stop_without_grace_kills_at_once() {
    let host = Host::new();
    let task = host.task("trap 'echo handled' TERM; echo ready; while :; do sleep 0.1; done").start();
    task.wait_for_line("ready");
    task.stop(["--grace=0"]).assert_killed_by("KILL");
    assert_eq!(task.said("stdout"), "ready\n", "no TERM was sent");
}

#[test]
fn stop_takes_signals_by_name_and_number() {
    for signal in ["USR2", "SIGUSR2", "usr2", "12"] {
        let host = Host::new();
        let task = host.task("trap 'exit 9' USR2; echo ready; while :; do sleep 0.1; done").start();
        task.wait_for_line("ready");
        task.stop([&format!("--signal={signal}"), "--grace=50s"]).assert_code(9);
        host.assert_nothing_left();
    }
}

#[test]
fn stop_uses_signal_and_grace_of_the_description() {
    let host = Host::new();
    let toml = "command = 'sh'\nargs = ['-c', 'trap \"exit 6\" INT; trap \"\" TERM; echo ready; while :; do sleep 0.1; done']\nstop = {signal = 'INT', grace = '50s'}";
    let task = host.described(toml).start();
    task.wait_for_line("ready");
    task.stop([]).assert_code(6);
}

#[test]
fn a_repeated_stop_shortens_the_wait() {
    let host = Host::new();
    let task = host.task(DEAF).start();
    task.wait_for_line("ready");
    let patient = host.spawn(["stop", task.id(), "--grace=1h"]);
    eventually("the first stop has arrived", || (task.status() == "stopping").then_some(()));
    task.stop(["--grace=0"]).assert_killed_by("KILL");
    patient.finish().assert_code(0);
}

#[test]
fn a_repeated_stop_never_lengthens_the_wait() {
    let host = Host::new();
    let task = host.task(DEAF).start();
    task.wait_for_line("ready");
    // Long enough to see that it has arrived, where the machine is emulated.
    let short = host.spawn(["stop", task.id(), if is_slow() { "--grace=15s" } else { "--grace=1s" }]);
    eventually("the first stop has arrived", || (task.status() == "stopping").then_some(()));
    task.stop(["--grace=1h"]).assert_killed_by("KILL");
    short.finish().assert_code(0);
}

#[test]
fn an_unknown_signal_is_refused_before_anything_happens() {
    let host = Host::new();
    let task = host.task(POLITE).start();
    task.wait_for_line("ready");
    for bad in ["NOPE", "SIGNOPE", "65", "-1", "00", ""] {
        task.bowline("stop", [&format!("--signal={bad}"), "--grace=0"]).assert_refused(2, &["signal"]);
        task.bowline("kill", [&format!("--signal={bad}")]).assert_refused(2, &["signal"]);
    }
    task.bowline("stop", ["--signal=0", "--grace=0"]).assert_refused(2, &["signal"]);
    assert_eq!(task.status(), "running");
    task.end();
}

#[test]
fn stop_of_a_task_that_has_exited_succeeds() {
    let host = Host::new();
    let task = host.task("exit 2").start();
    task.wait();
    task.stop([]).assert_code(2);
}

#[test]
fn stop_thaws_a_paused_task_so_that_it_can_end_gracefully() {
    let host = Host::new();
    let task = host.task(POLITE).start();
    task.wait_for_line("ready");
    task.bowline("pause", []).assert_code(0);
    task.stop(["--grace=50s"]).assert_code(5);
}

#[test]
fn a_paused_task_can_be_killed_at_once() {
    let host = Host::new();
    let task = host.task("echo ready; exec sleep 1000").start();
    task.wait_for_line("ready");
    task.bowline("pause", []).assert_code(0);
    task.stop(["--grace=0"]).assert_killed_by("KILL");
}

#[test]
fn kill_sends_sigkill_by_default() {
    let host = Host::new();
    let task = host.task(DEAF).start();
    task.wait_for_line("ready");
    task.bowline("kill", []).assert_code(0);
    let report = task.wait();
    report.assert_killed_by("KILL").assert_code(137);
    assert_eq!(report["signal_sent_by_shim"], true);
}

#[test]
fn kill_sends_a_signal_by_name_or_number_and_no_more() {
    let host = Host::new();
    let task = host.task(TALKATIVE).start();
    task.wait_for_line("ready");
    task.bowline("kill", ["--signal=USR1"]).assert_code(0);
    task.wait_for_line("usr1");
    task.bowline("kill", ["-s", "1"]).assert_code(0);
    task.wait_for_line("hup");
    assert_eq!(task.status(), "running");
    task.end();
}

#[test]
fn everything_of_the_task_dies_with_its_init() {
    let host = Host::new();
    let toml = "command = 'sh'\nargs = ['-c', 'setsid sleep 1000 & setsid sleep 1000 & echo ready; wait']\nnamespaces.pid = 'host'";
    let task = host.described(toml).start();
    task.wait_for_line("ready");
    eventually("two sleep", || (task.processes().len() == 3).then_some(()));
    let report = task.end();
    assert_eq!(report["processes_killed"], 2, "{report:?}");
}

#[test]
fn daemons_do_not_outlive_an_init_that_exits_by_itself() {
    let host = Host::new();
    let toml = "command = 'sh'\nargs = ['-c', 'setsid sleep 1000 & exit 8']\nnamespaces.pid = 'host'";
    let task = host.described(toml).start();
    task.wait().assert_code(8);
}

#[test]
fn orphans_of_a_task_in_the_hosts_pid_namespace_are_reaped() {
    let host = Host::new();
    let toml = "command = 'sh'\nargs = ['-c', '(sleep 0.01 &); (sleep 0.01 &); echo ready; exec sleep 1000']\nnamespaces.pid = 'host'";
    let task = host.described(toml).start();
    task.wait_for_line("ready");
    let shim = task.shim_pid();
    eventually("init is the shim's only child", || {
        let children = std::fs::read_to_string(format!("/proc/{shim}/task/{shim}/children")).ok()?;
        (children.trim() == task.pid().to_string()).then_some(())
    });
    task.end();
}

#[test]
fn pause_freezes_every_process_and_resume_thaws_them() {
    let host = Host::new();
    let task = host.task("while :; do echo tick; sleep 0.02; done").start();
    task.wait_for_line("tick");
    task.bowline("pause", []).assert_code(0);
    assert_eq!(task.status(), "paused");
    let (state, frozen, usage) =
        if only_v2() { ("cgroup.freeze", "1", "cpu.stat") } else { ("freezer.state", "FROZEN", "cpuacct.usage") };
    assert_eq!(task.cgroup_file("freezer", state), frozen);
    let cpu = || task.cgroup_file("cpuacct", usage);
    let frozen = cpu();
    // Another task does meanwhile what this one would have done ten times.
    let other = host.task("for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.02; done").start();
    other.wait();
    assert_eq!(cpu(), frozen, "a paused task uses CPU time");
    task.bowline("resume", []).assert_code(0);
    assert_eq!(task.status(), "running");
    eventually("it runs again", || (cpu() != frozen).then_some(()));
    task.end();
}

#[test]
fn pausing_twice_and_resuming_what_runs_are_errors() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    task.bowline("resume", []).assert_refused(125, &["running"]);
    task.bowline("pause", []).assert_code(0);
    task.bowline("pause", []).assert_refused(125, &["paused"]);
    task.end();
    task.bowline("pause", []).assert_refused(125, &["exited"]);
}

#[test]
fn kill_of_a_task_that_has_exited_is_an_error() {
    let host = Host::new();
    let task = host.task("true").start();
    task.wait();
    task.bowline("kill", []).assert_refused(125, &[task.id()]);
}

#[test]
fn rm_refuses_a_task_that_runs_and_force_ends_it() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    task.bowline("rm", []).assert_refused(125, &[task.id()]);
    assert_eq!(task.status(), "running");
    task.bowline("rm", ["-f"]).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn rm_of_a_paused_task_with_force_ends_it() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    task.bowline("pause", []).assert_code(0);
    task.bowline("rm", ["-f"]).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn kill_with_signal_0_asks_whether_a_task_lives() {
    let host = Host::new();
    let task = host.task("trap 'exit 7' 1 2 3 15; echo ready; while :; do sleep 0.01; done").start();
    task.wait_for_line("ready");
    task.bowline("kill", ["--signal=0"]).assert_code(0);
    assert_eq!(task.status(), "running");
    task.bowline("kill", []).assert_code(0);
    task.wait();
    task.bowline("kill", ["-s", "0"]).assert_refused(125, &[task.id()]);
}
