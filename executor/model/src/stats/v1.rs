//! Reads the figures from the files of cgroup v1. Source: the kernel's admin-guide/cgroup-v1.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::reading::Reading;
use super::types::{Cpu, Figures, Hugepages, InUse, Io, IoDevice, Last, Memory, MemoryAccount, MemoryEvents};

/// v1 writes "no limit" as the largest multiple of a page; containerd and Kubernetes take
/// everything above 2^62 for "no limit".
const UNLIMITED: u64 = 1 << 62;

pub fn read(reading: &mut Reading<'_>) -> (Cpu, Memory, Io) {
    (cpu(reading), memory(reading), io(reading))
}

fn cpu(reading: &mut Reading<'_>) -> Cpu {
    let mut usec = |name, file| reading.number(name, "cpuacct", file).map(|ns| ns / 1000);
    let usage_usec = usec("cpu.usage_usec", "cpuacct.usage");
    let user_usec = usec("cpu.user_usec", "cpuacct.usage_user");
    let system_usec = usec("cpu.system_usec", "cpuacct.usage_sys");
    let per_cpu = reading.text("cpuacct", "cpuacct.usage_percpu");
    let per_cpu =
        per_cpu.map(|text| text.split_whitespace().filter_map(|ns| Some(ns.parse::<u64>().ok()? / 1000)).collect());
    let per_cpu_usec = reading.found("cpu.per_cpu_usec", per_cpu);
    // -1 for none.
    let quota = reading.text("cpu", "cpu.cfs_quota_us");
    let limit_usec = reading.found("cpu.limit_usec", quota).and_then(|quota| quota.trim().parse().ok());
    let period_usec = reading.number("cpu.period_usec", "cpu", "cpu.cfs_period_us");
    let mut stat = reading.keyed("cpu", "cpu.stat");
    Cpu {
        usage_usec,
        user_usec,
        system_usec,
        limit_usec,
        period_usec,
        periods: stat.get("cpu.periods", "nr_periods"),
        throttled_periods: stat.get("cpu.throttled_periods", "nr_throttled"),
        throttled_usec: stat.get("cpu.throttled_usec", "throttled_time").map(|ns| ns / 1000),
        bursts: stat.get("cpu.bursts", "nr_bursts"),
        burst_usec: stat.get("cpu.burst_usec", "burst_time").map(|ns| ns / 1000),
        per_cpu_usec,
        // v1 has none; the unified hierarchy of a hybrid host does.
        pressure: reading.pressure("cpu.pressure", "cpu.pressure"),
    }
}

fn memory(reading: &mut Reading<'_>) -> Memory {
    let mut memory = Memory {
        usage_bytes: reading.number("memory.usage_bytes", "memory", "memory.usage_in_bytes"),
        peak_bytes: reading.number("memory.peak_bytes", "memory", "memory.max_usage_in_bytes"),
        limit_bytes: limit(reading, "memory.limit_bytes", "memory", "memory.limit_in_bytes"),
        low_bytes: limit(reading, "memory.low_bytes", "memory", "memory.soft_limit_in_bytes"),
        events: MemoryEvents {
            max: reading.number("memory.events.max", "memory", "memory.failcnt"),
            ..MemoryEvents::default()
        },
        pressure: reading.pressure("memory.pressure", "memory.pressure"),
        ..Memory::default()
    };
    let mut oom = reading.keyed("memory", "memory.oom_control");
    memory.oom_kills = oom.get("memory.oom_kills", "oom_kill");
    memory.under_oom = oom.get("memory.under_oom", "under_oom").map(|set| set != 0);
    memory.oom_kill_disabled = oom.get("memory.oom_kill_disabled", "oom_kill_disable").map(|set| set != 0);
    memory.accounts = accounts(reading);
    let kernel = memory.accounts.get("kernel").and_then(|kernel| kernel.usage_bytes);
    memory.kernel_bytes = reading.found("memory.kernel_bytes", kernel);
    // v1 has one limit for memory and swap together.
    let both = memory.accounts.get("memory_and_swap").and_then(|both| both.limit_bytes);
    memory.swap_limit_bytes = both.map(|both| both.saturating_sub(memory.limit_bytes.unwrap_or(0)));
    if memory.accounts.contains_key("memory_and_swap") {
        reading.found("memory.swap_limit_bytes", Some(()));
    }
    // The `total_` counters include the cgroups below.
    let mut stat = reading.keyed("memory", "memory.stat");
    memory.anon_bytes = stat.get("memory.anon_bytes", "total_rss");
    memory.cache_bytes = stat.get("memory.cache_bytes", "total_cache");
    memory.inactive_file_bytes = stat.get("memory.inactive_file_bytes", "total_inactive_file");
    memory.swap_bytes = stat.get("memory.swap_bytes", "total_swap");
    memory.counters = stat.all("memory.counters");
    memory
}

