//! What is measured through Nomad's driver, group by group. `docs/bench.md` says what each row is.

use std::path::Path;
use std::time::Duration;

use bowline_model::{Doing, Kind, Result};

pub use crate::driver::Plugin;
use crate::driver::{Process, Sleeper};
use crate::memory::{self, kernel_number};
use crate::quiet;
use crate::rounds::{Gap, Rounds};
use crate::table::{BOWLINE, Figure, Row};

/// From the plugin's start until it says where it listens, of which the agent waits for three.
pub fn launch(rounds: &mut Rounds, bin: &Path, name: &str) -> Result<Vec<Row>> {
    let rows =
        rounds.measure(["nomad: plugin's launch to its handshake"], Gap::None, &mut (), ready, |(), column| {
            Ok([ours(column, || Process::launch(bin, name).map(|(_, took)| took))?])
        })?;
    Ok(rows.into())
}

/// A task that sleeps, from its start until it is destroyed.
pub fn tasks(rounds: &mut Rounds, on: &mut Plugin, gap: Gap) -> Result<Vec<Row>> {
    let names = ["StartTask", "StopTask by SIGKILL and WaitTask", "DestroyTask"].map(|call| name(call, gap));
    let rows = rounds.measure(names.each_ref().map(String::as_str), gap, on, ready, |on, column| {
        if column != BOWLINE {
            return Ok([None; 3]);
        }
        let (task, started) = on.start_task()?;
        let [ended, destroyed] = on.end_task(&task)?;
        Ok([started, ended, destroyed].map(Some))
    })?;
    Ok(rows.into())
}

/// Measures `ExecTask`, the call that a script check makes.
pub fn exec(rounds: &mut Rounds, on: &mut Plugin, gap: Gap) -> Result<Vec<Row>> {
    let (task, _) = on.start_task()?;
    let rows = rounds.measure([name("ExecTask", gap).as_str()], gap, on, ready, |on, column| {
        Ok([ours(column, || on.exec_in(&task))?])
    })?;
    on.end_task(&task)?;
    Ok(rows.into())
}

/// What plugin, shims and inits keep: of one task, and of `most`, started one right after the other and with gaps.
pub fn memory(rounds: &mut Rounds, on: &mut Plugin, most: usize, idle: Duration) -> Result<Vec<Figure>> {
    let (values, busy) = memory::measure(rounds, on, most, idle)?;
    let ours = |((name, unit), value)| Figure::of_bowline(name, unit, value, busy);
    let mut figures: Vec<Figure> = memory::names("nomad: ", most).into_iter().zip(values).map(ours).collect();
    for (count, gap) in [(1, Gap::None), (most, Gap::None), (most, Gap::Random)] {
        let ((plugin, own, tasks), busy) = quiet::watched(|| {
            let mut tasks = Vec::new();
            for _ in 0..count {
                rounds.go_on()?;
                rounds.pause(gap);
                tasks.push(on.start_task()?.0);
            }
            std::thread::sleep(memory::SETTLE);
            let plugin = memory::proportional(on.pid())?;
            Ok((plugin, tasks.iter().map(of_task).sum::<Result<f64>>()?, tasks))
        })?;
        let apart = if matches!(gap, Gap::None) { "" } else { ", started 60-100 ms apart" };
        let name = format!("nomad: plugin, PSS, with {count} tasks{apart}");
        figures.push(Figure::of_bowline(name, "KiB", plugin, busy));
        let name = format!("nomad: plugin, shim and init, PSS, a task of {count}{apart}");
        figures.push(Figure::of_bowline(name, "KiB", (plugin + own) / count as f64, busy));
        tasks.iter().try_for_each(|task| on.end_task(task).map(drop))?;
    }
    Ok(figures)
}

/// PSS of a task's shim and of its init, in KiB.
fn of_task(task: &Sleeper) -> Result<f64> {
    let shim = task.shim();
    let path = format!("/proc/{shim}/task/{shim}/children");
    let children = std::fs::read_to_string(&path).doing(Kind::Internal, || format!("cannot read {path}"))?;
    let mut sum = memory::proportional(shim)?;
    for child in children.split_whitespace() {
        let path = format!("/proc/{child}/smaps_rollup");
        // A worker of the shim may end meanwhile.
        if std::fs::read(&path).is_ok() {
            sum += kernel_number(&path, "Pss:")?;
        }
    }
    Ok(sum)
}

fn name(call: &str, gap: Gap) -> String {
    match gap {
        Gap::None => format!("nomad: {call}"),
        Gap::Random => format!("nomad: {call}, 60-100 ms apart"),
        Gap::Fixed => format!("nomad: {call}, 100 ms apart"),
    }
}

/// A sample of bowline's column.
fn ours(column: usize, measure: impl FnOnce() -> Result<Duration>) -> Result<Option<Duration>> {
    (column == BOWLINE).then(measure).transpose()
}

fn ready<T: ?Sized>(_: &mut T) -> Result<()> {
    Ok(())
}
