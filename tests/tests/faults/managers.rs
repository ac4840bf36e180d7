//! The part of the fault matrix that is about bowline's callers and about systemd: a command that is stopped and goes on,
//! a containerd that answers nothing or finds its shim killed, and a bus that hangs.
//!
//! The bus is a stand-in: the case is the same on a host without systemd.

use std::fs;
use std::os::unix::net::UnixListener;

use bowline_tests::Host;
use bowline_tests::harness::bus::{Bus, Reply, UNIT};
use bowline_tests::harness::containerd::{Bundle, Containerd, Failure, Output, Shim, Stdio};
use bowline_tests::harness::{Process, Task, Trace, binary, eventually, is_slow, only_v2, process_exists};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use crate::faults::{Call, TASK, Tally, numbered, stride};

/// `bowline ARGS` under strace with these flags, and where that writes.
pub fn traced(host: &Host, flags: &[&str], args: &[&str]) -> (Process, std::path::PathBuf) {
    let log = host.work().join(format!("stopped-{}", host.new_id()));
    let mut command = host.command("strace");
    command.args(["-qq", "-o"]).arg(&log).args(flags).arg(binary("bowline")).args(args);
    (host.spawn_command(command), log)
}

/// The command that strace has started.
fn command_of(strace: &Process) -> Option<Pid> {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", strace.pid())).ok()?;
    Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
}

/// The commands of a task's life, each of which is stopped in turn.
const STEPS: [&str; 5] = ["start", "exec", "stop", "wait", "rm"];

