//! What becomes of a command in a task when `bowline exec` is interrupted, killed or left.

use bowline_tests::Host;
use bowline_tests::harness::{Process, Task, binary, eventually};
use rustix::process::Signal;

const IDLE: &str = "echo ready; exec sleep 1000";

/// Waits until the task has this many processes.
fn until_processes(task: &Task<'_>, count: usize) {
    eventually(format_args!("{count} processes"), || (task.processes().len() == count).then_some(()));
}

#[test]
fn a_signal_is_passed_on_to_the_command() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    for (name, signal) in [("INT", Signal::INT), ("TERM", Signal::TERM), ("QUIT", Signal::QUIT), ("HUP", Signal::HUP)] {
        let script = format!("trap 'echo got {name}; exit 5' {name}; echo begun; while :; do sleep 0.05; done");
        let exec = task.spawn_exec([], &script);
        exec.wait_for_out("begun");
        exec.signal(signal);
        let ran = exec.finish();
        assert!(ran.assert_code(5).out().ends_with(&format!("got {name}")), "{ran}");
    }
    until_processes(&task, 1);
    task.end();
}

#[test]
fn what_a_shell_has_started_gets_the_signal_too() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let exec = task.spawn_exec([], "echo begun; sleep 1234; echo unreached");
    exec.wait_for_out("begun");
    until_processes(&task, 3);
    exec.signal(Signal::TERM);
    assert!(!exec.finish().assert_code(143).out().contains("unreached"));
    until_processes(&task, 1);
    task.end();
}

#[test]
fn under_timeout_the_command_gets_the_signal_once() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let script = "n=0; trap 'n=$((n+1)); echo got $n' TERM; trap 'echo all $n; exit 6' HUP
        echo begun; while :; do sleep 0.05; done";
    let mut command = host.command("timeout");
    command.args(["-k", "50", "100"]).arg(binary("bowline")).args(["exec", task.id(), "--", "/bin/sh", "-c", script]);
    let timeout = host.spawn_command(command);
    timeout.wait_for_out("begun");
    // It signals its child, and then its process group.
    timeout.signal(Signal::TERM);
    timeout.wait_for_out("got 1");
    timeout.signal(Signal::HUP);
    let ran = timeout.finish();
    assert!(ran.out().ends_with("got 1\nall 1"), "{ran}");
    until_processes(&task, 1);
    task.end();
}

#[test]
fn a_time_that_is_over_leaves_nothing_of_the_command() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let mut command = host.command("timeout");
    command.arg("0.5").arg(binary("bowline")).args(["exec", task.id(), "--", "/bin/sh", "-c", "sleep 300; :"]);
    host.execute(command).assert_code(124);
    until_processes(&task, 1);
    task.end();
}

#[test]
fn the_session_of_a_client_that_was_killed_is_hung_up() {
    let host = Host::new();
    let task = host.task(IDLE).toml("stop.grace = '1h'").start();
    for flags in [&[][..], &["--timeout=1h"], &["--json"]] {
        let script = "echo begun; touch /tmp/begun; sleep 1234 & sleep 1235; :";
        let mut command = host.command(binary("bowline"));
        command.arg("exec").args(flags).args([task.id(), "--", "/bin/sh", "-c", script]);
        let exec = host.spawn_command(command);
        until_processes(&task, 4);
        exec.signal(Signal::KILL);
        exec.finish();
        until_processes(&task, 1);
    }
    let facts = || host.bowline(["inspect", "--facts", task.id()]).json()["tasks"][task.id()]["execs"].clone();
    eventually("no exec is known", || facts().as_object().is_some_and(|execs| execs.is_empty()).then_some(()));
    task.end();
}

#[test]
fn after_the_grace_all_that_ignores_the_hangup_is_killed() {
    let host = Host::new();
    let task = host.task(IDLE).toml("stop.grace = '500ms'").start();
    for flags in [&[][..], &["--timeout=1h"]] {
        // One in the session, and one in a session of its own, which hears of nothing; both outlive the command.
        let script = "(trap '' HUP; exec sleep 1234) & setsid sh -c 'trap \"\" HUP; sleep 1235; :' & wait";
        let mut command = host.command(binary("bowline"));
        command.arg("exec").args(flags).args([task.id(), "--", "/bin/sh", "-c", script]);
        let exec = host.spawn_command(command);
        until_processes(&task, 5);
        exec.signal(Signal::KILL);
        exec.finish();
        until_processes(&task, 1);
    }
    assert_eq!(task.status(), "running");
    task.exec("echo alive").assert_says("alive");
    task.end();
}

