//! A fault at every step of a task's life: whoever is killed and whatever the
//! kernel refuses, every command ends, no exit that was told is lost, and
//! nothing is left. Each case prints what it tried (`--nocapture`).
//!
//! The faults are strace's: a signal or an error at the n-th system call.

pub mod managers;
mod outliving;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::{Process, Ran, Trace, binary, child_pids, eventually, is_slow, process_exists};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Obeys SIGTERM, and says by what it ended.
pub const TASK: &str = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done";

/// Every how many system calls there is a fault: as `BOWLINE_FAULTS` says, such as 1 for all.
pub fn stride() -> usize {
    let asked = std::env::var("BOWLINE_FAULTS").ok();
    let asked = asked.map(|stride| stride.parse().expect("BOWLINE_FAULTS: a number from 1 on"));
    asked.unwrap_or(if is_slow() { 40 } else { 11 })
}

/// Every how many of the few calls that a kind of error is for.
fn stride_of_kind() -> usize {
    (stride() / 4).max(1)
}

/// What came of a fault.
#[derive(Default)]
pub struct Tally {
    pub tried: usize,
    pub survived: usize,
    pub lost: Vec<String>,
}

impl Tally {
    #[track_caller]
    pub fn end(self, what: &str, host: &Host) {
        let mut line = String::new();
        let Tally { tried, survived, lost } = self;
        let _ = write!(line, "{what}: {tried} tried, {survived} survived, {} exits lost, ", lost.len());
        host.assert_nothing_left();
        #[allow(clippy::print_stdout, reason = "the matrix, for --nocapture")]
        {
            println!("{line}0 left-overs");
        }
        assert!(lost.is_empty(), "{line}{lost:?}");
        assert!(tried > 1, "{line}too few to tell");
    }
}

/// A task's whole life: how far it came, and the exit that was told.
struct Life {
    id: String,
    told: Option<Value>,
    over: bool,
}

/// Starts a member, has an exec in it, stops and removes it; ends where something fails.
#[track_caller]
fn live(host: &Host, sandbox: &str) -> Life {
    let mut life = Life { id: host.new_id(), told: None, over: false };
    let name = format!("--name={}", life.id);
    let worked = |ran: Ran, told: &mut Option<Value>| {
        assert!(ran.code.is_some(), "it came to no end of its own: {ran}");
        if ran.code == Some(0) && ran.out().starts_with('{') {
            *told = Some(ran.json()["exit_code"].clone());
        }
        ran.code == Some(0)
    };
    let in_sandbox = format!("--sandbox={sandbox}");
    let steps: [&[&str]; 5] = [
        &["start", &name, &in_sandbox, "--", "/bin/sh", "-c", TASK],
        &["exec", &life.id, "--", "/bin/true"],
        &["stop", &life.id],
        &["wait", "--json", &life.id],
        &["rm", &life.id],
    ];
    life.over = steps.iter().all(|step| worked(host.bowline(*step), &mut life.told));
    life
}

/// The exit that was told is the one that is known now.
fn is_kept(host: &Host, life: &Life) -> bool {
    let Some(told) = &life.told else { return true };
    let ran = host.bowline(["wait", "--json", &life.id]);
    // Or it was removed, as was asked.
    life.over || ran.code != Some(0) || ran.json()["exit_code"] == *told
}

/// A system call: its name, which of its name it is, and the rest of what strace says.
pub type Call = (String, usize, String);

/// The calls in a trace without `-f`.
pub fn numbered<'t>(lines: impl Iterator<Item = &'t str>) -> Vec<Call> {
    let mut of_its_name: HashMap<&str, usize> = HashMap::new();
    let mut number = |(name, rest): (&'t str, &str)| {
        let number = of_its_name.entry(name).or_default();
        *number += 1;
        (name.to_owned(), *number, rest.to_owned())
    };
    // Not the end of a call that was interrupted.
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let calls = lines.filter_map(|line| line.split_once('('));
    calls.filter(|(name, _)| is_name(name)).map(&mut number).collect()
}

