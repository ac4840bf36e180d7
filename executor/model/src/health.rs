//! Whether a task is healthy, by the results of its checks.
//!
//! ```text
//!               success                success
//!   starting ─────────────► healthy ◄─────────── unhealthy
//!       │                      │                     ▲
//!       └── as many failures in a row as `retries` ──┘
//! ```
//!
//! Until one check has succeeded, a failure in the start period does not count.
//! Pure: `supervise` has the clock and runs the checks.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How many checks are kept.
pub const REMEMBERED: usize = 5;

/// The last bytes of a check's output that are kept, of both streams.
pub const OUTPUT: usize = 1024;

/// A task's health in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// No check has succeeded yet, and too few failures have counted.
    #[default]
    Starting,
    /// The last check succeeded, or too few have failed since.
    Healthy,
    /// Too many checks have failed since the last success.
    Unhealthy,
}

impl HealthStatus {
    /// The status in one word.
    pub fn as_str(self) -> &'static str {
        match self {
            HealthStatus::Starting => "starting",
            HealthStatus::Healthy => "healthy",
            HealthStatus::Unhealthy => "unhealthy",
        }
    }
}

/// What is known of a task's health.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Health {
    /// The status that the checks so far have led to.
    pub status: HealthStatus,
    /// How many of the checks that count have failed in a row.
    pub failing_streak: u32,
    /// The last checks, oldest first.
    pub log: VecDeque<Check>,
}

/// A check that has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Check {
    /// When the shim began the check.
    pub started_at: Timestamp,
    /// When its process was reaped, or could not be started.
    pub ended_at: Timestamp,
    /// Null when the check was killed at its timeout, or could not be run.
    pub exit_code: Option<i32>,
    /// Whether the check was killed at its timeout.
    pub timed_out: bool,
    /// The last 1,024 bytes that the check wrote.
    pub output: String,
    /// Why the check could not be run.
    pub error: Option<String>,
}

impl Check {
    /// A check that ran, and left this code or, at its timeout, none.
    pub fn ended(started_at: Timestamp, ended_at: Timestamp, exit_code: Option<i32>, output: String) -> Check {
        Check { started_at, ended_at, exit_code, timed_out: exit_code.is_none(), output, error: None }
    }

    /// A check that could not be run.
    pub fn failed(started_at: Timestamp, error: String) -> Check {
        let ended_at = Timestamp::now();
        Check { started_at, ended_at, exit_code: None, timed_out: false, output: String::new(), error: Some(error) }
    }

    /// Whether the check found the task healthy.
    pub fn succeeded(&self) -> bool {
        self.exit_code == Some(0)
    }
}

impl Health {
    /// Takes a check into account. `retries` failures in a row make the task unhealthy;
    /// `in_start_period` tells whether the task has only just started.
    pub fn learn(&mut self, check: Check, retries: u32, in_start_period: bool) {
        if check.succeeded() {
            self.failing_streak = 0;
            self.status = HealthStatus::Healthy;
        } else if !(in_start_period && self.status == HealthStatus::Starting) {
            self.failing_streak = self.failing_streak.saturating_add(1);
            if self.failing_streak >= retries {
                self.status = HealthStatus::Unhealthy;
            }
        }
        if self.log.len() == REMEMBERED {
            self.log.pop_front();
        }
        self.log.push_back(check);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(exit_code: i32) -> Check {
        let time = Timestamp::UNIX_EPOCH;
        let output = String::new();
        Check { started_at: time, ended_at: time, exit_code: Some(exit_code), timed_out: false, output, error: None }
    }

    /// The status after each of `codes`, outside the start period.
    fn statuses(health: &mut Health, retries: u32, codes: &[i32]) -> Vec<&'static str> {
        let mut after = |code: &i32| {
            health.learn(check(*code), retries, false);
            health.status.as_str()
        };
        codes.iter().map(&mut after).collect()
    }

    #[test]
    fn as_many_failures_in_a_row_as_retries_make_unhealthy() {
        let mut health = Health::default();
        let seen = statuses(&mut health, 2, &[0, 1, 0, 1, 1, 1]);
        assert_eq!(seen, ["healthy", "healthy", "healthy", "healthy", "unhealthy", "unhealthy"]);
        assert_eq!(health.failing_streak, 3);
    }

    #[test]
    fn one_success_makes_healthy() {
        let mut health = Health::default();
        assert_eq!(statuses(&mut health, 1, &[1, 0, 1]), ["unhealthy", "healthy", "unhealthy"]);
    }

    #[test]
    fn a_task_that_was_never_healthy_becomes_unhealthy_too() {
        assert_eq!(statuses(&mut Health::default(), 3, &[1, 2, 3]), ["starting", "starting", "unhealthy"]);
    }

    #[test]
    fn a_failure_in_the_start_period_counts_only_after_a_success() {
        let mut health = Health::default();
        (0..9).for_each(|_| health.learn(check(1), 1, true));
        assert_eq!((health.status, health.failing_streak), (HealthStatus::Starting, 0));
        health.learn(check(0), 1, true);
        health.learn(check(1), 1, true);
        assert_eq!(health.status, HealthStatus::Unhealthy);
    }

    #[test]
    fn a_check_without_an_exit_code_has_failed() {
        let mut health = Health::default();
        health.learn(Check { exit_code: None, timed_out: true, ..check(0) }, 1, false);
        assert_eq!(health.status, HealthStatus::Unhealthy);
    }

    #[test]
    fn the_last_checks_are_remembered() {
        let mut health = Health::default();
        (1..=9).for_each(|code| health.learn(check(code), 1, false));
        let codes: Vec<_> = health.log.iter().filter_map(|check| check.exit_code).collect();
        assert_eq!(codes, [5, 6, 7, 8, 9]);
    }
}
