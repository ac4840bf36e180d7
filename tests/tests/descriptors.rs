//! Descriptors of a shim: after an attach has left, or an exec or health check has ended, it has as many as before,
//! whatever that left running; where there are none left, a request is refused and an exit is still reported.

use std::fs;
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::{
    Process, Task, binary, cgroup_of, eventually, fds_of, name_of, patience, process_exists, unix_sockets,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

/// A task that writes nothing, with what everyone opens once behind it.
fn silent(host: &Host) -> Task<'_> {
    let task = host.task("while :; do sleep 1000; done").flag("-i").start();
    let shim = task.shim_pid();
    eventually("the shim is in its own cgroup", || {
        cgroup_of(shim).values().any(|path| path.ends_with("/overhead")).then_some(())
    });
    task.exec("true").assert_code(0);
    task.exec_with(["--timeout=60s"], "true").assert_code(0);
    task
}

/// What its shim has open, but for clients' connections, which end when it sees that, and for what it opens once the
/// task has run for a while: its own cgroup, and the descriptors that report a lack of memory.
fn open(task: &Task<'_>) -> Vec<String> {
    let mut all = fds_of(task.shim_pid_on_disk());
    let late = ["socket:", "/dev/kmsg", "/memory", "[eventfd]", "inotify", "/overhead"];
    all.retain(|fd| !late.iter().any(|late| fd.contains(late)));
    all.sort();
    all
}

/// Waits until its shim has open again what it had then.
#[track_caller]
fn assert_as_before(task: &Task<'_>, before: &[String], what: &str) {
    eventually(format_args!("{what}: as many are open as before: {before:#?}"), || {
        (open(task).len() <= before.len()).then_some(())
    });
}

/// Ends what sleeps in it, once that are so many.
#[track_caller]
fn end_sleepers(task: &Task<'_>, count: usize) {
    let asleep = || task.processes().into_iter().filter(|pid| name_of(*pid) == "sleep").count();
    eventually(format_args!("{count} of its processes sleep"), || (asleep() == count).then_some(()));
    task.exec("pkill -x sleep || killall sleep; true");
}

/// An attach that is connected: the shim has its streams open.
#[track_caller]
fn attached(host: &Host, task: &Task<'_>) -> Process {
    let before = streams(task);
    let process = host.spawn(["attach", "--no-stdin", task.id()]);
    eventually("it is attached", || (streams(task) >= before + 2).then_some(()));
    process
}

/// How many streams of attaches the shim has open.
fn streams(task: &Task<'_>) -> usize {
    open(task).iter().filter(|fd| fd.contains("/attach-")).count()
}

#[test]
fn an_attach_that_has_left_a_silent_task_holds_none() {
    let host = Host::new();
    let task = silent(&host);
    let before = open(&task);
    for signal in [Signal::TERM, Signal::KILL].into_iter().cycle().take(6) {
        let all: Vec<Process> = (0..5).map(|_| attached(&host, &task)).collect();
        assert_eq!(streams(&task), 10);
        all.iter().for_each(|one| one.signal(signal));
        all.into_iter().for_each(|one| drop(one.finish()));
        assert_as_before(&task, &before, "attach");
    }
    // With stdin, which is passed on.
    let with_stdin = host.spawn(["attach", task.id()]);
    eventually("it is attached", || (streams(&task) >= 2).then_some(()));
    with_stdin.signal(Signal::TERM);
    with_stdin.finish();
    assert_as_before(&task, &before, "attach with stdin");
    task.end();
    remove_what_killed_attaches_left(&task);
}

#[test]
fn attaches_that_have_left_take_no_memory() {
    let host = Host::new();
    let task = silent(&host);
    let own = || {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", task.shim_pid_on_disk())).expect("it lives");
        let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("the kernel counts it");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("kB")
    };
    let come_and_go = |times: usize| {
        for _ in 0..times {
            let all: Vec<Process> = (0..5).map(|_| host.spawn(["attach", "--no-stdin", task.id()])).collect();
            eventually("they are attached", || (streams(&task) == 10).then_some(()));
            all.iter().for_each(|one| one.signal(Signal::TERM));
            all.into_iter().for_each(|one| drop(one.finish()));
            eventually("they have left", || (streams(&task) == 0).then_some(()));
        }
    };
    come_and_go(2);
    let before = own();
    // Each waits for the task's end too, and gives that up: more than a kilobyte each, of 150.
    come_and_go(30);
    eventually(format_args!("{} KiB, where there were {before}", own()), || (own() < before + 128).then_some(()));
    task.end();
}

