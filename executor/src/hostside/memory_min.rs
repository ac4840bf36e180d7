//! Keeps memory.min of the cgroup above all sandboxes up to date: see `bowline_cgroup`'s `memory_min`.
//!
//! A failure is logged, and harms no sandbox. Blocks.

use bowline_cgroup::Layout;

use crate::hostside::systemd::Systemd;

/// Has the cgroup above the sandbox's at `path` spare what all sandboxes spare together.
pub fn settle(layout: &Layout, systemd: &Systemd, path: &str) {
    let settled = layout.settle_memory_min(path, |unit, properties| systemd.change(unit, properties));
    if let Err(error) = settled {
        tracing::warn!(%error, "memory.min of sandboxes may not be what the kernel keeps for them");
    }
}
