//! The account of the time: what each step of a launch, an exec and a stop
//! takes, for the duty floor and for bowline; and each call of containerd, for
//! its floor and for bowline's shim.
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
use std::time::Duration;

use bowline_model::{Doing, Kind, Result};

use crate::containerd::Daemon;
use crate::contenders::{Contenders, FLOOR_SHIM};
use crate::floor::Filter;
use crate::managed::Managers;
use crate::rounds::Rounds;
use crate::say::say;
use crate::shim::Shims;
use crate::table::{BOWLINE, FLOOR, aligned, rule};
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

const DELETE: [Step; 2] =
    [step(0, "the shell that executes it", Begins::First), step(0, "the command `delete`", Begins::By(EXECVES))];

const CALL: [Step; 2] = [step(0, "shim", Begins::First), step(1, "its children", Begins::First)];

/// What containerd asks of one shim.
struct Managed {
    creates: Vec<Round>,
    deletes: Vec<Round>,
    /// By the name of the call.
    calls: Vec<(&'static str, Vec<Round>)>,
}

/// The tables, as Markdown. Those of containerd are there if it is.
pub fn tables(rounds: &mut Rounds, on: &mut Contenders, managers: Option<Managers>, bin: &Path) -> Result<String> {
    let mut text = String::new();
    say("measuring the account: the duty floor");
    let duty = of_duty(rounds, on)?;
    say("measuring the account: bowline");
    let ours = of_bowline(rounds, on)?;
    let parts: [(&str, &[Step]); 3] = [("launch", &LAUNCH), ("exec", &EXEC), ("stop", &STOP)];
    for (((name, steps), duty), ours) in parts.into_iter().zip(duty).zip(ours) {
        text += &format!("### {name}\n\n{}\n", compared(steps, "duty", &duty, &ours));
    }
    text += &format!("### a page fault\n\n{}\n", of_faults(on.duty.faults()?));
    let Some(mut managers) = managers else { return Ok(text) };
    say("measuring the account: containerd");
    let mut managed = |column: usize, shim: &str| {
        managers.at(column).map(|daemon| of_managed(rounds, on.name(), daemon, &bin.join(shim))).transpose()
    };
    let both = managed(FLOOR, FLOOR_SHIM)?.zip(managed(BOWLINE, "containerd-shim-bowline-v1")?);
    let Some((floor, ours)) = both else { return Ok(text) };
    let creates = compared(&CREATE, "floor", &floor.creates, &ours.creates);
    text += &format!("### a create through containerd\n\n{creates}\n");
    let deletes = compared(&DELETE, "floor", &floor.deletes, &ours.deletes);
    text += &format!("### the command `delete`\n\n{deletes}\n");
    text += &format!("### containerd's calls\n\n{}\n", by_call(&floor.calls, &ours.calls));
    Ok(text)
}

/// What a page fault takes, by its kind, without tracing.
fn of_faults(faults: [Duration; 3]) -> String {
    let kinds = ["in a file that is cached, for 64 KiB of it", "in new memory", "in memory that a child shares"];
    let heading = ["a page fault", "ns"].map(str::to_owned).to_vec();
    let lines = kinds.iter().zip(faults).map(|(kind, took)| vec![(*kind).to_owned(), took.as_nanos().to_string()]);
    let lines: Vec<Vec<String>> = [heading, rule(2)].into_iter().chain(lines).collect();
    aligned(&lines)
}

/// What containerd asks of its shim, whose program is `shim`.
fn of_managed(rounds: &mut Rounds, name: &str, daemon: &mut Daemon, shim: &Path) -> Result<Managed> {
    Ok(Managed {
        creates: of_creation(rounds, name, daemon)?,
        deletes: of_deletion(rounds, name, shim)?,
        calls: of_calls(rounds, name, daemon)?,
    })
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

/// Creates, from containerd's own threads on.
fn of_creation(rounds: &mut Rounds, name: &str, daemon: &mut Daemon) -> Result<Vec<Round>> {
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
    Ok(timeline::rounds(&trace.take()?, &asked, &CREATE))
}

/// The command `delete`, which containerd runs once a shim has left.
fn of_deletion(rounds: &mut Rounds, name: &str, shim: &Path) -> Result<Vec<Round>> {
    let what = || "cannot run the shim's command `delete`";
    let bundle = tempfile::tempdir().doing(Kind::Internal, what)?;
    fs::write(bundle.path().join("config.json"), "{}").doing(Kind::Internal, what)?;
    let trace = Trace::start(name)?;
    let mut asked = Vec::new();
    rounds.each(|| {
        // Nobody can be followed before it is there: a shell waits until its input ends, and becomes the command.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read _; exec \"$@\"", "sh"]).arg(shim).env("TTRPC_ADDRESS", "/none");
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
    Ok(timeline::rounds(&trace.take()?, &asked, &DELETE))
}

/// Each call of containerd's, by its shim.
fn of_calls(rounds: &mut Rounds, name: &str, daemon: &mut Daemon) -> Result<Vec<(&'static str, Vec<Round>)>> {
    let trace = Trace::start(name)?;
    let mut asked = Vec::new();
    let mut calls = Vec::new();
    rounds.each(|| {
        let one = daemon.created()?;
        asked.push((one.shim() as i32, 0));
        trace.follow(one.shim())?;
        calls.clear();
        daemon.by_calls(one, |name, begins| {
            if !begins {
                return trace.end();
            }
            calls.push(name);
            trace.begin()
        })
    })?;
    let all = timeline::rounds(&trace.take()?, &asked, &CALL);
    let of_call = |number: usize| all.iter().skip(number).step_by(calls.len()).cloned().collect();
    Ok(calls.iter().enumerate().map(|(number, name)| (*name, of_call(number))).collect())
}

/// Each call, of the floor and of bowline. The floor's shim has no children.
fn by_call(floor: &[(&str, Vec<Round>)], ours: &[(&str, Vec<Round>)]) -> String {
    let of_floor = ["call", "floor: calls", "processor, µs", "waiting, µs", "until the answer, µs"];
    let of_ours =
        ["bowline: calls", "faults", "processor, µs", "of its children", "waiting, µs", "until the answer, µs"];
    let heading: Vec<String> = of_floor.into_iter().chain(of_ours).map(str::to_owned).collect();
    let mut lines = vec![rule(heading.len())];
    lines.insert(0, heading);
    let elapsed = |rounds: &[Round]| median(rounds.iter().map(|round| round.elapsed));
    for ((name, floor), (_, ours)) in floor.iter().zip(ours) {
        let [below, shim, children] = [middle(floor, 0), middle(ours, 0), middle(ours, 1)];
        let figures: [&[u64]; 3] = [
            &[below.calls, below.processor, below.waiting, elapsed(floor)],
            &[shim.calls + children.calls, shim.faults + children.faults, shim.processor, children.processor],
            &[shim.waiting, elapsed(ours)],
        ];
        lines.push(std::iter::once((*name).to_owned()).chain(figures.concat().iter().map(u64::to_string)).collect());
    }
    aligned(&lines)
}

impl Trace {
    /// Does something as a round.
    fn around<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<()> {
        self.begin()?;
        act()?;
        self.end()
    }
}

fn median(values: impl Iterator<Item = u64>) -> u64 {
    let mut sorted: Vec<u64> = values.collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

/// The medians of a step.
fn middle(rounds: &[Round], step: usize) -> Spent {
    let of = |figure: fn(&Spent) -> u64| median(rounds.iter().map(|round| figure(&round.steps[step])));
    Spent {
        calls: of(|s| s.calls),
        faults: of(|s| s.faults),
        processor: of(|s| s.processor),
        waiting: of(|s| s.waiting),
    }
}

/// The steps of bowline and of the floor with this name, side by side, and their sums.
fn compared(steps: &[Step], floor: &str, below: &[Round], ours: &[Round]) -> String {
    let line = |name: &str, cells: [[String; 4]; 2]| -> Vec<String> {
        std::iter::once(name.to_owned()).chain(cells.concat()).collect()
    };
    let of =
        |who: &str| [format!("{who}: calls").as_str(), "faults", "processor, µs", "waiting, µs"].map(str::to_owned);
    let mut lines = vec![line("step", [of(floor), of("bowline")]), rule(9)];
    let both = [below, ours];
    let elapsed = both.map(|rounds| median(rounds.iter().map(|round| round.elapsed)));
    for (number, step) in steps.iter().enumerate() {
        let cells = |who: usize| {
            let Spent { calls, faults, processor, waiting } = middle(both[who], number);
            // Threads that wait beside each other, as containerd's do, have waited longer than there was time.
            let waiting = if waiting > elapsed[who] { String::new() } else { waiting.to_string() };
            [calls.to_string(), faults.to_string(), processor.to_string(), waiting]
        };
        lines.push(line(step.name, [cells(0), cells(1)]));
    }
    let sums = both.map(|rounds| {
        let sum = |figure: fn(&Spent) -> u64| median(rounds.iter().map(|r| r.steps.iter().map(figure).sum()));
        [sum(|s| s.calls).to_string(), sum(|s| s.faults).to_string(), sum(|s| s.processor).to_string(), String::new()]
    });
    lines.push(line("all", sums));
    let elapsed = elapsed.map(|time| [time.to_string(), String::new(), String::new(), String::new()]);
    lines.push(line("from the request until all is done, µs", elapsed));
    aligned(&lines)
}
