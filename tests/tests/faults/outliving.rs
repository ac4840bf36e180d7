//! The part of the fault matrix that is about a task outliving its shim: a shim that is killed at any system call of a
//! launch or an upgrade, one that is refused what an upgrade asks of the kernel, and one that is killed or refused
//! while it takes a task over. Each time the exit code is the real one, and no byte is lost.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bowline_tests::Host;
use bowline_tests::harness::{Process, Ran, Sandbox, Task, Trace, child_pids, eventually, is_slow, process_exists};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::faults::managers::traced;
use crate::faults::{Call, Tally, numbered, stride};

/// Marks that it has begun, waits until it may end, and then says much.
const TASK: &str = "echo >/mark/started; until [ -e /mark/go ]; do sleep 0.02; done; seq 1 2000; exit 7";

fn output() -> String {
    (1..=2000).map(|line| format!("{line}\n")).collect()
}

/// A task whose command can be watched and told through a folder of the host's.
struct Marked<'h> {
    task: Task<'h>,
    mark: PathBuf,
    /// Of which it is a member, if any.
    sandbox: Option<Sandbox<'h>>,
}

impl<'h> Marked<'h> {
    fn new(host: &'h Host) -> Marked<'h> {
        let task = host.adopt(host.new_id());
        let mark = host.work().join(format!("mark-{}", task.id()));
        fs::create_dir(&mark).expect("the work folder is writable");
        Marked { task, mark, sandbox: None }
    }

    /// The description of the task.
    fn described(&self, host: &Host) -> PathBuf {
        let mark = self.mark.display();
        let text = format!(
            "command = '/bin/sh'\nargs = ['-c', '{TASK}']\ninit = true\nmounts = [{{source = '{mark}', destination = '/mark'}}]\n"
        );
        host.file(&format!("{}.toml", self.task.id()), &text)
    }

    fn has_begun(&self) -> bool {
        self.mark.join("started").exists()
    }

    fn may_end(&self) {
        fs::write(self.mark.join("go"), "").expect("writable");
    }

    /// The record says that it was started: by its first shim, or by another.
    fn is_recorded(&self) -> bool {
        let record: Value = serde_json::from_str(&self.task.log("task.json")).unwrap_or_default();
        record["started_at"].is_string()
    }

    /// Starts it in the background.
    fn start(host: &'h Host) -> Marked<'h> {
        Marked::start_in(host, None)
    }

    fn start_in(host: &'h Host, sandbox: Option<Sandbox<'h>>) -> Marked<'h> {
        let marked = Marked { sandbox, ..Marked::new(host) };
        let file = marked.described(host);
        let of = marked.sandbox.as_ref().map(|sandbox| format!("--sandbox={}", sandbox.id()));
        let args = ["start", "--name", marked.task.id(), "-f", file.to_str().expect("ASCII")];
        host.bowline(args.into_iter().chain(of.as_deref())).assert_code(0);
        eventually("it has begun", || marked.has_begun().then_some(()));
        marked
    }

    /// Some shim has it, after the fault `inject`: it takes commands, and ends as it should. Returns what is wrong.
    fn goes_on(&self) -> Option<String> {
        let adopted = self.task.bowline("adopt", []);
        let exec = self.task.exec("exit 4");
        if adopted.code != Some(0) || exec.code != Some(4) {
            return Some(format!("adopt: {adopted}, exec: {exec}"));
        }
        self.may_end();
        let report = self.task.bowline("wait", ["--json"]);
        let (code, said) = (report.assert_code(0).json()["exit_code"].clone(), self.task.said("stdout"));
        self.task.bowline("rm", []).assert_code(0);
        if let Some(sandbox) = &self.sandbox {
            assert_eq!(sandbox.status(), "ready");
            sandbox.task("exit 3").run().assert_code(3);
            sandbox.rm([]);
        }
        (code != 7 || said != output()).then(|| format!("exit {code}, {} bytes", said.len()))
    }
}

/// `bowline run`, with strace at its shim from before that is asked to launch: what that saw.
struct Launch {
    run: Process,
    trace: Trace,
    shim: i32,
}

impl Launch {
    fn begin(host: &Host, marked: &Marked<'_>, flags: &[&str]) -> Launch {
        let file = marked.described(host);
        // It is stopped once it is connected to its shim.
        let stopped = ["-e", "trace=connect", "-e", "inject=connect:signal=STOP:when=1"];
        let args = ["run", "--name", marked.task.id(), "-f", file.to_str().expect("ASCII")];
        let (run, log) = traced(host, &stopped, &args);
        run.read_stdout();
        run.read_stderr();
        let is_stopped = || fs::read_to_string(&log).is_ok_and(|log| log.contains("stopped by SIGSTOP"));
        eventually("it is stopped", || is_stopped().then_some(()));
        let command = child_pids(run.pid())[0];
        let shim = eventually("there is a shim", || child_pids(command).first().copied());
        let trace = Trace::of(host, shim, flags.iter().copied());
        kill_process(Pid::from_raw(command).expect("a pid"), Signal::CONT).expect("it lives");
        Launch { run, trace, shim }
    }

