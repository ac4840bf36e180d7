//! A pod's budget from its containers' requests and limits, as the kubelet
//! makes it.
//!
//!   requests ─ Σ ─► shares, memory.min
//!   limits ── Σ, only if every container has one ─► quota, memory limit
//!   both ─────────────────────────────────────────► memory.high
//!
//! Source: kubernetes, pkg/kubelet/cm/helpers_linux.go; memory QoS as in its
//! enhancement proposal 2570, and of a container as in pkg/kubelet/kuberuntime.

use std::collections::BTreeMap;

use super::{Class, DEFAULT_PERIOD_US, Joint, LEAST_QUOTA_US, Needs, SHARES, qos};

const SHARES_A_CPU: u64 = 1024;

/// What a pod's budget depends on besides its containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Whether CPU limits are enforced at all.
    pub enforce_quota: bool,
    /// How often a quota is renewed, in µs.
    pub period_us: u64,
    /// The most processes and threads of a pod.
    pub pids: Option<u64>,
    /// Whether memory is spared and slowed down by cgroup v2, and how.
    pub memory_qos: Option<MemoryQos>,
}

impl Default for Settings {
    /// Quotas of 100 ms, nothing else.
    fn default() -> Settings {
        Settings { enforce_quota: true, period_us: DEFAULT_PERIOD_US, pids: None, memory_qos: None }
    }
}

/// What the kubelet's feature MemoryQoS computes memory.high from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryQos {
    /// What the host has for pods, in bytes: the limit of whoever has none.
    pub allocatable: u64,
    /// How far from request to limit it is, in percent; the kubelet's is 90.
    pub throttle_percent: u64,
    /// The kernel's page, in bytes.
    pub page: u64,
}

impl MemoryQos {
    /// With the kubelet's 90 %.
    pub fn new(allocatable: u64, page: u64) -> MemoryQos {
        MemoryQos { allocatable, throttle_percent: 90, page }
    }

    /// Where whoever asks for `request` bytes is slowed down:
    /// request + 0.9 · (limit or allocatable − request), in whole pages, and
    /// only above the request.
    pub fn high(&self, request: u64, limit: Option<u64>) -> Option<u64> {
        let beyond = u128::from(limit.unwrap_or(self.allocatable).saturating_sub(request));
        let exact = u128::from(request) + beyond * u128::from(self.throttle_percent) / 100;
        let page = u128::from(self.page.max(1));
        u64::try_from(exact / page * page).ok().filter(|high| *high > request)
    }

    /// memory.min and memory.high of one container with these needs. Whoever may have just what it asks for, or
    /// asks for nothing and may have everything, is not slowed down.
    pub fn of_container(&self, needs: &Needs) -> (Option<u64>, Option<u64>) {
        let (request, limit) = (needs.request.memory, Some(needs.limit.memory).filter(|limit| *limit > 0));
        let high = if request == needs.limit.memory { None } else { self.high(request, limit) };
        (Some(request).filter(|min| *min > 0), high)
    }
}

/// The class of a pod with these containers, and what it may use.
///
/// A sum beyond what the kernel takes is cut, as the kubelet does, and said.
pub fn joint(containers: &[Needs], settings: &Settings) -> (Class, Joint) {
    let class = qos::class(containers);
    let sum = |of: fn(&Needs) -> u64| containers.iter().map(of).fold(0, u64::saturating_add);
    let all = |of: fn(&Needs) -> u64| {
        let declared = !containers.is_empty() && containers.iter().all(|needs| of(needs) > 0);
        declared.then(|| sum(of))
    };
    let asked = sum(|needs| needs.request.milli_cpu);
    let mut joint = Joint {
        shares: Some(milli_cpu_to_shares(asked)),
        memory: all(|needs| needs.limit.memory),
        pids: settings.pids.filter(|pids| *pids > 0),
        hugepages: hugepages(containers),
        ..Joint::default()
    };
    if asked > milli_cpu_of(*SHARES.end()) {
        joint.notes.push(format!("the pod: {asked} thousandths of a CPU are more shares than the kernel takes"));
    }
    if let Some(milli_cpu) = all(|needs| needs.limit.milli_cpu).filter(|_| settings.enforce_quota) {
        joint.quota_us = milli_cpu_to_quota(milli_cpu, settings.period_us);
        joint.period_us = Some(settings.period_us);
    }
    if let Some(qos) = settings.memory_qos {
        let request = sum(|needs| needs.request.memory);
        joint.memory_min = Some(request).filter(|min| *min > 0);
        joint.memory_high = qos.high(request, joint.memory);
    }
    (class, joint)
}

