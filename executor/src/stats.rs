//! Readings of a task's cgroup, as one struct. Counters, not rates.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::cgroup::{Cgroup, Layout, Version};

/// What a task uses, at one moment. What this host does not measure is null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// When it was read.
    pub read_at: Timestamp,
    /// CPU time.
    pub cpu: Cpu,
    /// Memory.
    pub memory: Memory,
    /// Processes and threads.
    pub pids: Pids,
}

/// CPU time used since the start, in µs, and how a limit held the task back.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// In all.
    pub usage_usec: Option<u64>,
    /// Of it in the program.
    pub user_usec: Option<u64>,
    /// Of it in the kernel.
    pub system_usec: Option<u64>,
    /// Enforcement periods in which the task was held back.
    pub throttled_periods: Option<u64>,
    /// For how long in all.
    pub throttled_usec: Option<u64>,
}

/// Memory, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// In use now, page cache included.
    pub usage_bytes: Option<u64>,
    /// The most at a time.
    pub peak_bytes: Option<u64>,
    /// The limit; null when there is none.
    pub limit_bytes: Option<u64>,
    /// Processes killed for want of memory.
    pub oom_kills: Option<u64>,
}

/// Tasks in the kernel's sense: threads count.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Pids {
    /// Now.
    pub current: Option<u64>,
    /// The limit; null when there is none.
    pub limit: Option<u64>,
}

/// v1 writes "no limit" as the largest multiple of a page; containerd and
/// Kubernetes take everything above 2^62 for it.
const UNLIMITED: u64 = 1 << 62;

/// Reads the cgroup; a file that is missing leaves its figure out, nothing more.
pub fn read(layout: &Layout, cgroup: &Cgroup) -> Stats {
    match layout.version() {
        Version::V1 => read_v1(layout, cgroup),
        Version::V2 => read_v2(layout, cgroup),
    }
}

fn read_v1(layout: &Layout, cgroup: &Cgroup) -> Stats {
    let number = |controller, file| layout.read_number(cgroup, controller, file);
    let usec = |file| number("cpuacct", file).map(|ns| ns / 1000);
    let throttled = |key| layout.read_keyed(cgroup, "cpu", "cpu.stat", key);
    Stats {
        read_at: Timestamp::now(),
        cpu: Cpu {
            usage_usec: usec("cpuacct.usage"),
            user_usec: usec("cpuacct.usage_user"),
            system_usec: usec("cpuacct.usage_sys"),
            throttled_periods: throttled("nr_throttled"),
            throttled_usec: throttled("throttled_time").map(|ns| ns / 1000),
        },
        memory: Memory {
            usage_bytes: number("memory", "memory.usage_in_bytes"),
            peak_bytes: number("memory", "memory.max_usage_in_bytes"),
            limit_bytes: number("memory", "memory.limit_in_bytes").filter(|limit| *limit < UNLIMITED),
            oom_kills: layout.read_keyed(cgroup, "memory", "memory.oom_control", "oom_kill"),
        },
        pids: Pids {
            current: number("pids", "pids.current"),
            // "max" is no number.
            limit: number("pids", "pids.max"),
        },
    }
}

fn read_v2(layout: &Layout, cgroup: &Cgroup) -> Stats {
    let number = |controller, file| layout.read_number(cgroup, controller, file);
    let cpu = |key| layout.read_keyed(cgroup, "cpu", "cpu.stat", key);
    Stats {
        read_at: Timestamp::now(),
        cpu: Cpu {
            usage_usec: cpu("usage_usec"),
            user_usec: cpu("user_usec"),
            system_usec: cpu("system_usec"),
            throttled_periods: cpu("nr_throttled"),
            throttled_usec: cpu("throttled_usec"),
        },
        memory: Memory {
            usage_bytes: number("memory", "memory.current"),
            // Linux ≥ 5.19.
            peak_bytes: number("memory", "memory.peak"),
            // "max" is no number.
            limit_bytes: number("memory", "memory.max"),
            oom_kills: layout.read_keyed(cgroup, "memory", "memory.events", "oom_kill"),
        },
        pids: Pids { current: number("pids", "pids.current"), limit: number("pids", "pids.max") },
    }
}

/// How often the task met its own memory limit and found nothing to reclaim.
pub fn memory_limit_met(layout: &Layout, cgroup: &Cgroup) -> Option<u64> {
    match layout.version() {
        Version::V1 => layout.read_number(cgroup, "memory", "memory.failcnt"),
        // An ancestor's limit counts there, not here.
        Version::V2 => layout.read_keyed(cgroup, "memory", "memory.events.local", "oom"),
    }
}