    /// Waits until the task is launched, by whichever shim, or the command has ended.
    fn settle(&mut self, marked: &Marked<'_>) {
        eventually("it is launched or given up", || self.is_settled(marked).then_some(()));
    }

    fn is_settled(&mut self, marked: &Marked<'_>) -> bool {
        marked.has_begun() && marked.is_recorded() || !self.run.is_running()
    }

    /// As [`Launch::settle`]; a shim that strace holds up as a call returns is killed. Returns whether it was killed.
    fn meet(&mut self, marked: &Marked<'_>) -> bool {
        let is_held = eventually("it is launched, given up or held up", || {
            let is_held = is_held(&self.trace.so_far());
            (is_held || self.is_settled(marked)).then_some(is_held)
        });
        if is_held {
            kill_process(Pid::from_raw(self.shim).expect("a pid"), Signal::KILL).expect("it lives");
        }
        // As long as strace holds the call up, nobody can reap who made it.
        self.trace.stop();
        self.settle(marked);
        !process_exists(self.shim)
    }
}

#[test]
fn a_shim_that_is_killed_at_any_system_call_of_a_launch() {
    launch_meets("signal=KILL", if stride() == 1 { 1 } else { 2 });
}

/// The shim has not stored what came of the call.
#[test]
fn a_shim_that_is_killed_as_any_system_call_of_a_launch_returns() {
    launch_meets("delay_exit=1000s", if stride() == 1 { 3 } else { 2 });
}

/// Runs in the foreground, whose shim meets the fault at one of the calls of a launch: every `step`-th of those that are
/// due.
#[track_caller]
fn launch_meets(fault: &str, step: usize) {
    let host = Host::new();
    let marked = Marked::new(&host);
    let mut launch = Launch::begin(&host, &marked, &[]);
    launch.settle(&marked);
    let calls = numbered(launch.trace.end().lines());
    marked.may_end();
    launch.run.finish().assert_code(7);
    let (mut tally, mut never) = (Tally::default(), 0);
    // Few come after the order to start: of those more.
    let (early, late) = calls.split_at(calls.len().saturating_sub(24));
    let rare = early.iter().step_by(stride()).chain(late.iter().step_by((stride() / 4).max(1)));
    for (name, number, _) in rare.step_by(step) {
        let inject = format!("inject={name}:{fault}:when={number}");
        let marked = Marked::new(&host);
        let mut launch = Launch::begin(&host, &marked, &["-e", &inject]);
        let was_killed = launch.meet(&marked);
        marked.may_end();
        let ran = launch.run.finish();
        tally.tried += 1;
        tally.survived += usize::from(ran.code == Some(7));
        let is_whole = ran.code == Some(7) && String::from_utf8_lossy(&ran.stdout) == output();
        let is_refused = ran.code == Some(125) && !marked.has_begun() && !marked.task.file("").exists();
        never += usize::from(is_refused);
        if !(is_whole || is_refused && was_killed) {
            tally.lost.push(format!("{inject}: {ran}"));
        }
    }
    assert!(tally.survived > 0 && never > 0, "{} went on, {never} were never started", tally.survived);
    tally.end(&format!("run: its shim is killed in the launch, {fault}"), &host);
}

/// A run in a sandbox whose shim, as it launches the member, meets what strace does by `flags`. Returns what the run
/// came to, and what strace saw until the member was launched or given up.
fn run_in(sandbox: &Sandbox<'_>, host: &Host, marked: &Marked<'_>, flags: &[&str]) -> (Ran, String) {
    let file = marked.described(host);
    let shim = sandbox.shim_pid();
    let trace = Trace::of(host, shim, flags.iter().copied());
    let args = ["run", "--sandbox", sandbox.id(), "--name", marked.task.id(), "-f", file.to_str().expect("ASCII")];
    let run = host.spawn(args);
    run.read_stdout();
    run.read_stderr();
    let mut launch = Launch { run, trace, shim };
    launch.meet(marked);
    marked.may_end();
    (launch.run.finish(), launch.trace.so_far())
}

/// The cgroups that are in the one with this folder.
fn cgroups_in(cgroup: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cgroup).expect("it is there");
    entries.map(|entry| entry.expect("readable").path()).filter(|path| path.is_dir()).collect()
}

