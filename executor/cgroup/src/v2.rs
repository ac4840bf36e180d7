//! What is specific to cgroup v2: its files, `cgroup.kill` and `cgroup.freeze`, and controllers
//! that are handed down level by level.
//!
//! Source of files and formats: the kernel's admin-guide/cgroup-v2.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use bowline_error::Result;
use bowline_sys as sys;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use crate::limit::Limit;
use crate::tree::{members_below, open_dir, read_at, signal_below, write_at};
use crate::values::{Amount, CpuQuota, Device, IoWeight, PERIOD};
use crate::write::{self, Write};

/// The file through which a process joins a cgroup.
pub const PROCS: &str = "cgroup.procs";

/// The file through which a thread joins a cgroup of a threaded subtree.
pub const THREADS: &str = "cgroup.threads";

/// The file that says whether a cgroup is in a threaded subtree.
pub const TYPE: &str = "cgroup.type";

/// The file by which a cgroup is frozen.
pub const FREEZE: &str = "cgroup.freeze";

/// The file that kills all processes at once, since Linux 5.14.
const KILL: &str = "cgroup.kill";

/// The file of the memory limit.
const MEMORY_MAX: &str = "memory.max";

/// The file of a device's rates, and the word that lifts them.
const IO_MAX: &str = "io.max";
const NO_IO_MAX: &str = "rbps=max wbps=max riops=max wiops=max";

/// The file of weights, and the word that removes a device's weight.
const IO_WEIGHT: &str = "io.weight";
const NO_IO_WEIGHT: &str = "default";

/// The weight of a cgroup that nobody has given one, of CPU time and of disks.
pub const DEFAULT_WEIGHT: u64 = 100;

/// The file of weights where BFQ schedules.
const BFQ_WEIGHT: &str = "io.bfq.weight";

/// The controllers that limit and account tasks.
const WANTED: [&str; 8] = ["cpu", "cpuset", "io", "memory", "pids", "hugetlb", "rdma", "misc"];

/// Hands the controllers of the cgroup `dir` down to its children.
///
/// A limit whose controller is not available fails later on its missing file. If the kernel refuses
/// all controllers together, they are tried one by one, except for a cgroup with processes of its
/// own (EBUSY): it would take cpu, cpuset and pids alone, which makes it the root of a threaded
/// subtree, whose children take no process.
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

