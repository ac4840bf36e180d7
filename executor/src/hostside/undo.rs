//! Undoes what a dead shim has left: its processes, cgroups and units.
//!
//! ```text
//!   record ─► cgroup of its identity ─► ended, removed
//!      └─ damaged, or of another's ─► bowline's own places for the id ─► of its identity, or nobody's ─► ended, removed
//!                                                  └─ nothing there ─► is the init of the journal alive? ─► an error
//! ```
//!
//! Must not: start anything new, but the task's poststop hooks.

use std::path::Path;
use std::time::Duration;

use bowline_cgroup::{self as cgroup, Cgroup, Layout, Permit, Unit};
use bowline_error::{Error, Kind, Result};
use bowline_model::events::Event;
use bowline_model::folder::{Folder, Lock, RECORD, Record};
use bowline_model::report::ExitReport;
use bowline_spec::id::TaskId;
use bowline_spec::place::{OURS, OVERHEAD, SandboxPlace};
use bowline_sys::proc_stat::{self, ProcStat};
use jiff::Timestamp;

use crate::hostside::copies;
use crate::hostside::owners::{Shims, is_taken};
use crate::hostside::records::readable;
use crate::hostside::systemd::Systemd;
use crate::oci::bundle;
use crate::start::hooks;
use crate::view::mount_points;
use crate::view::network;
use crate::view::rootfs::layers;

/// What was recorded but is not what the record says: it was left alone. So was what a poststop hook that failed should
/// have undone. A sentence each.
pub type LeftAlone = Vec<String>;

/// How much later than its event a process may seem to have begun, because its start is counted in
/// hundredths of a second.
const LATER: Duration = Duration::from_secs(2);

/// Ends and removes what a dead shim has left: processes, then cgroups. Blocks until the processes are gone.
///
/// A record can be edited, be older than what is there, or be damaged: nothing is touched that is
/// not known to be the task's. Mounts and namespaces go with the processes; the caller removes the
/// folder. Where nothing is left, the task's poststop hooks are run.
///
/// # Errors
/// What could not be ended; a process that may be the task's, where nothing says whether it is; `WrongState`, with
/// nothing changed, for a task whose processes cannot be seen from here: see `liveness`.
pub fn undo(folder: &Folder, systemd: &Systemd) -> Result<LeftAlone> {
    if let Some(alone) = misplaced(folder)? {
        return Ok(alone);
    }
    // Without a record no task was launched.
    let (record, damage) = readable(folder)?;
    // A manager's bundle is cleaned up only once, by the manager that has started it.
    let seen = record.as_ref().filter(|_| folder.is_in_state_folder());
    let what = || format!("task {} cannot be removed", folder.name());
    seen.map_or(Ok(()), |record| record.check_namespace(what))?;
    let mut layout = cgroup::detect()?;
    seen.map_or(Ok(()), |record| record.check_seen(&layout, what))?;
    // The sandbox may go on without this member.
    if let Some((above, _)) =
        record.as_ref().filter(|of| of.sandbox.is_some()).and_then(|of| of.cgroup.rsplit_once('/'))
    {
        layout.keep(above);
    }
    if let Some(record) = &record {
        layout.keep_found(&record.cgroup, &record.parents_made);
    }
    let mut first = None;
    // A launch that was cut short may or may not have made the requested cgroup. Its init ends by
    // itself; any other process there is a stranger, and stays.
    if let Some(record) = record.as_ref().filter(|record| is_asked_for(folder, record)) {
        let _ = layout.remove_unused(&record.cgroup);
    }
    let (own, mut alone) = record.as_ref().map(|record| cgroups_of(&layout, folder, record)).unwrap_or_default();
    let is_own = record.as_ref().is_some_and(|record| own.contains(&record.cgroup));
    let found = is_own && record.as_ref().is_some_and(|record| matches!(layout.open(&record.cgroup), Ok(Some(_))));
    for path in &own {
        if let Err(error) = undo_cgroup(&layout, folder, path, None) {
            first.get_or_insert(error);
        }
    }
    if !found && (record.is_some() || damage.is_some()) {
        let places = Places { layout: &layout, folder, record: record.as_ref() };
        match places.undo(systemd, &mut alone) {
            Ok(true) => {}
            Ok(false) => first = first.or(places.may_live_elsewhere(damage).err()),
            Err(error) => first = first.or(Some(error)),
        }
    }
    if let Some(record) = record.as_ref().filter(|_| is_own) {
        layout.remove_parents_made(&record.cgroup, &record.parents_made);
        let unit = record.unit.as_ref().filter(|unit| unit.path() == record.cgroup);
        for unit in unit.into_iter().flat_map(|unit| [Some(unit.clone()), unit.of_shim_too()]).flatten() {
            // systemd is not notified when we remove a cgroup.
            if let Err(error) = systemd.stop(&unit) {
                tracing::warn!(%error, "a unit may be left behind");
            }
        }
    }
    layout.remove_empty(&cgroup::of_sandbox(&folder.name_on_host()));
    // By now nothing of the task uses it.
    let first = first.or(undo_network(folder).err()).or_else(|| lives_on(folder, record.as_ref()?, found));
    if let Some(error) = first {
        return Err(error);
    }
    // A shim that has reported the end may have died before it removed them.
    if let Some(record) = &record {
        mount_points::give_up(folder, record);
    }
    alone.extend(run_poststop_hooks(folder));
    Ok(alone)
}

