//! Reads a task's cgroup into one struct. The figures are counters, not rates: a caller that wants
//! a percentage reads twice.
//!
//! ```text
//!   files of the cgroup, kept open ─► v1 or v2 ─┐
//!   /proc/PID/stat, kept open ─► processes ─────┴─► Stats
//! ```
//!
//! A missing file only leaves its figure out.

pub mod enforcement;
pub mod figures;

mod processes;
mod reading;
#[cfg(test)]
mod recorded;
mod types;
mod v1;
mod v2;

use std::collections::BTreeMap;

use bowline_cgroup::{Cgroup, Layout, Version};
use jiff::Timestamp;

pub use processes::{Process, Processes};
use reading::Reading;
pub use types::{
    Cpu, Figures, Hugepages, InUse, Io, IoDevice, Last, Memory, MemoryAccount, MemoryEvents, Pids, Pressure, Rdma,
    Stall, Stats,
};

/// Reads the cgroup without its processes: see [`Processes::read`].
pub fn read(layout: &Layout, cgroup: &Cgroup, page_sizes: &[String]) -> Stats {
    let read_at = Timestamp::now();
    let mut reading = Reading::new(layout, cgroup);
    let (cpu, memory, io) = match layout.version() {
        Version::V1 => v1::read(&mut reading),
        Version::V2 => v2::read(&mut reading),
    };
    let pids = Pids {
        current: reading.number("pids.current", "pids", "pids.current"),
        limit: reading.limit("pids.limit", "pids", "pids.max"),
        limit_hits: reading.keyed("pids", "pids.events").get("pids.limit_hits", "max"),
    };
    let hugepages = match layout.is_unified("hugetlb") {
        true => v2::hugepages(&mut reading, page_sizes),
        false => v1::hugepages(&mut reading, page_sizes),
    };
    let rdma = rdma(&mut reading);
    let measured = reading.measured();
    let cgroup_version = match layout.version() {
        Version::V1 => 1,
        Version::V2 => 2,
    };
    Stats { read_at, measured, cgroup_version, cpu, memory, pids, io, hugepages, rdma, processes: Vec::new() }
}

/// RDMA figures; v1 and v2 have the same files: `mlx4_0 hca_handle=2 hca_object=max`.
fn rdma(reading: &mut Reading<'_>) -> BTreeMap<String, Rdma> {
    let mut devices: BTreeMap<String, Rdma> = BTreeMap::new();
    for (file, is_limit) in [("rdma.current", false), ("rdma.max", true)] {
        let text = reading.text("rdma", file).unwrap_or_default();
        for (device, figures) in text.lines().filter_map(|line| line.split_once(' ')) {
            let figure = |name: &str| {
                figures.split(' ').find_map(|figure| figure.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
            };
            let (handles, objects) = (figure("hca_handle"), figure("hca_object"));
            let entry = devices.entry(device.to_owned()).or_default();
            if is_limit {
                (entry.handle_limit, entry.object_limit) = (handles, objects);
            } else {
                (entry.handles, entry.objects) = (handles, objects);
            }
        }
    }
    devices
}

/// Reads only what [`Last`] has: every exit waits for it.
pub fn last(layout: &Layout, cgroup: &Cgroup) -> Last {
    let mut reading = Reading::new(layout, cgroup);
    let last = match layout.version() {
        Version::V1 => v1::last(&mut reading),
        Version::V2 => v2::last(&mut reading),
    };
    let figures = Figures {
        pids_limit: reading.value("pids", "pids.max"),
        pids_limit_hits: reading.keyed("pids", "pids.events").value("max"),
        ..last.figures
    };
    Last { figures, ..last }
}

/// Reads only what [`InUse`] has.
pub fn memory_in_use(layout: &Layout, cgroup: &Cgroup) -> InUse {
    let mut reading = Reading::new(layout, cgroup);
    match layout.version() {
        Version::V1 => v1::in_use(&mut reading),
        Version::V2 => v2::in_use(&mut reading),
    }
}

/// How long the CPU limit has held the cgroup back in total, in µs.
pub fn throttled_usec(layout: &Layout, cgroup: &Cgroup) -> Option<u64> {
    let mut reading = Reading::new(layout, cgroup);
    match layout.version() {
        Version::V1 => v1::throttled_usec(&mut reading),
        Version::V2 => v2::throttled_usec(&mut reading),
    }
}

/// Whether the CPU time, the memory or the number of processes is limited in the cgroup at `path` or in one above it.
pub fn is_limited(layout: &Layout, path: &str) -> bool {
    let mut ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
    ends.any(|end| {
        let Ok(Some(cgroup)) = layout.open(&path[..end]) else { return false };
        let Stats { cpu, memory, pids, .. } = read(layout, &cgroup, &[]);
        [cpu.limit_usec, memory.limit_bytes, memory.high_bytes, pids.limit].iter().any(Option::is_some)
    })
}

/// How many processes of the cgroup the OOM killer has killed.
pub fn oom_kills(layout: &Layout, cgroup: &Cgroup) -> u64 {
    last(layout, cgroup).figures.oom_kills.unwrap_or(0)
}
