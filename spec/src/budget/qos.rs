//! Which of the kubelet's three classes a sandbox is of, by what its members
//! ask for and may have at most.
//!
//! Source: kubernetes, pkg/apis/core/v1/helper/qos. Only CPU and memory count,
//! and zero is as good as nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use crate::class::Class;
use crate::task::{Sandbox, Task};
use crate::values::ByteSize;

/// CPU and memory; 0 is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Amounts {
    /// CPU time, in thousandths of a CPU.
    pub milli_cpu: u64,
    /// Memory, in bytes.
    pub memory: u64,
}

/// What a member asks for, and what it may have at most.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Needs {
    /// What the member is guaranteed, even when others want it.
    pub request: Amounts,
    /// What it gets at most.
    pub limit: Amounts,
    /// Memory in huge pages, in bytes, by the page's size in bytes; what is
    /// asked for and the limit are one there.
    pub hugepages: BTreeMap<u64, u64>,
}

impl Needs {
    /// The needs of a task: its limits, and what it asks for, which are its
    /// shares (1024 a CPU) and `memory.low`. Where it names none of these, it
    /// asks for its limit, as a container does in Kubernetes.
    pub fn of(task: &Task) -> Needs {
        // Rounded up: what the kubelet's conversions, which round down, were made from.
        let limit = Amounts {
            milli_cpu: task.cpu.limit.map_or(0, |limit| limit.quota_us(1_000_000).unsigned_abs().div_ceil(1000)),
            memory: task.memory.limit.map_or(0, ByteSize::as_u64),
        };
        let asked = task.cpu.shares.map(|shares| shares.saturating_mul(1000).div_ceil(1024));
        let request = Amounts {
            milli_cpu: asked.unwrap_or(limit.milli_cpu),
            memory: task.memory.low.map_or(limit.memory, ByteSize::as_u64),
        };
        let size = |(size, most): (&String, &ByteSize)| Some((size.parse::<ByteSize>().ok()?.as_u64(), most.as_u64()));
        Needs { request, limit, hugepages: task.hugepages.iter().filter_map(size).collect() }
    }
}

impl Sandbox {
    /// Its class: the one that is given, else what the members make of it.
    pub fn class(&self, members: &[Needs]) -> Class {
        self.qos.unwrap_or_else(|| class(members))
    }
}

/// The class of a sandbox with these members, those that run before the others
/// (Kubernetes' init containers) among them.
pub fn class(members: &[Needs]) -> Class {
    let nothing = Amounts::default();
    if members.iter().all(|needs| needs.request == nothing && needs.limit == nothing) {
        return Class::BestEffort;
    }
    let held = |needs: &Needs| needs.limit.milli_cpu > 0 && needs.limit.memory > 0 && needs.request == needs.limit;
    if members.iter().all(held) { Class::Guaranteed } else { Class::Burstable }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// As Kubernetes' tests write it: CPUs in thousandths and memory in MiB,
    /// asked for and at most.
    pub fn needs((cpu, memory): (u64, u64), (cpu_limit, memory_limit): (u64, u64)) -> Needs {
        let amounts = |milli_cpu, mib| Amounts { milli_cpu, memory: mib << 20 };
        Needs { request: amounts(cpu, memory), limit: amounts(cpu_limit, memory_limit), ..Needs::default() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::testing::needs;
    use super::*;
    use crate::parse::{Format, parse};

    /// The cases of TestComputePodQOS in qos_test.go, but for resources of a
    /// pod itself.
    #[test]
    fn classes_are_the_kubelets() {
        let (none, some) = (needs((0, 0), (0, 0)), needs((100, 100), (100, 100)));
        for (members, class) in [
            (vec![some.clone()], Class::Guaranteed),
            (vec![some.clone(), some.clone()], Class::Guaranteed),
            (vec![none.clone(), none.clone()], Class::BestEffort),
            (vec![none.clone()], Class::BestEffort),
            (vec![none.clone(), needs((1000, 0), (2000, 0))], Class::Burstable),
            (vec![none.clone(), needs((10, 100), (10, 100))], Class::Burstable),
            (vec![needs((0, 100), (0, 100))], Class::Burstable),
            (vec![needs((100, 100), (0, 0))], Class::Burstable),
            (vec![needs((1000, 100), (2000, 100)), some.clone()], Class::Burstable),
            (vec![needs((100, 100), (200, 200)), needs((100, 100), (0, 0))], Class::Burstable),
            (vec![needs((10, 100), (100, 200))], Class::Burstable),
            (vec![needs((0, 0), (100, 200))], Class::Burstable),
            // Huge pages do not count.
            (vec![Needs { hugepages: [(2 << 20, 1 << 30)].into(), ..none.clone() }], Class::BestEffort),
            // An init container does.
            (vec![none, needs((10, 100), (100, 200))], Class::Burstable),
            (vec![], Class::BestEffort),
        ] {
            assert_eq!(super::class(&members), class, "{members:?}");
        }
    }

    #[test]
    fn a_task_asks_for_its_limits_unless_it_says_less() {
        let of = |toml: &str| {
            let task = parse(&format!("command = 'true'\n{toml}"), Format::Toml).expect(toml);
            super::class(&[Needs::of(&task)])
        };
        assert_eq!(of(""), Class::BestEffort);
        assert_eq!(of("cpu.limit = 0.1\nmemory.limit = '64M'"), Class::Guaranteed);
        // 102 shares are what 0.1 CPUs are, by the kubelet's conversion.
        assert_eq!(of("cpu = {limit = 0.1, shares = 102}\nmemory.limit = '64M'"), Class::Guaranteed);
        assert_eq!(of("cpu = {limit = 0.1, shares = 51}\nmemory.limit = '64M'"), Class::Burstable);
        assert_eq!(of("cpu.limit = 0.1\nmemory = {limit = '64M', low = '32M'}"), Class::Burstable);
        assert_eq!(of("memory.limit = '64M'"), Class::Burstable);
    }

    #[test]
    fn a_class_is_printed_as_it_is_read() {
        for class in [Class::Guaranteed, Class::Burstable, Class::BestEffort] {
            assert_eq!(serde_json::to_value(class).unwrap(), class.to_string());
        }
    }
}
