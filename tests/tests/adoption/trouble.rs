//! Taking a task over where something stands against it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::{
    Process, Ran, Task, WRITER, binary, copy_binary, eventually, fds_of, process_exists, take_lock, touch,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const NOBODY: u32 = 65534;

#[test]
fn of_many_who_take_over_at_once_one_wins_and_serves_the_others() {
    let host = Host::new();
    let task = host.task(WRITER).flag("--init").start();
    task.wait_for_line("line 1");
    let program = task.program_pid();
    task.kill_shim(task.shim_pid());
    let adopters: Vec<_> = (0..4).map(|_| host.spawn(["adopt", task.id()])).collect();
    let waiters: Vec<_> = (0..3).map(|_| host.spawn(["wait", task.id()])).collect();
    let exec = task.spawn_exec([], "exit 4");
    let said: Vec<Ran> = adopters.into_iter().map(|adopter| adopter.finish()).collect();
    assert!(said.iter().all(|ran| ran.code == Some(0)), "{said:?}");
    exec.finish().assert_code(4);
    assert_eq!(task.takeovers(), 1, "{}", task.log("shim.log"));
    touch(program, "end");
    for waiter in waiters {
        waiter.finish().assert_says("7");
    }
}

/// How long a shim that answers nobody counts as silent at most, in looks that take their own time.
const SILENT: Duration = Duration::from_secs(5);

#[test]
fn a_shim_that_takes_long_to_take_over_is_waited_for() {
    let host = Host::new();
    let task = host.task(WRITER).flag("--init").start();
    task.wait_for_line("line 1");
    let mut waiters: Vec<_> = (0..3).map(|_| host.spawn(["wait", task.id()])).collect();
    eventually("all wait", || (task.socket_ends() > waiters.len()).then_some(()));
    // The next shim is a child of one that waits, and stays a zombie.
    task.crash_shim();
    eventually("all wait again", || (task.takeovers() == 1 && task.socket_ends() > waiters.len()).then_some(()));
    // Who has had it started keeps the lock for a moment.
    let has_lock = |waiter: &Process| fds_of(waiter.pid()).iter().any(|opened| opened.ends_with("/lock"));
    eventually("the shim alone has the lock", || (!waiters.iter().any(has_lock)).then_some(()));
    waiters.iter().for_each(|waiter| waiter.signal(Signal::STOP));
    task.crash_shim();
    // In the place of a third one: it has the lock, listens, and has not taken anything over yet.
    let lock = take_lock(task.file("lock"));
    let listener = UnixListener::bind(task.file("shim")).expect("a short path");
    std::fs::rename(task.file("shim"), task.file("shim.sock")).expect("ours");
    waiters.iter().for_each(|waiter| waiter.signal(Signal::CONT));
    let begun = Instant::now();
    while begun.elapsed() < SILENT {
        assert!(waiters.iter_mut().all(Process::is_running), "one has given up after {:?}", begun.elapsed());
        // That nobody gives up is no event.
        std::thread::sleep(Duration::from_millis(100));
    }
    // It dies, too.
    drop((listener, lock));
    eventually("there is another shim", || (task.takeovers() == 2).then_some(()));
    touch(task.program_pid(), "end");
    for waiter in waiters {
        waiter.finish().assert_says("7");
    }
}

#[test]
fn of_all_one_whose_lock_somebody_keeps_is_named() {
    let host = Host::new();
    let [kept, other] = [(); 2].map(|()| host.task("exec sleep 1000").flag("--init").start());
    [&kept, &other].iter().for_each(|task| task.kill_shim(task.shim_pid()));
    let lock = take_lock(kept.file("lock"));
    // Whoever has it may be about to start a shim.
    let ran = host.spawn(["adopt", "--all"]).finish_within(Duration::from_secs(90));
    ran.assert_code(125);
    assert!(ran.err().contains(&format!("in use by process {}", std::process::id())), "{ran}");
    assert_eq!(ran.out(), other.id());
    drop(lock);
    host.bowline(["adopt", "--all"]).assert_says(kept.id());
    kept.end();
    other.end();
}

