//! Moments that can be written down, of a clock that nobody sets and that does not tell the time of day.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A moment, in nanoseconds of CLOCK_MONOTONIC (clock_gettime(2)). It means the
/// same to every process until the host boots again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment(u64);

impl Moment {
    /// The current moment of CLOCK_MONOTONIC.
    pub fn now() -> Moment {
        Moment(nanoseconds(ClockId::Monotonic))
    }

    /// The moment as a number, which [`Moment::of`] takes back.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The moment that had this number, in this boot.
    pub fn of(number: u64) -> Moment {
        Moment(number)
    }

    /// The moment `span` after this one; the clock's last moment if that is beyond it.
    pub fn after(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The moment `span` before this one; the clock's first moment if that is before it.
    pub fn before(self, span: Duration) -> Moment {
        Moment(self.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long it is until this moment.
    pub fn to_come(self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(Moment::now().0))
    }
}

/// How long after the boot something was, in nanoseconds of CLOCK_BOOTTIME, which counts while the host sleeps too: the
/// clock by which the kernel tells when a process has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SinceBoot(u64);

impl SinceBoot {
    /// A time that never comes, for one that is not known yet.
    pub const NOT_YET: SinceBoot = SinceBoot(u64::MAX);

    /// The current time of CLOCK_BOOTTIME.
    pub fn now() -> SinceBoot {
        SinceBoot(nanoseconds(ClockId::Boottime))
    }

    /// Whether a process that has begun at `started`, in clock ticks since the boot (proc_pid_stat(5)), has begun between
    /// these.
    pub fn include([from, to]: [SinceBoot; 2], started: u64) -> bool {
        let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
        let began = started.saturating_mul(tick);
        began.saturating_add(tick) > from.0 && began <= to.0
    }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_in_order_and_do_not_overflow() {
        let now = Moment::now();
        assert!(now < now.after(Duration::from_nanos(1)));
        assert!(now.after(Duration::MAX) > now.after(Duration::from_secs(3600)));
        assert!(
            now.before(Duration::MAX) < now
                && now.before(Duration::from_nanos(2)).after(Duration::from_nanos(2)) == now
        );
        assert_eq!(now.to_come(), Duration::ZERO);
    }

    #[test]
    fn a_process_is_known_by_when_it_has_begun() {
        let before = SinceBoot::now();
        let mut child = std::process::Command::new("sleep").arg("100").spawn().expect("it runs");
        let between = [before, SinceBoot::now()];
        let started = bowline_sys::proc_stat::started(child.id().cast_signed()).expect("it lives");
        child.kill().and_then(|()| child.wait()).expect("it ends");
        assert!(SinceBoot::include(between, started));
        let second = rustix::param::clock_ticks_per_second();
        assert!(!SinceBoot::include(between, started + second) && !SinceBoot::include(between, started - second));
    }
}
