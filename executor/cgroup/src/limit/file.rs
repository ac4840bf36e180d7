//! The limits that a file of cgroup v2 means. OCI has no field for `memory.high` and `memory.min`, so a description's
//! pass through `unified` as text, the only two that do. Whatever the kernel takes for one of these files is parsed, so
//! that systemd has a property for it.

use super::{Limit, number};
use crate::values::{Amount, CpuQuota, Device, IoWeight, Rate};

/// Whether values of a file are limits with a variant of their own.
pub fn is_known(file: &str) -> bool {
    matches!(
        file,
        "memory.max"
            | "memory.high"
            | "memory.low"
            | "memory.min"
            | "memory.swap.max"
            | "memory.zswap.max"
            | "memory.zswap.writeback"
            | "pids.max"
            | "cpu.weight"
            | "cpu.max"
            | "cpu.idle"
            | "cpuset.cpus"
            | "cpuset.mems"
            | "io.weight"
            | "io.max"
    )
}

/// The limits that `value` in a v2 file means.
pub fn of_file(file: &str, value: &str) -> Vec<Limit> {
    let text = value.trim();
    let memory = |limit: fn(Amount) -> Limit| number::memory(text).map(limit).map(one);
    let limits = match file {
        "memory.max" => memory(Limit::MemoryMax),
        "memory.high" => memory(Limit::MemoryHigh),
        "memory.low" => memory(Limit::MemoryLow),
        "memory.min" => memory(Limit::MemoryMin),
        "memory.swap.max" => memory(Limit::SwapMax),
        "memory.zswap.max" => memory(Limit::ZswapMax),
        "memory.zswap.writeback" => flag(text).map(Limit::ZswapWriteback).map(one),
        "pids.max" => number::count(text).map(Limit::Pids).map(one),
        "cpu.weight" => number::whole(text).map(Limit::CpuWeight).map(one),
        "cpu.max" => cpu_max(text).map(one),
        "cpu.idle" => flag(text).map(|idle| one(Limit::CpuIdle(idle.into()))),
        "cpuset.cpus" if !text.is_empty() => Some(one(Limit::Cpus(text.into()))),
        "cpuset.mems" if !text.is_empty() => Some(one(Limit::MemoryNodes(text.into()))),
        "io.weight" => io_weight(text).map(one),
        "io.max" => io_max(text),
        _ => None,
    };
    limits.unwrap_or_else(|| vec![Limit::Raw { file: file.to_owned(), value: value.to_owned() }])
}

/// The weight that a nice value in `cpu.weight.nice` means: 100 is 0, and each step is a quarter more or less.
pub fn weight_of_nice(value: &str) -> Option<u64> {
    let text = value.trim();
    let (below, number) = text.strip_prefix('-').map_or((false, text), |number| (true, number));
    let number = i32::try_from(number::whole(number)?).ok()?;
    let nice = Some(if below { -number } else { number }).filter(|nice| (-20..20).contains(nice))?;
    Some((100.0 * 1.25f64.powi(-nice)).round() as u64)
}

/// Parses `0` or `1`.
fn flag(text: &str) -> Option<bool> {
    number::whole(text).filter(|flag| *flag < 2).map(|flag| flag == 1)
}

fn one(limit: Limit) -> Vec<Limit> {
    vec![limit]
}

/// Parses `5 10`, `max 10` or `5`.
fn cpu_max(text: &str) -> Option<Limit> {
    let quota = |text: &str| match text {
        "max" => Some(-1),
        text => i64::try_from(number::decimal(text)?).ok().filter(|quota| *quota > 0),
    };
    let mut words = text.split_whitespace();
    let limit = match (words.next()?, words.next()) {
        (text, None) => Limit::CpuQuotaAlone(quota(text)?),
        (text, Some(period)) => {
            let period = Some(number::decimal(period).filter(|period| *period > 0)?);
            Limit::CpuQuota(CpuQuota { quota: Some(quota(text)?), period })
        }
    };
    words.next().is_none().then_some(limit)
}

/// Parses `50`, `default 50` or `8:0 50`.
fn io_weight(text: &str) -> Option<Limit> {
    let mut words = text.split_whitespace();
    let (device, weight) = match (words.next()?, words.next()) {
        (weight, None) => (None, weight),
        ("default", Some(weight)) => (None, weight),
        (device, Some(weight)) => (Some(Device::parse(device)?), weight),
    };
    let limit = Limit::IoWeight { device, weight: IoWeight::Io(number::decimal(weight)?) };
    words.next().is_none().then_some(limit)
}

