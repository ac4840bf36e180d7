//! The cgroup's limits, and which devices the task may use.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use oci_spec::runtime::{
    LinuxBlockIo, LinuxCpu, LinuxDevice, LinuxDeviceCgroup, LinuxDeviceType, LinuxHugepageLimit, LinuxMemory,
    LinuxPids, LinuxResources, LinuxThrottleDevice, LinuxThrottleDeviceBuilder, LinuxWeightDeviceBuilder,
};

use super::host::{DeviceNode, Host};
use crate::invalid::Invalid;
use crate::task::Task;
use crate::validate::numbers;
use crate::values::{ByteSize, Ceiling, IdSet};

/// Character devices everyone may use: runc's. The host's console (5:1) is not among them: that of a task is a terminal
/// of its own. `None` is any minor number.
const COMMON_DEVICES: [(i64, Option<i64>); 8] = [
    (1, Some(3)), // /dev/null
    (1, Some(5)), // /dev/zero
    (1, Some(7)), // /dev/full
    (1, Some(8)), // /dev/random
    (1, Some(9)), // /dev/urandom
    (5, Some(0)), // /dev/tty
    (5, Some(2)), // /dev/ptmx
    (136, None),  // /dev/pts/*
];

pub(super) fn resources(task: &Task, host: &Host, devices: Vec<LinuxDeviceCgroup>) -> Result<LinuxResources, Invalid> {
    let mut pids = LinuxPids::default();
    pids.set_limit(pids_limit(task.pids()));
    let mut resources = LinuxResources::default();
    resources
        .set_devices(Some(devices))
        .set_pids(Some(pids))
        .set_memory(memory(task, host))
        .set_cpu(cpu(task, host)?)
        .set_block_io(task_io(task, host)?)
        .set_hugepage_limits(hugepages(task, host)?)
        .set_unified(unified(task, host)?);
    Ok(resources)
}

pub(super) fn pids_limit(most: Ceiling<u64>) -> i64 {
    match most {
        Ceiling::At(most) => i64::try_from(most).unwrap_or(i64::MAX),
        Ceiling::Unlimited => -1,
    }
}

/// OCI counts swap as memory and swap together.
fn memory(task: &Task, host: &Host) -> Option<LinuxMemory> {
    let asked = &task.memory;
    let limit = asked.limit.map(ByteSize::as_i64);
    let reservation = asked.low.map(ByteSize::as_i64);
    let swap = match (limit, asked.swap) {
        (_, Some(Ceiling::Unlimited)) => Some(-1),
        (Some(limit), Some(Ceiling::At(swap))) => Some(limit.saturating_add(swap.as_i64())),
        // v2: memory.swap.max becomes the difference, 0.
        (Some(limit), None) if host.cgroup_v2 => Some(limit),
        _ => None,
    };
    // v1: memory.memsw is there only if the kernel was booted with
    // swapaccount=1; swappiness 0 always is.
    let swappiness = (limit.is_some() && asked.swap.is_none() && !host.cgroup_v2).then_some(0);
    let mut memory = LinuxMemory::default();
    memory.set_limit(limit).set_reservation(reservation).set_swap(swap).set_swappiness(swappiness);
    (limit.is_some() || reservation.is_some()).then_some(memory)
}

fn cpu(task: &Task, host: &Host) -> Result<Option<LinuxCpu>, Invalid> {
    let asked = &task.cpu;
    online("cpu.cpuset", "CPUs", asked.cpuset.as_ref(), &host.cpus)?;
    online("cpu.mems", "memory nodes", asked.mems.as_ref(), &host.mems)?;
    let quota = asked.quota_us();
    let mut cpu = LinuxCpu::default();
    cpu.set_shares(asked.shares)
        .set_quota(quota)
        .set_period((quota.is_some() || asked.period.is_some()).then(|| asked.period_us()))
        .set_realtime_runtime(asked.realtime_us().map(|(runtime, _)| i64::try_from(runtime).unwrap_or(i64::MAX)))
        .set_realtime_period(asked.realtime_us().map(|(_, period)| period))
        .set_cpus(asked.cpuset.as_ref().map(IdSet::to_string))
        .set_mems(asked.mems.as_ref().map(IdSet::to_string));
    Ok((cpu != LinuxCpu::default()).then_some(cpu))
}

