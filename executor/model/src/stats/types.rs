//! What is measured, as plain data.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::processes::Process;

/// What a task uses at one moment. A figure that this host does not measure is null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stats {
    /// When the reading of these figures began.
    pub read_at: Timestamp,
    /// The figures that this host measures, such as `memory.anon_bytes`: tells a limit that is null
    /// because there is none from one that is unknown.
    pub measured: Vec<Cow<'static, str>>,
    /// The cgroup version of the figures: 1 on a hybrid host too.
    #[serde(default)]
    pub cgroup_version: u8,
    /// CPU time, and how a limit held the task back.
    pub cpu: Cpu,
    /// Memory in use, its limits, and kills at them.
    pub memory: Memory,
    /// Processes and threads, and their limit.
    pub pids: Pids,
    /// What was read from and written to block devices.
    pub io: Io,
    /// Huge pages, by the size of a page, such as `2MB`.
    pub hugepages: BTreeMap<String, Hugepages>,
    /// RDMA, by the name of a device.
    #[serde(default)]
    pub rdma: BTreeMap<String, Rdma>,
    /// Every process, by its pid on the host.
    pub processes: Vec<Process>,
}

/// CPU time used since the start, in µs, and how a limit held the task back.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Cpu {
    /// CPU time in total, in program and kernel.
    pub usage_usec: Option<u64>,
    /// The part spent in the program.
    pub user_usec: Option<u64>,
    /// The part spent in the kernel.
    pub system_usec: Option<u64>,
    /// The CPU time it may use in each period; null when there is no limit.
    #[serde(default)]
    pub limit_usec: Option<u64>,
    /// How long a period is.
    #[serde(default)]
    pub period_usec: Option<u64>,
    /// Enforcement periods in which the task wanted to run.
    pub periods: Option<u64>,
    /// The periods in which the task was held back.
    pub throttled_periods: Option<u64>,
    /// How long the task was held back in total.
    pub throttled_usec: Option<u64>,
    /// Periods in which the task used CPU time that it had saved before.
    pub bursts: Option<u64>,
    /// The total time of these bursts.
    pub burst_usec: Option<u64>,
    /// CPU time on each CPU; v1 only.
    pub per_cpu_usec: Option<Vec<u64>>,
    /// How long the task waited for a CPU.
    pub pressure: Option<Pressure>,
}

/// How much memory a task uses, in bytes, and its limits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Memory {
    /// In use now, page cache included.
    pub usage_bytes: Option<u64>,
    /// The highest usage at a time.
    pub peak_bytes: Option<u64>,
    /// Anonymous memory: the processes' own, "RSS" to v1.
    pub anon_bytes: Option<u64>,
    /// Page cache, shared memory included.
    pub cache_bytes: Option<u64>,
    /// The part of the page cache that was not used lately. Usage without this part is what
    /// Kubernetes calls the working set.
    pub inactive_file_bytes: Option<u64>,
    /// Memory that the kernel uses for the task.
    pub kernel_bytes: Option<u64>,
    /// What is swapped out now, beyond `usage_bytes`.
    pub swap_bytes: Option<u64>,
    /// The highest swap usage at a time; v2 only.
    pub swap_peak_bytes: Option<u64>,
    /// The limit; null when there is none.
    pub limit_bytes: Option<u64>,
    /// Above this usage the task is slowed down; null when there is none.
    pub high_bytes: Option<u64>,
    /// Up to this usage the task is spared when memory is short.
    pub low_bytes: Option<u64>,
    /// The limit of swap on top of memory; null when there is none.
    pub swap_limit_bytes: Option<u64>,
    /// Processes killed by the OOM killer.
    pub oom_kills: Option<u64>,
    /// How often each memory limit was hit.
    pub events: MemoryEvents,
    /// Whether a process waits for memory that only a kill can free; v1 only.
    pub under_oom: Option<bool>,
    /// Whether processes wait instead of one being killed; v1 only.
    pub oom_kill_disabled: Option<bool>,
    /// All counters of `memory.stat`, by the kernel's names.
    pub counters: Option<BTreeMap<String, u64>>,
    /// The other accounts of v1: `memory_and_swap`, `kernel`, `kernel_tcp`.
    #[serde(default)]
    pub accounts: BTreeMap<Cow<'static, str>, MemoryAccount>,
    /// How long the task waited for memory.
    pub pressure: Option<Pressure>,
}