/// The member goes on under a new shim, or nothing is left of it; the sandbox goes on.
#[test]
fn a_sandbox_goes_on_though_its_shim_dies_in_a_member_s_launch() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--pids=50").create();
    let calls = {
        let marked = Marked::new(&host);
        let (ran, trace) = run_in(&sandbox, &host, &marked, &[]);
        ran.assert_code(7);
        marked.task.bowline("rm", []).assert_code(0);
        numbered(trace.lines())
    };
    let (mut tally, mut never) = (Tally::default(), 0);
    let faults = ["signal=KILL", "delay_exit=1000s"].into_iter().cycle();
    for ((name, number, _), fault) in calls.iter().step_by(stride()).zip(faults) {
        let inject = format!("inject={name}:{fault}:when={number}");
        let marked = Marked::new(&host);
        let ran = run_in(&sandbox, &host, &marked, &["-e", &inject]).0;
        tally.tried += 1;
        let is_whole = ran.code == Some(7) && ran.stdout == output().as_bytes();
        let is_refused = ran.code == Some(125) && !marked.has_begun() && !marked.task.file("").exists();
        tally.survived += usize::from(is_whole);
        never += usize::from(is_refused);
        if is_whole {
            marked.task.bowline("rm", []).assert_code(0);
        }
        // The sandbox has a shim, if need be a new one, and its limits.
        sandbox.task("exit 3").run().assert_code(3);
        let left = cgroups_in(&sandbox.cgroup("pids"));
        if !(is_whole || is_refused) || !left.is_empty() || sandbox.cgroup_file("pids", "pids.max") != "50" {
            tally.lost.push(format!("{inject}: {ran}; left: {left:?}"));
        }
    }
    assert!(tally.survived > 0 && never > 0, "{} went on, {never} were never started", tally.survived);
    sandbox.rm([]);
    tally.end("run in a sandbox: its shim is killed in the launch", &host);
}

