//! Undoes what a dead shim of a sandbox has left: its members, networks, cgroups and units.
//!
//! Must not: start anything new, but the members' poststop hooks.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use bowline_cgroup::{self as cgroup, Layout, Unit};
use bowline_error::{Error, Kind, Result};
use bowline_model::folder::{Folder, StateDir};
use bowline_model::sandbox::{SandboxRecord, overhead_of, place_of};
use bowline_model::watch::is_marked;
use bowline_spec::id::TaskId;
use bowline_spec::place::{OURS, SandboxPlace};
use bowline_sys as sys;
use bowline_sys::proc_stat::{self, ProcStat};

use crate::hostside::copies;
use crate::hostside::memory_min;
use crate::hostside::owners::is_taken;
use crate::hostside::systemd::Systemd;
use crate::hostside::undo::{LeftAlone, TAKEN, is_nobodys, left_alone, misplaced, overheads_of, undo, undo_cgroup};
use crate::view::network;
use crate::view::rootfs::layers;

/// The cgroups of the record that are where bowline makes them for `id`, the sandbox's own and
/// its shim's; and those that are left alone.
pub fn cgroups<'a>(
    record: &'a SandboxRecord,
    layout: &Layout,
    folder: &Folder,
) -> ([Option<&'a String>; 2], LeftAlone) {
    let id = &*folder.name();
    let of_id = id.parse::<TaskId>().ok();
    let place = of_id.as_ref().and_then(|id| place_of(&record.sandbox, id, &record.mark).ok());
    let places = place.iter().flat_map(|place| [Some(place.cgroupfs()), place.systemd().ok()]).flatten();
    let elsewhere = "bowline makes none of this sandbox's there";
    let mut alone = Vec::new();
    let mut keep = |path: &String, why: Option<&str>| {
        alone.extend(why.map(|why| left_alone(path, why)));
        why.is_none()
    };
    let is_there = places.into_iter().any(|place| place == record.cgroup);
    let why = if is_there { is_anothers(record, layout, folder) } else { Some(elsewhere) };
    let own = Some(&record.cgroup).filter(|path| keep(path, why));
    let expected =
        [false, true].map(|by_systemd| overhead_of(&record.sandbox, of_id.as_ref()?, &record.mark, by_systemd).ok()?.0);
    let is_ours = |path: &String| {
        overheads_of(id, &record.mark).contains(path) || expected.iter().flatten().any(|its| its == path)
    };
    let why = |path: &String| match is_ours(path) {
        true => copies::is_elsewhere(folder, id, &record.cgroup).then_some(TAKEN),
        false => Some(elsewhere),
    };
    let overhead = record.overhead.as_ref().filter(|path| keep(path, why(path)));
    ([own, overhead], alone)
}

/// Why the cgroup that is at the place of the record in `folder`, if any, is not taken for the sandbox's.
fn is_anothers(record: &SandboxRecord, layout: &Layout, folder: &Folder) -> Option<&'static str> {
    let is_elsewhere = || copies::is_elsewhere(folder, &folder.name(), &record.cgroup);
    let is_taken = || record.identity.is_some() && is_taken(layout, folder, &record.cgroup) || is_elsewhere();
    record.is_anothers(layout).or_else(|| is_taken().then_some(TAKEN))
}

/// The process that a record names as the one that holds the pid namespace, if it is none that the sandbox's shim has started.
pub(crate) fn misnamed_pause(record: &SandboxRecord, id: &TaskId) -> Result<Option<i32>> {
    // One that ends has no environment any more.
    let lives =
        |pid: i32| proc_stat::read(pid).is_some_and(|stat| ProcStat::parse(&stat).is_some_and(|stat| !stat.ends()));
    Ok(record.pause()?.map(|(pid, _)| pid).filter(|pid| !is_marked(*pid, id.as_str()) && lives(*pid)))
}

/// The cgroups of a sandbox that may be ended.
#[derive(Debug, Default)]
struct Places {
    own: Vec<String>,
    overheads: Vec<String>,
    units: Vec<Unit>,
}