/// What is left alone of a folder that is a copy, which is all that its record names.
///
/// # Errors
/// One that was moved: nothing else tells what the task had.
pub(crate) fn misplaced(folder: &Folder) -> Result<Option<LeftAlone>> {
    match copies::misplaced(folder) {
        Some(of) if of.is_copy => {
            Ok(Some(vec![format!("what its record names is left alone: {}", of.error.message())]))
        }
        Some(moved) => Err(moved.error),
        None => Ok(None),
    }
}

/// The error for a task whose init, by its record, has outlived the removal of all that is known to be the task's: of its
/// cgroup too, if that was `found`. Somebody may have moved it elsewhere, or have changed the record.
fn lives_on(folder: &Folder, record: &Record, found: bool) -> Option<Error> {
    let (pid, _) = record.pid.zip(record.pid_started).filter(|_| record.runs())?;
    let why = if found { "was not in the task's cgroup" } else { "its cgroup is not known to be the task's" };
    let what = format!("process {pid}, the init of task {} by its record, lives, and {why}", folder.name());
    let file = folder.file(RECORD);
    let hint = match pid {
        2.. => format!(
            "end process {pid} if it is the task's, as `ps -fp {pid}` shows; if it is not, remove `pid` from {}; then try again",
            file.display()
        ),
        _ => format!("remove `pid` from {}, and try again", file.display()),
    };
    Some(Error::new(Kind::WrongState, what).hint(hint))
}

/// Runs the poststop hooks of a task that is gone, unless they have been run. The caller holds the lock of the folder.
/// Returns a sentence about the first that failed.
pub fn run_poststop_hooks(folder: &Folder) -> Option<String> {
    let (record, damage) = readable(folder).ok()?;
    let mut record = record?;
    let poststop = record.poststop.take()?;
    // A stop of a task waits for the hooks as long as for the task. A delete of a container waits for all of them.
    let most = match &record.container {
        Some(_) => hooks::LONGEST * u32::try_from(poststop.hooks.len()).unwrap_or(u32::MAX),
        None => record.task.as_ref().map(|task| task.stop.grace()).unwrap_or_default(),
    };
    let id = folder.name();
    // Before they run, as they outlive this process. The folder may stay, and be removed later.
    if damage.is_none()
        && let Err(error) = folder.write_record(&record)
    {
        tracing::warn!(%error, "the hooks of a task may be run again");
    }
    match hooks::run_recorded(&poststop, most) {
        Ok(true) => None,
        Ok(false) => Some(format!("the poststop hooks of task {id} go on: each is killed at its timeout")),
        Err(error) => {
            let error = hooks::naming_file(error, record.task.as_ref());
            tracing::warn!(%error, "a hook failed");
            Some(format!("what the hooks of task {id} had set up may be left: {error}"))
        }
    }
}

