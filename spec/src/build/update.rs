//! What an update changes, as OCI resources: nothing but that.

use oci_spec::runtime::{LinuxBlockIo, LinuxCpu, LinuxHugepageLimit, LinuxMemory, LinuxPids, LinuxResources};

use super::host::Host;
use super::resources::{DeviceIo, block_io, filled, hugepage_limit, pids_limit, resources};
use crate::invalid::Invalid;
use crate::task::Task;
use crate::update::{CpuUpdate, IoUpdate, MemoryUpdate, Update};
use crate::values::{ByteSize, Ceiling};

/// The task as it is once `update` is in effect, and the limits that change.
///
/// A limit that is lifted is −1 in OCI's terms; a rate 0.
///
/// # Errors
/// What [`Update::applied_to`] and [`build`](super::build) find.
pub fn build_update(task: &Task, update: &Update, host: &Host) -> Result<(Task, LinuxResources), Invalid> {
    let merged = update.applied_to(task)?;
    // The limits of the whole task: what fits this host is checked once.
    let whole = resources(&merged, host, Vec::new())?;
    let mut changes = LinuxResources::default();
    changes
        .set_memory(memory(&update.memory, &merged, whole.memory().as_ref()))
        .set_cpu(cpu(&update.cpu, &merged, whole.cpu().as_ref()))
        .set_pids(update.pids.map(pids))
        .set_block_io(update_io(&update.io, host)?)
        .set_hugepage_limits(hugepages(update, host)?)
        .set_unified(unified(update));
    Ok((merged, changes))
}

/// Limit and swap go together: OCI counts both in one figure.
fn memory(update: &MemoryUpdate, merged: &Task, whole: Option<&LinuxMemory>) -> Option<LinuxMemory> {
    let mut memory = LinuxMemory::default();
    if update.limit.is_some() || update.swap.is_some() {
        let lifted = update.limit == Some(Ceiling::Unlimited);
        let whole = whole.cloned().unwrap_or_default();
        memory.set_limit(if lifted { Some(-1) } else { whole.limit() });
        // What a bundle says of swap, which the description does not know, stays; so does a raw value.
        let is_raw = update.swap.is_none() && merged.unified.contains_key("memory.swap.max");
        if !is_raw && (lifted || merged.bundle.is_none() || merged.memory.swap.is_some()) {
            memory.set_swap(if lifted { Some(-1) } else { whole.swap() });
            memory.set_swappiness(whole.swappiness());
        }
    }
    memory.set_reservation(update.low.map(ByteSize::as_i64));
    (memory != LinuxMemory::default()).then_some(memory)
}

fn cpu(update: &CpuUpdate, merged: &Task, whole: Option<&LinuxCpu>) -> Option<LinuxCpu> {
    let mut cpu = LinuxCpu::default();
    cpu.set_shares(update.shares);
    if update.limit.is_some() || update.period.is_some() {
        cpu.set_quota(Some(merged.cpu.quota_us().unwrap_or(-1)));
        cpu.set_period(Some(merged.cpu.period_us()));
    }
    let whole = whole.cloned().unwrap_or_default();
    if update.realtime.is_some() || update.realtime_period.is_some() {
        cpu.set_realtime_runtime(whole.realtime_runtime());
        cpu.set_realtime_period(whole.realtime_period());
    }
    cpu.set_cpus(update.cpuset.as_ref().and_then(|_| whole.cpus().clone()));
    cpu.set_mems(update.mems.as_ref().and_then(|_| whole.mems().clone()));
    (cpu != LinuxCpu::default()).then_some(cpu)
}

fn pids(most: Ceiling<u64>) -> LinuxPids {
    let mut pids = LinuxPids::default();
    pids.set_limit(pids_limit(most));
    pids
}

fn update_io(update: &IoUpdate, host: &Host) -> Result<Option<LinuxBlockIo>, Invalid> {
    let bytes = |rate: Option<Ceiling<ByteSize>>| rate.map(|rate| at_or_none(rate, ByteSize::as_u64));
    let count = |rate: Option<Ceiling<u64>>| rate.map(|rate| at_or_none(rate, |rate| rate));
    let devices = update.devices.iter().map(|device| DeviceIo {
        path: &device.path,
        weight: device.weight,
        rates: [bytes(device.read_bps), bytes(device.write_bps), count(device.read_iops), count(device.write_iops)],
    });
    block_io(update.weight, devices, host)
}

