//! Limits of the host's own units: what is wanted, what is in force, what differs.
//!
//!   JSON ─ parse ─► Manifest, and what was skipped of it
//!   Wanted + what is in force ─ differing ─► Change
//!
//! Slices are all or nothing: a wrong entry of theirs is an error. Services are
//! the host's and each its own affair: a wrong entry is skipped, and said.
//! Pure: asks systemd nothing.

mod drop_in;
mod manifest;
mod percent;
mod quota;
mod unit_name;

pub use drop_in::is_of_older_version;
pub use manifest::{LEAST_MEMORY, Manifest, OnFailure, Parsed, Service, Slice, parse, schema};
pub use percent::CpuPercent;
pub use quota::{HostCpuQuota, INFINITY};
pub use unit_name::{UnitKind, UnitName};

use crate::values::ByteSize;

/// The limits of a unit, as systemd has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InForce {
    /// CPU time for each second; [`HostCpuQuota::NONE`] for no limit.
    pub cpu: HostCpuQuota,
    /// Memory in bytes; [`INFINITY`] for no limit.
    pub memory: u64,
}

/// New limits of a unit; `None` leaves a limit as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    /// CPU time for each second; [`HostCpuQuota::NONE`] lifts the limit.
    pub cpu: Option<HostCpuQuota>,
    /// Memory in bytes; [`INFINITY`] lifts the limit.
    pub memory: Option<u64>,
}

impl Change {
    /// What an entry of a manifest asks for; one that names no limit asks for none.
    pub fn to(cpu: Option<CpuPercent>, memory: Option<ByteSize>) -> Change {
        if cpu.is_none() && memory.is_none() {
            return Change { cpu: Some(HostCpuQuota::NONE), memory: Some(INFINITY) };
        }
        Change { cpu: cpu.map(HostCpuQuota::from), memory: memory.map(ByteSize::as_u64) }
    }

    /// What lifts those limits that it sets.
    pub fn lifted(self) -> Change {
        Change { cpu: self.cpu.map(|_| HostCpuQuota::NONE), memory: self.memory.map(|_| INFINITY) }
    }

    /// Adds, for each limit that only `before` sets, the change that lifts it.
    pub fn after(self, before: Change) -> Change {
        let lifted = before.lifted();
        Change { cpu: self.cpu.or(lifted.cpu), memory: self.memory.or(lifted.memory) }
    }

    /// Drops the limits that `other` also sets.
    pub fn without(self, other: Change) -> Change {
        let cpu = self.cpu.filter(|_| other.cpu.is_none());
        Change { cpu, memory: self.memory.filter(|_| other.memory.is_none()) }
    }

    /// Keeps only what differs from the limits in force.
    pub fn differing(self, now: InForce) -> Change {
        Change { cpu: self.cpu.filter(|cpu| *cpu != now.cpu), memory: self.memory.filter(|most| *most != now.memory) }
    }

    /// What puts back `before` where it is made.
    pub fn undone(self, before: InForce) -> Change {
        Change { cpu: self.cpu.map(|_| before.cpu), memory: self.memory.map(|_| before.memory) }
    }

    /// Whether it leaves both limits as they are.
    pub fn is_nothing(self) -> bool {
        self == Change::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(cpu: Option<u64>, memory: Option<u64>) -> Change {
        Change { cpu: cpu.map(HostCpuQuota::per_second), memory }
    }

    #[test]
    fn only_what_differs_is_changed() {
        let now = InForce { cpu: HostCpuQuota::per_second(250_000), memory: INFINITY };
        for (wanted, differs) in [
            (change(None, None), change(None, None)),
            (change(Some(250_000), None), change(None, None)),
            (change(Some(250_000), Some(1 << 20)), change(None, Some(1 << 20))),
            (change(Some(500_000), Some(INFINITY)), change(Some(500_000), None)),
            (change(Some(INFINITY), None), change(Some(INFINITY), None)),
        ] {
            assert_eq!(wanted.differing(now), differs, "{wanted:?}");
            assert_eq!(differs.is_nothing(), differs == Change::default());
        }
    }

    #[test]
    fn what_an_earlier_manifest_has_set_and_this_one_does_not_name_is_lifted() {
        let before = change(Some(250_000), Some(1 << 20));
        assert_eq!(change(Some(100_000), None).after(before), change(Some(100_000), Some(INFINITY)));
        assert_eq!(change(None, None).after(change(None, None)), change(None, None));
        assert_eq!(before.lifted(), change(Some(INFINITY), Some(INFINITY)));
        assert_eq!(before.without(change(Some(100_000), None)), change(None, Some(1 << 20)));
        assert!(before.without(before).is_nothing());
    }

    #[test]
    fn a_change_is_undone_where_it_was_made() {
        let before = InForce { cpu: HostCpuQuota::per_second(1), memory: 2 };
        assert_eq!(change(Some(7), None).undone(before), change(Some(1), None));
        assert_eq!(change(None, Some(7)).undone(before), change(None, Some(2)));
    }
}
