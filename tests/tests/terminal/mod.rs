//! Terminals: `run -it` and `exec -it`, as a person sits at them.

mod screen;

use bowline_tests::Host;
use bowline_tests::harness::{Task, binary, eventually};
use rustix::process::Signal;

#[test]
fn a_task_has_a_terminal_of_its_own() {
    let host = Host::new();
    let (_, terminal) =
        host.task("tty; test -t 0 && test -t 1 && test -t 2 && echo all; exit 5").flag("-it").run_in_terminal();
    let ran = terminal.finish();
    ran.assert_code(5);
    assert_eq!(ran.out(), "/dev/pts/0\nall");
}

#[test]
fn its_terminal_is_its_console_and_its_controlling_one() {
    let host = Host::new();
    let script = "echo by console >/dev/console; echo by tty >/dev/tty; stat -c %t,%T,%u /dev/console /dev/pts/0";
    let (_, terminal) = host.task(script).flag("-it").run_in_terminal();
    let ran = terminal.finish();
    assert_eq!(ran.assert_code(0).out(), "by console\nby tty\n88,0,0\n88,0,0", "the same device, major 136");
}

#[test]
fn the_terminal_belongs_to_the_tasks_user() {
    let host = Host::new();
    let (_, terminal) =
        host.task("stat -c %U:%G /dev/pts/0; echo mine >/dev/tty").flag("-it").flag("--user=nobody").run_in_terminal();
    let ran = terminal.finish();
    assert_eq!(ran.assert_code(0).out(), "nobody:tty\nmine");
}

#[test]
fn a_terminal_works_in_a_user_namespace() {
    let host = Host::new();
    let root = host.busybox_root();
    let toml = "command = 'sh'\nargs = ['-c', 'tty; stty size; id -u']\nnamespaces.user = 'private'\n\
        uid_mappings = [{container = 0, host = 100000, size = 65536}]\n\
        gid_mappings = [{container = 0, host = 100000, size = 65536}]";
    let (_, terminal) = host.described(toml).rootfs(root.path()).flag("-it").run_in_terminal();
    let ran = terminal.finish();
    assert_eq!(ran.assert_code(0).out(), "/dev/pts/0\n24 80\n0");
}

#[test]
fn term_is_passed_on_unless_the_task_has_its_own() {
    let host = Host::new();
    let mut run = host.command(binary("bowline"));
    run.env("TERM", "screen-256color").args(["run", "--rm", "-it", "--", "sh", "-c", "echo $TERM"]);
    assert_eq!(host.command_in_terminal(&run).finish().assert_code(0).out(), "screen-256color");
    let mut run = host.command(binary("bowline"));
    run.env("TERM", "screen").args(["run", "--rm", "-it", "--env=TERM=dumb", "--", "sh", "-c", "echo $TERM"]);
    assert_eq!(host.command_in_terminal(&run).finish().assert_code(0).out(), "dumb");
}

#[test]
fn the_window_has_its_size_inside_and_a_change_is_told() {
    let host = Host::new();
    let script = "trap 'stty size; exit' WINCH; stty size; echo ready; while :; do sleep 0.1; done";
    let (_, terminal) = host.task(script).flag("-it").run_in_terminal();
    terminal.wait_for("24 80\nready\n");
    terminal.resize(31, 99);
    terminal.wait_for("31 99\n");
    terminal.finish().assert_code(0);
}

/// Waits until a process of the task executes `program`. Before it does, the shell has made it the terminal's foreground.
fn wait_until_it_runs(task: &Task, program: &str) {
    let runs =
        |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == program);
    task.wait_until_running();
    eventually(format_args!("{program} runs"), || task.processes().iter().any(runs).then_some(()));
}

#[test]
fn control_c_interrupts_what_runs_inside_and_not_us() {
    let host = Host::new();
    let (task, terminal) = host.task_of(["sh"]).flag("-it").run_in_terminal();
    terminal.wait_until_raw();
    terminal.wait_for("# ");
    terminal.type_keys("sleep 1000\r");
    wait_until_it_runs(&task, "sleep");
    terminal.type_keys("\x03");
    // The shell throws away what it has read as it hears of the interrupt. Where its child was just about to sleep, its
    // prompt comes without a new line.
    let prompt_after = |seen: &str| seen.split_once("^C").is_some_and(|(_, after)| after.contains("# "));
    terminal.wait_until("a prompt after ^C", prompt_after);
    terminal.type_keys("echo still $((40 + 2))\r");
    terminal.wait_for("still 42");
    terminal.type_keys("exit 6\r");
    terminal.finish().assert_code(6);
}

#[test]
fn jobs_are_stopped_and_brought_back_inside() {
    let host = Host::new();
    let (task, terminal) = host.task_of(["sh", "-i"]).flag("-it").run_in_terminal();
    terminal.wait_until_raw();
    terminal.type_keys("cat\r");
    wait_until_it_runs(&task, "cat");
    terminal.type_keys("first\r");
    terminal.wait_for("first\nfirst\n");
    terminal.type_keys("\x1a");
    terminal.wait_for("Stopped");
    // Before its prompt the terminal would show "fg" ahead of that.
    terminal.wait_for("cat\n# ");
    terminal.type_keys("fg\r");
    terminal.wait_for("fg\ncat\n");
    terminal.type_keys("second\r");
    terminal.wait_for("second\nsecond\n");
    terminal.type_keys("\x04");
    terminal.type_keys("exit 3\r");
    terminal.finish().assert_code(3);
}

