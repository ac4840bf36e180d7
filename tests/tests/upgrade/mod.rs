//! A shim's program is replaced while its tasks run, and nobody notices.

mod load;
mod versions;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::containerd::{OldShim, make_fifo};
use bowline_tests::harness::machine_code::{CRASH, elf, exit, hang, write};
use bowline_tests::harness::{Task, WRITER, binary, copy_binary, eventually, fds_of, touch, write_program};
use rustix::process::Signal;
use serde_json::Value;

fn facts(task: &Task<'_>) -> Value {
    task.bowline("inspect", ["--facts"]).assert_code(0).json()
}

/// How many upgrades of its shim have succeeded or failed.
fn upgrades(task: &Task<'_>) -> u64 {
    facts(task)["shim"]["upgrades"]["begun"].as_u64().expect("a number")
}

fn upgrade(task: &Task<'_>) {
    let shim = task.shim_pid();
    let before = upgrades(task);
    task.bowline("upgrade", []).assert_says(task.id());
    assert_eq!((task.shim_pid(), upgrades(task)), (shim, before + 1), "the same process, another program");
    let command = fs::read_to_string(format!("/proc/{shim}/cmdline")).expect("it lives");
    assert!(command.contains("--take-over"), "{command}");
}

#[test]
fn who_waits_notices_nothing_and_the_exit_code_is_real() {
    let host = Host::new();
    let task = host.task(WRITER).toml("init = false").start();
    let program = task.pid();
    let waiters: Vec<_> = (0..3).map(|_| host.spawn(["wait", task.id()])).collect();
    eventually("all wait", || (task.socket_ends() > waiters.len()).then_some(()));
    for line in 1..=5 {
        task.wait_for_line(&format!("line {line}"));
        upgrade(&task);
        touch(program, &line.to_string());
    }
    task.wait_for_line("line 6");
    assert_eq!(task.pid(), program);
    touch(program, "end");
    for waiter in waiters {
        waiter.finish().assert_says("7");
    }
    assert_eq!(task.said("stdout"), (1..=6).map(|n| format!("line {n}\n")).collect::<String>());
    assert!(!task.log("shim.log").contains("ERROR"), "{}", task.log("shim.log"));
}

#[test]
fn a_run_in_the_foreground_goes_on() {
    let host = Host::new();
    let (task, run) = host.task(WRITER).spawn();
    run.read_stdout();
    run.wait_for_out("line 1\n");
    task.wait_until_running();
    let program = task.program_pid();
    for line in 1..=4 {
        run.wait_for_out(&format!("line {line}\n"));
        upgrade(&task);
        touch(program, &line.to_string());
    }
    run.wait_for_out("line 5\n");
    touch(program, "end");
    let ran = run.finish();
    ran.assert_code(7);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), (1..=5).map(|n| format!("line {n}\n")).collect::<String>());
}

#[test]
fn every_byte_of_a_busy_task_arrives_in_order() {
    let host = Host::new();
    // 11 MB, and a line on the other stream now and then; it does not end before the first upgrade.
    let script = "i=0; while [ $i -lt 40 ]; do seq $((i*40000)) $((i*40000+39999)); echo $i >&2; i=$((i+1)); \
                  until [ $i -ne 20 ] || [ -e /tmp/go ]; do sleep 0.02; done; done";
    let (task, run) = host.task(script).spawn();
    run.read_stdout();
    run.wait_for_out("1000\n");
    let mut made = 0;
    while !run.has_said("1200000\n") && task.bowline("upgrade", []).code == Some(0) {
        made += 1;
        if made == 1 {
            touch(task.program_pid(), "go");
        }
    }
    let ran = run.finish();
    ran.assert_code(0);
    let expected: String = (0..1_600_000).map(|n| format!("{n}\n")).collect();
    assert!(String::from_utf8_lossy(&ran.stdout) == expected, "{} bytes of {}", ran.stdout.len(), expected.len());
    assert_eq!(String::from_utf8_lossy(&ran.stderr), (0..40).map(|n| format!("{n}\n")).collect::<String>());
    assert!(made > 0);
}