/// The other accounts, where v1 has them.
fn accounts(reading: &mut Reading<'_>) -> BTreeMap<Cow<'static, str>, MemoryAccount> {
    let account = |(name, files): (&'static str, &str)| {
        let mut number = |figure: &str, file: &str| {
            reading.number(format!("memory.accounts.{name}.{figure}"), "memory", &format!("memory.{files}.{file}"))
        };
        let account = MemoryAccount {
            usage_bytes: Some(number("usage_bytes", "usage_in_bytes")?),
            peak_bytes: number("peak_bytes", "max_usage_in_bytes"),
            limit_bytes: number("limit_bytes", "limit_in_bytes").filter(|limit| *limit < UNLIMITED),
            limit_hits: number("limit_hits", "failcnt"),
        };
        Some((Cow::Borrowed(name), account))
    };
    [("memory_and_swap", "memsw"), ("kernel", "kmem"), ("kernel_tcp", "kmem.tcp")]
        .into_iter()
        .filter_map(account)
        .collect()
}

fn limit(reading: &mut Reading<'_>, name: &'static str, controller: &str, file: &str) -> Option<u64> {
    reading.number(name, controller, file).filter(|limit| *limit < UNLIMITED)
}

fn io(reading: &mut Reading<'_>) -> Io {
    let mut devices: BTreeMap<String, IoDevice> = BTreeMap::new();
    let files = ["blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_serviced_recursive"];
    let texts = files.map(|file| reading.text("blkio", file));
    for (text, bytes) in texts.iter().zip([true, false]) {
        for line in text.iter().flat_map(|text| text.lines()) {
            // 8:0 Read 4096
            let mut fields = line.split(' ');
            let (Some(device), Some(operation), Some(Ok(amount))) =
                (fields.next(), fields.next(), fields.next().map(str::parse::<u64>))
            else {
                continue;
            };
            let entry = devices.entry(device.to_owned()).or_default();
            let counter = match (operation, bytes) {
                ("Read", true) => &mut entry.read_bytes,
                ("Write", true) => &mut entry.write_bytes,
                ("Read", false) => &mut entry.reads,
                ("Write", false) => &mut entry.writes,
                ("Discard", true) => &mut entry.discard_bytes,
                ("Discard", false) => &mut entry.discards,
                ("Sync", true) => entry.sync_bytes.insert(0),
                ("Sync", false) => entry.syncs.insert(0),
                _ => continue,
            };
            *counter = amount;
        }
    }
    let counted = texts.iter().all(Option::is_some);
    let named = devices.into_iter().map(|(device, counters)| IoDevice { device, ..counters });
    let devices = counted.then(|| named.collect());
    Io { devices: reading.found("io.devices", devices), pressure: reading.pressure("io.pressure", "io.pressure") }
}

/// Reads the usage of huge pages of each of `sizes`.
pub fn hugepages(reading: &mut Reading<'_>, sizes: &[String]) -> BTreeMap<String, Hugepages> {
    let of_size = |size: &String| {
        let mut number = |name: &str, file: &str| {
            reading.number(format!("hugepages.{size}.{name}"), "hugetlb", &format!("hugetlb.{size}.{file}"))
        };
        let pages = Hugepages {
            usage_bytes: number("usage_bytes", "usage_in_bytes"),
            peak_bytes: number("peak_bytes", "max_usage_in_bytes"),
            limit_bytes: number("limit_bytes", "limit_in_bytes").filter(|limit| *limit < UNLIMITED),
            limit_hits: number("limit_hits", "failcnt"),
        };
        (pages != Hugepages::default()).then(|| (size.clone(), pages))
    };
    sizes.iter().filter_map(of_size).collect()
}

pub fn last(reading: &mut Reading<'_>) -> Last {
    let cpu_usec = reading.value("cpuacct", "cpuacct.usage").map(|ns| ns / 1000);
    let memory_peak_bytes = reading.value("memory", "memory.max_usage_in_bytes");
    let memory_limit_bytes = reading.value("memory", "memory.limit_in_bytes").filter(|limit| *limit < UNLIMITED);
    let own_limit_met = reading.value("memory", "memory.failcnt");
    let oom_kills = reading.keyed("memory", "memory.oom_control").value("oom_kill");
    let stat = reading.keyed("cpu", "cpu.stat");
    let figures = Figures {
        cpu_usec,
        memory_peak_bytes,
        memory_limit_bytes,
        memory_limit_hits: own_limit_met,
        cpu_periods: stat.value("nr_periods"),
        throttled_periods: stat.value("nr_throttled"),
        throttled_usec: stat.value("throttled_time").map(|ns| ns / 1000),
        oom_kills,
        ..Figures::default()
    };
    Last { figures, own_limit_met }
}

pub fn in_use(reading: &mut Reading<'_>) -> InUse {
    let memory = reading.value("memory", "memory.usage_in_bytes");
    let stat = reading.keyed("memory", "memory.stat");
    let swap = stat.value("total_swap").unwrap_or(0);
    InUse {
        total_bytes: memory.map(|memory| memory.saturating_add(swap)),
        anon_bytes: stat.value("total_rss"),
        cache_bytes: stat.value("total_cache"),
    }
}

pub fn throttled_usec(reading: &mut Reading<'_>) -> Option<u64> {
    reading.keyed("cpu", "cpu.stat").value("throttled_time").map(|ns| ns / 1000)
}
