//! Where a cgroup's files say something else than was asked for: anybody with the right may write them, or have systemd
//! do that.

use std::os::fd::BorrowedFd;

use bowline_error::Result;
use bowline_spec::values::IdSet;
use oci_spec::runtime::LinuxResources;
use rustix::param::page_size;
use serde::Serialize;

use crate::layout::Layout;
use crate::limit::{Limit, number};
use crate::systemd::{self, Unit};
use crate::tree::read_at;
use crate::version::Version;
use crate::write::Write;

/// v1's files say a number above this for "no limit".
const UNLIMITED: u64 = 1 << 62;

/// A limit that is not as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The file of the cgroup.
    pub file: String,
    /// The value that was asked for.
    pub asked: String,
    /// The value that the file has.
    pub is: String,
}

impl Layout {
    /// The limits of `resources`, devices aside, that the cgroup at `path` does not have; `unit` is its unit. Of a file
    /// that is not there, nothing is known.
    ///
    /// # Errors
    /// `BadSpec` for limits that no cgroup can have.
    pub fn differences(&self, path: &str, unit: Option<&Unit>, resources: &LinuxResources) -> Result<Vec<Difference>> {
        let Some(cgroup) = self.open(path)? else { return Ok(Vec::new()) };
        let limits = self.limits(resources)?;
        let limits = if unit.is_some() { systemd::kept(limits)? } else { limits };
        let mut asked: Vec<Write> = Vec::new();
        for limit in &limits {
            let unknown = match limit {
                Limit::Device(_) => true,
                // The limit of swap alone depends on the limit of memory at that time.
                Limit::MemoryAndSwapMax { memory, .. } => self.version() == Version::V2 && memory.is_none(),
                _ => false,
            };
            for write in if unknown { Vec::new() } else { self.writes(limit) } {
                asked.retain(|earlier| !(replaces(&write, earlier) || limit.weighs() && earlier.file == "cpu.weight"));
                asked.push(write);
            }
        }
        let differing = asked.iter().filter_map(|write| {
            let dir = self.dir_for(&cgroup, write).ok()?;
            difference(dir, write)
        });
        Ok(differing.collect())
    }
}

/// Whether the later of two writes leaves nothing of the earlier one. A line may have other values beside it.
fn replaces(later: &Write, earlier: &Write) -> bool {
    let keys = |write: &Write| -> Vec<String> {
        let words = write.value.split_whitespace().filter_map(|word| word.split_once('='));
        words.map(|(key, _)| key.to_owned()).collect()
    };
    let later_keys = keys(later);
    later.is_where(earlier) && keys(earlier).iter().all(|key| later_keys.contains(key))
}

fn difference(dir: BorrowedFd<'_>, write: &Write) -> Option<Difference> {
    let instead = write.instead();
    let (write, text) = match (read_at(dir, &write.file), &instead) {
        (Err(_), Some(instead)) => (instead, read_at(dir, &instead.file).ok()?),
        (read, _) => (write, read.ok()?),
    };
    let is = match &write.line {
        Some((key, none)) => {
            let line = text.lines().find(|line| line.split(' ').next() == Some(key));
            line.map_or_else(|| format!("{key} {none}"), str::to_owned)
        }
        None => text.lines().next().unwrap_or_default().trim().to_owned(),
    };
    let differs = !is_met(&write.file, &write.value, &is);
    differs.then(|| Difference { file: write.file.clone(), asked: write.value.clone(), is })
}

/// Whether a file that reads `is` has what `asked` means: a line may have more values, in any order.
pub(crate) fn is_met(file: &str, asked: &str, is: &str) -> bool {
    if asked.contains('=') {
        let has: Vec<&str> = is.split_whitespace().collect();
        return asked.split_whitespace().all(|word| has.contains(&word));
    }
    let asked: Vec<String> = asked.split_whitespace().map(|word| normal(file, word)).collect();
    // The kernel shows a name before the value.
    let named = ["default ", "oom_kill_disable "].into_iter().find_map(|name| is.strip_prefix(name));
    let is = named.filter(|_| asked.len() == 1).unwrap_or(is);
    let is: Vec<String> = is.split_whitespace().map(|word| normal(file, word)).collect();
    // A quota alone leaves the period.
    asked == is || file == "cpu.max" && asked.len() == 1 && asked.first() == is.first()
}

/// The page in which the kernel counts the bytes of a file, and cuts them off; `None` for a file of something else, such
/// as memory.oom.group.
fn counted_in(file: &str) -> Option<u64> {
    let (controller, of) = file.split_once('.')?;
    let is_amount = of.ends_with("_in_bytes") || ["max", "high", "low", "min"].contains(&of.rsplit('.').next()?);
    let page = match controller {
        "memory" => page_size() as u64,
        "hugetlb" => number::memory(of.split('.').next()?.strip_suffix('B')?)?.0?,
        _ => return None,
    };
    Some(page).filter(|page| is_amount && *page > 0)
}

/// One form for all ways to write a value.
fn normal(file: &str, word: &str) -> String {
    let unlimited = "max".to_owned();
    if let Some(unit) = counted_in(file) {
        return match number::memory(word).and_then(|amount| amount.0) {
            Some(bytes) if bytes >= UNLIMITED => unlimited,
            Some(bytes) => (bytes - bytes % unit).to_string(),
            None if word == "-1" => unlimited,
            None => word.to_owned(),
        };
    }
    if file.starts_with("cpuset.") {
        return word.parse::<IdSet>().map_or_else(|_| word.to_owned(), |set| set.to_string());
    }
    number::whole(word).map_or_else(|| word.to_owned(), |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_may_be_written_in_several_ways() {
        let page = page_size() as u64;
        for (file, asked, is) in [
            ("memory.max", "64M", "67108864"),
            ("memory.max", &*format!("{}", page * 3 + 1), &*format!("{}", page * 3)),
            ("memory.limit_in_bytes", "-1", "9223372036854771712"),
            ("cpu.max", "13000", "13000 100000"),
            ("cpu.max", "max 100000", "max 100000"),
            ("cpuset.cpus", "0,1,2", "0-2"),
            ("pids.max", "0x10", "16"),
            ("io.max", "8:0 rbps=1000", "8:0 rbps=1000 wbps=max riops=max wiops=max"),
            ("io.weight", "default 50", "default 50"),
            ("memory.oom.group", "1", "1"),
            ("memory.min", "1k", "0"),
            ("memory.swap.max", "1", "0"),
            ("memory.swappiness", "060", "48"),
            ("hugetlb.2MB.max", "3M", "2097152"),
            ("hugetlb.1GB.limit_in_bytes", "1073741825", "1073741824"),
            ("hugetlb.64KB.rsvd.max", "max", "max"),
            ("memory.oom_control", "1", "oom_kill_disable 1"),
            ("io.bfq.weight", "50", "default 50"),
        ] {
            assert!(is_met(file, asked, is), "{file} {asked} {is}");
        }
        for (file, asked, is) in [
            ("memory.max", "64M", "max"),
            ("cpu.max", "13000 50000", "13000 100000"),
            ("io.max", "8:0 rbps=1000", "8:0 rbps=max wbps=max riops=max wiops=max"),
            ("memory.oom.group", "1", "0"),
            ("memory.min", "8k", "0"),
            ("hugetlb.2MB.max", "4M", "2097152"),
            ("memory.oom_control", "1", "oom_kill_disable 0"),
            ("io.bfq.weight", "50", "default 100"),
            ("cpuset.cpus", "0-1", "0"),
        ] {
            assert!(!is_met(file, asked, is), "{file} {asked} {is}");
        }
    }
}
