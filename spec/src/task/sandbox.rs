//! A sandbox: what its members may use together, and the network that they share.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Network, Task, is_default};
use crate::budget::{Class, Needs, qos};
use crate::id::TaskId;
use crate::values::{ByteSize, Ceiling, Cpus, Duration, IdSet};

/// A sandbox: tasks under one budget.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sandbox {
    /// The sandbox's id; made up by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<TaskId>,
    /// CPU time of all members together.
    #[serde(skip_serializing_if = "is_default")]
    pub cpu: SandboxCpu,
    /// Memory of all members together.
    #[serde(skip_serializing_if = "is_default")]
    pub memory: SandboxMemory,
    /// The most processes and threads of all members together, at least 1; not
    /// limited by default, but in each of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<Ceiling<u64>>,
    /// Huge pages of all members together: the most memory by page size, such as
    /// `2MB = "64M"`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hugepages: BTreeMap<String, ByteSize>,
    /// Its class of service, as in Kubernetes; by default what its members'
    /// limits make of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<Class>,
    /// Where the joint limits come from; "given" by default.
    #[serde(skip_serializing_if = "is_default")]
    pub budget: Budget,
    /// What becomes of limits that this host cannot enforce; "required" by default.
    #[serde(skip_serializing_if = "is_default")]
    pub cgroup: Enforcement,
    /// The host name that its members share; the sandbox's id by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Whether its members see each other's processes; false by default.
    #[serde(skip_serializing_if = "is_default")]
    pub share_pid: bool,
    /// The network that its members share.
    #[serde(skip_serializing_if = "is_default")]
    pub network: Network,
    /// Where its shim and other helpers are charged; "beside" by default.
    #[serde(skip_serializing_if = "is_default")]
    pub overhead: Overhead,
    /// The members that it begins with, launched in this order; more can join.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Task>,
}

/// Where the shim of a sandbox, and what else helps it, is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Overhead {
    /// In a cgroup beside the sandbox's, without limits.
    #[default]
    Beside,
    /// In a cgroup inside it: within the joint limits.
    Inside,
    /// Where whoever makes the sandbox is.
    Inherit,
    /// In the root cgroup: to nobody.
    Root,
}

/// CPU time of all members of a sandbox together.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxCpu {
    /// The weight against other cgroups when CPU time is short: 2 to 262144. By
    /// default, and without a limit, the sum over the members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<u64>,
    /// The most CPU time, in CPUs; at least 0.01 with the default period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Cpus>,
    /// How often the limit is renewed: 1ms to 1s; 100ms by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<Duration>,
    /// The CPUs the members may run on, such as `0-1,3`; all by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<IdSet>,
    /// The memory nodes they may use; all by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mems: Option<IdSet>,
}

impl SandboxCpu {
    /// The period in µs, with its default.
    pub fn period_us(&self) -> u64 {
        super::period_us(self.period)
    }
}

/// Memory of all members of a sandbox together.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxMemory {
    /// The most memory, at least 6M; beyond it processes of the members are killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<ByteSize>,
    /// Beyond this the members are slowed down and reclaimed from; cgroup v2 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<ByteSize>,
    /// Up to this the kernel spares the members when memory is short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<ByteSize>,
    /// Swap beyond the memory limit; not limited by default, but in each member
    /// that has a memory limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<Ceiling<ByteSize>>,
}

/// Where the joint limits of a sandbox come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Budget {
    /// They are given with the sandbox, as to the ECS agent; shares, where no CPU limit is, are the members' sum.
    #[default]
    Given,
    /// CPU time is what the members may have together, as in Kata; the rest is given.
    Members,
    /// All but pids is what the members ask for and may have, as the kubelet makes it of a pod's containers.
    Pod,
}

impl Budget {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Budget::Given => "given",
            Budget::Members => "members",
            Budget::Pod => "pod",
        }
    }
}

/// What becomes of limits that this host cannot enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Enforcement {
    /// The sandbox is refused.
    #[default]
    Required,
    /// It runs without them, and says so.
    BestEffort,
    /// There are no joint limits, and none may be asked for.
    Off,
}

impl Sandbox {
    /// Its class: the one that is given, else what the members make of it.
    pub fn class(&self, members: &[Needs]) -> Class {
        self.qos.unwrap_or_else(|| qos::class(members))
    }

    /// The limits of huge pages in bytes, by the page's size in bytes.
    pub(crate) fn page_limits(&self) -> BTreeMap<u64, u64> {
        // `validate` has refused what is no size.
        let limit = |(size, most): (&String, &ByteSize)| Some((size.parse::<ByteSize>().ok()?.as_u64(), most.as_u64()));
        self.hugepages.iter().filter_map(limit).collect()
    }
}
