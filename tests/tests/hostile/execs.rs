//! Execs that do all they can to outlive their deadline, and a task whose processes are killed without end.
//!
//! Daemons in sessions of their own, and a fork bomb: `exec::at_the_deadline_daemons_in_their_own_sessions_are_gone_too`,
//! `exec::at_the_deadline_a_fork_bomb_is_gone_too`.

use bowline_tests::Host;
use bowline_tests::harness::{Trace, eventually, is_slow};

/// Forks as fast as it can: each child has a session and a name of its own, ignores what may be ignored, stops or not,
/// and leaves its parent, which ends; the first one never does.
const FLEES: &str = r#"
    $SIG{$_} = 'IGNORE' for qw(TERM HUP INT QUIT CHLD USR1 USR2 ALRM PIPE);
    $| = 1; print "begun\n";
    while (1) {
        my $pid = fork;
        if (!defined $pid) { next }
        if ($pid) { exit if $born && rand() < 0.5; next }
        syscall(SETSID); $0 = "other"; $born++ or print "born\n";
        kill 'STOP', $$ if rand() < 0.1;
    }
"#;

/// The number of the system call setsid(2), for perl's `syscall`.
const SETSID: &str = if cfg!(target_arch = "x86_64") { "112" } else { "157" };

#[test]
fn nothing_of_a_fork_bomb_of_sessions_outlives_the_deadline() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--pids=128").start();
    let flees = FLEES.replace("SETSID", SETSID);
    for round in 0..2 {
        // Where the processor is emulated, perl takes a while to begin.
        let timeout = if is_slow() { "--timeout=10s" } else { "--timeout=2s" };
        let ran = task.bowline("exec", [timeout, "--", "perl", "-e", &flees]);
        ran.assert_code(124);
        assert!(ran.out().contains("begun") && ran.out().contains("born"), "round {round}\n{ran}");
        eventually("only init is left", || (task.processes() == [task.program_pid()]).then_some(()));
    }
    let report = task.inspect();
    assert_eq!(report["status"], "running");
    let hit = task.cgroup_file("pids", "pids.events");
    assert!(hit.split_whitespace().nth(1) != Some("0"), "it never filled its cgroup: {hit}");
    task.exec("echo alive").assert_says("alive");
    task.end();
}

/// One that kills all that it can see, itself aside, while others start: every exec is answered, none is left.
#[test]
fn a_storm_of_sigkill_inside_harms_neither_shim_nor_answers() {
    let host = Host::new();
    // As the first process of its pid namespace it is out of the storm's reach.
    let task = host.task("exec sleep 1000").flag("--init=false").start();
    let storm = "trap 'exit 0' TERM; echo begun; while :; do kill -9 -1; done 2>/dev/null";
    let storming = task.spawn_exec([], storm);
    storming.wait_for_out("begun");
    let (mut killed, mut answered) = (0, 0);
    for round in 0..if is_slow() { 20 } else { 100 } {
        let timeout = if round % 2 == 0 { "--timeout=50s" } else { "--env=A=1" };
        let ran = task.exec_with([timeout], "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo through");
        match ran.code {
            Some(137) => killed += 1,
            Some(0) => answered += 1,
            // It was killed before its program ran.
            _ => assert!(ran.is_refusal(), "{ran}"),
        }
    }
    assert!(killed > 0, "{killed} killed, {answered} not: there was no storm");
    assert_eq!(task.status(), "running", "init is spared: a process of its own namespace cannot kill it");
    let shim = task.shim_pid();
    task.end();
    assert!(storming.finish().code.is_some_and(|code| code != 0));
    eventually("the shim leaves", || (!bowline_tests::harness::process_exists(shim)).then_some(()));
}

/// Sends every signal to every process but init and itself, without end; who is stopped is continued.
const SIGNALS: &str = r#"
    $| = 1; $SIG{$_} = 'IGNORE' for grep { !/KILL|STOP/ } keys %SIG; print "begun\n";
    while (1) {
        opendir my $proc, '/proc';
        for my $pid (grep { /^\d+$/ && $_ != 1 && $_ != $$ } readdir $proc) {
            kill 1 + int rand(64), $pid; kill 'CONT', $pid;
        }
    }
"#;

/// One that sends all signals to whatever it sees, while execs are cloned: every exec is answered, none is left.
#[test]
fn a_storm_of_all_signals_at_new_execs_harms_no_shim_or_answer() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--init=false").start();
    let shim = task.shim_pid();
    let storming = task.spawn_exec([], &format!("exec perl -e '{}'", SIGNALS.replace('\'', "'\\''")));
    storming.wait_for_out("begun");
    let (mut killed, mut answered) = (0, 0);
    for _ in 0..if is_slow() { 20 } else { 100 } {
        let ran = task.exec_with(["--timeout=20s"], "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo through");
        match ran.code {
            Some(0) => answered += 1,
            Some(129..) => killed += 1,
            // A signal came before its program ran.
            _ => assert!(ran.is_refusal(), "{ran}"),
        }
    }
    assert!(killed > 0, "{killed} killed, {answered} not: there was no storm");
    assert_eq!((task.status().as_str(), task.shim_pid()), ("running", shim));
    task.end();
    assert!(storming.finish().code.is_some_and(|code| code != 0));
}

/// CVE-2026-30892 of crun: `exec -u 1` was user 0.
#[test]
fn cve_2026_30892_a_user_by_number_is_that_user_or_refused() {
    let host = Host::new();
    let root = host.busybox_root();
    let ids = "echo $(id -u):$(id -g)";
    let of = |user: &str| host.task(ids).rootfs(root.path()).flag(format!("--user={user}")).run();
    let task = host.task("exec sleep 1000").rootfs(root.path()).start();
    let of_exec = |user: &str| task.exec_with([&format!("--user={user}")], ids);
    for (user, is) in [("1", "1:0"), ("0", "0:0"), ("1:2", "1:2"), ("1000:0", "1000:0")] {
        of(user).assert_says(is);
        of_exec(user).assert_says(is);
    }
    for user in ["1x", "1:", ":1", "1:x", "1:2:3", "4294967295", "4294967296", "18446744073709551617", "-1", "+1", " 1"]
    {
        for ran in [of(user), of_exec(user)] {
            let is_refused = matches!(ran.code, Some(2 | 125)) && ran.out().is_empty();
            assert!(is_refused || ran.out().starts_with("1:"), "{user:?}\n{ran}");
        }
    }
    task.end();
}

/// Its worker is stopped before there is a process of it, as one that is deep in the kernel.
#[test]
fn a_deadline_comes_though_the_worker_hangs() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let stopped = "inject=setns:signal=SIGSTOP";
    let trace = Trace::of(&host, task.shim_pid(), ["-f", "-e", "trace=setns", "-e", stopped]);
    task.exec_with(["--timeout=1s"], "echo never").assert_code(124);
    let unbounded = task.spawn_exec([], "echo never");
    eventually("the other is stopped too", || (trace.so_far().matches("SIGSTOP {").count() == 2).then_some(()));
    task.bowline("stop", ["--grace=0s"]).assert_code(0);
    unbounded.finish().assert_refused(125, &[task.id(), "has exited"]);
    trace.end();
}