/// The write for `limit`. Devices are not among them: see `devices`.
pub fn write(limit: &Limit) -> Option<Write> {
    let amount =
        |controller, file: &str, most: Amount| Some(Write::new(controller, file, most).met_without(most.0.is_none()));
    match limit {
        // `version_support` refuses limits that only v1 has, or logs that they have no effect. `UseHierarchy` needs no
        // file: every cgroup of v2 counts what is below it.
        Limit::Device(_)
        | Limit::Swappiness(_)
        | Limit::UseHierarchy
        | Limit::OomKillDisabled
        | Limit::RealtimePeriod(_)
        | Limit::RealtimeRuntime(_)
        | Limit::IoLeafWeight { .. }
        | Limit::NetClass(_)
        | Limit::NetPriority { .. } => None,
        Limit::CpuIdle(idle) => Some(Write::cpu_idle(*idle)),
        Limit::CpuBurst(burst) => Some(Write::new("cpu", "cpu.max.burst", burst).met_without(*burst == 0)),
        Limit::Rdma { device, handles, objects } => Some(Write::rdma(device, *handles, *objects)),
        Limit::MemoryMax(most) => amount("memory", MEMORY_MAX, *most),
        Limit::MemoryAndSwapMax { .. } | Limit::SwapMax(_) => {
            let most = swap(limit)?;
            // A kernel that does not count swap gives a task none.
            let none = most.0.is_none_or(|most| most == 0);
            Some(Write::new("memory", "memory.swap.max", most).met_without(none))
        }
        Limit::ZswapMax(most) => amount("memory", "memory.zswap.max", *most),
        Limit::ZswapWriteback(may) => {
            Some(Write::new("memory", "memory.zswap.writeback", u8::from(*may)).met_without(*may))
        }
        Limit::MemoryHigh(most) => amount("memory", "memory.high", *most),
        Limit::MemoryLow(low) => amount("memory", "memory.low", *low),
        Limit::MemoryMin(min) => amount("memory", "memory.min", *min),
        Limit::CpuShares(_) | Limit::CpuWeight(_) => Some(Write::new("cpu", "cpu.weight", cpu_weight(limit)?)),
        Limit::CpuQuota(CpuQuota { quota, period }) => {
            let quota = Amount(quota.and_then(|quota| u64::try_from(quota).ok()).filter(|quota| *quota > 0));
            Some(Write::new("cpu", "cpu.max", format_args!("{quota} {}", period.unwrap_or(PERIOD))))
        }
        Limit::CpuQuotaAlone(quota) => Some(Write::new("cpu", "cpu.max", Amount(u64::try_from(*quota).ok()))),
        Limit::Cpus(cpus) => Some(Write::new("cpuset", "cpuset.cpus", &cpus.text)),
        Limit::MemoryNodes(nodes) => Some(Write::new("cpuset", "cpuset.mems", &nodes.text)),
        Limit::Pids(most) => Some(Write::pids(*most)),
        Limit::IoWeight { device, weight } => {
            let figure = io_weight(*weight);
            let write = match device {
                None => Write::new("io", IO_WEIGHT, format_args!("default {figure}")),
                Some(device) => Write::of_device("io", IO_WEIGHT, *device, figure, NO_IO_WEIGHT),
            };
            // A kernel without io.cost has weights only where BFQ schedules, in v1's range.
            Some(match (weight, device) {
                (IoWeight::Io(_), _) => write,
                (IoWeight::Blkio(weight), None) => write.or(BFQ_WEIGHT, weight),
                (IoWeight::Blkio(weight), Some(device)) => write.or(BFQ_WEIGHT, format_args!("{device} {weight}")),
            })
        }
        Limit::IoRate { device, of, most } => {
            Some(Write::of_device("io", IO_MAX, *device, format_args!("{}={most}", of.key()), NO_IO_MAX))
        }
        Limit::Hugepages { size, most } => amount("hugetlb", &format!("hugetlb.{size}.max"), *most),
        Limit::Raw { file, value } => {
            let key = value.split_once(' ').map(|(key, _)| key).filter(|key| key.contains(':'));
            let none = match file.as_str() {
                IO_MAX => NO_IO_MAX,
                IO_WEIGHT => NO_IO_WEIGHT,
                _ => "0",
            };
            Some(Write { line: key.map(|key| (key.to_owned(), none)), ..Write::new("", file, value) })
        }
    }
}

/// The value that the kernel gives the file of `write` when it makes it; `None` for a file that systemd does not know.
pub fn default_of(write: &Write) -> Option<String> {
    if let Some((key, none)) = &write.line {
        return Some(format!("{key} {none}"));
    }
    Some(match write.file.as_str() {
        "memory.low" | "memory.min" => "0".to_owned(),
        "memory.zswap.writeback" => "1".to_owned(),
        "memory.max" | "memory.high" | "memory.swap.max" | "memory.zswap.max" | "pids.max" => "max".to_owned(),
        "cpu.max" => format!("max {PERIOD}"),
        "cpu.weight" => DEFAULT_WEIGHT.to_string(),
        "cpuset.cpus" | "cpuset.mems" => String::new(),
        IO_WEIGHT => format!("default {DEFAULT_WEIGHT}"),
        _ => return None,
    })
}

/// The device whose weight a raw value removes.
pub fn without_weight(limit: &Limit) -> Option<Device> {
    let Limit::Raw { file, value } = limit else { return None };
    let (device, word) = value.split_once(' ')?;
    Device::parse(device).filter(|_| file == IO_WEIGHT && word.trim() == NO_IO_WEIGHT)
}

/// The limit of swap alone: OCI's figure is for memory and swap together.
pub fn swap(limit: &Limit) -> Option<Amount> {
    match limit {
        Limit::MemoryAndSwapMax { both, memory } => {
            Some(Amount(both.0.map(|both| both.saturating_sub(memory.unwrap_or(0)))))
        }
        Limit::SwapMax(most) => Some(*most),
        _ => None,
    }
}

/// The memory limit in effect; `None` if there is none.
pub fn memory_max(dir: BorrowedFd<'_>) -> Option<u64> {
    read_at(dir, MEMORY_MAX).ok()?.trim().parse().ok()
}

