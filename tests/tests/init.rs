//! bowline's own init: it is above a task's program, and nothing else about the task changes.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::{
    Build, Task, Trace, binary, child_pids, copy_binary, eventually, name_of, process_exists,
};
use rustix::process::{Pid, Signal, kill_process};

/// The init of `task`, which is bowline's own.
#[track_caller]
fn init_of(task: &Task<'_>) -> i32 {
    let init = task.pid();
    assert_eq!(name_of(init), "bowline-init");
    init
}

/// Prints the name of the first process, once that executes its program: it does so beside the command. Forks nothing.
const FIRST: &str = "while read -r name </proc/1/comm; do \
    case $name in bowline-shim|memfd:*|program|[0-9]*) ;; *) break ;; esac; done; echo $name";

#[test]
fn the_host_view_has_it_and_any_other_root_on_request() {
    let host = Host::new();
    let root = host.busybox_root();
    assert_eq!(host.task(FIRST).run().out(), "bowline-init");
    assert_eq!(host.task(FIRST).flag("--init=false").run().out(), "sh");
    assert_eq!(host.task(FIRST).rootfs(root.path()).run().out(), "sh");
    for flag in ["--init", "--init=true"] {
        assert_eq!(host.task(FIRST).rootfs(root.path()).flag(flag).run().out(), "bowline-init");
    }
    assert_eq!(described(&host, "").run().out(), "bowline-init");
    assert_eq!(described(&host, "init = false").run().out(), "sh");
    assert_eq!(described(&host, &format!("rootfs = {:?}\ninit = true", root.path())).run().out(), "bowline-init");
}

/// A task that prints the name of its first process, with these lines in its description.
fn described<'h>(host: &'h Host, more: &str) -> Build<'h> {
    host.described(&format!("command = 'sh'\nargs = ['-c', '{FIRST}']\n{more}"))
}

#[test]
fn members_of_a_sandbox_have_it_as_other_tasks_do() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    for (flag, first) in [("--init", "bowline-init"), ("--init=false", "sh")] {
        assert_eq!(host.task(FIRST).in_sandbox(&sandbox).flag(flag).run().out(), first);
    }
    assert_eq!(sandbox.described(&format!("command = 'sh'\nargs = ['-c', '{FIRST}']")).run().out(), "bowline-init");
    sandbox.rm([]);
}

#[test]
fn by_default_it_is_left_out_where_a_task_may_have_one_process() {
    let host = Host::new();
    for (limit, first) in [("pids = 1", "sh"), ("rlimits.nproc = 1", "sh"), ("pids = 2", "bowline-init")] {
        assert_eq!(described(&host, &format!("user = 4711\n{limit}")).run().out(), first, "{limit}");
    }
}

#[test]
fn exit_codes_and_signals_are_those_of_the_program() {
    let host = Host::new();
    for code in [0, 1, 127, 255] {
        host.task(&format!("exit {code}")).flag("--init").run().assert_code(code);
    }
    for signal in [6, 9, 15] {
        let task = host.task(&format!("kill -{signal} $$")).flag("--init").start();
        let report = task.wait();
        report.assert_code(128 + signal);
        assert!(report["signal"].is_string(), "{report:?}");
        assert_eq!(report["signal_sent_by_shim"], false, "{report:?}");
    }
}

#[test]
fn a_signal_reaches_the_program() {
    let host = Host::new();
    let task = host.task_of(["sleep", "1000"]).flag("--init").start();
    task.wait_until_running();
    task.stop(["--grace=50s"]).assert_killed_by("TERM");
    let task = host.task("trap 'echo usr1' USR1; echo ready; while :; do sleep 0.05; done").flag("--init").start();
    task.wait_for_line("ready");
    task.bowline("kill", ["--signal=USR1"]).assert_code(0);
    task.wait_for_line("usr1");
    let stopped = |letter: &str| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", task.program_pid())).unwrap_or_default();
        stat.contains(&format!(") {letter} "))
    };
    task.bowline("kill", ["--signal=STOP"]).assert_code(0);
    eventually("it is stopped", || stopped("T").then_some(()));
    task.bowline("kill", ["--signal=CONT"]).assert_code(0);
    eventually("it runs on", || (!stopped("T")).then_some(()));
    task.end();
}

#[test]
fn a_signal_from_inside_to_pid_1_reaches_the_program() {
    let host = Host::new();
    host.task("trap 'exit 9' TERM; kill -TERM 1; while :; do sleep 0.05; done").flag("--init").run().assert_code(9);
}

#[test]
fn orphans_are_reaped() {
    let host = Host::new();
    for more in ["", "namespaces.pid = 'host'"] {
        let script = "(setsid sleep 0.2 &); echo ready; exec sleep 1000";
        let toml = format!("command = 'sh'\nargs = ['-c', \"{script}\"]\ninit = true\n{more}");
        let task = host.described(&toml).start();
        task.wait_for_line("ready");
        let init = init_of(&task);
        eventually("the orphan was reaped", || (child_pids(init).len() == 1).then_some(()));
        task.end();
    }
}

