//! Which rule makes a sandbox's joint budget, and that each member fits.

use super::{Class, Joint, Member, Needs, SHARES, ecs, kata, kubelet};
use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::task::{Budget, Enforcement, Sandbox, Task};
use crate::values::{ByteSize, Ceiling};

/// What a member may use, for every rule.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Share {
    /// Its limits, as they are written for the kernel.
    pub member: Member,
    /// What it asks for and may have, as a pod's container does.
    pub needs: Needs,
}

impl Share {
    /// That of the task `name` with these OCI resources.
    ///
    /// # Errors
    /// As [`Member::of_oci`].
    pub fn of(name: &str, task: &Task, resources: &oci_spec::runtime::LinuxResources) -> Result<Share, Invalid> {
        Ok(Share { member: Member::of_oci(name, resources)?, needs: Needs::of(task) })
    }
}

/// What `sandbox` as a whole may use with these members, and its class.
///
/// # Errors
/// A member that cannot have what it asks for, with both figures; a CPU limit
/// below what the kernel takes.
pub fn joint(sandbox: &Sandbox, shares: &[Share]) -> Result<(Class, Joint), Invalid> {
    let members: Vec<Member> = shares.iter().map(|share| share.member.clone()).collect();
    let needs: Vec<Needs> = shares.iter().map(|share| share.needs.clone()).collect();
    let joint = match sandbox.budget {
        Budget::Given => ecs::joint(sandbox, &members)?,
        Budget::Members => {
            // What is given of the rest, and of CPUs where nobody names any.
            let given = ecs::joint(sandbox, &[])?;
            let made = kata::joint(&members);
            Joint {
                shares: made.shares,
                quota_us: made.quota_us,
                period_us: made.period_us,
                rt_runtime_us: made.rt_runtime_us,
                rt_period_us: made.rt_period_us,
                cpus: given.cpus.clone().or(made.cpus),
                mems: given.mems.clone().or(made.mems),
                notes: made.notes,
                ..given
            }
        }
        Budget::Pod => {
            let settings = kubelet::Settings {
                period_us: sandbox.cpu.period_us(),
                pids: sandbox.pids.and_then(at),
                ..kubelet::Settings::default()
            };
            let (_, made) = kubelet::joint(&needs, &settings);
            let swap = sandbox.memory.swap.and_then(at).map(ByteSize::as_u64).filter(|_| made.memory.is_some());
            Joint { cpus: sandbox.cpu.cpuset.clone(), mems: sandbox.cpu.mems.clone(), swap, ..made }
        }
    };
    // What the members add up to may be less than one of them has, where their periods differ.
    members.iter().try_for_each(|member| ecs::fits(&joint, member))?;
    Ok((sandbox.class(&needs), joint))
}

/// The CPU shares of `member` in its own cgroup: what the joint budget counts for it, so that a member that asks for
/// nothing does not outweigh one that does. `None` leaves the kernel's default.
///
/// Source: amazon-ecs-agent, `dockerCPUShares` in agent/api/task; kubernetes, `calculateLinuxResources` in
/// pkg/kubelet/kuberuntime.
pub fn own_shares(sandbox: &Sandbox, member: &Task) -> Option<u64> {
    match sandbox.budget {
        _ if sandbox.cgroup == Enforcement::Off => member.cpu.shares,
        Budget::Given => member.cpu.shares.or(Some(*SHARES.start())),
        Budget::Members => member.cpu.shares,
        Budget::Pod => Some(kubelet::milli_cpu_to_shares(Needs::of(member).request.milli_cpu)),
    }
}