#[test]
fn who_has_no_right_to_it_takes_nothing_over() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--init").start();
    let program = task.program_pid();
    task.kill_shim(task.shim_pid());
    let record = task.log("task.json");
    // Where anybody can execute it.
    let copy = host.work().join("bowline");
    copy_binary("bowline", &copy);
    copy_binary("bowline-shim", &host.work().join("bowline-shim"));
    let refused = |args: &[&str]| {
        let mut command = host.command(&copy);
        command.args(args).uid(NOBODY).gid(NOBODY);
        let ran = host.execute(command);
        assert!(ran.code != Some(0) && ran.err().to_lowercase().contains("permission"), "{args:?}: {ran}");
        ran
    };
    for args in [&["adopt", task.id()][..], &["adopt", "--all"], &["upgrade", task.id()], &["stop", task.id()]] {
        refused(args);
    }
    // Who may list the tasks is told that there is one.
    fs::set_permissions(host.state(), fs::Permissions::from_mode(0o755)).expect("ours");
    for args in [&["adopt", "--all"][..], &["upgrade", "--all"], &["gc", "--dry-run"], &["sandbox", "ls"]] {
        let ran = refused(args);
        assert!(ran.err().contains(task.id()), "{ran}");
    }
    assert!(process_exists(program));
    assert_eq!(task.log("task.json"), record);
    task.bowline("adopt", []).assert_says(task.id());
    task.end();
}

#[test]
fn a_task_that_somebody_has_frozen_is_taken_over_and_upgraded() {
    let host = Host::new();
    let task = host.task(WRITER).flag("--init").start();
    task.wait_for_line("line 1");
    let program = task.program_pid();
    task.freeze();
    task.bowline("upgrade", []).assert_says(task.id());
    touch(program, "1");
    task.kill_shim(task.shim_pid());
    task.bowline("adopt", []).assert_says(task.id());
    task.bowline("upgrade", []).assert_says(task.id());
    assert!(!task.said("stdout").contains("line 2"), "it is frozen");
    task.thaw();
    task.wait_for_line("line 2");
    touch(program, "end");
    task.wait().assert_code(7);
}

/// Runs a command in the pid namespace of this process.
fn inside(host: &Host, first: i32, program: &str, args: &[&str]) -> Ran {
    let mut command = host.command("nsenter");
    command.args(["--target", &first.to_string(), "--pid", "--mount", "--"]).arg(program).args(args);
    host.execute(command)
}

/// Makes a pid namespace, with its first process. That gets whose parent has died, and reaps nobody.
fn pid_namespace(host: &Host) -> (Process, i32) {
    let mut first = host.command("unshare");
    first.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sleep", "1000"]);
    let first = host.spawn_command(first);
    let sleeper = eventually("it sleeps", || {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", first.pid())).ok()?;
        let pid: i32 = children.trim().parse().ok()?;
        (bowline_tests::harness::name_of(pid) == "sleep").then_some(pid)
    });
    (first, sleeper)
}

#[test]
fn a_zombie_that_nobody_reaps_tells_its_exit_code() {
    let host = Host::new();
    let (first, sleeper) = pid_namespace(&host);
    let id = host.new_id();
    let bowline = binary("bowline");
    let bowline = bowline.to_str().expect("ASCII");
    let task = host.adopt(id.clone());
    let run = |args: &[&str]| inside(&host, sleeper, bowline, args);
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    host.file("task.toml", &format!("command = '/bin/sh'\nargs = ['-c', \"{script}\"]\ninit = false\n"));
    let description = host.work().join("task.toml");
    run(&["start", "--name", &id, "-f", description.to_str().expect("ASCII")]).assert_code(0);
    task.wait_for_line("ready");
    task.wait_until_recorded();
    // Their numbers are those of the namespace.
    let record: Value = serde_json::from_str(&task.log("task.json")).expect("JSON");
    let (shim, init) = (record["shim_pid"].to_string(), record["pid"].to_string());
    inside(&host, sleeper, "kill", &["-KILL", &shim]).assert_code(0);
    eventually("nobody listens", || {
        std::os::unix::net::UnixStream::connect(task.file("shim.sock")).is_err().then_some(())
    });
    inside(&host, sleeper, "kill", &["-TERM", &init]).assert_code(0);
    eventually("it is a zombie", || {
        let ran = inside(&host, sleeper, "cat", &[&format!("/proc/{init}/stat")]);
        ran.out().contains(") Z ").then_some(())
    });
    let report = run(&["wait", "--json", &id]).assert_code(0).json();
    assert_eq!((&report["exit_code"], &report["shim_died"]), (&json!(9), &json!(false)), "{report}");
    run(&["rm", &id]).assert_code(0);
    kill_process(Pid::from_raw(sleeper).expect("a pid"), Signal::KILL).expect("it lives");
    drop(first);
}