#[test]
fn execs_go_on_with_their_output_and_their_deadlines() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let waits = task.spawn_exec([], "echo begun; until [ -e /tmp/go ]; do sleep 0.02; done; echo done; exit 5");
    let late = task.spawn_exec(["--timeout", "3s"], "setsid sleep 1000 & echo begun; sleep 1000");
    for exec in [&waits, &late] {
        exec.read_stdout();
        exec.wait_for_out("begun\n");
    }
    upgrade(&task);
    task.exec("touch /tmp/go").assert_code(0);
    let ran = waits.finish();
    ran.assert_code(5);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "begun\ndone\n");
    late.finish().assert_code(124);
    eventually("all of the late one is dead", || (task.all_processes().len() == 2).then_some(()));
    upgrade(&task);
    task.exec_with(["--timeout", "5s"], "exit 4").assert_code(4);
    task.end();
}

#[test]
fn a_terminal_and_who_is_attached_stay() {
    let host = Host::new();
    let task = host.task("while read line; do echo \"got $line\"; done").flag("-t").flag("-i").start();
    let terminal = task.in_terminal("attach", []);
    terminal.type_keys("one\r");
    terminal.wait_for("got one");
    upgrade(&task);
    terminal.type_keys("two\r");
    terminal.wait_for("got two");
    upgrade(&task);
    terminal.type_keys("three\r");
    terminal.wait_for("got three");
    task.bowline("rm", ["-f"]).assert_code(0);
}

#[test]
fn checks_limits_and_a_stop_go_on() {
    let host = Host::new();
    let check = "[healthcheck]\nexec = [\"test\", \"!\", \"-e\", \"/tmp/sick\"]\ninterval = \"100ms\"\nretries = 2\n";
    let task = host.task("trap '' TERM; while :; do sleep 0.05; done").toml(check).start();
    let health = |is: &str| task.inspect()["health"]["status"] == is;
    eventually("it is healthy", || health("healthy").then_some(()));
    upgrade(&task);
    assert!(health("healthy"));
    touch(task.program_pid(), "sick");
    eventually("it is not", || health("unhealthy").then_some(()));
    let stop = host.spawn(["stop", "--grace", "10s", task.id()]);
    eventually("it stops", || (task.status() == "stopping").then_some(()));
    upgrade(&task);
    assert_eq!(task.status(), "stopping");
    stop.finish().assert_code(0);
    task.wait().assert_killed_by("KILL");
}

#[test]
fn a_paused_task_stays_paused() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    task.bowline("pause", []).assert_code(0);
    upgrade(&task);
    assert_eq!(task.status(), "paused");
    task.bowline("resume", []).assert_code(0);
    assert_eq!(task.end().number("events"), 5, "created, started, paused, resumed, exited");
}

#[test]
fn a_sandbox_goes_on_with_all_members() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("share_pid = true").create();
    let first = host.task("exec sleep 1000").in_sandbox(&sandbox).start();
    host.bowline(["upgrade", sandbox.id()]).assert_says(sandbox.id());
    let second = host.task("exec sleep 1000").in_sandbox(&sandbox).start();
    assert_eq!(first.shim_pid(), second.shim_pid());
    host.bowline(["upgrade", "--all"]).assert_says(sandbox.id());
    let sees = second.exec("ps -e | grep -c sleep").out();
    assert_eq!(sees.trim(), "2", "they share their pids");
    first.end();
    second.end();
    sandbox.rm([]);
}

