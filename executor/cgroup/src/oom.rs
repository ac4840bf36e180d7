//! Learns that the OOM killer has killed a process, without polling.
//!
//! v2: `memory.events` is ready with POLLPRI when a count in it has changed
//! (admin-guide/cgroup-v2). v1: the kernel writes to an eventfd registered with the cgroup when
//! memory has run out, which is before any process is killed (admin-guide/cgroup-v1/memory). Both
//! versions count the kills as `oom_kill`.

use std::os::fd::{BorrowedFd, OwnedFd};

use bowline_sys as sys;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::cgroup::Cgroup;
use crate::layout::Layout;
use crate::tree::{read_at, read_fd};
use crate::{v1, v2};

/// A watch on a cgroup's memory.
#[derive(Debug)]
pub struct OomWatch {
    event: AsyncFd<OwnedFd>,
    interest: Interest,
    /// The file that counts the kills, if it is not `event`.
    counter: Option<OwnedFd>,
}

impl Layout {
    /// Watches the memory of a cgroup; `None` where memory is not limited, or the kernel does not report.
    pub fn watch_oom(&self, cgroup: &Cgroup) -> Option<OomWatch> {
        let dir = cgroup.dir(self.index("memory")?)?;
        let watch = if self.is_unified("memory") { unified(dir) } else { v1(dir) };
        watch.inspect_err(|error| tracing::debug!(%error, "running out of memory is told at the end only")).ok()
    }
}

impl Layout {
    /// How many processes of a cgroup were killed so far for lack of memory; `None` where the kernel does not count that.
    /// Keeps no descriptor.
    pub fn oom_kills_now(&self, cgroup: &Cgroup) -> Option<u64> {
        let dir = cgroup.dir(self.index("memory")?)?;
        let file = if self.is_unified("memory") { "memory.events" } else { "memory.oom_control" };
        count_in(&read_at(dir, file).ok()?, "oom_kill")
    }
}

fn unified(dir: BorrowedFd<'_>) -> std::io::Result<OomWatch> {
    let file = v2::open_memory_events(dir)?;
    // A change before the first read would wake the loop once.
    read_fd(&file)?;
    let event = sys::register_fd_for(file, Interest::PRIORITY)?;
    Ok(OomWatch { event, interest: Interest::PRIORITY, counter: None })
}

fn v1(dir: BorrowedFd<'_>) -> std::io::Result<OomWatch> {
    let (event, counter) = v1::register_oom(dir)?;
    let event = sys::register_fd_for(event, Interest::READABLE)?;
    Ok(OomWatch { event, interest: Interest::READABLE, counter: Some(counter) })
}

impl OomWatch {
    /// Returns when memory may have run out since the last call; false when there is nothing to watch any more.
    pub async fn changed(&self) -> bool {
        let Ok(mut ready) = self.event.ready(self.interest).await else { return false };
        ready.clear_ready();
        if self.counter.is_some() {
            // Reading resets the counter to 0, so that later events wake the loop again.
            let _ = rustix::io::read(self.event.get_ref(), &mut [0u8; 8]);
        }
        true
    }

    /// How many processes were killed so far.
    pub fn kills(&self) -> Option<u64> {
        self.count("oom_kill")
    }

    /// The count that the kernel keeps under `name`: on v2 also `high`, how often the cgroup was slowed down.
    pub fn count(&self, name: &str) -> Option<u64> {
        let counter = self.counter.as_ref().unwrap_or(self.event.get_ref());
        count_in(&read_fd(counter).ok()?, name)
    }
}

fn count_in(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}