/// The folders of their FIFOs.
fn remove_what_killed_attaches_left(task: &Task<'_>) {
    let entries = fs::read_dir(task.file("")).expect("the task's folder").flatten().map(|entry| entry.path());
    let left =
        entries.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("attach-")));
    left.for_each(|path| fs::remove_dir_all(path).expect("ours"));
}

#[test]
fn an_attach_that_stays_still_gets_output_after_others_leave() {
    let host = Host::new();
    let task = host.task("while read line; do echo \"got $line\"; done").flag("-i").start();
    let stays = attached(&host, &task);
    let leaves = attached(&host, &task);
    leaves.signal(Signal::KILL);
    leaves.finish();
    eventually("it has left", || (streams(&task) == 2).then_some(()));
    for round in 0..3 {
        let line = format!("line {round}");
        let mut attach = host.command(binary("bowline"));
        attach.args(["attach", task.id()]);
        let stdin = fs::File::open(host.file("line", &format!("{line}\n"))).expect("ours");
        let nowhere = fs::File::options().write(true).open("/dev/null").expect("there is one");
        let writes = host.spawn_command_with(attach, stdin.into(), nowhere.into());
        stays.wait_for_out(&format!("got {line}"));
        writes.signal(Signal::KILL);
        writes.finish();
    }
    task.end();
    stays.finish();
    remove_what_killed_attaches_left(&task);
}

#[test]
fn an_exec_that_leaves_processes_holds_none() {
    let host = Host::new();
    let task = silent(&host);
    let before = open(&task);
    let flags: [&[&str]; 2] = [&[], &["--timeout=60s"]];
    for script in
        ["sleep 1000 & true", "yes & true", "(while echo x; do sleep 0.1; done) & true", "setsid sleep 1000 &"]
    {
        for flags in flags {
            for _ in 0..5 {
                let args = ["exec", task.id()].into_iter().chain(flags.iter().copied());
                host.bowline(args.chain(["--", "/bin/sh", "-c", script])).assert_code(0);
            }
            assert_as_before(&task, &before, script);
        }
    }
    // What they have left lives, but for those that write to nobody.
    assert!(task.exec("ps -e -o args= | grep -c '[s]leep 1000'").out().parse::<u32>().expect("a number") > 10);
    task.end();
}

#[test]
fn execs_at_the_same_time_keep_no_more_than_one() {
    let host = Host::new();
    let task = silent(&host);
    let before = open(&task);
    let all: Vec<Process> = (0..5).map(|_| task.spawn_exec(["--timeout=60s"], "exec sleep 1000")).collect();
    end_sleepers(&task, 1 + all.len());
    all.into_iter().for_each(|exec| drop(exec.finish()));
    assert_as_before(&task, &before, "execs");
    task.end();
}

#[test]
fn a_group_whose_daemon_has_ended_is_removed() {
    let host = Host::new();
    let task = silent(&host);
    let groups = || {
        let entries = fs::read_dir(task.cgroup("freezer")).expect("it lives").flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("exec-")).count()
    };
    for _ in 0..4 {
        task.exec_with(["--timeout=60s"], "sleep 1000 >/dev/null 2>&1 & true").assert_code(0);
    }
    assert!(groups() >= 4);
    end_sleepers(&task, 1 + 4);
    eventually("they have ended", || (task.processes().len() <= 2).then_some(()));
    // Each that is made anew, as those that are free are in use, takes an old one away.
    for _ in 0..4 {
        task.exec_with(["--timeout=60s"], "sleep 1000 >/dev/null 2>&1 & true").assert_code(0);
    }
    assert!(groups() <= 6, "{}", groups());
    task.end();
}