/// Removes the folder of a task that is gone, after its poststop hooks.
///
/// # Errors
/// What cannot be removed.
pub fn remove_folder(folder: &Folder, lock: &Lock) -> Result<Option<String>> {
    let failed = if folder.is_of(lock)? { run_poststop_hooks(folder) } else { None };
    folder.remove_locked(lock).map(|()| failed)
}

/// Removes a task that has ended, whose shim cannot write this report and stays to try again; runs its poststop hooks.
/// Blocks until the shim has left.
///
/// # Errors
/// What the disk refuses: the shim then keeps the report.
pub fn remove_unwritten(folder: &Folder, report: &ExitReport) -> Result<LeftAlone> {
    folder.remove_unwritten(report, run_poststop_hooks).map(|failed| failed.into_iter().collect())
}

/// Undoes the task's own network; nothing where there is none.
fn undo_network(folder: &Folder) -> Result<()> {
    if !folder.is_in_state_folder() {
        // A manager's bundle.
        return Ok(());
    }
    network::del(folder.path(), network::LONGEST).map_err(|error| folder.hinted(error, "rm"))
}

/// Like [`undo`], for a task whose report is written: its shim has nearly always removed the rest
/// too, unless it died in between.
pub fn undo_rest(folder: &Folder, systemd: impl FnOnce() -> Result<Systemd>) -> Result<LeftAlone> {
    let (record, damage) = readable(folder)?;
    let Some(record) = record.filter(|_| damage.is_none()) else {
        return if damage.is_some() { undo(folder, &systemd()?) } else { Ok(Vec::new()) };
    };
    if record.network().has_plugins() {
        undo_network(folder)?;
    }
    let layout = cgroup::detect()?;
    let sandbox = cgroup::of_sandbox(&folder.name_on_host());
    let mut paths = [Some(&record.cgroup), record.overhead.as_ref(), Some(&sandbox)].into_iter().flatten();
    // A cgroup that cannot be opened counts as existing.
    if paths.all(|path| matches!(layout.open(path), Ok(None))) {
        let hooks = record.poststop.is_some();
        return Ok(hooks.then(|| run_poststop_hooks(folder)).flatten().into_iter().collect());
    }
    undo(folder, &systemd()?)
}

/// The cgroup of the record in `folder`, if it was there before: undoing the rest has ended what was in it.
pub(crate) fn found_before(folder: &Folder) -> Option<String> {
    let task = readable(folder).ok().and_then(|(record, _)| record).map(|record| (record.cgroup, record.parents_made));
    let sandbox = || folder.sandbox().ok().flatten().map(|record| (record.cgroup, record.parents_made));
    let (cgroup, made) = task.or_else(sandbox)?;
    let parts = cgroup.split('/').count() - 1;
    made.values().any(|existed| *existed == parts).then_some(cgroup)
}

/// The places where only bowline makes the cgroups of a task. They are searched if the task's
/// record does not say which cgroup was the task's, or names a cgroup of another task.
struct Places<'a> {
    layout: &'a Layout,
    folder: &'a Folder,
    record: Option<&'a Record>,
}

