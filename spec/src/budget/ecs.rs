//! A joint budget that is given, as the ECS agent makes it of a task's size.
//!
//!   CPU given: a quota ── not given: shares, the sum over the members
//!   memory given: a limit ── not given: none, the members have their own
//!
//! Source: amazon-ecs-agent, agent/api/task/task_linux.go. Two things are
//! added: what there is besides CPU and memory is taken over as it is given,
//! and a CPU limit that exceeds the sandbox's is refused too, as the kernel
//! does on v1, with an EINVAL for whoever starts that member.

use super::cpu::{SHARES, clamped, quota_us};
use super::{Joint, Member};
use crate::invalid::Invalid;
use crate::task::Sandbox;
use crate::values::{ByteSize, Ceiling};

/// What `sandbox` as a whole may use, with these members.
///
/// Without members and without a CPU limit it has the least shares.
///
/// # Errors
/// A CPU limit below what the kernel takes; a member that does not fit, as
/// [`fits`] tells.
pub fn joint(sandbox: &Sandbox, members: &[Member]) -> Result<Joint, Invalid> {
    let (cpu, memory) = (&sandbox.cpu, &sandbox.memory);
    let mut joint = Joint {
        cpus: cpu.cpuset.clone(),
        mems: cpu.mems.clone(),
        memory: memory.limit.map(ByteSize::as_u64),
        swap: memory.swap.and_then(at).map(ByteSize::as_u64),
        memory_low: memory.low.map(ByteSize::as_u64),
        memory_high: memory.high.map(ByteSize::as_u64),
        pids: sandbox.pids.and_then(at),
        hugepages: sandbox.page_limits(),
        ..Joint::default()
    };
    if let Some(limit) = cpu.limit {
        joint.quota_us = Some(quota_us("cpu.limit", limit, cpu.period_us())?);
    }
    joint.period_us = (cpu.limit.is_some() || cpu.period.is_some()).then(|| cpu.period_us());
    (joint.rt_runtime_us, joint.rt_period_us) = cpu.realtime_us().unzip();
    for member in members {
        fits(&joint, member)?;
    }
    // Each member's shares are set with or without a quota: what changes them is said in any case.
    let sum = sum_of_shares(members, &mut joint.notes);
    joint.shares = match (cpu.shares, cpu.limit) {
        (Some(shares), _) => Some(clamped("the sandbox", shares, &mut joint.notes)),
        (None, Some(_)) => None,
        (None, None) => Some(clamped("the sandbox", sum, &mut joint.notes)),
    };
    Ok(joint)
}

/// Whether `member` can have what it asks for in a sandbox with these limits.
///
/// # Errors
/// What it cannot have, with both figures. The field is the member's own:
/// `memory.limit`, `cpu.limit`, `cpu.realtime` or `hugepages.2MB`.
pub fn fits(joint: &Joint, member: &Member) -> Result<(), Invalid> {
    let name = &member.name;
    if let (Some(asked), Some(has)) = (member.memory, joint.memory)
        && asked > has
    {
        let (asked, has) = (ByteSize::bytes(asked), ByteSize::bytes(has));
        return Err(Invalid::new("memory.limit", format!("{name} asks for {asked}, and its sandbox has {has}")));
    }
    if let (Some(asked), Some(has)) = (member.quota_us, joint.quota_us) {
        let (every, period) = (member.period_us(), joint.period_us());
        if u128::from(asked) * u128::from(period) > u128::from(has) * u128::from(every) {
            let cpus = |quota: u64, period: u64| quota as f64 / period as f64;
            let (asked, has) = (cpus(asked, every), cpus(has, period));
            return Err(Invalid::new("cpu.limit", format!("{name} asks for {asked} CPUs, and its sandbox has {has}")));
        }
    }
    if let (Some(asked), every) = (member.rt_runtime_us, member.rt_period_us()) {
        let (has, period) = (joint.rt_runtime_us.unwrap_or(0), joint.rt_period_us.unwrap_or(every));
        if u128::from(asked) * u128::from(period) > u128::from(has) * u128::from(every) {
            let has = if has == 0 { "none".to_owned() } else { format!("{has} µs of every {period} µs") };
            let reason = format!("{name} asks for {asked} µs of every {every} µs, and its sandbox has {has}");
            return Err(Invalid::new("cpu.realtime", reason));
        }
    }
    for (size, asked) in &member.hugepages {
        if let Some(has) = joint.hugepages.get(size).filter(|has| asked > has) {
            let [size, asked, has] = [*size, *asked, *has].map(ByteSize::bytes);
            let reason = format!("{name} asks for {asked}, and its sandbox has {has}");
            return Err(Invalid::new(format!("hugepages.{size}B"), reason));
        }
    }
    Ok(())
}

