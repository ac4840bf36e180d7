//! The limits of a cgroup as its files have them, in one form for v1 and v2.

use std::fs;
use std::path::Path;

use super::kernel;

/// What the kernel holds a cgroup to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// CPU time and period in µs, `50000 100000` or `max 100000`.
    pub cpu: String,
    /// CPU shares; on v2 the weight that is made of them: see [`weight`].
    pub weight: u64,
    /// The CPUs that it may run on in the end.
    pub cpus: String,
    /// The most memory in bytes, or `max`.
    pub memory: String,
    /// What it is spared of, in bytes; v1 has that as a soft limit, of which `max` is none.
    pub low: String,
    /// Where it is slowed down, in bytes or `max`; v2 only.
    pub high: Option<String>,
    /// The most processes, or `max`.
    pub pids: String,
}

impl Limits {
    /// Those of the cgroup at `path` below every hierarchy.
    #[track_caller]
    pub fn of(path: &str) -> Limits {
        let file = |controller: &str, file: &str| kernel::hierarchy(controller).join(&path[1..]).join(file);
        let read = |controller: &str, name: &str| read(&file(controller, name));
        let number = |text: String| text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        if kernel::only_v2() {
            return Limits {
                cpu: read("cpu", "cpu.max"),
                weight: number(read("cpu", "cpu.weight")),
                cpus: read("cpuset", "cpuset.cpus.effective"),
                memory: read("memory", "memory.max"),
                low: read("memory", "memory.low"),
                high: Some(read("memory", "memory.high")),
                pids: read("pids", "pids.max"),
            };
        }
        let quota = read("cpu", "cpu.cfs_quota_us");
        let quota = if quota == "-1" { "max".to_owned() } else { quota };
        // As much as there could be in whole pages is no limit.
        let bytes = |name: &str| {
            let bytes = number(read("memory", name));
            if bytes > 1 << 62 { "max".to_owned() } else { bytes.to_string() }
        };
        Limits {
            cpu: format!("{quota} {}", read("cpu", "cpu.cfs_period_us")),
            weight: number(read("cpu", "cpu.shares")),
            cpus: read("cpuset", "cpuset.effective_cpus"),
            memory: bytes("memory.limit_in_bytes"),
            low: bytes("memory.soft_limit_in_bytes"),
            high: None,
            pids: read("pids", "pids.max"),
        }
    }
}

/// What a cgroup's weight is with so many CPU shares: on v1 the shares.
///
/// Source of v2's: runc ≥ 1.3.2 and crun.
pub fn weight(shares: u64) -> u64 {
    if !kernel::only_v2() {
        return shares;
    }
    let l = (shares as f64).log2();
    if shares <= 2 { 1 } else { 10f64.powf((l * l + 125.0 * l) / 612.0 - 7.0 / 34.0).ceil() as u64 }
}

#[track_caller]
fn read(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
    text.trim_end().to_owned()
}