impl Places {
    /// The cgroups that the record names.
    fn of_record(layout: &Layout, record: &SandboxRecord, folder: &Folder) -> (Places, LeftAlone) {
        let ([own, overhead], alone) = cgroups(record, layout, folder);
        let units = [(&record.overhead_unit, overhead), (&record.unit, own)].into_iter();
        let units = units.filter_map(|(unit, path)| unit.as_ref().filter(|unit| Some(&unit.path()) == path));
        let units = units.cloned().collect();
        let list = |path: Option<&String>| path.into_iter().cloned().collect();
        (Places { own: list(own), overheads: list(overhead), units }, alone)
    }

    /// The cgroups in all places where bowline makes them, for a damaged record; not those with
    /// which a living shim, of another state folder, has to do.
    fn of_id(layout: &Layout, folder: &Folder, id: &TaskId) -> (Places, LeftAlone) {
        let mark = folder.mark();
        let place = SandboxPlace::marked(OURS, id.as_str(), &mark).ok();
        let slice = place.as_ref().and_then(|place| Unit::of_sandbox(place).ok());
        let own = place.iter().map(SandboxPlace::cgroupfs).chain(slice.as_ref().map(Unit::path));
        let mut places =
            Places { own: own.collect(), overheads: overheads_of(id, &mark), units: slice.into_iter().collect() };
        let mut alone = Vec::new();
        for paths in [&mut places.own, &mut places.overheads] {
            paths.retain(|path| {
                let there = matches!(layout.open(path), Ok(Some(_)));
                let nobodys = there && is_nobodys(layout, folder, path);
                if there && !nobodys {
                    alone.push(left_alone(path, "a sandbox that lives has the same name"));
                }
                nobodys
            });
        }
        places.units.retain(|unit| places.own.contains(&unit.path()));
        (places, alone)
    }
}

/// What undoing a sandbox has come to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Undone {
    /// The helpers that were moved to the root cgroup, as theirs is gone.
    pub moved: Vec<i32>,
    /// Left alone: it did not match the record.
    pub alone: LeftAlone,
}