impl Places<'_> {
    /// Ends and removes what is there and known to be the task's: by its identity, or, if there is
    /// no identity, because nobody has the folder and no living shim has to do with it. Returns
    /// whether there was any.
    fn undo(&self, systemd: &Systemd, alone: &mut LeftAlone) -> Result<bool> {
        let identity = self.record.and_then(|record| record.identity.as_ref());
        if self.layout.goes_without() || identity.is_some_and(|identity| !identity.is_of_this_boot()) {
            return Ok(false);
        }
        let has_identity = identity.is_some_and(|identity| !identity.cgroups.is_empty());
        let mut found = false;
        for (path, unit) in self.own() {
            let Ok(Some(cgroup)) = self.layout.open(&path) else { continue };
            if !self.may_be_its(&cgroup) {
                continue;
            }
            let permit = || is_nobodys(self.layout, self.folder, &path);
            let permit: Option<Permit<'_>> = if has_identity { None } else { Some(&permit) };
            match undo_cgroup(self.layout, self.folder, &path, permit) {
                Err(error) if error.kind() == Kind::WrongState => {
                    alone.push(left_alone(&path, "a task that lives has the same name, or was started from there"));
                    continue;
                }
                undone => undone?,
            }
            found = true;
            for unit in unit.iter().flat_map(|unit| [Some(unit.clone()), unit.of_shim_too()]).flatten() {
                if let Err(error) = systemd.stop(&unit) {
                    tracing::warn!(%error, "a unit may be left behind");
                }
            }
        }
        // The cgroups of its shim alone.
        let overheads = overheads_of(&self.folder.name(), &self.folder.mark()).into_iter();
        let overheads = overheads.filter(|_| self.folder.is_in_state_folder());
        let overheads = overheads.filter(|path| matches!(self.layout.open(path), Ok(Some(_))));
        for path in overheads.filter(|path| is_nobodys(self.layout, self.folder, path)) {
            undo_cgroup(self.layout, self.folder, &path, None)?;
        }
        Ok(found)
    }

    /// Whether a cgroup in one of these places is the task's, as far as the record says which that was.
    fn may_be_its(&self, cgroup: &Cgroup) -> bool {
        let Some(identity) = self.record.and_then(|record| record.identity.as_ref()) else { return true };
        identity.is_of_this_boot() && (identity.cgroups.is_empty() || identity.is_of(self.layout, cgroup))
    }

    /// Where the task's own cgroup may be, each place with its unit if it is systemd's.
    fn own(&self) -> Vec<(String, Option<Unit>)> {
        let id = self.folder.name();
        let of_unit = |unit: Unit| (unit.path(), Some(unit));
        if !self.folder.is_in_state_folder() {
            // A manager's bundle, which nobody edits along with the record.
            let asked = bundle::cgroup_asked_for(self.folder.path());
            let unit = asked.as_deref().and_then(|path| Unit::parse(path).ok().flatten());
            return asked.map(|path| unit.map_or_else(|| (absolute(&path), None), of_unit)).into_iter().collect();
        }
        let sandbox = self.folder.sandbox_by_socket();
        let marked = |mark: &str| {
            let name = format!("{id}{mark}");
            let above = sandbox.as_ref().map_or(name.clone(), |sandbox| format!("{sandbox}{mark}"));
            let place = |sandbox: &TaskId| {
                let slice = Unit::of_sandbox(&SandboxPlace::marked(OURS, sandbox.as_str(), mark).ok()?).ok()?;
                Unit::of_member(&slice, &name).ok()
            };
            let unit = sandbox.as_ref().map_or_else(|| Unit::of_task(&name, &name).ok(), place);
            [Some((format!("{}/{id}", cgroup::of_sandbox(&above)), None)), unit.map(of_unit)].into_iter().flatten()
        };
        // An earlier bowline named it by its id alone, as one of the default state folder: its identity tells.
        let has_identity = self.record.is_some_and(|record| record.identity.is_some());
        let mark = self.folder.mark();
        marked(&mark).chain(marked("").filter(|_| !mark.is_empty() && has_identity)).collect()
    }

    /// Checks that nothing of the task is known to live in another place.
    ///
    /// # Errors
    /// Names the process and its cgroup, or says that nothing tells.
    fn may_live_elsewhere(&self, damage: Option<Error>) -> Result<()> {
        // The task has ended, or the record names a cgroup that has gone; or a manager knows more than we do.
        let of_earlier_boot = |record: &Record| record.identity.as_ref().is_some_and(|of| !of.is_of_this_boot());
        let is_over = matches!(self.folder.exit(), Ok(Some(_))) || self.record.is_some_and(of_earlier_boot);
        if is_over || !self.folder.is_in_state_folder() {
            return Ok(());
        }
        let events = self.folder.written_events();
        if events.iter().any(|entry| matches!(entry.event, Event::Exited { .. })) {
            return Ok(());
        }
        let started = events.iter().find_map(|entry| match entry.event {
            Event::Started { pid, .. } => Some((pid, entry.time)),
            _ => None,
        });
        let folder = self.folder.path().display();
        let why = damage.map_or("its record names another cgroup".to_owned(), |error| error.message().to_owned());
        match started {
            Some((pid, at)) if is_older(pid, at) => {
                let path = self.layout.path_of(pid).unwrap_or_default();
                let above = self.folder.sandbox_by_socket();
                match copies::elsewhere(self.layout, self.folder, above.as_ref(), &path.to_string_lossy()) {
                    Some(other) if other.is_there => return Ok(()),
                    Some(other) => return Err(other.error),
                    None => {}
                }
                let path = path.display();
                Err(Error::new(
                    Kind::Internal,
                    format!("process {pid} in cgroup {path} may be of task {}: {why}", self.folder.name()),
                )
                .hint(format!(
                    "if it is, `bowline cgroup destroy {path}` ends it, and `bowline rm -f` does the rest; if not, remove {folder}"
                )))
            }
            None if self.record.is_none() && events.is_empty() => Err(Error::new(
                Kind::Internal,
                format!("nothing tells which cgroup task {} had: {why}", self.folder.name()),
            )
            .hint(format!("see that none of its processes lives (systemd-cgls), and remove {folder}"))),
            _ => Ok(()),
        }
    }
}

