//! Whether the machine does something else while the bench measures.
//!
//! The bench sleeps for a moment and looks at what the processors did
//! meanwhile: all of it was somebody else's.

use std::time::{Duration, Instant};

use bowline_model::{Doing, Error, Kind, Result};

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
    let watch = Watch::start()?;
    std::thread::sleep(LOOK);
    let (busy, took) = watch.busy()?;
    let processors = busy.as_secs_f64() / took.as_secs_f64();
    Ok((processors > QUIET).then_some(processors))
}

/// What all processors do from a moment on. By what they do not: the kernel measures how long each idles, and only samples,
/// at its ticks, what it does otherwise. Whoever sleeps wakes at a tick.
pub struct Watch {
    begin: Instant,
    idle: Idle,
}

impl Watch {
    pub fn start() -> Result<Watch> {
        Ok(Watch { begin: Instant::now(), idle: idle()? })
    }

    /// The time of all processors together that was not idle since, and how long that is ago.
    pub fn busy(&self) -> Result<(Duration, Duration)> {
        let (now, took) = (idle()?, self.begin.elapsed());
        let ticks = now.ticks.saturating_sub(self.idle.ticks);
        let idle = Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64);
        Ok(((took * now.processors).saturating_sub(idle), took))
    }
}

fn idle() -> Result<Idle> {
    let path = "/proc/stat";
    let text = std::fs::read_to_string(path).doing(Kind::Internal, || format!("cannot read {path}"))?;
    Idle::of(&text).ok_or_else(|| Error::new(Kind::Internal, format!("{path} does not begin as it should")))
}

#[derive(Debug, PartialEq)]
struct Idle {
    processors: u32,
    /// That all of them were idle, or waited for a disk, since the machine was started.
    ticks: u64,
}

impl Idle {
    /// By the text of /proc/stat (proc_stat(5)). Of a virtual machine the time that its host took is not idle.
    fn of(text: &str) -> Option<Idle> {
        let mut lines = text.lines();
        let fields: Vec<u64> = lines.next()?.strip_prefix("cpu ")?.split_whitespace().flat_map(str::parse).collect();
        let [_user, _nice, _system, idle, iowait, ..] = fields[..] else { return None };
        let processors = lines.take_while(|line| line.starts_with("cpu")).count();
        Some(Idle { processors: u32::try_from(processors).ok()?, ticks: idle + iowait })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_that_of_all_processors() {
        let text = "cpu  1 2 4 1000 2000 8 16 32 64 128\ncpu0 1 1 2 500 1000\ncpu1 0 1 2 500 1000\nintr 1\n";
        assert_eq!(Idle::of(text), Some(Idle { processors: 2, ticks: 3000 }));
        assert_eq!(Idle::of("cpu0 1 2 4 8 16\n"), None);
    }
}
