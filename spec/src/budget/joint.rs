//! The limits of a sandbox as a whole, and their form in OCI.

use std::collections::BTreeMap;
use std::collections::HashMap;

use oci_spec::runtime::{LinuxCpu, LinuxHugepageLimit, LinuxMemory, LinuxPids, LinuxResources};

use serde::{Deserialize, Serialize};

use crate::values::{ByteSize, IdSet};

/// The kernel's CPU shares of a new cgroup: what is left when none are set.
const KERNELS_SHARES: u64 = 1024;

/// What a sandbox as a whole may use. `None` is not limited.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Joint {
    /// CPU shares, 2 to 262144.
    pub shares: Option<u64>,
    /// CPU time in each period, in µs.
    pub quota_us: Option<u64>,
    /// How often the quota is renewed, in µs.
    pub period_us: Option<u64>,
    /// CPU time for realtime scheduling in each realtime period, in µs; v1 only.
    pub rt_runtime_us: Option<u64>,
    /// How often that is renewed, in µs; v1 only.
    pub rt_period_us: Option<u64>,
    /// The CPUs that the sandbox may run on (cpuset.cpus).
    pub cpus: Option<IdSet>,
    /// The NUMA nodes that the sandbox's memory may come from (cpuset.mems).
    pub mems: Option<IdSet>,
    /// The most memory, in bytes.
    pub memory: Option<u64>,
    /// Swap beyond it, in bytes.
    pub swap: Option<u64>,
    /// Up to this, in bytes, the kernel spares the sandbox when memory is short.
    pub memory_low: Option<u64>,
    /// Memory that is never reclaimed, in bytes; v2 only.
    pub memory_min: Option<u64>,
    /// Beyond this, in bytes, the sandbox is slowed down; v2 only.
    pub memory_high: Option<u64>,
    /// The most processes and threads.
    pub pids: Option<u64>,
    /// The most memory in huge pages, in bytes, by the page's size in bytes.
    pub hugepages: BTreeMap<u64, u64>,
    /// What was changed of what somebody asked for, a sentence each, for a log.
    pub notes: Vec<String>,
}

impl Joint {
    /// Its period, in µs, with the kernel's default.
    pub(super) fn period_us(&self) -> u64 {
        self.period_us.unwrap_or(super::DEFAULT_PERIOD_US)
    }

    /// The limits as OCI resources, for a cgroup that has no limits yet.
    pub fn to_oci(&self) -> LinuxResources {
        self.changes_from(&Joint::default())
    }

    /// What has to change where `before` is in effect, as OCI resources: what
    /// is the same in both is left out, and what is lifted is −1 or "max".
    ///
    /// CPUs and memory nodes cannot be lifted but by those of the cgroup above;
    /// OCI cannot take away time for realtime scheduling: they stay as they are.
    pub fn changes_from(&self, before: &Joint) -> LinuxResources {
        let mut changes = LinuxResources::default();
        changes
            .set_cpu(self.cpu(before))
            .set_memory(self.oci_memory(before))
            .set_pids((self.pids != before.pids).then(|| {
                let mut pids = LinuxPids::default();
                pids.set_limit(limit(self.pids));
                pids
            }))
            .set_hugepage_limits(self.oci_hugepages(before))
            .set_unified(self.unified(before));
        changes
    }

    /// These limits, of each whichever is more here and in `after`: what holds
    /// while members go from the one to the other.
    pub fn with_room_for(&self, after: &Joint) -> Joint {
        let more = |before: Option<u64>, after: Option<u64>| before.zip(after).map(|(before, after)| before.max(after));
        let both = |before: &Option<IdSet>, after: &Option<IdSet>| {
            let (before, after) = before.as_ref().zip(after.as_ref())?;
            IdSet::new(before.ids() | after.ids())
        };
        let cpu = if self.has_more_time_than(after) { self } else { after };
        let realtime = if self.rt_share() >= after.rt_share() { self } else { after };
        let page = |(size, most): (&u64, &u64)| Some((*size, *after.hugepages.get(size)?.max(most)));
        Joint {
            quota_us: cpu.quota_us,
            period_us: cpu.period_us,
            rt_runtime_us: realtime.rt_runtime_us,
            rt_period_us: realtime.rt_period_us,
            cpus: both(&self.cpus, &after.cpus),
            mems: both(&self.mems, &after.mems),
            memory: more(self.memory, after.memory),
            swap: more(self.swap, after.swap),
            memory_high: more(self.memory_high, after.memory_high),
            pids: more(self.pids, after.pids),
            hugepages: self.hugepages.iter().filter_map(page).collect(),
            ..after.clone()
        }
    }

