//! What a shim tells at once of all its tasks, for whoever watches many: counters
//! and limits, in one answer.
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

/// Up to how long an exec takes to be counted in each bucket, in µs: from what a
/// host with nothing to do needs to what somebody who waits takes for broken.
const BOUNDS_USEC: [u64; 12] =
    [500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000];

/// Everything that one shim tells.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figures {
    /// The shim's version.
    pub version: Cow<'static, str>,
    /// Its pid.
    pub pid: u32,
    /// Events that it could not write into the journal, since it started.
    pub events_lost: u64,
    /// The sandbox that it is the shim of, if it is.
    pub sandbox: Option<SandboxFigures>,
    /// Its tasks that it has not forgotten.
    pub tasks: Vec<TaskFigures>,
}

/// A sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxFigures {
    /// Its id, which a manager may have made longer than one of ours.
    pub id: String,
    /// Its members that have not ended.
    pub members: u64,
    /// What they use together; none while it is made or removed.
    pub usage: Option<Stats>,
}

/// A task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TaskFigures {
    /// Its id, which a manager may have made longer than one of ours.
    pub id: String,
    /// Where it is in its life, in one word.
    pub status: Cow<'static, str>,
    /// When its program was executed.
    pub started_at: Option<Timestamp>,
    /// What it uses; none once it has ended.
    pub usage: Option<Stats>,
    /// Whether it is well, where it has checks.
    pub health: Option<HealthFigures>,
    /// How long its execs took to start; health checks do not count.
    pub exec_starts: ExecStarts,
    /// Bytes of its output that no file or reader would take.
    pub output_dropped_bytes: u64,
}

/// What checks have come to.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct HealthFigures {
    /// In a word.
    pub status: health::HealthStatus,
    /// How many have failed one after the other.
    pub failing_streak: u32,
}

/// What is used in a cgroup, without its processes, and without what only one
/// version of cgroups has.
pub(crate) fn usage(layout: &Layout, cgroup: &Cgroup, page_sizes: &[String]) -> Stats {
    let mut stats = stats::read(layout, cgroup, page_sizes);
    stats.measured = Vec::new();
    stats.cpu.per_cpu_usec = None;
    stats.memory.counters = None;
    stats.memory.accounts.clear();
    stats
}

/// How long execs took, from the request until their program was executed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStarts {
    /// How many took at most so long, and longer than the bucket before.
    pub buckets: Vec<Bucket>,
    /// How many took longer than that.
    pub slower: u64,
    /// How long all together took, in µs.
    pub sum_usec: u64,
    /// How many never came so far: refused, or at their deadline before.
    pub failed: u64,
}

/// A bucket of [`ExecStarts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// The most that one takes that is counted here, in µs.
    pub up_to_usec: u64,
    /// How many there were.
    pub count: u64,
}

impl ExecStarts {
    /// Counts one that took so long. Until the first there are no buckets.
    pub(crate) fn count(&mut self, took: Duration) {
        let usec = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.fill();
        self.sum_usec = self.sum_usec.saturating_add(usec);
        match self.buckets.iter_mut().find(|bucket| usec <= bucket.up_to_usec) {
            Some(bucket) => bucket.count += 1,
            None => self.slower += 1,
        }
    }

    /// Counts one that did not start.
    pub(crate) fn count_failed(&mut self) {
        self.failed += 1;
    }

    /// Adds the buckets in which nothing was counted.
    pub(crate) fn filled(mut self) -> ExecStarts {
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
