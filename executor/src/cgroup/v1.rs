//! What is particular to cgroup v1: its controllers, its files, its freezer.

use std::fmt::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType, LinuxResources};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags, openat};

use super::limits::Limit;
use super::tree::{collect_processes, names_below, open_dir, read_at, signal_below, write_at};
use crate::error::{Error, Kind, Result};

/// The file that a thread joins a cgroup by.
pub const TASKS: &str = "tasks";
/// The hierarchy whose subtree says which processes a task has: execs with a
/// deadline have a child cgroup there.
pub const FREEZER: &str = "freezer";

/// Controllers that can be mounted as v1 (cgroups(7)).
pub const CONTROLLERS: [&str; 14] = [
    "cpu",
    "cpuacct",
    "cpuset",
    "memory",
    "devices",
    "freezer",
    "blkio",
    "pids",
    "net_cls",
    "net_prio",
    "perf_event",
    "hugetlb",
    "rdma",
    "misc",
];

/// `resources` as writes, in an order in which the kernel takes them.
pub fn limits(resources: &LinuxResources) -> Result<Vec<Limit>> {
    let mut out = Vec::new();
    let mut put = |controller, file: &str, value: String| out.push(Limit::new(controller, file, value));
    for rule in resources.devices().iter().flatten() {
        let file = if rule.allow() { "devices.allow" } else { "devices.deny" };
        put("devices", file, device_rule(rule));
    }
    if let Some(memory) = resources.memory() {
        // The limit first: a new cgroup's memory+swap limit is unlimited, and
        // the kernel wants it at or above the memory limit at all times.
        let files = [
            ("memory.limit_in_bytes", memory.limit()),
            ("memory.memsw.limit_in_bytes", memory.swap()),
            ("memory.soft_limit_in_bytes", memory.reservation()),
        ];
        for (file, value) in files {
            if let Some(value) = value {
                put("memory", file, value.to_string());
            }
        }
        if let Some(swappiness) = memory.swappiness() {
            put("memory", "memory.swappiness", swappiness.to_string());
        }
    }
    if let Some(cpu) = resources.cpu() {
        if let Some(shares) = cpu.shares() {
            put("cpu", "cpu.shares", shares.to_string());
        }
        if let Some(period) = cpu.period() {
            put("cpu", "cpu.cfs_period_us", period.to_string());
        }
        if let Some(quota) = cpu.quota() {
            put("cpu", "cpu.cfs_quota_us", quota.to_string());
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
        // The names of a kernel whose only scheduler with weights is BFQ (≥ 5.0).
        if let Some(weight) = io.weight() {
            let weight = weight.to_string();
            out.push(Limit::new("blkio", "blkio.weight", &weight).or("blkio.bfq.weight", &weight));
        }
        for device in io.weight_device().iter().flatten() {
            if let Some(weight) = device.weight() {
                let weight = format!("{}:{} {weight}", device.major(), device.minor());
                let limit = Limit::new("blkio", "blkio.weight_device", &weight);
                out.push(limit.or("blkio.bfq.weight_device", weight));
            }
        }
        let rates = [
            ("blkio.throttle.read_bps_device", io.throttle_read_bps_device()),
            ("blkio.throttle.write_bps_device", io.throttle_write_bps_device()),
            ("blkio.throttle.read_iops_device", io.throttle_read_iops_device()),
            ("blkio.throttle.write_iops_device", io.throttle_write_iops_device()),
        ];
        for (file, devices) in rates {
            for device in devices.iter().flatten() {
                let rate = format!("{}:{} {}", device.major(), device.minor(), device.rate());
                out.push(Limit::new("blkio", file, rate));
            }
        }
    }
    if let Some((key, value)) = resources.unified().iter().flatten().min() {
        return Err(Error::new(
            Kind::Unsupported,
            format!("cannot set {key} to {value}: it is a cgroup v2 key, and this host has cgroup v1"),
        ));
    }
    Ok(out)
}

/// A rule in the form of the devices controller: `c 1:3 rwm`.
fn device_rule(rule: &LinuxDeviceCgroup) -> String {
    let kind = match rule.typ().unwrap_or(LinuxDeviceType::A) {
        LinuxDeviceType::B => 'b',
        LinuxDeviceType::C | LinuxDeviceType::U => 'c',
        // "a" alone stands for every device and every access.
        LinuxDeviceType::A | LinuxDeviceType::P => return "a".to_owned(),
    };
    let number = |n: Option<i64>| n.filter(|n| *n >= 0).map_or("*".to_owned(), |n| n.to_string());
    let mut text = format!("{kind} {}:{}", number(rule.major()), number(rule.minor()));
    let access = rule.access().as_deref().unwrap_or("rwm");
    // Writing to a String cannot fail.
    let _ = write!(text, " {access}");
    text
}

/// Sees to it that processes can join the cgroup at `path` below `top`: a new
/// v1 cpuset is empty, and gets what its parent has, from the top down.
pub fn fill_cpusets(top: BorrowedFd<'_>, path: &str) -> rustix::io::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        fill_cpuset(top, path, file)?;
    }
    Ok(())
}