    fn has_more_time_than(&self, other: &Joint) -> bool {
        let period = |joint: &Joint| u128::from(joint.period_us());
        match (self.quota_us, other.quota_us) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(others)) => u128::from(own) * period(other) >= u128::from(others) * period(self),
        }
    }

    /// Whether there is less CPU time than in `before`, or less time for realtime scheduling.
    pub fn has_less_time_than(&self, before: &Joint) -> bool {
        !self.has_more_time_than(before) || self.rt_share() < before.rt_share()
    }

    /// Time for realtime scheduling, in millionths of a period.
    fn rt_share(&self) -> u128 {
        let period = self.rt_period_us.unwrap_or(super::REALTIME_PERIOD_US).max(1);
        u128::from(self.rt_runtime_us.unwrap_or(0)) * 1_000_000 / u128::from(period)
    }

    fn cpu(&self, before: &Joint) -> Option<LinuxCpu> {
        let mut cpu = LinuxCpu::default();
        if self.shares != before.shares {
            cpu.set_shares(Some(self.shares.unwrap_or(KERNELS_SHARES)));
        }
        if (self.quota_us, self.period_us) != (before.quota_us, before.period_us) {
            // Together: each is checked by the kernel against the other.
            cpu.set_quota((self.quota_us != before.quota_us || self.quota_us.is_some()).then(|| limit(self.quota_us)));
            cpu.set_period(self.period_us);
        }
        if (self.rt_runtime_us, self.rt_period_us) != (before.rt_runtime_us, before.rt_period_us) {
            cpu.set_realtime_runtime(self.rt_runtime_us.map(signed));
            cpu.set_realtime_period(self.rt_period_us);
        }
        let changed =
            |now: &Option<IdSet>, then: &Option<IdSet>| now.as_ref().filter(|_| now != then).map(IdSet::to_string);
        cpu.set_cpus(changed(&self.cpus, &before.cpus));
        cpu.set_mems(changed(&self.mems, &before.mems));
        (cpu != LinuxCpu::default()).then_some(cpu)
    }

    /// OCI counts swap as memory and swap together.
    fn oci_memory(&self, before: &Joint) -> Option<LinuxMemory> {
        let mut memory = LinuxMemory::default();
        if (self.memory, self.swap) != (before.memory, before.swap) {
            memory.set_limit(Some(limit(self.memory)));
            let swap = self.memory.zip(self.swap).map(|(memory, swap)| signed(memory.saturating_add(swap)));
            // Lifted with the limit that it is counted beyond.
            memory.set_swap(swap.or(before.swap.and(Some(-1))));
        }
        if self.memory_low != before.memory_low {
            memory.set_reservation(Some(self.memory_low.map_or(0, signed)));
        }
        (memory != LinuxMemory::default()).then_some(memory)
    }

    fn oci_hugepages(&self, before: &Joint) -> Option<Vec<LinuxHugepageLimit>> {
        let lifted =
            before.hugepages.keys().filter(|size| !self.hugepages.contains_key(size)).map(|size| (*size, None));
        let set = self.hugepages.iter().filter(|(size, most)| before.hugepages.get(size) != Some(most));
        let limits = set.map(|(size, most)| (*size, Some(*most))).chain(lifted).map(|(size, most)| {
            let mut page = LinuxHugepageLimit::default();
            // 2M is 2MB in the kernel's name of the file, and in OCI.
            page.set_page_size(format!("{}B", ByteSize::bytes(size))).set_limit(limit(most));
            page
        });
        Some(limits.collect()).filter(|limits: &Vec<_>| !limits.is_empty())
    }

    fn unified(&self, before: &Joint) -> Option<HashMap<String, String>> {
        let min = (self.memory_min != before.memory_min).then(|| self.memory_min.unwrap_or(0).to_string());
        let high = self.memory_high.map_or("max".to_owned(), |high| high.to_string());
        let high = (self.memory_high != before.memory_high).then_some(high);
        let files = [("memory.min", min), ("memory.high", high)];
        let files = files.into_iter().filter_map(|(file, value)| Some((file.to_owned(), value?)));
        Some(files.collect()).filter(|files: &HashMap<_, _>| !files.is_empty())
    }
}

