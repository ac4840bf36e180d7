//! The limits of a cgroup, as data: read from an OCI configuration once, rendered by `v1`, `v2` and `systemd`.
//!
//! Pure.

use bowline_error::{Error, Kind, Result};
use bowline_spec::values::IdSet;
use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType, LinuxResources, LinuxThrottleDevice};

/// The kernel's CPU period, in µs.
pub const PERIOD: u64 = 100_000;

#[derive(Debug, Clone, PartialEq)]
pub enum Limit {
    /// A rule of the device allow-list; the last rule that fits a device counts.
    Device(LinuxDeviceCgroup),
    /// Bytes of memory.
    MemoryMax(Amount),
    /// Bytes of memory and swap together; and of memory alone, if known.
    MemoryAndSwapMax { both: Amount, memory: Option<u64> },
    /// Bytes of swap alone.
    SwapMax(Amount),
    /// Bytes of compressed swap.
    ZswapMax(Amount),
    /// Bytes above which the task is slowed down.
    MemoryHigh(Amount),
    /// Bytes below which memory is reclaimed from others first.
    MemoryLow(Amount),
    /// Bytes that are never reclaimed.
    MemoryMin(Amount),
    /// How readily memory is swapped out: 0 to 200, before Linux 5.8 to 100.
    Swappiness(u64),
    /// The share of CPU time, where 1024 is the default.
    CpuShares(u64),
    /// The share of CPU time on v2's scale, where 100 is the default.
    CpuWeight(u64),
    /// CPU time in each period.
    CpuQuota(CpuQuota),
    /// CPU time in µs in an unchanged period, as v2's file takes it. Negative is no limit.
    CpuQuotaAlone(i64),
    /// The CPUs that may be used.
    Cpus(Ids),
    /// The memory nodes that may be used.
    MemoryNodes(Ids),
    /// Processes and threads.
    Pids(Amount),
    /// The share of disk time, of one device or of all.
    IoWeight { device: Option<Device>, weight: IoWeight },
    /// The most that may be read from or written to a device in a second.
    IoRate { device: Device, of: Rate, most: Amount },
    /// Bytes in huge pages of a size, as the kernel writes it: `2MB`.
    Hugepages { size: String, most: Amount },
    /// Whether the task has CPU time only where nobody else wants it: 0 or 1.
    CpuIdle(i64),
    /// CPU time in µs that was left over from earlier periods and may be used in a later one.
    CpuBurst(u64),
    /// Handles and objects of an RDMA device.
    Rdma { device: String, most: String },
    /// A write that only v1 has, for a field of the configuration.
    V1 { field: &'static str, write: Write },
    /// A v2 file without a variant here, or a value that only the kernel parses.
    Raw { file: String, value: String },
}

/// How much of something; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount(pub Option<u64>);

/// CPU time in µs in each period. For an absent value, v1 leaves the file alone; v2 gets no quota,
/// or a period of 100 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuQuota {
    /// Negative is no limit.
    pub quota: Option<i64>,
    /// In µs.
    pub period: Option<u64>,
}

/// A set of CPUs or nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids {
    /// The text of the set as it was given.
    pub text: String,
    /// The parsed set; `None` where only the kernel can parse it.
    pub ids: Option<IdSet>,
}

/// A block device: major and minor number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device(pub i64, pub i64);

/// A weight on one of two scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoWeight {
    /// v1's: 10 to 1000.
    Blkio(u16),
    /// v2's: 1 to 10000.
    Io(u64),
}

/// What is counted for a device, each in a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    BytesRead,
    BytesWritten,
    Reads,
    Writes,
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.0, self.1)
    }
}

/// The format of v2's files.
impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(most) => most.fmt(f),
            None => f.write_str("max"),
        }
    }
}

impl From<&str> for Ids {
    fn from(text: &str) -> Ids {
        Ids { text: text.to_owned(), ids: text.parse().ok() }
    }
}

impl Amount {
    /// Converts OCI's figure: negative is no limit.
    fn oci(figure: i64) -> Amount {
        Amount(u64::try_from(figure).ok())
    }