fn step(verb: &str, id: &str) -> Vec<String> {
    let words: &[&str] = match verb {
        "start" => &["start", "--name", id, "--", "/bin/sh", "-c", TASK],
        "exec" => &["exec", id, "--", "/bin/true"],
        "wait" => &["wait", "--json", id],
        verb => &[verb, id],
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The exit code that `wait` tells.
fn told(host: &Host, id: &str) -> Value {
    host.bowline(["wait", "--json", id]).assert_code(0).json()["exit_code"].clone()
}

/// A whole life, in which `verb` is run with these flags of strace; `meanwhile` is called of the task as soon as that
/// has begun. Where strace wrote, and the exit that was told.
fn live(
    host: &Host,
    verb: &str,
    flags: &[&str],
    mut meanwhile: impl FnMut(&Task<'_>, &mut Process, &str),
) -> (String, Value) {
    let id = host.new_id();
    let task = host.adopt(&id);
    let (mut log, mut exit) = (None, Value::Null);
    for now in STEPS {
        if now == "rm" {
            exit = told(host, &id);
        }
        let args = step(now, &id);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        if now != verb {
            host.bowline(&args).assert_code(0);
        } else {
            let (mut process, at) = traced(host, flags, &args);
            meanwhile(&task, &mut process, at.to_str().expect("ASCII"));
            let ran = process.finish();
            // An exec ends with its task, and a task that was stopped by somebody else has ended.
            assert!(ran.code == Some(0) || now == "exec", "{ran}");
            log = Some(at);
        }
        if now == "start" {
            task.wait_for_line("ready");
        }
    }
    (fs::read_to_string(log.expect("one of the steps")).expect("strace writes it"), exit)
}

/// Whoever stops it with Ctrl-Z, or freezes it, keeps the command, and nobody else.
#[test]
fn a_command_stopped_at_any_of_its_system_calls_goes_on() {
    let host = Host::new();
    let mut tally = Tally::default();
    for verb in STEPS {
        let (log, _) = live(&host, verb, &[], |_, _, _| ());
        let of_interest = numbered(log.lines()).into_iter().filter(|(name, ..)| name != "execve");
        for (name, number, _) in of_interest.skip(2 * stride()).step_by(4 * stride()) {
            let inject = format!("inject={name}:signal=STOP:when={number}");
            let (_, exit) = live(&host, verb, &["-e", &inject], |task, command, log| {
                let is_stopped = || fs::read_to_string(log).is_ok_and(|log| log.contains("stopped by SIGSTOP"));
                let stopped = eventually("it is stopped, or has ended before", || {
                    let over = !command.is_running();
                    (over || is_stopped()).then_some(!over)
                });
                if !stopped {
                    return;
                }
                tally.tried += 1;
                if matches!(verb, "exec" | "stop" | "wait") {
                    // The shim serves others: one of them ends the task.
                    task.bowline("stop", []).assert_code(0);
                }
                if let Some(pid) = command_of(command) {
                    kill_process(pid, Signal::CONT).expect("it is stopped");
                }
            });
            match exit == json!(7) {
                true => tally.survived += 1,
                false => tally.lost.push(format!("{verb}: {inject}: {exit}")),
            }
        }
    }
    tally.end("command: signal=STOP", &host);
}

/// A container, until somebody fails.
struct Life<'b> {
    bundle: &'b Bundle,
    /// The exit status that containerd was told.
    told: Option<u32>,
    over: bool,
}

impl<'b> Life<'b> {
    fn new(bundle: &'b Bundle) -> Life<'b> {
        Life { bundle, told: None, over: false }
    }

    /// Creates, starts, has an exec, kills and deletes, as containerd does.
    fn live(&mut self, shim: &Shim, pid: i32) -> Result<(), Failure> {
        let (bundle, id) = (self.bundle, &*self.bundle.id);
        let io = bundle.fifos("io");
        let (output, _errors) = io.open();
        shim.create(bundle, &io)?;
        shim.start(id, "")?;
        wait_for_ready(&output, pid);
        shim.exec(id, "e", &bundle.process(&["/bin/true"]), &Stdio::null())?;
        shim.start(id, "e")?;
        shim.wait(id, "e")?;
        shim.delete(id, "e")?;
        shim.kill(id, "", 15)?;
        self.told = Some(shim.wait(id, "")?.exit_status);
        self.told = Some(shim.delete(id, "")?.exit_status);
        shim.shutdown(id)?;
        self.over = true;
        Ok(())
    }
}

/// Of a task that may lose its shim meanwhile.
fn wait_for_ready(output: &Output, shim: i32) {
    eventually("it is ready", || (output.text().contains("ready") || !process_exists(shim)).then_some(()));
}

/// A bundle, and its shim.
fn begin(containerd: &Containerd<'_>) -> (Bundle, Shim, i32) {
    let bundle = containerd.bundle().script(TASK);
    let shim = containerd.start(&bundle);
    let pid = shim.pid();
    (bundle, shim, pid)
}

/// Waits until it has gone, and removes its socket, as containerd does.
fn wait_until_gone(shim: &Shim, pid: i32) {
    eventually("the shim is gone", || (!process_exists(pid)).then_some(()));
    // It has removed that if it left by itself.
    let _ = fs::remove_file(&shim.socket);
}

/// What a shim of containerd's asks of the kernel while it serves a container.
fn calls_of_the_shim(containerd: &Containerd<'_>, host: &Host) -> Vec<Call> {
    let (bundle, shim, pid) = begin(containerd);
    let trace = Trace::of(host, pid, []);
    let mut life = Life::new(&bundle);
    life.live(&shim, pid).expect("nothing fails");
    wait_until_gone(&shim, pid);
    numbered(trace.end().lines())
}

/// containerd then runs `delete`, which finds all by the bundle.
#[test]
fn delete_cleans_up_after_a_shim_killed_at_any_system_call() {
    let host = Host::new();
    let containerd = host.containerd();
    let mut tally = Tally::default();
    let calls = calls_of_the_shim(&containerd, &host);
    for (name, number, _) in calls.into_iter().step_by(stride()) {
        let (bundle, shim, pid) = begin(&containerd);
        let inject = format!("inject={name}:signal=KILL:when={number}");
        let pidfd = pidfd_open(Pid::from_raw(pid).expect("a pid"), PidfdFlags::empty()).expect("a live shim");
        let trace = Trace::of(&host, pid, ["-e", &*inject]);
        let mut life = Life::new(&bundle);
        let _ = life.live(&shim, pid);
        if !life.over {
            // It may have come to fewer calls than the first. An error means that it has ended.
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
        wait_until_gone(&shim, pid);
        trace.end();
        tally.tried += 1;
        tally.survived += usize::from(life.over);
        let deleted = containerd.delete_action(&bundle).exit_status;
        if life.told.is_some_and(|told| told != 7 || (!life.over && deleted != told)) {
            tally.lost.push(format!("{inject}: {:?} was told, then {deleted}", life.told));
        }
    }
    tally.end("containerd's shim: signal=KILL, then delete", &host);
}

/// It takes no event and answers none: whatever it asks for is done all the same, and told once it goes on.
#[test]
fn a_containerd_that_hangs_at_each_step() {
    let host = Host::new();
    let containerd = host.containerd();
    let mut tally = Tally::default();
    for from in ["create", "start", "exec", "kill", "delete"] {
        let (bundle, shim, pid) = begin(&containerd);
        let id = &*bundle.id;
        let hangs = |step: &str| {
            if step == from {
                containerd.events.hang();
            }
        };
        let io = bundle.fifos("io");
        let (output, _errors) = io.open();
        hangs("create");
        shim.create(&bundle, &io).expect("created");
        hangs("start");
        shim.start(id, "").expect("started");
        wait_for_ready(&output, pid);
        hangs("exec");
        shim.run_exec(&bundle, "e", &["/bin/true"], &Stdio::null());
        shim.wait(id, "e").expect("an end");
        shim.delete(id, "e").expect("deleted");
        hangs("kill");
        shim.kill(id, "", 15).expect("killed");
        let told = shim.wait(id, "").expect("an end").exit_status;
        hangs("delete");
        let deleted = shim.delete(id, "").expect("deleted").exit_status;
        containerd.events.go_on();
        let event = containerd.events.wait_for(id, "exit").status;
        tally.tried += 1;
        match (told, deleted, event) {
            (7, 7, 7) => tally.survived += 1,
            all => tally.lost.push(format!("from {from} on: {all:?}")),
        }
        shim.over();
    }
    tally.end("containerd: hangs", &host);
}

/// Where a bus never answers.
const SILENT: [&str; 6] = ["AUTH", "Subscribe", "GetUnit", "StartTransientUnit", "job", "StopUnit"];

/// Everything is bounded there: a launch is refused, and an end is reported all the same.
#[test]
fn a_bus_that_hangs_at_each_step() {
    // On v1 what systemd has not made is made by bowline; on v2 the unit would have to be there.
    if only_v2() {
        return;
    }
    let host = Host::new();
    let mut tally = Tally::default();
    let silent = UnixListener::bind(host.work().join("silent")).expect("a short path");
    let mut under_way = Vec::new();
    // All at once: each waits for its bound.
    for at in SILENT {
        let bus = Bus::at(&host.work().join(format!("bus-{at}")), move |method, _| match method {
            method if method == at => Reply::Never,
            // The job that is never done.
            "StartTransientUnit" if at == "job" => Reply::Path(format!("{UNIT}job")),
            "StartTransientUnit" | "StopUnit" => Reply::Job,
            "GetUnit" => Reply::Path(format!("{UNIT}ours")),
            _ => Reply::Nothing,
        });
        let address = match at {
            "AUTH" => format!("unix:path={}", host.work().join("silent").display()),
            _ => bus.address().to_owned(),
        };
        let mut command = host.command(binary("bowline"));
        let id = host.new_id();
        command.env("DBUS_SYSTEM_BUS_ADDRESS", address);
        command.args(["run", "--cgroup-driver=systemd", "--name", &id, "--", "/bin/sh", "-c", "exit 7"]);
        under_way.push((at, id, bus, host.spawn_command(command)));
    }
    let longest = std::time::Duration::from_secs(if is_slow() { 600 } else { 150 });
    for (at, id, bus, process) in under_way {
        let ran = process.finish_within(longest);
        tally.tried += 1;
        let begun = matches!(at, "StopUnit");
        match ran.code {
            Some(7) if begun => {
                tally.survived += 1;
                host.adopt(id);
            }
            Some(125) if !begun => assert!(ran.is_refusal(), "{at}: {ran}"),
            _ => tally.lost.push(format!("{at}: {ran}")),
        }
        drop(bus);
    }
    drop(silent);
    tally.end("bus: hangs", &host);
}