fn online(field: &str, what: &str, asked: Option<&IdSet>, online: &BTreeSet<u32>) -> Result<(), Invalid> {
    let Some(asked) = asked else { return Ok(()) };
    let beyond: BTreeSet<u32> = asked.ids().difference(online).copied().collect();
    match IdSet::new(beyond) {
        None => Ok(()),
        Some(beyond) => {
            let has = IdSet::new(online.clone()).map_or("none".into(), |ids| ids.to_string());
            let reason = format!("{asked} asks for {what} {beyond}; this host has {has}");
            Err(Invalid::new(field, reason))
        }
    }
}

fn hugepages(task: &Task, host: &Host) -> Result<Option<Vec<LinuxHugepageLimit>>, Invalid> {
    let limits = task.hugepages.iter().map(|(size, most)| hugepage_limit(size, *most, host));
    let limits: Vec<LinuxHugepageLimit> = limits.collect::<Result<_, _>>()?;
    Ok((!limits.is_empty()).then_some(limits))
}

pub(super) fn hugepage_limit(size: &str, most: ByteSize, host: &Host) -> Result<LinuxHugepageLimit, Invalid> {
    let bytes = size.parse::<ByteSize>();
    let same = |known: &&String| known.parse::<ByteSize>() == bytes;
    let Some(known) = host.hugepage_sizes.iter().find(same) else {
        let sizes: Vec<&str> = host.hugepage_sizes.iter().map(String::as_str).collect();
        return Err(Invalid::new(
            format!("hugepages.{size}"),
            format!("this host has no pages of that size, only [{}]", sizes.join(", ")),
        ));
    };
    let mut limit = LinuxHugepageLimit::default();
    limit.set_page_size(known.clone()).set_limit(most.as_i64());
    Ok(limit)
}

fn unified(task: &Task, host: &Host) -> Result<Option<HashMap<String, String>>, Invalid> {
    let mut files = task.unified.clone();
    if let Some(high) = task.memory.high {
        files.insert("memory.high".into(), high.as_u64().to_string());
    }
    if !files.is_empty() && !host.cgroup_v2 {
        let field = match task.memory.high {
            Some(_) => "memory.high",
            None => "unified",
        };
        return Err(Invalid::new(field, "needs cgroup v2; this host's controllers are on v1"));
    }
    if task.watch.memory_high.is_some() && !host.cgroup_v2 {
        let reason = "needs cgroup v2, which has memory.high; this host's controllers are on v1: watch.memory can \
                      tell how much is used";
        return Err(Invalid::new("watch.memory_high", reason));
    }
    Ok(filled(files))
}

/// `None` for an empty map.
pub(super) fn filled(map: BTreeMap<String, String>) -> Option<HashMap<String, String>> {
    (!map.is_empty()).then(|| map.into_iter().collect())
}

fn task_io(task: &Task, host: &Host) -> Result<Option<LinuxBlockIo>, Invalid> {
    let devices = task.io.devices.iter().map(|device| DeviceIo {
        path: &device.path,
        weight: device.weight,
        rates: [
            device.read_bps.map(ByteSize::as_u64),
            device.write_bps.map(ByteSize::as_u64),
            device.read_iops,
            device.write_iops,
        ],
    });
    block_io(task.io.weight, devices, host)
}

/// What is asked of one block device.
pub(super) struct DeviceIo<'a> {
    pub path: &'a str,
    pub weight: Option<u16>,
    /// Bytes read and written, reads and writes, each a second.
    pub rates: [Option<u64>; 4],
}

