//! The account of the time: what each step of a launch, an exec and a stop
//! takes, for the duty floor and for bowline; and each call of containerd.
//!
//! ```text
//!   asks ─► trace ─► events ─► timeline ─► steps ─► tables
//! ```
//!
//! Tracing itself takes time, some tenths of a microsecond for each system
//! call: `docs/performance.md` has the tables beside times without it.

mod timeline;
mod trace;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use bowline_executor::{Doing, Kind, Result};

use crate::contenders::Contenders;
use crate::floor::Filter;
use crate::managed::Managers;
use crate::rounds::Rounds;
use crate::shim::Shims;
use crate::table::{BOWLINE, aligned};
use timeline::{Begins, Event, Round, Spent, Step};
use trace::Trace;

const CLONES: &[i64] = &[libc::SYS_clone, libc::SYS_clone3];
const EXECVES: &[i64] = &[libc::SYS_execve, libc::SYS_execveat];

const fn step(generation: usize, name: &'static str, begins: Begins) -> Step {
    Step { generation, name, begins }
}

const LAUNCH: [Step; 12] = [
    step(0, "shim: reads the request, plans, records", Begins::First),
    step(0, "shim: makes cgroups, writes limits", Begins::By(&[libc::SYS_mkdirat])),
    step(0, "shim: clones init", Begins::By(CLONES)),
    step(0, "shim: waits for init, records, answers", Begins::After(CLONES)),
    step(0, "shim: reaps, reports", Begins::By(&[libc::SYS_wait4])),
    step(0, "shim: removes cgroups", Begins::By(&[libc::SYS_unlinkat])),
    step(0, "shim: exits", Begins::By(&[libc::SYS_exit_group])),
    step(1, "init: descriptors, cgroups", Begins::First),
    step(1, "init: namespaces, mounts, devices", Begins::By(&[libc::SYS_unshare])),
    step(1, "init: new root", Begins::By(&[libc::SYS_pivot_root])),
    step(1, "init: gives up rights, loads the filter", Begins::By(&[libc::SYS_prctl])),
    step(1, "program: from execve until it has ended", Begins::By(EXECVES)),
];

const EXEC: [Step; 8] = [
    step(0, "shim: reads the request, plans", Begins::First),
    step(0, "shim: clones a worker", Begins::By(CLONES)),
    step(0, "shim: waits, answers", Begins::After(CLONES)),
    step(1, "worker: enters the task", Begins::First),
    step(1, "worker: clones the exec, exits", Begins::By(CLONES)),
    step(2, "exec: descriptors, cgroups", Begins::First),
    step(2, "exec: gives up rights, loads the filter", Begins::By(&[libc::SYS_prctl])),
    step(2, "program: from execve until it has ended", Begins::By(EXECVES)),
];

const STOP: [Step; 5] = [
    step(0, "shim: reads the request, kills", Begins::First),
    step(0, "shim: reaps, reports", Begins::By(&[libc::SYS_wait4])),
    step(0, "shim: removes cgroups", Begins::By(&[libc::SYS_unlinkat])),
    step(0, "shim: exits", Begins::By(&[libc::SYS_exit_group])),
    step(1, "program: is killed", Begins::There),
];

/// A task's creation through containerd, which executes the shim's `start`, whose child serves.
const CREATE: [Step; 4] = [
    step(0, "containerd", Begins::First),
    step(1, "the command `start`", Begins::First),
    step(2, "the shim that it leaves, until it has created the task", Begins::First),
    step(3, "init, until it waits for the start", Begins::First),
];

const DELETE: [Step; 2] = [step(0, "shell", Begins::First), step(0, "the command `delete`", Begins::By(EXECVES))];

const CALL: [Step; 2] = [step(0, "shim", Begins::First), step(1, "its children", Begins::First)];

/// The tables, as Markdown. Those of containerd are there if it is.
pub fn tables(rounds: &mut Rounds, on: &mut Contenders, managers: Option<Managers>, bin: &Path) -> Result<String> {
    let mut text = String::new();
    let duty = of_duty(rounds, on)?;
    let ours = of_bowline(rounds, on)?;
    let parts: [(&str, &[Step]); 3] = [("launch", &LAUNCH), ("exec", &EXEC), ("stop", &STOP)];
    for (((name, steps), duty), ours) in parts.into_iter().zip(duty).zip(ours) {
        text += &format!("### {name}\n\n{}\n", compared(steps, &duty, &ours));
    }
    if let Some(mut managers) = managers {
        text += &format!("### a create through containerd\n\n{}\n", of_creation(rounds, on.name(), &mut managers)?);
        let Spent { calls, processor, .. } = of_deletion(rounds, on.name(), bin)?;
        text += &format!("The command `delete`: {calls} system calls, {processor} µs of the processor.\n\n");
        text += &format!("### containerd's calls\n\n{}\n", of_containerd(rounds, on.name(), managers)?);
    }
    Ok(text)
}

