//! Limits as properties of a unit.
//!
//! systemd writes the files of its units again and again: at `daemon-reload`,
//! and whenever a property changes. What it is told by no property it may put
//! back to its default, so each limit that it has a property for is one; what
//! it has none for (swappiness, huge pages, raw files) it leaves alone.
//!
//! Devices: on v2 its policy stays `auto`, by which it attaches no program of
//! its own and never touches ours. On v1 `auto` would have it write `a` to
//! `devices.allow`, which is every device of the host, so there it is told the
//! same rules: `strict`, and what is allowed.
//!
//! Source: systemd.resource-control(5), org.freedesktop.systemd1(5). Pure.

use bowline_spec::units::IdSet;
use serde::{Deserialize, Serialize};

use crate::cgroup::limits::Limit;

/// A property of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Property {
    /// As systemd calls it.
    pub name: String,
    /// What it is to be.
    pub value: Value,
}

/// Its value, by its type on the bus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// `b`
    Flag(bool),
    /// `t`
    Number(u64),
    /// `s`
    Text(String),
    /// `ay`: a bit for each CPU or node
    Set(Vec<u8>),
    /// `a(st)`: a figure for a device's path
    Devices(Vec<(String, u64)>),
    /// `a(ss)`: what may be done with a device
    Rules(Vec<(String, String)>),
}

/// "No limit", in numbers.
const INFINITY: u64 = u64::MAX;

/// A whole percent of a CPU, in µs of a second. A quota is kept in the unit's
/// file in whole percents, cut off; below the first one it would be lost.
const PERCENT: u64 = 10_000;

/// As many CPUs as a kernel can be built for.
const MOST_IDS: u32 = 8192;

/// The kernel's period, in µs.
const PERIOD: u64 = 100_000;

/// Rounds the CPU quota up to whole percents of a CPU, which is what systemd stores: any other quota
/// would change at the next `daemon-reload`.
pub fn kept(mut limits: Vec<Limit>) -> Vec<Limit> {
    let period = v1_period(&limits);
    for limit in &mut limits {
        let rounded = match (limit.file.as_str(), limit.value.split_once(' ')) {
            ("cpu.max", Some((quota, period))) => {
                period.parse().ok().and_then(|p| rounded(quota, p)).map(|quota| format!("{quota} {period}"))
            }
            ("cpu.max", None) => rounded(&limit.value, PERIOD).map(|quota| quota.to_string()),
            ("cpu.cfs_quota_us", _) => rounded(&limit.value, period).map(|quota| quota.to_string()),
            _ => None,
        };
        limit.value = rounded.unwrap_or_else(|| limit.value.clone());
    }
    limits
}

fn v1_period(limits: &[Limit]) -> u64 {
    let period = limits.iter().find(|limit| limit.file == "cpu.cfs_period_us");
    period.and_then(|limit| limit.value.parse().ok()).filter(|period| *period > 0).unwrap_or(PERIOD)
}

fn rounded(quota: &str, period: u64) -> Option<u64> {
    per_second(quota, period)?.checked_mul(period).map(|micros| micros / 1_000_000)
}

/// A quota in µs for each second, as systemd has it.
fn per_second(quota: &str, period: u64) -> Option<u64> {
    let exact = quota.parse::<u64>().ok()?.checked_mul(1_000_000)?.div_ceil(period.max(1));
    Some(exact.div_ceil(PERCENT) * PERCENT)
}

/// The properties that say what `limits` do. `driver_of` tells the name that
/// character ('c') or block ('b') devices of a major number have.
pub fn properties(limits: &[Limit], driver_of: impl Fn(char, u64) -> Option<String>) -> Vec<Property> {
    let mut out: Vec<Property> = Vec::new();
    for limit in limits {
        of_file(&mut out, limit.file.as_str(), limit.value.trim(), v1_period(limits));
    }
    let rules: Vec<&Limit> = limits.iter().filter(|limit| limit.file.starts_with("devices.")).collect();
    if !rules.is_empty() {
        devices(&mut out, &rules, driver_of);
    }
    out
}