/// A program in the place of the new shim: it writes `text` to `stream`, and does what `then` says.
fn program(host: &Host, name: &str, stream: u8, text: &str, then: &[u8]) -> PathBuf {
    let path = host.work().join(name);
    fs::write(&path, elf(&write(stream, text, then))).expect("writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
    path
}

#[test]
fn what_cannot_take_over_changes_nothing() {
    let host = Host::new();
    let task = host.task(WRITER).start();
    task.wait_for_line("line 1");
    let shim = task.shim_pid();
    let refused = |program: &PathBuf, why: &str| {
        let shim = program.to_str().expect("text");
        let ran = task.bowline("upgrade", ["--shim", shim]);
        assert_ne!(ran.code, Some(0));
        assert!(ran.err().contains(why), "{}", ran.err());
        assert!(ran.err().contains("runs on as it was"), "{}", ran.err());
    };
    let damaged = program(&host, "damaged", 1, "", b"");
    fs::write(&damaged, "\u{7f}ELF no more").expect("writable");
    refused(&"/bin/true".into(), "it is no shim of bowline");
    eventually("the shim is where it is charged", || facts(&task)["shim"]["charged_in"].is_string().then_some(()));
    eventually("nobody is connected", || (task.socket_ends() == 1).then_some(()));
    let held = fds_of(shim).len();
    refused(&"/nowhere/bowline-shim".into(), "No such file");
    let plain = host.work().join("plain");
    copy_binary("bowline-shim", &plain);
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).expect("ours");
    refused(&plain, &format!("{} cannot be executed: no user may execute it", plain.display()));
    let fifo = host.work().join("fifo");
    make_fifo(&fifo);
    for other in [fifo, host.work()] {
        refused(&other, &format!("{} cannot be executed: it is not a regular file", other.display()));
    }
    refused(&damaged, "cannot run");
    refused(
        &program(&host, "crashes", 1, "{\"reads\":[1,1]}\n", CRASH),
        "it was ended by signal 4 as it read the facts",
    );
    refused(&program(&host, "another", 2, "these facts are strange\n", &exit(1)), "it is no shim of bowline");
    refused(&binary("bowline"), "it is no shim of bowline");
    refused(&binary("containerd-shim-bowline-v1"), "not the shim for this manager");
    let refuses = "{\"reads\":[1,2]}\nthese facts are strange\n";
    refused(&program(&host, "refuses", 1, refuses, &exit(1)), "these facts are strange");
    refused(&program(&host, "older", 1, "{\"reads\":[0,0]}\n", &exit(0)), "it reads facts of version 0 to 0");
    assert_eq!(task.shim_pid(), shim);
    eventually("nothing is left open", || (fds_of(shim).len() == held).then_some(()));
    touch(task.program_pid(), "1");
    task.wait_for_line("line 2");
    upgrade(&task);
    touch(task.program_pid(), "2");
    task.wait_for_line("line 3");
    task.end();
}

#[test]
fn an_upgrade_is_answered_though_the_task_ends_meanwhile() {
    let host = Host::new();
    let (task, run) = host.task(WRITER).spawn();
    run.read_stdout();
    run.wait_for_out("line 1\n");
    let hangs = program(&host, "hangs", 1, "", &hang());
    let upgrade = host.spawn(["upgrade", task.id(), "--shim", hangs.to_str().expect("text")]);
    eventually("it is asked", || facts(&task)["shim"]["upgrades"]["wanted"].is_object().then_some(()));
    touch(task.program_pid(), "end");
    run.finish().assert_code(7);
    let ran = upgrade.finish();
    ran.assert_refused(125, &[task.id(), "runs on as it was", "has exited"]);
    assert!(!task.log("shim.log").contains("is not answered"), "{}", task.log("shim.log"));
}

#[test]
fn a_shim_busy_with_an_upgrade_is_waited_for_until_stopped() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let hangs = program(&host, "hangs", 1, "", &hang());
    let hangs = hangs.to_str().expect("text");
    // It answers others meanwhile.
    let ran = task.bowline("upgrade", ["--shim", hangs]);
    ran.assert_refused(126, &[task.id(), "runs on as it was", "has not read the facts"]);
    let upgrade = host.spawn(["upgrade", task.id(), "--shim", hangs]);
    eventually("it is asked", || facts(&task)["shim"]["upgrades"]["wanted"].is_object().then_some(()));
    let shim = rustix::process::Pid::from_raw(task.shim_pid()).expect("a pid");
    rustix::process::kill_process(shim, Signal::STOP).expect("it lives");
    upgrade.finish().assert_refused(125, &[task.id(), "not answering"]);
    rustix::process::kill_process(shim, Signal::CONT).expect("it lives");
    task.end();
}

