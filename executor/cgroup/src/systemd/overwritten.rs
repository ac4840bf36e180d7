//! Files of v2 that systemd writes with every change of a unit, and of which some systemd cannot be told while the unit
//! runs.
//!
//! ```text
//!   read ─► systemd applies a change, and writes its defaults ─► put back
//! ```
//!
//! systemd has `OOMPolicy=` for `memory.oom.group`, when a scope is made; an older one has nothing for `cpu.idle`, and
//! before 256 nothing for `memory.zswap.writeback`. Source: cgroup_context_apply() of systemd 257.

use std::os::fd::BorrowedFd;

use crate::tree::{read_at, write_at};

const FILES: [&str; 4] = ["memory.oom.group", "memory.zswap.writeback", "cpu.idle", "io.bfq.weight"];

/// Whether systemd may overwrite this file of a unit, because it does not know the value.
pub fn is_overwritten(file: &str) -> bool {
    FILES.contains(&file)
}

/// The texts of these files of one cgroup, as they were.
#[derive(Debug, Default)]
pub struct Overwritten(Vec<(&'static str, String)>);

impl Overwritten {
    /// Reads what of these files the cgroup `dir` has, but for those that `are_written` anyway.
    pub fn read(dir: BorrowedFd<'_>, are_written: impl Fn(&str) -> bool) -> Overwritten {
        let kept = FILES.into_iter().filter(|file| !are_written(file));
        Overwritten(kept.filter_map(|file| Some((file, read_at(dir, file).ok()?))).collect())
    }

    /// Writes what has changed since.
    pub fn put_back(&self, dir: BorrowedFd<'_>) {
        for (file, was) in &self.0 {
            let now = read_at(dir, file).unwrap_or_default();
            for line in was.lines().filter(|line| !now.lines().any(|other| other == *line)) {
                // BFQ's weight for all devices is read with a word before it, and written without.
                let value = line.strip_prefix("default ").unwrap_or(line);
                if let Err(errno) = write_at(dir, file, value) {
                    tracing::error!(%errno, file, value, "what systemd has written over could not be put back");
                }
            }
        }
    }
}
