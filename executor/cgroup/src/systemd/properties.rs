//! Limits as properties of a unit.
//!
//! systemd writes the files of its units again and again: at `daemon-reload`, and whenever a
//! property changes. It may reset a file that no property sets to its default, so every limit for
//! which systemd has a property is set as one; systemd leaves alone the files for which it has no
//! property (swappiness, huge pages, other raw files).
//! `device_rules` has those for devices.
//!
//! Source: systemd.resource-control(5), org.freedesktop.systemd1(5). Pure, but for `/proc/devices`.

use bowline_error::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::device_rules;
use crate::limit::Limit;
use crate::limit::file::{is_known, weight_of_nice};
use crate::v2;
use crate::values::{Amount, CpuQuota, Device, Ids, IoWeight, PERIOD, Rate};
use crate::version::Version;

/// A property of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Property {
    /// The name that systemd uses.
    pub name: String,
    pub value: Value,
}

/// The value of a property, by its type on the bus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// `b`
    Flag(bool),
    /// `t`
    Number(u64),
    /// `u`
    Small(u32),
    /// `i`
    Signed(i32),
    /// `s`
    Text(String),
    /// `as`
    Words(Vec<String>),
    /// `ay`: a bit for each CPU or node
    Set(Vec<u8>),
    /// `a(st)`: a figure for a device's path
    Devices(Vec<(String, u64)>),
    /// `a(ss)`: what may be done with a device
    Rules(Vec<(String, String)>),
}

/// What systemd does when the kernel has killed a process of a scope: `kill` has the kernel kill all of them.
const OOM_POLICY: &str = "OOMPolicy";

/// The file of the same, as text of the kernel's.
const OOM_GROUP: &str = "memory.oom.group";

/// Whether compressed pages may be written to swap.
const ZSWAP_WRITEBACK: &str = "MemoryZSwapWriteback";

/// The number by which systemd's properties say "no limit".
const INFINITY: u64 = u64::MAX;

/// One percent of a CPU, in µs of a second. The unit's file keeps a quota in whole percents, cut
/// off; below one percent it would be lost.
const PERCENT: u64 = 10_000;

/// The most CPUs that a kernel can be built for.
const MOST_IDS: u32 = 8192;

/// The limits as systemd keeps them; any other value would change at the next `daemon-reload`, or be lost: a CPU quota
/// is in whole percents of a CPU, rounded up, and there is no limit of 0 processes.
///
/// # Errors
/// `BadSpec` for a value of which systemd cannot be told, although it has a property for the file.
pub fn kept(mut limits: Vec<Limit>) -> Result<Vec<Limit>> {
    for limit in &mut limits {
        match limit {
            Limit::CpuQuota(cpu) => cpu.quota = rounded(cpu).or(cpu.quota),
            Limit::CpuQuotaAlone(quota) => *quota = rounded(&alone(*quota)).unwrap_or(*quota),
            Limit::Pids(Amount(Some(most))) => *most = (*most).max(1),
            Limit::Cpus(ids) if bits(ids).is_none() => return Err(cannot_be_told("cpuset.cpus", &ids.text)),
            Limit::MemoryNodes(ids) if bits(ids).is_none() => return Err(cannot_be_told("cpuset.mems", &ids.text)),
            Limit::Raw { file, value } if file == "cpu.weight.nice" => {
                let weight = weight_of_nice(value).ok_or_else(|| cannot_be_told(file, value))?;
                *limit = Limit::CpuWeight(weight);
            }
            // Nothing is a set that is not limited.
            Limit::Raw { file, value } if is_known(file) && !value.trim().is_empty() => {
                return Err(cannot_be_told(file, value));
            }
            _ => {}
        }
    }
    Ok(limits)
}

fn cannot_be_told(file: &str, value: &str) -> Error {
    let message = format!("{file}: {value:?} is no value that systemd, which makes the cgroup, can be told");
    Error::new(Kind::BadSpec, message).hint("systemd writes this file again and again, and would lose it")
}

