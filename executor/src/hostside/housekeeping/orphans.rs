//! Orphans: sandboxes and pods without a shim, and tasks whose shim died before them.
//!
//! ```text
//!   cgroups that are there ─► then shims that live ─► owned by none ─► asked once more ─► gone
//! ```
//!
//! The order matters: a shim lives before it makes a cgroup, so a cgroup that exists while its shim
//! does not was left behind. Right before a removal the owner is looked up again, and a cgroup that
//! has one by then is left alone. So is what a new shim can take over: a task outlives its shim.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::hostside::undo_sandbox::{self, undo_sandbox};
use bowline_cgroup::sees_all;
use bowline_error::{Kind, Result, together};
use bowline_model::folder::{Folder, StateDir};
use bowline_spec::budget::Class;
use bowline_spec::id::TaskId;
use bowline_spec::place::{OURS, OVERHEAD, PodPlace, SandboxPlace};

use super::left::{Held, Left, Outcome, What, held, held_or_unknown, with_processes};
use super::other_folders::Others;
use super::remains::{remains, rest};
use super::unit_cgroup::of_scope;
use super::{Cgroups, place_of, unit_of};
use crate::hostside::copies::misplaced;
use crate::hostside::memory_min;
use crate::hostside::owners::Shims;
use crate::hostside::records::{Recorded, readable};
use crate::hostside::undo::{cgroups_of, found_before, is_in_doubt, undo};

/// The slice in which systemd has the scopes of these shims.
const OVERHEAD_SLICE: &str = "/bowline_overhead.slice";
/// The record of networks that were made.
const NETWORKS: &str = "networks.json";

/// Where to look for pods, and which of them are no orphans.
#[derive(Debug, Clone, Copy)]
pub struct Pods<'a> {
    /// The cgroup above all pods, such as `kubepods`.
    pub root: &'a str,
    /// The uids of the pods that are alive, where somebody knows them.
    pub alive: Option<&'a BTreeSet<String>>,
}

/// A cgroup that may be an orphan.
#[derive(Debug)]
struct Candidate {
    what: What,
    /// The name on the host of what it is of; of a pod, its uid.
    name: String,
    path: String,
    /// The mounts of the hierarchies that have the cgroup.
    mounts: Vec<PathBuf>,
    /// Whether a living shim has to do with it.
    owned: bool,
}

impl Candidate {
    fn new(what: What, name: String, path: String) -> Candidate {
        Candidate { what, name, path, mounts: Vec::new(), owned: false }
    }

