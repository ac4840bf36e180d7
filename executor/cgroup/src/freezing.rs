//! Freezing a whole cgroup, which the kernel of v1 does in its own time and may not finish by itself.
//!
//! The v1 freezer loses a process that is forked meanwhile (seen on 6.18): it freezes when the freeze is requested again. So
//! each look requests it, and a cgroup that still does not freeze runs for a moment, as with runc.

use std::time::Duration;

use crate::cgroup::Cgroup;
use crate::layout::Layout;

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
