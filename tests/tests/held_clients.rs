//! A command that is held up at one of its system calls while others remove and replace what it is about: it goes on
//! about the task or the sandbox that was there at first, and what it says of that is so. strace holds it up.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::{Process, Ran, binary, eventually, is_slow, patience};
use rustix::process::Signal;

const IDLE: &str = "exec sleep 1000";

/// `bowline ARGS`, which strace stops after calls.
struct Held {
    bowline: Process,
    log: PathBuf,
    stops: usize,
}

impl Held {
    /// Starts it; the calls are those of these flags of strace: see [`stop_at`].
    fn begin(host: &Host, flags: &[&str], args: &[&str]) -> Held {
        let log = host.work().join(format!("held-{}", host.new_id()));
        let mut strace = host.command("strace");
        // Our child is bowline, and not strace.
        strace.args(["-D", "-qq", "-o"]).arg(&log);
        strace.args(flags).arg(binary("bowline")).args(args);
        let bowline = host.spawn_command(strace);
        Held { bowline, log, stops: 0 }
    }

    /// Waits until it is held up once more, or has ended; whether it is held up.
    fn is_held(&mut self) -> bool {
        let log = &self.log;
        let stops = || fs::read_to_string(log).unwrap_or_default().matches("stopped by SIGSTOP").count();
        let before = self.stops;
        eventually("it is held up, or has ended", || (stops() > before || !self.bowline.is_running()).then_some(()));
        self.stops = stops();
        self.stops > before
    }

    fn go_on(&self) {
        self.bowline.signal(Signal::CONT);
    }

    fn finish(self) -> Ran {
        self.bowline.finish_within(patience())
    }
}

/// The flag of strace that stops who makes this call for the n-th time, once the call is over.
fn stop_at(call: &str, n: usize) -> String {
    format!("-einject={call}:signal=STOP:when={n}")
}

/// Each command is held up after it has looked whether its member runs, and before it asks the sandbox's shim about it.
#[test]
fn a_command_about_a_member_leaves_the_next_of_its_name_alone() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let [rm, stop, wait] = [&["rm", "-f"][..], &["stop", "--grace=0"], &["wait"]];
    let commands = [
        (rm, [("flock", 1), ("readlink", 1)]),
        (rm, [("sendto", 1), ("readlink", 2)]),
        (stop, [("getsockopt", 2), ("readlink", 1)]),
        (wait, [("getsockopt", 2), ("readlink", 1)]),
    ];
    for (command, calls) in commands {
        let first = sandbox.task(IDLE).start();
        let id = first.id().to_owned();
        let calls = calls.map(|(call, n)| stop_at(call, n));
        let mut held = Held::begin(&host, &calls.each_ref().map(String::as_str), &[command, &[&*id]].concat());
        assert!(held.is_held(), "{command:?}");
        host.bowline(["rm", "-f", &*id]).assert_code(0);
        held.go_on();
        // It need not come to the second call.
        let is_held = held.is_held();
        let next = sandbox.task(IDLE).named(&*id).start();
        if is_held {
            held.go_on();
        }
        let ran = held.finish();
        // Of the first one, the journal tells how it ended; unless that had gone before the command had looked.
        match ran.code {
            Some(0) => assert_eq!(ran.out(), if command[0] == "wait" { "137" } else { "" }),
            _ => drop(ran.assert_refused(125, &[&*id])),
        }
        assert_eq!(next.status(), "running", "{ran}");
        next.end();
    }
    sandbox.rm([]);
}

/// Each is connected to the sandbox's shim, and about to ask it.
#[test]
fn what_a_member_was_asked_for_its_successor_is_not() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let commands: [(&[&str], &[&str]); 4] =
        [(&["exec"], &["--", "/bin/true"]), (&["kill"], &[]), (&["pause"], &[]), (&["update", "--memory=64M"], &[])];
    for (command, more) in commands {
        let first = sandbox.task(IDLE).start();
        let id = first.id().to_owned();
        let stop = stop_at("getsockopt", 2);
        let mut held = Held::begin(&host, &[&stop], &[command, &[&*id], more].concat());
        assert!(held.is_held(), "{command:?}");
        host.bowline(["rm", "-f", &*id]).assert_code(0);
        let next = sandbox.task(IDLE).named(&*id).start();
        held.go_on();
        let ran = held.finish();
        ran.assert_refused(125, &[&*id]);
        assert_eq!(next.status(), "running", "{ran}");
        next.end();
    }
    sandbox.rm([]);
}

#[test]
fn run_tells_how_its_member_ended_that_was_removed() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let (name, id) = (sandbox.id().to_owned(), host.new_id());
    let in_sandbox = format!("--sandbox={name}");
    // The first file that it reads once the member runs, and before it waits for the member's end.
    let record = host.state().join(&id).join("task.json");
    let flags = ["-P", record.to_str().expect("ASCII"), &stop_at("openat", 1)];
    let mut held = Held::begin(&host, &flags, &["run", "--rm", "--name", &id, &in_sandbox, "--", "/bin/true"]);
    assert!(held.is_held());
    sandbox.rm(["-f"]);
    held.go_on();
    held.finish().assert_code(0);
}

#[test]
fn a_member_of_a_replaced_sandbox_is_told_of_that_and_no_death() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let (name, id) = (sandbox.id().to_owned(), host.new_id());
    let in_sandbox = format!("--sandbox={name}");
    // It is connected to the shim, looks whether that lives, and has made nothing.
    let shim = format!("/proc/{}/stat", sandbox.shim_pid());
    let flags = ["-P", &shim, &stop_at("read", 1)];
    let mut held = Held::begin(&host, &flags, &["start", "--name", &id, &in_sandbox, "--", "/bin/sleep", "1000"]);
    assert!(held.is_held());
    sandbox.rm(["-f"]);
    let next = host.sandbox().named(&*name).create();
    held.go_on();
    held.finish().assert_refused(125, &[&name, "is being removed"]);
    next.rm([]);
}