/// The quota in whole percents; `None` if there is none.
fn rounded(cpu: &CpuQuota) -> Option<i64> {
    let rounded = per_second(cpu)?.checked_mul(period(cpu))?;
    i64::try_from(rounded / 1_000_000).ok()
}

/// A quota alone, as systemd writes it: systemd writes the period too.
fn alone(quota: i64) -> CpuQuota {
    CpuQuota { quota: Some(quota), period: None }
}

fn period(cpu: &CpuQuota) -> u64 {
    cpu.period.filter(|period| *period > 0).unwrap_or(PERIOD)
}

/// A quota in µs for each second, as systemd counts it; `None` if there is none.
fn per_second(cpu: &CpuQuota) -> Option<u64> {
    let quota = u64::try_from(cpu.quota?).ok().filter(|quota| *quota > 0)?;
    let exact = quota.checked_mul(1_000_000)?.div_ceil(period(cpu));
    Some(exact.div_ceil(PERCENT) * PERCENT)
}

/// The properties to tell systemd of a change on v2. Where the cgroup `is_idle`, a weight ends that.
///
/// `OOMPolicy` among them is not to be set, as systemd cannot while the unit runs: it has to be so.
pub fn of_change(limits: &[Limit], is_idle: bool) -> Vec<Property> {
    let mut properties = of_limits(limits, Version::V2);
    let weighs = properties.iter().any(|property| property.name == "CPUWeight");
    if is_idle && !weighs && limits.contains(&Limit::CpuIdle(0)) {
        put(&mut properties, "CPUWeight", Value::Number(v2::DEFAULT_WEIGHT));
    }
    if kills_group(limits) == Some(false) {
        put(&mut properties, OOM_POLICY, Value::Text("continue".to_owned()));
    }
    properties
}

/// The property with which systemd writes `memory.oom.group`, for a scope that is to be started with it.
pub fn oom_policy(limits: &[Limit]) -> Option<Property> {
    let kills = kills_group(limits) == Some(true);
    kills.then(|| Property { name: OOM_POLICY.to_owned(), value: Value::Text("kill".to_owned()) })
}

/// Whether the kernel is to kill all processes together; `None` if nothing of `limits` says so.
fn kills_group(limits: &[Limit]) -> Option<bool> {
    let last = limits.iter().rev().find_map(|limit| match limit {
        Limit::Raw { file, value } if file == OOM_GROUP => Some(value.trim()),
        _ => None,
    });
    // Anything else the kernel refuses.
    last.and_then(|value| ["0", "1"].iter().position(|known| *known == value)).map(|at| at == 1)
}

impl Property {
    /// The first systemd that takes it, of those that are younger than what bowline runs with. An older one neither
    /// knows the file nor writes it, but for `OOMPolicy`.
    pub fn since(&self) -> Option<u32> {
        match (self.name.as_str(), &self.value) {
            ("CPUWeight", Value::Number(0)) => Some(252),
            ("MemoryZSwapMax" | OOM_POLICY, _) => Some(253),
            (ZSWAP_WRITEBACK, _) => Some(256),
            _ => None,
        }
    }

    /// Whether systemd takes it only when it makes the unit.
    pub fn is_for_good(&self) -> bool {
        self.name == OOM_POLICY
    }
}

/// The properties that match `limits`.
pub fn of_limits(limits: &[Limit], version: Version) -> Vec<Property> {
    let known = std::cell::OnceCell::new();
    properties(limits, version, |kind, major| {
        let known: &String = known.get_or_init(|| std::fs::read_to_string("/proc/devices").unwrap_or_default());
        device_rules::driver_of(known, kind, major)
    })
}

