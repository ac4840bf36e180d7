//! A joint budget that is what the members add up to, as Kata makes it.
//!
//! The largest shares, the sum of quotas in the largest period, the sum of
//! realtime runtimes in the largest realtime period, and every CPU and memory
//! node that a member names. The sandbox's own pause container is left out.
//!
//! Source: kata-containers, virtcontainers/sandbox.go (`cpuResources`,
//! `getSandboxCPUSet`). A deviation: Kata also sums the realtime periods.

use std::collections::BTreeSet;

use super::{Joint, Member};
use crate::values::IdSet;

/// What the sandbox of these members may use. It is computed again whenever a
/// member comes, goes or changes.
///
/// Memory, pids and huge pages are the members' own to limit. Said in notes:
/// that a member without a limit is held to the joint one of the others, and
/// that quotas of different periods have come to less than a member's own.
pub fn joint(members: &[Member]) -> Joint {
    let members: Vec<&Member> = members.iter().filter(|member| !member.pause).collect();
    let most = |of: fn(&Member) -> Option<u64>| members.iter().filter_map(|m| of(m)).filter(|f| *f > 0).max();
    let sum = |of: fn(&Member) -> Option<u64>| {
        members.iter().filter_map(|m| of(m)).reduce(u64::saturating_add).filter(|sum| *sum > 0)
    };
    let mut joint = Joint {
        shares: most(|m| m.shares),
        quota_us: sum(|m| m.quota_us),
        period_us: most(|m| m.period_us),
        rt_runtime_us: sum(|m| m.rt_runtime_us),
        rt_period_us: most(|m| m.rt_period_us),
        cpus: union(members.iter().filter_map(|m| m.cpus.as_ref())),
        mems: union(members.iter().filter_map(|m| m.mems.as_ref())),
        ..Joint::default()
    };
    joint.notes = notes(&joint, &members);
    joint
}

/// `joint` as cgroup v1 takes it: for a parent no less CPU time than for each child. Quotas of unlike periods may add up
/// to less than the largest of them. What was raised is in a note.
pub fn raised(mut joint: Joint, members: &[Member]) -> Joint {
    let (period, rt_period) = (joint.period_us(), joint.rt_period_us.unwrap_or(super::REALTIME_PERIOD_US));
    let own = |member: &Member| in_period(member.quota_us?, member.period_us(), period);
    let own_rt = |member: &Member| in_period(member.rt_runtime_us?, member.rt_period_us(), rt_period);
    let mut raise = |time: &mut Option<u64>, most: Option<u64>, what: &str, period: u64| {
        if let Some(most) = most.filter(|most| time.is_some_and(|time| time < *most)) {
            *time = Some(most);
            joint.notes.push(format!(
                "the members together have {most} µs of {what} of every {period}: as much as one of them, as cgroup v1 asks"
            ));
        }
    };
    raise(&mut joint.quota_us, members.iter().filter_map(own).max(), "CPU time", period);
    raise(&mut joint.rt_runtime_us, members.iter().filter_map(own_rt).max(), "realtime", rt_period);
    joint
}

/// `time` of every `period`, as the part of `whole` that is as much.
fn in_period(time: u64, period: u64, whole: u64) -> Option<u64> {
    u64::try_from((u128::from(time) * u128::from(whole)).div_ceil(u128::from(period))).ok()
}

fn union<'a>(sets: impl Iterator<Item = &'a IdSet>) -> Option<IdSet> {
    let ids: BTreeSet<u32> = sets.flat_map(|set| set.ids().iter().copied()).collect();
    IdSet::new(ids)
}

