//! What is found of a watched task, and when a finding is news: rules without effects.
//!
//! ```text
//!   counts and readings ─► Counted, Begins, Seen ─► Finding ─► event `watch`
//! ```
//!
//! `processes` knows which processes may be in the shim's own cgroup, `kernel_log` which ones the
//! kernel has killed. Pure except for reading `/proc` and the log: `supervise` has the clock, and
//! does what a policy asks for.

mod kernel_log;
mod processes;

use bowline_spec::Stalled;
use serde::{Deserialize, Serialize};

use crate::clock::Moment;

pub use kernel_log::{KernelLog, Kill, NamedKills};
pub use processes::is_marked;
pub use processes::{Family, MARKER, ProcessIdentity, Seen, Stray, unexpected};

/// What a policy has found, under the policy's name in the description, with the figures that it judged by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Finding {
    /// The OOM killer has killed processes.
    #[non_exhaustive]
    Oom {
        /// How many were killed so far.
        kills: u64,
    },
    /// The task was slowed down for being above `memory.high`.
    #[non_exhaustive]
    MemoryHigh {
        /// How often this has happened so far.
        events: u64,
        /// How often this may happen between two findings.
        above: u64,
    },
    /// The task uses much memory.
    #[non_exhaustive]
    Memory {
        /// The part that is larger than it may be.
        part: Part,
        /// How much the task uses, in bytes.
        bytes: u64,
        /// The most that it may use, in bytes.
        above_bytes: u64,
    },
    /// The CPU limit has held the task back.
    #[non_exhaustive]
    Throttled {
        /// For how long since the last look, on all CPUs together, in µs.
        usec: u64,
        /// The longest that this may be, in µs.
        above_usec: u64,
        /// The time between two looks, in µs.
        every_usec: u64,
    },
    /// The task has waited for a CPU.
    CpuPressure(PressureExceeded),
    /// The task has waited for memory.
    MemoryPressure(PressureExceeded),
    /// The task has waited for block devices.
    IoPressure(PressureExceeded),
    /// Unexpected processes are in the shim's own cgroup.
    #[non_exhaustive]
    UnexpectedProcesses {
        /// Up to five of these processes.
        processes: Vec<Stray>,
        /// How many others there are.
        others: u64,
    },
}

/// A part of the memory that a task uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// All of it, page cache and swap included.
    Total,
    /// Anonymous memory: the processes' own.
    Anon,
    /// Page cache: what the kernel keeps of files in memory.
    Cache,
}

/// Time in which processes waited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PressureExceeded {
    /// Whether some processes waited, or all at the same time.
    pub who: Stalled,
    /// How long they may wait, in µs.
    pub above_usec: u64,
    /// The length of the window, in µs.
    pub window_usec: u64,
    /// How long they have waited in total, in µs, by the kernel's counter.
    pub total_usec: Option<u64>,
}

/// What processes can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// CPU time: processes are ready to run, and no CPU is free.
    Cpu,
    /// Memory that the kernel has to reclaim or read back first.
    Memory,
    /// Reads and writes of block devices.
    Io,
}

impl Resource {
    /// The kernel's name of the resource.
    pub fn as_str(self) -> &'static str {
        match self {
            Resource::Cpu => "cpu",
            Resource::Memory => "memory",
            Resource::Io => "io",
        }
    }

    /// The finding that processes waited for the resource.
    pub fn waited_for(self, exceeded: PressureExceeded) -> Finding {
        match self {
            Resource::Cpu => Finding::CpuPressure(exceeded),
            Resource::Memory => Finding::MemoryPressure(exceeded),
            Resource::Io => Finding::IoPressure(exceeded),
        }
    }
}

impl PressureExceeded {
    /// `who` waited for longer than `above` in `window`, and for `total` so far, all in µs.
    pub fn new(who: Stalled, above: u64, window: u64, total: Option<u64>) -> PressureExceeded {
        PressureExceeded { who, above_usec: above, window_usec: window, total_usec: total }
    }
}

impl Finding {
    /// So many kills by the OOM killer so far.
    pub fn oom(kills: u64) -> Finding {
        Finding::Oom { kills }
    }

    /// So many `events` of `memory.high` so far, of which `above` may come between two findings.
    pub fn memory_high(events: u64, above: u64) -> Finding {
        Finding::MemoryHigh { events, above }
    }

    /// More memory than a part may use, in bytes.
    pub fn memory(part: Part, bytes: u64, above_bytes: u64) -> Finding {
        Finding::Memory { part, bytes, above_bytes }
    }