/// The sum over the members, each within what the kernel takes.
fn sum_of_shares(members: &[Member], notes: &mut Vec<String>) -> u64 {
    let shares = |member: &Member| match member.shares {
        // Nothing was asked for, so there is nothing to be said.
        None => *SHARES.start(),
        Some(shares) => clamped(&member.name, shares, notes),
    };
    let sum = members.iter().filter(|member| !member.pause).map(shares).fold(0, u64::saturating_add);
    // With nobody in it, it is not that somebody asked for too little.
    sum.max(*SHARES.start())
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
    use crate::parse::{Format, parse_sandbox};

    fn sandbox(toml: &str) -> Sandbox {
        parse_sandbox(toml, Format::Toml).expect(toml)
    }

    fn member(name: &str, shares: Option<u64>) -> Member {
        Member { name: name.into(), shares, ..Member::default() }
    }

    /// Inputs and results of TestBuildLinuxResourceSpec… in task_linux_test.go.
    #[test]
    fn as_the_ecs_agent_has_it() {
        let quota = |cpus: u64| Joint { quota_us: Some(cpus * 100_000), period_us: Some(100_000), ..Joint::default() };
        let shares = |shares| Joint { shares: Some(shares), ..Joint::default() };
        let memory = Some(512 << 20);
        let c1 = |shares| vec![member("C1", shares)];
        for (toml, members, expected) in [
            ("cpu.limit = 2\nmemory.limit = '512M'", vec![], Joint { memory, ..quota(2) }),
            ("cpu.limit = 2\nmemory.limit = '512M'\npids = 100", vec![], Joint { memory, pids: Some(100), ..quota(2) }),
            ("cpu.limit = 2\nmemory.limit = '512M'\npids = 'max'", vec![], Joint { memory, ..quota(2) }),
            ("cpu.limit = 2", vec![], quota(2)),
            // More than the 10 CPUs that used to be its most.
            ("cpu.limit = 15", vec![], quota(15)),
            ("", c1(None), shares(2)),
            ("pids = 100", c1(None), Joint { pids: Some(100), ..shares(2) }),
            ("", c1(Some(512)), shares(512)),
            ("", c1(Some(1)), shares(2)),
        ] {
            let joint = joint(&sandbox(toml), &members).expect(toml);
            assert_eq!(Joint { notes: Vec::new(), ..joint }, expected, "{toml} {members:?}");
        }
    }

    #[test]
    fn shares_are_summed_and_what_is_changed_is_said() {
        let sum = |shares: &[Option<u64>]| {
            let members: Vec<Member> = shares.iter().map(|shares| member("web", *shares)).collect();
            let joint = joint(&Sandbox::default(), &members).unwrap();
            (joint.shares.unwrap(), joint.notes.len())
        };
        for (members, expected) in [
            (&[][..], (2, 0)),
            (&[None, None], (4, 0)),
            (&[Some(0), Some(1), Some(2)], (6, 2)),
            (&[Some(100), None], (102, 0)),
            (&[Some(262_145)], (262_144, 1)),
            (&[Some(262_144), Some(1024)], (262_144, 1)),
            (&[Some(u64::MAX), Some(u64::MAX)], (262_144, 3)),
        ] {
            assert_eq!(sum(members), expected, "{members:?}");
        }
        let said = joint(&Sandbox::default(), &[member("web", Some(1))]).unwrap().notes;
        assert_eq!(said, ["web: 1 CPU shares are below the least that the kernel takes; 2 are used"]);
    }

    #[test]
    fn a_member_that_does_not_fit_is_refused_with_both_figures() {
        let given = sandbox("cpu.limit = 0.5\nmemory.limit = '512M'\nhugepages.2MB = '4M'");
        let refused = |member: Member| joint(&given, &[member]).unwrap_err().to_string();
        // TestBuildLinuxResourceSpecInvalidMem.
        let memory = Member { memory: Some(2 << 30), ..member("C1", None) };
        assert_eq!(refused(memory), "memory.limit: C1 asks for 2G, and its sandbox has 512M");
        let cpu = Member { quota_us: Some(6_000), period_us: Some(10_000), ..member("C1", None) };
        assert_eq!(refused(cpu.clone()), "cpu.limit: C1 asks for 0.6 CPUs, and its sandbox has 0.5");
        let pages = Member { hugepages: [(2 << 20, 6 << 20)].into(), ..member("C1", None) };
        assert_eq!(refused(pages), "hugepages.2MB: C1 asks for 6M, and its sandbox has 4M");

        let realtime = Member { rt_runtime_us: Some(2000), ..member("C1", None) };
        assert_eq!(
            refused(realtime.clone()),
            "cpu.realtime: C1 asks for 2000 µs of every 1000000 µs, and its sandbox has none"
        );
        let some = sandbox("cpu = {realtime = '1ms', realtime_period = '500ms'}");
        joint(&some, std::slice::from_ref(&realtime)).expect("as much");
        let more = Member { rt_runtime_us: Some(2001), ..realtime };
        assert!(joint(&some, &[more]).unwrap_err().reason.contains("has 1000 µs of every 500000 µs"));

        let just = Member { memory: Some(512 << 20), quota_us: Some(50_000), ..member("C1", None) };
        joint(&given, &[just.clone(), just]).expect("each fits; together they may ask for more");
        joint(&Sandbox::default(), &[cpu]).expect("nothing is given");
    }

    #[test]
    fn shares_that_are_given_are_not_summed() {
        let joint = joint(&sandbox("cpu = {shares = 100, limit = 1}"), &[member("web", Some(7))]).unwrap();
        assert_eq!((joint.shares, joint.quota_us), (Some(100), Some(100_000)));
    }

    #[test]
    fn shares_that_the_kernel_does_not_take_are_changed_and_said() {
        for (given, shares, notes) in [(0, 2, 1), (1, 2, 1), (2, 2, 0), (262_144, 262_144, 0), (262_145, 262_144, 1)] {
            let joint = joint(&sandbox(&format!("cpu.shares = {given}")), &[]).unwrap();
            assert_eq!((joint.shares, joint.notes.len()), (Some(shares), notes), "{given}");
        }
    }

    /// A thousandth of a CPU is more than the kernel takes by the second alone.
    #[test]
    fn a_thousandth_of_a_cpu_needs_a_long_period() {
        let error = joint(&sandbox("cpu = {limit = 0.01}"), &[]).map(|joint| joint.quota_us);
        assert_eq!(error, Ok(Some(1000)));
        let long = joint(&sandbox("cpu = {limit = 0.001, period = '1s'}"), &[]).unwrap();
        assert_eq!((long.quota_us, long.period_us), (Some(1000), Some(1_000_000)));
    }

    #[test]
    fn a_fraction_that_the_kernel_does_not_take_is_refused() {
        let mut given = Sandbox::default();
        given.cpu.limit = Some("0.009".parse().unwrap());
        let error = joint(&given, &[]).unwrap_err();
        assert_eq!(error.field, "cpu.limit");
        assert!(error.reason.contains("900 µs") && error.reason.contains("1000"), "{error}");
    }
}