fn notes(joint: &Joint, members: &[&Member]) -> Vec<String> {
    let mut notes = Vec::new();
    for member in members {
        let name = &member.name;
        let unbounded = [
            (joint.quota_us.is_some() && member.quota_us.is_none(), "CPU limit"),
            (joint.cpus.is_some() && member.cpus.is_none(), "list of CPUs"),
            (joint.mems.is_some() && member.mems.is_none(), "list of memory nodes"),
        ];
        for (_, what) in unbounded.into_iter().filter(|(unbounded, _)| *unbounded) {
            notes.push(format!("{name} has no {what} of its own, and is held to that of the other members"));
        }
        let period = joint.period_us();
        if let (Some(own), Some(all)) = (member.quota_us, joint.quota_us)
            && u128::from(own) * u128::from(period) > u128::from(all) * u128::from(member.period_us())
        {
            let every = member.period_us();
            notes.push(format!(
                "{name} has {own} µs of every {every} µs, and the members together {all} of {period}, which is less"
            ));
        }
    }
    notes
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn cpus(list: &str) -> Option<IdSet> {
        (!list.is_empty()).then(|| list.parse().unwrap())
    }

    /// The cases of TestGetSandboxCpuSet in sandbox_test.go; its garbage is
    /// refused when a member is read.
    #[test]
    fn lists_are_united_as_in_kata() {
        for (lists, expected) in [
            (["", "", ""], ""),
            (["0", "", ""], "0"),
            (["0", "0", ""], "0"),
            (["0-3", "5-7", "1"], "0-3,5-7"),
            (["0-3", "1-2", ""], "0-3"),
        ] {
            let members = lists.map(|list| Member { cpus: cpus(list), mems: cpus(list), ..Member::default() });
            let joint = joint(&members);
            assert_eq!((&joint.cpus, &joint.mems), (&cpus(expected), &cpus(expected)), "{lists:?}");
        }
    }

    /// The members of TestCalculateSandboxCPUs: 4000 µs in 1000 µs each.
    #[test]
    fn quotas_add_up_as_in_kata() {
        let free = Member::default();
        let held = Member { quota_us: Some(4000), period_us: Some(1000), ..Member::default() };
        for (members, cpus) in [
            (vec![free.clone()], None),
            (vec![free.clone(), free.clone()], None),
            (vec![held.clone()], Some(4)),
            (vec![held.clone(), held.clone()], Some(8)),
            (vec![free.clone(), held.clone(), held.clone()], Some(8)),
            (vec![held.clone(), held.clone(), held.clone()], Some(12)),
        ] {
            let joint = joint(&members);
            assert_eq!(joint.quota_us.zip(joint.period_us).map(|(quota, period)| quota / period), cpus, "{members:?}");
        }
    }

    #[test]
    fn every_figure_has_its_rule() {
        let one = Member {
            shares: Some(100),
            quota_us: Some(10_000),
            period_us: Some(50_000),
            rt_runtime_us: Some(1_000),
            rt_period_us: Some(20_000),
            ..Member::default()
        };
        let two = Member {
            shares: Some(300),
            quota_us: Some(20_000),
            period_us: Some(100_000),
            rt_runtime_us: Some(2_000),
            rt_period_us: Some(10_000),
            memory: Some(1 << 30),
            ..Member::default()
        };
        let pause = Member { pause: true, shares: Some(9_999), cpus: cpus("7"), ..one.clone() };
        let expected = Joint {
            shares: Some(300),
            quota_us: Some(30_000),
            period_us: Some(100_000),
            rt_runtime_us: Some(3_000),
            rt_period_us: Some(20_000),
            ..Joint::default()
        };
        assert_eq!(joint(&[one, pause, two]), expected);
        let nothing = Member { shares: Some(0), ..Member::default() };
        assert_eq!(joint(&[nothing]), Joint::default(), "zero is unset");
        assert_eq!(joint(&[]), Joint::default());
    }

    #[test]
    fn who_gets_less_than_its_own_is_said() {
        let member = |name: &str, quota_us, period_us| Member {
            name: name.into(),
            quota_us,
            period_us: Some(period_us),
            ..Member::default()
        };
        // 0.9 CPUs and 0.1 CPUs, by this rule 0.19.
        let said = joint(&[member("fast", Some(9_000), 10_000), member("slow", Some(10_000), 100_000)]).notes;
        assert_eq!(
            said,
            ["fast has 9000 µs of every 10000 µs, and the members together 19000 of 100000, which is less"]
        );
        // Of which v1 makes as much as the first has: its least that is no less than 0.9 CPUs.
        let members = [member("fast", Some(9_000), 10_000), member("slow", Some(10_000), 100_000)];
        let raised = raised(joint(&members), &members);
        assert_eq!((raised.quota_us, raised.notes.len()), (Some(90_000), 2), "{raised:?}");
        let said = joint(&[member("web", Some(9_000), 10_000), member("free", None, 10_000)]).notes;
        assert_eq!(said, ["free has no CPU limit of its own, and is held to that of the other members"]);
    }
}
