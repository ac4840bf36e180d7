//! The limits that an OCI configuration means.

use bowline_error::{Error, Kind, Result};
use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType, LinuxResources, LinuxThrottleDevice};

use super::Limit;
use super::file::of_file;
use crate::values::{Amount, CpuQuota, Device, IoWeight, Rate};

/// The limits of `resources`, in an order in which the kernel takes them; without its devices, which v1 and v2 make
/// something of their own of.
///
/// # Errors
/// `BadSpec` naming the field, for a value that the kernel would take for another, or not at all.
pub fn of(resources: &LinuxResources) -> Result<Vec<Limit>> {
    let mut out = Vec::new();
    check_devices(resources)?;
    memory(&mut out, resources)?;
    cpu(&mut out, resources);
    // systemd knows no 0. Who is in the cgroup can start nobody either way.
    out.extend(resources.pids().map(|pids| Limit::Pids(Amount(Amount::oci(pids.limit()).0.map(|most| most.max(1))))));
    block_io(&mut out, resources);
    let mut files: Vec<(&String, &String)> = resources.unified().iter().flatten().collect();
    files.sort_unstable();
    out.extend(files.into_iter().flat_map(|(file, value)| of_file(file, value)));
    for (index, of) in resources.hugepage_limits().iter().flatten().enumerate() {
        let size = of.page_size().clone();
        check_page_size(index, &size)?;
        out.push(Limit::Hugepages { size, most: Amount::oci(of.limit()) });
    }
    for (device, most) in resources.rdma().iter().flatten() {
        let (handles, objects) = (most.hca_handles(), most.hca_objects());
        if handles.is_some() || objects.is_some() {
            out.push(Limit::Rdma { device: device.clone(), handles, objects });
        }
    }
    network(&mut out, resources);
    Ok(out)
}

/// Checks the size of a huge page, which is a part of a file's name.
fn check_page_size(index: usize, size: &str) -> Result<()> {
    let number = ["KB", "MB", "GB"].iter().find_map(|unit| size.strip_suffix(unit));
    if number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())) {
        return Ok(());
    }
    let message = format!("linux.resources.hugepageLimits[{index}].pageSize: {size:?} is no page size");
    Err(Error::new(Kind::BadSpec, message).hint("write one that the host has, such as 2MB or 1GB"))
}

/// Checks the rules of the device allow-list.
///
/// # Errors
/// `BadSpec` naming the rule by its place, and its field.
pub fn check_devices(resources: &LinuxResources) -> Result<()> {
    let mut rules = resources.devices().iter().flatten().enumerate();
    rules.try_for_each(|(index, rule)| check_device(index, rule))
}

/// Checks one rule of the device allow-list.
fn check_device(index: usize, rule: &LinuxDeviceCgroup) -> Result<()> {
    let bad = |what: &str| Err(Error::new(Kind::BadSpec, format!("linux.resources.devices[{index}].{what}")));
    let access = rule.access().as_deref().unwrap_or_default();
    if access.is_empty() || access.contains(|letter| !"rwm".contains(letter)) {
        return bad(&format!("access: {access:?} is not made of r, w and m"));
    }
    for (name, number) in [("major", rule.major()), ("minor", rule.minor())] {
        // -1 is every number.
        if let Some(number) = number.filter(|number| !(-1..=i64::from(i32::MAX)).contains(number)) {
            return bad(&format!("{name}: {number} is no device number"));
        }
    }
    match rule.typ() {
        Some(LinuxDeviceType::P | LinuxDeviceType::U) => bad("type: it has to be a, b or c"),
        Some(LinuxDeviceType::A | LinuxDeviceType::B | LinuxDeviceType::C) | None => Ok(()),
    }
}

fn memory(out: &mut Vec<Limit>, resources: &LinuxResources) -> Result<()> {
    let Some(memory) = resources.memory() else { return Ok(()) };
    for (name, figure) in [("limit", memory.limit()), ("swap", memory.swap()), ("reservation", memory.reservation())] {
        if let Some(figure) = figure.filter(|figure| *figure < -1) {
            let message = format!("linux.resources.memory.{name}: {figure} is negative");
            return Err(Error::new(Kind::BadSpec, message).hint("-1 is no limit"));
        }
    }
    // 0 means "not set", as in runc.
    let set = |figure: Option<i64>| figure.filter(|figure| *figure != 0).map(Amount::oci);
    let most = set(memory.limit()).and_then(|most| most.0);
    if memory.use_hierarchy() == Some(true) {
        out.push(Limit::UseHierarchy);
    }
    // The memory limit first: a new cgroup has no limit with swap yet, and v1 wants the limit
    // with swap to be at least the memory limit at all times.
    out.extend(set(memory.limit()).map(Limit::MemoryMax));
    if let Some(both) = set(memory.swap()) {
        if let (Amount(Some(both)), Some(most)) = (both, most) {
            check_swap(both, most)?;
        }
        out.push(Limit::MemoryAndSwapMax { both, memory: most });
    }
    out.extend(memory.reservation().map(|low| Limit::MemoryLow(Amount::oci(low))));
    out.extend(memory.swappiness().map(Limit::Swappiness));
    if memory.disable_oom_killer() == Some(true) {
        out.push(Limit::OomKillDisabled);
    }
    Ok(())
}