/// What one value for one file is, if systemd has a property for it.
fn of_file(out: &mut Vec<Property>, file: &str, value: &str, v1_period: u64) {
    let single = |name| Some((name, number(value)?));
    let number = match file {
        "memory.max" => single("MemoryMax"),
        "memory.high" => single("MemoryHigh"),
        "memory.low" => single("MemoryLow"),
        "memory.min" => single("MemoryMin"),
        "memory.swap.max" => single("MemorySwapMax"),
        "memory.zswap.max" => single("MemoryZSwapMax"),
        "memory.limit_in_bytes" => single("MemoryLimit"),
        "cpu.weight" => single("CPUWeight"),
        "cpu.shares" => single("CPUShares"),
        "pids.max" => single("TasksMax"),
        "blkio.weight" => single("BlockIOWeight"),
        "cpu.max" => {
            let (quota, period) = value.split_once(' ').unwrap_or((value, "100000"));
            let Some(period) = period.parse().ok().filter(|period| *period > 0) else { return };
            return quota_of(out, quota, period);
        }
        "cpu.cfs_quota_us" => return quota_of(out, value, v1_period),
        "cpuset.cpus" | "cpuset.mems" => {
            let name = if file == "cpuset.cpus" { "AllowedCPUs" } else { "AllowedMemoryNodes" };
            return set(out, name, value);
        }
        "io.weight" => match value.split_once(' ') {
            Some(("default", weight)) => weight.parse().ok().map(|weight| ("IOWeight", weight)),
            Some((device, weight)) => return device_figure(out, "IODeviceWeight", device, weight),
            None => single("IOWeight"),
        },
        "io.max" => return io_max(out, value),
        "blkio.weight_device" => return of_device(out, "BlockIODeviceWeight", value),
        "blkio.throttle.read_bps_device" => return of_device(out, "BlockIOReadBandwidth", value),
        "blkio.throttle.write_bps_device" => return of_device(out, "BlockIOWriteBandwidth", value),
        _ => None,
    };
    if let Some((name, number)) = number {
        put(out, name, Value::Number(number));
    }
}

/// A later value of a file counts.
fn put(out: &mut Vec<Property>, name: &'static str, value: Value) {
    out.retain(|property| property.name != name);
    out.push(Property { name: name.to_owned(), value });
}

/// A figure, or none in the kernel's words.
fn number(value: &str) -> Option<u64> {
    match value {
        "max" | "-1" => Some(INFINITY),
        figure => figure.parse().ok(),
    }
}

fn quota_of(out: &mut Vec<Property>, quota: &str, period: u64) {
    let quota = if matches!(quota, "max" | "-1") { Some(INFINITY) } else { per_second(quota, period) };
    if let Some(quota) = quota.filter(|quota| *quota > 0) {
        put(out, "CPUQuotaPerSecUSec", Value::Number(quota));
        put(out, "CPUQuotaPeriodUSec", Value::Number(period));
    }
}

fn set(out: &mut Vec<Property>, name: &'static str, ids: &str) {
    // More than any kernel has: it will refuse them.
    let Ok(ids) = ids.parse::<IdSet>() else { return };
    if ids.ids().last() >= Some(&MOST_IDS) {
        return;
    }
    let mut bits = Vec::new();
    for id in ids.ids() {
        let (byte, bit) = (*id as usize / 8, id % 8);
        if bits.len() <= byte {
            bits.resize(byte + 1, 0u8);
        }
        bits[byte] |= 1 << bit;
    }
    put(out, name, Value::Set(bits));
}

/// `8:0 rbps=1000 wiops=max`
fn io_max(out: &mut Vec<Property>, value: &str) {
    let mut words = value.split_whitespace();
    let Some(device) = words.next() else { return };
    for (key, rate) in words.filter_map(|word| word.split_once('=')) {
        let name = match key {
            "rbps" => "IOReadBandwidthMax",
            "wbps" => "IOWriteBandwidthMax",
            "riops" => "IOReadIOPSMax",
            "wiops" => "IOWriteIOPSMax",
            _ => continue,
        };
        device_figure(out, name, device, rate);
    }
}

/// `8:0 1000`
fn of_device(out: &mut Vec<Property>, name: &'static str, value: &str) {
    if let Some((device, figure)) = value.split_once(' ') {
        device_figure(out, name, device, figure);
    }
}

fn device_figure(out: &mut Vec<Property>, name: &'static str, device: &str, figure: &str) {
    let Some(figure) = number(figure) else { return };
    let device = (format!("/dev/block/{device}"), figure);
    match out.iter_mut().find(|property| property.name == name) {
        Some(Property { value: Value::Devices(devices), .. }) => devices.push(device),
        _ => put(out, name, Value::Devices(vec![device])),
    }
}

