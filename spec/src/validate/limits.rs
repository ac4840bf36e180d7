//! How much the task may use.

use std::collections::BTreeMap;

use super::rules::{no_nul, require};
use crate::budget::{SHARES, quota_us};
use crate::invalid::Invalid;
use crate::task::{Cpu, IoDevice, Task};
use crate::values::{ByteSize, Ceiling};

/// Below this nothing starts reliably; Docker's floor too.
const LEAST_MEMORY: ByteSize = ByteSize::mib(6);
/// OCI's range. Linux takes from 1, but below 10 runc's conversion to
/// cgroup v2, 1 + (weight − 10) · 9999 / 990, goes below zero.
const WEIGHTS: std::ops::RangeInclusive<u16> = 10..=1000;

pub(super) fn check(task: &Task) -> Result<(), Invalid> {
    cpu(&task.cpu)?;
    let of = &task.memory;
    memory(of.limit, of.high, of.low, of.swap)?;
    pids(task.pids, "the task")?;
    weight("io.weight", task.io.weight)?;
    for (index, device) in task.io.devices.iter().enumerate() {
        io_device(&format!("io.devices[{index}]"), device)?;
    }
    hugepages(&task.hugepages)?;
    for (file, value) in &task.unified {
        let field = format!("unified.{file}");
        let name = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        let sound = file.contains('.') && !file.starts_with('.') && file.bytes().all(name);
        require(sound, &field, || format!("{file:?} is not a cgroup v2 file such as memory.high"))?;
        // cgroup.procs and its like move processes, they limit nothing.
        require(!file.starts_with("cgroup."), &field, || "is not a limit; it would act on the cgroup itself".into())?;
        no_nul(&field, value)?;
    }
    require(task.memory.high.is_none() || !task.unified.contains_key("memory.high"), "memory.high", || {
        "is given twice: here and in unified".into()
    })
}

/// Refuses shares that the kernel does not take.
pub(super) fn shares(shares: Option<u64>) -> Result<(), Invalid> {
    let Some(shares) = shares else { return Ok(()) };
    require(SHARES.contains(&shares), "cpu.shares", || {
        format!("{shares} is not between {} and {}", SHARES.start(), SHARES.end())
    })
}

/// Checks CPU time, but for shares.
pub(super) fn cpu(cpu: &Cpu) -> Result<(), Invalid> {
    if let Some(period) = cpu.period {
        let bounds = std::time::Duration::from_millis(1)..=std::time::Duration::from_secs(1);
        require(bounds.contains(&period.as_std()), "cpu.period", || format!("{period} is not between 1ms and 1s"))?;
    }
    if let Some(limit) = cpu.limit {
        quota_us("cpu.limit", limit, cpu.period_us())?;
    }
    require(cpu.realtime.is_some() || cpu.realtime_period.is_none(), "cpu.realtime_period", || {
        "needs cpu.realtime, the time in each period".into()
    })?;
    let Some((runtime, period)) = cpu.realtime_us() else { return Ok(()) };
    require((1..=period).contains(&runtime), "cpu.realtime", || {
        format!("{runtime} µs are not between 1 and the period, {period} µs")
    })
}

pub(super) fn memory(
    limit: Option<ByteSize>,
    high: Option<ByteSize>,
    low: Option<ByteSize>,
    swap: Option<Ceiling<ByteSize>>,
) -> Result<(), Invalid> {
    for (field, size) in [("memory.limit", limit), ("memory.high", high)] {
        require(size.is_none_or(|s| s >= LEAST_MEMORY), field, || {
            let size = size.unwrap_or_default();
            format!("{size} is too little to start anything; write at least {LEAST_MEMORY}")
        })?;
    }
    for (field, size) in [("memory.low", low), ("memory.high", high)] {
        if let (Some(size), Some(limit)) = (size, limit) {
            require(size <= limit, field, || format!("{size} is above memory.limit, {limit}"))?;
        }
    }
    let Some(swap) = swap else {
        return Ok(());
    };
    let Some(limit) = limit else {
        return Err(Invalid::new("memory.swap", "needs memory.limit: it is counted beyond it"));
    };
    let fits = match swap {
        Ceiling::At(swap) => limit.as_i64().checked_add(swap.as_i64()).is_some(),
        Ceiling::Unlimited => true,
    };
    require(fits, "memory.swap", || {
        format!("{swap} beyond {limit} is more than the kernel counts; write \"unlimited\"")
    })
}

