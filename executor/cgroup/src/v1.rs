//! What is specific to cgroup v1: its controllers, its files, its freezer.

use std::fmt::{Display, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use bowline_error::Error;
use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags, openat};

use crate::limit::Limit;
use crate::tree::{collect_processes, names_below, open_dir, read_at, signal_below, write_at};
use crate::values::{Amount, CpuQuota, IoWeight, Rate};
use crate::write::{self, Write};

/// The file through which a thread joins a cgroup.
pub const TASKS: &str = "tasks";
/// The hierarchy whose subtree says which processes a task has: execs with a deadline have a child cgroup in it.
pub const FREEZER: &str = "freezer";
/// The file by which a cgroup is frozen.
pub const STATE: &str = "freezer.state";
const THAWED: &str = "THAWED";

/// The file of the memory limit.
const MEMORY_MAX: &str = "memory.limit_in_bytes";
/// The file of the limit of memory and swap together.
const MEMORY_AND_SWAP_MAX: &str = "memory.memsw.limit_in_bytes";
const CPU_QUOTA: &str = "cpu.cfs_quota_us";
const CPU_PERIOD: &str = "cpu.cfs_period_us";

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

pub fn writes(limit: &Limit) -> Vec<Write> {
    let one = |controller, file: &str, value: &dyn Display| vec![Write::new(controller, file, value)];
    match limit {
        Limit::Device(rule) => {
            one("devices", if rule.allow() { "devices.allow" } else { "devices.deny" }, &device_rule(rule))
        }
        Limit::MemoryMax(most) => one("memory", MEMORY_MAX, &amount(*most)),
        // A kernel that does not count swap gives a task none.
        Limit::MemoryAndSwapMax { both, .. } => {
            let write = Write::new("memory", MEMORY_AND_SWAP_MAX, amount(*both));
            vec![write.met_without(both.0.is_none())]
        }
        Limit::MemoryLow(low) => one("memory", "memory.soft_limit_in_bytes", &amount(*low)),
        Limit::Swappiness(swappiness) => one("memory", "memory.swappiness", swappiness),
        Limit::CpuShares(shares) => one("cpu", "cpu.shares", shares),
        Limit::CpuQuota(CpuQuota { quota, period }) => {
            let period = period.map(|period| Write::new("cpu", CPU_PERIOD, period));
            let quota = quota.map(|quota| Write::new("cpu", CPU_QUOTA, quota));
            period.into_iter().chain(quota).collect()
        }
        Limit::Cpus(cpus) => one("cpuset", "cpuset.cpus", &cpus.text),
        Limit::MemoryNodes(nodes) => one("cpuset", "cpuset.mems", &nodes.text),
        Limit::Pids(most) => vec![Write::pids(*most)],
        // The file names of a kernel (≥ 5.0) whose only scheduler with weights is BFQ.
        Limit::IoWeight { device: None, weight: IoWeight::Blkio(weight) } => {
            vec![Write::new("blkio", "blkio.weight", weight).or("blkio.bfq.weight", weight)]
        }
        Limit::IoWeight { device: Some(device), weight: IoWeight::Blkio(weight) } => {
            let write = Write::of_device("blkio", "blkio.weight_device", *device, weight, "0");
            vec![write.or("blkio.bfq.weight_device", format!("{device} {weight}"))]
        }
        Limit::IoRate { device, of, most } => {
            let file = match of {
                Rate::BytesRead => "blkio.throttle.read_bps_device",
                Rate::BytesWritten => "blkio.throttle.write_bps_device",
                Rate::Reads => "blkio.throttle.read_iops_device",
                Rate::Writes => "blkio.throttle.write_iops_device",
            };
            vec![Write::of_device("blkio", file, *device, most.0.unwrap_or(0), "0")]
        }
        Limit::Hugepages { size, most } => one("hugetlb", &format!("hugetlb.{size}.limit_in_bytes"), &amount(*most)),
        Limit::CpuIdle(idle) => vec![Write::cpu_idle(*idle)],
        Limit::CpuBurst(burst) => vec![Write::new("cpu", "cpu.cfs_burst_us", burst).met_without(*burst == 0)],
        Limit::Rdma { device, handles, objects } => vec![Write::rdma(device, *handles, *objects)],
        // Every cgroup has it since Linux 5.11.
        Limit::UseHierarchy => vec![Write::new("memory", "memory.use_hierarchy", 1).met_without(true)],
        Limit::OomKillDisabled => one("memory", "memory.oom_control", &1),
        Limit::RealtimePeriod(period) => one("cpu", "cpu.rt_period_us", period),
        Limit::RealtimeRuntime(time) => one("cpu", "cpu.rt_runtime_us", time),
        Limit::IoLeafWeight { device: None, weight } => one("blkio", "blkio.leaf_weight", weight),
        Limit::IoLeafWeight { device: Some(device), weight } => {
            vec![Write::of_device("blkio", "blkio.leaf_weight_device", *device, weight, "0")]
        }
        Limit::NetClass(class) => one("net_cls", "net_cls.classid", class),
        Limit::NetPriority { interface, priority } => {
            vec![Write::of_line("net_prio", "net_prio.ifpriomap", interface, priority, "0")]
        }
        // `Layout::limits` refuses limits that only v2 has.
        Limit::SwapMax(_)
        | Limit::ZswapMax(_)
        | Limit::ZswapWriteback(_)
        | Limit::MemoryHigh(_)
        | Limit::MemoryMin(_)
        | Limit::CpuWeight(_)
        | Limit::CpuQuotaAlone(_)
        | Limit::IoWeight { weight: IoWeight::Io(_), .. }
        | Limit::Raw { .. } => Vec::new(),
    }
}

