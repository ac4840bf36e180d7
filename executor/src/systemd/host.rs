//! Units that are the host's, or made for it: what may be asked about them.
//!
//! For the program `bowline` itself, which speaks to systemd in its own process.

use super::Property;

/// What systemd is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// What it has of each of these units, loaded from disk if need be.
    Look(Vec<String>),
    /// A slice that is not active; a transient one where the host has none of its name.
    StartSlice {
        /// Which.
        slice: String,
        /// Its limits.
        properties: Vec<Property>,
    },
    /// Other properties of a unit, until the next boot.
    Change {
        /// Which.
        unit: String,
        /// The new ones.
        properties: Vec<Property>,
    },
    /// The end of a slice, never of what is in it.
    StopSlice(String),
}

/// What systemd answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// The units asked for, in their order.
    Units(Vec<HostUnit>),
}

/// What systemd has of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostUnit {
    /// Its name, where what was asked for is an alias.
    pub name: String,
    /// Whether there is such a unit, active or not.
    pub loaded: bool,
    /// systemd's word for that: `loaded`, `not-found`, `masked`.
    pub load_state: String,
    /// Whether it is active; so is one that is just starting, reloading or stopping.
    pub active: bool,
    /// The slice that it is in.
    pub slice: String,
    /// Its cgroup; empty of one that is not active.
    pub cgroup: String,
    /// The most CPU time, in µs for each second; `u64::MAX` without a limit.
    pub cpu_quota: u64,
    /// The most memory, in bytes; `u64::MAX` without a limit.
    pub memory: u64,
    /// Whether CPU time and memory are counted, whatever its limits.
    pub accounting: [bool; 2],
}

/// The property that limits memory: systemd has one for each cgroup version.
pub fn memory_property(v2: bool) -> &'static str {
    if v2 { "MemoryMax" } else { "MemoryLimit" }
}
