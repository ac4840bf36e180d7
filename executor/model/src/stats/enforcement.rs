//! Whether the slice that a task was launched for limits it at this moment: the host's limits can be lifted while the
//! task runs.

use bowline_cgroup::Layout;
use bowline_spec::unit::slice_path;

use crate::report::SliceEnforcement;
use crate::stats;

/// Why a slice that has no limits holds a task to nothing; `None` if it has, or one that it is in.
pub fn lack(layout: &Layout, slice: &str) -> Option<String> {
    (!stats::is_limited(layout, &slice_path(slice))).then(|| format!("nothing limits {slice}"))
}

/// `recorded` as it is now: limits that are gone hold the task to nothing any more.
pub fn now(layout: &Layout, recorded: &SliceEnforcement) -> SliceEnforcement {
    // systemd may have removed it with the last task in it.
    let is_there = matches!(layout.open(&slice_path(&recorded.slice)), Ok(Some(_)));
    match lack(layout, &recorded.slice).filter(|_| recorded.enforced && is_there) {
        Some(lack) => SliceEnforcement {
            slice: recorded.slice.clone(),
            enforced: false,
            reason: Some(format!("{lack} any more")),
        },
        None => recorded.clone(),
    }
}
