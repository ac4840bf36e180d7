//! What a task uses, as Nomad counts it: percent and MHz from two readings of counters.

use std::collections::BTreeMap;

use bowline_client::Stats;
use bowline_model::stats::{Memory as MemoryStats, Process as ProcessStats};
use prost_types::Timestamp;

use crate::proto::driver::cpu_usage::Fields as CpuField;
use crate::proto::driver::memory_usage::Fields as MemoryField;
use crate::proto::driver::{CpuUsage, MemoryUsage, TaskResourceUsage, TaskStats};
use crate::settings::Topology;

/// Makes Nomad's readings of the shim's.
#[derive(Debug)]
pub struct Readings {
    id: String,
    node: Topology,
    /// When the task was started, in seconds since 1970: what the first reading is compared with.
    started: Option<f64>,
    last: Option<Stats>,
}

/// CPU time in µs: in the kernel, in programs, all of it.
type Times = [Option<u64>; 3];

impl Readings {
    pub fn new(id: &str, node: Topology, started: Option<jiff::Timestamp>) -> Readings {
        Readings { id: id.to_owned(), node, started: started.map(seconds), last: None }
    }

    /// The next reading, with rates since the one before; of the first, since the start.
    pub fn next(&mut self, stats: Stats) -> TaskStats {
        let now = seconds(stats.read_at);
        let since = self.last.as_ref().map(|last| seconds(last.read_at)).or(self.started);
        let elapsed = since.map_or(0.0, |since| now - since);
        let times = |stats: &Stats| [stats.cpu.system_usec, stats.cpu.user_usec, stats.cpu.usage_usec];
        let before = self.last.as_ref().map_or([Some(0); 3], times);
        let mut cpu = self.cpu(before, times(&stats), elapsed);
        let throttled = [stats.cpu.throttled_periods, stats.cpu.throttled_usec];
        cpu.throttled_periods = throttled[0].unwrap_or(0);
        cpu.throttled_time = throttled[1].unwrap_or(0).saturating_mul(1000);
        let fields = [CpuField::ThrottledPeriods, CpuField::ThrottledTime];
        cpu.measured_fields.extend(measured(throttled.into_iter().zip(fields)));
        let all = TaskResourceUsage { cpu: Some(cpu), memory: Some(memory(&stats.memory)) };
        let by_pid = stats.processes.iter().map(|process| (process.pid.to_string(), self.process(process, elapsed)));
        let resource_usage_by_pid: BTreeMap<_, _> = by_pid.collect();
        let timestamp = Some(timestamp(stats.read_at));
        self.last = Some(stats);
        TaskStats { id: self.id.clone(), timestamp, agg_resource_usage: Some(all), resource_usage_by_pid }
    }

    fn process(&self, process: &ProcessStats, elapsed: f64) -> TaskResourceUsage {
        let times = |process: &ProcessStats| {
            let (system, user) = (process.system_usec, process.user_usec);
            [Some(system), Some(user), Some(system + user)]
        };
        let last = self.last.as_ref();
        let before = last.map(|last| last.processes.iter().find(|before| before.pid == process.pid).map(times));
        let cpu = match before {
            // The process is newer than the last reading: how long it has run is not known.
            Some(None) => CpuUsage::default(),
            Some(Some(before)) => self.cpu(before, times(process), elapsed),
            None => self.cpu([Some(0); 3], times(process), elapsed),
        };
        let memory = MemoryUsage {
            rss: process.rss_bytes,
            measured_fields: vec![MemoryField::Rss.into()],
            ..MemoryUsage::default()
        };
        TaskResourceUsage { cpu: Some(cpu), memory: Some(memory) }
    }

    fn cpu(&self, before: Times, after: Times, elapsed: f64) -> CpuUsage {
        let percent = |index: usize| {
            let used = after[index]?.saturating_sub(before[index].unwrap_or(0)) as f64 / 1e6;
            (elapsed > 0.0).then(|| used / elapsed * 100.0)
        };
        let [system, user, all] = [percent(0), percent(1), percent(2)];
        // Of one core, whose speed is the mean of all.
        let ticks = all.filter(|_| self.node.total_mhz > 0);
        let ticks =
            ticks.map(|percent| percent / 100.0 * self.node.total_mhz as f64 / f64::from(self.node.cores.max(1)));
        let fields = [CpuField::SystemMode, CpuField::UserMode, CpuField::TotalTicks, CpuField::Percent];
        CpuUsage {
            system_mode: system.unwrap_or(0.0),
            user_mode: user.unwrap_or(0.0),
            total_ticks: ticks.unwrap_or(0.0),
            percent: all.unwrap_or(0.0),
            measured_fields: measured([system, user, ticks, all].into_iter().zip(fields)),
            ..CpuUsage::default()
        }
    }
}

