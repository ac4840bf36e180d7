//! The figures of all tasks of a shim, for monitoring: counters and limits, in one answer.
//!
//! Counters, not rates; without processes, and without what only one version of
//! cgroups has. Must not: keep anything.

use std::borrow::Cow;
use std::time::Duration;

use bowline_cgroup::{Cgroup, Layout};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::health;
use crate::stats::{self, Stats};

/// The upper bound of each bucket of exec start times, in µs: from what an idle host needs to what
/// a waiting user takes for broken.
const BOUNDS_USEC: [u64; 12] =
    [500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000];

/// All figures of one shim.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figures {
    /// The version of the shim's program, as in its `Cargo.toml`.
    pub version: Cow<'static, str>,
    /// The shim's pid on the host.
    pub pid: u32,
    /// Events that the shim could not write into the journal since it started.
    pub events_lost: u64,
    /// The sandbox of the shim, if it has one.
    pub sandbox: Option<SandboxFigures>,
    /// The shim's tasks, except forgotten ones.
    pub tasks: Vec<TaskFigures>,
}

/// What a shim reports of its sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxFigures {
    /// The sandbox's id, which may be longer than ours if a manager made it.
    pub id: String,
    /// The members that have not ended.
    pub members: u64,
    /// What the members use together; `None` while the sandbox is made or removed.
    pub usage: Option<Stats>,
}

/// What a shim reports of one of its tasks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TaskFigures {
    /// The task's id, which may be longer than ours if a manager made it.
    pub id: String,
    /// The task's state, in one word.
    pub status: Cow<'static, str>,
    /// When the task's program was executed.
    pub started_at: Option<Timestamp>,
    /// What the task uses; `None` once it has ended.
    pub usage: Option<Stats>,
    /// The task's health, if it has checks.
    pub health: Option<HealthFigures>,
    /// How long the task's execs took to start; health checks do not count.
    pub exec_starts: ExecStarts,
    /// Bytes of output that no file or reader would take.
    pub output_dropped_bytes: u64,
}

/// The results of health checks.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct HealthFigures {
    /// The status in one word.
    pub status: health::HealthStatus,
    /// How many checks have failed in a row.
    pub failing_streak: u32,
}

/// The figures of a cgroup, without its processes, and without what only one cgroup version has.
pub fn usage(layout: &Layout, cgroup: &Cgroup, page_sizes: &[String]) -> Stats {
    let mut stats = stats::read(layout, cgroup, page_sizes);
    stats.measured = Vec::new();
    stats.cpu.per_cpu_usec = None;
    stats.memory.counters = None;
    stats.memory.accounts.clear();
    stats
}

/// How long execs took to start: from the request until the program was executed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStarts {
    /// How many took at most the bucket's time, and longer than the one before.
    pub buckets: Vec<Bucket>,
    /// How many took longer than the last bucket.
    pub slower: u64,
    /// The time of all together, in µs.
    pub sum_usec: u64,
    /// How many never started: refused, or past their deadline before.
    pub failed: u64,
}

/// A bucket of the histogram [`ExecStarts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// The longest start that this bucket counts, in µs.
    pub up_to_usec: u64,
    /// How many starts it counts.
    pub count: u64,
}

impl ExecStarts {
    /// Counts a start that took so long. Until the first one there are no buckets.
    pub fn count(&mut self, took: Duration) {
        let usec = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.fill();
        self.sum_usec = self.sum_usec.saturating_add(usec);
        match self.buckets.iter_mut().find(|bucket| usec <= bucket.up_to_usec) {
            Some(bucket) => bucket.count += 1,
            None => self.slower += 1,
        }
    }

    /// Counts an exec that did not start.
    pub fn count_failed(&mut self) {
        self.failed += 1;
    }

    /// Adds the buckets in which nothing was counted.
    pub fn filled(mut self) -> ExecStarts {
        self.fill();
        self
    }

    fn fill(&mut self) {
        if self.buckets.is_empty() {
            self.buckets = BOUNDS_USEC.iter().map(|&up_to_usec| Bucket { up_to_usec, count: 0 }).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_exec_is_counted_once_where_it_belongs() {
        let mut starts = ExecStarts::default();
        for usec in [0, 500, 501, 2_500_000, 2_500_001] {
            starts.count(Duration::from_micros(usec));
        }
        starts.count_failed();
        let counts: Vec<u64> = starts.buckets.iter().map(|bucket| bucket.count).collect();
        assert_eq!((&counts[..2], counts[11], starts.slower, starts.failed), (&[2, 1][..], 1, 1, 1));
        assert_eq!(counts.iter().sum::<u64>() + starts.slower, 5);
        assert_eq!(starts.sum_usec, 5_001_002);
    }

    #[test]
    fn without_an_exec_nothing_is_kept_and_all_buckets_are_told() {
        let starts = ExecStarts::default();
        assert_eq!(starts.buckets.capacity(), 0);
        assert!(
            starts
                .filled()
                .buckets
                .iter()
                .zip(BOUNDS_USEC)
                .all(|(b, bound)| *b == Bucket { up_to_usec: bound, count: 0 })
        );
    }

    #[test]
    fn bounds_rise() {
        assert!(BOUNDS_USEC.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
