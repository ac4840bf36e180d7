//! What is particular to cgroup v2: its files, `cgroup.kill` and
//! `cgroup.freeze`, controllers that are handed down level by level.
//!
//! Source of files and formats: the kernel's admin-guide/cgroup-v2.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use oci_spec::runtime::LinuxResources;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::limits::{self, Limit};
use super::tree::{members_below, read_at, signal_below, write_at};
use crate::error::Result;
use crate::sys;

/// The file that a process joins a cgroup by.
pub const PROCS: &str = "cgroup.procs";

/// The file that a thread joins a cgroup of a threaded subtree by.
pub const THREADS: &str = "cgroup.threads";

/// The file that says whether a cgroup is of such a subtree.
pub const TYPE: &str = "cgroup.type";

/// The file that kills all at once, since Linux 5.14.
const KILL: &str = "cgroup.kill";

/// Controllers that tasks are limited and accounted by.
const WANTED: [&str; 6] = ["cpu", "cpuset", "io", "memory", "pids", "hugetlb"];

/// Hands the controllers of the cgroup `dir` down to its children.
///
/// A limit that needs one which could not be had says so by its missing file.
/// One by one where all together are refused, but for a cgroup with processes
/// of its own (EBUSY): cpu, cpuset and pids alone it would take, which makes
/// it the root of a threaded subtree, whose children take no process.
pub fn hand_down_controllers(dir: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let there = read_at(dir, "cgroup.controllers")?;
    let handed = read_at(dir, "cgroup.subtree_control")?;
    let lists = |text: &str, name: &str| text.split_whitespace().any(|word| word == name);
    let missing = WANTED.into_iter().filter(|name| lists(&there, name) && !lists(&handed, name));
    let missing: Vec<String> = missing.map(|name| format!("+{name}")).collect();
    if missing.is_empty() {
        return Ok(());
    }
    match write_at(dir, "cgroup.subtree_control", &missing.join(" ")) {
        Ok(()) => return Ok(()),
        Err(Errno::BUSY) => {
            tracing::debug!("controllers are not handed down by a cgroup with processes");
            return Ok(());
        }
        Err(_) => {}
    }
    for controller in missing {
        if let Err(errno) = write_at(dir, "cgroup.subtree_control", &controller) {
            tracing::debug!(%errno, controller, "controller not handed down");
        }
    }
    Ok(())
}

/// `resources` as writes, in an order in which the kernel takes them. Devices
/// are not among them: see `devices`.
pub fn limits(resources: &LinuxResources) -> Vec<Limit> {
    let mut out = Vec::new();
    let mut put = |controller, file: &str, value: String| out.push(Limit::new(controller, file, value));
    if let Some(memory) = resources.memory() {
        if let Some(limit) = memory.limit() {
            put("memory", "memory.max", amount(limit));
        }
        if let Some(swap) = memory.swap() {
            // OCI's figure is memory and swap together.
            let beyond = if swap < 0 { swap } else { swap - memory.limit().unwrap_or(0).max(0) };
            put("memory", "memory.swap.max", amount(beyond));
        }
        if let Some(low) = memory.reservation() {
            put("memory", "memory.low", amount(low));
        }
    }
    if let Some(cpu) = resources.cpu() {
        if let Some(weight) = cpu.shares().and_then(weight_of_shares) {
            put("cpu", "cpu.weight", weight.to_string());
        }
        if cpu.quota().is_some() || cpu.period().is_some() {
            let quota = cpu.quota().filter(|quota| *quota > 0);
            let quota = quota.map_or_else(|| "max".to_owned(), |quota| quota.to_string());
            put("cpu", "cpu.max", format!("{quota} {}", cpu.period().unwrap_or(100_000)));
        }
        if let Some(cpus) = cpu.cpus() {
            put("cpuset", "cpuset.cpus", cpus.clone());
        }
        if let Some(mems) = cpu.mems() {
            put("cpuset", "cpuset.mems", mems.clone());
        }
    }
    if let Some(pids) = resources.pids() {
        let limit = pids.limit();
        put("pids", "pids.max", if limit > 0 { limit.to_string() } else { "max".to_owned() });
    }
    if let Some(io) = resources.block_io() {
        // A kernel without io.cost has weights only where BFQ schedules, in v1's range.
        if let Some(weight) = io.weight() {
            let limit = Limit::new("io", "io.weight", format!("default {}", weight_of_blkio(weight)));
            out.push(limit.or("io.bfq.weight", weight.to_string()));
        }
        for device in io.weight_device().iter().flatten() {
            if let Some(weight) = device.weight() {
                let device = format!("{}:{}", device.major(), device.minor());
                let limit = Limit::new("io", "io.weight", format!("{device} {}", weight_of_blkio(weight)));
                out.push(limit.or("io.bfq.weight", format!("{device} {weight}")));
            }
        }
        let rates = [
            ("rbps", io.throttle_read_bps_device()),
            ("wbps", io.throttle_write_bps_device()),
            ("riops", io.throttle_read_iops_device()),
            ("wiops", io.throttle_write_iops_device()),
        ];
        for (key, devices) in rates {
            for device in devices.iter().flatten() {
                // OCI's 0 is no limit.
                let rate = Some(device.rate()).filter(|rate| *rate > 0);
                let rate = rate.map_or_else(|| "max".to_owned(), |rate| rate.to_string());
                let value = format!("{}:{} {key}={rate}", device.major(), device.minor());
                out.push(Limit::new("io", "io.max", value));
            }
        }
    }
    let mut raw: Vec<(&String, &String)> = resources.unified().iter().flatten().collect();
    raw.sort_unstable();
    out.extend(raw.into_iter().map(|(file, value)| Limit::new("", file, value)));
    out
}