/// Undoes what a sandbox whose shim died has left: its members, its networks, its cgroups. Blocks;
/// the caller removes the folders. Does nothing for a sandbox that was taken down. If the record is
/// damaged, looks for the cgroups where bowline makes them.
///
/// # Errors
/// The first error; everything is tried. `Damaged` if the record of what plugins must undo cannot be read. `WrongState`,
/// with nothing changed, for a sandbox whose processes cannot be seen from here: see `liveness`.
pub fn undo_sandbox(state: &StateDir, id: &TaskId, systemd: &Systemd) -> Result<Undone> {
    let folder = state.folder(id);
    if let Some(alone) = misplaced(&folder)? {
        return Ok(Undone { alone, ..Undone::default() });
    }
    let record = match folder.sandbox() {
        Err(error) if error.kind() == Kind::Damaged => None,
        record => Some(record?.ok_or_else(|| Error::new(Kind::NotFound, format!("there is no sandbox named {id}")))?),
    };
    if record.as_ref().is_some_and(|record| record.taken_down) {
        return Ok(Undone::default());
    }
    let mut first = None;
    let mut keep = |done: Result<()>| {
        if let Err(error) = done {
            first.get_or_insert(error);
        }
    };
    let members: Vec<Folder> = state.members(id)?.iter().map(|member| state.folder(member)).collect();
    let what = || format!("sandbox {id} cannot be removed");
    if let Some(record) = &record {
        record.check_namespace(&members, what)?;
    }
    let mut layout = cgroup::detect()?;
    if let Some(record) = &record {
        record.check_seen(&layout, &members, what)?;
        layout.keep_found(&record.cgroup, &record.parents_made);
    }
    if let Some(cut_short) = record.as_ref().filter(|record| record.is_not_made_yet()) {
        // The cgroup may have been made; another's has processes, or its own limits, and stays.
        let _ = layout.remove_unused(&cut_short.cgroup);
    }
    let found = record.as_ref().map(|record| Places::of_record(&layout, record, &folder));
    let (places, mut alone) = found.unwrap_or_else(|| Places::of_id(&layout, &folder, id));
    if record.is_none() && !alone.is_empty() {
        let message = format!("what lives may be of sandbox {id}, whose record is damaged: {}", alone.join("; "));
        let hint = format!("end what lives there if it is of the sandbox; if not, remove {}", folder.path().display());
        keep(Err(Error::new(Kind::WrongState, message).hint(hint)));
    }
    for path in &places.own {
        if let Ok(Some(cgroup)) = layout.open(path) {
            // The whole sandbox may be frozen, and on v1 a frozen process does not die.
            let _ = layout.freeze(&cgroup, false);
        }
    }
    for member in &members {
        keep(undo(member, systemd).map(|more| alone.extend(more)));
    }
    let timeout = record.as_ref().map(|record| record.sandbox.network.plugin_timeout()).unwrap_or_default();
    let networks = network::del(folder.path(), timeout);
    keep(networks.map_err(|error| folder.hinted(error, "sandbox rm")));
    keep(layers::unmount_blocking(&folder.shm()));
    let recorded = |record: &SandboxRecord| match misnamed_pause(record, id)? {
        None => record.pause(),
        Some(_) => Ok(None),
    };
    let pause = match record.as_ref().map_or(Ok(None), recorded) {
        Ok(Some(pause)) => vec![pause],
        other => {
            keep(other.map(drop));
            places.overheads.iter().flat_map(|path| marked(&layout, path, id)).collect()
        }
    };
    pause.iter().for_each(|pause| keep(end(pause)));
    let mut moved = Vec::new();
    for path in &places.overheads {
        keep(let_go(&layout, path).map(|more| moved.extend(more)));
    }
    for path in places.overheads.iter().chain(&places.own) {
        keep(undo_cgroup(&layout, &folder, path, None));
    }
    if let Some(record) = record.filter(|record| places.own.contains(&record.cgroup)) {
        layout.remove_parents_made(&record.cgroup, &record.parents_made);
    }
    for unit in &places.units {
        keep(systemd.stop(unit));
    }
    for path in &places.own {
        memory_min::settle(&layout, systemd, path);
    }
    first.map_or(Ok(Undone { moved, alone }), Err)
}

/// How long a process that was killed may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Kills the pause process, and waits until it has ended.
fn end((pid, pidfd): &(i32, OwnedFd)) -> Result<()> {
    // ESRCH: it has just ended.
    let _ = sys::pidfd_send_signal(pidfd.as_fd(), libc::SIGKILL);
    if cgroup::has_ended(pidfd, ENDS_WITHIN) {
        return Ok(());
    }
    Err(Error::new(Kind::Internal, format!("process {pid}, which holds a pid namespace, does not end")))
}

/// The processes in the overhead cgroup that the sandbox's shim has started.
fn marked(layout: &Layout, overhead: &str, id: &TaskId) -> Vec<(i32, OwnedFd)> {
    let Ok(Some(cgroup)) = layout.open(overhead) else { return Vec::new() };
    let pids = layout.processes_at(overhead).into_iter().filter(|pid| is_marked(*pid, id.as_str()));
    pids.filter_map(|pid| Some((pid, layout.member(&cgroup, pid)?))).collect()
}

/// Gives up what plugins should undo for the sandbox, if the record of that is damaged; returns a sentence about it.
///
/// # Errors
/// `Internal` if the damaged record cannot be removed.
pub fn give_up_damaged_networks(folder: &Folder) -> Result<Option<String>> {
    let Some(damage) = network::give_up_damaged(folder.path())? else { return Ok(None) };
    Ok(Some(format!(
        "{damage}: what plugins have kept for {}, such as its addresses, is not given back",
        folder.name()
    )))
}

/// Moves helpers that were charged to the overhead cgroup to the root: it is not for us to kill
/// them, and the shim's own processes have ended with it. Returns those that were moved.
fn let_go(layout: &Layout, overhead: &str) -> Result<Vec<i32>> {
    let mut helpers = layout.processes_at(overhead);
    let gone = layout.place("/", &helpers)?;
    helpers.retain(|pid| !gone.contains(pid));
    Ok(helpers)
}
