//! Limits that are changed while the task runs.
//!
//!   Task + Update ─► the Task as it is from now on, and OCI resources of
//!                    what changes alone
//!
//! What an update leaves out stays as it is; "unlimited" (or "max") lifts a
//! limit. The merged description is validated like a new one.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::task::{Cpu, IoDevice, Memory, Sandbox, Task, is_default};
use crate::values::{ByteSize, Ceiling, Cpus, Duration, IdSet};

/// The file that a limit of its own has in a description, and that is written as a raw one.
const MEMORY_HIGH: &str = "memory.high";

/// The limits to change; all others stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Update {
    /// Changes to the CPU weight, limit and cpuset.
    #[serde(skip_serializing_if = "is_default")]
    pub cpu: CpuUpdate,
    /// Changes to the memory limits and to swap.
    #[serde(skip_serializing_if = "is_default")]
    pub memory: MemoryUpdate,
    /// The most processes and threads. Those there are beyond it stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<Ceiling<u64>>,
    /// Block device weights and rates.
    #[serde(skip_serializing_if = "is_default")]
    pub io: IoUpdate,
    /// Huge pages: the most memory by page size.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hugepages: BTreeMap<String, ByteSize>,
    /// Raw cgroup v2 files, such as `"memory.oom.group" = "1"`; the others that are set stay.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unified: BTreeMap<String, String>,
}

/// CPU time; see [`Cpu`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CpuUpdate {
    /// The weight against other cgroups: 2 to 262144.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<u64>,
    /// The most CPU time, in CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Ceiling<Cpus>>,
    /// How often the limit is renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<Duration>,
    /// CPU time for realtime scheduling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realtime: Option<Duration>,
    /// How often that is renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realtime_period: Option<Duration>,
    /// The CPUs the task may run on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<IdSet>,
    /// The memory nodes it may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mems: Option<IdSet>,
}

/// Memory and swap; see [`Memory`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryUpdate {
    /// The most memory. Below what is in use it is reclaimed first, and the
    /// update refused if that is not possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Ceiling<ByteSize>>,
    /// Beyond this the task is slowed down and reclaimed from; cgroup v2 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<Ceiling<ByteSize>>,
    /// Up to this the kernel spares the task; 0 lifts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<ByteSize>,
    /// Swap beyond the memory limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<Ceiling<ByteSize>>,
}

/// Block devices; see [`Io`](crate::Io).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IoUpdate {
    /// The weight against other cgroups: 10 to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Weights and rates by device; other devices stay as they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<IoDeviceUpdate>,
}

/// Weight and rates on one block device; see [`IoDevice`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IoDeviceUpdate {
    /// The device: a path on the host, or its numbers as `8:0`.
    pub path: String,
    /// The weight on it: 10 to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// The most read, in bytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bps: Option<Ceiling<ByteSize>>,
    /// The most written, in bytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bps: Option<Ceiling<ByteSize>>,
    /// The most reads a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_iops: Option<Ceiling<u64>>,
    /// The most writes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_iops: Option<Ceiling<u64>>,
}

impl Update {
    /// The description as it is once the update is in effect.
    ///
    /// # Errors
    /// An update that changes nothing; what [`Task::validate`] finds.
    pub fn applied_to(&self, task: &Task) -> Result<Task, Invalid> {
        self.require_change()?;
        let mut task = task.clone();
        self.lay_on(&mut task);
        task.validate_updated()?;
        Ok(task)
    }

    /// Changes the limits in a description, and checks nothing.
    pub fn lay_on(&self, task: &mut Task) {
        self.cpu.apply_to(&mut task.cpu);
        self.memory.apply_to(&mut task.memory);
        task.pids = self.pids.or(task.pids);
        task.io.weight = self.io.weight.or(task.io.weight);
        for update in &self.io.devices {
            update.apply_to(&mut task.io.devices);
        }
        task.hugepages.extend(self.hugepages.clone());
        // The later word counts, in either form.
        if self.memory.high.is_some() {
            task.unified.remove(MEMORY_HIGH);
        } else if self.unified.contains_key(MEMORY_HIGH) {
            task.memory.high = None;
        }
        task.unified.extend(self.unified.clone());
    }
}