/// A figure of the memory and hugetlb controllers.
fn amount(most: Amount) -> String {
    most.0.map_or_else(|| "-1".to_owned(), |most| most.to_string())
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

/// Lets processes join the cgroup at `path` below `top`: a new v1 cpuset is empty, and gets what
/// its parent has, from the top down.
pub fn fill_cpusets(top: BorrowedFd<'_>, path: &str) -> rustix::io::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        fill_cpuset(top, path, file)?;
    }
    Ok(())
}

/// Fills `file` of the cgroup at `path` if it is empty, and returns what it holds then.
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

/// The error for a memory limit that the kernel could not reclaim down to.
pub fn no_room(dir: BorrowedFd<'_>, limit: &str) -> Error {
    let used = read_at(dir, "memory.usage_in_bytes").unwrap_or_default();
    write::no_room(MEMORY_MAX, limit, used.trim())
}

/// Which other limit makes the kernel call this one invalid, as far as the files of `dir` tell.
pub fn conflict(dir: BorrowedFd<'_>, limit: &Limit) -> Option<String> {
    match limit {
        Limit::MemoryMax(most) => {
            let both: u64 = read_at(dir, MEMORY_AND_SWAP_MAX).ok()?.trim().parse().ok()?;
            let is_above = most.0.is_none_or(|most| most > both);
            is_above.then(|| format!("memory and swap together have a limit of {both} bytes: set that too"))
        }
        Limit::CpuQuota(CpuQuota { quota, period }) => {
            let asked = Bandwidth::of(dir, Path::new("."), *quota, *period)?;
            if let Some(above) =
                Bandwidth::of(dir, Path::new(".."), None, None).filter(|above| above.is_less_than(&asked))
            {
                return Some(format!("the cgroup above it has {above}"));
            }
            names_below(dir).into_iter().find_map(|name| {
                let below =
                    Bandwidth::of(dir, Path::new(&name), None, None).filter(|below| asked.is_less_than(below))?;
                Some(format!("cgroup {} below it has {below}", name.display()))
            })
        }
        _ => None,
    }
}

/// A limit of CPU time: µs in each period.
struct Bandwidth {
    quota: u64,
    period: u64,
}

impl Bandwidth {
    /// That of a cgroup, seen from `dir`, where a value that is given counts instead of its file's.
    fn of(dir: BorrowedFd<'_>, cgroup: &Path, quota: Option<i64>, period: Option<u64>) -> Option<Bandwidth> {
        let read = |file| read_at(dir, cgroup.join(file).to_str()?).ok()?.trim().parse().ok();
        let quota = quota.or_else(|| read(CPU_QUOTA)).and_then(|quota| u64::try_from(quota).ok())?;
        let period = period.or_else(|| read(CPU_PERIOD).and_then(|period| u64::try_from(period).ok()))?;
        Some(Bandwidth { quota, period })
    }

    fn is_less_than(&self, other: &Bandwidth) -> bool {
        u128::from(self.quota) * u128::from(other.period) < u128::from(other.quota) * u128::from(self.period)
    }
}

impl Display for Bandwidth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a quota of {} in {} µs", self.quota, self.period)
    }
}

/// Registers an eventfd to which the kernel writes when memory has run out in `dir` or above it;
/// returns the eventfd, and the file that counts the kills.
pub fn register_oom(dir: BorrowedFd<'_>) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let counter = openat(dir, "memory.oom_control", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    write_at(dir, "cgroup.event_control", &format!("{} {}", event.as_raw_fd(), counter.as_raw_fd()))?;
    Ok((event, counter))
}

/// Starts to freeze the processes below `dir`, or thaws them.
pub fn freeze(dir: BorrowedFd<'_>, frozen: bool) -> rustix::io::Result<()> {
    write_at(dir, STATE, if frozen { "FROZEN" } else { THAWED })
}

/// Whether every process below `dir` has stopped.
pub fn is_frozen(dir: BorrowedFd<'_>) -> bool {
    read_at(dir, STATE).is_ok_and(|state| state.trim() == "FROZEN")
}