/// What a sandbox's shim asks of the kernel in a task's life.
fn calls_of_the_shim(host: &Host) -> Vec<Call> {
    let sandbox = host.sandbox().create();
    let trace = Trace::of(host, sandbox.shim_pid(), []);
    assert!(live(host, sandbox.id()).over);
    let trace = trace.end();
    sandbox.rm([]);
    numbered(trace.lines())
}

/// What its children ask of the kernel before they execute the task's programs, and the shim never does.
fn calls_of_children(host: &Host) -> Vec<Call> {
    let sandbox = host.sandbox().create();
    let shim = sandbox.shim_pid().to_string();
    let trace = Trace::of(host, sandbox.shim_pid(), ["-f"]);
    assert!(live(host, sandbox.id()).over);
    let trace = trace.end();
    sandbox.rm([]);
    let mut of_each: Vec<(&str, Vec<&str>)> = Vec::new();
    for (pid, call) in trace.lines().filter_map(|line| line.split_once(' ')) {
        match of_each.iter_mut().find(|(of, _)| *of == pid) {
            Some((_, calls)) => calls.push(call.trim_start()),
            None => of_each.push((pid, vec![call.trim_start()])),
        }
    }
    // Of memory the shim may ask at any moment, and in a later life it reads the filter that a worker has compiled here.
    const OF_SHIMS: [&str; 7] = ["brk", "mmap", "mremap", "munmap", "madvise", "mprotect", "lseek"];
    let of_shim =
        |name: &str| of_each.iter().any(|(pid, calls)| *pid == shim && calls.iter().any(|c| c.starts_with(name)));
    let mut found = Vec::new();
    for (_, calls) in of_each.iter().filter(|(pid, _)| *pid != shim) {
        let ours = calls.iter().take_while(|call| !call.starts_with("execve(")).copied();
        for call in numbered(ours)
            .into_iter()
            .filter(|(name, ..)| !OF_SHIMS.contains(&&**name) && !of_shim(&format!("{name}(")))
        {
            let same = |found: &Call| (&found.0, found.1) == (&call.0, call.1);
            if !found.iter().any(same) {
                found.push(call);
            }
        }
    }
    found
}

/// Whoever is traced meets `fault`, as strace's `inject` has it, at each of `calls`.
#[track_caller]
fn meets(host: &Host, fault: &str, flags: &[&str], calls: impl Iterator<Item = Call>, of_whom: &str) {
    let mut tally = Tally::default();
    let is_fatal = flags.is_empty() && fault.starts_with("signal");
    for (name, number, _) in calls {
        let sandbox = host.sandbox().create();
        let inject = format!("inject={name}:{fault}:when={number}");
        let shim = sandbox.shim_pid();
        let trace = Trace::of(host, shim, flags.iter().copied().chain(["-e", &inject]));
        let life = live(host, sandbox.id());
        trace.end();
        tally.tried += 1;
        tally.survived += usize::from(life.over);
        if !is_kept(host, &life) {
            tally.lost.push(format!("{inject}: {:?}", life.told));
        }
        assert!(is_fatal || process_exists(shim), "{inject} has ended the shim");
        sandbox.bowline("rm", ["-f"]).assert_code(0);
    }
    tally.end(&format!("{of_whom}: {fault}"), host);
}

#[track_caller]
fn shim_meets(fault: &str, of_interest: impl Fn(&str) -> bool, stride: usize) {
    shim_meets_at(fault, |(name, ..)| of_interest(name), stride);
}

#[track_caller]
fn shim_meets_at(fault: &str, of_interest: impl Fn(&Call) -> bool, stride: usize) {
    let host = Host::new();
    let calls = calls_of_the_shim(&host).into_iter().filter(of_interest);
    meets(&host, fault, &[], calls.step_by(stride), "shim");
}

#[test]
fn a_worker_init_or_exec_that_is_killed_at_any_system_call() {
    let host = Host::new();
    let calls = calls_of_children(&host).into_iter();
    meets(&host, "signal=KILL", &["-f"], calls.step_by(if is_slow() { 11 } else { 2 }), "worker, init, exec");
}