/// Launches, execs and stops of the duty floor.
fn of_duty(rounds: &mut Rounds, on: &mut Contenders) -> Result<[Vec<Round>; 3]> {
    let trace = Trace::start(on.name())?;
    let floor = &mut on.duty;
    trace.follow(floor.pid())?;
    // The process that asks is theirs, and makes the one that is asked.
    let account = |events: Vec<Event>, steps: &[Step], pid: u32| {
        let deeper: Vec<Step> = steps.iter().map(|s| Step { generation: s.generation + 1, ..*s }).collect();
        timeline::rounds(&events, &[(pid as i32, 0)], &deeper)
    };
    let pid = floor.pid();
    // The first of them were there before they were followed.
    floor.launch(Filter::Loaded, false)?;
    rounds.each(|| trace.around(|| floor.launch(Filter::Loaded, false)))?;
    let launches = account(trace.take()?, &LAUNCH, pid);
    floor.hold()?;
    floor.exec()?;
    rounds.each(|| trace.around(|| floor.exec()))?;
    let execs = account(trace.take()?, &EXEC, pid);
    floor.stop()?;
    rounds.each(|| {
        floor.hold()?;
        trace.around(|| floor.stop())
    })?;
    Ok([launches, execs, account(trace.take()?, &STOP, pid)])
}

/// Launches, execs and stops of bowline.
fn of_bowline(rounds: &mut Rounds, on: &mut Contenders) -> Result<[Vec<Round>; 3]> {
    let trace = Trace::start(on.name())?;
    let (ends, sleeps) = (on.job(&["/bin/true"], "default")?, on.job(&["/bin/sleep", "1000000"], "default")?);
    let shims = &mut on.shims;
    let mut asked = Vec::new();
    let mut next = |shims: &mut Shims, trace: &Trace| {
        let pid = shims.next_pid()?;
        asked.push((pid as i32, 0));
        trace.follow(pid)
    };
    // The filter is compiled once, for all.
    shims.launch(&ends.description)?;
    rounds.each(|| {
        next(shims, &trace)?;
        trace.around(|| shims.launch(&ends.description))
    })?;
    let launches = trace.take()?;
    next(shims, &trace)?;
    let up = shims.hold(&sleeps.description)?;
    shims.exec(&up)?;
    rounds.each(|| trace.around(|| shims.exec(&up)))?;
    let execs = trace.take()?;
    shims.stop(&up)?;
    trace.take()?;
    rounds.each(|| {
        next(shims, &trace)?;
        let up = shims.hold(&sleeps.description)?;
        trace.around(|| shims.stop(&up))
    })?;
    let stops = trace.take()?;
    let account = |events: Vec<Event>, steps: &[Step]| timeline::rounds(&events, &asked, steps);
    Ok([account(launches, &LAUNCH), account(execs, &EXEC), account(stops, &STOP)])
}

/// A create, from containerd's own threads on.
fn of_creation(rounds: &mut Rounds, name: &str, managers: &mut Managers) -> Result<String> {
    let Some(daemon) = managers.at(BOWLINE) else { return Ok(String::new()) };
    let trace = Trace::start(name)?;
    // All that it needs have been made by then.
    let one = daemon.created()?;
    daemon.by_calls(one, |_, _| Ok(()))?;
    let threads = daemon.threads()?;
    threads.iter().try_for_each(|thread| trace.follow(*thread))?;
    let asked: Vec<(i32, usize)> = threads.iter().map(|thread| (*thread as i32, 0)).collect();
    rounds.each(|| {
        trace.begin()?;
        let one = daemon.created()?;
        trace.end()?;
        daemon.by_calls(one, |_, _| Ok(()))
    })?;
    let all = timeline::rounds(&trace.take()?, &asked, &CREATE);
    let mut lines = vec![words(["step", "system calls", "processor, µs"]), words(["---", "---:", "---:"])];
    for (number, step) in CREATE.iter().enumerate() {
        let Spent { calls, processor, .. } = middle(&all, number);
        lines.push(vec![step.name.to_owned(), calls.to_string(), processor.to_string()]);
    }
    let elapsed = median(all.iter().map(|round| round.elapsed)).to_string();
    lines.push(words(["from the request until the answer, µs", "", &elapsed]));
    Ok(aligned(&lines))
}

