//! Which rule makes a sandbox's joint budget, and that each member fits.

use std::collections::BTreeMap;

use super::cpu::{SHARES, clamped};
use super::{Class, Joint, Member, MemoryQos, Needs, ecs, kata, kubelet};
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
    /// What was changed of what it asks for, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Share {
    /// The share of the task `name` with these OCI resources.
    ///
    /// # Errors
    /// As [`Member::of_oci`].
    pub fn of(name: &str, task: &Task, resources: &oci_spec::runtime::LinuxResources) -> Result<Share, Invalid> {
        Ok(Share { member: Member::of_oci(name, resources)?, needs: Needs::of(task), notes: Vec::new() })
    }
}

/// What `sandbox` as a whole may use with these members, and its class. `memory_qos` is this host's, if it has memory
/// on cgroup v2; only the kubelet's rule uses it.
///
/// # Errors
/// A member that cannot have what it asks for, with both figures; a CPU limit
/// below what the kernel takes.
pub fn joint(sandbox: &Sandbox, shares: &[Share], memory_qos: Option<MemoryQos>) -> Result<(Class, Joint), Invalid> {
    let members: Vec<Member> = shares.iter().map(|share| share.member.clone()).collect();
    let needs: Vec<Needs> = shares.iter().map(|share| share.needs.clone()).collect();
    let changed = shares.iter().flat_map(|share| share.notes.iter().cloned());
    if sandbox.cgroup == Enforcement::Off {
        let ignored = limits_of(sandbox)
            .into_iter()
            .map(|field| format!("the sandbox: {field} is ignored, as cgroup is \"off\""));
        return Ok((sandbox.class(&needs), Joint { notes: changed.chain(ignored).collect(), ..Joint::default() }));
    }
    let mut joint = match sandbox.budget {
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
                memory_qos,
                ..kubelet::Settings::default()
            };
            let (_, made) = kubelet::joint(&needs, &settings);
            let swap = sandbox.memory.swap.and_then(at).map(ByteSize::as_u64).filter(|_| made.memory.is_some());
            // Without a limit of all members a period has its effect by what others limit.
            let period_us = made.period_us.or(sandbox.cpu.period.map(|_| settings.period_us));
            Joint { cpus: sandbox.cpu.cpuset.clone(), mems: sandbox.cpu.mems.clone(), swap, period_us, ..made }
        }
    };
    for member in &members {
        match sandbox.budget {
            // What the members add up to may be less than one of them has, where their periods differ: that is in a note.
            Budget::Members => ecs::fits(&joint, &Member { quota_us: None, rt_runtime_us: None, ..member.clone() }),
            Budget::Given | Budget::Pod => ecs::fits(&joint, member),
        }?;
    }
    joint.notes.splice(..0, changed);
    Ok((sandbox.class(&needs), joint))
}

/// `joint` as cgroup v1 takes it, which holds a member's CPU time to its sandbox's.
pub fn held_by_parent(sandbox: &Sandbox, joint: Joint, shares: &[Share]) -> Joint {
    if sandbox.budget != Budget::Members || sandbox.cgroup == Enforcement::Off {
        return joint;
    }
    let members: Vec<Member> = shares.iter().map(|share| share.member.clone()).collect();
    kata::raised(joint, &members)
}

/// The fields of the joint limits that `sandbox` asks for.
fn limits_of(sandbox: &Sandbox) -> Vec<&'static str> {
    let (cpu, memory) = (&sandbox.cpu, &sandbox.memory);
    let all = [
        ("cpu.shares", cpu.shares.is_some()),
        ("cpu.limit", cpu.limit.is_some()),
        ("cpu.realtime", cpu.realtime.is_some()),
        ("cpu.cpuset", cpu.cpuset.is_some()),
        ("cpu.mems", cpu.mems.is_some()),
        ("memory.limit", memory.limit.is_some()),
        ("memory.high", memory.high.is_some()),
        ("memory.low", memory.low.is_some()),
        ("memory.swap", memory.swap.is_some()),
        ("pids", sandbox.pids.is_some()),
        ("hugepages", !sandbox.hugepages.is_empty()),
    ];
    all.into_iter().filter(|(_, asked)| *asked).map(|(field, _)| field).collect()
}