/// The command that starts a task is killed, and whoever comes next cleans up.
#[test]
fn a_command_that_is_killed_at_any_of_its_system_calls() {
    // What others have orphaned is not to be cleaned up with it.
    let host = Host::alone();
    let start = |inject: Option<&str>| {
        let mut command = host.command("strace");
        let id = host.new_id();
        let log = host.work().join(&id);
        command.args(["-qq", "-o"]).arg(&log).args(inject.into_iter().flat_map(|inject| ["-e", inject]));
        command.arg(binary("bowline")).args(["start", "--name", &id, "--", "/bin/sh", "-c", TASK]);
        let started = host.execute(command).code == Some(0);
        (id, log, started)
    };
    let (id, log, _) = start(None);
    let calls = numbered(fs::read_to_string(log).expect("strace writes it").lines());
    host.bowline(["rm", "-f", &id]).assert_code(0);
    let mut tally = Tally::default();
    for (name, number, _) in calls.into_iter().step_by(stride()) {
        let (id, _, started) = start(Some(&format!("inject={name}:signal=KILL:when={number}")));
        tally.tried += 1;
        tally.survived += usize::from(started);
        if host.state().join(&id).exists() {
            eventually("it is removed, once its shim knows that nobody launches it", || {
                let removed = host.bowline(["rm", "-f", &id]);
                assert!(removed.code == Some(0) || removed.err().contains("try again"), "{removed}");
                (removed.code == Some(0)).then_some(())
            });
        }
        host.bowline(["gc"]).assert_code(0);
    }
    tally.end("command: signal=KILL", &host);
}

/// `bowline run`, hung up at any of its system calls, ends, and its task with it.
#[test]
fn a_run_that_is_hung_up_at_any_of_its_system_calls() {
    let host = Host::new();
    let spawn = |inject: Option<&str>| {
        let id = host.new_id();
        let log = host.work().join(&id);
        let mut command = host.command("strace");
        command.args(["-qq", "-o"]).arg(&log).args(inject.into_iter().flat_map(|inject| ["-e", inject]));
        command.arg(binary("bowline")).args(["run", "--rm", "--name", &id, "--", "/bin/sh", "-c", TASK]);
        let run = host.spawn_command(command);
        run.read_stdout();
        run.read_stderr();
        (id, log, run)
    };
    let log_of = |log| fs::read_to_string(log).expect("strace writes it");
    let hang_up = |run: &Process| {
        // It may just have ended.
        if let Some(pid) = child_pids(run.pid()).first().copied().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::HUP);
        }
    };
    let (_, log, run) = spawn(None);
    run.wait_for_out("ready");
    hang_up(&run);
    run.finish().assert_code(7);
    let log = log_of(log);
    let until = log.lines().take_while(|line| !line.starts_with("--- SIGHUP"));
    let mut tally = Tally::default();
    for (name, number, _) in numbered(until).into_iter().step_by(stride()) {
        let inject = format!("inject={name}:signal=HUP:when={number}");
        let (id, log, mut run) = spawn(Some(&inject));
        // It may have come there by fewer calls of this name.
        eventually(&inject, || (!run.is_running() || run.has_said("ready")).then_some(()));
        if run.is_running() && !log_of(log).contains("--- SIGHUP") {
            hang_up(&run);
        }
        let ran = run.finish();
        tally.tried += 1;
        tally.survived += usize::from(ran.code == Some(7));
        // The task may be told to end before it has its trap.
        let untrapped = ran.code == Some(143) && !ran.out().contains("ready");
        assert!(untrapped || matches!(ran.code, None | Some(7 | 129)), "{inject}: {ran}");
        assert!(!host.state().join(&id).exists(), "{inject}: {ran}");
    }
    tally.end("run: signal=HUP", &host);
}

#[test]
fn a_shim_that_is_killed_at_any_of_its_system_calls() {
    shim_meets("signal=KILL", |_| true, stride());
}

