//! `stats`: prints what tasks use: all figures of one task, or one line for each of several.

use std::time::Duration;

use bowline_model::folder::StateDir;
use bowline_model::stats::{Cpu, IoDevice as IoDeviceStats, Pressure, Stats};
use bowline_model::{Error, Kind, Result};
use bowline_spec::id::TaskId;

use crate::input::args::StatsArgs;
use crate::input::task_names;
use crate::readings;
use crate::readings::Reading;
use crate::sampling::Sampling;
use crate::ui::json;
use crate::ui::live_view::{As, watch};
use crate::ui::numbers::{count, or_dash, percent, size};
use crate::ui::order::By;
use crate::ui::plot;
use crate::ui::print::{say, show};
use crate::ui::record;
use crate::ui::screen;
use crate::ui::table::{Cell, Column, clean, render};
use bowline_client::Shim;

/// The default time between two readings.
const INTERVAL: Duration = Duration::from_secs(2);

pub async fn run(state: &StateDir, args: StatsArgs) -> Result<u8> {
    match (&args.record, &args.plot, &args.from) {
        (Some(file), ..) => return record::run(state, file, &args).await,
        (None, Some(picture), Some(recording)) => return plot::run(recording, picture),
        (None, Some(_), None) => {
            let hint = "with `--record FILE ID` what is recorded is drawn, with `--from FILE` what was";
            return Err(Error::new(Kind::Usage, "--plot needs something to draw").hint(hint));
        }
        (None, None, _) => {}
    }
    let mut sampling = Sampling::begin(state, &args.ids).await?;
    if sampling.nothing {
        return Ok(sampling.code(0));
    }
    if args.watch {
        let table = |readings: &[Reading], by, width| {
            table(readings, by, Some(totals(readings)), &state.ids().unwrap_or_default(), width)
        };
        let view = if args.json { As::JsonLines } else { As::Table(args.sort.unwrap_or(By::Cpu), &table) };
        let interval = args.interval.map_or(INTERVAL, |interval| interval.as_std());
        return watch(&mut sampling.sampler, interval, view).await.map(|end| sampling.code(end));
    }
    let readings = sampling.read(|_| true).await?;
    match (&args.ids[..], args.json) {
        ([_], true) => readings.iter().try_for_each(json::print)?,
        ([_], false) => readings.iter().try_for_each(print)?,
        (_, true) => json::print_list(&readings)?,
        (_, false) => show(&table(&readings, args.sort.unwrap_or(By::Id), None, &state.ids()?, screen::width()))?,
    }
    Ok(sampling.code(0))
}

/// Runs `bowline sandbox stats`: prints one reading of the sandbox.
pub async fn of_sandbox(id: &TaskId, shim: &Shim, json: bool) -> Result<u8> {
    let reading = readings::of_sandbox(id, shim).await?;
    if json { json::print(&reading) } else { print(&reading) }?;
    Ok(0)
}

/// The line for all tasks.
fn totals(readings: &[Reading]) -> Vec<Cell> {
    let sum = |figure: fn(&Reading) -> Option<u64>| readings.iter().filter_map(figure).reduce(|a, b| a + b);
    let cpu = readings.iter().filter_map(|reading| reading.cpu_percent).reduce(|a, b| a + b);
    vec![
        Cell::from(format!("TOTAL {}", readings.len())),
        Cell::from(percent(cpu)),
        Cell::from(size(sum(|reading| reading.stats.memory.usage_bytes))),
        Cell::from(""),
        Cell::from(count(sum(|reading| reading.stats.pids.current))),
        Cell::from(format!("{} / {}", size(sum(|reading| io(reading).0)), size(sum(|reading| io(reading).1)))),
    ]
}

/// Bytes read and written by a task.
fn io(reading: &Reading) -> (Option<u64>, Option<u64>) {
    let devices = reading.stats.io.devices.as_ref();
    let sum = |bytes: fn(&IoDeviceStats) -> u64| devices.map(|all| all.iter().map(bytes).sum());
    (sum(|device| device.read_bytes), sum(|device| device.write_bytes))
}