impl Update {
    /// What lifts the limits by which a task is held back or killed: those of
    /// CPU time and memory; `None` when it has none.
    pub fn lifting(task: &Task) -> Option<Update> {
        let memory = &task.memory;
        let update = Update {
            cpu: CpuUpdate { limit: task.cpu.limit.map(|_| Ceiling::Unlimited), ..CpuUpdate::default() },
            memory: MemoryUpdate {
                limit: memory.limit.map(|_| Ceiling::Unlimited),
                high: memory.high.map(|_| Ceiling::Unlimited),
                ..MemoryUpdate::default()
            },
            ..Update::default()
        };
        (!is_default(&update)).then_some(update)
    }

    /// A sandbox's description as it is once the update is in effect.
    ///
    /// # Errors
    /// An update that changes nothing, or what a sandbox has no joint limit of;
    /// what [`Sandbox::validate`] finds.
    pub fn applied_to_sandbox(&self, sandbox: &Sandbox) -> Result<Sandbox, Invalid> {
        self.require_change()?;
        for (field, named) in [("io", !is_default(&self.io)), ("unified", !self.unified.is_empty())] {
            if named {
                return Err(Invalid::new(field, "a sandbox has no such limit; change its members'"));
            }
        }
        let mut sandbox = sandbox.clone();
        self.cpu.apply_to(&mut sandbox.cpu);
        self.memory.apply_to(&mut sandbox.memory);
        sandbox.pids = self.pids.or(sandbox.pids);
        sandbox.hugepages.extend(self.hugepages.clone());
        sandbox.validate()?;
        Ok(sandbox)
    }

    fn require_change(&self) -> Result<(), Invalid> {
        if is_default(self) { Err(Invalid::new("", "nothing to change: name at least one limit")) } else { Ok(()) }
    }
}

impl CpuUpdate {
    fn apply_to(&self, cpu: &mut Cpu) {
        cpu.shares = self.shares.or(cpu.shares);
        set(&mut cpu.limit, self.limit);
        cpu.period = self.period.or(cpu.period);
        cpu.realtime = self.realtime.or(cpu.realtime);
        cpu.realtime_period = self.realtime_period.or(cpu.realtime_period);
        cpu.cpuset = self.cpuset.clone().or(cpu.cpuset.take());
        cpu.mems = self.mems.clone().or(cpu.mems.take());
    }
}

impl MemoryUpdate {
    fn apply_to(&self, memory: &mut Memory) {
        set(&mut memory.limit, self.limit);
        set(&mut memory.high, self.high);
        memory.low = self.low.or(memory.low).filter(|low| low.as_u64() > 0);
        memory.swap = self.swap.or(memory.swap);
        if self.limit == Some(Ceiling::Unlimited) {
            // It is counted beyond a limit that is no more.
            memory.swap = self.swap;
        }
    }
}

impl IoDeviceUpdate {
    fn apply_to(&self, devices: &mut Vec<IoDevice>) {
        let index = devices.iter().position(|device| device.path == self.path).unwrap_or_else(|| {
            devices.push(IoDevice { path: self.path.clone(), ..IoDevice::default() });
            devices.len() - 1
        });
        let device = &mut devices[index];
        device.weight = self.weight.or(device.weight);
        set(&mut device.read_bps, self.read_bps);
        set(&mut device.write_bps, self.write_bps);
        set(&mut device.read_iops, self.read_iops);
        set(&mut device.write_iops, self.write_iops);
    }
}

