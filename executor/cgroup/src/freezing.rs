//! Freezing a whole cgroup, which the kernel of v1 does in its own time and may not finish by itself.
//!
//! The v1 freezer loses a process that is forked meanwhile (seen on 6.18): it freezes when the freeze is requested again. So
//! each look requests it, and a cgroup that still does not freeze runs for a moment, as with runc.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cgroup::Cgroup;
use crate::hierarchy::Hierarchy;
use crate::layout::Layout;
use crate::membership::{Membership, UNIFIED};
use crate::tree::open_dir;
use crate::v1::{self, FREEZER};
use crate::v2;

/// How often the freeze is requested before the cgroup runs for a moment.
const LOOKS: u32 = 16;

/// That moment.
const THAW: Duration = Duration::from_millis(10);

/// A freeze under way. v1 reports no end of it: whoever waits looks again and again.
#[derive(Debug, Default)]
pub struct Freezing {
    looks: u32,
}

impl Freezing {
    /// Requests the freeze again. Returns how long to wait before the next look; `None` once all processes are frozen.
    pub fn look(&mut self, layout: &Layout, cgroup: &Cgroup) -> Option<Duration> {
        if layout.is_frozen(cgroup) {
            return None;
        }
        self.looks = (self.looks + 1) % LOOKS;
        let thaw = self.looks == 0 && layout.holds_frozen();
        // Whatever fails here, the bound of the caller ends this.
        let _ = layout.freeze(cgroup, !thaw);
        Some(if thaw { THAW } else { Duration::from_micros(200 << self.looks.min(8)) })
    }
}

impl Layout {
    /// The file by which a process is kept frozen, if it is: of its cgroup or of one above that.
    pub fn frozen_by(&self, pid: i32) -> Option<PathBuf> {
        let process = Membership::of(pid).ok()?;
        let freezes = |hierarchy: &&Hierarchy| hierarchy.unified || hierarchy.controllers.iter().any(|c| c == FREEZER);
        self.hierarchies().iter().filter(freezes).find_map(|hierarchy| {
            let own = process.path(if hierarchy.unified { UNIFIED } else { FREEZER })?;
            own.ancestors().filter_map(|at| at.strip_prefix("/").ok()).find_map(|at| frozen_at(hierarchy, at))
        })
    }
}

/// The file by which the cgroup at `path` is frozen, if it is by itself.
fn frozen_at(hierarchy: &Hierarchy, path: &Path) -> Option<PathBuf> {
    // The root cgroup has an empty path.
    let dir = open_dir(hierarchy.top(), &Path::new(".").join(path)).ok()?;
    let (is_frozen, file) = match hierarchy.unified {
        true => (v2::is_frozen_itself(dir.as_fd()), v2::FREEZE),
        false => (v1::is_frozen_itself(dir.as_fd()), v1::STATE),
    };
    is_frozen.then(|| hierarchy.mount().join(path).join(file))
}