/// Makes a table with a line for each reading, and a last one for all of them. A shortened id must differ from all ids in
/// `all`.
fn table(readings: &[Reading], by: By, totals: Option<Vec<Cell>>, all: &[TaskId], width: Option<usize>) -> Vec<String> {
    const COLUMNS: [Column<'_>; 6] = [
        Column::Left("ID"),
        Column::Right("CPU %"),
        Column::Right("MEM USAGE / LIMIT"),
        Column::Right("MEM %"),
        Column::Right("PIDS"),
        Column::Right("IO READ / WRITE"),
    ];
    let figures = |reading: &Reading| (reading.cpu_percent, reading.stats.memory.usage_bytes.unwrap_or(0));
    let mut readings: Vec<&Reading> = readings.iter().collect();
    // They come in the order of ids.
    readings.sort_by(|a, b| by.compare(figures(a), figures(b)));
    let ids: Vec<TaskId> = readings.iter().map(|reading| reading.id.clone()).collect();
    let ids = task_names::shortened(&ids, all, width.map_or(usize::MAX, |width| width / 4));
    let cells = |(reading, id): (&&Reading, String)| {
        let Stats { memory, pids, .. } = &reading.stats;
        let share = memory.usage_bytes.zip(memory.limit_bytes).filter(|(_, limit)| *limit > 0);
        let (read, written) = io(reading);
        vec![
            Cell::from(id),
            Cell::from(percent(reading.cpu_percent)),
            Cell::from(format!("{} / {}", size(memory.usage_bytes), size(memory.limit_bytes))),
            Cell::from(percent(share.map(|(usage, limit)| usage as f64 / limit as f64 * 100.0))),
            Cell::from(count(pids.current)),
            Cell::from(format!("{} / {}", size(read), size(written))),
        ]
    };
    let cells: Vec<Vec<Cell>> = readings.iter().zip(ids).map(cells).chain(totals).collect();
    render(&COLUMNS, &cells, width)
}

/// Prints all figures of one task.
fn print(answer: &Reading) -> Result<()> {
    let Stats { cpu, memory, pids, io, hugepages, processes, .. } = &answer.stats;
    let (user, system) = split(cpu).unzip();
    say(&format!(
        "cpu       {} ({} in all: user {}, system {}), throttled {}{}",
        percent(answer.cpu_percent),
        ms(cpu.usage_usec),
        ms(user),
        ms(system),
        ms(cpu.throttled_usec),
        waited(cpu.pressure.as_ref())
    ))?;
    say(&format!(
        "memory    {}, peak {}, limit {}: anon {}, cache {}, kernel {}, swap {}; OOM kills {}{}",
        mib(memory.usage_bytes),
        mib(memory.peak_bytes),
        mib(memory.limit_bytes),
        mib(memory.anon_bytes),
        mib(memory.cache_bytes),
        mib(memory.kernel_bytes),
        mib(memory.swap_bytes),
        count(memory.oom_kills),
        waited(memory.pressure.as_ref())
    ))?;
    say(&format!("pids      {}, limit {}", count(pids.current), count(pids.limit)))?;
    for device in io.devices.iter().flatten() {
        say(&format!(
            "io        {}: read {} in {}, written {} in {}",
            device.device,
            mib(Some(device.read_bytes)),
            device.reads,
            mib(Some(device.write_bytes)),
            device.writes
        ))?;
    }
    for (size, pages) in hugepages.iter().filter(|(_, pages)| pages.usage_bytes > Some(0)) {
        say(&format!("hugepages {size}: {}, limit {}", mib(pages.usage_bytes), mib(pages.limit_bytes)))?;
    }
    if !processes.is_empty() {
        say("     PID    CPU         RSS  NAME")?;
    }
    for process in processes {
        let cpu = percent(answer.process_cpu_percent.get(&process.pid).copied());
        let name = clean(&process.name);
        say(&format!("{:>8} {cpu:>6} {:>11}  {name}", process.pid, mib(Some(process.rss_bytes))))?;
    }
    Ok(())
}

/// The CPU time in programs and in the kernel. v1 samples both, beside the time that it measures: as v2 does, their
/// shares of that are told; of a task that no sample has met, nothing is known of them.
fn split(cpu: &Cpu) -> Option<(u64, u64)> {
    let (all, user, system) = (cpu.usage_usec?, cpu.user_usec?, cpu.system_usec?);
    let of = u128::from(user) + u128::from(system);
    let user = (u128::from(all) * u128::from(user)).checked_div(of)?;
    let user = u64::try_from(user).unwrap_or(all);
    Some((user, all - user))
}

fn ms(usec: Option<u64>) -> String {
    or_dash(usec.map(|usec| format!("{:.1} ms", usec as f64 / 1000.0)))
}

fn mib(bytes: Option<u64>) -> String {
    or_dash(bytes.map(|bytes| format!("{:.1} MiB", bytes as f64 / 1048576.0)))
}

fn waited(pressure: Option<&Pressure>) -> String {
    let some = pressure.and_then(|pressure| pressure.some.as_ref());
    some.map_or_else(String::new, |some| format!(", waited {}", ms(Some(some.total_usec))))
}