/// What of the first process a task can look into.
const LOOK: &str = "readlink /proc/1/fd/* 2>/dev/null && echo fds; cat /proc/1/exe >/dev/null 2>&1 && echo exe; \
    cat /proc/1/mem >/dev/null 2>&1 && echo memory; cat /proc/1/environ 2>/dev/null | tr -d '\\0'; echo done";

#[test]
fn nothing_of_it_can_be_reached_from_inside() {
    let host = Host::new();
    assert_eq!(host.task(LOOK).flag("--init").run().out(), "done");
    // Whoever may trace every process finds a program that nobody can change.
    let toml = r#"
        command = "sh"
        args = ["-c", "echo x >/proc/1/exe"]
        init = true
        [capabilities]
        add = ["SYS_PTRACE"]
    "#;
    let ran = host.described(toml).run();
    assert!(ran.code != Some(0), "{ran}");
}

/// From its execve until it has hidden itself any process of its user could.
#[test]
fn nor_while_it_starts() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let late = ["-f", "-e", "trace=execveat", "-e", "inject=execveat:delay_exit=500ms"];
    let trace = Trace::of(&host, sandbox.shim_pid(), late);
    assert_eq!(sandbox.task(LOOK).flag("--init").run().out(), "done");
    assert!(trace.end().contains("(DELAYED)"));
    // One that cannot start is said, and what it waits for never runs.
    let trace = Trace::of(&host, sandbox.shim_pid(), ["-f", "-e", "inject=execveat:error=ENOMEM"]);
    let refused = sandbox.task("echo ran").flag("--init").run();
    trace.end();
    refused.assert_code(125);
    assert!(refused.err().contains("bowline-init") && refused.out().is_empty(), "{refused}");
    sandbox.rm([]);
}

#[test]
fn it_has_no_right_that_the_program_lacks() {
    let host = Host::new();
    let status = "grep -E '^(Uid|Gid|Groups|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs):' /proc/$p/status";
    let script = format!("for p in 1 self; do {status} >/tmp/$p; done; cmp /tmp/1 /tmp/self && echo same");
    for flags in [&[][..], &["--user=1000:1000"], &["--untrusted"]] {
        let task = flags.iter().fold(host.task(&script).flag("--init"), |task, flag| task.flag(*flag));
        assert_eq!(task.run().out(), "same");
    }
}

#[test]
fn a_filter_of_few_calls_is_the_programs_alone() {
    let host = Host::new();
    let profile = host.work().join("profile.json");
    let deny = r#"{"defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["wait4", "waitid", "rt_sigtimedwait", "kill", "ioctl"], "action": "SCMP_ACT_ERRNO"}]}"#;
    fs::write(&profile, deny).expect("writable");
    let toml = format!("command = '/bin/true'\ninit = true\nseccomp = {:?}", profile.display().to_string());
    host.described(&toml).run().assert_code(0);
}

#[test]
fn it_has_few_pages_of_its_own() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--init").start();
    let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", init_of(&task))).expect("it lives");
    let anonymous = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("the kernel counts it");
    let own: u64 = anonymous.trim().trim_end_matches(" kB").parse().expect("kB");
    assert!(own <= 64, "{own} KiB");
    task.end();
}

#[test]
fn output_that_no_shim_reads_is_kept_until_one_has_read_it() {
    let host = Host::new();
    let task = host.task("until [ -e /tmp/go ]; do sleep 0.05; done; seq 1 5000; exit 3").flag("--init").start();
    let (init, shim) = (init_of(&task), task.shim_pid());
    kill_process(Pid::from_raw(shim).expect("a pid"), Signal::STOP).expect("it lives");
    let program = task.program_pid();
    fs::write(format!("/proc/{program}/root/tmp/go"), "").expect("writable");
    eventually("the program has ended", || (!process_exists(program)).then_some(()));
    assert!(process_exists(init), "it keeps what was written");
    kill_process(Pid::from_raw(shim).expect("a pid"), Signal::CONT).expect("it lives");
    task.wait().assert_code(3);
    let expected: String = (1..=5000).map(|n| format!("{n}\n")).collect();
    assert_eq!(task.said("stdout"), expected);
}

#[test]
fn where_there_is_no_room_or_no_program_for_it_that_is_said() {
    let host = Host::new();
    host.described("command = 'true'\ninit = true\npids = 1").assert_refused(125, &["init", "pids"]);
    let alone = host.work().join("alone");
    fs::create_dir(&alone).expect("a folder");
    for name in ["bowline", "bowline-shim"] {
        copy_binary(name, &alone.join(name));
    }
    let run = |flags: &[&str]| {
        let mut command = host.command(alone.join("bowline"));
        command.args(["run", "--rm", "--name", &host.new_id()]).args(flags);
        command.args(["--", "cat", "/proc/1/comm"]).env("PATH", "/usr/bin:/bin");
        host.execute(command)
    };
    run(&["--init"]).assert_refused(125, &["bowline-init"]);
    assert_eq!(run(&[]).assert_code(0).out(), "cat");
    let mut command = host.command(alone.join("bowline"));
    command.arg("doctor").env("PATH", "/usr/bin:/bin");
    assert!(host.execute(command).out().contains("bowline-init: not found"));
}