/// Reclaims memory until no more than `most` bytes are used: when more is in use than a new limit
/// allows, the kernel kills.
pub fn make_room(dir: BorrowedFd<'_>, most: u64) -> Result<()> {
    let used = || read_at(dir, "memory.current").ok()?.trim().parse::<u64>().ok();
    for _ in 0..3 {
        let Some(excess) = used().and_then(|used| used.checked_sub(most)).filter(|excess| *excess > 0) else {
            return Ok(());
        };
        // EAGAIN: not all of it could be reclaimed. Linux < 5.19 has no such file.
        let _ = write_at(dir, "memory.reclaim", &excess.to_string());
    }
    match used() {
        Some(used) if used > most => Err(write::no_room(MEMORY_MAX, most, &used.to_string())),
        _ => Ok(()),
    }
}

/// The share of CPU time, as a weight.
pub fn cpu_weight(limit: &Limit) -> Option<u64> {
    match limit {
        Limit::CpuShares(shares) => weight_of_shares(*shares),
        Limit::CpuWeight(weight) => Some(*weight),
        _ => None,
    }
}

/// The share of disk time, as a weight.
pub fn io_weight(weight: IoWeight) -> u64 {
    match weight {
        IoWeight::Blkio(weight) => weight_of_blkio(weight),
        IoWeight::Io(weight) => weight,
    }
}

/// Converts v1 shares (2–262144) to a v2 weight (1–10000), so that 1024 becomes 100. Source: runc ≥
/// 1.3.2 and crun; the older linear rule made 1024 a 39.
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

/// Converts blkio's weight (10–1000) to io's (1–10000): linear, as in runc and crun.
fn weight_of_blkio(weight: u16) -> u64 {
    1 + (u64::from(weight).saturating_sub(10)) * 9999 / 990
}

/// Opens the file that counts how often memory ran out; wait for changes with POLLPRI.
pub fn open_memory_events(dir: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    openat(dir, "memory.events", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Starts to freeze the processes below `dir`, or thaws them.
pub fn freeze(dir: BorrowedFd<'_>, frozen: bool) -> rustix::io::Result<()> {
    write_at(dir, FREEZE, if frozen { "1" } else { "0" })
}

/// Whether every process below `dir` has stopped.
pub fn is_frozen(dir: BorrowedFd<'_>) -> bool {
    read_at(dir, "cgroup.events").is_ok_and(|events| events.lines().any(|line| line == "frozen 1"))
}

/// Whether the processes of the cgroup `dir` are to be frozen by itself.
pub fn is_frozen_itself(dir: BorrowedFd<'_>) -> bool {
    read_at(dir, FREEZE).is_ok_and(|text| text.trim() == "1")
}

/// Whether nothing freezes the processes of the cgroup `dir`: with a parent they freeze too.
pub fn is_thawed(dir: BorrowedFd<'_>) -> bool {
    let wanted = read_at(dir, FREEZE).is_ok_and(|text| text.trim() == "0");
    let events = read_at(dir, "cgroup.events");
    wanted && events.is_ok_and(|events| events.lines().any(|line| line == "frozen 0"))
}

/// Whether the processes in the cgroup at `path` below `top` are to be frozen, by themselves or with a parent.
pub fn is_held(top: BorrowedFd<'_>, path: &str) -> bool {
    let is_frozen = |path: &Path| {
        let dir = open_dir(top, path.strip_prefix("/").unwrap_or(path));
        dir.is_ok_and(|dir| is_frozen_itself(dir.as_fd()))
    };
    Path::new(path).ancestors().any(is_frozen)
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
        // Freeze them while they are signalled, so that none forks.
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
    fn a_file_that_is_not_there_yet_has_its_default() {
        let default = |limit| default_of(&write(&limit).expect("a file"));
        assert_eq!(default(Limit::MemoryHigh(Amount(Some(1)))).as_deref(), Some("max"));
        assert_eq!(default(Limit::CpuQuotaAlone(5000)).as_deref(), Some("max 100000"));
        let weight = Limit::IoWeight { device: Some(Device(8, 0)), weight: IoWeight::Io(5) };
        assert_eq!(default(weight).as_deref(), Some("8:0 default"));
        assert_eq!(default(Limit::CpuBurst(1)), None);
    }

    #[test]
    fn swap_equal_to_the_limit_means_no_swap() {
        let limit = Limit::MemoryAndSwapMax { both: Amount(Some(64 << 20)), memory: Some(64 << 20) };
        let written = write(&limit).expect("a swap limit");
        assert_eq!((written.file.as_str(), written.value.as_str()), ("memory.swap.max", "0"));
    }
}