/// OCI's rate; 0 is none.
fn at_or_none<T>(rate: Ceiling<T>, number: impl FnOnce(T) -> u64) -> u64 {
    match rate {
        Ceiling::At(rate) => number(rate),
        Ceiling::Unlimited => 0,
    }
}

fn hugepages(update: &Update, host: &Host) -> Result<Option<Vec<LinuxHugepageLimit>>, Invalid> {
    let limits = update.hugepages.iter().map(|(size, most)| hugepage_limit(size, *most, host));
    let limits: Vec<LinuxHugepageLimit> = limits.collect::<Result<_, _>>()?;
    Ok((!limits.is_empty()).then_some(limits))
}

fn unified(update: &Update) -> Option<std::collections::HashMap<String, String>> {
    let mut files = update.unified.clone();
    if let Some(high) = update.memory.high {
        let high = match high {
            Ceiling::At(high) => high.as_u64().to_string(),
            Ceiling::Unlimited => "max".to_owned(),
        };
        files.insert("memory.high".to_owned(), high);
    }
    filled(files)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::parse::{Format, parse, parse_update};

    fn changes(task: &str, update: &str, v2: bool) -> Result<LinuxResources, Invalid> {
        let host = Host {
            cpus: [0, 1].into(),
            mems: [0].into(),
            cgroup_v2: v2,
            hugepage_sizes: ["2MB".to_string()].into(),
            ..Host::default()
        };
        let task = parse(&format!("command = 'true'\n{task}"), Format::Toml).unwrap();
        let update = parse_update(update, Format::Toml).unwrap();
        build_update(&task, &update, &host).map(|(_, changes)| changes)
    }

    #[test]
    fn only_what_changes_is_there() {
        let pids = changes("memory.limit = '64M'\ncpu.limit = 1", "pids = 7", false).unwrap();
        assert_eq!(pids.pids().map(|p| p.limit()), Some(7));
        assert!(pids.memory().is_none() && pids.cpu().is_none() && pids.block_io().is_none());
        assert!(pids.devices().as_ref().is_none_or(Vec::is_empty));
    }

    #[test]
    fn swap_moves_with_the_limit() {
        let grown = changes("memory = {limit = '64M', swap = '16M'}", "memory.limit = '128M'", false).unwrap();
        let memory = grown.memory().unwrap();
        assert_eq!((memory.limit(), memory.swap()), (Some(128 << 20), Some(144 << 20)));
        let v2 = changes("memory.limit = '64M'", "memory.limit = '32M'", true).unwrap();
        assert_eq!(v2.memory().unwrap().swap(), Some(32 << 20), "none beyond the limit");
    }

    #[test]
    fn a_lifted_limit_is_minus_one_and_a_lifted_rate_zero() {
        let memory = changes("memory.limit = '64M'", "memory.limit = 'max'", true).unwrap();
        assert_eq!((memory.memory().unwrap().limit(), memory.memory().unwrap().swap()), (Some(-1), Some(-1)));
        let cpu = changes("cpu.limit = 1", "cpu.limit = 'max'", false).unwrap();
        assert_eq!(cpu.cpu().as_ref().unwrap().quota(), Some(-1));
        let io = changes("", "io.devices = [{path = '8:0', read_bps = 'max'}]", false).unwrap();
        let io = io.block_io().clone().unwrap();
        assert_eq!(io.throttle_read_bps_device().as_ref().unwrap()[0].rate(), 0);
    }

    #[test]
    fn a_period_alone_changes_the_quota_of_a_limit_too() {
        let limited = changes("cpu.limit = 0.5", "cpu.period = '50ms'", false).unwrap();
        let cpu = limited.cpu().clone().unwrap();
        assert_eq!((cpu.quota(), cpu.period()), (Some(25_000), Some(50_000)));
        let unlimited = changes("", "cpu.period = '50ms'", false).unwrap();
        let cpu = unlimited.cpu().clone().unwrap();
        assert_eq!((cpu.quota(), cpu.period()), (Some(-1), Some(50_000)));
    }

    #[test]
    fn what_does_not_fit_the_host_is_refused() {
        assert_eq!(changes("", "cpu.cpuset = '7'", false).unwrap_err().field, "cpu.cpuset");
        assert_eq!(changes("", "memory.high = '64M'", false).unwrap_err().field, "memory.high");
        assert_eq!(changes("", "hugepages = {1GB = '1G'}", false).unwrap_err().field, "hugepages.1GB");
        assert_eq!(
            changes("", "io.devices = [{path = '/dev/x', weight = 10}]", true).unwrap_err().field,
            "io.devices[0].path"
        );
    }
}