/// How often a task has hit its memory limits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemoryEvents {
    /// Memory was reclaimed although usage was below `low_bytes`.
    pub low: Option<u64>,
    /// The task was slowed down above `high_bytes`.
    pub high: Option<u64>,
    /// The task was stopped at `limit_bytes`.
    pub max: Option<u64>,
    /// The task was at `limit_bytes` with nothing left to reclaim.
    pub oom: Option<u64>,
    /// The cgroup was killed as a whole.
    pub oom_group_kill: Option<u64>,
}

/// One of v1's accounts of memory, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemoryAccount {
    /// In use now.
    pub usage_bytes: Option<u64>,
    /// The highest usage at a time.
    pub peak_bytes: Option<u64>,
    /// The limit; null when there is none.
    pub limit_bytes: Option<u64>,
    /// How often the limit was hit.
    pub limit_hits: Option<u64>,
}

/// Tasks in the kernel's sense: threads count.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Pids {
    /// How many there are now.
    pub current: Option<u64>,
    /// The limit; null when there is none.
    pub limit: Option<u64>,
    /// How often a fork failed at the limit.
    pub limit_hits: Option<u64>,
}

/// What a task read from and wrote to block devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Io {
    /// Each device that was used, by its numbers; null where nothing counts.
    pub devices: Option<Vec<IoDevice>>,
    /// How long the task waited for a block device.
    pub pressure: Option<Pressure>,
}

/// What was read from and written to one block device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct IoDevice {
    /// Major and minor number, as `8:0`.
    pub device: String,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Operations that read.
    pub reads: u64,
    /// Operations that wrote.
    pub writes: u64,
    /// Bytes discarded, such as by fstrim(8).
    #[serde(default)]
    pub discard_bytes: u64,
    /// Operations that discarded.
    #[serde(default)]
    pub discards: u64,
    /// Bytes of synchronous operations, on which a process waits; v1 only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_bytes: Option<u64>,
    /// Synchronous operations, on which a process waits; v1 only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syncs: Option<u64>,
}

/// What a task holds of one RDMA device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Rdma {
    /// Handles in use now (the kernel's `hca_handle`).
    pub handles: Option<u64>,
    /// Objects in use now (the kernel's `hca_object`).
    pub objects: Option<u64>,
    /// The limit of handles; null when there is none.
    pub handle_limit: Option<u64>,
    /// The limit of objects; null when there is none.
    pub object_limit: Option<u64>,
}

/// Huge pages of one size.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Hugepages {
    /// In use now, in bytes.
    pub usage_bytes: Option<u64>,
    /// The highest usage at a time; v1 only.
    pub peak_bytes: Option<u64>,
    /// The limit; null when there is none.
    pub limit_bytes: Option<u64>,
    /// How often a page was refused at the limit.
    pub limit_hits: Option<u64>,
}

/// How processes waited for a resource (the kernel's pressure stall information).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Pressure {
    /// Time in which at least one process waited.
    pub some: Option<Stall>,
    /// Time in which all processes waited.
    pub full: Option<Stall>,
}

/// Time that processes spent waiting, as a pressure file of the cgroup has it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stall {
    /// Percent of the last ten seconds.
    pub avg10: f64,
    /// Percent of the last minute.
    pub avg60: f64,
    /// Percent of the last five minutes.
    pub avg300: f64,
    /// The sum since the cgroup was made, in µs.
    pub total_usec: u64,
}

