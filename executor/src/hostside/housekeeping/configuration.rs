//! The configuration of a cgroup, as the kernel reports it, and what goes with a change.

use std::collections::BTreeMap;

use bowline_cgroup::{Cgroup, Layout, Version};
use oci_spec::runtime::{LinuxCpu, LinuxMemory, LinuxResources};
use serde::Serialize;

use crate::oci::host;

/// v1's value for "no limit" is above this; see `stats::v1`.
const UNLIMITED: u64 = 1 << 62;

/// The limits of a cgroup. Null means unlimited, or not available on this host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Configuration {
    /// The share of CPU time when CPU time is short, on v1: 2 to 262144.
    pub cpu_shares: Option<u64>,
    /// The share of CPU time when CPU time is short, on v2: 1 to 10000.
    pub cpu_weight: Option<u64>,
    /// CPU time in each period, in µs.
    pub cpu_quota_usec: Option<u64>,
    /// The length of a period of the CPU quota, in µs.
    pub cpu_period_usec: Option<u64>,
    /// The most memory, in bytes.
    pub memory_limit_bytes: Option<u64>,
    /// The most processes and threads.
    pub pids_limit: Option<u64>,
    /// The CPUs that the cgroup may run on.
    pub cpuset_cpus: Option<String>,
    /// The memory nodes that the cgroup may use.
    pub cpuset_mems: Option<String>,
    /// The most memory in huge pages, in bytes, by the size of a page.
    pub hugepages: BTreeMap<String, Option<u64>>,
}

pub fn read(layout: &Layout, cgroup: &Cgroup) -> Configuration {
    let text = |controller: &str, file: &str| {
        Some(layout.read(cgroup, controller, file)?.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let number = |controller: &str, file: &str| text(controller, file).and_then(|text| limit(&text));
    let is_v2 = layout.is_unified("cpu");
    let (quota, period) = cpu_quota(layout, cgroup);
    let memory = if layout.is_unified("memory") { "memory.max" } else { "memory.limit_in_bytes" };
    // An empty v2 cpuset means the parent's.
    let set = |file: &str| text("cpuset", file).or_else(|| text("cpuset", &format!("{file}.effective")));
    let pages = if layout.is_unified("hugetlb") { "max" } else { "limit_in_bytes" };
    let hugepages = host::hugepage_sizes().into_iter().filter_map(|size| {
        let most = text("hugetlb", &format!("hugetlb.{size}.{pages}"))?;
        Some((size, limit(&most)))
    });
    Configuration {
        cpu_shares: number("cpu", "cpu.shares").filter(|_| !is_v2),
        cpu_weight: number("cpu", "cpu.weight").filter(|_| is_v2),
        cpu_quota_usec: quota,
        cpu_period_usec: period,
        memory_limit_bytes: number("memory", memory),
        pids_limit: number("pids", "pids.max"),
        cpuset_cpus: set("cpuset.cpus"),
        cpuset_mems: set("cpuset.mems"),
        hugepages: hugepages.collect(),
    }
}

/// Parses a limit from a file; `None` for `max`, for v1's largest number and for −1.
fn limit(text: &str) -> Option<u64> {
    text.parse().ok().filter(|limit| *limit < UNLIMITED)
}

/// The smallest share of CPU time when CPU time is short, in v1's terms, from which v2's follow.
pub fn least_cpu() -> LinuxResources {
    let mut cpu = LinuxCpu::default();
    cpu.set_shares(Some(2));
    let mut resources = LinuxResources::default();
    resources.set_cpu(Some(cpu));
    resources
}

/// On v1 the memory limit must not be above the limit of memory and swap. If there is such a limit,
/// moves it by the same amount, so that the swap on top of memory stays the same.
pub fn keep_swap(layout: &Layout, cgroup: &Cgroup, resources: &mut LinuxResources) {
    if layout.version() == Version::V2 {
        return;
    }
    let Some(mut memory) = resources.memory().filter(|memory| memory.swap().is_none()) else { return };
    let read = |file: &str| layout.read(cgroup, "memory", file).and_then(|text| limit(text.trim()));
    let both = read("memory.memsw.limit_in_bytes");
    let (Some(new), Some(both)) = (memory.limit(), both) else { return };
    let beyond = both.saturating_sub(read("memory.limit_in_bytes").unwrap_or(both));
    let swap = if new < 0 { -1 } else { new.saturating_add(i64::try_from(beyond).unwrap_or(i64::MAX)) };
    resources.set_memory(Some(with_swap(&mut memory, swap)));
}

fn with_swap(memory: &mut LinuxMemory, swap: i64) -> LinuxMemory {
    memory.set_swap(Some(swap));
    *memory
}

/// CPU time in each period, and the period, in µs; the first is absent without a limit, both without the controller.
fn cpu_quota(layout: &Layout, cgroup: &Cgroup) -> (Option<u64>, Option<u64>) {
    // `max`, and v1's -1, do not parse as this type.
    let number = |text: &str| text.trim().parse().ok().filter(|limit| *limit < UNLIMITED);
    if layout.is_unified("cpu") {
        let both = layout.read(cgroup, "cpu", "cpu.max").unwrap_or_default();
        let (quota, period) = both.split_once(' ').unwrap_or_default();
        return (number(quota), number(period));
    }
    let file = |name| layout.read(cgroup, "cpu", name).and_then(|text| number(&text));
    (file("cpu.cfs_quota_us"), file("cpu.cfs_period_us"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_limit_is_none() {
        assert_eq!(limit("67108864"), Some(67_108_864));
        for text in ["max", "-1", "9223372036854771712", ""] {
            assert_eq!(limit(text), None, "{text:?}");
        }
    }
}