#[test]
fn a_sandbox_removed_as_it_is_made_was_removed_and_not_killed() {
    let host = Host::new();
    let id = host.new_id();
    // Connected, and about to ask for the sandbox; then about to undo it.
    let flags = [stop_at("getsockopt", 2), stop_at("flock", 2)];
    let flags = flags.each_ref().map(String::as_str);
    let mut create = Held::begin(&host, &flags, &["sandbox", "create", "--name", &id]);
    assert!(create.is_held());
    // It has told the shim to leave, and removes the folder in a moment.
    let mut rm = Held::begin(&host, &[&stop_at("flock", 1)], &["sandbox", "rm", "-f", &id]);
    assert!(rm.is_held());
    create.go_on();
    create.is_held();
    rm.go_on();
    create.go_on();
    rm.finish().assert_code(0);
    create.finish().assert_refused(125, &[&id, "was removed"]);
}

#[test]
fn a_sandbox_removed_once_it_is_made_is_no_task_that_is_missing() {
    let host = Host::new();
    let id = host.new_id();
    // The sandbox is made, and its folder was looked into to say so.
    let mut create = Held::begin(&host, &[&stop_at("getsockopt", 4)], &["sandbox", "create", "--name", &id]);
    assert!(create.is_held());
    host.bowline(["sandbox", "rm", "-f", &id]).assert_code(0);
    create.go_on();
    create.finish().assert_refused(125, &[&format!("sandbox {id}"), "was removed"]);
}

#[test]
fn a_stopped_launcher_is_named_and_its_sandbox_lives() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let other = sandbox.task(IDLE).start();
    let (id, in_sandbox) = (host.new_id(), format!("--sandbox={}", sandbox.id()));
    let start = |id: &str, call: (&str, usize), command: &[&str]| {
        let args = [&["start", "--name", id, &*in_sandbox, "--"], command].concat();
        let mut held = Held::begin(&host, &[&stop_at(call.0, call.1)], &args);
        assert!(held.is_held());
        held
    };
    // What shares the lock of a member that has ended.
    let member = sandbox.task("exit 0").start();
    member.wait();
    let ended = member.id();
    let mut flock = host.command("flock");
    flock.args(["--no-fork", "-s"]).arg(member.file("lock")).args(["/bin/sh", "-c", "echo held; exec sleep 1000"]);
    let keeper = host.spawn_command(flock);
    keeper.wait_for_out("held");
    keeper.signal(Signal::STOP);
    let process = format!("process {} (sleep), which somebody has stopped", keeper.pid());
    let begun = Instant::now();
    let ran = host.bowline(["rm", "-f", ended]);
    ran.assert_refused(125, &[ended, "is in use", &process]);
    assert!(!ran.err().contains("sandbox rm") && !ran.err().contains("kill -"), "{ran}");
    assert!(is_slow() || begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    keeper.signal(Signal::KILL);
    keeper.finish();
    host.bowline(["rm", "-f", ended]).assert_code(0);
    // It has not asked yet.
    let launcher = start(&id, ("/^rename", 1), &["/bin/true"]);
    let process = format!("process {} (bowline)", launcher.bowline.pid());
    for command in [&["rm", "-f"][..], &["stop"]] {
        let ran = host.bowline([command, &[&*id]].concat());
        ran.assert_refused(125, &[&id, "still being launched", &process, "which somebody has stopped"]);
    }
    launcher.go_on();
    launcher.finish().assert_code(0);
    host.bowline(["rm", "-f", &id]).assert_code(0);
    assert_eq!(other.status(), "running");
    sandbox.rm(["-f"]);
}

/// Without its record nothing tells which shim the task had.
#[test]
fn rm_f_of_a_damaged_task_names_who_has_its_lock() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    task.kill_shim(task.shim_pid());
    let mut flock = host.command("flock");
    flock.arg("--no-fork").arg(task.file("lock")).args(["/bin/sh", "-c", "echo held; exec sleep 1000"]);
    let keeper = host.spawn_command(flock);
    keeper.wait_for_out("held");
    keeper.signal(Signal::STOP);
    let process = format!("process {} (sleep), which somebody has stopped", keeper.pid());
    for damaged in [false, true] {
        if damaged {
            std::fs::write(task.file("task.json"), "").expect("ours");
        }
        let ran = task.bowline("rm", ["-f"]);
        ran.assert_refused(125, &[task.id(), "is in use", &process]);
        assert!(!ran.err().contains("rm -f"), "{ran}");
    }
    keeper.signal(Signal::KILL);
    keeper.finish();
    task.bowline("rm", ["-f"]).assert_code(0);
    host.assert_nothing_left_without_rm();
}

/// Held up after each call by which it looks into the task's folder or asks its shim.
#[test]
fn stop_succeeds_where_somebody_else_removes_its_task() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let mut windows = 0;
    for (call, last) in [("getsockopt", 2), ("sendto", 2), ("recvfrom", 3)] {
        for n in 1..=last {
            let first = sandbox.task(IDLE).start();
            let id = first.id().to_owned();
            let mut held = Held::begin(&host, &[&stop_at(call, n)], &["stop", "--grace=0", &id]);
            if held.is_held() {
                host.bowline(["rm", "-f", &*id]).assert_code(0);
                held.go_on();
                windows += 1;
            }
            held.finish().assert_code(0);
            host.bowline(["rm", "-f", &*id]).assert_code(0);
        }
    }
    assert!(windows > 3, "it is held up while it waits for nobody");
    sandbox.rm([]);
}
