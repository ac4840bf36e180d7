//! Units that are the host's, or made for it: requests about them and systemd's answers.
//!
//! For the program `bowline` itself, which talks to systemd in its own process.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Property;

/// A request about units of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Report each of these units, loaded from disk if need be.
    Look(Vec<String>),
    /// Start a slice that is not active; a transient one where the host has none of its name.
    StartSlice {
        /// The name of the slice.
        slice: String,
        /// The limits of the slice.
        properties: Vec<Property>,
    },
    /// Change properties of a unit, until the next boot.
    Change {
        /// The name of the unit.
        unit: String,
        /// The properties to set, with their new values.
        properties: Vec<Property>,
    },
    /// Stop a slice, never what is in it.
    StopSlice(String),
    /// Give units back what their own files say, all at a time.
    Revert(Vec<Revert>),
    /// Remove drop-ins, and have systemd reload the files of all units.
    RemoveDropIns(Vec<PathBuf>),
}

/// Properties of a unit that get back the values in the unit's own files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revert {
    /// The unit, by its own name and not by an alias.
    pub unit: String,
    /// The names of the properties.
    pub properties: Vec<String>,
    /// Drop-ins that were there before ours took their place.
    pub kept: Vec<DropIn>,
}

/// A file that changes a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropIn {
    /// Where the file is on the host.
    pub path: PathBuf,
    /// All that the file contains.
    pub text: String,
}

/// What systemd has answered to a [`Question`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The request was carried out.
    Done,
    /// The units asked for, in their order.
    Units(Vec<HostUnit>),
}

/// What systemd knows of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostUnit {
    /// The unit's own name, even if the request named an alias.
    pub name: String,
    /// Whether the unit exists, active or not.
    pub loaded: bool,
    /// systemd's word for that: `loaded`, `not-found`, `masked`.
    pub load_state: String,
    /// Whether the unit is active; a unit that is starting, reloading or stopping is active too.
    pub active: bool,
    /// The slice that the unit is in.
    pub slice: String,
    /// The unit's cgroup; empty for a unit that is not active.
    pub cgroup: String,
    /// The most CPU time, in µs for each second; `u64::MAX` without a limit.
    pub cpu_quota: u64,
    /// The most memory, in bytes; `u64::MAX` without a limit.
    pub memory: u64,
    /// Whether CPU time and memory are counted, whatever the limits.
    pub accounting: [bool; 2],
    /// Whether the unit has no file of its own: its files go when it ends.
    pub transient: bool,
}

/// The property that limits memory: systemd has one for each cgroup version.
pub fn memory_property(v2: bool) -> &'static str {
    if v2 { "MemoryMax" } else { "MemoryLimit" }
}