#[test]
fn who_could_run_nothing_in_it_takes_nothing_over() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--init").start();
    task.kill_shim(task.shim_pid());
    let files = || [task.log("task.json"), task.log("shim.log")];
    let before = files();
    for args in [&["adopt", task.id()][..], &["exec", task.id(), "--", "true"]] {
        let mut command = host.command("setpriv");
        command.args(["--bounding-set=-sys_admin", "--"]).arg(binary("bowline")).args(args);
        host.execute(command).assert_refused(125, &[task.id(), "CAP_SYS_ADMIN"]);
    }
    assert_eq!(files(), before);
    task.exec("exit 3").assert_code(3);
    task.end();
}

/// Runs `bowline` in a new pid namespace, which shows no process of the host's.
fn apart(host: &Host, args: &[&str]) -> Ran {
    let mut command = host.command("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--"]).arg(binary("bowline")).args(args);
    host.execute(command)
}

const POLITE: &str = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done";

#[test]
fn who_cannot_see_its_processes_neither_ends_nor_removes_it() {
    let host = Host::new();
    let task = host.task(POLITE).flag("--init").start();
    task.wait_for_line("ready");
    task.kill_shim(task.shim_pid());
    let record = task.log("task.json");
    let id = task.id();
    for args in [&["adopt", id][..], &["wait", id], &["stop", id], &["exec", id, "--", "true"], &["rm", "-f", id]] {
        apart(&host, args).assert_refused(125, &[id, "another pid namespace"]);
    }
    assert!(!task.file("exit.json").exists(), "{}", task.log("exit.json"));
    assert_eq!(task.log("task.json"), record);
    task.bowline("adopt", []).assert_says(id);
    task.stop(["--grace=50s"]).assert_code(9);
}

#[test]
fn nor_a_sandbox_with_its_members() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--share-pid").create();
    let pause = sandbox.pause_pid();
    let refuse = || {
        let id = sandbox.id();
        for args in [&["adopt", id][..], &["sandbox", "rm", "-f", id]] {
            apart(&host, args).assert_refused(125, &[id, "another pid namespace"]);
        }
    };
    sandbox.kill_shim();
    refuse();
    let task = sandbox.task(POLITE).start();
    task.wait_for_line("ready");
    let ipc = std::fs::read_link(format!("/proc/{}/ns/ipc", task.pid())).expect("it lives");
    sandbox.kill_shim();
    refuse();
    apart(&host, &["wait", task.id()]).assert_refused(125, &[sandbox.id(), "another pid namespace"]);
    host.bowline(["adopt", sandbox.id()]).assert_says(sandbox.id());
    assert_eq!(sandbox.pause_pid(), pause);
    let second = sandbox.task("exec sleep 1000").start();
    assert_eq!(std::fs::read_link(format!("/proc/{}/ns/ipc", second.pid())).expect("it lives"), ipc);
    second.end();
    task.stop(["--grace=50s"]).assert_code(9);
    sandbox.rm([]);
}

#[test]
fn from_another_cgroup_namespace_nothing_is_adopted_or_removed() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let task = host.task(POLITE).flag("--init").start();
    let member = sandbox.task(POLITE).start();
    for task in [&task, &member] {
        task.wait_for_line("ready");
    }
    task.kill_shim(task.shim_pid());
    sandbox.kill_shim();
    let files = || [task.log("task.json"), task.log("shim.log"), member.log("task.json")];
    let before = files();
    let (id, of_member, of_sandbox) = (task.id(), member.id(), sandbox.id());
    let refuse = |args: &[&str], id: &str| {
        let mut command = host.command("unshare");
        command.args(["--cgroup", "--"]).arg(binary("bowline")).args(args);
        host.execute(command).assert_refused(125, &[id, "another cgroup namespace"]);
    };
    for args in [&["adopt", id][..], &["wait", id], &["stop", id], &["stats", id], &["rm", id], &["rm", "-f", id]] {
        refuse(args, id);
    }
    for args in [&["adopt", of_sandbox][..], &["exec", of_member, "--", "true"], &["sandbox", "rm", "-f", of_sandbox]] {
        refuse(args, of_sandbox);
    }
    assert_eq!(files(), before);
    task.bowline("adopt", []).assert_says(id);
    host.bowline(["adopt", of_sandbox]).assert_says(of_sandbox);
    for task in [&task, &member] {
        task.bowline("update", ["--memory=64M"]).assert_code(0);
        task.stop(["--grace=50s"]).assert_code(9);
    }
    sandbox.rm([]);
}

