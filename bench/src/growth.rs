//! What grows with a task: its processes, those who wait for it, what it writes.

use std::time::Duration;

use bowline_model::{Error, Kind, Result};

use crate::contenders::Contenders;
use crate::groups::{self, Held};
use crate::memory::{self, SETTLE};
use crate::open_files;
use crate::quiet;
use crate::rounds::{Gap, Rounds};
use crate::shim::Call;
use crate::table::{BOWLINE, Figure, Row};

/// Starts as many that sleep as its first argument says.
const CROWD: &str = "i=1; while [ $i -lt $0 ]; do sleep 1000000 & i=$((i+1)); done; exec sleep 1000000";
/// Writes 200 MiB, in lines of 64 bytes. Not by `head`, which takes longer for it than anybody who reads it.
const LINES: &str = "busybox yes 012345678901234567890123456789012345678901234567890123456789012 | \
                     busybox dd bs=64k count=3200 iflag=fullblock 2> /dev/null";

/// What is asked of a task with so many processes.
pub fn crowd(rounds: &mut Rounds, on: &mut Contenders, count: usize) -> Result<Vec<Row>> {
    let job = on.job_of(count + 100, &["/bin/busybox", "sh", "-c", CROWD, count.to_string().leak()])?;
    let held = Held::of(on, "crowd", &job)?;
    let all = count * held.count();
    wait_for_sleepers(rounds, all)?;
    let mut rows = Vec::new();
    let name = format!("exec, processes in the task: {count}");
    rows.extend(rounds.measure(
        [name.as_str()],
        Gap::None,
        on,
        |_| Ok(()),
        |on, column| match column {
            BOWLINE => Ok([Some(on.shims.exec(held.up())?)]),
            _ => Ok([held.exec(on, column)?]),
        },
    )?);
    for call in [Call::Processes, Call::Stats] {
        let name = format!("{}, processes in the task: {count}", call.name());
        rows.extend(rounds.measure(
            [name.as_str()],
            Gap::None,
            on,
            |_| Ok(()),
            |on, column| Ok([held.call(on, column, call)?]),
        )?);
    }
    held.end(on)?;
    Ok(rows)
}

/// Until so many processes of tasks sleep.
fn wait_for_sleepers(rounds: &Rounds, count: usize) -> Result<()> {
    let sleeps = |entry: &std::fs::DirEntry| {
        std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| line.starts_with(b"sleep\x001000000\0"))
    };
    for _ in 0..600 {
        rounds.go_on()?;
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        if processes.filter(|entry| sleeps(entry)).count() >= count {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(Error::new(Kind::Timeout, format!("{count} processes have not started within a minute")))
}

/// What the shim keeps while so many wait for one task, and when the last of them knows its end.
pub fn waiters(on: &mut Contenders, count: usize) -> Result<Vec<Figure>> {
    open_files::raise()?;
    let job = groups::sleeper(on)?;
    let up = on.shims.hold(&job.description)?;
    std::thread::sleep(SETTLE);
    let ((each, known), busy) = quiet::watched(|| {
        let before = memory::private(up.pid())?;
        let waiting = on.shims.wait_often(&up, count)?;
        std::thread::sleep(SETTLE);
        let each = (memory::private(up.pid())? - before) / count as f64;
        Ok((each, on.shims.end_of(&up, waiting)?))
    })?;
    let figure =
        |what: &str, value, unit| Figure::of_bowline(format!("{count} wait for a task: {what}"), unit, value, busy);
    Ok(vec![
        figure("private memory of its shim, each", each, "KiB"),
        figure("from the kill until the last knows", known.as_secs_f64() * 1e3, "ms"),
    ])
}

/// Output that is kept: how long a task takes that writes 200 MiB.
pub fn log(rounds: &mut Rounds, on: &mut Contenders) -> Result<Vec<Row>> {
    let job = on.job(&["/bin/busybox", "sh", "-c", LINES], "default")?;
    let rows = rounds.measure(
        ["200 MB of lines to the log: exit known"],
        Gap::None,
        on,
        |_| Ok(()),
        |on, column| match column {
            BOWLINE => Ok([Some(on.shims.launch(&job.description)?[0])]),
            _ => Ok([None]),
        },
    )?;
    Ok(rows.into())
}