    /// Whether this is a pod without an owner, and the cgroup at `path` is the pod's or below it.
    fn has_gone_with(&self, path: &str) -> bool {
        let rest = path.strip_prefix(self.path.as_str());
        self.what == What::Pod && !self.owned && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl Cgroups {
    /// Finds all orphans that are bowline's; with `pods`, also pods below their root, of any class.
    ///
    /// A cgroup has an owner if a living shim, of any state folder, belongs to it or has started a
    /// process in it, or if it has a folder in `state` that is in use. A pod that is known to be alive
    /// is no orphan. One that is not, and has an owner all the same, is found as `owned`: it may be
    /// younger than the list of those that live. So is a task or a sandbox that a new shim can take
    /// over, unless it is in a pod without an owner that the list does not name.
    ///
    /// # Errors
    /// `BadSpec` for a root that can hold no pods; `Internal` when the state
    /// folder cannot be read.
    pub fn left_behind(&self, state: &StateDir, pods: Option<Pods<'_>>) -> Result<Vec<Left>> {
        let alive = pods.and_then(|pods| pods.alive);
        let mut candidates = self.candidates(pods.map(|pods| pods.root))?;
        let shims = Shims::living();
        candidates.retain_mut(|candidate| {
            let is_pod = candidate.what == What::Pod;
            candidate.owned = self.is_owned(&shims, candidate);
            let is_listed = is_pod && alive.is_some_and(|alive| alive.contains(&candidate.name));
            let is_told = is_pod && alive.is_some();
            !is_listed && (!candidate.owned || is_told) && self.is_there(&candidate.path)
        });
        let mut left = Vec::new();
        let mark = state.mark();
        for id in state.all_ids()? {
            let folder = state.folder(&id);
            let name = format!("{id}{mark}");
            let earlier = if mark.is_empty() {
                Vec::new()
            } else {
                Recorded::of(&folder).into_iter().flat_map(Recorded::cgroups).collect()
            };
            let moved = folder.misplaced().filter(|of| !of.is_copy).map(|of| of.cgroups).unwrap_or_default();
            let is_its = |candidate: &Candidate| {
                let holds = |path: &String| Path::new(path).starts_with(&candidate.path);
                // An earlier bowline named it by its id alone, as one of the default state folder.
                let is_earlier = || candidate.name == id.as_str() && earlier.iter().any(holds);
                candidate.what != What::Pod && (candidate.name == name || is_earlier() || moved.iter().any(holds))
            };
            match held_or_unknown(&folder) {
                Held::ByAShim => candidates.retain(|candidate| !is_its(candidate)),
                // A task that has a report has ended by itself.
                Held::ByUs(_lock) if !matches!(folder.exit(), Ok(Some(_))) && !shims.have(&name) => {
                    let (its, others) = candidates.into_iter().partition(is_its);
                    candidates = others;
                    let dead = self.dead(&shims, &folder, &id, its);
                    if let Some(rest) = rest(state, &folder, &id, dead.as_ref()) {
                        left.push(rest);
                        continue;
                    }
                    let Some(mut dead) = dead else { continue };
                    let is_gone =
                        |path: &String| alive.is_some() && candidates.iter().any(|pod| pod.has_gone_with(path));
                    if let Err(newer) = folder.check_form() {
                        dead.owned = true;
                        dead.why = newer.message().to_owned();
                    } else if is_adoptable(state, &folder, &dead) && !dead.cgroups.iter().any(is_gone) {
                        dead.owned = true;
                        dead.why = format!("its shim died, and `bowline adopt {id}` starts a new one");
                    }
                    left.push(dead);
                }
                Held::ByUs(_) | Held::Missing => {}
            }
        }
        // The name of a sandbox's overhead cgroup may begin with anything: its record says whose it is.
        candidates.retain(|candidate| !left.iter().any(|left| left.cgroups.contains(&candidate.path)));
        let taken_over: Vec<&String> = left.iter().filter(|left| left.owned).flat_map(|left| &left.cgroups).collect();
        candidates.retain(|candidate| alive.is_some() || !taken_over.iter().any(|path| candidate.has_gone_with(path)));
        left.extend(candidates.into_iter().map(|candidate| self.orphan(state, candidate, alive.is_some())));
        let others = Others::of(state);
        for one in left.iter_mut().filter(|one| one.folder.is_none() && one.what != What::Pod && !one.owned) {
            if let Some(whose) = one.cgroups.first().and_then(|path| others.owner(&self.layout, &one.name, path)) {
                (one.owned, one.elsewhere) = (true, true);
                one.why = format!("it belongs to {whose}");
            }
        }
        if !sees_all() {
            let is_told = |one: &Left| one.what == What::Pod && alive.is_some();
            for one in left.iter_mut().filter(|one| one.folder.is_none() && !one.owned && !is_told(one)) {
                one.owned = true;
                one.why =
                    "its shim may live in another pid namespace than this command: run it in the first one".to_owned();
            }
        }
        left.extend(self.unnamed());
        left.extend(remains(state));
        left.sort_by(|a, b| (a.what, &a.id).cmp(&(b.what, &b.id)));
        Ok(left)
    }

    /// Removes what was left behind, unless it has an owner by now.
    ///
    /// # Errors
    /// Why it could not be removed.
    pub fn clear(&self, state: &StateDir, left: &Left) -> Result<Outcome> {
        let done = match left.what {
            What::Sandbox | What::Task if left.folder.is_some() => self.clear_dead(state, left),
            What::Sandbox | What::Task | What::Cgroup | What::Overhead | What::Pod => self.clear_orphan(state, left),
            What::Remains => self.clear_remains(state, left),
        };
        match done {
            Ok(true) => Ok(Outcome::Removed),
            Ok(false) => Ok(Outcome::Owned),
            Err(error) if error.kind() == Kind::WrongState => Ok(Outcome::Owned),
            Err(error) => Err(error.within(format_args!("{} {}", left.what.as_str(), left.id))),
        }
    }

    /// Every cgroup whose name is that of a task, a sandbox or a pod.
    fn candidates(&self, pods_root: Option<&str>) -> Result<Vec<Candidate>> {
        let mut found = BTreeMap::new();
        for (prefix, what) in [(OURS, What::Cgroup), (OVERHEAD, What::Overhead)] {
            let place = SandboxPlace::new(prefix, "any")?;
            let id = |path: &str| {
                SandboxPlace::of_path(path).filter(|p| p.prefix() == prefix).map(|place| place.id().to_owned())
            };
            for path in [place.cgroupfs(), place.systemd()?] {
                self.below(&path, what, id, &mut found);
            }
        }
        self.below(&format!("{OVERHEAD_SLICE}/any"), What::Overhead, of_scope, &mut found);
        if let Some(root) = pods_root {
            let root = root.trim_matches('/');
            for class in [Class::Guaranteed, Class::Burstable, Class::BestEffort] {
                let place = PodPlace::new(root, class, "any")?;
                let id = |path: &str| {
                    PodPlace::of_path(path).filter(|p| p.root() == root).map(|place| place.uid().to_owned())
                };
                for path in [place.cgroupfs(), place.systemd()?] {
                    self.below(&path, What::Pod, id, &mut found);
                }
            }
        }
        Ok(found.into_values().collect())
    }

    /// Adds the cgroups beside `path`, in every hierarchy, that have an id.
    fn below(
        &self,
        path: &str,
        what: What,
        id: impl Fn(&str) -> Option<String>,
        found: &mut BTreeMap<String, Candidate>,
    ) {
        let Some((parent, _)) = path.rsplit_once('/') else { return };
        for hierarchy in self.layout.hierarchies() {
            for name in hierarchy.children(parent) {
                let path = format!("{parent}/{name}");
                let Some(id) = id(&path) else { continue };
                let new = || Candidate::new(what, id, path.clone());
                found.entry(path.clone()).or_insert_with(new).mounts.push(hierarchy.mount().to_owned());
            }
        }
    }

    fn is_owned(&self, shims: &Shims, candidate: &Candidate) -> bool {
        let has_shim = match candidate.what {
            What::Pod => false,
            What::Overhead => shims.may_be_in(&candidate.name),
            What::Sandbox | What::Task | What::Cgroup | What::Remains => shims.may_have(&candidate.name),
        };
        has_shim || self.is_in_use(shims, &candidate.path)
    }

    /// Whether a living shim has started something in the cgroup at `path`, or belongs to the
    /// sandbox around it: a member's cgroup may have no process yet.
    pub(super) fn is_in_use(&self, shims: &Shims, path: &str) -> bool {
        let mut above = path;
        while let Some((parent, _)) = above.rsplit_once('/') {
            let place = SandboxPlace::of_path(above).filter(|place| [OURS, OVERHEAD].contains(&&*place.prefix()));
            if place.is_some_and(|place| shims.may_have(place.id())) {
                return true;
            }
            above = parent;
        }
        let ids: Vec<&str> = path.split('/').filter(|id| !id.is_empty()).collect();
        shims.are_above(&self.layout.processes_at(path), &ids)
    }

    fn is_there(&self, path: &str) -> bool {
        self.exists(path).is_ok_and(|found| !found.at.is_empty())
    }

    fn orphan(&self, state: &StateDir, candidate: Candidate, pods_are_listed: bool) -> Left {
        let Candidate { what, name, path, mounts, owned } = candidate;
        let id = state.id_of(&name).to_owned();
        let processes = self.layout.processes_at(&path).len();
        let there = place_of(&path, &mounts);
        let folder = folder_of(state, what, &id).filter(|folder| folder.exists().unwrap_or(true));
        let why = match (what, folder) {
            (What::Pod, _) if owned => {
                format!(
                    "it is not among the pods that are alive, but a shim that lives has started something in {there}"
                )
            }
            (What::Pod, _) if pods_are_listed => {
                format!(
                    "it is not among the pods that are alive, and no shim that lives has started anything in {there}"
                )
            }
            (What::Pod, _) => format!("no shim that lives has started anything in {there}"),
            (_, Some(_)) => format!("what it was of has ended and its shim has gone, but not {there}"),
            // A shim without a folder, which nothing reaches, is one of its processes.
            (_, None) => format!("no folder in {} is there for {there}, nor a shim of one", state.path().display()),
        };
        let why = with_processes(why, processes);
        Left { what, id, name, why, cgroups: vec![path], processes, folder: None, owned, elsewhere: false }
    }

    /// What a dead shim has left of the task in `folder`, if anything.
    fn dead(&self, shims: &Shims, folder: &Folder, id: &TaskId, its: Vec<Candidate>) -> Option<Left> {
        let what = if folder.is_sandbox() { What::Sandbox } else { What::Task };
        let left = |cgroups: Vec<String>, why: &str, owned: bool| {
            let pids: BTreeSet<i32> = cgroups.iter().flat_map(|path| self.layout.processes_at(path)).collect();
            let why = with_processes(why.to_owned(), pids.len());
            let (id, name, folder) = (id.to_string(), folder.name_on_host(), Some(folder.path().to_owned()));
            Left { what, id, name, why, cgroups, processes: pids.len(), folder, owned, elsewhere: false }
        };
        if let Some(misplaced) = misplaced(folder) {
            let there: Vec<String> = its.into_iter().map(|candidate| candidate.path).collect();
            return (!there.is_empty()).then(|| left(there, misplaced.error.message(), true));
        }
        // Of a damaged record, use what can be read; `rm` reports the damage.
        let record = readable(folder).ok().and_then(|(record, _)| record);
        let sandbox = folder.sandbox().ok().flatten();
        let in_doubt = record.as_ref().is_some_and(|record| is_in_doubt(&self.layout, folder, record));
        // Leave alone what is not the task's, whatever the record says.
        let recorded = record.map(|record| cgroups_of(&self.layout, folder, &record).0);
        let recorded = recorded.or(sandbox.map(|record| {
            let (own, _) = undo_sandbox::cgroups(&record, &self.layout, folder);
            own.into_iter().flatten().cloned().collect()
        }));
        let mut cgroups: Vec<String> = recorded.into_iter().flatten().filter(|path| self.is_there(path)).collect();
        let others = its.into_iter().map(|candidate| candidate.path);
        cgroups.extend(others.filter(|path| self.is_there(path)));
        // One that was there before stays: only what is in it is the task's.
        let found = found_before(folder);
        cgroups.retain(|path| found.as_ref() != Some(path) || !self.layout.processes_at(path).is_empty());
        if cgroups.is_empty() && !folder.file(NETWORKS).exists() {
            return None;
        }
        cgroups.sort();
        cgroups.dedup();
        if cgroups.iter().any(|path| self.is_in_use(shims, path)) {
            return None;
        }
        if in_doubt {
            let why = format!("its record names another cgroup than there is: `bowline rm {id}` says what to do");
            return Some(left(cgroups, &why, true));
        }
        Some(left(cgroups, "its shim died before it", false))
    }

    fn clear_orphan(&self, state: &StateDir, left: &Left) -> Result<bool> {
        let folder = folder_of(state, left.what, &left.id);
        // Hold the lock, so that nobody launches anything with this id here.
        let lock = match folder.as_ref().map_or(Ok(Held::Missing), held)? {
            Held::ByAShim => return Ok(false),
            Held::ByUs(lock) => Some(lock),
            Held::Missing => None,
        };
        for path in &left.cgroups {
            let candidate = Candidate::new(left.what, left.name.clone(), path.clone());
            let permit = || {
                let created = lock.is_none() && folder.as_ref().is_some_and(|folder| folder.exists().unwrap_or(true));
                !created && !self.is_owned(&Shims::living(), &candidate)
            };
            // As the kubelet does: what takes long to end disturbs nobody meanwhile.
            let slowed = (left.what == What::Pod && permit()).then(|| self.reduce_cpu(path));
            match (self.destroy_if(path, Some(&permit)), slowed) {
                (Err(error), Some(Err(slow))) if error.kind() != Kind::WrongState && slow.kind() != Kind::NotFound => {
                    return together([slow, error]).map(|()| true);
                }
                (destroyed, _) => drop(destroyed?),
            }
            memory_min::settle(&self.layout, &self.systemd, path);
            if let Some((parent, _)) =
                path.rsplit_once('/').filter(|_| left.what != What::Pod && unit_of(path).is_none())
            {
                self.layout.remove_empty(parent);
            }
        }
        Ok(true)
    }

    /// Whether no living shim has what is `left`, nor its cgroups.
    pub(super) fn is_free(&self, left: &Left) -> bool {
        let shims = Shims::living();
        !shims.have(&left.name) && !left.cgroups.iter().any(|path| self.is_in_use(&shims, path))
    }

    fn clear_dead(&self, state: &StateDir, left: &Left) -> Result<bool> {
        let Some(path) = &left.folder else { return Ok(true) };
        let folder = Folder::at(path);
        let _lock = match held(&folder)? {
            Held::ByUs(lock) => lock,
            // It was removed meanwhile, with everything that was left.
            Held::Missing => return Ok(true),
            Held::ByAShim => return Ok(false),
        };
        // A task of another state folder may be where this one was.
        let permit = || self.is_free(left);
        if !permit() {
            return Ok(false);
        }
        let found = found_before(&folder);
        let mut errors = Vec::new();
        match left.id.parse() {
            Ok(id) if left.what == What::Sandbox => {
                match undo_sandbox(state, &id, &self.systemd).and_then(|_| state.members(&id)) {
                    Ok(members) => {
                        errors.extend(members.iter().filter_map(|member| state.folder(member).write_kept_exit().err()));
                    }
                    Err(error) => errors.push(error),
                }
            }
            // What lives has not ended.
            _ => errors.extend(undo(&folder, &self.systemd).and_then(|_| folder.write_kept_exit()).err()),
        }
        for path in left.cgroups.iter().filter(|path| found.as_ref() != Some(path)) {
            errors.extend(self.destroy_if(path, Some(&permit)).err());
        }
        together(errors).map(|()| true)
    }
}

/// The folder that a sandbox of this id would have.
fn folder_of(state: &StateDir, what: What, id: &str) -> Option<Folder> {
    Some(state.folder(&id.parse().ok().filter(|_| what != What::Pod)?))
}

/// Whether a new shim can take over what is in `folder`, of which a dead shim has left this: a sandbox, or a task that
/// runs. What has ended, or is damaged, can only be removed.
fn is_adoptable(state: &StateDir, folder: &Folder, left: &Left) -> bool {
    let whole = |folder: &Folder| match folder.sandbox() {
        Ok(Some(sandbox)) if sandbox.adoptable().is_ok() => Some(sandbox.cgroup),
        _ => None,
    };
    // Of the cgroups in the record, only its own are in `left`.
    if folder.is_sandbox() {
        return whole(folder).is_some_and(|cgroup| left.cgroups.contains(&cgroup));
    }
    let Ok(Some(record)) = folder.record() else { return false };
    matches!(folder.exit(), Ok(None))
        && record.adoptable().is_ok()
        && left.cgroups.contains(&record.cgroup)
        && record.runs()
        && record.sandbox.as_ref().is_none_or(|sandbox| whole(&state.folder(sandbox)).is_some())
}