/// v1's rules, in the order in which they are written: `c 1:3 rwm`, `a`.
fn devices(out: &mut Vec<Property>, rules: &[&Limit], driver_of: impl Fn(char, u64) -> Option<String>) {
    let mut strict = false;
    let mut allowed: Vec<(String, String)> = Vec::new();
    for rule in rules {
        let allow = rule.file == "devices.allow";
        if rule.value == "a" {
            strict = !allow;
            allowed.clear();
            continue;
        }
        let Some((device, access)) = pattern(&rule.value, &driver_of) else { continue };
        allowed.retain(|(known, _)| *known != device);
        if allow {
            allowed.push((device, access));
        }
    }
    put(out, "DevicePolicy", Value::Text(if strict { "strict" } else { "auto" }.to_owned()));
    if strict {
        put(out, "DeviceAllow", Value::Rules(allowed));
    }
}

/// `c 1:3 rw` as systemd names the device, and the access.
fn pattern(rule: &str, driver_of: impl Fn(char, u64) -> Option<String>) -> Option<(String, String)> {
    let mut words = rule.split(' ');
    let (kind, numbers, access) = (words.next()?, words.next()?, words.next()?);
    let word = if kind == "b" { "block" } else { "char" };
    let device = match numbers.split_once(':')? {
        ("*", _) => format!("{word}-*"),
        (major, "*") => format!("{word}-{}", driver_of(kind.chars().next()?, major.parse().ok()?)?),
        (major, minor) => format!("/dev/{word}/{major}:{minor}"),
    };
    Some((device, access.to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(limits: &[(&str, &str)]) -> Vec<Property> {
        let limits: Vec<Limit> = limits.iter().map(|(file, value)| Limit::new("", *file, *value)).collect();
        properties(&limits, |kind, major| (kind == 'c' && major == 136).then(|| "pts".to_owned()))
    }

    fn property(name: &str, value: Value) -> Property {
        Property { name: name.to_owned(), value }
    }

    #[track_caller]
    fn assert_numbers(limits: &[(&str, &str)], expected: &[(&str, u64)]) {
        let expected: Vec<Property> = expected.iter().map(|(name, n)| property(name, Value::Number(*n))).collect();
        assert_eq!(of(limits), expected);
    }

    #[test]
    fn a_limit_is_a_property() {
        let limits = [
            ("memory.max", "1048576"),
            ("memory.high", "max"),
            ("memory.low", "4096"),
            ("memory.swap.max", "0"),
            ("cpu.weight", "100"),
            ("cpu.max", "150000 100000"),
            ("pids.max", "64"),
            ("io.weight", "default 50"),
        ];
        let expected = [
            ("MemoryMax", 1_048_576),
            ("MemoryHigh", INFINITY),
            ("MemoryLow", 4096),
            ("MemorySwapMax", 0),
            ("CPUWeight", 100),
            ("CPUQuotaPerSecUSec", 1_500_000),
            ("CPUQuotaPeriodUSec", 100_000),
            ("TasksMax", 64),
            ("IOWeight", 50),
        ];
        assert_numbers(&limits, &expected);
    }

    #[test]
    fn a_limit_of_v1_is_one_too() {
        let limits = [
            ("memory.limit_in_bytes", "1048576"),
            ("cpu.shares", "512"),
            ("cpu.cfs_period_us", "50000"),
            ("cpu.cfs_quota_us", "25000"),
            ("pids.max", "max"),
            ("blkio.weight", "300"),
        ];
        let expected = [
            ("MemoryLimit", 1_048_576),
            ("CPUShares", 512),
            ("CPUQuotaPerSecUSec", 500_000),
            ("CPUQuotaPeriodUSec", 50_000),
            ("TasksMax", INFINITY),
            ("BlockIOWeight", 300),
        ];
        assert_numbers(&limits, &expected);
        let none = [("CPUQuotaPerSecUSec", INFINITY), ("CPUQuotaPeriodUSec", PERIOD)];
        assert_numbers(&[("cpu.cfs_quota_us", "-1")], &none);
    }

    #[test]
    fn what_is_not_limited_or_has_no_property_is_none() {
        let none = [("memory.swappiness", "0"), ("hugetlb.2MB.max", "0"), ("memory.oom.group", "1"), ("cpu.idle", "1")];
        assert_eq!(of(&none), []);
        assert_eq!(of(&[]), []);
        assert_eq!(
            of(&[
                ("memory.max", "a lot"),
                ("cpu.max", "x y"),
                ("cpuset.cpus", "?"),
                ("cpuset.mems", "4000000000"),
                ("io.max", "")
            ]),
            []
        );
    }

    #[test]
    fn sets_are_bits() {
        let found = of(&[("cpuset.cpus", "0-1,9"), ("cpuset.mems", "0")]);
        let expected = [("AllowedCPUs", vec![0b11, 0b10]), ("AllowedMemoryNodes", vec![1])];
        assert_eq!(found, expected.map(|(name, bits)| property(name, Value::Set(bits))));
    }

    #[test]
    fn figures_for_devices_are_lists() {
        let found = of(&[
            ("io.max", "8:0 rbps=1000"),
            ("io.max", "8:16 rbps=2000 wiops=max"),
            ("io.weight", "8:0 200"),
            ("blkio.throttle.write_bps_device", "8:0 7"),
        ]);
        let devices = |list: &[(&str, u64)]| Value::Devices(list.iter().map(|(d, n)| ((*d).to_owned(), *n)).collect());
        let expected = [
            ("IOReadBandwidthMax", devices(&[("/dev/block/8:0", 1000), ("/dev/block/8:16", 2000)])),
            ("IOWriteIOPSMax", devices(&[("/dev/block/8:16", INFINITY)])),
            ("IODeviceWeight", devices(&[("/dev/block/8:0", 200)])),
            ("BlockIOWriteBandwidth", devices(&[("/dev/block/8:0", 7)])),
        ];
        assert_eq!(found, expected.map(|(name, value)| property(name, value)));
    }

    #[test]
    fn rules_for_devices_are_told_where_systemd_would_undo_them() {
        let found = of(&[
            ("devices.deny", "a"),
            ("devices.allow", "c 1:3 rwm"),
            ("devices.allow", "c 136:* rw"),
            ("devices.allow", "c *:* m"),
            ("devices.allow", "b 8:0 r"),
            ("devices.allow", "c 77:* r"),
            ("devices.deny", "b 8:0 r"),
        ]);
        let rules = [("/dev/char/1:3", "rwm"), ("char-pts", "rw"), ("char-*", "m")];
        let rules = rules.map(|(device, access)| (device.to_owned(), access.to_owned())).to_vec();
        let expected = [("DevicePolicy", Value::Text("strict".to_owned())), ("DeviceAllow", Value::Rules(rules))];
        assert_eq!(found, expected.map(|(name, value)| property(name, value)));
        let all = of(&[("devices.deny", "a"), ("devices.allow", "a")]);
        assert_eq!(all, [property("DevicePolicy", Value::Text("auto".to_owned()))]);
    }

    #[test]
    fn a_quota_is_in_whole_percents_rounded_up() {
        let kept = |file: &str, value: &str| kept(vec![Limit::new("cpu", file, value)])[0].value.clone();
        assert_eq!(kept("cpu.max", "12345 100000"), "13000 100000");
        assert_eq!(kept("cpu.max", "50000 100000"), "50000 100000");
        assert_eq!(kept("cpu.max", "max 100000"), "max 100000");
        assert_eq!(kept("cpu.max", "1000"), "1000");
        assert_eq!(kept("cpu.cfs_quota_us", "-1"), "-1");
        assert_eq!(kept("cpu.cfs_quota_us", "100"), "1000");
        assert_eq!(kept("memory.max", "12345"), "12345");
    }

    proptest! {
        #[test]
        fn systemd_and_the_file_say_the_same(quota in 1000u64..100_000_000, period in 1000u64..1_000_000) {
            let limits = kept(vec![Limit::new("cpu", "cpu.max", format!("{quota} {period}"))]);
            let file: u64 = limits[0].value.split(' ').next().expect("a quota").parse().expect("a number");
            let properties = properties(&limits, |_, _| None);
            prop_assert_eq!(&properties[0].name, "CPUQuotaPerSecUSec");
            let Value::Number(second) = &properties[0].value else { panic!("a number") };
            prop_assert_eq!(second % PERCENT, 0);
            // What systemd makes of it, at the same precision.
            prop_assert_eq!(second * period / 1_000_000, file);
            prop_assert!(file + 1 >= quota.min(file + 1) && file >= quota - 1, "{} for {}", file, quota);
            prop_assert!(file <= quota + period / 100 + 1, "{} for {}", file, quota);
        }
    }
}