#[test]
fn our_terminal_is_restored_however_it_ends() {
    let host = Host::new();
    for how in ["exit", "TERM", "HUP", "detach", "shim"] {
        let (task, terminal) =
            host.task("trap exit TERM; while read line; do $line; done").flag("-it").run_in_terminal();
        task.wait_until_running();
        assert!(!terminal.is_restored(), "raw");
        match how {
            "exit" => terminal.type_keys("exit\r"),
            "TERM" => terminal.process().signal(Signal::TERM),
            "HUP" => terminal.process().signal(Signal::HUP),
            "detach" => terminal.type_keys("\x10\x11"),
            _ => task.crash_shim(),
        }
        eventually(format_args!("restored after {how}"), || terminal.is_restored().then_some(()));
        terminal.finish();
        host.bowline(["rm", "-f", task.id()]).assert_code(0);
    }
}

#[test]
fn an_exec_has_a_terminal_of_the_tasks_own() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let terminal = task.in_terminal("exec", ["-it", "--", "sh", "-c", "tty; stty size; read x; echo got $x; exit 4"]);
    terminal.wait_for("/dev/pts/0\n24 80\n");
    terminal.type_keys("abc\r");
    let ran = terminal.finish();
    ran.assert_code(4);
    assert!(ran.out().ends_with("got abc"), "{ran}");
    task.end();
}

#[test]
fn the_window_of_an_exec_is_its_own() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.1; done";
    let one = task.in_terminal("exec", ["-it", "--", "sh", "-c", script]);
    let other = task.in_terminal("exec", ["-it", "--", "sh", "-c", "echo ready; read x; stty size"]);
    one.wait_for("ready\n");
    other.wait_for("ready\n");
    one.resize(40, 100);
    one.wait_for("40 100\n");
    one.finish().assert_code(0);
    other.type_keys("\r");
    assert!(other.finish().assert_code(0).out().ends_with("24 80"));
    task.end();
}

#[test]
fn one_may_leave_an_exec_which_runs_on() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let script =
        "trap '' HUP; echo ready; read x; echo $x; while test ! -e /tmp/end; do sleep 0.1; done; touch /tmp/ended";
    let terminal = task.in_terminal("exec", ["-it", "--", "sh", "-c", script]);
    terminal.wait_until_raw();
    terminal.wait_for("ready");
    terminal.type_keys("x\r");
    terminal.wait_for("x\nx\n");
    terminal.type_keys("\x10\x11");
    eventually("restored", || terminal.is_restored().then_some(()));
    terminal.finish().assert_code(0);
    task.exec("touch /tmp/end; while test ! -e /tmp/ended; do sleep 0.1; done; echo ran on").assert_says("ran on");
    task.end();
}

#[test]
fn much_output_passes_a_terminal_whole() {
    let host = Host::new();
    let (_, terminal) = host.task("seq 1 200000").flag("-it").run_in_terminal();
    let ran = terminal.finish();
    let expected: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    assert!(ran.assert_code(0).stdout == expected.as_bytes(), "{} bytes of {}", ran.stdout.len(), expected.len());
}

#[test]
fn the_filter_holds_in_a_terminal_too() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let terminal = task
        .in_terminal("exec", ["-it", "--", "sh", "-c", "grep -E '^(Seccomp|NoNewPrivs|CapEff):' /proc/self/status"]);
    let here = terminal.finish();
    let there = task.exec("grep -E '^(Seccomp|NoNewPrivs|CapEff):' /proc/self/status");
    assert_eq!(here.out(), there.out());
    task.end();
}

#[test]
fn a_terminal_where_there_is_none_is_refused() {
    let host = Host::new();
    for verb in ["run", "exec"] {
        let task = host.task("exec sleep 1000").start();
        let ran = match verb {
            "run" => host.bowline(["run", "-it", "--", "true"]),
            _ => task.bowline("exec", ["-t", "--", "true"]),
        };
        ran.assert_refused(2, &["-t needs a terminal", "stdin"]);
        task.end();
    }
}

#[test]
fn a_task_that_mounts_over_dev_pts_gets_no_exec_with_terminal() {
    let host = Host::new();
    let toml = "command = 'sleep'\nargs = ['1000']\ncapabilities.add = ['SYS_ADMIN']\nseccomp = 'unconfined'";
    let task = host.described(toml).start();
    task.exec("mount -t tmpfs none /dev/pts && mknod /dev/pts/ptmx p").assert_code(0);
    let ran = task.in_terminal("exec", ["-it", "--", "true"]).finish();
    ran.assert_refused(125, &["cannot open a terminal", "/dev/pts/ptmx"]);
    task.exec("echo alive").assert_says("alive");
    task.end();
}