/// Parses `8:0 rbps=1000 wiops=max`.
fn io_max(text: &str) -> Option<Vec<Limit>> {
    let mut words = text.split_whitespace();
    let device = Device::parse(words.next()?)?;
    let rate = |word: &str| {
        let (key, most) = word.split_once('=')?;
        Some(Limit::IoRate { device, of: Rate::of_key(key)?, most: number::rate(most)? })
    };
    words.map(rate).collect::<Option<Vec<_>>>().filter(|rates| !rates.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_known_is_a_limit() {
        let device = Device(8, 16);
        let rate = |of, most| Limit::IoRate { device, of, most: Amount(most) };
        let all = None;
        let cases = [
            ("memory.high", "max\n", vec![Limit::MemoryHigh(Amount(None))]),
            ("memory.min", "4096", vec![Limit::MemoryMin(Amount(Some(4096)))]),
            ("cpu.max", "5 10", vec![Limit::CpuQuota(CpuQuota { quota: Some(5), period: Some(10) })]),
            ("cpu.max", "max", vec![Limit::CpuQuotaAlone(-1)]),
            ("cpu.max", "5", vec![Limit::CpuQuotaAlone(5)]),
            ("cpu.max", " 5\t010 ", vec![Limit::CpuQuota(CpuQuota { quota: Some(5), period: Some(10) })]),
            ("cpu.idle", "1", vec![Limit::CpuIdle(1)]),
            ("memory.zswap.writeback", "0", vec![Limit::ZswapWriteback(false)]),
            ("memory.max", "1M", vec![Limit::MemoryMax(Amount(Some(1 << 20)))]),
            ("memory.swap.max", "0x1000", vec![Limit::SwapMax(Amount(Some(4096)))]),
            ("pids.max", "010", vec![Limit::Pids(Amount(Some(8)))]),
            ("cpu.weight", "+50", vec![Limit::CpuWeight(50)]),
            ("io.max", "8:16 riops=010", vec![rate(Rate::Reads, Some(10))]),
            ("io.weight", "default 7", vec![Limit::IoWeight { device: all, weight: IoWeight::Io(7) }]),
            ("io.weight", "7", vec![Limit::IoWeight { device: all, weight: IoWeight::Io(7) }]),
            ("io.weight", "8:16 7", vec![Limit::IoWeight { device: Some(device), weight: IoWeight::Io(7) }]),
            ("io.max", "8:16  rbps=1\twiops=max", vec![rate(Rate::BytesRead, Some(1)), rate(Rate::Writes, None)]),
        ];
        for (file, value, limits) in cases {
            assert_eq!(of_file(file, value), limits, "{file} {value}");
        }
    }

    #[test]
    fn a_nice_value_is_a_weight() {
        // As the kernel's table of weights has them, of 1024.
        for (nice, in_table) in [("-20", 88761.0), ("-5", 3121.0), ("0", 1024.0), (" 19\n", 15.0), ("+18", 18.0)] {
            let weight = weight_of_nice(nice).expect(nice) as f64;
            assert!((weight / (in_table / 10.24) - 1.0).abs() < 0.35, "{nice}: {weight}");
        }
        for none in ["20", "-21", "", "high"] {
            assert_eq!(weight_of_nice(none), None, "{none}");
        }
    }

    #[test]
    fn what_only_the_kernel_can_read_stays_as_it_is() {
        let cases = [
            ("memory.max", "1MB"),
            ("memory.max", "+1"),
            ("pids.max", "1K"),
            ("cpuset.cpus", "\n"),
            ("io.weight", "default default 50"),
            ("memory.oom.group", "1"),
            ("cpu.max", "x y"),
            ("cpu.idle", "2"),
            ("cpu.max", "1000 0"),
            ("io.max", ""),
            ("io.max", "8:0"),
            ("io.max", "8:0 rbps=1 odd=2"),
            ("io.max", "8:0 rbps=1M"),
            ("cpu.max", "1000 1000 1000"),
            ("io.weight", "8:0 default"),
        ];
        for (file, value) in cases {
            assert_eq!(of_file(file, value), [Limit::Raw { file: file.to_owned(), value: value.to_owned() }]);
        }
    }
}