#[test]
fn where_programs_in_memory_are_forbidden_it_runs_from_disk() {
    let host = Host::new();
    // The sysctl is the pid namespace's own, and can only be raised.
    let script = "cd /proc/sys/vm; [ -e memfd_noexec ] || exit 99; echo $1 >memfd_noexec && \
        exec \"$0\" run --rm --name \"$2\" --user=1000:1000 --init -- sh -c \"$3\"";
    for level in ["1", "2"] {
        let mut command = host.command("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "/bin/sh", "-c", script]);
        command.arg(binary("bowline")).args([level, &host.new_id(), FIRST]);
        let ran = host.execute(command);
        if ran.code == Some(99) {
            // Before Linux 6.3 they are never forbidden.
            break;
        }
        assert_eq!(ran.assert_code(0).out(), "bowline-init");
    }
}

#[test]
fn a_reader_that_goes_ends_the_program_as_in_any_pipeline() {
    let host = Host::new();
    let mut command = host.command("bash");
    // Also where the reader has gone before anything runs.
    let script = "set -o pipefail; $BOWLINE run --rm --init -- yes | head -n 2; echo $?; \
        $BOWLINE run --rm --init -- yes | true; echo $?";
    command.args(["-c", script]).env("BOWLINE", binary("bowline"));
    assert_eq!(host.execute(command).assert_code(0).out(), "y\ny\n141\n141");
}

#[test]
fn a_terminal_is_the_programs() {
    let host = Host::new();
    let (task, terminal) = host.task_of(["sh", "-i"]).flag("--init").flag("-it").run_in_terminal();
    terminal.wait_until_raw();
    terminal.type_keys("ps -o sid= -p $$ | tr -d ' '; echo $$\r");
    terminal.wait_for("2\n2\n");
    terminal.type_keys("sleep 1000\r");
    eventually("it sleeps", || task.processes().iter().any(|pid| name_of(*pid) == "sleep").then_some(()));
    terminal.type_keys("\x1a");
    terminal.wait_for("Stopped");
    terminal.type_keys("exit 6\r");
    terminal.wait_for("stopped jobs");
    terminal.type_keys("exit 6\r");
    terminal.finish().assert_code(6);
}

#[test]
fn execs_and_signals_work_where_users_are_mapped() {
    let host = Host::new();
    let toml = r#"
        command = "sleep"
        args = ["1000"]
        init = true
        namespaces.user = "private"
        uid_mappings = [{ container = 0, host = 400000, size = 65536 }]
        gid_mappings = [{ container = 0, host = 400000, size = 65536 }]
    "#;
    let task = host.described(toml).start();
    task.wait_until_running();
    assert_eq!(task.exec("id -u; cat /proc/1/comm").out(), "0\nbowline-init");
    task.exec_with(["--timeout=50s"], "exit 4").assert_code(4);
    task.stop(["--grace=50s"]).assert_killed_by("TERM");
}

#[test]
fn memory_that_the_program_lacks_is_the_programs_end() {
    let host = Host::new();
    let hog = "exec tail /dev/zero";
    let report = host.task(hog).flag("--init").flag("--memory=16M").start().wait();
    assert_eq!((&report["oom_killed"], &report["oom_killed_init"]), (&true.into(), &true.into()), "{report:?}");
    assert_eq!((&report["exit_code"], &report["signal"]), (&137.into(), &"SIGKILL".into()), "{report:?}");
}

#[test]
fn members_of_a_sandbox_may_share_processes() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--share-pid").create();
    let task =
        host.task("(setsid sleep 0.2 &); echo ready; exec sleep 1000").in_sandbox(&sandbox).flag("--init").start();
    task.wait_for_line("ready");
    let init = init_of(&task);
    eventually("the orphan was reaped", || (child_pids(init).len() == 1).then_some(()));
    task.stop(["--grace=50s"]).assert_killed_by("TERM");
    task.bowline("rm", []).assert_code(0);
    sandbox.rm([]);
}

#[test]
fn a_program_writes_on_without_its_shim_and_its_end_is_stored() {
    let host = Host::new();
    let task = host.task("until [ -e /tmp/go ]; do sleep 0.05; done; echo more; exit 3").flag("--init").start();
    task.wait_until_running();
    let (init, program) = (init_of(&task), task.program_pid());
    task.kill_shim(task.shim_pid());
    fs::write(format!("/proc/{program}/root/tmp/go"), "").expect("writable");
    eventually("the program has ended", || (!process_exists(program)).then_some(()));
    assert!(process_exists(init), "it keeps what nobody has read");
    // Exit code 3, as of wait(2): without init, the write would have failed. Stored once the program was reaped.
    let code = ((1u64 << 32) | (3 << 8)).to_ne_bytes();
    eventually("its end is stored", || (fs::read(task.file("status")).expect("readable") == code).then_some(()));
    task.bowline("rm", ["-f"]).assert_code(0);
    host.assert_nothing_left_without_rm();
}
