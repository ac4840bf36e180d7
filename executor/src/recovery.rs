//! What undoes a shim that died: its processes, cgroups and units.
//!
//! Must not: start anything new.

use std::path::Path;

use bowline_spec::id::TaskId;
use bowline_spec::place::SandboxPlace;

use crate::bundle;
use crate::cgroup::{self, Layout, Unit};
use crate::error::Result;
use crate::folder::{Folder, Record, died_with_shim};
use crate::hooks;
use crate::report::ExitReport;
use crate::rootfs::layers;
use crate::systemd::Systemd;

/// Below what sandboxes' shims and helpers are charged.
pub(crate) const OVERHEAD: &str = "bowline-overhead";

/// What was recorded, and is not what it says it is: it was left alone. A
/// sentence each.
pub type LeftAlone = Vec<String>;

/// Ends and removes what a shim that died has left: processes, then cgroups.
/// Blocks until the processes are gone.
///
/// A record can be edited, or be older than what is there: nothing is touched that
/// is not known to be the task's. Mounts and namespaces go with the processes; the
/// folder is the caller's.
pub fn undo(folder: &Folder, systemd: &Systemd) -> Result<LeftAlone> {
    let layout = cgroup::detect()?;
    // Without a record no task was launched.
    let record = folder.record()?;
    let mut first = None;
    // A launch that was cut short may have made the cgroup that was asked for, or may not have come to that. Its init
    // ends by itself; whoever else is there is a stranger, and stays.
    if let Some(record) = record.as_ref().filter(|record| is_asked_for(folder, record)) {
        let _ = layout.remove_unused(&record.cgroup);
    }
    let (own, alone) = record.as_ref().map(|record| cgroups_of(&layout, folder, record)).unwrap_or_default();
    for path in &own {
        if let Err(error) = undo_cgroup(&layout, path) {
            first.get_or_insert(error);
        }
    }
    if let Some(record) = record.filter(|record| own.contains(&record.cgroup)) {
        layout.remove_parents_made(&record.cgroup, &record.parents_made);
        let unit = record.unit.filter(|unit| unit.path() == record.cgroup);
        for unit in unit.iter().flat_map(|unit| [Some(unit.clone()), unit.of_shim_too()]).flatten() {
            // systemd is not notified when we remove a cgroup.
            if let Err(error) = systemd.stop(&unit) {
                tracing::warn!(%error, "a unit may be left behind");
            }
        }
    }
    layout.remove_empty(&cgroup::of_sandbox(&folder.name()));
    first.map_or(Ok(alone), Err)
}

/// Those cgroups of a record that are the task's, or are gone; and what of it is
/// left alone.
pub(crate) fn cgroups_of(layout: &Layout, folder: &Folder, record: &Record) -> (Vec<String>, LeftAlone) {
    let mut own = Vec::new();
    let mut alone = Vec::new();
    match check(layout, folder, record) {
        Ok(()) => own.push(record.cgroup.clone()),
        Err(why) => alone.push(left_alone(&record.cgroup, why)),
    }
    if let Some(overhead) = &record.overhead {
        match overheads_of(&folder.name()).contains(overhead) {
            true => own.push(overhead.clone()),
            false => alone.push(left_alone(overhead, "no shim of this task is ever there")),
        }
    }
    (own, alone)
}

/// Says that a cgroup is left alone.
pub(crate) fn left_alone(path: &str, why: &str) -> String {
    let said = format!("cgroup {path} is left alone: {why}");
    tracing::warn!("{said}");
    said
}

/// Where the shim of a task or sandbox may be charged.
pub(crate) fn overheads_of(id: &str) -> Vec<String> {
    let beside = SandboxPlace::new(OVERHEAD, id).ok();
    let units = [Unit::of_shim(id).ok(), beside.as_ref().and_then(|place| Unit::of_sandboxs_shim(place).ok())];
    let paths = units.into_iter().flatten().map(|unit| unit.path());
    paths.chain([cgroup::of_sandbox(id) + "/overhead"]).chain(beside.map(|place| place.cgroupfs())).collect()
}

/// Whether the cgroup of a record, where it is there, is the task's; else why it
/// is not taken for that.
fn check(layout: &Layout, folder: &Folder, record: &Record) -> std::result::Result<(), &'static str> {
    let cgroup = match layout.open(&record.cgroup) {
        Ok(Some(cgroup)) => cgroup,
        Ok(None) => return Ok(()),
        Err(_) => return Err("the record has no plain path, or it cannot be opened"),
    };
    match &record.identity {
        Some(identity) if !identity.is_of_this_boot() => Err("the task was of an earlier boot of this host"),
        Some(identity) if !identity.cgroups.is_empty() => {
            let there = layout.files_of(&cgroup);
            let same = there.iter().all(|(mount, file)| identity.cgroups.get(mount) == Some(file));
            if same { Ok(()) } else { Err("it is not the one that the task was started in") }
        }
        // A launch that was cut short, or an older bowline.
        _ if is_its_place(folder, record) => Ok(()),
        _ => Err("the record does not say which cgroup that was, and it is not where bowline makes the task's"),
    }
}

/// Whether nobody but the task would be at the path of its record.
fn is_its_place(folder: &Folder, record: &Record) -> bool {
    let id = folder.name();
    let of_unit = |unit: &Unit| unit.path() == record.cgroup;
    let sandboxes = record.sandbox.iter().map(TaskId::as_str).chain([&*id]);
    let mut places = sandboxes.map(|sandbox| format!("{}/{id}", cgroup::of_sandbox(sandbox)));
    let named = |unit: &&Unit| Unit::of_task(&id, &id).is_ok_and(|own| own.name == unit.name);
    places.any(|place| place == record.cgroup) || record.unit.as_ref().filter(named).is_some_and(of_unit)
}

/// Whether the record is of a launch of this boot that was cut short, and its path what somebody has asked for.
fn is_asked_for(folder: &Folder, record: &Record) -> bool {
    let cut_short =
        record.identity.as_ref().is_some_and(|identity| identity.is_of_this_boot() && identity.cgroups.is_empty());
    let of_unit = |unit: &Unit| record.unit.is_some() && unit.path() == record.cgroup;
    cut_short
        && asked(folder, record).is_some_and(|path| {
            path == record.cgroup || Unit::parse(&path).ok().flatten().as_ref().is_some_and(of_unit)
        })
}

/// The cgroup that somebody has asked for.
fn asked(folder: &Folder, record: &Record) -> Option<String> {
    if let Some(task) = &record.task {
        return task.cgroup.as_ref().map(|path| path.to_string_lossy().into_owned());
    }
    bundle::cgroup_asked_for(folder.path())
}

/// The same of a manager's bundle, with its poststop hooks, and the mounts that
/// its root is made of.
/// Tells what is known of the task: init's pid, and how it ended.
pub fn undo_bundle(path: &Path, systemd: &Systemd) -> Result<(Option<i32>, ExitReport)> {
    let folder = Folder::at(path);
    let record = folder.record();
    // None is there of what was removed properly, as nearly always.
    let undone = if matches!(record, Ok(None)) { Ok(()) } else { undo(&folder, systemd).map(drop) };
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