/// The command `delete`, which containerd runs once a shim has left.
fn of_deletion(rounds: &mut Rounds, name: &str, bin: &Path) -> Result<Spent> {
    let what = || "cannot run the shim's command `delete`";
    let bundle = tempfile::tempdir().doing(Kind::Internal, what)?;
    fs::write(bundle.path().join("config.json"), "{}").doing(Kind::Internal, what)?;
    let trace = Trace::start(name)?;
    let mut asked = Vec::new();
    rounds.each(|| {
        // Nobody can be followed before it is there: a shell waits until its input ends, and becomes the command.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read _; exec \"$@\"", "sh"]).arg(bin.join("containerd-shim-bowline-v1"));
        command
            .args(["-namespace", name, "-id", name, "-address", "/none", "-bundle"])
            .arg(bundle.path())
            .arg("delete");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().doing(Kind::Internal, what)?;
        asked.push((child.id() as i32, 0));
        trace.follow(child.id())?;
        trace.around(|| {
            drop(child.stdin.take());
            child.wait().doing(Kind::Internal, what)
        })
    })?;
    Ok(middle(&timeline::rounds(&trace.take()?, &asked, &DELETE), 1))
}

/// Each call of containerd's, by bowline's shim.
fn of_containerd(rounds: &mut Rounds, name: &str, mut managers: Managers) -> Result<String> {
    let trace = Trace::start(name)?;
    let Some(daemon) = managers.at(BOWLINE) else { return Ok(String::new()) };
    let mut asked = Vec::new();
    let mut calls: Vec<&str> = Vec::new();
    rounds.each(|| {
        let one = daemon.created()?;
        asked.push((one.shim() as i32, 0));
        trace.follow(one.shim())?;
        let mut names = Vec::new();
        daemon.by_calls(one, |name, begins| {
            if !begins {
                return trace.end();
            }
            names.push(name);
            trace.begin()
        })?;
        calls = names;
        Ok(())
    })?;
    let all = timeline::rounds(&trace.take()?, &asked, &CALL);
    let mut lines = vec![words(["call", "system calls", "processor, µs", "of its children", "until the answer, µs"])];
    lines.push(words(["---", "---:", "---:", "---:", "---:"]));
    for (number, name) in calls.iter().enumerate() {
        let of_call: Vec<Round> = all.iter().skip(number).step_by(calls.len()).cloned().collect();
        let [shim, children] = [0, 1].map(|step| middle(&of_call, step));
        let elapsed = median(of_call.iter().map(|round| round.elapsed));
        let figures = [shim.calls + children.calls, shim.processor, children.processor, elapsed];
        lines.push(std::iter::once((*name).to_owned()).chain(figures.map(|n| n.to_string())).collect());
    }
    Ok(aligned(&lines))
}

impl Trace {
    /// Does something as a round.
    fn around<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<()> {
        self.begin()?;
        act()?;
        self.end()
    }
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).into()
}

fn median(values: impl Iterator<Item = u64>) -> u64 {
    let mut sorted: Vec<u64> = values.collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

/// The medians of a step.
fn middle(rounds: &[Round], step: usize) -> Spent {
    let of = |figure: fn(&Spent) -> u64| median(rounds.iter().map(|round| figure(&round.steps[step])));
    Spent { calls: of(|s| s.calls), processor: of(|s| s.processor), waiting: of(|s| s.waiting) }
}

/// The steps of both, side by side, and their sums.
fn compared(steps: &[Step], duty: &[Round], ours: &[Round]) -> String {
    let heading =
        ["step", "duty: calls", "processor, µs", "waiting, µs", "bowline: calls", "processor, µs", "waiting, µs"];
    let mut lines = vec![words(heading), words(["---", "---:", "---:", "---:", "---:", "---:", "---:"])];
    for (number, step) in steps.iter().enumerate() {
        let figures = [duty, ours].map(|rounds| middle(rounds, number)).map(|s| [s.calls, s.processor, s.waiting]);
        lines.push(std::iter::once(step.name.to_owned()).chain(figures.concat().iter().map(u64::to_string)).collect());
    }
    let sums = [duty, ours].map(|rounds| {
        let sum = |figure: fn(&Spent) -> u64| median(rounds.iter().map(|r| r.steps.iter().map(figure).sum()));
        [sum(|s| s.calls).to_string(), sum(|s| s.processor).to_string(), String::new()]
    });
    lines.push(std::iter::once("all".to_owned()).chain(sums.concat()).collect());
    let elapsed = [duty, ours].map(|rounds| median(rounds.iter().map(|round| round.elapsed)).to_string());
    let [duty, ours] = elapsed.each_ref().map(String::as_str);
    lines.push(words(["from the request until all is done, µs", duty, "", "", ours, "", ""]));
    aligned(&lines)
}
