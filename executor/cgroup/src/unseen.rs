//! Processes of a cgroup that the caller's pid namespace does not show.
//!
//! A pid namespace shows its own processes and those of the namespaces below it. The unified hierarchy lists any other
//! process of a cgroup as 0, and v1 leaves it out (`cgroup_procs_show`, `pidlist_array_load` in the kernel).

use std::os::unix::fs::MetadataExt as _;

use crate::cgroup::Cgroup;
use crate::layout::Layout;
use crate::tree;
use crate::v1::TASKS;

/// The inode of the first pid namespace, which shows every process: PROC_PID_INIT_INO, since Linux 3.8.
const FIRST: u64 = 0xefff_fffc;

impl Layout {
    /// Whether a process is in the cgroup, or below it, that the caller's pid namespace does not show.
    pub fn hides_processes(&self, cgroup: &Cgroup) -> bool {
        !sees_all() && self.lists_zero(cgroup).unwrap_or_else(|| self.counts_more(cgroup))
    }

    /// `None` where the cgroup is not in the unified hierarchy.
    fn lists_zero(&self, cgroup: &Cgroup) -> Option<bool> {
        let mut pids = Vec::new();
        tree::collect_processes(cgroup.dir(self.unified()?)?, &mut pids);
        Some(pids.contains(&0))
    }

    /// Whether the kernel counts more threads than it lists. It also counts an ended one until that is reaped.
    fn counts_more(&self, cgroup: &Cgroup) -> bool {
        let counted = self.read(cgroup, "pids", "pids.current").and_then(|text| text.trim().parse::<usize>().ok());
        let mut threads = Vec::new();
        if let Some(dir) = self.index("pids").and_then(|index| cgroup.dir(index)) {
            tree::collect(dir, TASKS, &mut threads);
        }
        counted.is_some_and(|counted| counted > threads.len())
    }
}

/// Whether the caller's pid namespace shows every process.
pub fn sees_all() -> bool {
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|own| own.ino() == FIRST)
}