#[test]
fn a_shim_that_gets_no_descriptor() {
    let makes_one =
        ["open", "openat", "openat2", "pipe2", "accept4", "pidfd_open", "socket", "epoll_create1", "clone3"];
    shim_meets("error=EMFILE", |name| makes_one.contains(&name), stride_of_kind());
}

#[test]
fn a_shim_whose_disk_is_full() {
    // Not write: most of those are to pipes and sockets.
    let writes =
        ["open", "openat", "mkdir", "mkdirat", "rename", "renameat", "linkat", "ftruncate", "fallocate", "fsync"];
    shim_meets("error=ENOSPC", |name| writes.contains(&name), stride_of_kind());
}

#[test]
fn a_shim_that_gets_no_process_and_no_memory() {
    shim_meets("error=EAGAIN", |name| name == "clone3", 1);
    shim_meets(
        "error=ENOMEM",
        |name| ["clone3", "mmap", "open", "openat", "pidfd_open"].contains(&name),
        stride_of_kind(),
    );
}

#[test]
fn a_shim_whose_disk_has_become_read_only() {
    let creates = ["mkdir", "mkdirat", "rename", "renameat", "linkat", "symlinkat"];
    let to_write = |rest: &str| ["O_WRONLY", "O_RDWR", "O_CREAT"].iter().any(|flag| rest.contains(flag));
    let of_interest =
        |(name, _, rest): &Call| creates.contains(&&**name) || (name.starts_with("open") && to_write(rest));
    shim_meets_at("error=EROFS", of_interest, stride_of_kind());
}

/// Who comes in while a sandbox is being unmounted.
enum Meanwhile {
    Nobody,
    AnotherRemoves,
    CommandIsKilled,
    ShimIsToldToLeave,
    ShimIsKilled,
}

/// What is mounted takes a while to be unmounted, as on a disk that does not answer.
#[test]
fn a_sandbox_whose_unmounting_takes_long() {
    let host = Host::new();
    let mut tally = Tally::default();
    for meanwhile in [
        Meanwhile::Nobody,
        Meanwhile::AnotherRemoves,
        Meanwhile::CommandIsKilled,
        Meanwhile::ShimIsToldToLeave,
        Meanwhile::ShimIsKilled,
    ] {
        let sandbox = host.sandbox().create();
        let task = sandbox.task(TASK).start();
        task.wait_for_line("ready");
        let shim = Pid::from_raw(sandbox.shim_pid()).expect("a pid");
        let slow = ["-f", "-e", "inject=umount2:delay_enter=500000"];
        let trace = Trace::of(&host, shim.as_raw_nonzero().get(), slow);
        let wait = host.spawn(["wait", "--json", task.id()]);
        let removal = host.spawn(["sandbox", "rm", "-f", sandbox.id()]);
        eventually("it is being unmounted", || trace.so_far().contains("umount2(").then_some(()));
        tally.tried += 1;
        let told = wait.finish();
        if told.code != Some(0) || told.json()["signal"] != "SIGKILL" {
            tally.lost.push(told.to_string());
        }
        // The shim answers others meanwhile, or has done it by then.
        let inspected = sandbox.bowline("inspect", []);
        assert!(inspected.code == Some(0) || !sandbox.file("").exists(), "{inspected}");
        match meanwhile {
            Meanwhile::Nobody => {}
            Meanwhile::AnotherRemoves => {
                let ran = sandbox.bowline("rm", ["-f"]);
                assert!(ran.code == Some(0) || ran.err().contains("being removed"), "{ran}");
            }
            Meanwhile::CommandIsKilled => removal.signal(Signal::KILL),
            Meanwhile::ShimIsToldToLeave => kill_process(shim, Signal::TERM).expect("it lives"),
            Meanwhile::ShimIsKilled => kill_process(shim, Signal::KILL).expect("it lives"),
        }
        tally.survived += usize::from(removal.finish().code == Some(0));
        eventually("it is removed", || (sandbox.bowline("rm", ["-f"]).code == Some(0)).then_some(()));
        trace.end();
    }
    tally.end("sandbox: umount2 takes 0.5 s", &host);
}
