//! Asks systemd about the host's units and changes them. Prints a line on stdout for each change, and one on stderr for
//! each thing that was skipped.

use std::path::PathBuf;

use bowline_executor::internal::is_cgroup_v2;
use bowline_executor::systemd::host::{Answer, DropIn, HostUnit, Question, Revert, memory_property};
use bowline_executor::systemd::{Property, Value};
use bowline_model::{Error, Kind, Result};
use bowline_spec::host_limits::{Change, HostCpuQuota, INFINITY, InForce, UnitName};
use bowline_spec::values::ByteSize;

use crate::exit_code::PARTLY;
use crate::ui::print::{complain, say};

/// Access to systemd that remembers whether something was skipped.
pub struct Bus {
    /// Whether changes are only printed, not made.
    pub dry_run: bool,
    /// Prints a line about a change.
    say: fn(&str) -> Result<()>,
    skipped: bool,
}

/// Limits of a unit that are taken back.
pub struct Reset {
    pub unit: UnitName,
    /// The limits that were set.
    pub limits: Change,
    /// Whether the accounting goes with them.
    pub accounting: bool,
    /// Drop-ins that were there before.
    pub kept: Vec<DropIn>,
}

impl Bus {
    pub fn new(dry_run: bool) -> Bus {
        Bus { dry_run, say, skipped: false }
    }

    /// Access for a command whose stdout is a task's: changes are reported on stderr.
    pub fn beside_a_task() -> Bus {
        let say = |line: &str| {
            complain(line, None);
            Ok(())
        };
        Bus { dry_run: false, say, skipped: false }
    }

    /// Reports that something is skipped; the rest goes on.
    pub fn skip(&mut self, what: &str) {
        self.skipped = true;
        complain(&format!("skipped {what}"), None);
    }

    /// Reports that a limit will not last; all is done that can be.
    pub fn warn(&mut self, what: &str) {
        self.skipped = true;
        complain(what, None);
    }

    /// The exit code of the command.
    pub fn code(&self) -> u8 {
        if self.skipped { PARTLY } else { 0 }
    }

    /// What systemd knows of these units, in the same order.
    pub async fn look<'a>(&self, names: impl IntoIterator<Item = &'a UnitName>) -> Result<Vec<HostUnit>> {
        let names: Vec<String> = names.into_iter().map(ToString::to_string).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let asked = names.len();
        match bowline_units::answer(Question::Look(names)).await? {
            Answer::Units(units) if units.len() == asked => Ok(units),
            Answer::Units(_) | Answer::Done => Err(Error::new(Kind::Internal, "systemd was asked for other units")),
        }
    }

    /// What systemd knows of one unit.
    pub async fn look_at(&self, name: &UnitName) -> Result<HostUnit> {
        let unit = self.look([name]).await?.pop();
        unit.ok_or_else(|| Error::new(Kind::Internal, format!("systemd says nothing of {name}")))
    }

    /// Starts a slice with these limits.
    pub async fn start_slice(&self, name: &UnitName, limits: Change) -> Result<()> {
        let properties = [accounting([false; 2]), properties(limits)].concat();
        let question = Question::StartSlice { slice: name.to_string(), properties };
        self.act("start", "started", name, &told(limits, [true; 2]), question).await
    }

    /// Changes limits of a unit. Also turns on the accounting of CPU and memory where `counts` says that it is off.
    pub async fn change(&self, name: &UnitName, limits: Change, counts: [bool; 2]) -> Result<()> {
        let properties = [accounting(counts), properties(limits)].concat();
        if properties.is_empty() {
            return Ok(());
        }
        let question = Question::Change { unit: name.to_string(), properties };
        self.act("change", "changed", name, &told(limits, counts), question).await
    }

    /// Takes limits back, so that the units have what their own files say.
    pub async fn reset(&self, resets: &[Reset]) -> Result<()> {
        if resets.is_empty() {
            return Ok(());
        }
        if self.dry_run {
            let limits = |reset: &Reset| format!("would reset {}: {}", reset.unit, names(reset.limits).join(", "));
            return resets.iter().try_for_each(|reset| (self.say)(&limits(reset)));
        }
        let revert = |reset: &Reset| {
            let accounting = if reset.accounting { accounting([false; 2]) } else { Vec::new() };
            let properties = [accounting, properties(reset.limits)].concat();
            let properties = properties.into_iter().map(|property| property.name).collect();
            Revert { unit: reset.unit.to_string(), properties, kept: reset.kept.clone() }
        };
        bowline_units::answer(Question::Revert(resets.iter().map(revert).collect())).await?;
        let units = self.look(resets.iter().map(|reset| &reset.unit)).await?;
        for (Reset { unit, limits, .. }, now) in resets.iter().zip(units) {
            (self.say)(&format!("reset {unit}: {}", told(limits.undone(in_force(&now)), [true; 2])))?;
        }
        Ok(())
    }

    /// Removes drop-ins that an older version has left.
    pub async fn remove(&self, files: Vec<PathBuf>) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        if !self.dry_run {
            bowline_units::answer(Question::RemoveDropIns(files.clone())).await?;
        }
        let verb = if self.dry_run { "would remove" } else { "removed" };
        files.iter().try_for_each(|file| (self.say)(&format!("{verb} {}, of an older version", file.display())))
    }

    /// Stops a slice that has no processes.
    pub async fn stop_slice(&self, name: &UnitName) -> Result<()> {
        self.act("stop", "stopped", name, "", Question::StopSlice(name.to_string())).await
    }

    async fn act(&self, verb: &str, past: &str, name: &UnitName, more: &str, question: Question) -> Result<()> {
        let colon = if more.is_empty() { "" } else { ": " };
        if self.dry_run {
            return (self.say)(&format!("would {verb} {name}{colon}{more}"));
        }
        bowline_units::answer(question).await?;
        (self.say)(&format!("{past} {name}{colon}{more}"))
    }
}