    /// More time held back than may be, all in µs.
    pub fn throttled(usec: u64, above_usec: u64, every_usec: u64) -> Finding {
        Finding::Throttled { usec, above_usec, every_usec }
    }

    /// Up to five unexpected processes, and how many others there are.
    pub fn unexpected_processes(processes: Vec<Stray>, others: u64) -> Finding {
        Finding::UnexpectedProcesses { processes, others }
    }

    /// The policy's name in the description.
    pub fn policy(&self) -> &'static str {
        match self {
            Finding::Oom { .. } => "oom",
            Finding::MemoryHigh { .. } => "memory_high",
            Finding::Memory { .. } => "memory",
            Finding::Throttled { .. } => "throttled",
            Finding::CpuPressure(_) => "cpu_pressure",
            Finding::MemoryPressure(_) => "memory_pressure",
            Finding::IoPressure(_) => "io_pressure",
            Finding::UnexpectedProcesses { .. } => "unexpected_processes",
        }
    }
}

/// What a task's watch has seen, by policy, and when it looks again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Watched {
    /// How often memory.high was exceeded.
    pub high: Policy<Counted>,
    /// Whether memory in use is above the allowed amount: of all memory, anonymous memory, and cache.
    pub memory: Policy<[Begins; 3]>,
    /// Whether the task is held back longer than allowed.
    pub throttled: Policy<Begins>,
    /// How long the task was held back in total at the last look, in µs.
    pub throttled_usec: u64,
    /// How long the task waits for CPU, memory and block devices.
    pub pressures: [Policy<()>; 3],
    /// The processes in the shim's cgroup.
    pub processes: Policy<Seen>,
}

/// What a policy has seen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Policy<R> {
    /// What the policy's rule remembers.
    pub rule: R,
    /// When the policy looks again.
    pub due: Option<Moment>,
}

impl Watched {
    /// What another shim has to know so that it reports nothing twice. When it looks is its own affair.
    pub fn told(&self) -> Watched {
        let mut told = self.clone();
        (told.memory.due, told.throttled.due, told.processes.due) = (None, None, None);
        told.throttled_usec = 0;
        told
    }
}

/// A count that may grow by a given number: news whenever it has grown by more than that since the last news.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    told: u64,
}

impl Counted {
    /// Whether `count`, the total so far, is news if it may grow by `above`.
    pub fn exceeded(&mut self, count: u64, above: u64) -> bool {
        let exceeded = count.saturating_sub(self.told) > above;
        if exceeded {
            self.told = count;
        }
        exceeded
    }
}

/// A condition that lasts: news when it begins, and when it begins again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Begins(bool);

impl Begins {
    /// Whether the condition has just begun to hold.
    pub fn holds(&mut self, holds: bool) -> bool {
        let before = std::mem::replace(&mut self.0, holds);
        holds && !before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_news_once_more_than_allowed_have_come() {
        let mut rule = Counted::default();
        let news: Vec<bool> = [0, 10, 11, 12, 21, 22, 500].map(|count| rule.exceeded(count, 10)).to_vec();
        assert_eq!(news, [false, false, true, false, false, true, true]);
    }

    #[test]
    fn a_count_that_goes_back_is_no_news() {
        let mut rule = Counted::default();
        assert_eq!([5, 0, 6].map(|count| rule.exceeded(count, 1)), [true, false, false]);
    }

    #[test]
    fn what_lasts_is_news_when_it_begins() {
        let mut rule = Begins::default();
        let news = [false, true, true, false, true].map(|holds| rule.holds(holds));
        assert_eq!(news, [false, true, false, false, true]);
    }

    #[test]
    fn a_finding_is_json_with_its_policy() {
        let exceeded = PressureExceeded { who: Stalled::Some, above_usec: 1, window_usec: 2, total_usec: Some(3) };
        for (finding, json) in [
            (Finding::Oom { kills: 1 }, r#"{"policy":"oom","kills":1}"#),
            (
                Finding::IoPressure(exceeded),
                r#"{"policy":"io_pressure","who":"some","above_usec":1,"window_usec":2,"total_usec":3}"#,
            ),
            (
                Finding::Memory { part: Part::Anon, bytes: 2, above_bytes: 1 },
                r#"{"policy":"memory","part":"anon","bytes":2,"above_bytes":1}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&finding).expect("JSON"), json);
            assert_eq!(serde_json::from_str::<Finding>(json).expect("a finding"), finding);
            assert!(json.contains(&format!("\"{}\"", finding.policy())));
        }
    }
}
