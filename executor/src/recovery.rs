//! What undoes a shim that died: its processes, cgroups and units.
//!
//! Must not: start anything new.

use std::path::Path;

use crate::bundle;
use crate::cgroup::{self, Layout};
use crate::error::Result;
use crate::folder::{Folder, died_with_shim};
use crate::hooks;
use crate::report::ExitReport;
use crate::rootfs::layers;
use crate::systemd::Systemd;

/// Ends and removes what a shim that died has left: processes, then cgroups.
/// Blocks until the processes are gone.
///
/// Mounts and namespaces go with the processes; the folder is the caller's.
pub fn undo(folder: &Folder, systemd: &Systemd) -> Result<()> {
    let layout = cgroup::detect()?;
    // Without a record no task was launched.
    let record = folder.record()?;
    let mut first = None;
    for path in record.iter().flat_map(|r| [Some(&r.cgroup), r.overhead.as_ref()]).flatten() {
        if let Err(error) = undo_cgroup(&layout, path) {
            first.get_or_insert(error);
        }
    }
    if let Some(record) = &record {
        layout.remove_parents_made(&record.cgroup, &record.parents_made);
    }
    for unit in record.iter().flat_map(|record| &record.unit).flat_map(|unit| [Some(unit.clone()), unit.of_shim_too()])
    {
        // A folder that we have removed, systemd is not told of: it is to ask.
        if let Some(Err(error)) = unit.as_ref().map(|unit| systemd.stop(unit)) {
            tracing::warn!(%error, "a unit may be left behind");
        }
    }
    layout.remove_empty(&cgroup::of_sandbox(&folder.name()));
    first.map_or(Ok(()), Err)
}

/// The same of a manager's bundle, with its poststop hooks, and the mounts that
/// its root is made of.
/// Tells what is known of the task: init's pid, and how it ended.
pub fn undo_bundle(path: &Path, systemd: &Systemd) -> Result<(Option<i32>, ExitReport)> {
    let folder = Folder::at(path);
    let record = folder.record();
    // None is there of what was removed properly, as nearly always.
    let undone = if matches!(record, Ok(None)) { Ok(()) } else { undo(&folder, systemd) };
    // Managers name the folder after the container.
    if let Ok(Some(_)) = &record
        && let Err(error) = hooks::run_poststop(&folder.name(), path)
    {
        tracing::warn!(%error, "a hook failed");
    }
    let unmounted = layers::unmount_blocking(&bundle::root(path));
    let record = record?;
    let exit = folder.exit()?.unwrap_or_else(|| died_with_shim(record.as_ref()));
    undone.and(unmounted)?;
    Ok((record.and_then(|record| record.pid), exit))
}

/// What cannot be ended is moved to a parent: its folder can then go.
pub(crate) fn undo_cgroup(layout: &Layout, path: &str) -> Result<()> {
    let destroyed = layout.destroy(path, None)?;
    if !destroyed.moved.is_empty() {
        tracing::warn!(path, pids = ?destroyed.moved, "processes did not end, and were moved to a parent cgroup");
    }
    Ok(())
}
