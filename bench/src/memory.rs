//! What a shim that has nothing to do keeps: memory, threads, wake-ups.
//!
//! Read from `/proc` of shims whose task sleeps. Pages that processes share are charged to each by its part (PSS); what is
//! no file's is what one more shim costs.

use std::fs;
use std::time::Duration;

use bowline_model::{Doing, Error, Kind, Result};

use crate::quiet;
use crate::rounds::Rounds;

/// How long a shim is left alone before it counts as idle.
pub const SETTLE: Duration = Duration::from_secs(1);

pub trait Sleepers {
    /// A shim whose task sleeps.
    type One;
    fn hold(&mut self) -> Result<Self::One>;
    /// Runs a command in its task.
    fn exec(&mut self, one: &Self::One) -> Result<()>;
    fn pid(one: &Self::One) -> u32;
    fn end(&mut self, one: Self::One) -> Result<()>;
}

/// What is measured: the name behind a prefix, and the unit.
pub fn names(prefix: &str, most: usize) -> [(String, &'static str); 6] {
    [
        ("idle shim alone, PSS".to_owned(), "KiB"),
        (format!("idle shim among {most}, PSS, mean"), "KiB"),
        ("idle shim, private".to_owned(), "KiB"),
        ("the same after 20 execs".to_owned(), "KiB"),
        ("threads of a shim".to_owned(), "number"),
        ("wake-ups of an idle shim".to_owned(), "a second"),
    ]
    .map(|(name, unit)| (format!("{prefix}{name}"), unit))
}

/// Measures up to `most` shims at once, and idles for `idle`: values in the order of [`names`], and whether the machine was
/// busy.
pub fn measure<S: Sleepers>(rounds: &Rounds, shims: &mut S, most: usize, idle: Duration) -> Result<([f64; 6], bool)> {
    // The tasks end outside: the kernel then frees what they had, which keeps it busy.
    let ((values, all), busy) = quiet::watched(|| {
        let first = shims.hold()?;
        std::thread::sleep(SETTLE);
        let pid = S::pid(&first);
        let alone = proportional(pid)?;
        let mut all = vec![first];
        while all.len() < most {
            rounds.go_on()?;
            all.push(shims.hold()?);
        }
        std::thread::sleep(SETTLE);
        let mut sum = 0.0;
        for one in &all {
            sum += proportional(S::pid(one))?;
        }
        let together = sum / all.len() as f64;
        let before = private(pid)?;
        for _ in 0..20 {
            rounds.go_on()?;
            shims.exec(&all[0])?;
        }
        std::thread::sleep(SETTLE);
        let after = private(pid)?;
        let threads = kernel_number(&format!("/proc/{pid}/status"), "Threads:")?;
        let begin = switches(pid)?;
        std::thread::sleep(idle);
        let wakeups = (switches(pid)? - begin).max(0.0) / idle.as_secs_f64();
        Ok(([alone, together, before, after, threads, wakeups], all))
    })?;
    all.into_iter().try_for_each(|one| shims.end(one))?;
    Ok((values, busy))
}

/// PSS, in KiB.
pub fn proportional(pid: u32) -> Result<f64> {
    kernel_number(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

/// What is no file's, in KiB. Pages of the program are private or not by who else happens to have them mapped.
pub fn private(pid: u32) -> Result<f64> {
    kernel_number(&format!("/proc/{pid}/smaps_rollup"), "Anonymous:")
}

/// How often any of its threads was given the processor: each is a wake-up, or
/// an interruption.
fn switches(pid: u32) -> Result<f64> {
    let folder = format!("/proc/{pid}/task");
    let mut sum = 0.0;
    for thread in fs::read_dir(&folder).doing(Kind::Internal, || format!("cannot read {folder}"))?.flatten() {
        let path = format!("{}/status", thread.path().display());
        sum += kernel_number(&path, "voluntary_ctxt_switches:")?;
        sum += kernel_number(&path, "nonvoluntary_ctxt_switches:")?;
    }
    Ok(sum)
}

/// The number behind `key` in a file of `/proc`.
pub fn kernel_number(path: &str, key: &str) -> Result<f64> {
    let text = fs::read_to_string(path).doing(Kind::Internal, || format!("cannot read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| Error::new(Kind::Internal, format!("{path} has no {key}")))
}
