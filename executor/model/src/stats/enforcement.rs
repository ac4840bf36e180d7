//! Whether the slice that a task was launched for limits it at this moment: the host's limits can be set and
//! lifted while the task runs.

use std::path::Path;

use bowline_cgroup::Layout;
use bowline_spec::unit::slice_path;

use crate::report::SliceEnforcement;
use crate::stats;

/// Why a slice that has no limits holds a task to nothing; `None` if it has, or one that it is in.
pub fn lack(layout: &Layout, slice: &str) -> Option<String> {
    (!stats::is_limited(layout, &slice_path(slice))).then(|| format!("nothing limits {slice}"))
}

/// `recorded` as it is now for a task in `cgroup`: the limits of its slice come and go while it runs.
pub fn now(layout: &Layout, recorded: &SliceEnforcement, cgroup: &str) -> SliceEnforcement {
    let path = slice_path(&recorded.slice);
    // systemd may have removed it with the last task in it.
    let is_there = matches!(layout.open(&path), Ok(Some(_)));
    if !is_there || !Path::new(cgroup).starts_with(&path) {
        return recorded.clone();
    }
    let slice = recorded.slice.clone();
    match lack(layout, &slice) {
        None => SliceEnforcement::of(slice),
        Some(lack) => {
            let reason = if recorded.enforced { format!("{lack} any more") } else { lack };
            SliceEnforcement { slice, enforced: false, reason: Some(reason) }
        }
    }
}
