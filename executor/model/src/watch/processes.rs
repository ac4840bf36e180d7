//! Which processes are in the shim's own cgroup, and which may be.
//!
//! Expected are the shim and its parent, the processes that the shim has started and their
//! descendants, processes that were charged there, zombies, and processes that an environment
//! variable marks as the shim's. A task's processes descend from the shim too; they have a cgroup
//! of their own, and are not expected in this one.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;

use bowline_sys::proc_stat::{self, ProcStat};
use serde::{Deserialize, Serialize};

/// The environment variable with the name of the shim's folder, set for what the shim starts and
/// for anything else that is expected in its cgroup.
pub const MARKER: &str = "BOWLINE_SHIM";

/// How many unexpected processes are named.
const NAMED: usize = 5;

/// The most generations that are followed. A chain is longer only if somebody wants it to be.
const GENERATIONS: usize = 1000;

/// How much of a command line is shown, in characters.
const COMMAND_CHARS: usize = 64;

/// A process in the shim's cgroup that nobody expects there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stray {
    /// In the shim's pid namespace.
    pub pid: i32,
    /// The process's name: at most 15 bytes.
    pub name: String,
    /// The first 64 characters of its command line; empty for a process that has none, such as a
    /// thread of the kernel's.
    #[serde(default)]
    pub command: String,
}

/// A process, by its pid and its start time: another process may have the pid by the next look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessIdentity {
    pid: i32,
    /// In clock ticks since boot.
    started: u64,
}

impl ProcessIdentity {
    /// The identity of the process that has this pid now, if there is one.
    pub fn of(pid: i32) -> Option<ProcessIdentity> {
        stat(pid).map(|stat| ProcessIdentity { pid, started: stat.started })
    }
}

/// What the rule needs to know of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stat {
    name: String,
    zombie: bool,
    parent: i32,
    started: u64,
}

/// The processes that are expected.
#[derive(Debug)]
pub struct Family<'a> {
    /// The pid of the shim itself.
    pub shim: i32,
    /// The pid of the shim's parent, which is expected too.
    pub parent: Option<i32>,
    /// The first processes of its tasks and of their execs.
    pub tasks: &'a BTreeSet<i32>,
    /// Processes that were charged there by request.
    pub helpers: &'a BTreeSet<ProcessIdentity>,
    /// The value of [`MARKER`] that expected processes have.
    pub mark: &'a str,
}

/// The processes among `pids` that are not expected.
pub fn unexpected(pids: &[i32], family: &Family<'_>) -> Vec<(ProcessIdentity, Stray)> {
    let mut strays = strays(pids, family, stat, |pid| is_marked(pid, family.mark));
    strays.iter_mut().for_each(|(_, stray)| stray.command = command(stray.pid));
    strays
}

fn strays(
    pids: &[i32],
    family: &Family<'_>,
    stat: impl Fn(i32) -> Option<Stat>,
    is_marked: impl Fn(i32) -> bool,
) -> Vec<(ProcessIdentity, Stray)> {
    let stray = |pid: &i32| {
        // Without a stat, the process has ended meanwhile.
        let found = stat(*pid)?;
        let ours = *pid == family.shim || Some(*pid) == family.parent || found.zombie;
        if ours || descends(*pid, &found, family, &stat) || is_marked(*pid) {
            return None;
        }
        let identity = ProcessIdentity { pid: *pid, started: found.started };
        Some((identity, Stray { pid: *pid, name: found.name, command: String::new() }))
    };
    pids.iter().filter_map(stray).collect()
}

/// Whether the process descends from the shim without being a task's, or descends from a helper.
fn descends(pid: i32, found: &Stat, family: &Family<'_>, stat: &impl Fn(i32) -> Option<Stat>) -> bool {
    let mut at = ProcessIdentity { pid, started: found.started };
    let mut parent = found.parent;
    for _ in 0..GENERATIONS {
        if family.tasks.contains(&at.pid) {
            return false;
        }
        if parent == family.shim || family.helpers.contains(&at) {
            return true;
        }
        let Some(found) = stat(parent) else { return false };
        at = ProcessIdentity { pid: parent, started: found.started };
        parent = found.parent;
    }
    false
}

fn stat(pid: i32) -> Option<Stat> {
    let text = proc_stat::read(pid)?;
    let stat = ProcStat::parse(&text)?;
    let (parent, started) = (stat.parent()?, stat.started()?);
    Some(Stat { name: stat.name.to_owned(), zombie: stat.has_ended(), parent, started })
}

/// Whether the process has the value `mark` of [`MARKER`] in its environment.
pub fn is_marked(pid: i32, mark: &str) -> bool {
    let wanted = format!("{MARKER}={mark}");
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
}

/// The beginning of a process's command line.
fn command(pid: i32) -> String {
    let mut bytes = Vec::new();
    // A character has four bytes at most.
    let file = File::open(format!("/proc/{pid}/cmdline"));
    let _ = file.and_then(|file| file.take(4 * COMMAND_CHARS as u64).read_to_end(&mut bytes));
    readable(&bytes)
}

/// A command line, whose arguments end with NUL, as a line of text.
fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line: String = text.trim_end_matches('\0').chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    line.chars().take(COMMAND_CHARS).collect()
}