pub(super) fn block_io<'a>(
    weight: Option<u16>,
    devices: impl Iterator<Item = DeviceIo<'a>>,
    host: &Host,
) -> Result<Option<LinuxBlockIo>, Invalid> {
    let mut weights = Vec::new();
    let mut rates: [Vec<LinuxThrottleDevice>; 4] = Default::default();
    for (index, device) in devices.enumerate() {
        let (major, minor) = block_device(&format!("io.devices[{index}].path"), device.path, host)?;
        if let Some(weight) = device.weight {
            let entry = LinuxWeightDeviceBuilder::default().major(major).minor(minor).weight(weight).build();
            weights.push(entry.expect("every required field is set"));
        }
        for (rates, rate) in rates.iter_mut().zip(device.rates) {
            if let Some(rate) = rate {
                let entry = LinuxThrottleDeviceBuilder::default().major(major).minor(minor).rate(rate).build();
                rates.push(entry.expect("every required field is set"));
            }
        }
    }
    let some = |rates: Vec<LinuxThrottleDevice>| (!rates.is_empty()).then_some(rates);
    let [read_bps, write_bps, read_iops, write_iops] = rates.map(some);
    let mut io = LinuxBlockIo::default();
    io.set_weight(weight)
        .set_weight_device((!weights.is_empty()).then_some(weights))
        .set_throttle_read_bps_device(read_bps)
        .set_throttle_write_bps_device(write_bps)
        .set_throttle_read_iops_device(read_iops)
        .set_throttle_write_iops_device(write_iops);
    Ok((io != LinuxBlockIo::default()).then_some(io))
}

/// Major and minor number of a block device, named by path or by numbers.
fn block_device(field: &str, path: &str, host: &Host) -> Result<(i64, i64), Invalid> {
    if let Some(numbers) = numbers(path) {
        return Ok(numbers);
    }
    match host.devices.get(Path::new(path)) {
        Some(node) if node.kind == 'b' => Ok((node.major, node.minor)),
        Some(_) => Err(Invalid::new(field, format!("{path} is not a block device"))),
        None => Err(Invalid::new(field, format!("{path} is no device of this host"))),
    }
}

/// Device rules of every container: make any node, open only harmless devices.
pub fn common_device_rules() -> Vec<LinuxDeviceCgroup> {
    let (character, block) = (Some(LinuxDeviceType::C), Some(LinuxDeviceType::B));
    let nodes = [rule(true, character, None, None, "m"), rule(true, block, None, None, "m")];
    let common = COMMON_DEVICES.iter().map(|(major, minor)| rule(true, character, Some(*major), *minor, "rwm"));
    nodes.into_iter().chain(common).collect()
}

/// The nodes that the task asks for, and the whole allow-list, which denies
/// everything first. Making nodes is allowed, opening them is not: so MKNOD
/// reaches no host disk.
pub(super) fn devices(task: &Task, host: &Host) -> Result<(Vec<LinuxDevice>, Vec<LinuxDeviceCgroup>), Invalid> {
    let mut rules = vec![rule(false, None, None, None, "rwm")];
    rules.extend(common_device_rules());
    let mut nodes = Vec::new();
    for (index, device) in task.devices.iter().enumerate() {
        let path = device.host_path();
        let Some(node) = host.devices.get(path) else {
            let field = match device.host_path {
                Some(_) => format!("devices[{index}].host_path"),
                None => format!("devices[{index}].path"),
            };
            let reason = format!("{} is no device of this host", path.display());
            return Err(Invalid::new(field, reason));
        };
        let kind = kind(node);
        let access = device.access.unwrap_or_default().to_string();
        rules.push(rule(true, Some(kind), Some(node.major), Some(node.minor), &access));
        let mut entry = LinuxDevice::default();
        entry
            .set_path(device.path.clone())
            .set_typ(kind)
            .set_major(node.major)
            .set_minor(node.minor)
            .set_file_mode(Some(node.mode & 0o7777))
            .set_uid(Some(node.uid))
            .set_gid(Some(node.gid));
        nodes.push(entry);
    }
    Ok((nodes, rules))
}

fn kind(node: &DeviceNode) -> LinuxDeviceType {
    match node.kind {
        'b' => LinuxDeviceType::B,
        _ => LinuxDeviceType::C,
    }
}