/// Whether the processes of the cgroup `dir` are to be frozen by itself.
pub fn is_frozen_itself(dir: BorrowedFd<'_>) -> bool {
    read_at(dir, "freezer.self_freezing").is_ok_and(|text| text.trim() == "1")
}

/// Whether nothing freezes the processes of the cgroup `dir`, which may be frozen with a parent too.
pub fn is_thawed(dir: BorrowedFd<'_>) -> bool {
    read_at(dir, STATE).is_ok_and(|state| state.trim() == THAWED)
}

/// Whether the processes in the cgroup at `path` below `top` are frozen, by themselves or with a
/// parent, or about to be. The root cgroup has no such file.
pub fn is_held(top: BorrowedFd<'_>, path: &Path) -> bool {
    let cgroup = open_dir(top, path.strip_prefix("/").unwrap_or(path));
    let state = cgroup.and_then(|dir| read_at(dir.as_fd(), STATE));
    state.is_ok_and(|state| state.trim() != THAWED)
}

/// Thaws `dir` and everything below it: a cgroup that was frozen by itself stays frozen when its parent is thawed.
pub fn thaw_below(dir: BorrowedFd<'_>) {
    // Another process may remove it meanwhile.
    let _ = freeze(dir, false);
    for name in names_below(dir) {
        if let Ok(child) = open_dir(dir, Path::new(&name)) {
            thaw_below(child.as_fd());
        }
    }
}

/// Sends SIGKILL to every process below `dir`; returns a pidfd of each. The processes are frozen
/// while their pids are looked up, so that none forks.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Device;

    #[test]
    fn what_only_v1_has_is_written_to_its_files() {
        let leaf_weight = |device| Limit::IoLeafWeight { device, weight: 300 };
        let cases = [
            (Limit::UseHierarchy, "memory.use_hierarchy", "1"),
            (Limit::OomKillDisabled, "memory.oom_control", "1"),
            (Limit::RealtimePeriod(1000), "cpu.rt_period_us", "1000"),
            (Limit::RealtimeRuntime(-1), "cpu.rt_runtime_us", "-1"),
            (leaf_weight(None), "blkio.leaf_weight", "300"),
            (leaf_weight(Some(Device(8, 16))), "blkio.leaf_weight_device", "8:16 300"),
            (Limit::NetClass(7), "net_cls.classid", "7"),
            (Limit::NetPriority { interface: "lo".into(), priority: 3 }, "net_prio.ifpriomap", "lo 3"),
        ];
        for (limit, file, value) in cases {
            let written: Vec<_> = writes(&limit).into_iter().map(|write| (write.file, write.value)).collect();
            assert_eq!(written, [(file.to_owned(), value.to_owned())]);
            assert!(limit.field().is_some(), "{limit:?}");
        }
    }

    #[test]
    fn what_the_kernel_calls_invalid_is_explained_by_other_files() {
        let above = std::env::temp_dir().join(format!("bowline-conflict-{}", std::process::id()));
        let own = above.join("own");
        std::fs::create_dir_all(own.join("below")).expect("a folder of ours");
        let write = |at: &str, file: &str, value: &str| {
            std::fs::write(own.join(at).join(file), value).expect("a folder of ours")
        };
        for (at, quota) in [("..", "100000"), (".", "-1"), ("below", "50000")] {
            write(at, CPU_QUOTA, quota);
            write(at, CPU_PERIOD, "100000\n");
        }
        write(".", MEMORY_AND_SWAP_MAX, "1000\n");
        let dir = open_dir(rustix::fs::CWD, &own).expect("a folder of ours");
        let quota = |quota, period| conflict(dir.as_fd(), &Limit::CpuQuota(CpuQuota { quota, period }));
        let memory = |most| conflict(dir.as_fd(), &Limit::MemoryMax(Amount(most)));
        assert_eq!(
            quota(Some(60_000), Some(50_000)).expect("a conflict"),
            "the cgroup above it has a quota of 100000 in 100000 µs"
        );
        assert_eq!(
            quota(Some(40_000), None).expect("a conflict"),
            "cgroup below below it has a quota of 50000 in 100000 µs"
        );
        assert_eq!((quota(Some(50_000), None), quota(Some(-1), None)), (None, None));
        assert!(memory(Some(1001)).expect("a conflict").contains("a limit of 1000 bytes") && memory(None).is_some());
        assert_eq!(memory(Some(1000)), None);
        std::fs::remove_dir_all(above).expect("a folder of ours");
    }

    #[test]
    fn what_is_not_said_of_an_rdma_device_is_left_alone() {
        let value = |handles, objects| Write::rdma("mlx5_0", handles, objects).value;
        assert_eq!(value(Some(2), Some(3)), "mlx5_0 hca_handle=2 hca_object=3");
        assert_eq!(value(None, Some(3)), "mlx5_0 hca_object=3");
    }
}
