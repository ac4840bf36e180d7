//! Bringing a task down: which signal, how long to wait, when to kill.
//!
//!   Stop ─► signal init ─► [grace over] ─► kill cgroup ─► reaped ─► drain output
//!
//! Decides only; `supervise` keeps the clock and carries the answer out.
//! Must not: sleep, read the clock, open files, log.

use std::time::Duration;

use bowline_spec::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::clock::Moment;

/// How long output may take to drain once its writers are gone, counted from the last byte that a reader took:
/// containerd waits for the same time in Delete.
pub const DRAIN: Duration = Duration::from_secs(10);

/// A shutdown that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopPlan {
    /// The signal that init is sent first.
    pub signal: Signal,
    /// When everything left is killed.
    pub kill_at: Moment,
}

impl StopPlan {
    /// A plan that sends `signal` now, and SIGKILL to all processes after `grace`.
    pub fn new(signal: Signal, grace: Duration, now: Moment) -> StopPlan {
        StopPlan { signal, kill_at: now.after(grace) }
    }

    /// The plan after a second request: it may shorten the wait, never lengthen it.
    pub fn shortened_by(self, other: StopPlan) -> StopPlan {
        StopPlan { kill_at: self.kill_at.min(other.kill_at), ..self }
    }

    /// Whether the plan leaves no time for a graceful end.
    pub fn kills_at_once(&self, now: Moment) -> bool {
        self.kill_at <= now || self.signal == Signal::KILL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(grace_ms: u64, now: Moment) -> StopPlan {
        StopPlan::new(Signal::TERM, Duration::from_millis(grace_ms), now)
    }

    #[test]
    fn a_second_stop_shortens_and_never_lengthens() {
        let now = Moment::now();
        let first = plan(5_000, now);
        assert_eq!(first.shortened_by(plan(100, now)).kill_at, plan(100, now).kill_at);
        assert_eq!(first.shortened_by(plan(60_000, now)), first);
    }

    #[test]
    fn grace_zero_kills_at_once_and_an_endless_grace_does_not_overflow() {
        let now = Moment::now();
        assert!(plan(0, now).kills_at_once(now));
        assert!(!plan(1, now).kills_at_once(now));
        assert!(StopPlan::new(Signal::TERM, Duration::MAX, now).kill_at > now);
    }
}