#[test]
fn a_check_that_leaves_a_process_holds_none_and_stays_healthy() {
    let host = Host::new();
    let count = host.work().join("count");
    fs::create_dir(&count).expect("ours");
    let toml = format!(
        "command = 'sleep'\nargs = ['1000']\nmounts = [{{source = '{}', destination = '/count', read_only = false}}]\n\
         [healthcheck]\nexec = ['sh', '-c', 'echo x >> /count/checks; sleep 1000 & sleep 1000 >/dev/null 2>&1 &']\n\
         interval = '100ms'",
        count.display()
    );
    let task = host.described(&toml).start();
    let checks = || fs::read_to_string(count.join("checks")).unwrap_or_default().lines().count();
    eventually("some checks", || (checks() >= 3).then_some(()));
    // One check may be under way.
    let before = open(&task).len();
    eventually("many checks", || (checks() >= 40).then_some(()));
    eventually("as many are open as before", || (open(&task).len() <= before + 8).then_some(()));
    let health = task.inspect()["health"].clone();
    assert_eq!(health["status"], "healthy", "{health}");
    task.end();
}

#[test]
fn the_soft_limit_is_raised_for_the_shim_alone() {
    let host = Host::new();
    let task = host.task("ulimit -Sn; ulimit -Hn; echo ready; exec sleep 1000").start();
    task.wait_for_line("ready");
    let limits = fs::read_to_string(format!("/proc/{}/limits", task.shim_pid())).expect("it lives");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("the kernel says so");
    let numbers: Vec<u64> = files.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(numbers[0] == numbers[1], "{files}");
    // A test may be run where the hard limit is lower, and cannot be raised.
    let hard = numbers[1].min(524_288);
    assert_eq!(task.said("stdout"), format!("{}\n{hard}\nready\n", hard.min(1024)));
    task.exec("ulimit -Sn").assert_says(&hard.min(1024).to_string());
    task.end();
}

#[test]
fn with_none_left_a_request_is_refused_and_the_exit_reported() {
    let host = Host::new();
    let task = host.task("trap 'exit 7' TERM; while :; do sleep 1000 & wait; done").start();
    task.exec("true").assert_code(0);
    let (shim, init) = (task.shim_pid(), task.pid());
    eventually("its clients have gone", || {
        let sockets = fds_of(shim).iter().filter(|fd| fd.starts_with("socket:")).count();
        // The one to its starter among them.
        (sockets <= 7).then_some(())
    });
    // All numbers below this one are in use, or are by the time that somebody has asked a few times.
    let pid = Pid::from_raw(shim).expect("a pid");
    let count = fds_of(shim).len() as u64;
    prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(count), maximum: Some(count) }).expect("root may");
    let mut attaches = Vec::new();
    let refused = eventually("a request is refused", || {
        let before = streams(&task);
        let attach = host.spawn(["attach", "--no-stdin", task.id()]);
        let over = eventually("it is attached or refused", || {
            (streams(&task) > before).then_some(false).or_else(|| (!process_exists(attach.pid())).then_some(true))
        });
        if over {
            return Some(attach.finish());
        }
        attaches.push(attach);
        None
    });
    refused.assert_code(125);
    assert!(refused.err().contains("Too many open files") || refused.err().contains("as many files open"), "{refused}");
    assert!(process_exists(init), "the task is unharmed");
    kill_process(Pid::from_raw(init).expect("a pid"), Signal::TERM).expect("it lives");
    eventually("the report is there", || task.file("exit.json").exists().then_some(()));
    task.wait().assert_code(7);
    attaches.into_iter().for_each(|attach| drop(attach.finish()));
}

/// How many sockets the shim has open: it makes none but for who connects.
fn sockets_of(shim: i32) -> usize {
    fds_of(shim).iter().filter(|fd| fd.starts_with("socket:")).count()
}