/// Nobody is there to undo it, until somebody removes the member.
#[test]
fn rm_undoes_a_member_launch_whose_shim_and_caller_were_killed() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let folders = ["cpu", "cpuset", "memory", "pids", "freezer"].map(|controller| sandbox.cgroup(controller));
    let look = || {
        let identity = |folder: &PathBuf| fs::metadata(folder).map(|meta| meta.ino()).ok();
        (folders.each_ref().map(identity), folders.iter().flat_map(|folder| cgroups_in(folder)).count())
    };
    let before = look();
    let marked = Marked::new(&host);
    let file = marked.described(&host);
    let shim = sandbox.shim_pid();
    // The first that it makes is a cgroup of the member's.
    let mut trace = Trace::of(&host, shim, ["-e", "inject=mkdirat:delay_exit=1000s:when=1"]);
    let args = ["run", "--sandbox", sandbox.id(), "--name", marked.task.id(), "-f", file.to_str().expect("ASCII")];
    let run = host.spawn(args);
    eventually("the member has a cgroup", || is_held(&trace.so_far()).then_some(()));
    run.signal(Signal::KILL);
    run.finish();
    kill_process(Pid::from_raw(shim).expect("a pid"), Signal::KILL).expect("it lives");
    trace.stop();
    eventually("the shim is gone", || (!process_exists(shim)).then_some(()));
    assert!(marked.task.file("").exists());
    marked.task.bowline("rm", []).assert_code(0);
    assert_eq!(look(), before);
    sandbox.task("exit 3").run().assert_code(3);
    sandbox.rm([]);
}

/// What the kernel did is done, and the shim could not store that: what it read is in no pipe any more, and what it
/// wrote has come.
#[test]
fn a_shim_killed_as_a_read_or_write_returns_loses_no_output() {
    let host = Host::new();
    let calls = {
        let (ran, trace) = killed_after(&host, "trace=read,write");
        ran.assert_code(7);
        numbered(trace.lines())
    };
    let mut tally = Tally::default();
    for (name, number, _) in calls.into_iter().step_by((stride() / 4).max(1)) {
        let (ran, trace) = killed_after(&host, &format!("inject={name}:delay_exit=1000s:when={number}"));
        tally.tried += 1;
        tally.survived += usize::from(!is_held(&trace));
        if ran.code != Some(7) || ran.stdout != output().as_bytes() {
            tally.lost.push(format!("{name} {number}: exit {:?}, {} bytes", ran.code, ran.stdout.len()));
        }
    }
    tally.end("output: a shim is killed as a call returns", &host);
}

/// A run in the foreground, whose shim is killed once the call that strace holds up has done what it does, if it makes
/// that call. Returns what the run printed, and what strace saw.
fn killed_after(host: &Host, held: &str) -> (Ran, String) {
    let marked = Marked::new(host);
    let file = marked.described(host);
    let mut run = host.spawn(["run", "--log=json", "--name", marked.task.id(), "-f", file.to_str().expect("ASCII")]);
    run.read_stdout();
    run.read_stderr();
    eventually("it has begun", || (marked.has_begun() && marked.is_recorded()).then_some(()));
    let shim = marked.task.shim_pid();
    let trace = Trace::of(host, shim, ["-e", "trace=read,write", "-e", held]);
    marked.may_end();
    eventually("a call is held up, or all is over", || (is_held(&trace.so_far()) || !run.is_running()).then_some(()));
    if is_held(&trace.so_far()) {
        kill_process(Pid::from_raw(shim).expect("a pid"), Signal::KILL).expect("the shim lives");
    }
    // As long as strace holds the call up, nobody can reap who made it.
    let trace = trace.end();
    let ran = run.finish();
    let logged = marked.task.said("stdout");
    assert!(logged == output(), "{} bytes in the log, {} came: {held}", logged.len(), ran.stdout.len());
    marked.task.bowline("rm", []).assert_code(0);
    (ran, trace)
}

/// Whether strace, which has written this, holds up a call that is over.
fn is_held(trace: &str) -> bool {
    trace.contains("(DELAYED)")
}

