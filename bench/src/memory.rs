//! What a shim that has nothing to do keeps: memory, threads, wake-ups.
//!
//! Read from `/proc` of shims whose task sleeps. Pages that processes share are
//! charged to each by its part (PSS); private ones are what one more shim costs.

use std::fs;
use std::time::Duration;

use bowline_executor::{Doing, Error, Kind, Result};

use crate::shim::{Shims, Up};
use crate::table::Figure;

/// How long a shim is left alone before it counts as idle.
const SETTLE: Duration = Duration::from_secs(1);

/// Measures up to `most` shims at once, and idles for `idle`.
pub fn measure(shims: &mut Shims, description: &str, most: usize, idle: Duration) -> Result<Vec<Figure>> {
    // A page of a file that is not on disk yet counts as private.
    rustix::fs::sync();
    let first = shims.hold(description)?;
    std::thread::sleep(SETTLE);
    let figure = |name: &str, value: f64, unit| Figure { name: name.to_owned(), value, unit };
    let alone = figure("idle shim alone, PSS", proportional(&first)?, "KiB");
    let mut all = vec![first];
    while all.len() < most {
        all.push(shims.hold(description)?);
    }
    std::thread::sleep(SETTLE);
    let mut sum = 0.0;
    for up in &all {
        sum += proportional(up)?;
    }
    let together = figure(&format!("idle shim among {most}, PSS, mean"), sum / all.len() as f64, "KiB");
    let up = &all[0];
    let before = figure("idle shim, private", private(up)?, "KiB");
    for _ in 0..20 {
        shims.exec(up)?;
    }
    std::thread::sleep(SETTLE);
    let after = figure("the same after 20 execs", private(up)?, "KiB");
    let threads = figure("threads of a shim", kernel_number(up, "status", "Threads:")?, "number");
    let begin = switches(up)?;
    std::thread::sleep(idle);
    let wakeups = (switches(up)? - begin) / idle.as_secs_f64();
    Ok(vec![alone, together, before, after, threads, figure("wake-ups of an idle shim", wakeups, "a second")])
}

/// PSS, in KiB.
fn proportional(up: &Up) -> Result<f64> {
    kernel_number(up, "smaps_rollup", "Pss:")
}

/// Private_Clean and Private_Dirty, in KiB.
fn private(up: &Up) -> Result<f64> {
    Ok(kernel_number(up, "smaps_rollup", "Private_Clean:")? + kernel_number(up, "smaps_rollup", "Private_Dirty:")?)
}

/// How often it was given the processor: each is a wake-up, or an interruption.
fn switches(up: &Up) -> Result<f64> {
    let voluntary = kernel_number(up, "status", "voluntary_ctxt_switches:")?;
    Ok(voluntary + kernel_number(up, "status", "nonvoluntary_ctxt_switches:")?)
}

/// The number behind `key` in a file of the shim's in `/proc`.
fn kernel_number(up: &Up, file: &str, key: &str) -> Result<f64> {
    let path = format!("/proc/{}/{file}", up.pid());
    let text = fs::read_to_string(&path).doing(Kind::Internal, || format!("cannot read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| Error::new(Kind::Internal, format!("{path} has no {key}")))
}
