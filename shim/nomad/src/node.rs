//! What of Nomad's request is about CPU time and memory, in the terms of a task description.
//!
//! Source: Nomad, drivers/shared/executor and client/lib/cgroupslib. Pure.

use bowline_model::{Error, Kind, Result};

use crate::proto::driver::{LinuxResources, Resources, TaskConfig};
use crate::settings::Topology;

/// The kernel's range of shares.
const SHARES: std::ops::RangeInclusive<u64> = 2..=262_144;

/// Where the agent makes a task's cgroups: on cgroup v1 in one such folder for each controller.
const CGROUPS: &str = "/sys/fs/cgroup";

/// A description takes no less, in CPUs.
const LEAST_CPUS: f64 = 0.01;

/// The limits that a task gets from its `resources`.
#[derive(Debug, Default, PartialEq)]
pub struct Limits {
    pub shares: Option<u64>,
    /// How many CPUs the task may use at most, if it may not use idle ones.
    pub cpus: Option<f64>,
    pub cpuset: Option<String>,
    /// In bytes, as the next.
    pub memory: Option<u64>,
    /// What the task can count on where its limit is above that.
    pub memory_low: Option<u64>,
}

impl Limits {
    /// What `resources` ask for on this node.
    ///
    /// # Errors
    /// `BadSpec` for an amount below zero.
    pub fn of(resources: &Resources, node: Topology, hard: bool) -> Result<Limits> {
        let none = LinuxResources::default();
        let linux = resources.linux_resources.as_ref().unwrap_or(&none);
        let allocated = resources.allocated_resources.as_ref();
        let asked = allocated.and_then(|all| all.cpu.as_ref()).map_or(0, |cpu| cpu.cpu_shares);
        let asked = if linux.cpu_shares > 0 { linux.cpu_shares } else { asked };
        let shares = u64::try_from(asked).map_err(|_| negative("resources.cpu", asked))?;
        let (memory, memory_low) = match allocated.and_then(|all| all.memory.as_ref()) {
            Some(memory) => memory_limits(memory.memory_mb, memory.memory_max_mb)?,
            None => (mebibytes("resources.memory", linux.memory_limit_bytes >> 20)?, None),
        };
        let cpus =
            (hard && linux.percent_ticks > 0.0).then(|| (linux.percent_ticks * f64::from(node.cores)).max(LEAST_CPUS));
        Ok(Limits {
            shares: (shares > 0).then(|| scaled(shares, node.total_mhz)),
            cpus,
            cpuset: Some(linux.cpuset_cpus.clone()).filter(|cpus| !cpus.is_empty()),
            memory,
            memory_low,
        })
    }
}

/// The task's cgroup, if the agent has made one: where it kills whatever is left of the task. On v1 it names that of cpuset,
/// which is in a partition: of all tasks without cores of their own, or of those that reserve some.
pub fn cgroup(task: &TaskConfig, cgroup_v2: bool) -> Option<String> {
    let linux = task.resources.as_ref()?.linux_resources.as_ref()?;
    let given = linux.cpuset_cgroup.strip_prefix(CGROUPS)?;
    if cgroup_v2 {
        return (given.len() > 1).then(|| given.to_owned());
    }
    let partition = given.strip_prefix("/cpuset")?;
    let scope = format!("{}.{}", task.alloc_id, task.name);
    let partition = partition.strip_suffix(&scope).and_then(|path| path.strip_suffix('/')).unwrap_or(partition);
    let (parent, _) = partition.rsplit_once('/')?;
    Some(format!("{parent}/{scope}"))
}

/// Shares are MHz; a node that has more of these than the kernel knows shares has them scaled.
fn scaled(mhz: u64, total_mhz: u64) -> u64 {
    let most = *SHARES.end();
    let shares = match total_mhz > most {
        true => u128::from(mhz) * u128::from(most) / u128::from(total_mhz),
        false => u128::from(mhz),
    };
    u64::try_from(shares).unwrap_or(most).clamp(*SHARES.start(), most)
}