pub(super) fn rule(
    allow: bool,
    kind: Option<LinuxDeviceType>,
    major: Option<i64>,
    minor: Option<i64>,
    access: &str,
) -> LinuxDeviceCgroup {
    let mut rule = LinuxDeviceCgroup::default();
    rule.set_allow(allow).set_typ(kind).set_major(major).set_minor(minor).set_access(Some(access.into()));
    rule
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{built, refused};
    use super::*;

    fn limits(toml: &str, v2: bool) -> LinuxResources {
        let spec = built(toml, |host| host.cgroup_v2 = v2);
        spec.linux().as_ref().unwrap().resources().clone().unwrap()
    }

    #[test]
    fn cpus_and_nodes_beyond_the_host_are_refused_with_figures() {
        refused("cpu.cpuset = '0,2-3'", "cpu.cpuset", "0,2-3 asks for CPUs 2-3; this host has 0-1");
        refused("cpu.mems = '1'", "cpu.mems", "memory nodes 1; this host has 0");
    }

    #[test]
    fn devices_the_host_does_not_have_are_refused() {
        let field = "devices[0].path";
        refused("[[devices]]\npath = '/dev/kvm'", field, "/dev/kvm is no device");
        let field = "devices[0].host_path";
        refused("[[devices]]\npath = '/dev/a'\nhost_path = '/dev/kvm'", field, "/dev/kvm");
        let field = "io.devices[0].path";
        refused("io.devices = [{path = '/dev/sdb', weight = 10}]", field, "no device");
        refused("io.devices = [{path = '/dev/tty1'}]", field, "not a block device");
    }

    #[test]
    fn page_sizes_are_matched_by_size() {
        let pages = limits("hugepages = {2MiB = '64M'}", false);
        let limit = &pages.hugepage_limits().as_ref().unwrap()[0];
        assert_eq!((limit.page_size().as_str(), limit.limit()), ("2MB", 64 << 20));
        refused("hugepages = {1GB = '1G'}", "hugepages.1GB", "only [2MB]");
    }

    #[test]
    fn what_only_v2_enforces_is_refused_on_v1() {
        refused("memory.high = '64M'", "memory.high", "cgroup v2");
        refused("watch.memory_high.above = 10", "watch.memory_high", "cgroup v2");
        refused("unified = {'memory.oom.group' = '1'}", "unified", "cgroup v2");
        let unified = limits("memory.high = '64M'", true).unified().clone().unwrap();
        assert_eq!(unified["memory.high"], "67108864");
    }

    #[test]
    fn without_swap_there_is_none() {
        let memory = |toml, v2| limits(toml, v2).memory().unwrap();
        let v1 = memory("memory.limit = '64M'", false);
        assert_eq!((v1.swap(), v1.swappiness()), (None, Some(0)));
        let v2 = memory("memory.limit = '64M'", true);
        assert_eq!((v2.swap(), v2.swappiness()), (Some(64 << 20), None));
        for v2 in [false, true] {
            let some = memory("memory = {limit = '64M', swap = '16M'}", v2);
            assert_eq!((some.swap(), some.swappiness()), (Some(80 << 20), None));
            let none = memory("memory = {limit = '64M', swap = 0}", v2);
            assert_eq!(none.swap(), Some(64 << 20));
            let all = memory("memory = {limit = '64M', swap = 'unlimited'}", v2);
            assert_eq!(all.swap(), Some(-1));
        }
        assert_eq!(limits("", true).memory(), &None);
    }

    #[test]
    fn everything_is_denied_before_anything_is_allowed() {
        let rules = limits("[[devices]]\npath = '/dev/sda'\naccess = 'r'", false);
        let rules: Vec<String> =
            rules.devices().as_ref().unwrap().iter().map(|r| format!("{} {r}", r.allow())).collect();
        assert_eq!(rules[0], "false a *:* rwm");
        assert!(rules[1..].iter().all(|rule| rule.starts_with("true ")));
        assert_eq!(rules.last().unwrap(), "true b 8:0 r");
        assert_eq!(rules.iter().filter(|rule| rule.contains(" b ")).count(), 2, "{rules:?}");
    }
}
