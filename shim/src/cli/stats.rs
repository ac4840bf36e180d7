//! `stats`: two readings, and what they tell together.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_executor::{Doing, Kind, Pressure, Result, StateDir, Stats};
use bowline_spec::id::TaskId;
use serde::Serialize;

use super::{control, say, say_json};
use crate::client::Shim;

/// How far two readings are apart: a shim counts, whoever asks makes rates of it.
const APART: Duration = Duration::from_millis(250);

/// The second reading under the task's id, with what has changed since the first.
#[derive(Debug, Serialize)]
struct Answer {
    id: TaskId,
    /// CPU time between the readings, in percent of one CPU.
    cpu_percent: Option<f64>,
    /// The same by process; those that came in between are left out.
    process_cpu_percent: BTreeMap<i32, f64>,
    #[serde(flatten)]
    stats: Stats,
}

/// `bowline stats`.
pub async fn run(state: &StateDir, id: &TaskId, json: bool) -> Result<u8> {
    let shim = control::live(state, id).await?;
    let first = read(&shim).await?;
    tokio::time::sleep(APART).await;
    let answer = compare(id, &first, read(&shim).await?);
    if json {
        say_json(&answer)?
    } else {
        print(&answer)?
    }
    Ok(0)
}

async fn read(shim: &Shim) -> Result<Stats> {
    serde_json::from_str(&shim.stats().await?).doing(Kind::Internal, || "the shim's statistics are damaged")
}

fn compare(id: &TaskId, first: &Stats, stats: Stats) -> Answer {
    let elapsed = stats.read_at.duration_since(first.read_at).as_secs_f64();
    let percent = |before: u64, after: u64| {
        let used = after.saturating_sub(before) as f64 / 1e6;
        // To a tenth: a reading is no more exact than that.
        (elapsed > 0.0).then(|| (used / elapsed * 1000.0).round() / 10.0)
    };
    let cpu_percent = match (first.cpu.usage_usec, stats.cpu.usage_usec) {
        (Some(before), Some(after)) => percent(before, after),
        _ => None,
    };
    let by_process = stats.processes.iter().filter_map(|after| {
        let before = first.processes.iter().find(|before| before.pid == after.pid)?;
        Some((after.pid, percent(before.user_usec + before.system_usec, after.user_usec + after.system_usec)?))
    });
    Answer { id: id.clone(), cpu_percent, process_cpu_percent: by_process.collect(), stats }
}

fn print(answer: &Answer) -> Result<()> {
    let Stats { cpu, memory, pids, io, hugepages, processes, .. } = &answer.stats;
    say(&format!(
        "cpu       {} ({} in all: user {}, system {}), throttled {}{}",
        percent(answer.cpu_percent),
        ms(cpu.usage_usec),
        ms(cpu.user_usec),
        ms(cpu.system_usec),
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
    say("     PID    CPU         RSS  NAME")?;
    for process in processes {
        let cpu = percent(answer.process_cpu_percent.get(&process.pid).copied());
        let name: String = process.name.chars().filter(|c| !c.is_control()).collect();
        say(&format!("{:>8} {cpu:>6} {:>11}  {name}", process.pid, mib(Some(process.rss_bytes))))?;
    }
    Ok(())
}

fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".to_owned())
}

fn percent(value: Option<f64>) -> String {
    or_dash(value.map(|value| format!("{value:.1}%")))
}

fn ms(usec: Option<u64>) -> String {
    or_dash(usec.map(|usec| format!("{:.1} ms", usec as f64 / 1000.0)))
}

fn mib(bytes: Option<u64>) -> String {
    or_dash(bytes.map(|bytes| format!("{:.1} MiB", bytes as f64 / 1048576.0)))
}

fn count(n: Option<u64>) -> String {
    or_dash(n.map(|n| n.to_string()))
}

fn waited(pressure: Option<&Pressure>) -> String {
    let some = pressure.and_then(|pressure| pressure.some.as_ref());
    some.map_or_else(String::new, |some| format!(", waited {}", ms(Some(some.total_usec))))
}