/// The limit, and what is kept for the task below it. `memory_max` is 0 for none, -1 for no limit.
fn memory_limits(memory: i64, memory_max: i64) -> Result<(Option<u64>, Option<u64>)> {
    let reserved = mebibytes("resources.memory", memory)?;
    Ok(match memory_max {
        -1 => (None, reserved),
        most if most > memory => (mebibytes("resources.memory_max", most)?, reserved),
        _ => (reserved, None),
    })
}

fn mebibytes(field: &str, mib: i64) -> Result<Option<u64>> {
    let mib = u64::try_from(mib).map_err(|_| negative(field, mib))?;
    Ok((mib > 0).then(|| mib.saturating_mul(1 << 20)))
}

fn negative(field: &str, is: i64) -> Error {
    Error::new(Kind::BadSpec, format!("{field}: {is} is below zero"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::proto::driver::{AllocatedCpuResources, AllocatedMemoryResources, AllocatedTaskResources};

    const NODE: Topology = Topology { cores: 4, total_mhz: 8000 };

    fn resources(shares: i64, memory_mb: i64, memory_max_mb: i64, linux: LinuxResources) -> Resources {
        let allocated = AllocatedTaskResources {
            cpu: Some(AllocatedCpuResources { cpu_shares: shares }),
            memory: Some(AllocatedMemoryResources { memory_mb, memory_max_mb }),
            networks: Vec::new(),
        };
        Resources { allocated_resources: Some(allocated), linux_resources: Some(linux), ports: Vec::new() }
    }

    #[test]
    fn memory_max_has_three_meanings() {
        const MIB: u64 = 1 << 20;
        for (memory, most, expected) in [
            (64, 0, (Some(64 * MIB), None)),
            (64, 256, (Some(256 * MIB), Some(64 * MIB))),
            (64, -1, (None, Some(64 * MIB))),
            (64, 64, (Some(64 * MIB), None)),
            (0, 0, (None, None)),
        ] {
            let of = resources(0, memory, most, LinuxResources::default());
            let limits = Limits::of(&of, NODE, false).expect("amounts above zero");
            assert_eq!((limits.memory, limits.memory_low), expected, "{memory} {most}");
        }
        let error = Limits::of(&resources(0, -5, 0, LinuxResources::default()), NODE, false).unwrap_err();
        assert_eq!(error.message(), "resources.memory: -5 is below zero");
    }

    #[test]
    fn shares_stay_in_the_kernels_range() {
        for (mhz, total, shares) in [
            (1, 8000, 2),
            (500, 8000, 500),
            (500_000, 8000, 262_144),
            (1000, 524_288, 500),
            (524_288, 524_288, 262_144),
        ] {
            assert_eq!(scaled(mhz, total), shares, "{mhz} of {total}");
        }
    }

    #[test]
    fn a_hard_limit_is_the_tasks_part_of_all_cores() {
        let linux = LinuxResources { percent_ticks: 0.25, ..LinuxResources::default() };
        let resources = resources(2000, 64, 0, linux);
        let of = |hard| Limits::of(&resources, NODE, hard).expect("amounts above zero");
        assert_eq!((of(true).cpus, of(false).cpus), (Some(1.0), None));
    }

    #[test]
    fn the_agents_cgroup_is_the_one_by_which_it_ends_a_task() {
        for (v2, given, cgroup) in [
            (true, "/sys/fs/cgroup/nomad.slice/share.slice/a.web.scope", Some("/nomad.slice/share.slice/a.web.scope")),
            (false, "/sys/fs/cgroup/cpuset/nomad/share", Some("/nomad/a.web")),
            (false, "/sys/fs/cgroup/cpuset/nomad/reserve/a.web", Some("/nomad/a.web")),
            (false, "/sys/fs/cgroup/cpuset/of/mine/share", Some("/of/mine/a.web")),
            (true, "", None),
            (false, "", None),
        ] {
            let linux = LinuxResources { cpuset_cgroup: given.to_owned(), ..LinuxResources::default() };
            let (alloc_id, name) = ("a".to_owned(), "web".to_owned());
            let resources = Some(resources(100, 64, 0, linux));
            let task = TaskConfig { resources, alloc_id, name, ..TaskConfig::default() };
            assert_eq!(super::cgroup(&task, v2).as_deref(), cgroup, "{given}");
        }
    }
}