/// It makes cgroups before it takes the first connection. The command makes its folders by another call.
#[test]
fn a_shim_that_is_killed_as_it_starts_leaves_nothing() {
    let host = Host::new();
    let killed = |when: u32| format!("inject=mkdirat:signal=KILL:when={when}");
    // The command connects before the shim dies, or long after.
    for (when, late) in [(1, false), (9, false), (1, true), (9, true)] {
        let marked = Marked::new(&host);
        let file = marked.described(&host);
        let args = ["run", "--name", marked.task.id(), "-f", file.to_str().expect("ASCII")];
        let delay = if late { "inject=connect:delay_enter=300000" } else { "signal=none" };
        let (run, _) = traced(&host, &["-f", "-e", &killed(when), "-e", delay], &args);
        let ran = run.finish();
        assert_eq!(ran.code, Some(125), "{ran}");
        assert!(!marked.has_begun() && !marked.task.file("").exists(), "{ran}");
        host.assert_nothing_left_without_rm();
    }
}

/// A running task whose shim meets the fault as it is upgraded.
#[track_caller]
fn upgrade_meets(host: &Host, fault: &str, calls: impl Iterator<Item = Call>) {
    let mut tally = Tally::default();
    for (name, number, _) in calls {
        let inject = format!("inject={name}:{fault}:when={number}");
        let marked = Marked::start(host);
        let shim = marked.task.shim_pid();
        let trace = Trace::of(host, shim, ["-e", &inject]);
        let upgraded = marked.task.bowline("upgrade", []);
        trace.end();
        tally.tried += 1;
        tally.survived += usize::from(upgraded.code == Some(0));
        if let Some(wrong) = marked.goes_on() {
            tally.lost.push(format!("{inject}: {wrong}"));
        }
    }
    tally.end(&format!("upgrade: {fault}"), host);
}

/// What a shim asks of the kernel while it is upgraded, as both programs.
fn calls_of_an_upgrade(host: &Host) -> Vec<Call> {
    let marked = Marked::start(host);
    let trace = Trace::of(host, marked.task.shim_pid(), []);
    marked.task.bowline("upgrade", []).assert_code(0);
    let calls = numbered(trace.end().lines());
    assert_eq!(marked.goes_on(), None);
    calls
}

#[test]
fn a_shim_that_is_killed_at_any_system_call_of_an_upgrade() {
    let host = Host::new();
    let calls = calls_of_an_upgrade(&host).into_iter();
    upgrade_meets(&host, "signal=KILL", calls.step_by(stride()));
}

#[test]
fn a_shim_that_is_refused_what_an_upgrade_asks_for() {
    let host = Host::new();
    let calls = calls_of_an_upgrade(&host);
    let of = |names: &'static [&'static str]| {
        let found: Vec<Call> = calls.iter().filter(|(name, ..)| names.contains(&name.as_str())).cloned().collect();
        // Of few, each.
        let step = if found.len() < 2 * stride() { 1 } else { stride() / 2 };
        found.into_iter().step_by(step.max(1))
    };
    upgrade_meets(
        &host,
        "error=EMFILE",
        of(&["open", "openat", "memfd_create", "pipe2", "pidfd_open", "epoll_create1"]),
    );
    upgrade_meets(&host, "error=ENOMEM", of(&["execve", "execveat", "clone3", "memfd_create"]));
    upgrade_meets(&host, "error=ENOSPC", of(&["write", "ftruncate", "fallocate", "rename", "renameat", "mkdir"]));
}

/// A task whose shim died is taken over by `bowline adopt`, where any process meets the fault; then once more without.
#[track_caller]
fn adoption_meets<'h>(
    host: &'h Host,
    fault: &str,
    calls: impl Iterator<Item = Call>,
    start: impl Fn(&'h Host) -> Marked<'h>,
) {
    let mut tally = Tally::default();
    for (name, number, _) in calls {
        let inject = format!("inject={name}:{fault}:when={number}");
        let marked = start(host);
        marked.task.kill_shim(marked.task.shim_pid());
        let ran = adopt_traced(host, &marked, &["-e", &inject]).0;
        tally.tried += 1;
        tally.survived += usize::from(ran);
        if let Some(wrong) = marked.goes_on() {
            tally.lost.push(format!("{inject}: {wrong}"));
        }
    }
    tally.end(&format!("adoption: {fault}"), host);
}