fn at<T>(most: Ceiling<T>) -> Option<T> {
    match most {
        Ceiling::At(most) => Some(most),
        Ceiling::Unlimited => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::parse::{Format, parse, parse_sandbox};

    fn share(name: &str, quota_us: Option<u64>, task: &str) -> Share {
        let task = parse(&format!("command = 'true'\n{task}"), Format::Toml).unwrap();
        let memory = task.memory.limit.map(ByteSize::as_u64);
        let member = Member { name: name.into(), quota_us, memory, ..Member::default() };
        Share { member, needs: Needs::of(&task) }
    }

    fn joint(sandbox: &str, shares: &[Share]) -> Result<(Class, Joint), Invalid> {
        super::joint(&parse_sandbox(sandbox, Format::Toml).unwrap(), shares)
    }

    #[test]
    fn each_rule_makes_the_whole_of_what_it_goes_by() {
        let one = share("one", Some(20_000), "cpu.limit = 0.2\nmemory.limit = '64M'");
        let two = share("two", Some(30_000), "cpu.limit = 0.3\nmemory.limit = '32M'");
        let of = |sandbox| joint(sandbox, &[one.clone(), two.clone()]).unwrap().1;
        let given = of("cpu.limit = 1\nmemory.limit = '1G'");
        assert_eq!((given.quota_us, given.memory), (Some(100_000), Some(1 << 30)));
        let members = of("budget = 'members'\nmemory.limit = '1G'\npids = 9");
        assert_eq!((members.quota_us, members.memory, members.pids), (Some(50_000), Some(1 << 30), Some(9)));
        let pod = of("budget = 'pod'\npids = 9");
        assert_eq!((pod.quota_us, pod.memory, pod.pids), (Some(50_000), Some(96 << 20), Some(9)));
    }

    #[test]
    fn a_member_weighs_in_its_own_cgroup_what_it_counts_for_in_the_sum() {
        let own = |sandbox: &str, task: &str| {
            let sandbox = parse_sandbox(sandbox, Format::Toml).unwrap();
            own_shares(&sandbox, &parse(&format!("command = 'true'\n{task}"), Format::Toml).unwrap())
        };
        for (sandbox, task, shares) in [
            ("", "", Some(2)),
            ("", "cpu.shares = 512", Some(512)),
            ("", "cpu.limit = 2", Some(2)),
            ("cgroup = 'off'", "", None),
            ("cgroup = 'off'", "cpu.shares = 300", Some(300)),
            ("budget = 'members'", "", None),
            ("budget = 'members'", "cpu.shares = 7", Some(7)),
            ("budget = 'pod'", "", Some(2)),
            ("budget = 'pod'", "cpu.limit = 0.25", Some(256)),
            ("budget = 'pod'", "cpu = {limit = 2, shares = 102}", Some(102)),
        ] {
            assert_eq!(own(sandbox, task), shares, "{sandbox}; {task}");
        }
    }

    #[test]
    fn the_class_is_given_or_what_the_members_make() {
        let held = share("one", Some(20_000), "cpu.limit = 0.2\nmemory.limit = '64M'");
        let class = |sandbox, shares: &[Share]| joint(sandbox, shares).unwrap().0;
        assert_eq!(class("", &[]), Class::BestEffort);
        assert_eq!(class("", std::slice::from_ref(&held)), Class::Guaranteed);
        assert_eq!(class("qos = 'burstable'", &[held]), Class::Burstable);
    }

    #[test]
    fn a_member_that_does_not_fit_is_refused_by_every_rule() {
        let large = share("large", None, "memory.limit = '2G'");
        let error = joint("memory.limit = '1G'", std::slice::from_ref(&large)).unwrap_err();
        assert_eq!(error.to_string(), "memory.limit: large asks for 2G, and its sandbox has 1G");
        let error = joint("budget = 'members'\nmemory.limit = '1G'", &[large]).unwrap_err();
        assert_eq!(error.field, "memory.limit");
        // 0.9 CPUs and 0.1 CPUs add up to 0.19 in Kata's way.
        let mut fast = share("fast", Some(9_000), "");
        fast.member.period_us = Some(10_000);
        let mut slow = share("slow", Some(10_000), "");
        slow.member.period_us = Some(100_000);
        let error = joint("budget = 'members'", &[fast, slow]).unwrap_err();
        assert_eq!(error.to_string(), "cpu.limit: fast asks for 0.9 CPUs, and its sandbox has 0.19");
    }
}