fn memory(memory: &MemoryStats) -> MemoryUsage {
    let kernel_peak = memory.accounts.get("kernel").and_then(|kernel| kernel.peak_bytes);
    let figures = [
        (memory.anon_bytes, MemoryField::Rss),
        (memory.cache_bytes, MemoryField::Cache),
        (memory.peak_bytes, MemoryField::MaxUsage),
        (memory.kernel_bytes, MemoryField::KernelUsage),
        (kernel_peak, MemoryField::KernelMaxUsage),
        (memory.usage_bytes, MemoryField::Usage),
        (memory.swap_bytes, MemoryField::Swap),
    ];
    let [rss, cache, max_usage, kernel_usage, kernel_max_usage, usage, swap] =
        figures.map(|(figure, _)| figure.unwrap_or(0));
    let measured_fields = measured(figures);
    MemoryUsage { rss, cache, max_usage, kernel_usage, kernel_max_usage, usage, swap, measured_fields }
}

/// The fields whose figure this host has.
fn measured<T, F: Into<i32>>(figures: impl IntoIterator<Item = (Option<T>, F)>) -> Vec<i32> {
    figures.into_iter().filter_map(|(figure, field)| figure.map(|_| field.into())).collect()
}

fn seconds(time: jiff::Timestamp) -> f64 {
    time.as_microsecond() as f64 / 1e6
}

/// A moment as protobuf has it.
pub fn timestamp(time: jiff::Timestamp) -> Timestamp {
    // Protobuf counts nanoseconds forward, jiff towards the epoch.
    let nanos = i64::from(time.subsec_nanosecond());
    let (seconds, nanos) =
        if nanos < 0 { (time.as_second() - 1, nanos + 1_000_000_000) } else { (time.as_second(), nanos) };
    Timestamp { seconds, nanos: i32::try_from(nanos).unwrap_or(0) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    const NODE: Topology = Topology { cores: 2, total_mhz: 6000 };

    fn reading(at: &str, usage: u64, pids: &[(i32, u64)]) -> Stats {
        let process = |(pid, usec): &(i32, u64)| json!({"pid": pid, "exec": null, "name": "x", "threads": 1, "user_usec": usec, "system_usec": 0, "rss_bytes": 4096});
        serde_json::from_value(json!({
            "read_at": at,
            "measured": [],
            "cpu": {"usage_usec": usage, "user_usec": usage / 2, "system_usec": usage / 2, "throttled_usec": 7, "throttled_periods": 3},
            "memory": {"anon_bytes": 10, "usage_bytes": 30, "swap_bytes": null, "events": {}},
            "pids": {}, "io": {}, "hugepages": {},
            "processes": pids.iter().map(process).collect::<Vec<_>>(),
        }))
        .unwrap()
    }

    #[test]
    fn rates_are_of_the_time_between_two_readings() {
        let mut readings = Readings::new("a/web/1", NODE, Some("2026-05-01T12:00:00Z".parse().unwrap()));
        let first = readings.next(reading("2026-05-01T12:00:10Z", 1_000_000, &[(7, 1_000_000)]));
        let cpu = first.agg_resource_usage.unwrap().cpu.unwrap();
        assert_eq!((cpu.percent, cpu.user_mode, cpu.total_ticks), (10.0, 5.0, 300.0));
        assert_eq!((cpu.throttled_periods, cpu.throttled_time, cpu.measured_fields.len()), (3, 7000, 6));
        let second = readings.next(reading("2026-05-01T12:00:11Z", 2_000_000, &[(7, 1_500_000), (8, 9)]));
        assert_eq!(second.agg_resource_usage.unwrap().cpu.unwrap().percent, 100.0);
        let of = |pid: &str| second.resource_usage_by_pid[pid].cpu.clone().unwrap();
        assert_eq!((of("7").percent, of("8").measured_fields.len()), (50.0, 0));
    }

    #[test]
    fn what_is_not_measured_is_not_said_to_be() {
        let mut readings = Readings::new("a/web/1", Topology { cores: 2, total_mhz: 0 }, None);
        let usage = readings.next(reading("2026-05-01T12:00:10Z", 5, &[])).agg_resource_usage.unwrap();
        let memory = usage.memory.unwrap();
        assert_eq!((memory.rss, memory.usage, memory.swap), (10, 30, 0));
        assert_eq!(memory.measured_fields, [MemoryField::Rss, MemoryField::Usage].map(i32::from));
        let ticks = i32::from(CpuField::TotalTicks);
        assert!(!usage.cpu.unwrap().measured_fields.contains(&ticks));
    }

    #[test]
    fn a_moment_before_1970_counts_forward_too() {
        let time = jiff::Timestamp::new(-1, -500_000_000).unwrap();
        assert_eq!(timestamp(time), Timestamp { seconds: -2, nanos: 500_000_000 });
    }
}