/// CPU shares for a request in thousandths of a CPU: at least 2, at most 262144.
pub fn milli_cpu_to_shares(milli_cpu: u64) -> u64 {
    (milli_cpu.saturating_mul(SHARES_A_CPU) / 1000).clamp(*SHARES.start(), *SHARES.end())
}

/// The quota in µs for a limit in thousandths of a CPU, at least the kernel's
/// least; none for 0.
pub fn milli_cpu_to_quota(milli_cpu: u64, period_us: u64) -> Option<u64> {
    (milli_cpu > 0).then(|| (milli_cpu.saturating_mul(period_us) / 1000).max(LEAST_QUOTA_US))
}

fn milli_cpu_of(shares: u64) -> u64 {
    shares.saturating_mul(1000) / SHARES_A_CPU
}

fn hugepages(containers: &[Needs]) -> BTreeMap<u64, u64> {
    let mut sums = BTreeMap::new();
    for (size, most) in containers.iter().flat_map(|needs| &needs.hugepages) {
        let sum: &mut u64 = sums.entry(*size).or_default();
        *sum = sum.saturating_add(*most);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::super::qos::testing::needs;
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The cases of the kubelet's TestMilliCPUToShares, and the most shares there are.
    #[test]
    fn shares_are_the_kubelets() {
        let cases = [(0, 2), (1, 2), (2, 2), (5, 5), (10, 10), (200, 204), (1000, 1024), (u64::MAX, 262_144)];
        for (milli_cpu, shares) in cases {
            assert_eq!(milli_cpu_to_shares(milli_cpu), shares, "{milli_cpu}");
        }
    }

    /// TestMilliCPUToQuota, and its period of 5 ms.
    #[test]
    fn quotas_are_the_kubelets() {
        for (milli_cpu, period, quota) in [
            (0, 100_000, None),
            (5, 100_000, Some(1000)),
            (9, 100_000, Some(1000)),
            (10, 100_000, Some(1000)),
            (200, 100_000, Some(20_000)),
            (500, 100_000, Some(50_000)),
            (1000, 100_000, Some(100_000)),
            (1500, 100_000, Some(150_000)),
            (100, 5_000, Some(1000)),
            (200, 5_000, Some(1000)),
        ] {
            assert_eq!(milli_cpu_to_quota(milli_cpu, period), quota, "{milli_cpu} of {period}");
        }
    }

    /// TestResourceConfigForPod: shares, quota, and the limit in MiB.
    #[test]
    fn a_pod_has_what_the_kubelet_gives_it() {
        let (none, asked) = (needs((0, 0), (0, 0)), needs((100, 100), (0, 0)));
        let (more, same) = (needs((100, 100), (200, 200)), needs((100, 100), (100, 100)));
        let on = Settings::default();
        let off = Settings { enforce_quota: false, ..on };
        let tuned = Settings { period_us: 5_000, ..on };
        for (members, settings, expected) in [
            (vec![none], on, (2, None, None)),
            (vec![asked.clone()], on, (102, None, None)),
            (vec![more.clone()], on, (102, Some((20_000, 100_000)), Some(200))),
            (vec![more.clone()], off, (102, None, Some(200))),
            (vec![more.clone(), asked.clone()], on, (204, None, None)),
            (vec![more.clone()], tuned, (102, Some((1_000, 5_000)), Some(200))),
            (vec![more, asked], tuned, (204, None, None)),
            (vec![same.clone()], on, (102, Some((10_000, 100_000)), Some(100))),
            (vec![same.clone()], off, (102, None, Some(100))),
            (vec![same], tuned, (102, Some((1_000, 5_000)), Some(100))),
            (vec![], on, (2, None, None)),
        ] {
            let joint = joint(&members, &settings).1;
            let is = (joint.shares.unwrap_or(0), joint.quota_us.zip(joint.period_us), joint.memory.map(|m| m / MIB));
            assert_eq!(is, expected, "{members:?} {settings:?}");
        }
    }

    /// Sizes and sums of TestHugePageLimits.
    #[test]
    fn huge_pages_add_up_by_size() {
        let with = |pages: &[(u64, u64)]| Needs { hugepages: pages.iter().copied().collect(), ..Needs::default() };
        let pod = joint(&[with(&[(2 * MIB, 128), (4 * MIB, 512)]), with(&[(2 * MIB, 256)])], &Settings::default()).1;
        assert_eq!(pod.hugepages, [(2 * MIB, 384), (4 * MIB, 512)].into());
    }

    #[test]
    fn memory_is_slowed_down_before_the_limit() {
        let page = 4096;
        let qos = MemoryQos::new(1 << 30, page);
        for (request, limit, high) in [
            // 128 + 0.9 · 128 MiB and 256 + 0.9 · 256 MiB, as in the kubelet's tests, down to whole pages.
            (128 * MIB, Some(256 * MIB), Some(255_012_864 / page * page)),
            (256 * MIB, Some(512 * MIB), Some(510_027_366 / page * page)),
            (128 * MIB, None, Some((128 * MIB + 896 * MIB * 9 / 10) / page * page)),
            // Guaranteed: nothing above the request.
            (100 * MIB, Some(100 * MIB), None),
            (0, None, Some((1u64 << 30) * 9 / 10 / page * page)),
            (2 << 30, None, None),
            (0, Some(page), None),
        ] {
            assert_eq!(qos.high(request, limit), high, "{request} {limit:?}");
        }
        let settings = Settings { memory_qos: Some(qos), pids: Some(0), ..Settings::default() };
        let pod = joint(&[needs((0, 64), (0, 128)), needs((0, 64), (0, 128))], &settings).1;
        assert_eq!((pod.memory_min, pod.memory_high), (Some(128 * MIB), qos.high(128 * MIB, Some(256 * MIB))));
        assert_eq!(pod.pids, None, "0 is none");
        let none = joint(&[needs((0, 0), (0, 0))], &settings).1;
        assert_eq!((none.memory_min, none.memory_high), (None, qos.high(0, None)));
    }

    /// The cases of the kubelet's TestGenerateContainerConfigWithMemoryQoSEnforced.
    #[test]
    fn a_container_is_spared_what_it_asks_for_and_slowed_down_before_its_limit() {
        let qos = MemoryQos::new(1 << 30, 4096);
        for (request, limit, expected) in [
            (128, 256, (Some(128 * MIB), Some(255_012_864 / 4096 * 4096))),
            (128, 0, (Some(128 * MIB), qos.high(128 * MIB, None))),
            (64, 64, (Some(64 * MIB), None)),
            (0, 64, (None, qos.high(0, Some(64 * MIB)))),
            (0, 0, (None, None)),
        ] {
            assert_eq!(qos.of_container(&needs((0, request), (0, limit))), expected, "{request} {limit}");
        }
    }

    #[test]
    fn the_class_comes_with_it() {
        assert_eq!(joint(&[needs((1, 1), (1, 1))], &Settings::default()).0, Class::Guaranteed);
    }

    #[test]
    fn more_than_the_kernel_takes_is_said() {
        let notes = |milli_cpu| joint(&[needs((milli_cpu, 0), (0, 0))], &Settings::default()).1.notes.len();
        assert_eq!((notes(256_000), notes(256_001)), (0, 1));
    }
}
