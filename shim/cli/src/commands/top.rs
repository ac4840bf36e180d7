//! `top`: shows the processes of tasks, the busiest first.

use std::cmp::Ordering;

use bowline_model::folder::StateDir;
use bowline_model::{Kind, Result};
use bowline_spec::id::TaskId;
use serde::Serialize;

use crate::input::args::TopArgs;
use crate::input::task_names;
use crate::readings::Reading;
use crate::sampling::Sampling;
use crate::ui::json;
use crate::ui::live_view::{As, watch};
use crate::ui::numbers;
use crate::ui::order::By;
use crate::ui::print::show;
use crate::ui::screen;
use crate::ui::table::{Cell, Column, render};

/// One process, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Row {
    pid: i32,
    task: TaskId,
    /// The number of the exec that the process belongs to, if any.
    exec: Option<u64>,
    cpu_percent: Option<f64>,
    rss_bytes: u64,
    cpu_usec: u64,
    threads: u64,
    name: String,
}

/// Runs `bowline top`: live on a terminal, else once.
pub async fn run(state: &StateDir, args: TopArgs) -> Result<u8> {
    let mut sampling = Sampling::begin(state, &args.ids).await?;
    if sampling.nothing {
        return Ok(sampling.code(0));
    }
    if !args.once && !args.json && screen::is_live() {
        let table = |readings: &[Reading], by, width| {
            let rows = rows(readings, by);
            table(&rows, totals(&rows), &state.ids().unwrap_or_default(), width)
        };
        let watched = watch(&mut sampling.sampler, args.interval.as_std(), As::Table(args.sort, &table)).await;
        return watched.map(|end| sampling.code(end));
    }
    // A task that has ended has no processes: its error is no failure.
    let readings = sampling.read(|error| error.kind() == Kind::Unavailable).await?;
    if readings.is_empty() && sampling.has_failed() {
        return Ok(sampling.code(0));
    }
    let rows = rows(&readings, args.sort);
    if args.json {
        json::print_list(&rows)?;
    } else {
        show(&table(&rows, None, &state.ids()?, screen::width()))?;
    }
    Ok(sampling.code(0))
}

/// Returns the processes in this order, then by the CPU time used so far.
fn rows(readings: &[Reading], by: By) -> Vec<Row> {
    let of_task = |reading: &Reading| {
        let row = |process: &bowline_executor::ProcessStats| Row {
            pid: process.pid,
            task: reading.id.clone(),
            exec: process.exec,
            cpu_percent: reading.process_cpu_percent.get(&process.pid).copied(),
            rss_bytes: process.rss_bytes,
            cpu_usec: process.user_usec + process.system_usec,
            threads: process.threads,
            name: process.name.clone(),
        };
        reading.stats.processes.iter().map(row).collect::<Vec<_>>()
    };
    let mut rows: Vec<Row> = readings.iter().flat_map(of_task).collect();
    rows.sort_by(|a, b| {
        let figures = |row: &Row| (row.cpu_percent, row.rss_bytes);
        let by_id = if by == By::Id { a.task.cmp(&b.task) } else { Ordering::Equal };
        by.compare(figures(a), figures(b)).then(by_id).then(b.cpu_usec.cmp(&a.cpu_usec)).then(a.pid.cmp(&b.pid))
    });
    rows
}

/// The line for all processes. Pages that several share are counted for each of them.
fn totals(rows: &[Row]) -> Option<Vec<Cell>> {
    let cpu = rows.iter().filter_map(|row| row.cpu_percent).sum();
    Some(vec![
        Cell::from(rows.len().to_string()),
        Cell::from("TOTAL"),
        Cell::from(""),
        Cell::from(numbers::percent(Some(cpu))),
        Cell::from(numbers::size(Some(rows.iter().map(|row| row.rss_bytes).sum()))),
        Cell::from(numbers::cpu_time(rows.iter().map(|row| row.cpu_usec).sum())),
        Cell::from(""),
    ])
}

/// Makes the table, with a last line for all rows. A shortened id must differ from all ids in `all`.
fn table(rows: &[Row], totals: Option<Vec<Cell>>, all: &[TaskId], width: Option<usize>) -> Vec<String> {
    const COLUMNS: [Column<'_>; 7] = [
        Column::Right("PID"),
        Column::Left("TASK"),
        Column::Right("EXEC"),
        Column::Right("CPU %"),
        Column::Right("RSS"),
        Column::Right("TIME+"),
        Column::Left("COMMAND"),
    ];
    let ids: Vec<TaskId> = rows.iter().map(|row| row.task.clone()).collect();
    let ids = task_names::shortened(&ids, all, width.map_or(usize::MAX, |width| width / 3));
    let cells = |(row, id): (&Row, String)| {
        vec![
            Cell::from(row.pid.to_string()),
            Cell::from(id),
            Cell::from(numbers::count(row.exec)),
            Cell::from(numbers::percent(row.cpu_percent)),
            Cell::from(numbers::size(Some(row.rss_bytes))),
            Cell::from(numbers::cpu_time(row.cpu_usec)),
            Cell::from(&row.name),
        ]
    };
    let cells: Vec<Vec<Cell>> = rows.iter().zip(ids).map(cells).chain(totals).collect();
    render(&COLUMNS, &cells, width)
}