#[test]
fn killed_clients_leave_no_heap_of_folders() {
    let host = Host::new();
    let task = host.task("echo ready; while read x; do echo got; done; exec sleep 1000").start();
    let left = || {
        let entries = std::fs::read_dir(host.state().join(task.id())).expect("the task's folder").flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("attach-")).count()
    };
    for command in ["exec", "attach"] {
        for _ in 0..3 {
            let mut client = host.command(binary("bowline"));
            match command {
                "exec" => client.args(["exec", "-i", task.id(), "--", "/bin/sh", "-c", "echo begun; sleep 1234"]),
                _ => client.args(["attach", task.id()]),
            };
            let client = host.spawn_command(client);
            eventually("it has a folder", || (left() == 1).then_some(()));
            client.signal(Signal::KILL);
            client.finish();
        }
    }
    host.bowline(["exec", "-i", task.id(), "true"]).assert_code(0);
    assert_eq!(left(), 0);
    task.end();
}

#[test]
fn what_ignores_the_loss_of_its_terminal_is_killed() {
    let host = Host::new();
    let task = host.task(IDLE).toml("stop.grace = '500ms'").start();
    for flags in ["", "-t", "-it"] {
        let mut shell = host.command("sh");
        let exec = format!("{} exec {flags} {} -- /bin/sh -c \"$0\"; :", binary("bowline").display(), task.id());
        shell.args(["-c", &exec, "trap '' HUP; echo begun; while :; do sleep 0.05; done"]);
        let terminal = host.command_in_terminal(&shell);
        terminal.wait_for("begun");
        terminal.process().signal(Signal::KILL);
        until_processes(&task, 1);
    }
    task.end();
}

/// The shell passes the hangup on before the kernel can, and no stream of the command is at the terminal.
#[test]
fn a_redirected_exec_notices_that_its_terminal_is_lost() {
    let host = Host::new();
    let task = host.task(IDLE).toml("stop.grace = '500ms'").start();
    let mut shell = host.command("sh");
    let exec =
        format!("{} exec {} -- /bin/sh -c \"$0\" </dev/null >/dev/null 2>&1", binary("bowline").display(), task.id());
    let script = format!("trap 'kill -HUP $!; wait' HUP; {exec} & wait; wait");
    shell.args(["-c", &script, "trap '' HUP; sleep 1234; :"]);
    let terminal = host.command_in_terminal(&shell);
    until_processes(&task, 3);
    let shell = terminal.hang_up();
    until_processes(&task, 1);
    shell.finish();
    task.end();
}

/// A session of its own, deaf to a hangup, whose parent has ended.
const DAEMON: &str = "trap '' HUP; (setsid sh -c 'sleep 1236; :' &)";

/// Starts an exec that starts a daemon.
fn exec_with_daemon(host: &Host, task: &Task<'_>, flags: &[&str]) -> Process {
    let before = task.processes().len();
    let mut command = host.command(binary("bowline"));
    let script = format!("{DAEMON}; sleep 1237; :");
    command.arg("exec").args(flags).args([task.id(), "--", "/bin/sh", "-c", &script]);
    let exec = host.spawn_command(command);
    until_processes(task, before + 4);
    exec
}

#[test]
fn a_daemon_whose_parent_has_ended_is_killed_too() {
    let host = Host::new();
    let users = "namespaces.user = 'private'\nuid_mappings = [{container = 0, host = 100000, size = 65536}]\n\
                 gid_mappings = [{container = 0, host = 100000, size = 65536}]";
    for more in ["", "namespaces.cgroup = 'host'", "init = true", users] {
        let task = host.task(IDLE).toml("stop.grace = '500ms'").toml(more).start();
        let own = task.processes().len();
        // One that an exec has left by its own end is nobody else's.
        task.exec(&format!("{DAEMON} >/dev/null 2>&1")).assert_code(0);
        until_processes(&task, own + 2);
        for flags in [&["--timeout=1h"][..], &[], &["--json"]] {
            let exec = exec_with_daemon(&host, &task, flags);
            exec.signal(Signal::KILL);
            exec.finish();
            until_processes(&task, own + 2);
        }
        assert_eq!(task.status(), "running", "{more}");
        task.end();
    }
}

#[test]
fn a_daemon_in_a_cgroup_namespace_of_its_own_is_killed_too() {
    let host = Host::new();
    for may_unshare in ["seccomp = 'unconfined'", "capabilities.add = ['SYS_ADMIN']"] {
        let task = host.task(IDLE).toml(&format!("stop.grace = '300ms'\n{may_unshare}")).start();
        let mut command = host.command(binary("bowline"));
        let script = format!("unshare -C sh -c \"{DAEMON}\" || unshare -UrC sh -c \"{DAEMON}\"; sleep 1237; :");
        command.args(["exec", task.id(), "--", "/bin/sh", "-c", &script]);
        let exec = host.spawn_command(command);
        until_processes(&task, 5);
        exec.signal(Signal::KILL);
        exec.finish();
        until_processes(&task, 1);
        task.end();
    }
}