/// Reclaims memory until no more than `limit` is used: where the kernel finds
/// more in use than it is told to allow, it kills.
pub fn make_room(dir: BorrowedFd<'_>, limit: &str) -> Result<()> {
    let used = || read_at(dir, "memory.current").ok()?.trim().parse::<u64>().ok();
    let Ok(most) = limit.parse::<u64>() else {
        return Ok(());
    };
    for _ in 0..3 {
        let Some(excess) = used().and_then(|used| used.checked_sub(most)).filter(|excess| *excess > 0) else {
            return Ok(());
        };
        // EAGAIN: not all of it could be. Linux < 5.19 has no such file.
        let _ = write_at(dir, "memory.reclaim", &excess.to_string());
    }
    match used() {
        Some(used) if used > most => Err(limits::no_room("memory.max", limit, &used.to_string())),
        _ => Ok(()),
    }
}

/// Negative is "no limit" in OCI.
fn amount(bytes: i64) -> String {
    if bytes < 0 { "max".to_owned() } else { bytes.to_string() }
}

/// v1 shares (2–262144) as a v2 weight (1–10000), such that 1024 is 100.
/// Source: runc ≥ 1.3.2 and crun; the older linear rule made 1024 a 39.
fn weight_of_shares(shares: u64) -> Option<u64> {
    match shares {
        0 => None,
        1..=2 => Some(1),
        262_144.. => Some(10_000),
        _ => {
            let l = (shares as f64).log2();
            let exponent = (l * l + 125.0 * l) / 612.0 - 7.0 / 34.0;
            Some(10f64.powf(exponent).ceil() as u64)
        }
    }
}

/// blkio's weight (10–1000) as io's (1–10000): linear, as in runc and crun.
fn weight_of_blkio(weight: u16) -> u64 {
    1 + (u64::from(weight).saturating_sub(10)) * 9999 / 990
}

/// The file that counts how often memory ran out, to be waited for with POLLPRI.
pub fn open_memory_events(dir: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    openat(dir, "memory.events", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Asks for the processes below `dir` to be frozen, or thawed.
pub fn freeze(dir: BorrowedFd<'_>, frozen: bool) -> rustix::io::Result<()> {
    write_at(dir, "cgroup.freeze", if frozen { "1" } else { "0" })
}

/// Whether every process below `dir` has stopped.
pub fn is_frozen(dir: BorrowedFd<'_>) -> bool {
    read_at(dir, "cgroup.events").is_ok_and(|events| events.lines().any(|line| line == "frozen 1"))
}

/// Kills every process below `dir` at once; returns a pidfd of each.
pub fn kill_below(dir: BorrowedFd<'_>) -> Vec<OwnedFd> {
    let members = members_below(dir);
    if members.is_empty() {
        return members;
    }
    let killed = if sys::absent(KILL) { Err(Errno::NOENT) } else { write_at(dir, KILL, "1") };
    match killed {
        Ok(()) => members,
        // Frozen while they are signalled, so that none forks.
        Err(Errno::NOENT) => {
            let _ = freeze(dir, true);
            let killed = signal_below(dir, libc::SIGKILL);
            let _ = freeze(dir, false);
            killed
        }
        Err(errno) => {
            tracing::warn!(%errno, "cgroup.kill refused");
            signal_below(dir.as_fd(), libc::SIGKILL)
        }
    }
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::{LinuxMemoryBuilder, LinuxResourcesBuilder};

    use super::*;

    #[test]
    fn shares_become_weights() {
        let cases = [(0, None), (2, Some(1)), (1024, Some(100)), (262_144, Some(10_000)), (u64::MAX, Some(10_000))];
        for (shares, weight) in cases {
            assert_eq!(weight_of_shares(shares), weight, "{shares}");
        }
    }

    #[test]
    fn blkio_weights_cover_the_whole_range_of_io() {
        assert_eq!((weight_of_blkio(10), weight_of_blkio(1000)), (1, 10_000));
    }

    #[test]
    fn swap_equal_to_the_limit_means_no_swap() {
        let memory = LinuxMemoryBuilder::default().limit(64i64 << 20).swap(64i64 << 20).build().expect("memory");
        let resources = LinuxResourcesBuilder::default().memory(memory).build().expect("resources");
        let limits = limits(&resources);
        let swap = limits.iter().find(|l| l.file == "memory.swap.max").expect("a swap limit");
        assert_eq!(swap.value, "0");
    }
}