/// What the kernel has counted for a task, and its limits at the end. A value that this kernel cannot tell is null.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Figures {
    /// CPU time of all its processes, in µs; if its cgroup had gone before, of those that their parents have waited for.
    pub cpu_usec: Option<u64>,
    /// The highest memory usage at a time, in bytes.
    pub memory_peak_bytes: Option<u64>,
    /// The memory limit at the end, in bytes; null when there was none.
    pub memory_limit_bytes: Option<u64>,
    /// How often the memory limit was hit; the kernel then freed what it could.
    pub memory_limit_hits: Option<u64>,
    /// How often the task was slowed down above `memory.high`; v2 only.
    pub memory_high_hits: Option<u64>,
    /// How many processes the OOM killer killed.
    pub oom_kills: Option<u64>,
    /// Enforcement periods of the CPU limit in which the task wanted to run.
    pub cpu_periods: Option<u64>,
    /// The periods in which the limit held the task back.
    pub throttled_periods: Option<u64>,
    /// How long the task was held back in total, in µs.
    pub throttled_usec: Option<u64>,
    /// The limit of processes and threads at the end; null when there was none.
    pub pids_limit: Option<u64>,
    /// How often a fork failed at that limit.
    pub pids_limit_hits: Option<u64>,
}

/// What is read of a cgroup whose processes have ended.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Last {
    /// The figures that the exit report shows.
    #[serde(flatten)]
    pub figures: Figures,
    /// How often the task hit its own memory limit and found nothing to reclaim.
    pub own_limit_met: Option<u64>,
}

impl Last {
    /// What is known of a task that runs, after this reading and an `earlier` one: its limits and the figures of its
    /// memory. The other figures still grow.
    pub fn so_far(self, earlier: Last) -> Last {
        let now = self.or(earlier.clone());
        let Figures { cpu_usec, oom_kills, cpu_periods, throttled_periods, throttled_usec, pids_limit_hits, .. } =
            earlier.figures;
        let growing = Figures {
            cpu_usec,
            oom_kills,
            cpu_periods,
            throttled_periods,
            throttled_usec,
            pids_limit_hits,
            ..now.figures
        };
        Last { figures: growing, ..now }
    }

    /// Fills the gaps of this reading with an earlier one. A limit that was read and is none is no gap.
    pub fn or(self, earlier: Last) -> Last {
        let (now, before) = (self.figures, earlier.figures);
        let memory_limit_bytes = match now.memory_limit_hits {
            Some(_) => now.memory_limit_bytes,
            None => now.memory_limit_bytes.or(before.memory_limit_bytes),
        };
        let pids_limit = match now.pids_limit_hits {
            Some(_) => now.pids_limit,
            None => now.pids_limit.or(before.pids_limit),
        };
        let figures = Figures {
            cpu_usec: now.cpu_usec.or(before.cpu_usec),
            memory_peak_bytes: now.memory_peak_bytes.or(before.memory_peak_bytes),
            memory_limit_bytes,
            memory_limit_hits: now.memory_limit_hits.or(before.memory_limit_hits),
            memory_high_hits: now.memory_high_hits.or(before.memory_high_hits),
            oom_kills: now.oom_kills.or(before.oom_kills),
            cpu_periods: now.cpu_periods.or(before.cpu_periods),
            throttled_periods: now.throttled_periods.or(before.throttled_periods),
            throttled_usec: now.throttled_usec.or(before.throttled_usec),
            pids_limit,
            pids_limit_hits: now.pids_limit_hits.or(before.pids_limit_hits),
        };
        Last { figures, own_limit_met: self.own_limit_met.or(earlier.own_limit_met) }
    }
}

/// Memory in use, as far as it is watched.
#[derive(Debug, Clone, Copy, Default)]
pub struct InUse {
    /// All of it, page cache and swap included.
    pub total_bytes: Option<u64>,
    pub anon_bytes: Option<u64>,
    pub cache_bytes: Option<u64>,
}