/// What `file` of the cgroup at `path` holds once it is filled.
fn fill_cpuset(top: BorrowedFd<'_>, path: &str, file: &str) -> rustix::io::Result<String> {
    let own = if path.is_empty() { file.to_owned() } else { format!("{path}/{file}") };
    let value = read_at(top, &own)?.trim().to_owned();
    if !value.is_empty() || path.is_empty() {
        return Ok(value);
    }
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    let value = fill_cpuset(top, parent, file)?;
    write_at(top, &own, &value)?;
    Ok(value)
}

/// What is wrong with a memory limit that the kernel could not reclaim down to.
pub fn no_room(dir: BorrowedFd<'_>, limit: &str) -> Error {
    let used = read_at(dir, "memory.usage_in_bytes").unwrap_or_default();
    super::limits::no_room("memory.limit_in_bytes", limit, used.trim())
}

/// Registers an eventfd that is written to when memory has run out in `dir` or
/// above it; returns it, and the file that counts the kills.
pub fn register_oom(dir: BorrowedFd<'_>) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let counter = openat(dir, "memory.oom_control", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    write_at(dir, "cgroup.event_control", &format!("{} {}", event.as_raw_fd(), counter.as_raw_fd()))?;
    Ok((event, counter))
}

/// Asks for the processes below `dir` to be frozen, or thawed.
pub fn freeze(dir: BorrowedFd<'_>, frozen: bool) -> rustix::io::Result<()> {
    write_at(dir, "freezer.state", if frozen { "FROZEN" } else { "THAWED" })
}

/// Whether every process below `dir` has stopped.
pub fn is_frozen(dir: BorrowedFd<'_>) -> bool {
    read_at(dir, "freezer.state").is_ok_and(|state| state.trim() == "FROZEN")
}

/// Whether who is in the cgroup at `path` below `top` is frozen, also with a
/// parent, or about to be. The root cgroup has no such file.
pub fn is_held(top: BorrowedFd<'_>, path: &str) -> bool {
    let state = read_at(top, format!("{path}/freezer.state").trim_start_matches('/'));
    state.is_ok_and(|state| state.trim() != "THAWED")
}

/// Thaws `dir` and all below it: one that was frozen by itself stays so when
/// its parent is thawed.
pub fn thaw_below(dir: BorrowedFd<'_>) {
    // Somebody may remove it meanwhile.
    let _ = freeze(dir, false);
    for name in names_below(dir) {
        if let Ok(child) = open_dir(dir, Path::new(&name)) {
            thaw_below(child.as_fd());
        }
    }
}

/// Sends SIGKILL to every process below `dir`; returns a pidfd of each. They
/// are frozen while their pids are looked up, so that none forks.
pub fn kill_below(dir: BorrowedFd<'_>) -> Vec<OwnedFd> {
    let mut pids = Vec::new();
    collect_processes(dir, &mut pids);
    if pids.is_empty() {
        return Vec::new();
    }
    let _ = freeze(dir, true);
    let killed = signal_below(dir, libc::SIGKILL);
    // A frozen process does not die: with a frozen parent, see `Layout::free`.
    let _ = freeze(dir, false);
    killed
}
