//! The limits of a cgroup, as data: read from an OCI configuration (`oci`) or a file of cgroup v2 (`file`) once, rendered
//! by `v1`, `v2` and `systemd`.
//!
//! Pure.

pub mod file;
pub mod number;
pub mod oci;

use oci_spec::runtime::LinuxDeviceCgroup;

pub use oci::{check_devices, check_swap};

use crate::values::{Amount, CpuQuota, Device, Ids, IoWeight, Rate};

#[derive(Debug, Clone, PartialEq)]
pub enum Limit {
    /// The rule for all devices, or an exception from it, as v1 keeps them; v1 only.
    Device(LinuxDeviceCgroup),
    /// Bytes of memory.
    MemoryMax(Amount),
    /// Bytes of memory and swap together; and of memory alone, if known.
    MemoryAndSwapMax { both: Amount, memory: Option<u64> },
    /// Bytes of swap alone.
    SwapMax(Amount),
    /// Bytes of compressed swap.
    ZswapMax(Amount),
    /// Whether compressed pages may be written to swap.
    ZswapWriteback(bool),
    /// Bytes above which the task is slowed down.
    MemoryHigh(Amount),
    /// Bytes below which memory is reclaimed from others first.
    MemoryLow(Amount),
    /// Bytes that are never reclaimed.
    MemoryMin(Amount),
    /// How readily memory is swapped out: 0 to 200, before Linux 5.8 to 100.
    Swappiness(u64),
    /// The share of CPU time, where 1024 is the default.
    CpuShares(u64),
    /// The share of CPU time on v2's scale, where 100 is the default.
    CpuWeight(u64),
    /// CPU time in each period.
    CpuQuota(CpuQuota),
    /// CPU time in µs in an unchanged period, as v2's file takes it. Negative is no limit.
    CpuQuotaAlone(i64),
    /// The CPUs that may be used.
    Cpus(Ids),
    /// The memory nodes that may be used.
    MemoryNodes(Ids),
    /// The most processes and threads.
    Pids(Amount),
    /// The share of disk time, of one device or of all.
    IoWeight { device: Option<Device>, weight: IoWeight },
    /// The most that may be read from or written to a device in a second.
    IoRate { device: Device, of: Rate, most: Amount },
    /// Bytes in huge pages of a size, as the kernel writes it: `2MB`.
    Hugepages { size: String, most: Amount },
    /// Whether the task has CPU time only where nobody else wants it: 0 or 1.
    CpuIdle(i64),
    /// CPU time in µs that was left over from earlier periods and may be used in a later one.
    CpuBurst(u64),
    /// Handles and objects of an RDMA device; what is not there stays as it is.
    Rdma { device: String, handles: Option<u32>, objects: Option<u32> },
    /// That what is below the cgroup counts with it.
    UseHierarchy,
    /// That nothing is killed when memory runs out; v1 only.
    OomKillDisabled,
    /// How often time for realtime scheduling is renewed, in µs; v1 only.
    RealtimePeriod(u64),
    /// CPU time for realtime scheduling in each such period, in µs; v1 only.
    RealtimeRuntime(i64),
    /// The share of disk time beside the cgroups below, of one device or of all; v1 only.
    IoLeafWeight { device: Option<Device>, weight: u16 },
    /// The class of network packets; v1 only.
    NetClass(u32),
    /// The priority of network packets through an interface; v1 only.
    NetPriority { interface: String, priority: u32 },
    /// A v2 file without a variant here, or a value that only the kernel parses.
    Raw { file: String, value: String },
}

impl Limit {
    /// Whether it is a share of CPU time, which a task does not have that idles.
    pub fn weighs(&self) -> bool {
        match self {
            Limit::CpuShares(_) | Limit::CpuWeight(_) => true,
            Limit::Raw { file, .. } => file == "cpu.weight.nice",
            _ => false,
        }
    }

    /// The field of the configuration that asks for what only v1 has: errors name it.
    pub fn field(&self) -> Option<&'static str> {
        Some(match self {
            Limit::UseHierarchy => "memory.useHierarchy",
            Limit::OomKillDisabled => "memory.disableOOMKiller",
            Limit::RealtimePeriod(_) => "cpu.realtimePeriod",
            Limit::RealtimeRuntime(_) => "cpu.realtimeRuntime",
            Limit::IoLeafWeight { device: None, .. } => "blockIO.leafWeight",
            Limit::IoLeafWeight { device: Some(_), .. } => "blockIO.weightDevice.leafWeight",
            Limit::NetClass(_) => "network.classID",
            Limit::NetPriority { .. } => "network.priorities",
            _ => return None,
        })
    }
}