/// As on a busy host, where each of many programs that read facts gets little of the processor.
#[test]
fn a_program_that_makes_progress_with_the_facts_is_waited_for() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let slow = host.work().join("slow");
    let works = "j=0; while [ $j -lt 100000 ]; do j=$((j + 1)); done; sleep 1; i=$((i + 1))";
    let script = format!(
        "#!/bin/sh\ni=0\nwhile [ $i -lt 11 ]; do {works}; done\nexec {} \"$@\"\n",
        binary("bowline-shim").display()
    );
    write_program(&slow, &script);
    let begun = Instant::now();
    task.bowline("upgrade", ["--dry-run", "--shim", slow.to_str().expect("text")]).assert_says(task.id());
    assert!(begun.elapsed() > Duration::from_secs(10), "it takes as long as one that hangs may");
    task.end();
}

#[test]
fn a_program_that_cannot_read_the_facts_runs_the_old_one_once() {
    let host = Host::new();
    let facts = host.work().join("facts");
    fs::write(&facts, "{\"facts\":1,\"old\":6,\"strange\":true}").expect("writable");
    // In the place of the old program one that prints its arguments.
    let take_over = |besides: &str| {
        let shim = binary("bowline-shim");
        let script = format!(
            "exec 5<{} 6</bin/echo; exec {} --folder / --bowline / --take-over 5{besides}",
            facts.display(),
            shim.display()
        );
        let mut shell = host.command("/bin/sh");
        shell.args(["-c", &script]);
        host.execute(shell)
    };
    let back = take_over("").assert_code(0).out();
    assert!(back.starts_with("--folder / --bowline / --take-over 5 --refused cannot read the facts"), "{back}");
    // The old one has nowhere to go back to.
    let old = take_over(" --refused strange");
    old.assert_code(125);
    assert_eq!(old.out(), "");
}

#[test]
fn no_descriptor_is_left_by_many_upgrades_nor_open_for_programs() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    eventually("the shim is where it is charged", || facts(&task)["shim"]["charged_in"].is_string().then_some(()));
    upgrade(&task);
    let shim = task.shim_pid();
    eventually("nobody is connected", || (task.socket_ends() == 1).then_some(()));
    let held = fds_of(shim).len();
    (0..5).for_each(|_| upgrade(&task));
    eventually("no more are open", || (fds_of(shim).len() == held).then_some(()));
    for fd in fs::read_dir(format!("/proc/{shim}/fdinfo")).expect("it lives").flatten() {
        let number: i32 = fd.file_name().to_str().and_then(|name| name.parse().ok()).expect("a number");
        let info = fs::read_to_string(fd.path()).unwrap_or_default();
        let flags = info.lines().find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
        assert!(number < 3 || flags.is_some_and(|flags| flags & 0o2_000_000 != 0), "{number} is inherited: {info}");
    }
    task.end();
}

#[test]
fn a_dry_run_asks_and_changes_nothing() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let shim = task.shim_pid();
    host.bowline(["upgrade", "--all", "--dry-run"]).assert_says(task.id());
    let command = fs::read_to_string(format!("/proc/{shim}/cmdline")).expect("it lives");
    assert!(!command.contains("--take-over"), "{command}");
    task.end();
    task.bowline("upgrade", []).assert_code(125);
    host.bowline(["upgrade", "--all"]).assert_says("");
}

#[test]
fn a_task_whose_shim_died_gets_a_new_one() {
    let host = Host::new();
    let task = host.task(WRITER).start();
    task.wait_for_line("line 1");
    let program = task.program_pid();
    task.kill_shim(task.shim_pid());
    let record = task.log("task.json");
    for which in [task.id(), "--all"] {
        let ran = host.bowline(["upgrade", "--dry-run", which]);
        ran.assert_says(task.id());
        assert!(ran.err().contains(&format!("the shim of task {} died", task.id())), "{ran}");
    }
    assert_eq!((task.status().as_str(), task.log("task.json")), ("dead", record), "nothing has changed");
    for (line, which) in (2..).zip([task.id(), "--all"]) {
        let ran = host.bowline(["upgrade", which]);
        ran.assert_says(task.id());
        assert!(ran.err().contains(&format!("the shim of task {} had died", task.id())), "{ran}");
        touch(program, &(line - 1).to_string());
        task.wait_for_line(&format!("line {line}"));
        task.kill_shim(task.shim_pid());
    }
    // The caller may name the program.
    let other = host.work().join("bowline-shim");
    copy_binary("bowline-shim", &other);
    task.bowline("upgrade", ["--shim", other.to_str().expect("text")]).assert_says(task.id());
    let command = fs::read_to_string(format!("/proc/{}/cmdline", task.shim_pid())).expect("it lives");
    assert!(command.contains("--take-over"), "{command}");
    touch(program, "end");
    task.wait().assert_code(7);
}