/// The limits of a unit that are in force.
pub fn in_force(unit: &HostUnit) -> InForce {
    InForce { cpu: HostCpuQuota::per_second(unit.cpu_quota), memory: unit.memory }
}

/// The properties that turn on the accounting of CPU time and memory where it is off.
fn accounting(counts: [bool; 2]) -> Vec<Property> {
    let names = ["CPUAccounting", "MemoryAccounting"].into_iter().zip(counts).filter(|(_, counts)| !counts);
    names.map(|(name, _)| Property { name: name.to_owned(), value: Value::Flag(true) }).collect()
}

fn properties(limits: Change) -> Vec<Property> {
    let cpu = limits.cpu.map(|cpu| ("CPUQuotaPerSecUSec", cpu.as_usec()));
    let memory = limits.memory.map(|most| (memory_property(is_cgroup_v2()), most));
    let all = cpu.into_iter().chain(memory);
    all.map(|(name, value)| Property { name: name.to_owned(), value: Value::Number(value) }).collect()
}

/// Formats a CPU limit in percent, or as "unlimited".
pub fn cpu_text(quota: HostCpuQuota) -> String {
    quota.percent().map_or("unlimited".to_owned(), |percent| format!("{percent}%"))
}

/// Formats a memory limit, or "unlimited".
pub fn memory_text(most: u64) -> String {
    if most == INFINITY { "unlimited".to_owned() } else { ByteSize::bytes(most).to_string() }
}

/// Formats limits, and the accounting that is turned on where `counts` says that it is off.
fn told(limits: Change, counts: [bool; 2]) -> String {
    let cpu = limits.cpu.map(|cpu| format!("cpu {}", cpu_text(cpu)));
    let memory = limits.memory.map(|most| format!("memory {}", memory_text(most)));
    let counted = ["cpu accounting", "memory accounting"].into_iter().zip(counts).filter(|(_, counts)| !counts);
    let counted = counted.map(|(what, _)| what.to_owned());
    cpu.into_iter().chain(memory).chain(counted).collect::<Vec<_>>().join(", ")
}

fn names(limits: Change) -> Vec<&'static str> {
    limits.cpu.map(|_| "cpu").into_iter().chain(limits.memory.map(|_| "memory")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_as_a_person_writes_them() {
        let limits = Change { cpu: Some(HostCpuQuota::per_second(250_000)), memory: Some(200 << 20) };
        assert_eq!(told(limits, [true; 2]), "cpu 25%, memory 200M");
        assert_eq!(told(limits.lifted(), [true, false]), "cpu unlimited, memory unlimited, memory accounting");
        assert_eq!(told(Change::default(), [true; 2]), "");
        assert_eq!(names(limits), ["cpu", "memory"]);
    }

    #[test]
    fn only_what_is_named_is_a_property() {
        let limits = Change { cpu: Some(HostCpuQuota::NONE), memory: None };
        let names = |all: Vec<Property>| all.into_iter().map(|one| one.name).collect::<Vec<_>>();
        assert_eq!(properties(limits)[0].value, Value::Number(u64::MAX));
        assert_eq!(names(properties(limits)), ["CPUQuotaPerSecUSec"]);
        assert_eq!(names(accounting([true, false])), ["MemoryAccounting"]);
        assert!(accounting([true; 2]).is_empty());
    }
}
