//! Whether the machine does something else while the bench measures.
//!
//! The bench sleeps for a moment and looks at what the processors did
//! meanwhile: all of it was somebody else's.

use std::time::{Duration, Instant};

use bowline_executor::{Doing, Error, Kind, Result};

use crate::say::say;

/// How long it looks: twenty ticks of a clock of 100 Hz for each processor.
const LOOK: Duration = Duration::from_millis(200);
/// What a quiet machine may do: its kernel, and idle daemons.
const QUIET: f64 = 0.25;

/// Does something, and returns whether something else kept the machine busy just before or just after it: what comes and
/// goes in between is seen by the spread.
pub fn watched<T>(act: impl FnOnce() -> Result<T>) -> Result<(T, bool)> {
    let before = others()?;
    let done = act()?;
    let busy = before.or(others()?);
    if let Some(processors) = busy {
        say(&format!("something else keeps {processors:.1} processors busy: what was measured is marked"));
    }
    Ok((done, busy.is_some()))
}

/// How many processors somebody else kept busy just now, if that is more than a
/// quiet machine does.
pub fn others() -> Result<Option<f64>> {
    let (begin, before) = (Instant::now(), busy()?);
    std::thread::sleep(LOOK);
    let processors = (busy()? - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    Ok((processors > QUIET).then_some(processors))
}

/// What all processors have done since the machine was started.
pub fn busy() -> Result<Duration> {
    let path = "/proc/stat";
    let text = std::fs::read_to_string(path).doing(Kind::Internal, || format!("cannot read {path}"))?;
    let ticks = text.lines().next().and_then(ticks);
    let ticks = ticks.ok_or_else(|| Error::new(Kind::Internal, format!("{path} does not begin as it should")))?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// The ticks that were neither idle nor a wait for a disk (proc_stat(5)): of a
/// virtual machine also those that its host took.
fn ticks(line: &str) -> Option<u64> {
    let fields: Vec<u64> = line.strip_prefix("cpu ")?.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = fields[..] else { return None };
    Some(user + nice + system + irq + softirq + steal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_not_busy() {
        assert_eq!(ticks("cpu  1 2 4 1000 2000 8 16 32 64 128"), Some(63));
        assert_eq!(ticks("cpu0 1 2 4"), None);
    }
}