    /// Parses the format of v2's files.
    fn parse(text: &str) -> Option<Amount> {
        if text == "max" { Some(Amount(None)) } else { figure(text).map(|figure| Amount(Some(figure))) }
    }
}

impl Device {
    /// Parses `8:0`.
    fn parse(text: &str) -> Option<Device> {
        let (major, minor) = text.split_once(':')?;
        Some(Device(major.parse().ok()?, minor.parse().ok()?))
    }
}

/// Parses a number that everybody reads the same way: the kernel takes `010` for eight, and no `+`.
fn figure(text: &str) -> Option<u64> {
    let plain = text == "0" || !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

/// The limits of `resources`, in an order in which the kernel takes them.
///
/// # Errors
/// `BadSpec` naming the field, for a value that the kernel would take for another, or not at all.
pub fn of(resources: &LinuxResources) -> Result<Vec<Limit>> {
    let mut out = Vec::new();
    for (index, rule) in resources.devices().iter().flatten().enumerate() {
        device(&mut out, index, rule)?;
    }
    memory(&mut out, resources)?;
    cpu(&mut out, resources);
    // OCI's 0 means no limit here too.
    out.extend(resources.pids().map(|pids| Limit::Pids(Amount(Amount::oci(pids.limit()).0.filter(|most| *most > 0)))));
    block_io(&mut out, resources);
    let mut files: Vec<(&String, &String)> = resources.unified().iter().flatten().collect();
    files.sort_unstable();
    out.extend(files.into_iter().flat_map(|(file, value)| of_file(file, value)));
    let hugepages = resources.hugepage_limits().iter().flatten();
    out.extend(hugepages.map(|of| Limit::Hugepages { size: of.page_size().clone(), most: Amount::oci(of.limit()) }));
    for (device, most) in resources.rdma().iter().flatten() {
        let words = [("hca_handle", most.hca_handles()), ("hca_object", most.hca_objects())];
        let words = words.into_iter().filter_map(|(key, most)| Some(format!("{key}={}", most?)));
        let most = words.collect::<Vec<_>>().join(" ");
        if !most.is_empty() {
            out.push(Limit::Rdma { device: device.clone(), most });
        }
    }
    network(&mut out, resources);
    Ok(out)
}

/// A rule of the device allow-list. One for "all" devices with a number or less than full access is two rules: v1's
/// file would take it for every device.
fn device(out: &mut Vec<Limit>, index: usize, rule: &LinuxDeviceCgroup) -> Result<()> {
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
        Some(LinuxDeviceType::B | LinuxDeviceType::C) => {
            out.push(Limit::Device(rule.clone()));
            Ok(())
        }
        Some(LinuxDeviceType::A) | None => {
            let every = |number: Option<i64>| number.is_none_or(|number| number < 0);
            if every(rule.major()) && every(rule.minor()) && "rwm".chars().all(|letter| access.contains(letter)) {
                out.push(Limit::Device(rule.clone()));
                return Ok(());
            }
            for kind in [LinuxDeviceType::B, LinuxDeviceType::C] {
                let mut one = rule.clone();
                one.set_typ(Some(kind));
                out.push(Limit::Device(one));
            }
            Ok(())
        }
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
        // Every cgroup has it since Linux 5.11, and on v2.
        let write = Write::new("memory", "memory.use_hierarchy", 1).met_without(true);
        out.push(Limit::V1 { field: "memory.useHierarchy", write });
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
        let write = Write::new("memory", "memory.oom_control", 1);
        out.push(Limit::V1 { field: "memory.disableOOMKiller", write });
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
    let realtime = |field, file, figure: Option<String>| {
        figure.map(|figure| Limit::V1 { field, write: Write::new("cpu", file, figure) })
    };
    // The period first: the time has to fit into it.
    let period = cpu.realtime_period().filter(|period| *period != 0).map(|period| period.to_string());
    out.extend(realtime("cpu.realtimePeriod", "cpu.rt_period_us", period));
    let time = cpu.realtime_runtime().filter(|time| *time != 0).map(|time| time.to_string());
    out.extend(realtime("cpu.realtimeRuntime", "cpu.rt_runtime_us", time));
    out.extend(cpu.cpus().as_deref().map(|cpus| Limit::Cpus(cpus.into())));
    out.extend(cpu.mems().as_deref().map(|nodes| Limit::MemoryNodes(nodes.into())));
}

fn block_io(out: &mut Vec<Limit>, resources: &LinuxResources) {
    let Some(io) = resources.block_io() else { return };
    let weight = |device, weight| Limit::IoWeight { device, weight: IoWeight::Blkio(weight) };
    // The kernel's weights begin at 10; 0 is none.
    let set = |weight: Option<u16>| weight.filter(|weight| *weight != 0);
    out.extend(set(io.weight()).map(|all| weight(None, all)));
    out.extend(
        set(io.leaf_weight())
            .map(|all| Limit::V1 { field: "blockIO.leafWeight", write: Write::new("blkio", "blkio.leaf_weight", all) }),
    );
    for of in io.weight_device().iter().flatten() {
        let device = Device(of.major(), of.minor());
        out.extend(set(of.weight()).map(|its| weight(Some(device), its)));
        out.extend(set(of.leaf_weight()).map(|its| Limit::V1 {
            field: "blockIO.weightDevice.leafWeight",
            write: Write::of_device("blkio", "blkio.leaf_weight_device", device, its, "0"),
        }));
    }
    out.extend(rates(Rate::BytesRead, io.throttle_read_bps_device()));
    out.extend(rates(Rate::BytesWritten, io.throttle_write_bps_device()));
    out.extend(rates(Rate::Reads, io.throttle_read_iops_device()));
    out.extend(rates(Rate::Writes, io.throttle_write_iops_device()));
}

fn network(out: &mut Vec<Limit>, resources: &LinuxResources) {
    let Some(network) = resources.network() else { return };
    out.extend(
        network.class_id().filter(|class| *class != 0).map(|class| Limit::V1 {
            field: "network.classID",
            write: Write::new("net_cls", "net_cls.classid", class),
        }),
    );
    out.extend(network.priorities().iter().flatten().map(|of| Limit::V1 {
        field: "network.priorities",
        write: Write::of_line("net_prio", "net_prio.ifpriomap", of.name(), of.priority(), "0"),
    }));
}

fn rates(of: Rate, devices: &Option<Vec<LinuxThrottleDevice>>) -> impl Iterator<Item = Limit> {
    devices.iter().flatten().map(move |device| Limit::IoRate {
        device: Device(device.major(), device.minor()),
        of,
        // OCI's 0 means no limit.
        most: Amount(Some(device.rate()).filter(|rate| *rate > 0)),
    })
}

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
        "cpu.weight" => figure(text).map(|weight| vec![Limit::CpuWeight(weight)]),
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
        text => i64::try_from(figure(text)?).ok().filter(|quota| *quota > 0),
    };
    Some(match text.split_once(' ') {
        None => Limit::CpuQuotaAlone(quota(text)?),
        Some((text, period)) => {
            let period = Some(figure(period).filter(|period| *period > 0)?);
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
    Some(Limit::IoWeight { device, weight: IoWeight::Io(figure(weight)?) })
}

/// Parses `8:0 rbps=1000 wiops=max`.
fn io_max(text: &str) -> Option<Vec<Limit>> {
    let mut words = text.split_whitespace();
    let device = Device::parse(words.next()?)?;
    let rate = |word: &str| {
        let (key, most) = word.split_once('=')?;
        let of = match key {
            "rbps" => Rate::BytesRead,
            "wbps" => Rate::BytesWritten,
            "riops" => Rate::Reads,
            "wiops" => Rate::Writes,
            _ => return None,
        };
        Some(Limit::IoRate { device, of, most: Amount::parse(most)? })
    };
    words.map(rate).collect::<Option<Vec<_>>>().filter(|rates| !rates.is_empty())
}

/// One value to write to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The controller whose hierarchy has the file; v2 has only one hierarchy.
    pub controller: &'static str,
    /// The file's name.
    pub file: String,
    /// The value to write.
    pub value: String,
    /// For a file with a line for each device: the line's first word, and the value that undoes the write.
    pub line: Option<(String, &'static str)>,
    /// Whether the limit is in effect where there is no such file.
    pub met_without: bool,
    /// Another file, and the value for it, for a kernel without this file.
    pub otherwise: Option<(&'static str, String)>,
}

impl Write {
    /// Writes `value` to `file`.
    pub fn new(controller: &'static str, file: impl Into<String>, value: impl ToString) -> Write {
        let (file, value) = (file.into(), value.to_string());
        Write { controller, file, value, line: None, met_without: false, otherwise: None }
    }

    /// The limit of processes, in the file that both versions have.
    pub fn pids(most: Amount) -> Write {
        Write::new("pids", "pids.max", most).met_without(most.0.is_none())
    }

    /// Whether the task has only the CPU time that nobody else wants, in the file that both versions have.
    pub fn cpu_idle(idle: i64) -> Write {
        Write::new("cpu", "cpu.idle", idle).met_without(idle == 0)
    }

    /// The limits of an RDMA device, in the file that both versions have.
    pub fn rdma(device: &str, most: &str) -> Write {
        Write::of_line("rdma", "rdma.max", device, most, "hca_handle=max hca_object=max")
    }

    /// A write to a file with a line for each device: `value` for this device. `none` undoes it.
    pub fn of_device(
        controller: &'static str,
        file: &'static str,
        device: Device,
        value: impl std::fmt::Display,
        none: &'static str,
    ) -> Write {
        Write::of_line(controller, file, &device.to_string(), value, none)
    }

    /// A write to a file with a line for each `key`: `value` for this one. `none` undoes it.
    pub fn of_line(
        controller: &'static str,
        file: &'static str,
        key: &str,
        value: impl std::fmt::Display,
        none: &'static str,
    ) -> Write {
        let write = Write::new(controller, file, format_args!("{key} {value}"));
        Write { line: Some((key.to_owned(), none)), ..write }
    }

    /// Writes `value` to `file` instead, where this write's file is missing.
    pub fn or(self, file: &'static str, value: impl ToString) -> Write {
        Write { otherwise: Some((file, value.to_string())), ..self }
    }

    /// If `without`, a missing file is no error: where nothing is counted, nothing is limited.
    pub fn met_without(self, without: bool) -> Write {
        Write { met_without: without, ..self }
    }

    /// Whether both write to the same file, or the same line of it.
    pub fn is_where(&self, other: &Write) -> bool {
        (self.controller, &self.file, self.line.as_ref().map(|(key, _)| key))
            == (other.controller, &other.file, other.line.as_ref().map(|(key, _)| key))
    }

    /// The write for a kernel on which the file is missing.
    pub fn instead(&self) -> Option<Write> {
        let (file, value) = self.otherwise.clone()?;
        // These files take 0, not `default`, for a device without a weight.
        let line = self.line.clone().map(|(device, _)| (device, "0"));
        Some(Write { line, ..Write::new(self.controller, file, value) })
    }
}

/// The error for a memory limit below what is in use.
pub fn no_room(file: &str, limit: impl std::fmt::Display, used: &str) -> Error {
    let message = format!("cannot write {limit} to {file}: {used} bytes are in use and cannot be reclaimed");
    Error::new(Kind::BadSpec, message).hint("have the task use less first, or choose a higher limit")
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::{LinuxMemoryBuilder, LinuxResourcesBuilder};

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

    fn of_memory(limit: i64, swap: i64) -> Result<Vec<Limit>> {
        let memory = LinuxMemoryBuilder::default().limit(limit).swap(swap).build().expect("memory");
        of(&LinuxResourcesBuilder::default().memory(memory).build().expect("resources"))
    }

    #[test]
    fn less_memory_and_swap_than_memory_is_refused() {
        assert_eq!(of_memory(2, 1).expect_err("less").kind(), Kind::BadSpec);
    }

    #[test]
    fn nothing_of_memory_is_what_nobody_has_set() {
        assert_eq!(of_memory(2, 0), Ok(vec![Limit::MemoryMax(Amount(Some(2)))]));
        assert_eq!(of_memory(0, 0), Ok(vec![]));
        let none = Limit::MemoryAndSwapMax { both: Amount(None), memory: Some(2) };
        assert_eq!(of_memory(2, -1), Ok(vec![Limit::MemoryMax(Amount(Some(2))), none]));
    }
}