/// OCI's −1 is no limit.
fn limit(most: Option<u64>) -> i64 {
    most.map_or(-1, signed)
}

fn signed(figure: u64) -> i64 {
    i64::try_from(figure).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn some() -> Joint {
        Joint {
            shares: Some(512),
            quota_us: Some(50_000),
            period_us: Some(100_000),
            cpus: Some("0-1".parse().unwrap()),
            memory: Some(64 << 20),
            swap: Some(0),
            memory_min: Some(1 << 20),
            memory_high: Some(2 << 20),
            pids: Some(9),
            hugepages: [(2 << 20, 4 << 20), (64 << 10, 0)].into(),
            ..Joint::default()
        }
    }

    fn json(resources: &LinuxResources) -> Value {
        let mut value = serde_json::to_value(resources).unwrap();
        // oci-spec has an empty list of devices by default.
        value.as_object_mut().unwrap().remove("devices");
        value
    }

    #[test]
    fn the_whole_is_told_in_the_terms_of_oci() {
        let pages = json!([{"pageSize": "64KB", "limit": 0}, {"pageSize": "2MB", "limit": 4 << 20}]);
        let expected = json!({
            "cpu": {"shares": 512, "quota": 50_000, "period": 100_000, "cpus": "0-1"},
            "memory": {"limit": 64 << 20, "swap": 64 << 20},
            "pids": {"limit": 9},
            "hugepageLimits": pages,
            "unified": {"memory.min": "1048576", "memory.high": "2097152"},
        });
        assert_eq!(json(&some().to_oci()), expected);
        assert_eq!(json(&Joint::default().to_oci()), json!({}));
    }

    #[test]
    fn only_what_is_different_changes() {
        assert_eq!(json(&some().changes_from(&some())), json!({}));
        let fewer = Joint { pids: Some(8), notes: vec!["said".into()], ..some() };
        assert_eq!(json(&fewer.changes_from(&some())), json!({"pids": {"limit": 8}}));
        let slower = Joint { quota_us: Some(20_000), ..some() };
        assert_eq!(json(&slower.changes_from(&some())), json!({"cpu": {"quota": 20_000, "period": 100_000}}));
    }

    #[test]
    fn while_members_change_there_is_room_for_both() {
        // A quota goes with its own period.
        let slow = Joint { quota_us: Some(400_000), period_us: Some(1_000_000), ..some() };
        assert_eq!(some().with_room_for(&slow).quota_us, Some(50_000));
        assert_eq!(slow.with_room_for(&some()).period_us, Some(100_000));
        let other = Joint {
            shares: Some(7),
            cpus: Some("2".parse().unwrap()),
            memory: Some(32 << 20),
            pids: None,
            hugepages: [(2 << 20, 8 << 20)].into(),
            ..some()
        };
        let room = some().with_room_for(&other);
        assert_eq!((room.shares, room.cpus, room.pids), (Some(7), Some("0-2".parse().unwrap()), None));
        assert_eq!((room.memory, room.hugepages), (Some(64 << 20), [(2 << 20, 8 << 20)].into()));
        let realtime = |runtime, period| Joint { rt_runtime_us: runtime, rt_period_us: period, ..Joint::default() };
        let (more, less) = (realtime(Some(2000), Some(10_000)), realtime(Some(3000), Some(1_000_000)));
        for room in [more.with_room_for(&less), less.with_room_for(&more), more.with_room_for(&Joint::default())] {
            assert_eq!((room.rt_runtime_us, room.rt_period_us), (Some(2000), Some(10_000)));
        }
        let free = Joint { quota_us: None, period_us: None, cpus: None, ..some() };
        assert_eq!((some().with_room_for(&free).quota_us, free.with_room_for(&some()).cpus), (None, None));
    }

    #[test]
    fn what_is_lifted_is_said() {
        let lifted = json(&Joint::default().changes_from(&some()));
        assert_eq!(lifted["cpu"], json!({"shares": 1024, "quota": -1}), "CPUs cannot be lifted");
        assert_eq!(lifted["memory"], json!({"limit": -1, "swap": -1}));
        assert_eq!(lifted["pids"], json!({"limit": -1}));
        assert_eq!(lifted["unified"], json!({"memory.min": "0", "memory.high": "max"}));
        assert_eq!(lifted["hugepageLimits"].as_array().unwrap().len(), 2);
        assert_eq!(lifted["hugepageLimits"][0]["limit"], -1);
    }
}