/// The properties that match `limits`. `driver_of` returns the name that character ('c') or block
/// ('b') devices of a major number have.
fn properties(limits: &[Limit], version: Version, driver_of: impl Fn(char, u64) -> Option<String>) -> Vec<Property> {
    let mut out: Vec<Property> = Vec::new();
    for limit in limits {
        property(&mut out, limit, version);
    }
    let rules = limits.iter().filter_map(|limit| if let Limit::Device(rule) = limit { Some(rule) } else { None });
    let rules: Vec<_> = rules.collect();
    if version == Version::V1 && !rules.is_empty() {
        let allowed = device_rules::allowed(&rules, driver_of);
        put(&mut out, "DevicePolicy", Value::Text(if allowed.is_some() { "strict" } else { "auto" }.to_owned()));
        if let Some(allowed) = allowed {
            put(&mut out, "DeviceAllow", Value::Rules(allowed));
        }
    }
    out
}

/// Adds the property for `limit`, if systemd has one.
fn property(out: &mut Vec<Property>, limit: &Limit, version: Version) {
    let (name, number) = match (limit, version) {
        (Limit::MemoryMax(most), Version::V1) => ("MemoryLimit", amount(*most)),
        (Limit::MemoryMax(most), Version::V2) => ("MemoryMax", amount(*most)),
        (Limit::MemoryHigh(most), Version::V2) => ("MemoryHigh", amount(*most)),
        (Limit::MemoryLow(low), Version::V2) => ("MemoryLow", amount(*low)),
        (Limit::MemoryMin(min), Version::V2) => ("MemoryMin", amount(*min)),
        (Limit::ZswapMax(most), Version::V2) => ("MemoryZSwapMax", amount(*most)),
        (Limit::MemoryAndSwapMax { .. } | Limit::SwapMax(_), Version::V2) => {
            let Some(most) = v2::swap(limit) else { return };
            ("MemorySwapMax", amount(most))
        }
        (Limit::CpuShares(shares), Version::V1) => ("CPUShares", *shares),
        (Limit::CpuShares(_) | Limit::CpuWeight(_), Version::V2) => {
            let Some(weight) = v2::cpu_weight(limit) else { return };
            ("CPUWeight", weight)
        }
        // The weight that means idle, since systemd 252: any other would be written over it.
        (Limit::CpuIdle(1), Version::V2) => ("CPUWeight", 0),
        (Limit::ZswapWriteback(may), Version::V2) => return put(out, ZSWAP_WRITEBACK, Value::Flag(*may)),
        (Limit::CpuQuota(cpu), _) => return quota(out, cpu, version),
        (Limit::CpuQuotaAlone(cpu), _) => return quota(out, &alone(*cpu), version),
        (Limit::Cpus(cpus), _) => return set(out, "AllowedCPUs", cpus),
        (Limit::MemoryNodes(nodes), _) => return set(out, "AllowedMemoryNodes", nodes),
        (Limit::Pids(most), _) => ("TasksMax", amount(*most)),
        (Limit::IoWeight { device, weight }, _) => {
            let (all, one, weight) = match (version, weight) {
                (Version::V1, IoWeight::Blkio(weight)) => ("BlockIOWeight", "BlockIODeviceWeight", u64::from(*weight)),
                (Version::V1, IoWeight::Io(_)) => return,
                (Version::V2, weight) => ("IOWeight", "IODeviceWeight", v2::io_weight(*weight)),
            };
            match device {
                Some(device) => return put_for_device(out, one, *device, weight),
                None => (all, weight),
            }
        }
        (Limit::IoRate { device, of, most }, _) => {
            let name = match (version, of) {
                (Version::V1, Rate::BytesRead) => "BlockIOReadBandwidth",
                (Version::V1, Rate::BytesWritten) => "BlockIOWriteBandwidth",
                (Version::V1, Rate::Reads | Rate::Writes) => return,
                (Version::V2, Rate::BytesRead) => "IOReadBandwidthMax",
                (Version::V2, Rate::BytesWritten) => "IOWriteBandwidthMax",
                (Version::V2, Rate::Reads) => "IOReadIOPSMax",
                (Version::V2, Rate::Writes) => "IOWriteIOPSMax",
            };
            return put_for_device(out, name, *device, amount(*most));
        }
        // On v1 the limits that only v2 has are refused.
        (
            Limit::MemoryHigh(_)
            | Limit::MemoryLow(_)
            | Limit::MemoryMin(_)
            | Limit::ZswapMax(_)
            | Limit::ZswapWriteback(_)
            | Limit::MemoryAndSwapMax { .. }
            | Limit::SwapMax(_)
            | Limit::CpuWeight(_),
            Version::V1,
        )
        | (
            Limit::Device(_)
            | Limit::Swappiness(_)
            | Limit::Hugepages { .. }
            | Limit::CpuBurst(_)
            | Limit::CpuIdle(_)
            | Limit::Rdma { .. }
            | Limit::UseHierarchy
            | Limit::OomKillDisabled
            | Limit::RealtimePeriod(_)
            | Limit::RealtimeRuntime(_)
            | Limit::IoLeafWeight { .. }
            | Limit::NetClass(_)
            | Limit::NetPriority { .. }
            | Limit::Raw { .. },
            _,
        ) => return,
    };
    put(out, name, Value::Number(number));
}