/// Refuses less memory and swap together than memory alone.
pub fn check_swap(both: u64, most: u64) -> Result<()> {
    if both >= most {
        return Ok(());
    }
    let message = format!("memory and swap together are limited to {both} bytes, memory alone to {most}");
    Err(Error::new(Kind::BadSpec, message).hint("the first has to be at least the second"))
}

fn cpu(out: &mut Vec<Limit>, resources: &LinuxResources) {
    let Some(cpu) = resources.cpu() else { return };
    out.extend(cpu.shares().map(Limit::CpuShares));
    let quota = CpuQuota { quota: cpu.quota(), period: cpu.period() };
    if quota.quota.is_some() || quota.period.is_some() {
        out.push(Limit::CpuQuota(quota));
    }
    // After the quota, which it may not exceed.
    out.extend(cpu.burst().map(Limit::CpuBurst));
    // After the shares, which the kernel sets back as it changes.
    out.extend(cpu.idle().map(Limit::CpuIdle));
    // The period first: the time has to fit into it.
    out.extend(cpu.realtime_period().filter(|period| *period != 0).map(Limit::RealtimePeriod));
    out.extend(cpu.realtime_runtime().filter(|time| *time != 0).map(Limit::RealtimeRuntime));
    out.extend(cpu.cpus().as_deref().map(|cpus| Limit::Cpus(cpus.into())));
    out.extend(cpu.mems().as_deref().map(|nodes| Limit::MemoryNodes(nodes.into())));
}

fn block_io(out: &mut Vec<Limit>, resources: &LinuxResources) {
    let Some(io) = resources.block_io() else { return };
    let weight = |device, weight| Limit::IoWeight { device, weight: IoWeight::Blkio(weight) };
    let leaf_weight = |device, weight| Limit::IoLeafWeight { device, weight };
    // The kernel's weights begin at 10; 0 is none.
    let set = |weight: Option<u16>| weight.filter(|weight| *weight != 0);
    out.extend(set(io.weight()).map(|all| weight(None, all)));
    out.extend(set(io.leaf_weight()).map(|all| leaf_weight(None, all)));
    for of in io.weight_device().iter().flatten() {
        let device = Device(of.major(), of.minor());
        out.extend(set(of.weight()).map(|its| weight(Some(device), its)));
        out.extend(set(of.leaf_weight()).map(|its| leaf_weight(Some(device), its)));
    }
    out.extend(rates(Rate::BytesRead, io.throttle_read_bps_device()));
    out.extend(rates(Rate::BytesWritten, io.throttle_write_bps_device()));
    out.extend(rates(Rate::Reads, io.throttle_read_iops_device()));
    out.extend(rates(Rate::Writes, io.throttle_write_iops_device()));
}

fn network(out: &mut Vec<Limit>, resources: &LinuxResources) {
    let Some(network) = resources.network() else { return };
    out.extend(network.class_id().filter(|class| *class != 0).map(Limit::NetClass));
    let priorities = network.priorities().iter().flatten();
    out.extend(priorities.map(|of| Limit::NetPriority { interface: of.name().clone(), priority: of.priority() }));
}

fn rates(of: Rate, devices: &Option<Vec<LinuxThrottleDevice>>) -> impl Iterator<Item = Limit> {
    devices.iter().flatten().map(move |device| Limit::IoRate {
        device: Device(device.major(), device.minor()),
        of,
        // OCI's 0 means no limit, and so does the kernel's greatest.
        most: Amount(Some(device.rate()).filter(|rate| (1..u64::MAX).contains(rate))),
    })
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::{LinuxHugepageLimitBuilder, LinuxMemoryBuilder, LinuxResourcesBuilder};

    use super::*;

    fn of_memory(limit: i64, swap: i64) -> Result<Vec<Limit>> {
        let memory = LinuxMemoryBuilder::default().limit(limit).swap(swap).build().expect("memory");
        of(&LinuxResourcesBuilder::default().memory(memory).build().expect("resources"))
    }

    #[test]
    fn less_memory_and_swap_than_memory_is_refused() {
        assert_eq!(of_memory(2, 1).expect_err("less").kind(), Kind::BadSpec);
    }

    #[test]
    fn a_page_size_that_is_none_is_named() {
        let hugepages = |size: &str| {
            let limit = LinuxHugepageLimitBuilder::default().page_size(size).limit(1).build().expect("a limit");
            of(&LinuxResourcesBuilder::default().hugepage_limits(vec![limit]).build().expect("resources"))
        };
        assert!(hugepages("2MB").is_ok() && hugepages("64KB").is_ok());
        for size in ["", "MB", "2mb", "2M", "2MB/../x", "-2MB"] {
            let error = hugepages(size).expect_err(size);
            assert!(error.message().starts_with("linux.resources.hugepageLimits[0].pageSize: "), "{error}");
        }
    }

    #[test]
    fn nothing_of_memory_is_what_nobody_has_set() {
        assert_eq!(of_memory(2, 0), Ok(vec![Limit::MemoryMax(Amount(Some(2)))]));
        assert_eq!(of_memory(0, 0), Ok(vec![]));
        let none = Limit::MemoryAndSwapMax { both: Amount(None), memory: Some(2) };
        assert_eq!(of_memory(2, -1), Ok(vec![Limit::MemoryMax(Amount(Some(2))), none]));
    }
}
