//! Turns a recording's readings into curves: counters become rates, and there are no more points than pixels.

use super::Axis;
use crate::ui::record::file::{Recording, Sample};

/// A figure that held for some time, from and to in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stretch {
    pub from: f64,
    pub to: f64,
    pub figure: f64,
}

/// A figure at a moment, in seconds; `None` if it is unknown or does not exist.
pub type Point = (f64, Option<f64>);

/// All curves of a picture. CPU is in percent of one CPU, memory in bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curves {
    pub cpu: Vec<Stretch>,
    /// The share of periods in which the CPU limit throttled the task.
    pub throttled: Vec<Stretch>,
    pub cpu_limit: Vec<Point>,
    pub usage: Vec<Point>,
    pub anon: Vec<Point>,
    pub peak: Vec<Point>,
    pub memory_limit: Vec<Point>,
    pub memory_high: Vec<Point>,
    pub pids: Vec<Point>,
    pub pids_limit: Vec<Point>,
}

impl Curves {
    pub fn of(recording: &Recording, axis: &Axis) -> Curves {
        let samples = thinned(&recording.samples, axis);
        let points = |figure: fn(&Sample) -> Option<u64>| -> Vec<Point> {
            samples.iter().map(|sample| (axis.seconds(sample.read_at), figure(sample).map(|n| n as f64))).collect()
        };
        let mut curves = Curves {
            cpu_limit: samples.iter().map(|sample| (axis.seconds(sample.read_at), cpu_limit(sample))).collect(),
            usage: points(|sample| sample.memory.usage_bytes),
            anon: points(|sample| sample.memory.anon_bytes),
            peak: points(|sample| sample.memory.peak_bytes),
            memory_limit: points(|sample| sample.memory.limit_bytes),
            memory_high: points(|sample| sample.memory.high_bytes),
            pids: points(|sample| sample.pids.current),
            pids_limit: points(|sample| sample.pids.limit),
            ..Curves::default()
        };
        let counters = apart(counters(recording, &samples, axis), axis);
        for pair in counters.windows(2) {
            let [before, now] = pair else { continue };
            let rate = |figure: f64| Stretch { from: before.at, to: now.at, figure };
            let seconds = now.at - before.at;
            if let Some(used) = grown(before.cpu_usec, now.cpu_usec).filter(|_| seconds > 0.0) {
                curves.cpu.push(rate(used as f64 / 1e6 / seconds * 100.0));
            }
            if let (Some(periods @ 1..), Some(throttled)) =
                (grown(before.periods, now.periods), grown(before.throttled, now.throttled))
            {
                curves.throttled.push(rate((throttled as f64 / periods as f64).min(1.0)));
            }
        }
        // The limits and the peak hold until the task's end, which has no reading.
        if let Some(exit) = &recording.exit {
            let end = axis.seconds(exit.exited_at);
            for limit in
                [&mut curves.cpu_limit, &mut curves.memory_limit, &mut curves.memory_high, &mut curves.pids_limit]
            {
                let last = limit.last().and_then(|(_, figure)| *figure);
                limit.extend(last.map(|figure| (end, Some(figure))));
            }
            curves.peak.extend(exit.figures.memory_peak_bytes.map(|peak| (end, Some(peak as f64))));
        }
        curves
    }
}

/// The CPU limit in percent of one CPU.
fn cpu_limit(sample: &Sample) -> Option<f64> {
    let (limit, period) = sample.cpu.limit_usec.zip(sample.cpu.period_usec.filter(|period| *period > 0))?;
    Some(limit as f64 / period as f64 * 100.0)
}

/// Counters at a moment, in seconds.
#[derive(Debug, Clone, Copy)]
struct Counters {
    at: f64,
    cpu_usec: Option<u64>,
    periods: Option<u64>,
    throttled: Option<u64>,
}

/// Returns the counters at the start if that was recorded, at each reading, and at the end.
fn counters(recording: &Recording, samples: &[Sample], axis: &Axis) -> Vec<Counters> {
    let started = recording.header.started_at.filter(|started| axis.seconds(*started) >= 0.0);
    let start = started.map(|started| Counters {
        at: axis.seconds(started),
        cpu_usec: Some(0),
        periods: Some(0),
        throttled: Some(0),
    });
    let of_sample = |sample: &Sample| Counters {
        at: axis.seconds(sample.read_at),
        cpu_usec: sample.cpu.usage_usec,
        periods: sample.cpu.periods,
        throttled: sample.cpu.throttled_periods,
    };
    let end = recording.exit.as_ref().map(|exit| Counters {
        at: axis.seconds(exit.exited_at),
        cpu_usec: exit.figures.cpu_usec,
        periods: exit.figures.cpu_periods,
        throttled: exit.figures.throttled_periods,
    });
    // Include the first reading even if it shares its pixel with others.
    let first =
        recording.samples.first().filter(|first| samples.first().is_some_and(|kept| kept.read_at > first.read_at));
    start.into_iter().chain(first.map(of_sample)).chain(samples.iter().map(of_sample)).chain(end).collect()
}

/// Drops counters that are less than a pixel from the one before: a rate over so short a time cannot be seen.
fn apart(counters: Vec<Counters>, axis: &Axis) -> Vec<Counters> {
    let is_short = |from: &Counters, to: &Counters| axis.x(to.at) - axis.x(from.at) < 1.0;
    let mut kept: Vec<Counters> = Vec::with_capacity(counters.len());
    for counter in counters {
        if let [.., before, last] = &kept[..]
            && is_short(before, last)
        {
            kept.pop();
        }
        kept.push(counter);
    }
    if let [_, .., before, last] = &kept[..]
        && is_short(before, last)
    {
        kept.remove(kept.len() - 2);
    }
    kept
}

fn grown(before: Option<u64>, now: Option<u64>) -> Option<u64> {
    now?.checked_sub(before?)
}

/// Keeps one reading per pixel: the last one, with the maximum of memory usage, anonymous memory and processes.
fn thinned(samples: &[Sample], axis: &Axis) -> Vec<Sample> {
    let mut kept: Vec<Sample> = Vec::new();
    let mut pixel = None;
    for sample in samples {
        let here = axis.x(axis.seconds(sample.read_at)).floor();
        match kept.last_mut() {
            Some(last) if pixel == Some(here) => {
                let (was, now) = (last.clone(), sample.clone());
                *last = now;
                last.memory.usage_bytes = last.memory.usage_bytes.max(was.memory.usage_bytes);
                last.memory.anon_bytes = last.memory.anon_bytes.max(was.memory.anon_bytes);
                last.pids.current = last.pids.current.max(was.pids.current);
            }
            _ => {
                kept.push(sample.clone());
                pixel = Some(here);
            }
        }
    }
    kept
}