#[test]
fn a_daemon_is_known_after_an_upgrade() {
    let host = Host::new();
    let task = host.task(IDLE).toml("stop.grace = '500ms'").start();
    task.exec(&format!("{DAEMON} >/dev/null 2>&1")).assert_code(0);
    until_processes(&task, 3);
    let exec = exec_with_daemon(&host, &task, &[]);
    host.bowline(["upgrade", task.id()]).assert_code(0);
    exec.signal(Signal::KILL);
    exec.finish();
    until_processes(&task, 3);
    task.end();
}

#[test]
fn the_grace_is_the_tasks_own() {
    let host = Host::new();
    let task = host.task(IDLE).toml("stop.grace = '1h'").start();
    // A shell says of a child that a signal has ended it: nobody reads that any more.
    let script = "trap 'touch /tmp/hup' HUP; echo begun; exec 2>/dev/null
        while test ! -e /tmp/end; do sleep 0.05; done; touch /tmp/ended";
    let exec = task.spawn_exec([], script);
    exec.wait_for_out("begun");
    exec.signal(Signal::KILL);
    exec.finish();
    let done = "while test ! -e /tmp/hup; do sleep 0.05; done; touch /tmp/end; while test ! -e /tmp/ended; do sleep 0.05; done";
    task.exec(done).assert_code(0);
    task.end();
}

#[test]
fn what_another_exec_has_started_is_left_alone() {
    let host = Host::new();
    let task = host.task(IDLE).toml("stop.grace = '100ms'").start();
    task.exec("setsid sleep 1111 >/dev/null 2>&1 &").assert_code(0);
    let other = task.spawn_exec([], "echo begun; sleep 1112; :");
    other.wait_for_out("begun");
    until_processes(&task, 4);
    let exec = task.spawn_exec([], "trap '' HUP; echo begun; sleep 1113; :");
    exec.wait_for_out("begun");
    until_processes(&task, 6);
    exec.signal(Signal::KILL);
    exec.finish();
    until_processes(&task, 4);
    task.exec("echo alive").assert_says("alive");
    assert_eq!(task.processes().len(), 4);
    other.signal(Signal::TERM);
    other.finish().assert_code(143);
    task.end();
}

#[test]
fn a_command_that_was_left_by_its_keys_runs_on() {
    let host = Host::new();
    let task = host.task(IDLE).toml("stop.grace = '100ms'").start();
    let script = "echo be''gun; while test ! -e /tmp/end; do sleep 0.05; done; touch /tmp/ended";
    let terminal = task.in_terminal("exec", ["-it", "--", "sh", "-c", script]);
    terminal.wait_until_raw();
    terminal.wait_for("begun");
    terminal.type_keys("\x10\x11");
    terminal.finish().assert_code(0);
    task.exec("sleep 0.5; touch /tmp/end; while test ! -e /tmp/ended; do sleep 0.05; done").assert_code(0);
    task.end();
}

#[test]
fn a_terminal_that_is_lost_takes_its_command_with_it() {
    let host = Host::new();
    let task = host.task(IDLE).toml("stop.grace = '300ms'").start();
    for trap in ["", "trap '' HUP; "] {
        let script = format!("{trap}echo be''gun; sleep 1234; :");
        let terminal = task.in_terminal("exec", ["-it", "--", "sh", "-c", &script]);
        terminal.wait_for("begun");
        until_processes(&task, 3);
        let exec = terminal.hang_up();
        until_processes(&task, 1);
        exec.finish().assert_code(129);
    }
    task.end();
}

#[test]
fn an_upgrade_is_no_death_of_a_client_and_one_after_it_is() {
    let host = Host::new();
    let task = host.task(IDLE).toml("stop.grace = '2s'").start();
    let exec = task.spawn_exec([], "trap '' HUP; echo begun; sleep 1234; :");
    exec.wait_for_out("begun");
    until_processes(&task, 3);
    let upgrade = || host.bowline(["upgrade", task.id()]).assert_code(0).out();
    upgrade();
    assert_eq!(task.processes().len(), 3);
    exec.signal(Signal::KILL);
    exec.finish();
    let facts = || host.bowline(["inspect", "--facts", task.id()]).json()["tasks"][task.id()]["execs"].clone();
    eventually("it is hung up", || facts().to_string().contains("\"unwanted\":true").then_some(()));
    upgrade();
    until_processes(&task, 1);
    task.end();
}