#[test]
fn a_shim_killed_as_it_is_asked_is_said_to_have_died() {
    let host = Host::new();
    let task = host.task(WRITER).flag("--init").start();
    task.wait_for_line("line 1");
    let program = task.program_pid();
    for flags in [&[][..], &["--dry-run"]] {
        let shim = rustix::process::Pid::from_raw(task.shim_pid()).expect("a pid");
        eventually("nobody is connected", || (task.socket_ends() == 1).then_some(()));
        rustix::process::kill_process(shim, Signal::STOP).expect("it lives");
        let upgrade = host.spawn(["upgrade", task.id()].iter().chain(flags));
        eventually("it has asked", || (task.socket_ends() >= 2).then_some(()));
        task.crash_shim();
        let ran = upgrade.finish();
        ran.assert_code(0).assert_says(task.id());
        assert!(ran.err().contains(&format!("the shim of task {}", task.id())) && ran.err().contains("died"), "{ran}");
        assert!(!ran.err().contains("runs on as it was"), "{ran}");
    }
    assert_eq!(task.takeovers(), 1, "{}", task.log("shim.log"));
    touch(program, "end");
    task.wait().assert_code(7);
}

#[test]
fn a_shim_of_before_there_were_upgrades_says_so_and_what_to_do() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let old = OldShim::in_place_of(&task.file("shim.sock"));
    for args in [&["upgrade", task.id()][..], &["upgrade", "--dry-run", task.id()]] {
        let ran = host.bowline(args);
        ran.assert_refused(125, &[task.id(), "runs on as it was", "too old to be upgraded"]);
        assert!(ran.err().contains("bowline stop") && !ran.err().contains("UNIMPLEMENTED"), "{ran}");
    }
    drop(old);
    upgrade(&task);
    task.end();
}

#[test]
fn a_full_disk_keeps_nobody_from_an_upgrade() {
    let host = Host::new();
    let (disk, id) = (host.tmpfs("disk", "size=512k"), host.new_id());
    let state = disk.path().join("state");
    let bowline = |args: &[&str]| host.bowline([&["--state", state.to_str().expect("ASCII")], args].concat());
    // Where the shim keeps copies of programs, its disk is full too; nobody else sees that.
    let script = "mkdir -p /var/lib/bowline && mount -t tmpfs -o size=64k none /var/lib/bowline && exec \"$@\"";
    let mut start = host.command("unshare");
    start.args(["--mount", "--propagation=private", "/bin/sh", "-c", script, "sh"]).arg(binary("bowline"));
    start.arg("--state").arg(&state).args(["start", "--name", &id, "--", "/bin/sh", "-c", WRITER]);
    host.execute(start).assert_code(0);
    assert!(fs::write(disk.path().join("filler"), vec![0; 1 << 20]).is_err(), "no byte is free");
    for _ in 0..2 {
        bowline(&["upgrade", &id]).assert_says(&id);
        bowline(&["exec", &id, "--", "/bin/true"]).assert_code(0);
    }
    bowline(&["exec", &id, "--", "/bin/touch", "/tmp/end"]).assert_code(0);
    assert_eq!(bowline(&["wait", "--json", &id]).assert_code(0).json()["exit_code"], 7);
    bowline(&["rm", &id]).assert_code(0);
    drop(disk);
}

#[test]
fn a_signal_to_the_shim_is_not_lost() {
    let host = Host::new();
    let task = host.task("trap 'exit 4' TERM; while :; do sleep 0.02; done").start();
    for _ in 0..5 {
        upgrade(&task);
    }
    rustix::process::kill_process(rustix::process::Pid::from_raw(task.shim_pid()).expect("a pid"), Signal::TERM)
        .expect("it lives");
    task.wait().assert_code(4);
}