/// The most processes of a kernel of 64 bits (`PID_MAX_LIMIT`): `pids.max` takes no larger number.
const MOST_PIDS: u64 = 1 << 22;

pub(super) fn pids(most: Option<Ceiling<u64>>, whose: &str) -> Result<(), Invalid> {
    require(most != Some(Ceiling::At(0)), "pids", || format!("is 0; {whose} needs at least 1"))?;
    match most {
        Some(Ceiling::At(pids)) => check_pids(pids),
        Some(Ceiling::Unlimited) | None => Ok(()),
    }
}

/// Checks that `pids.max` takes this number.
///
/// # Errors
/// Names the number and the most that it takes.
pub fn check_pids(pids: u64) -> Result<(), Invalid> {
    require(pids <= MOST_PIDS, "pids", || {
        format!("{pids} is more than the {MOST_PIDS} that the kernel has; write \"max\"")
    })
}

pub(super) fn hugepages(limits: &BTreeMap<String, ByteSize>) -> Result<(), Invalid> {
    for size in limits.keys() {
        let bytes = size.parse::<ByteSize>().ok().filter(|s| s.as_u64() > 0);
        require(bytes.is_some(), &format!("hugepages.{size}"), || {
            format!("{size:?} is not a page size; write it as 2MB or 1GB")
        })?;
    }
    Ok(())
}

fn weight(field: &str, weight: Option<u16>) -> Result<(), Invalid> {
    require(weight.is_none_or(|w| WEIGHTS.contains(&w)), field, || {
        let weight = weight.unwrap_or_default();
        format!("{weight} is not between {} and {}", WEIGHTS.start(), WEIGHTS.end())
    })
}

fn io_device(field: &str, device: &IoDevice) -> Result<(), Invalid> {
    let path = format!("{field}.path");
    no_nul(&path, &device.path)?;
    let known = device.path.starts_with('/') || numbers(&device.path).is_some();
    require(known, &path, || format!("{:?} is neither an absolute path nor numbers such as 8:0", device.path))?;
    weight(&format!("{field}.weight"), device.weight)?;
    for (name, rate) in [
        ("read_bps", device.read_bps.map(ByteSize::as_u64)),
        ("write_bps", device.write_bps.map(ByteSize::as_u64)),
        ("read_iops", device.read_iops),
        ("write_iops", device.write_iops),
    ] {
        // 0 lifts the limit on v1 and is refused by v2.
        let field = format!("{field}.{name}");
        require(rate != Some(0), &field, || "is 0; leave it out for no limit".into())?;
        // The kernel counts operations in an unsigned int (block/blk-throttle.c).
        let counted = name.ends_with("bps") || rate.is_none_or(|r| u32::try_from(r).is_ok());
        require(counted, &field, || format!("is more than the kernel counts, {}", u32::MAX))?;
    }
    Ok(())
}