/// A path from a bundle's configuration, below the top.
fn absolute(path: &str) -> String {
    format!("/{}", path.trim_start_matches('/'))
}

/// Whether the cgroup of a record is not there, or not the task's, and what is where bowline makes the task's is not the one
/// of the record either: [`undo`] leaves it alone.
pub(crate) fn is_in_doubt(layout: &Layout, folder: &Folder, record: &Record) -> bool {
    if matches!(layout.open(&record.cgroup), Ok(Some(_))) && check(layout, folder, record).is_ok() {
        return false;
    }
    let places = Places { layout, folder, record: Some(record) };
    let there = |(path, _): (String, _)| layout.open(&path).ok().flatten();
    places.own().into_iter().filter_map(there).any(|cgroup| !places.may_be_its(&cgroup))
}

/// Whether no living shim has to do with what is at `path`, which has the name of the task in `folder`.
pub(crate) fn is_nobodys(layout: &Layout, folder: &Folder, path: &str) -> bool {
    let shims = Shims::living();
    let name = folder.name_on_host();
    !shims.have(&name) && !shims.are_above(&layout.processes_at(path), &[&name])
}

/// Whether the process with this pid lives, and had begun by `than`: else it is another one with the same pid.
fn is_older(pid: i32, than: Timestamp) -> bool {
    // In doubt, it counts as older.
    let Ok(stat) = proc_stat::find(pid) else { return true };
    let Some(stat) = stat.as_deref().and_then(ProcStat::parse).filter(|stat| !stat.has_ended()) else { return false };
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let uptime = uptime.split('.').next().and_then(|seconds| seconds.parse::<u64>().ok());
    match (uptime, stat.started()) {
        (Some(uptime), Some(began)) => {
            let age = Duration::from_secs(uptime.saturating_sub(began / rustix::param::clock_ticks_per_second()));
            Timestamp::now() - age <= than + LATER
        }
        _ => true,
    }
}

/// The cgroups of a record that are the task's, or are gone; and those that are left alone.
pub(crate) fn cgroups_of(layout: &Layout, folder: &Folder, record: &Record) -> (Vec<String>, LeftAlone) {
    let mut own = Vec::new();
    let mut alone = Vec::new();
    match check(layout, folder, record) {
        Ok(()) => own.push(record.cgroup.clone()),
        Err(why) => alone.push(left_alone(&record.cgroup, why)),
    }
    if let Some(overhead) = &record.overhead {
        // An earlier bowline named it by its id alone, as one of the default state folder.
        let (id, mark) = (folder.name(), folder.mark());
        let is_earlier = || overheads_of(&id, "").contains(overhead) && is_nobodys(layout, folder, overhead);
        match overheads_of(&id, &mark).contains(overhead) || is_earlier() {
            true => own.push(overhead.clone()),
            false => alone.push(left_alone(overhead, "no shim of this task is ever there")),
        }
    }
    (own, alone)
}

/// The sentence about a cgroup that is left alone.
pub(crate) fn left_alone(path: &str, why: &str) -> String {
    tracing::warn!("cgroup {path} is left alone: {why}");
    format!("cgroup {path} is left alone: {why}; look into it yourself: it is not known to be the task's")
}