/// Changes `limit` if there is a change.
fn set<T>(limit: &mut Option<T>, change: Option<Ceiling<T>>) {
    match change {
        Some(Ceiling::At(most)) => *limit = Some(most),
        Some(Ceiling::Unlimited) => *limit = None,
        None => {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::parse::{Format, parse, parse_update};

    fn applied(task: &str, update: &str) -> Result<Task, Invalid> {
        let task = parse(&format!("command = 'true'\n{task}"), Format::Toml).unwrap();
        parse_update(update, Format::Toml)?.applied_to(&task)
    }

    #[test]
    fn what_is_left_out_stays() {
        let task = applied("memory = {limit = '64M', swap = 0}\ncpu.limit = 2", "memory.limit = '32M'").unwrap();
        assert_eq!(task.memory.limit, Some(ByteSize::mib(32)));
        assert_eq!(task.memory.swap, Some(Ceiling::At(ByteSize::mib(0))));
        assert_eq!(task.cpu.limit, Some(Cpus::new(2.0).unwrap()));
    }

    #[test]
    fn a_limit_can_be_lifted() {
        let task = applied(
            "memory = {limit = '64M', swap = 0}\ncpu.limit = 2\npids = 3",
            "memory.limit = 'max'\ncpu.limit = 'unlimited'\npids = 'max'",
        );
        let task = task.unwrap();
        assert_eq!((task.memory.limit, task.memory.swap, task.cpu.limit), (None, None, None));
        assert_eq!(task.pids, Some(Ceiling::Unlimited));
    }

    #[test]
    fn what_holds_a_task_back_is_lifted_and_nothing_else() {
        let of = |toml: &str| parse(&format!("command = 'true'\n{toml}"), Format::Toml).unwrap();
        assert_eq!(Update::lifting(&of("pids = 3\ncpu.shares = 7")), None);
        let limited = of("pids = 3\ncpu = {limit = 2, shares = 7}\nmemory = {limit = '64M', high = '32M', swap = 0}");
        let free = Update::lifting(&limited).unwrap().applied_to(&limited).unwrap();
        assert_eq!((free.cpu.limit, free.memory.limit, free.memory.high), (None, None, None));
        assert_eq!((free.cpu.shares, free.pids), (Some(7), Some(Ceiling::At(3))));
        assert_eq!(Update::lifting(&of("memory.high = '32M'")).unwrap().memory.limit, None);
    }

    #[test]
    fn limits_of_a_bundle_s_task_can_be_changed() {
        let task = parse("bundle = '/b'", Format::Toml).unwrap();
        let of = |update: &str| parse_update(update, Format::Toml).unwrap().applied_to(&task);
        assert_eq!(of("memory.limit = '64M'\npids = 'max'").unwrap().pids, Some(Ceiling::Unlimited));
        assert_eq!(of("memory.limit = '64M'").unwrap().validate().unwrap_err().field, "memory", "as a new one");
        assert_eq!(of("memory.swap = 'max'").unwrap_err().field, "memory.swap", "beyond what limit?");
    }

    #[test]
    fn a_device_is_changed_by_its_path() {
        let devices = "io.devices = [{path = '8:0', read_bps = '1M', write_bps = '2M'}]";
        let update = "io.devices = [{path = '8:0', read_bps = 'max'}, {path = '8:16', read_iops = 7}]";
        let devices = applied(devices, update).unwrap().io.devices;
        assert_eq!((devices[0].read_bps, devices[0].write_bps), (None, Some(ByteSize::mib(2))));
        assert_eq!((devices[1].path.as_str(), devices[1].read_iops), ("8:16", Some(7)));
    }

    #[test]
    fn the_later_word_on_memory_high_counts_in_either_form() {
        let typed = applied("unified = {'memory.high' = '32M'}", "memory.high = '48M'").expect("an update");
        assert_eq!((typed.memory.high, typed.unified.len()), (Some(ByteSize::mib(48)), 0));
        let raw = applied("memory.high = '48M'", "unified = {'memory.high' = '32M'}").expect("an update");
        assert_eq!((raw.memory.high, raw.unified["memory.high"].as_str()), (None, "32M"));
        let both = "memory.high = '48M'\nunified = {'memory.high' = '32M'}";
        assert!(applied("", both).unwrap_err().reason.contains("twice"));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_field() {
        let field = |task, update| applied(task, update).unwrap_err().field;
        assert_eq!(field("", "memory.limits = '64M'"), "memory.limits");
        assert_eq!(field("", "disk = 3"), "disk");
        assert_eq!(field("", "memory.swap = '64M'"), "memory.swap");
        assert_eq!(field("memory = {limit = '64M', low = '32M'}", "memory.limit = '16M'"), "memory.low");
        assert_eq!(field("", "pids = 0"), "pids");
        assert!(applied("", "").unwrap_err().reason.contains("nothing to change"));
    }
}