/// Leaves the shim with this socket few descriptors, and connects until it has none. Returns the connections that it has
/// taken.
fn fill(shim: i32, socket: &Path) -> Vec<UnixStream> {
    let room = fds_of(shim).len() as u64 + 16;
    let limit = Rlimit { current: Some(room), maximum: Some(room) };
    prlimit(Pid::from_raw(shim), Resource::Nofile, limit).expect("root may");
    let mut held = Vec::new();
    loop {
        let before = sockets_of(shim);
        let mut client = UnixStream::connect(socket).expect("it listens");
        client.set_nonblocking(true).expect("a socket");
        let is_over = eventually("it is taken or turned away", || match client.read(&mut [0]) {
            Ok(0) => Some(true),
            Ok(_) | Err(_) => (sockets_of(shim) > before).then_some(false),
        });
        if is_over {
            return held;
        }
        held.push(client);
    }
}

/// Begins a command that the shim turns away, and makes room for it once that has happened.
fn turned_away(host: &Host, shim: i32, ends: impl Fn() -> usize, held: Vec<UnixStream>, args: &[&str]) -> Process {
    let signal = |signal| kill_process(Pid::from_raw(shim).expect("a pid"), signal).expect("the shim lives");
    eventually("nobody else is connected", || (ends() == 1 + held.len()).then_some(()));
    signal(Signal::STOP);
    let command = host.spawn(args);
    eventually("it has asked", || (ends() > 1 + held.len()).then_some(()));
    signal(Signal::CONT);
    eventually("it is turned away", || (ends() == 1 + held.len()).then_some(()));
    drop(held);
    command
}

#[test]
fn with_none_left_rm_stop_and_kill_still_end_the_task() {
    let host = Host::new();
    for verb in [&["rm", "-f"][..], &["stop", "--grace=0"]] {
        let task = host.task("exec sleep 1000").start();
        let shim = task.shim_pid();
        eventually("nobody is connected", || (task.socket_ends() == 1).then_some(()));
        let held = fill(shim, &task.file("shim.sock"));
        let args = [verb, &[task.id()]].concat();
        turned_away(&host, shim, || task.socket_ends(), held, &args).finish().assert_code(0);
        assert!(verb[0] != "rm" || !task.file("lock").exists());
    }
    let task = host.task("exec sleep 1000").start();
    let shim = task.shim_pid();
    eventually("nobody is connected", || (task.socket_ends() == 1).then_some(()));
    let held = fill(shim, &task.file("shim.sock"));
    for _ in 0..20 {
        let mut client = UnixStream::connect(task.file("shim.sock")).expect("it listens");
        client.set_read_timeout(Some(patience())).expect("a socket");
        assert_eq!(client.read_to_end(&mut Vec::new()).expect("it is closed"), 0);
    }
    let said = task.log("shim.log");
    assert_eq!(said.matches("sent away").count(), 1, "{said}");
    // Where there is no room at all.
    task.bowline("kill", []).assert_code(0);
    drop(held);
    task.wait().assert_killed_by("KILL");
}

#[test]
fn a_task_is_removed_by_force_whose_waiters_leave_its_shim_none() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let shim = task.shim_pid();
    eventually("nobody is connected", || (task.socket_ends() == 1).then_some(()));
    let held = fill(shim, &task.file("shim.sock"));
    let count = held.len();
    drop(held);
    let waiters: Vec<Process> = (0..count + 4).map(|_| host.spawn(["wait", task.id()])).collect();
    eventually("clients are sent away", || {
        (task.socket_ends() > count && task.log("shim.log").matches("sent away").count() > 1).then_some(())
    });
    task.bowline("rm", ["-f"]).assert_code(0);
    assert!(!task.file("lock").exists());
    waiters.into_iter().for_each(|waiter| drop(waiter.finish()));
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_sandbox_is_removed_by_force_whose_shim_has_none_left() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let member = sandbox.task("exec sleep 1000").start();
    let shim = sandbox.shim_pid();
    let ends = || unix_sockets(&sandbox.file("shim"));
    eventually("nobody is connected", || (ends() == 1).then_some(()));
    let held = fill(shim, &sandbox.file("shim.sock"));
    turned_away(&host, shim, ends, held, &["sandbox", "rm", "-f", sandbox.id()]).finish().assert_code(0);
    assert!(!sandbox.file("lock").exists() && !member.file("lock").exists());
    host.assert_nothing_left_without_rm();
}