/// The processes of the last look: a new one may be on its way elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    before: BTreeSet<ProcessIdentity>,
    told: BTreeSet<ProcessIdentity>,
}

impl Seen {
    /// The processes that are here for the second time in a row, if any of them was not reported
    /// yet: the first five, and how many others.
    pub fn twice(&mut self, now: Vec<(ProcessIdentity, Stray)>) -> Option<(Vec<Stray>, u64)> {
        let there: BTreeSet<ProcessIdentity> = now.iter().map(|(identity, _)| *identity).collect();
        let stayed: Vec<_> = now.into_iter().filter(|(identity, _)| self.before.contains(identity)).collect();
        self.told.retain(|identity| there.contains(identity));
        self.before = there;
        let known = self.told.len();
        self.told.extend(stayed.iter().map(|(identity, _)| *identity));
        if self.told.len() == known {
            return None;
        }
        let others = stayed.len().saturating_sub(NAMED) as u64;
        Some((stayed.into_iter().take(NAMED).map(|(_, stray)| stray).collect(), others))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(parent: i32, zombie: bool) -> Stat {
        Stat { name: "x".to_owned(), zombie, parent, started: 7 }
    }

    /// The processes that the rule finds among `pids`, where 10 is the shim, 5 its parent, 20 a task, and 80 a helper.
    fn found(pids: &[i32], stat: impl Fn(i32) -> Option<Stat>, marked: i32) -> Vec<i32> {
        let (tasks, helpers) = (BTreeSet::from([20]), BTreeSet::from([ProcessIdentity { pid: 80, started: 7 }]));
        let family = Family { shim: 10, parent: Some(5), tasks: &tasks, helpers: &helpers, mark: "x" };
        let strays = strays(pids, &family, stat, |pid| pid == marked);
        strays.into_iter().map(|(_, stray)| stray.pid).collect()
    }

    #[test]
    fn family_helpers_zombies_and_the_marked_are_expected() {
        let stat = |pid| match pid {
            5 | 80 => Some(process(1, false)),
            10 | 40 | 50 => Some(process(5, false)),
            81 => Some(process(80, false)),
            30 => Some(process(10, false)),
            31 => Some(process(30, false)),
            60 => Some(process(1, true)),
            _ => None,
        };
        assert_eq!(found(&[5, 10, 30, 31, 40, 50, 60, 70, 80, 81], stat, 50), [40]);
    }

    #[test]
    fn a_tasks_processes_are_not_expected() {
        let stat = |pid| match pid {
            20 | 30 => Some(process(10, false)),
            21 => Some(process(20, false)),
            22 => Some(process(21, false)),
            _ => None,
        };
        assert_eq!(found(&[20, 21, 22, 30], stat, 0), [20, 21, 22]);
    }

    #[test]
    fn a_chain_that_goes_round_ends() {
        assert_eq!(found(&[40], |pid| Some(process(if pid == 40 { 41 } else { 40 }, false)), 0), [40]);
    }

    #[test]
    fn a_command_line_is_one_line_of_64_characters() {
        assert_eq!(readable(b"/bin/sh\0-c\0echo a\nb\0"), "/bin/sh -c echo a b");
        assert_eq!(readable("\u{fc}".repeat(70).as_bytes()), "\u{fc}".repeat(64));
        assert_eq!((readable(b""), readable(b"a\xffb\0")), (String::new(), "a\u{fffd}b".to_owned()));
        assert_eq!(command(0), "");
        assert!(command(std::process::id().cast_signed()).len() >= 10);
    }

    fn strangers(pids: impl IntoIterator<Item = i32>) -> Vec<(ProcessIdentity, Stray)> {
        let stranger =
            |pid| (ProcessIdentity { pid, started: 1 }, Stray { pid, name: String::new(), command: String::new() });
        pids.into_iter().map(stranger).collect()
    }

    #[test]
    fn only_who_is_seen_twice_in_a_row_is_told_of_and_once() {
        let mut seen = Seen::default();
        let pids = |told: Option<(Vec<Stray>, u64)>| told.map(|(strays, _)| strays.iter().map(|s| s.pid).collect());
        let mut look = |there: &[i32]| -> Option<Vec<i32>> { pids(seen.twice(strangers(there.iter().copied()))) };
        assert_eq!(look(&[1]), None);
        assert_eq!(look(&[2]), None, "another one");
        assert_eq!(look(&[1, 2]), Some(vec![2]));
        assert_eq!(look(&[1, 2]), Some(vec![1, 2]), "the first has stayed as well");
        assert_eq!(look(&[1, 2]), None, "told already");
        assert_eq!(look(&[]), None);
        assert_eq!(look(&[1]), None);
        assert_eq!(look(&[1]), Some(vec![1]), "it has come back");
    }

    #[test]
    fn a_number_that_is_anothers_was_not_seen_before() {
        let mut seen = Seen::default();
        seen.twice(strangers([1]));
        let mut other = strangers([1]);
        other[0].0.started = 2;
        assert_eq!(seen.twice(other), None);
    }

    #[test]
    fn at_most_five_are_named() {
        let mut seen = Seen::default();
        seen.twice(strangers(1..=9));
        let (named, others) = seen.twice(strangers(1..=9)).expect("they stayed");
        assert_eq!((named.len(), others), (5, 4));
    }
}
