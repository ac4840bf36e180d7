//! Each process of a task: its CPU time and its memory.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use bowline_cgroup::read_fd;
use bowline_sys::proc_stat::ProcStat;
use rustix::fs::{self, CWD, Mode, OFlags};
use rustix::param::{clock_ticks_per_second, page_size};
use serde::{Deserialize, Serialize};

/// How many `/proc/PID/stat` files stay open; for a task with more processes, the rest are opened
/// each time. The fd limit is often 1024.
const KEPT: usize = 128;

/// A process of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Process {
    /// In the shim's pid namespace.
    pub pid: i32,
    /// The exec's number, if the process is an exec.
    pub exec: Option<u64>,
    /// The process's name: at most 15 bytes, of which those that are no UTF-8 are replaced by U+FFFD.
    pub name: String,
    /// How many threads it has, the first one included.
    pub threads: u64,
    /// CPU time in the program, in µs, at the resolution of the kernel's tick (mostly 10 ms).
    pub user_usec: u64,
    /// CPU time in the kernel, in µs, at the same resolution.
    pub system_usec: u64,
    /// Memory in use, in bytes, including memory shared with other processes.
    pub rss_bytes: u64,
}

/// The open `stat` files of processes that were read before.
#[derive(Debug, Default)]
pub struct Processes(BTreeMap<i32, OwnedFd>);

impl Processes {
    /// Reads each of `pids`, leaving out those that have ended. `exec` returns the number of an exec.
    pub fn read(&mut self, pids: &[i32], exec: impl Fn(i32) -> Option<u64>) -> Vec<Process> {
        self.0.retain(|pid, _| pids.contains(pid));
        let each = pids.iter().filter_map(|pid| {
            let stat = self.stat(*pid)?;
            Some(Process { exec: exec(*pid), ..parse(*pid, &stat)? })
        });
        each.collect()
    }

    fn stat(&mut self, pid: i32) -> Option<String> {
        if let Some(file) = self.0.get(&pid) {
            if let Ok(stat) = read_fd(file) {
                return Some(stat);
            }
            // The open file belongs to a process that has ended; the pid is a new process's now.
            self.0.remove(&pid);
        }
        let path = format!("/proc/{pid}/stat");
        let file = fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let stat = read_fd(&file).ok()?;
        if self.0.len() < KEPT {
            self.0.insert(pid, file);
        }
        Some(stat)
    }
}

fn parse(pid: i32, stat: &str) -> Option<Process> {
    // A process that has ended uses nothing.
    let stat = ProcStat::parse(stat).filter(|stat| !stat.has_ended())?;
    let field = |number| stat.number(number);
    let usec = |ticks: u64| ticks * 1_000_000 / clock_ticks_per_second().max(1);
    Some(Process {
        pid,
        exec: None,
        name: stat.name.to_owned(),
        threads: field(20)?,
        user_usec: usec(field(14)?),
        system_usec: usec(field(15)?),
        rss_bytes: field(24)? * page_size() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_read() {
        let fields = "S 1 2 3 0 -1 4 5 6 7 8 200 100 0 0 20 0 3 0 9 1000 25 0";
        let process = parse(7, &format!("7 (a) S (b c) {fields}")).expect("it is well formed");
        assert_eq!((process.name.as_str(), process.threads), ("a) S (b c", 3));
        let tick = 1_000_000 / clock_ticks_per_second();
        assert_eq!((process.user_usec, process.system_usec), (200 * tick, 100 * tick));
        assert_eq!(process.rss_bytes, 25 * page_size() as u64);
    }

    #[test]
    fn what_is_no_process_is_left_out() {
        for stat in ["", "7 (x", "7 (x) S", "7 (x) Z 1 2 3 0 -1 4 5 6 7 8 200 100 0 0 20 0 3 0 9 1000 25 0"] {
            assert_eq!(parse(7, stat), None, "{stat:?}");
        }
    }
}
