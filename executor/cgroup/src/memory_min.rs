//! The memory that is never reclaimed from the cgroups of all sandboxes together.
//!
//! ```text
//!   memory.min of a sandbox changes, or the sandbox goes ─► the sum over all of them ─► memory.min of their parent
//! ```
//!
//! On v2 the kernel honours a cgroup's memory.min only as far as its parent's reaches, so that a sandbox alone would
//! have none. The kubelet does the same for its cgroups above pods. Only the cgroup that bowline has above its
//! sandboxes is changed. Blocks while another shim does the same.

use std::os::fd::AsFd as _;

use bowline_error::{Doing, Kind, Result};
use bowline_spec::place::OURS;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};

use crate::layout::Layout;
use crate::limit::Limit;
use crate::systemd::{Property, Unit};
use crate::tree::read_at;
use crate::values::Amount;

const FILE: &str = "memory.min";

impl Layout {
    /// Gives the parent of the sandbox's cgroup at `path` as much memory.min as all cgroups below it have. Does
    /// nothing on v1, and where the parent is not bowline's or has gone.
    ///
    /// # Errors
    /// What the kernel or systemd refuses.
    pub fn settle_memory_min(&self, path: &str, tell: impl Fn(&Unit, Vec<Property>) -> Result<()>) -> Result<()> {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let ours = [format!("/{OURS}"), format!("/{OURS}.slice")].iter().any(|path| path == parent);
        let hierarchy = self.index("memory").map(|index| &self.hierarchies[index]);
        let Some(hierarchy) = hierarchy.filter(|hierarchy| hierarchy.unified && ours) else { return Ok(()) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // It goes with the last sandbox.
        let Ok(dir) = openat(hierarchy.top(), &parent[1..], flags, Mode::empty()) else { return Ok(()) };
        // Of two sums at the same time the older must not be written last.
        flock(&dir, FlockOperation::LockExclusive).doing(Kind::Internal, || format!("cannot lock cgroup {parent}"))?;
        let min = |file: &str| read_at(dir.as_fd(), file).ok().map(|text| text.trim().parse().unwrap_or(u64::MAX));
        let below = hierarchy.children(parent).into_iter().filter_map(|name| min(&format!("{name}/{FILE}")));
        let sum = below.fold(0, u64::saturating_add);
        if min(FILE).is_none_or(|now| now == sum) {
            return Ok(());
        }
        let cgroup = match Unit::of_path(parent) {
            Some(unit) => Some(self.adopt(&unit)?),
            None => self.open(parent)?,
        };
        let limit = Limit::MemoryMin(Amount(Some(sum)));
        cgroup.map_or(Ok(()), |cgroup| self.change_to(&cgroup, &[limit], Vec::new(), tell))
    }
}