#[test]
fn a_task_of_another_pid_namespace_is_not_taken_for_ended() {
    let host = Host::new();
    let (first, sleeper) = pid_namespace(&host);
    let id = host.new_id();
    let bowline = binary("bowline");
    let bowline = bowline.to_str().expect("ASCII");
    let task = host.adopt(id.clone());
    let run = |args: &[&str]| inside(&host, sleeper, bowline, args);
    run(&["start", "--name", &id, "--init", "--", "/bin/sh", "-c", POLITE]).assert_code(0);
    task.wait_for_line("ready");
    task.wait_until_recorded();
    let record: Value = serde_json::from_str(&task.log("task.json")).expect("JSON");
    inside(&host, sleeper, "kill", &["-KILL", &record["shim_pid"].to_string()]).assert_code(0);
    eventually("nobody listens", || {
        std::os::unix::net::UnixStream::connect(task.file("shim.sock")).is_err().then_some(())
    });
    // Everybody here sees its processes, under other numbers.
    let refused = task.bowline("adopt", []);
    refused.assert_refused(125, &[&id, "another pid namespace"]);
    assert!(refused.err().contains("where the task was started"), "{refused}");
    assert!(!refused.err().contains("rm -f") && !refused.err().contains("ERROR"), "its task is healthy: {refused}");
    assert!(!task.file("exit.json").exists(), "{}", task.log("exit.json"));
    run(&["adopt", &id]).assert_says(&id);
    run(&["stop", "--grace=50s", &id]).assert_code(0);
    let report = run(&["wait", "--json", &id]).assert_code(0).json();
    assert_eq!(report["exit_code"], json!(9), "{report}");
    run(&["rm", &id]).assert_code(0);
    kill_process(Pid::from_raw(sleeper).expect("a pid"), Signal::KILL).expect("it lives");
    drop(first);
}

/// Where its shim has what it has read of its stdout and not passed on: first of all how long that is.
fn rest(task: &Task<'_>) -> Vec<u8> {
    std::fs::read(task.file("unread.0")).unwrap_or_default()
}

#[test]
fn the_beginning_of_a_line_is_not_lost_with_a_shim() {
    let host = Host::new();
    let script = "printf Load; until [ -e /tmp/1 ]; do sleep 0.02; done; printf ing; until [ -e /tmp/2 ]; do sleep 0.02; done; \
                  echo ' done'; until [ -e /tmp/end ]; do sleep 0.02; done; printf over; exit 7";
    let task = host.task(script).flag("--init").start();
    let program = task.program_pid();
    for (said, file) in [("Load", "1"), ("Loading", "2")] {
        eventually("the shim has read it", || String::from_utf8_lossy(&rest(&task)).contains(said).then_some(()));
        task.crash_shim();
        task.bowline("adopt", []).assert_says(task.id());
        task.bowline("upgrade", []).assert_says(task.id());
        touch(program, file);
    }
    task.wait_for_line("Loading done");
    task.crash_shim();
    touch(program, "end");
    task.wait().assert_code(7);
    assert_eq!(task.said("stdout"), "Loading done\nover");
    assert!(!task.file("unread.0").exists(), "all is passed on");
}

#[test]
fn what_a_slow_reader_has_not_taken_is_not_lost_with_a_shim() {
    let host = Host::new();
    let (task, run) = host.task("seq 1 60000; exit 7").flag("--init").spawn();
    // Nobody reads what it prints: every pipe on the way is full.
    for _ in 0..3 {
        eventually("the shim has a rest", || rest(&task).get(..4).filter(|length| **length != [0; 4]).map(drop));
        task.crash_shim();
        eventually("there is a new shim", || {
            let record: Value = serde_json::from_str(&task.log("task.json")).ok()?;
            let shim = record["shim_pid"].as_i64()?.try_into().ok()?;
            process_exists(shim).then_some(())
        });
    }
    let ran = run.finish();
    ran.assert_code(7);
    let expected: String = (1..=60000).map(|n| format!("{n}\n")).collect();
    assert!(ran.stdout == expected.as_bytes(), "{} bytes of {}", ran.stdout.len(), expected.len());
}