fn amount(most: Amount) -> u64 {
    most.0.unwrap_or(INFINITY)
}

/// Sets a property; the last value of each one counts.
fn put(out: &mut Vec<Property>, name: &'static str, value: Value) {
    out.retain(|property| property.name != name);
    out.push(Property { name: name.to_owned(), value });
}

fn quota(out: &mut Vec<Property>, cpu: &CpuQuota, version: Version) {
    // v1's file keeps its quota if none is named, and does not take 0.
    if version == Version::V1 && matches!(cpu.quota, None | Some(0)) {
        return;
    }
    put(out, "CPUQuotaPerSecUSec", Value::Number(per_second(cpu).unwrap_or(INFINITY)));
    put(out, "CPUQuotaPeriodUSec", Value::Number(period(cpu)));
}

fn set(out: &mut Vec<Property>, name: &'static str, ids: &Ids) {
    if let Some(bits) = bits(ids) {
        put(out, name, Value::Set(bits));
    }
}

/// A bit for each of the set's members, none for a set that is not limited; `None` for a set that we cannot parse, or with
/// a number that no kernel has.
fn bits(ids: &Ids) -> Option<Vec<u8>> {
    if ids.text.trim().is_empty() {
        return Some(Vec::new());
    }
    let ids = ids.ids.as_ref().filter(|ids| ids.ids().last() < Some(&MOST_IDS))?;
    let mut bits = Vec::new();
    for id in ids.ids() {
        let (byte, bit) = (*id as usize / 8, id % 8);
        if bits.len() <= byte {
            bits.resize(byte + 1, 0u8);
        }
        bits[byte] |= 1 << bit;
    }
    Some(bits)
}

