//! The values that files had before a change, to be put back where the change fails.

use std::os::fd::BorrowedFd;

use crate::cgroup::Cgroup;
use crate::layout::Layout;
use crate::limit::Limit;
use crate::limit::file::of_file;
use crate::tree::{read_at, write_at};
use crate::v2;
use crate::values::IoWeight;
use crate::write::Write;

/// The first value of each file, or of a line of it, in the order of the changes.
#[derive(Debug, Default)]
pub struct OldValues {
    writes: Vec<Write>,
    /// For systemd alone, which hands down the files of these and then writes them.
    defaults: Vec<Limit>,
}

impl OldValues {
    /// Reads the value that `write` is about to change, unless it is known.
    pub fn remember(&mut self, dir: BorrowedFd<'_>, write: &Write) {
        if !self.writes.iter().any(|other| other.is_where(write)) {
            self.writes.extend(now(dir, write));
        }
    }

    /// Like [`OldValues::remember`], also for a file that appears only once systemd sets its limit.
    pub fn remember_or_default(&mut self, dir: BorrowedFd<'_>, write: &Write) {
        self.remember(dir, write);
        if !self.writes.iter().any(|other| other.is_where(write)) {
            self.defaults.extend(v2::default_of(write).into_iter().flat_map(|value| limits_in(&write.file, &value)));
        }
    }

    /// The values as limits of v2, for systemd.
    pub fn limits(&self) -> Vec<Limit> {
        let old = self.writes.iter().flat_map(|was| limits_in(&was.file, &was.value));
        old.chain(self.defaults.iter().cloned()).collect()
    }
}

/// The limits in a file, of those that systemd can be told: that a device has no weight of its own, it cannot.
fn limits_in(file: &str, value: &str) -> Vec<Limit> {
    let limits = match (file, value) {
        ("cpuset.cpus", "") => vec![Limit::Cpus("".into())],
        ("cpuset.mems", "") => vec![Limit::MemoryNodes("".into())],
        _ => of_file(file, value),
    };
    let told = |limit| match v2::without_weight(&limit) {
        Some(device) => Limit::IoWeight { device: Some(device), weight: IoWeight::Io(v2::DEFAULT_WEIGHT) },
        None => limit,
    };
    limits.into_iter().map(told).collect()
}

impl Layout {
    /// Puts the old values back, the last first, in as many rounds as pairs of files may need.
    pub(crate) fn put_back(&self, cgroup: &Cgroup, mut old: OldValues) {
        old.writes.reverse();
        let is = |write: &Write| self.dir_for(cgroup, write).is_ok_and(|dir| now(dir, write).as_ref() == Some(write));
        for _ in 0..2 {
            for write in old.writes.iter().filter(|write| !is(write)) {
                if let Ok(dir) = self.dir_for(cgroup, write) {
                    // The check below finds out whether this worked.
                    let _ = write_at(dir, &write.file, &write.value);
                }
            }
        }
        for write in old.writes.iter().filter(|write| !is(write)) {
            tracing::error!(write.file, write.value, "a limit could not be put back");
        }
    }
}

/// The write that undoes `write`: the current value of the file.
fn now(dir: BorrowedFd<'_>, write: &Write) -> Option<Write> {
    let text = read_at(dir, &write.file).ok()?;
    let undo = |value: String| write.with_value(value);
    if let Some((device, none)) = &write.line {
        let now = text.lines().find(|line| line.split(' ').next() == Some(device));
        return Some(undo(now.map_or_else(|| format!("{device} {none}"), str::to_owned)));
    }
    // io.weight has one line for all devices, and then lines for single ones.
    let value = text.lines().next().unwrap_or_default().trim();
    if value.is_empty() {
        // An empty v2 cpuset means the parent's. The file cannot be emptied again, but the same set
        // can be written to it.
        let effective = read_at(dir, &format!("{}.effective", write.file)).ok()?;
        return Some(undo(effective.trim().to_owned()));
    }
    Some(undo(value.to_owned()))
}