/// CPU shares that a member asks for, as they are counted and written, and a note if that changed them: what the kernel
/// does not take becomes the nearest that it does. For the budget that members make, 0 asks for none, as in Kata.
pub fn settled_shares(sandbox: &Sandbox, name: &str, asked: Option<u64>) -> (Option<u64>, Vec<String>) {
    let asked = asked.filter(|shares| *shares > 0 || sandbox.budget != Budget::Members);
    let mut notes = Vec::new();
    let settled = asked.map(|shares| clamped(name, shares, &mut notes));
    (settled, notes)
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

/// The files of cgroup v2 by which `member`'s own memory is spared and slowed down, each that its description does
/// not name itself: only the kubelet's rule makes some.
///
/// Source: kubernetes, `generateLinuxContainerResources` in pkg/kubelet/kuberuntime.
pub fn own_memory(sandbox: &Sandbox, member: &Task, memory_qos: Option<MemoryQos>) -> BTreeMap<String, String> {
    let by_rule = sandbox.budget == Budget::Pod && sandbox.cgroup != Enforcement::Off;
    let Some(qos) = memory_qos.filter(|_| by_rule) else { return BTreeMap::new() };
    let (min, high) = qos.of_container(&Needs::of(member));
    let named = |file: &str| member.unified.contains_key(file) || file == "memory.high" && member.memory.high.is_some();
    let min = min.unwrap_or_default().to_string();
    let high = high.map_or_else(|| "max".to_owned(), |high| high.to_string());
    let files = [("memory.min", min), ("memory.high", high)].into_iter().filter(|(file, _)| !named(file));
    files.map(|(file, value)| (file.to_owned(), value)).collect()
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
        Share { member, needs: Needs::of(&task), notes: Vec::new() }
    }

    fn joint(sandbox: &str, shares: &[Share]) -> Result<(Class, Joint), Invalid> {
        super::joint(&parse_sandbox(sandbox, Format::Toml).unwrap(), shares, None)
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
        let unlimited = joint("budget = 'pod'\ncpu.period = '50ms'", &[share("one", None, "")]).unwrap().1;
        assert_eq!((unlimited.quota_us, unlimited.period_us), (None, Some(50_000)));
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
    fn a_pods_member_is_spared_what_it_asks_for() {
        let qos = MemoryQos::new(1 << 30, 4096);
        let files = |sandbox: &str, task: &str| {
            let sandbox = parse_sandbox(sandbox, Format::Toml).unwrap();
            let task = parse(&format!("command = 'true'\n{task}"), Format::Toml).unwrap();
            let files = own_memory(&sandbox, &task, Some(qos)).into_iter();
            files.map(|(file, value)| format!("{file}={value}")).collect::<Vec<_>>().join(" ")
        };
        let pod = "budget = 'pod'";
        let half = "memory = {limit = '64M', low = '32M'}";
        assert_eq!(files(pod, half), "memory.high=63750144 memory.min=33554432");
        assert_eq!(files(pod, "memory.limit = '64M'"), "memory.high=max memory.min=67108864");
        assert_eq!(files(pod, ""), "memory.high=max memory.min=0");
        assert_eq!(files(pod, "memory = {limit = '64M', low = '32M', high = '48M'}"), "memory.min=33554432");
        assert_eq!(files(pod, &format!("{half}\nunified = {{'memory.min' = '0'}}")), "memory.high=63750144");
        for sandbox in ["", "budget = 'members'", "budget = 'pod'\ncgroup = 'off'"] {
            assert_eq!(files(sandbox, half), "", "{sandbox}");
        }
        let of_pod = |qos| {
            let sandbox = parse_sandbox(pod, Format::Toml).unwrap();
            let joint = super::joint(&sandbox, &[share("one", None, half)], qos).unwrap().1;
            (joint.memory_min, joint.memory_high)
        };
        assert_eq!((of_pod(Some(qos)), of_pod(None)), ((Some(32 << 20), Some(63_750_144)), (None, None)));
    }

    #[test]
    fn shares_that_the_kernel_does_not_take_are_settled_and_said() {
        let settled = |budget: &str, asked| {
            let sandbox = parse_sandbox(&format!("budget = '{budget}'"), Format::Toml).unwrap();
            let (shares, notes) = settled_shares(&sandbox, "web", Some(asked));
            (shares, notes.len())
        };
        for budget in ["given", "members", "pod"] {
            for (asked, expected) in
                [(1, (2, 1)), (2, (2, 0)), (262_144, (262_144, 0)), (262_145, (262_144, 1)), (u64::MAX, (262_144, 1))]
            {
                assert_eq!(settled(budget, asked), (Some(expected.0), expected.1), "{budget}: {asked}");
            }
        }
        assert_eq!([settled("given", 0), settled("pod", 0)], [(Some(2), 1); 2]);
        assert_eq!(settled("members", 0), (None, 0), "zero is unset");
        let share = Share { notes: vec!["web: said".into()], ..share("web", None, "") };
        assert_eq!(joint("", &[share]).unwrap().1.notes, ["web: said"]);
    }

    #[test]
    fn a_limit_that_nothing_enforces_is_ignored_and_said() {
        let large = share("large", None, "memory.limit = '2G'");
        let (class, joint) = joint("cgroup = 'off'\nmemory.limit = '1G'\npids = 3", &[large]).unwrap();
        let said =
            ["memory.limit", "pids"].map(|field| format!("the sandbox: {field} is ignored, as cgroup is \"off\""));
        assert_eq!((class, joint), (Class::Burstable, Joint { notes: said.into(), ..Joint::default() }));
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
        let (_, joint) = joint("budget = 'members'", &[fast, slow]).unwrap();
        assert_eq!((joint.quota_us, joint.notes.len()), (Some(19_000), 1), "said, and not refused: {joint:?}");
    }
}
