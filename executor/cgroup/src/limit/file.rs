//! The limits that a file of cgroup v2 means. OCI has no field for `memory.high` and `memory.min`, so a description's
//! pass through `unified` as text, the only two that do.

use super::Limit;
use crate::values::{Amount, CpuQuota, Device, IoWeight, Rate, plain_number};

/// The limits that `value` in a v2 file means.
pub fn of_file(file: &str, value: &str) -> Vec<Limit> {
    let text = value.trim();
    let amount = |limit: fn(Amount) -> Limit| Some(vec![limit(Amount::parse(text)?)]);
    let limits = match file {
        "memory.max" => amount(Limit::MemoryMax),
        "memory.high" => amount(Limit::MemoryHigh),
        "memory.low" => amount(Limit::MemoryLow),
        "memory.min" => amount(Limit::MemoryMin),
        "memory.swap.max" => amount(Limit::SwapMax),
        "memory.zswap.max" => amount(Limit::ZswapMax),
        "pids.max" => amount(Limit::Pids),
        "cpu.weight" => plain_number(text).map(|weight| vec![Limit::CpuWeight(weight)]),
        "cpu.max" => cpu_max(text).map(|limit| vec![limit]),
        "cpuset.cpus" if !text.is_empty() => Some(vec![Limit::Cpus(text.into())]),
        "cpuset.mems" if !text.is_empty() => Some(vec![Limit::MemoryNodes(text.into())]),
        "io.weight" => io_weight(text).map(|limit| vec![limit]),
        "io.max" => io_max(text),
        _ => None,
    };
    limits.unwrap_or_else(|| vec![Limit::Raw { file: file.to_owned(), value: value.to_owned() }])
}

/// Parses `5 10`, `max 10` or `5`.
fn cpu_max(text: &str) -> Option<Limit> {
    let quota = |text: &str| match text {
        "max" => Some(-1),
        text => i64::try_from(plain_number(text)?).ok().filter(|quota| *quota > 0),
    };
    Some(match text.split_once(' ') {
        None => Limit::CpuQuotaAlone(quota(text)?),
        Some((text, period)) => {
            let period = Some(plain_number(period).filter(|period| *period > 0)?);
            Limit::CpuQuota(CpuQuota { quota: Some(quota(text)?), period })
        }
    })
}

/// Parses `50`, `default 50` or `8:0 50`.
fn io_weight(text: &str) -> Option<Limit> {
    let (device, weight) = match text.split_once(' ') {
        None => (None, text),
        Some(("default", weight)) => (None, weight),
        Some((device, weight)) => (Some(Device::parse(device)?), weight),
    };
    Some(Limit::IoWeight { device, weight: IoWeight::Io(plain_number(weight)?) })
}

/// Parses `8:0 rbps=1000 wiops=max`.
fn io_max(text: &str) -> Option<Vec<Limit>> {
    let mut words = text.split_whitespace();
    let device = Device::parse(words.next()?)?;
    let rate = |word: &str| {
        let (key, most) = word.split_once('=')?;
        Some(Limit::IoRate { device, of: Rate::of_key(key)?, most: Amount::parse(most)? })
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
    fn what_only_the_kernel_can_read_stays_as_it_is() {
        let cases = [
            ("memory.max", "1M"),
            ("memory.max", "+1"),
            ("pids.max", "010"),
            ("cpuset.cpus", "\n"),
            ("io.weight", "default default 50"),
            ("memory.oom.group", "1"),
            ("cpu.max", "x y"),
            ("cpu.max", "1000 0"),
            ("io.max", ""),
            ("io.max", "8:0"),
            ("io.max", "8:0 rbps=1 odd=2"),
            ("io.weight", "8:0 default"),
        ];
        for (file, value) in cases {
            assert_eq!(of_file(file, value), [Limit::Raw { file: file.to_owned(), value: value.to_owned() }]);
        }
    }
}