/// The numbers of a device in `8:0`; `None` if the kernel could not have them.
pub(crate) fn numbers(text: &str) -> Option<(i64, i64)> {
    let (major, minor) = text.split_once(':')?;
    // 12 and 20 bits (include/linux/kdev_t.h).
    let number = |text: &str, bits: u32| {
        let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<i64>().ok().filter(|n| plain && *n < 1 << bits)
    };
    Some((number(major, 12)?, number(minor, 20)?))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{accepted, refused};

    #[test]
    fn cpu_limits_are_checked() {
        accepted("cpu = {shares = 2, limit = 0.01, cpuset = '0-1', mems = 0}");
        for limit in ["0", "-1", "nan", "'x'", "0.0"] {
            refused(&format!("cpu.limit = {limit}"), "cpu.limit", "not a number of CPUs");
        }
        refused("cpu.limit = 0.009", "cpu.limit", "at least 1000");
        refused("cpu = {limit = 0.5, period = '1ms'}", "cpu.limit", "500 µs");
        accepted("cpu = {limit = 1, period = '1ms'}");
        refused("cpu.period = '999us'", "cpu.period", "between 1ms and 1s");
        refused("cpu.period = '1001ms'", "cpu.period", "between 1ms and 1s");
        refused("cpu.shares = 1", "cpu.shares", "between 2 and 262144");
        refused("cpu.shares = 262145", "cpu.shares", "between 2 and 262144");
        accepted("cpu = {realtime = '10ms', realtime_period = '10ms'}");
        accepted("cpu.realtime = '1s'");
        refused("cpu.realtime = '1001ms'", "cpu.realtime", "1000000 µs");
        refused("cpu.realtime = 0", "cpu.realtime", "between 1 and");
        refused("cpu.realtime_period = '1s'", "cpu.realtime_period", "needs cpu.realtime");
        refused("cpu.cpuset = '1-0'", "cpu.cpuset", "not a list");
        refused("cpu.mems = ''", "cpu.mems", "not a list");
    }

    #[test]
    fn memory_limits_are_checked() {
        accepted("memory = {limit = '6M', low = '6M', high = '6M', swap = 0}");
        accepted("memory = {limit = '64M', swap = 'unlimited'}");
        refused("memory.limit = '5M'", "memory.limit", "at least 6M");
        refused("memory.limit = 0", "memory.limit", "at least 6M");
        refused("memory.high = '1M'", "memory.high", "at least 6M");
        refused("memory = {limit = '64M', low = '65M'}", "memory.low", "above memory.limit");
        refused("memory = {limit = '64M', high = '65M'}", "memory.high", "above memory.limit");
        refused("memory.swap = '1G'", "memory.swap", "needs memory.limit");
        let most = i64::MAX;
        refused(&format!("memory = {{limit = {most}, swap = 1}}"), "memory.swap", "more than the kernel counts");
    }

    #[test]
    fn pids_are_checked() {
        accepted("pids = 1");
        accepted("pids = 'max'");
        refused("pids = 0", "pids", "at least 1");
        refused("pids = -1", "pids", "neither");
        refused("pids = '18446744073709551615'", "pids", "max");
    }

    #[test]
    fn io_limits_are_checked() {
        accepted("io = {weight = 10, devices = [{path = '8:0', read_bps = '1M', weight = 1000}]}");
        refused("io.weight = 9", "io.weight", "between 10 and 1000");
        refused("io.weight = 1001", "io.weight", "between 10 and 1000");
        for path in ["", "sda", "8", "8:", "a:b", "4096:0", "-1:0", "8:1048576"] {
            let toml = format!("io.devices = [{{path = '{path}'}}]");
            refused(&toml, "io.devices[0].path", "neither");
        }
        refused("io.devices = [{path = '8:0', weight = 5}]", "io.devices[0].weight", "between");
        refused("io.devices = [{path = '8:0', read_iops = 0}]", "io.devices[0].read_iops", "is 0");
    }

    #[test]
    fn io_operations_are_counted_in_32_bits() {
        let rate = |rate: u64| format!("io.devices = [{{path = '8:0', write_iops = {rate}}}]");
        accepted(&rate(u32::MAX.into()));
        refused(&rate(1 << 32), "io.devices[0].write_iops", "4294967295");
    }

    #[test]
    fn page_sizes_and_raw_files_are_checked() {
        accepted("hugepages = {2MB = '64M', 1GB = 0}");
        refused("hugepages = {big = 1}", "hugepages.big", "not a page size");
        accepted("unified = {'memory.oom.group' = '1'}");
        for file in ["memory", "", "../memory.max", ".x", "memory/max.x", "a b.c"] {
            refused(&format!("unified = {{'{file}' = '1'}}"), &format!("unified.{file}"), "not a");
        }
        refused("unified = {'cgroup.procs' = '1'}", "unified.cgroup.procs", "not a limit");
        let twice = "memory.high = '64M'\nunified = {'memory.high' = '1'}";
        refused(twice, "memory.high", "twice");
    }
}