/// The cgroups that the shim of a task or sandbox may be charged to, in a state folder that has this `mark`.
pub(crate) fn overheads_of(id: &str, mark: &str) -> Vec<String> {
    let name = format!("{id}{mark}");
    let beside = SandboxPlace::marked(OVERHEAD, id, mark).ok();
    let shims = beside.as_ref().and_then(|place| Unit::of_sandboxs_shim(place, &name, "").ok());
    let paths = [Unit::of_shim(&name).ok(), shims].into_iter().flatten().map(|unit| unit.path());
    paths.chain([cgroup::of_sandbox(&name) + "/overhead"]).chain(beside.map(|place| place.cgroupfs())).collect()
}

/// Why a recorded cgroup is left alone: another task or sandbox uses it now.
pub(crate) const TAKEN: &str = "another task or sandbox has it now";

/// Checks that the cgroup of a record, if it exists, is the task's; else returns why it is not taken for the task's.
fn check(layout: &Layout, folder: &Folder, record: &Record) -> std::result::Result<(), &'static str> {
    match layout.open(&record.cgroup) {
        Ok(Some(cgroup)) => check_opened(layout, folder, record, &cgroup),
        Ok(None) => Ok(()),
        Err(_) => Err("the record has no plain path, or it cannot be opened"),
    }
}

/// Like [`check`], with the cgroup of the record.
pub(crate) fn check_opened(
    layout: &Layout,
    folder: &Folder,
    record: &Record,
    cgroup: &Cgroup,
) -> std::result::Result<(), &'static str> {
    match &record.identity {
        _ if layout.goes_without() => Ok(()),
        Some(identity) if !identity.is_of_this_boot() => Err("the task was of an earlier boot of this host"),
        Some(identity) if !identity.cgroups.is_empty() => match identity.is_of(layout, cgroup) {
            true if record.task.is_some() && is_taken(layout, folder, &record.cgroup) => Err(TAKEN),
            true if is_anothers_place(folder, record) => Err("it is at the place of another task or sandbox"),
            true => Ok(()),
            false => Err("it is not the one that the task was started in"),
        },
        // A launch that was cut short, or an older bowline.
        _ if is_its_place(folder, record) => Ok(()),
        _ => Err("the record does not say which cgroup that was, and it is not where bowline makes the task's"),
    }
}

/// Whether only the task could be at the path of its record.
fn is_its_place(folder: &Folder, record: &Record) -> bool {
    let (id, mark) = (folder.name(), folder.mark());
    let name = format!("{id}{mark}");
    let of_unit = |unit: &Unit| unit.path() == record.cgroup;
    let sandboxes = record.sandbox.iter().map(TaskId::as_str).chain([&*id]);
    let mut places = sandboxes.map(|sandbox| format!("{}/{id}", cgroup::of_sandbox(&format!("{sandbox}{mark}"))));
    let named = |unit: &&Unit| Unit::of_task(&name, &name).is_ok_and(|own| own.name == unit.name);
    places.any(|place| place == record.cgroup) || record.unit.as_ref().filter(named).is_some_and(of_unit)
}

/// Whether a record names the cgroup, and its identity, of another task, sandbox or container.
pub(crate) fn is_anothers_place(folder: &Folder, record: &Record) -> bool {
    if record.container.is_some() {
        return !is_containers_place(folder, record);
    }
    if record.task.is_none() || is_its_place(folder, record) {
        return false;
    }
    let beside = |id: &str| Folder::at(folder.path().with_file_name(id));
    let (id, mark, path) = (folder.name(), folder.mark(), &record.cgroup);
    let of = record.sandbox.as_ref().map(|of| beside(of.as_str()).sandbox());
    if let (Some(Ok(Some(sandbox))), Ok(id)) = (of, id.parse()) {
        return *path != format!("{}/{}", sandbox.cgroup, sandbox.folder_of(&id));
    }
    let own = record.sandbox.as_ref().map_or(&*id, TaskId::as_str);
    // A description may name a place below another's.
    let is_described = is_asked(folder, record);
    let has_it = |name: &str| {
        let other = beside(name.strip_suffix(&*mark).unwrap_or(name));
        other.record().is_ok_and(|other| other.is_some_and(|other| other.cgroup == *path))
    };
    copies::is_elsewhere(folder, own, path)
        || copies::names(path)
            .any(|name| name != own && name != format!("{own}{mark}") && (!is_described || has_it(&name)))
}