fn put_for_device(out: &mut Vec<Property>, name: &'static str, device: Device, figure: u64) {
    let device = (format!("/dev/block/{device}"), figure);
    match out.iter_mut().find(|property| property.name == name) {
        Some(Property { value: Value::Devices(devices), .. }) => devices.push(device),
        _ => put(out, name, Value::Devices(vec![device])),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limit::file::of_file;
    use crate::v1;

    fn properties_of(limits: &[Limit], version: Version) -> Vec<Property> {
        properties(limits, version, |kind, major| (kind == 'c' && major == 136).then(|| "pts".to_owned()))
    }

    /// The properties for the values of v2's files.
    fn of(files: &[(&str, &str)]) -> Vec<Property> {
        let limits: Vec<Limit> = files.iter().flat_map(|(file, value)| of_file(file, value)).collect();
        properties_of(&limits, Version::V2)
    }

    fn property(name: &str, value: Value) -> Property {
        Property { name: name.to_owned(), value }
    }

    fn numbers(expected: &[(&str, u64)]) -> Vec<Property> {
        expected.iter().map(|(name, number)| property(name, Value::Number(*number))).collect()
    }

    fn cpu_quota(quota: i64, period: Option<u64>) -> Limit {
        Limit::CpuQuota(CpuQuota { quota: Some(quota), period })
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
        assert_eq!(of(&limits), numbers(&expected));
    }

    #[test]
    fn a_limit_of_v1_is_one_too() {
        let limits = [
            Limit::MemoryMax(Amount(Some(1_048_576))),
            Limit::CpuShares(512),
            cpu_quota(25_000, Some(50_000)),
            Limit::Pids(Amount(None)),
            Limit::IoWeight { device: None, weight: IoWeight::Blkio(300) },
        ];
        let expected = [
            ("MemoryLimit", 1_048_576),
            ("CPUShares", 512),
            ("CPUQuotaPerSecUSec", 500_000),
            ("CPUQuotaPeriodUSec", 50_000),
            ("TasksMax", INFINITY),
            ("BlockIOWeight", 300),
        ];
        assert_eq!(properties_of(&limits, Version::V1), numbers(&expected));
        let none = [("CPUQuotaPerSecUSec", INFINITY), ("CPUQuotaPeriodUSec", PERIOD)];
        assert_eq!(properties_of(&[cpu_quota(-1, None)], Version::V1), numbers(&none));
        let low = [Limit::MemoryLow(Amount(Some(4096))), Limit::Swappiness(0)];
        assert_eq!(properties_of(&low, Version::V1), []);
    }

    #[test]
    fn what_is_not_limited_or_has_no_property_is_none() {
        let none = [("hugetlb.2MB.max", "0"), ("memory.oom.group", "1"), ("cpu.idle", "0")];
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
    fn values_with_suffixes_are_told_and_what_is_none_is_refused() {
        let limits = [("memory.max", "64M"), ("memory.min", "0x200000"), ("memory.high", "48m"), ("pids.max", "0100")];
        let told = [("MemoryMax", 64 << 20), ("MemoryMin", 2 << 20), ("MemoryHigh", 48 << 20), ("TasksMax", 64)];
        assert_eq!(of(&limits), numbers(&told));
        let kept = |file: &str, value: &str| kept(of_file(file, value));
        for (file, value) in [
            ("memory.max", "a lot"),
            ("cpu.max", "50000%"),
            ("cpuset.cpus", "0-6:1/2"),
            ("cpuset.mems", "9000"),
            ("cpu.weight.nice", "20"),
            ("io.max", "8:0 rbps=1M"),
            ("io.weight", "8:0 default"),
        ] {
            let error = kept(file, value).expect_err(file);
            assert!(error.message().contains(file) && error.message().contains(value), "{error}");
        }
        // No property: the file alone has it.
        for (file, value) in [("memory.oom.group", "yes"), ("hugetlb.2MB.max", "1M"), ("cpuset.cpus", "\n")] {
            let raw = Limit::Raw { file: file.to_owned(), value: value.to_owned() };
            assert_eq!(kept(file, value), Ok(vec![raw]));
        }
        assert_eq!(kept("pids.max", "0"), Ok(vec![Limit::Pids(Amount(Some(1)))]));
        assert_eq!(kept("cpu.weight.nice", "0"), Ok(vec![Limit::CpuWeight(100)]));
    }

    #[test]
    fn idle_is_a_weight_and_a_group_kill_is_for_good() {
        let weight = |number| vec![property("CPUWeight", Value::Number(number))];
        assert_eq!(of(&[("cpu.weight", "50"), ("cpu.idle", "1")]), weight(0));
        let change = |files: &[(&str, &str)], is_idle| {
            let limits: Vec<Limit> = files.iter().flat_map(|(file, value)| of_file(file, value)).collect();
            of_change(&limits, is_idle)
        };
        assert_eq!(change(&[("cpu.idle", "0")], true), weight(100));
        assert_eq!(change(&[("cpu.idle", "0")], false), []);
        assert_eq!(change(&[("cpu.idle", "0"), ("cpu.weight", "50")], true), weight(50));
        let policy = |word: &str| property(OOM_POLICY, Value::Text(word.to_owned()));
        assert_eq!(change(&[(OOM_GROUP, "1")], false), []);
        assert_eq!(change(&[(OOM_GROUP, "0\n")], false), [policy("continue")]);
        let start = |value| oom_policy(&of_file(OOM_GROUP, value));
        assert_eq!((start("1"), start("0"), start("2")), (Some(policy("kill")), None, None));
        assert_eq!(policy("kill").since(), Some(253));
        assert_eq!(weight(0)[0].since(), Some(252));
        assert_eq!(weight(50)[0].since(), None);
        let writeback = of(&[("memory.zswap.writeback", "0\n")]);
        assert_eq!(writeback, [property("MemoryZSwapWriteback", Value::Flag(false))]);
        assert_eq!(writeback[0].since(), Some(256));
    }

    #[test]
    fn sets_are_bits() {
        let found = of(&[("cpuset.cpus", "0-1,9"), ("cpuset.mems", "0")]);
        let expected = [("AllowedCPUs", vec![0b11, 0b10]), ("AllowedMemoryNodes", vec![1])];
        assert_eq!(found, expected.map(|(name, bits)| property(name, Value::Set(bits))));
    }

    #[test]
    fn figures_for_devices_are_lists() {
        let devices = |list: &[(&str, u64)]| Value::Devices(list.iter().map(|(d, n)| ((*d).to_owned(), *n)).collect());
        let found =
            of(&[("io.max", "8:0 rbps=1000"), ("io.max", "8:16 rbps=2000 wiops=max"), ("io.weight", "8:0 200")]);
        let expected = [
            ("IOReadBandwidthMax", devices(&[("/dev/block/8:0", 1000), ("/dev/block/8:16", 2000)])),
            ("IOWriteIOPSMax", devices(&[("/dev/block/8:16", INFINITY)])),
            ("IODeviceWeight", devices(&[("/dev/block/8:0", 200)])),
        ];
        assert_eq!(found, expected.map(|(name, value)| property(name, value)));
        let rate = |of| Limit::IoRate { device: Device(8, 0), of, most: Amount(Some(7)) };
        let found = properties_of(&[rate(Rate::BytesWritten), rate(Rate::Reads)], Version::V1);
        assert_eq!(found, [property("BlockIOWriteBandwidth", devices(&[("/dev/block/8:0", 7)]))]);
    }

    #[test]
    fn a_quota_is_in_whole_percents_rounded_up() {
        let file = |limit: &Limit, version| match version {
            Version::V1 => v1::writes(limit).pop().expect("a file").value,
            Version::V2 => v2::write(limit).expect("a file").value,
        };
        let kept = |limit| kept(vec![limit]).expect("all is known").remove(0);
        let quota = |quota, version| file(&kept(cpu_quota(quota, None)), version);
        assert_eq!(quota(12_345, Version::V2), "13000 100000");
        assert_eq!(quota(50_000, Version::V2), "50000 100000");
        assert_eq!(quota(-1, Version::V2), "max 100000");
        assert_eq!(quota(-1, Version::V1), "-1");
        assert_eq!(quota(100, Version::V1), "1000");
        assert_eq!(kept(Limit::CpuQuotaAlone(12_345)), Limit::CpuQuotaAlone(13_000));
    }

    proptest! {
        #[test]
        fn systemd_and_the_file_say_the_same(quota in 1000i64..100_000_000, period in 1000u64..1_000_000) {
            let limits = kept(vec![cpu_quota(quota, Some(period))]).expect("all is known");
            let text = v2::write(&limits[0]).expect("a file").value;
            let file: u64 = text.split(' ').next().expect("a quota").parse().expect("a number");
            let properties = properties(&limits, Version::V2, |_, _| None);
            prop_assert_eq!(&properties[0].name, "CPUQuotaPerSecUSec");
            let Value::Number(second) = &properties[0].value else { panic!("a number") };
            prop_assert_eq!(second % PERCENT, 0);
            // What systemd makes of the quota, at the same precision.
            prop_assert_eq!(second * period / 1_000_000, file);
            let quota = quota.cast_unsigned();
            prop_assert!(file + 1 >= quota.min(file + 1) && file >= quota - 1, "{} for {}", file, quota);
            prop_assert!(file <= quota + period / 100 + 1, "{} for {}", file, quota);
        }
    }
}
