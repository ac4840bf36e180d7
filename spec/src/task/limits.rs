//! How much CPU time, memory and block I/O the task may use.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::values::{ByteSize, Ceiling, Cpus, Duration, IdSet};

/// How often a quota is renewed where nobody says otherwise, in µs.
pub const DEFAULT_PERIOD_US: u64 = 100_000;

/// How often the kernel renews the time for realtime scheduling, in µs.
pub(crate) const REALTIME_PERIOD_US: u64 = 1_000_000;

/// CPU time of a task, or of all members of a sandbox together.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cpu {
    /// The weight against other cgroups under contention: 2 to 262144; for a task the kernel's 1024 by default. For a
    /// sandbox or its members, other values become the nearest valid one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<u64>,
    /// The most CPU time, in CPUs; at least 0.01 with the default period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Cpus>,
    /// How often the limit is renewed: 1ms to 1s; 100ms by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<Duration>,
    /// CPU time for realtime scheduling per `realtime_period`, such as `10ms`; none by default. cgroup v1 only; at most
    /// what the cgroups above have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realtime: Option<Duration>,
    /// How often that is renewed; 1s by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realtime_period: Option<Duration>,
    /// The CPUs to run on, such as `0-1,3`; all by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<IdSet>,
    /// The memory nodes to use; all by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mems: Option<IdSet>,
}

impl Cpu {
    /// The period in µs, with its default.
    pub fn period_us(&self) -> u64 {
        period_us(self.period)
    }

    /// The quota per period, in µs, where there is a limit.
    pub fn quota_us(&self) -> Option<i64> {
        self.limit.map(|limit| limit.quota_us(self.period_us()))
    }
}

impl Cpu {
    /// Runtime and period for realtime scheduling, in µs, where there is any.
    pub fn realtime_us(&self) -> Option<(u64, u64)> {
        let period = self.realtime_period.map_or(REALTIME_PERIOD_US, us);
        self.realtime.map(|runtime| (us(runtime), period))
    }
}

/// `period` in µs, with its default.
fn period_us(period: Option<Duration>) -> u64 {
    period.map_or(DEFAULT_PERIOD_US, us)
}

fn us(span: Duration) -> u64 {
    u64::try_from(span.as_std().as_micros()).unwrap_or(u64::MAX)
}

/// Memory and swap of a task, or of all members of a sandbox together.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// The most memory, at least 6M; above it processes are killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<ByteSize>,
    /// Above this, processes are slowed down and memory is reclaimed; cgroup v2 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<ByteSize>,
    /// How much the kernel spares when memory is short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<ByteSize>,
    /// Swap beyond the memory limit. A task has none by default on cgroup v2, and as little as possible on v1
    /// (swappiness 0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<Ceiling<ByteSize>>,
}

/// Block device weights and rates.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Io {
    /// The weight against other cgroups: 10 to 1000, as in OCI; the kernel's by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Weights and rates by device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<IoDevice>,
}

/// Weight and rates on one block device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("required" = ["path"]))]
pub struct IoDevice {
    /// The device: a path on the host, or its numbers as `8:0`.
    pub path: String,
    /// The weight on it: 10 to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// The most read, in bytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bps: Option<ByteSize>,
    /// The most written, in bytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bps: Option<ByteSize>,
    /// The most reads a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_iops: Option<u64>,
    /// The most writes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_iops: Option<u64>,
}