/// Whether the cgroup of a container's record is the one that its configuration asks for.
fn is_containers_place(folder: &Folder, record: &Record) -> bool {
    let Ok(id) = TaskId::of_container(&folder.name()) else { return false };
    let asked = bundle::cgroup_asked_for(folder.path()).filter(|path| !path.is_empty());
    let unit = match asked.as_deref() {
        Some(path) => Unit::parse(path).ok().flatten(),
        None => Unit::of_task(id.as_str(), id.as_str()).ok(),
    };
    let is_there = record.cgroup == bundle::cgroup_path(asked.as_deref(), &id)
        || unit.is_some_and(|unit| unit.path() == record.cgroup);
    // One that is damaged does not tell.
    is_there || asked.is_none() && !matches!(folder.read::<serde_json::Value>("config.json"), Ok(Some(_)))
}

/// Whether the record is of a launch of this boot that was cut short, and names a path that the caller requested.
fn is_asked_for(folder: &Folder, record: &Record) -> bool {
    let cut_short =
        record.identity.as_ref().is_some_and(|identity| identity.is_of_this_boot() && identity.cgroups.is_empty());
    cut_short && is_asked(folder, record)
}

/// Whether the record names the cgroup that the caller requested.
fn is_asked(folder: &Folder, record: &Record) -> bool {
    let of_unit = |unit: &Unit| record.unit.is_some() && unit.path() == record.cgroup;
    asked(folder, record)
        .is_some_and(|path| path == record.cgroup || Unit::parse(&path).ok().flatten().as_ref().is_some_and(of_unit))
}

/// The cgroup that the caller requested.
fn asked(folder: &Folder, record: &Record) -> Option<String> {
    if record.container.is_some() {
        return Some(record.cgroup.clone());
    }
    if let (Some(task), None) = (&record.task, record.bundle()) {
        return task.cgroup.as_ref().map(|path| path.to_string_lossy().into_owned());
    }
    bundle::cgroup_asked_for(record.bundle().unwrap_or(folder.path()))
}

/// Cleans up a manager's bundle after its shim died: like [`undo`], and also runs its poststop
/// hooks and unmounts its root. Returns init's pid and how the task ended, as far as that is known.
pub fn undo_bundle(path: &Path, systemd: &Systemd) -> Result<(Option<i32>, ExitReport)> {
    let folder = Folder::at(path);
    let record = readable(&folder);
    // There is no record if the container was removed properly, as nearly always.
    let was_launched = !matches!(record, Ok((None, None)));
    let undone = if was_launched { undo(&folder, systemd).map(drop) } else { Ok(()) };
    // Managers name the folder after the container.
    if was_launched && let Err(error) = hooks::run_poststop(&folder.name(), path) {
        tracing::warn!(%error, "a hook failed");
    }
    let unmounted = layers::unmount_blocking(&bundle::root(path));
    let (record, _) = record?;
    let exit = match folder.exit() {
        Err(error) if error.kind() == Kind::Damaged => None,
        exit => exit?,
    };
    let exit = exit.unwrap_or_else(|| folder.report_after_death(record.as_ref()));
    undone.and(unmounted)?;
    Ok((record.and_then(|record| record.pid), exit))
}

/// Ends and removes the cgroup at `path` that belongs to this folder. Processes that cannot be
/// ended stay there, so that another `rm` finds them; for a manager's bundle, which is cleaned up
/// only once, they are moved to a parent.
pub(crate) fn undo_cgroup(layout: &Layout, folder: &Folder, path: &str, permit: Option<Permit<'_>>) -> Result<()> {
    if folder.is_in_state_folder() {
        return layout.end(path, permit);
    }
    let destroyed = layout.destroy(path, permit)?;
    if !destroyed.moved.is_empty() {
        tracing::warn!(path, pids = ?destroyed.moved, "processes did not end, and were moved to a parent cgroup");
    }
    Ok(())
}
