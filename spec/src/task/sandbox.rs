//! A sandbox: what its members may use together, and the network that they share.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::left_out::is_default;
use super::{Cpu, Memory, Network, Task};
use crate::class::Class;
use crate::id::TaskId;
use crate::values::{ByteSize, Ceiling, Place};

/// A sandbox: tasks under one budget.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sandbox {
    /// The sandbox's id; made up by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<TaskId>,
    /// Where its cgroup is: a path that ends with its id, such as `/ecs/web`, or with a slash, behind which the id
    /// comes; or a slice of systemd's, such as `ecstasks-web.slice`. Below `/bowline` by default. Without a name, it is
    /// named as its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// CPU time of all members together. Without shares and a limit, its shares are the sum over the members.
    #[serde(skip_serializing_if = "is_default")]
    pub cpu: Cpu,
    /// Memory of all members together. Swap is not limited by default, but in each member that has a memory limit.
    #[serde(skip_serializing_if = "is_default")]
    pub memory: Memory,
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
    /// The prefix of the overhead cgroup's name, such as `kata_`, for tools that know cgroups by name; none by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead_prefix: Option<String>,
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

/// Where the joint limits of a sandbox come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Budget {
    /// They are given with the sandbox, as to the ECS agent; shares, where no CPU limit is, are the members' sum.
    #[default]
    Given,
    /// CPU time is what the members may have together, as in Kata; the rest is given.
    Members,
    /// All but pids is what the members ask for and may have, as the kubelet makes it of a pod's containers; on cgroup
    /// v2 with `memory.min` and `memory.high`, of the sandbox and of each member.
    Pod,
}

impl Budget {
    /// The name that commands and descriptions use.
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
    /// There are no joint limits; those that are asked for are ignored, which is said.
    Off,
}

impl Sandbox {
    /// The limits of huge pages in bytes, by the page's size in bytes.
    pub(crate) fn page_limits(&self) -> BTreeMap<u64, u64> {
        // `validate` has refused what is no size.
        let limit = |(size, most): (&String, &ByteSize)| Some((size.parse::<ByteSize>().ok()?.as_u64(), most.as_u64()));
        self.hugepages.iter().filter_map(limit).collect()
    }
}