/// `bowline adopt` with the shim that it starts, under strace: whether it succeeded, and where strace wrote.
fn adopt_traced(host: &Host, marked: &Marked<'_>, flags: &[&str]) -> (bool, PathBuf) {
    // The shim lives on, and with it strace, which is then told to let go of it.
    let flags = [&["-f", "-I1"], flags].concat();
    let (mut strace, log) = traced(host, &flags, &["adopt", marked.task.id()]);
    // It may have ended by now, and the shim lives on.
    let first = || fs::read_to_string(&log).ok()?.split_once(' ')?.0.parse::<i32>().ok();
    let command = eventually("strace has seen it, or ended", || match first() {
        None if strace.is_running() => None,
        found => Some(found),
    });
    let Some(command) = command else {
        strace.finish();
        return (false, log);
    };
    eventually("it has ended", || (!process_exists(command)).then_some(()));
    strace.signal(Signal::TERM);
    strace.finish();
    (has_exited_well(&log, command), log)
}

/// Whether strace saw this process end with exit code 0.
fn has_exited_well(log: &Path, pid: i32) -> bool {
    let log = fs::read_to_string(log).unwrap_or_default();
    log.lines().any(|line| {
        // strace writes a call in two lines where another process makes one meanwhile.
        let is_end = |call: &str| call.contains("exit_group(0)") || call.contains("exit_group(0 <unfinished");
        line.split_once(' ').is_some_and(|(of, call)| of == pid.to_string() && is_end(call))
    })
}

/// What the new shim asks of the kernel while it takes over the task that `start` starts.
fn calls_of_an_adoption<'h>(host: &'h Host, start: impl Fn(&'h Host) -> Marked<'h>) -> Vec<Call> {
    let marked = start(host);
    marked.task.kill_shim(marked.task.shim_pid());
    let (adopted, log) = adopt_traced(host, &marked, &[]);
    assert!(adopted, "{}", fs::read_to_string(&log).unwrap_or_default());
    let shim = marked.task.shim_pid().to_string();
    let log = fs::read_to_string(log).expect("strace writes it");
    let of_shim = log.lines().filter_map(|line| line.split_once(' ')).filter(|(pid, _)| *pid == shim);
    let calls = numbered(of_shim.map(|(_, call)| call.trim_start()));
    assert_eq!(marked.goes_on(), None);
    calls
}

/// Each fault, at some of the calls of a new shim that takes over what `start` starts.
#[track_caller]
fn any_adoption_meets_faults<'h>(host: &'h Host, start: impl Fn(&'h Host) -> Marked<'h> + Copy) {
    let calls = calls_of_an_adoption(host, start);
    // Each of the shims that the command starts is killed.
    let rare = if is_slow() { 8 } else { 4 };
    adoption_meets(host, "signal=KILL", calls.iter().cloned().step_by(stride() * rare), start);
    let makes_one = ["open", "openat", "openat2", "pipe2", "pidfd_open", "epoll_create1"];
    let makes_one = calls.iter().filter(|(name, ..)| makes_one.contains(&name.as_str())).cloned();
    adoption_meets(host, "error=EMFILE", makes_one.step_by(stride()), start);
    let takes_room = ["write", "pwrite64", "ftruncate", "fallocate", "rename", "renameat", "mkdir"];
    let takes_room = calls.iter().filter(|(name, ..)| takes_room.contains(&name.as_str())).cloned();
    adoption_meets(host, "error=ENOSPC", takes_room, start);
}

#[test]
fn a_new_shim_may_be_killed_or_refused_as_it_adopts_a_task() {
    any_adoption_meets_faults(&Host::new(), Marked::start);
}

#[test]
fn a_new_shim_may_be_killed_or_refused_as_it_adopts_a_sandbox() {
    any_adoption_meets_faults(&Host::new(), |host| {
        Marked::start_in(host, Some(host.sandbox().flag("--share-pid").flag("--pids=50").create()))
    });
}
