//! Reads the figures from the files of cgroup v2. Source: the kernel's admin-guide/cgroup-v2.

use std::collections::BTreeMap;

use super::reading::Reading;
use super::types::{Cpu, Figures, Hugepages, InUse, Io, IoDevice, Last, Memory, MemoryEvents};

pub fn read(reading: &mut Reading<'_>) -> (Cpu, Memory, Io) {
    (cpu(reading), memory(reading), io(reading))
}

fn cpu(reading: &mut Reading<'_>) -> Cpu {
    // 50000 100000, or max for none.
    let limit = reading.text("cpu", "cpu.max").unwrap_or_default();
    let (quota, period) = limit.trim().split_once(' ').unzip();
    let limit_usec = reading.found("cpu.limit_usec", quota).and_then(|quota| quota.parse().ok());
    let period_usec = reading.found("cpu.period_usec", period.and_then(|period| period.parse().ok()));
    let mut stat = reading.keyed("cpu", "cpu.stat");
    Cpu {
        usage_usec: stat.get("cpu.usage_usec", "usage_usec"),
        user_usec: stat.get("cpu.user_usec", "user_usec"),
        system_usec: stat.get("cpu.system_usec", "system_usec"),
        limit_usec,
        period_usec,
        periods: stat.get("cpu.periods", "nr_periods"),
        throttled_periods: stat.get("cpu.throttled_periods", "nr_throttled"),
        throttled_usec: stat.get("cpu.throttled_usec", "throttled_usec"),
        bursts: stat.get("cpu.bursts", "nr_bursts"),
        burst_usec: stat.get("cpu.burst_usec", "burst_usec"),
        per_cpu_usec: None,
        pressure: reading.pressure("cpu.pressure", "cpu.pressure"),
    }
}

fn memory(reading: &mut Reading<'_>) -> Memory {
    let mut memory = Memory {
        usage_bytes: reading.number("memory.usage_bytes", "memory", "memory.current"),
        // Linux ≥ 5.19.
        peak_bytes: reading.number("memory.peak_bytes", "memory", "memory.peak"),
        limit_bytes: reading.limit("memory.limit_bytes", "memory", "memory.max"),
        high_bytes: reading.limit("memory.high_bytes", "memory", "memory.high"),
        low_bytes: reading.limit("memory.low_bytes", "memory", "memory.low").filter(|low| *low > 0),
        swap_bytes: reading.number("memory.swap_bytes", "memory", "memory.swap.current"),
        // Linux ≥ 6.5.
        swap_peak_bytes: reading.number("memory.swap_peak_bytes", "memory", "memory.swap.peak"),
        swap_limit_bytes: reading.limit("memory.swap_limit_bytes", "memory", "memory.swap.max"),
        pressure: reading.pressure("memory.pressure", "memory.pressure"),
        ..Memory::default()
    };
    let mut events = reading.keyed("memory", "memory.events");
    memory.oom_kills = events.get("memory.oom_kills", "oom_kill");
    memory.events = MemoryEvents {
        low: events.get("memory.events.low", "low"),
        high: events.get("memory.events.high", "high"),
        max: events.get("memory.events.max", "max"),
        oom: events.get("memory.events.oom", "oom"),
        oom_group_kill: events.get("memory.events.oom_group_kill", "oom_group_kill"),
    };
    let mut stat = reading.keyed("memory", "memory.stat");
    memory.anon_bytes = stat.get("memory.anon_bytes", "anon");
    memory.cache_bytes = stat.get("memory.cache_bytes", "file");
    memory.inactive_file_bytes = stat.get("memory.inactive_file_bytes", "inactive_file");
    // Linux ≥ 5.18.
    memory.kernel_bytes = stat.get("memory.kernel_bytes", "kernel");
    memory.counters = stat.all("memory.counters");
    memory
}

fn io(reading: &mut Reading<'_>) -> Io {
    // 8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0
    let device = |line: &str| {
        let (device, counters) = line.split_once(' ')?;
        let counter = |name: &str| {
            let value = counters.split(' ').find_map(|c| c.strip_prefix(name)?.strip_prefix('='));
            value.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        Some(IoDevice {
            device: device.to_owned(),
            read_bytes: counter("rbytes"),
            write_bytes: counter("wbytes"),
            reads: counter("rios"),
            writes: counter("wios"),
            discard_bytes: counter("dbytes"),
            discards: counter("dios"),
            ..IoDevice::default()
        })
    };
    let text = reading.text("io", "io.stat");
    let devices = text.map(|text| text.lines().filter_map(device).collect());
    Io { devices: reading.found("io.devices", devices), pressure: reading.pressure("io.pressure", "io.pressure") }
}

/// Reads the usage of huge pages of each of `sizes`.
pub fn hugepages(reading: &mut Reading<'_>, sizes: &[String]) -> BTreeMap<String, Hugepages> {
    let of_size = |size: &String| {
        let file = |name: &str| format!("hugetlb.{size}.{name}");
        let name = |name: &str| format!("hugepages.{size}.{name}");
        let usage_bytes = reading.number(name("usage_bytes"), "hugetlb", &file("current"))?;
        let hits = reading.keyed("hugetlb", &file("events")).value("max");
        Some((
            size.clone(),
            Hugepages {
                usage_bytes: Some(usage_bytes),
                peak_bytes: None,
                limit_bytes: reading.limit(name("limit_bytes"), "hugetlb", &file("max")),
                limit_hits: reading.found(name("limit_hits"), hits),
            },
        ))
    };
    sizes.iter().filter_map(of_size).collect()
}

pub fn last(reading: &mut Reading<'_>) -> Last {
    let memory_peak_bytes = reading.value("memory", "memory.peak");
    let memory_limit_bytes = reading.value("memory", "memory.max");
    let events = reading.keyed("memory", "memory.events");
    let (oom_kills, high, max) = (events.value("oom_kill"), events.value("high"), events.value("max"));
    // In this file, hits of an ancestor's limit do not count.
    let own_limit_met = reading.keyed("memory", "memory.events.local").value("oom");
    let stat = reading.keyed("cpu", "cpu.stat");
    let figures = Figures {
        cpu_usec: stat.value("usage_usec"),
        memory_peak_bytes,
        memory_limit_bytes,
        memory_limit_hits: max,
        memory_high_hits: high,
        cpu_periods: stat.value("nr_periods"),
        throttled_periods: stat.value("nr_throttled"),
        throttled_usec: stat.value("throttled_usec"),
        oom_kills,
        ..Figures::default()
    };
    Last { figures, own_limit_met }
}

pub fn in_use(reading: &mut Reading<'_>) -> InUse {
    let memory = reading.value("memory", "memory.current");
    let swap = reading.value("memory", "memory.swap.current").unwrap_or(0);
    let stat = reading.keyed("memory", "memory.stat");
    InUse {
        total_bytes: memory.map(|memory| memory.saturating_add(swap)),
        anon_bytes: stat.value("anon"),
        cache_bytes: stat.value("file"),
    }
}

pub fn throttled_usec(reading: &mut Reading<'_>) -> Option<u64> {
    reading.keyed("cpu", "cpu.stat").value("throttled_usec")
}
