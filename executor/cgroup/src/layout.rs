//! The hierarchies of this host, and one cgroup in all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use bowline_sys::mountinfo::{self, Mount};
use rustix::fs;
use rustix::io::Errno;

use crate::cgroup::{Cgroup, Member};
use crate::hierarchy::Hierarchy;
use crate::membership::{Membership, UNIFIED};
use crate::path::checked_path;
use crate::v1::FREEZER;
use crate::version::Version;
use crate::{tree, v1, v2};

/// Finds this host's hierarchies.
///
/// # Errors
/// `Unsupported` when no hierarchy can limit and account tasks.
pub fn detect() -> Result<Layout> {
    let path = "/proc/self/mountinfo";
    let mounts = mountinfo::read(path).doing(Kind::Internal, || format!("cannot read {path}"))?;
    match sys::in_first_user_namespace() {
        true => Layout::from_mounts(mounts),
        false => Ok(Layout::left_to_us(mounts)),
    }
}

/// Whether this host's controllers are on cgroup v2. Cheaper than [`detect`].
pub fn is_v2() -> bool {
    fs::statfs("/sys/fs/cgroup").is_ok_and(|stat| stat.f_type == libc::CGROUP2_SUPER_MAGIC)
}

/// The hierarchies of this host.
#[derive(Debug)]
pub struct Layout {
    pub(crate) version: Version,
    pub(crate) hierarchies: Vec<Hierarchy>,
    /// A cgroup that stays when the last one in it is removed.
    kept: Option<String>,
    /// A cgroup that may have been there before, as its record says.
    found: Option<(String, Existed)>,
    /// Whether tasks have no cgroups, as none were left to this user namespace.
    goes_without: bool,
}

/// How many parts of a cgroup's path existed before it was made, by where the hierarchy is mounted: only where some of
/// its parents were made with it, or where it was there itself and stays.
pub type Existed = BTreeMap<PathBuf, usize>;

impl Layout {
    pub fn from_mounts(mounts: Vec<Mount>) -> Result<Layout> {
        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        for mount in mounts {
            let Some(hierarchy) = Hierarchy::of(mount)? else { continue };
            // The same hierarchy can be mounted twice.
            if !hierarchies.iter().any(|h| h.same_as(&hierarchy)) {
                hierarchies.push(hierarchy);
            }
        }
        let v1 = hierarchies.iter().any(|h| h.controllers.iter().any(|c| c == FREEZER));
        if v1 {
            return Ok(Layout { version: Version::V1, hierarchies, kept: None, found: None, goes_without: false });
        }
        hierarchies.retain(|h| h.unified);
        for hierarchy in &mut hierarchies {
            hierarchy.hands_down = true;
        }
        if hierarchies.is_empty() {
            return Err(Error::new(
                Kind::Unsupported,
                "this host has neither cgroup v2 nor a v1 freezer hierarchy, by which a task's processes are found",
            )
            .hint("mount cgroup2 at /sys/fs/cgroup"));
        }
        Ok(Layout { version: Version::V2, hierarchies, kept: None, found: None, goes_without: false })
    }

    /// An empty layout, for callers that use no cgroups: nothing is found there, and nothing made.
    pub fn none() -> Layout {
        Layout { version: Version::V2, hierarchies: Vec::new(), kept: None, found: None, goes_without: false }
    }

    /// The hierarchies in which root of a user namespace may make cgroups: cgroup v2, where its own cgroup was delegated to
    /// it (cgroups(7)); v1 has no delegation. Without one, a task has a cgroup that is in no hierarchy.
    fn left_to_us(mounts: Vec<Mount>) -> Layout {
        let without = Layout { goes_without: true, ..Layout::none() };
        let Ok(layout) = Layout::from_mounts(mounts) else { return without };
        let own = Membership::own().unwrap_or_default();
        let may_make = |top: &Hierarchy| own.path(UNIFIED).is_some_and(|path| top.may_write(path));
        match layout.hierarchies.first() {
            Some(top) if layout.version == Version::V2 && may_make(top) => layout,
            _ => without,
        }
    }

    /// Whether tasks have no cgroups: see `left_to_us`.
    pub fn goes_without(&self) -> bool {
        self.goes_without
    }

    /// Never removes the sandbox's cgroup at `path`, even when one below it goes.
    pub fn keep(&mut self, path: &str) {
        self.kept = Some(path.to_owned());
    }

    /// Never removes what existed of the cgroup at `path` before its task.
    pub fn keep_found(&mut self, path: &str, existed: &Existed) {
        self.found = Some((path.to_owned(), existed.clone()));
    }

    /// Where this host's controllers are.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The hierarchy of a controller; on a hybrid host that may be the unified one. On v2 the files
    /// of a cgroup show whether the controller was handed down.
    pub(crate) fn index(&self, controller: &str) -> Option<usize> {
        let has = |h: &Hierarchy| h.controllers.iter().any(|c| c == controller);
        match self.version {
            Version::V1 => {
                let v1 = self.hierarchies.iter().position(|h| !h.unified && has(h));
                v1.or_else(|| self.hierarchies.iter().position(has))
            }
            Version::V2 => (!self.hierarchies.is_empty()).then_some(0),
        }
    }

    pub(crate) fn unified(&self) -> Option<usize> {
        self.hierarchies.iter().position(|h| h.unified)
    }

    /// Whether a controller's files are those of v2.
    pub fn is_unified(&self, controller: &str) -> bool {
        self.index(controller).is_some_and(|i| self.hierarchies[i].unified)
    }

    /// On a hybrid host, hands a controller of the unified hierarchy down to `cgroup`, which is not
    /// done for tasks that do not need it. Returns whether that may have changed anything.
    pub(crate) fn hand_down(&self, cgroup: &Cgroup, controller: &str) -> bool {
        let late = |index: &usize| self.hierarchies[*index].unified && !self.hierarchies[*index].hands_down;
        let Some(index) = self.index(controller).filter(late) else {
            return false;
        };
        self.hierarchies[index].hand_down(&cgroup.path).is_ok()
    }

    /// The cgroup of a process, in the hierarchy through which tasks are ended; `None` for a process that has gone.
    pub fn path_of(&self, pid: i32) -> Option<PathBuf> {
        let controller = match self.version {
            Version::V1 => FREEZER,
            Version::V2 => UNIFIED,
        };
        Membership::of(pid).ok()?.path(controller).map(Path::to_owned)
    }

    /// All hierarchies of this host.
    pub fn hierarchies(&self) -> &[Hierarchy] {
        &self.hierarchies
    }

    /// Moves the calling process, which must have one thread, to `path` in every v1 hierarchy where it is elsewhere; `/` is
    /// the root cgroup.
    ///
    /// # Errors
    /// `NotFound` when the cgroup is missing from a hierarchy.
    pub fn enter(&self, path: &str) -> Result<()> {
        let mine = Membership::own().unwrap_or_default();
        let mut elsewhere = self.hierarchies.iter().filter(|h| !h.unified && !h.is_at(path, &mine));
        elsewhere.try_for_each(|hierarchy| hierarchy.join(path, "0"))
    }

    /// Moves process `pid` to `path` in the unified hierarchy, if there is one. Call this from a
    /// worker: it waits 5–16 ms for an RCU grace period.
    pub fn move_unified(&self, path: &str, pid: u32) -> Result<()> {
        let unified = self.hierarchies.iter().find(|h| h.unified);
        unified.map_or(Ok(()), |hierarchy| hierarchy.join(path, &pid.to_string()))
    }

    /// Moves processes to `path` in every hierarchy. Call this from a worker: it waits for the
    /// kernel. Returns the pids that are no processes, or no longer.
    pub fn place(&self, path: &str, pids: &[i32]) -> Result<Vec<i32>> {
        let mut gone = Vec::new();
        for pid in pids {
            // 0 would mean the writing process itself.
            let is = *pid > 0 && sys::pidfd_open(*pid).is_ok();
            let moved = is.then(|| self.hierarchies.iter().try_for_each(|h| h.move_process(path, *pid)));
            match moved {
                Some(Ok(())) => {}
                Some(Err(error)) if error.kind() != Kind::NotFound => return Err(error),
                Some(Err(_)) | None => gone.push(*pid),
            }
        }
        Ok(gone)
    }

    /// Whether the calling process is not at `path` in the unified hierarchy and must be moved there.
    pub fn is_elsewhere_unified(&self, path: &str) -> bool {
        let own = Membership::own().unwrap_or_default();
        self.hierarchies.iter().any(|h| h.unified) && own.path(UNIFIED) != Some(Path::new(path))
    }

    /// Makes the cgroup at `path` and, where missing, its parents.
    ///
    /// # Errors
    /// `AlreadyExists` when processes are in it; everything that was made is removed again.
    pub fn create(&self, path: &str) -> Result<Cgroup> {
        let path = checked_path(path)?;
        let mut cgroup = Cgroup::new(path);
        for (index, hierarchy) in self.hierarchies.iter().enumerate() {
            match hierarchy.create(path) {
                Ok(made) => cgroup.members.push(Member::new(index, made)),
                Err(error) => {
                    // Remove only what we have made: the one that failed may be somebody else's.
                    let _ = self.remove(&mut cgroup);
                    return Err(error);
                }
            }
        }
        Ok(cgroup)
    }

    /// Like [`Layout::create`], but uses a cgroup that is there, with its limits, if nothing is in it. See
    /// [`Cgroup::stay_if_found`].
    ///
    /// # Errors
    /// `AlreadyExists` when processes are in it or it is frozen; everything that was made is removed again.
    pub fn create_or_use(&self, path: &str) -> Result<Cgroup> {
        let mut cgroup = Cgroup::new(checked_path(path)?);
        for (index, hierarchy) in self.hierarchies.iter().enumerate() {
            match hierarchy.create_or_use(path) {
                Ok(made) => cgroup.members.push(Member::new(index, made)),
                Err(error) => {
                    self.give_back(cgroup);
                    return Err(error);
                }
            }
        }
        if !cgroup.members.iter().any(|member| member.made.was_there()) {
            return Ok(cgroup);
        }
        let refused = |what, hint| Err(Error::new(Kind::AlreadyExists, format!("cgroup {path} {what}")).hint(hint));
        if !self.processes_at(path).is_empty() {
            self.give_back(cgroup);
            return refused("exists already and is in use", "choose another, or end what is in it");
        }
        let is_frozen = match self.version {
            Version::V1 => {
                let above = || self.unified().is_some_and(|index| v2::is_held(self.hierarchies[index].top(), path));
                self.v1_freezer().is_some_and(|freezer| v1::is_held(freezer.top(), Path::new(path))) || above()
            }
            Version::V2 => self.is_frozen(&cgroup),
        };
        if is_frozen {
            self.give_back(cgroup);
            return refused("exists already and is frozen", "thaw it, or choose another");
        }
        Ok(cgroup)
    }

    /// Like [`Layout::create_or_use`], for one that gets device rules: v1's kernel changes none where cgroups are below.
    ///
    /// # Errors
    /// `AlreadyExists` for one that has such; those of [`Layout::create_or_use`].
    pub fn create_or_use_with_devices(&self, path: &str) -> Result<Cgroup> {
        let devices = self.index("devices").filter(|_| self.version == Version::V1);
        if devices.is_some_and(|index| !self.hierarchies[index].names_below(path).is_empty()) {
            let message = format!("cgroup {path} exists already, with cgroups below it");
            return Err(Error::new(Kind::AlreadyExists, message)
                .hint("the kernel changes no device rules of such a one: remove those below it, or choose another"));
        }
        self.create_or_use(path)
    }

    /// Removes what was made of a cgroup that is not used after all.
    fn give_back(&self, mut cgroup: Cgroup) {
        cgroup.stay_if_found();
        // Remove only what we have made: the rest may be somebody else's.
        let _ = self.remove(&mut cgroup);
    }

    /// Where a cgroup is already that is about to be made, or used, at `path`. Looks into all hierarchies if it is in the
    /// first.
    pub fn found(&self, path: &str) -> Existed {
        let parts = path[1..].split('/').count();
        let there = |hierarchy: &&Hierarchy| hierarchy.has(path);
        if !self.hierarchies.first().is_some_and(|first| there(&first)) {
            return Existed::new();
        }
        self.hierarchies.iter().filter(there).map(|hierarchy| (hierarchy.mount().to_owned(), parts)).collect()
    }

    /// Takes over from the record of the cgroup's making how much of its path existed before: that stays when the cgroup
    /// is removed, and what was made with it goes.
    pub fn take_existed(&self, cgroup: &mut Cgroup, existed: &Existed) {
        for member in &mut cgroup.members {
            if let Some(existed) = existed.get(self.hierarchies[member.hierarchy].mount()) {
                member.made.take_existed(*existed);
            }
        }
    }

    /// Makes `path` as a parent of later cgroups: a launch then finds it there.
    ///
    /// # Errors
    /// As [`Layout::create`], but a cgroup that exists already is fine.
    pub fn prepare(&self, path: &str) -> Result<()> {
        let path = checked_path(path)?;
        self.hierarchies.iter().try_for_each(|hierarchy| hierarchy.prepare(path))
    }

    /// Removes `path` and those of its parents that are bowline's, as far as they are empty.
    pub fn remove_empty(&self, path: &str) {
        if let Ok(path) = checked_path(path) {
            self.hierarchies.iter().for_each(|hierarchy| hierarchy.remove_empty(path));
        }
    }

    /// Opens a cgroup that exists in at least one hierarchy, for example after a crash. `None` when it exists in none.
    pub fn open(&self, path: &str) -> Result<Option<Cgroup>> {
        let mut cgroup = Cgroup::new(checked_path(path)?);
        for (index, hierarchy) in self.hierarchies.iter().enumerate() {
            if let Some(made) = hierarchy.open(path)? {
                cgroup.members.push(Member::new(index, made));
            }
        }
        if let Some(kept) = self.kept.as_deref().filter(|kept| Path::new(path).starts_with(kept)) {
            cgroup.stay_in(kept);
        }
        if let Some((_, existed)) = self.found.as_ref().filter(|(found, _)| found == path) {
            self.take_existed(&mut cgroup, existed);
        }
        Ok((self.goes_without || !cgroup.members.is_empty()).then_some(cgroup))
    }

    /// `cgroup` with the parts of `other` in the hierarchies of `controllers`, such as `cpu,cpuacct`. Only on v1, where each
    /// hierarchy may have its own path.
    ///
    /// # Errors
    /// `NotFound` for a controller without a hierarchy, or where `other` is not in that; `Unsupported` on v2.
    pub fn mixed(&self, mut cgroup: Cgroup, other: Option<Cgroup>, controllers: &str) -> Result<Cgroup> {
        if self.version == Version::V2 {
            let message = format!("{controllers}: on cgroup v2 one path is for all controllers");
            return Err(Error::new(Kind::Unsupported, message));
        }
        let mut others = other.map(|other| other.members).unwrap_or_default();
        let none = |name: &str| Error::new(Kind::NotFound, format!("the hierarchy of {name} has no such cgroup"));
        let mut done = BTreeSet::new();
        for name in controllers.split(',') {
            let index = self.index(name).ok_or_else(|| none(name))?;
            if done.insert(index) {
                let at = others.iter().position(|member| member.hierarchy == index).ok_or_else(|| none(name))?;
                cgroup.members.retain(|member| member.hierarchy != index);
                cgroup.members.push(others.swap_remove(at));
            }
        }
        Ok(cgroup)
    }

    /// Removes the cgroup with everything below it, then those of its parents that were made with
    /// it, or are bowline's, and have become empty.
    ///
    /// # Errors
    /// Names the first hierarchy in which the cgroup is still busy; the others are done, and a
    /// second try may leave them out. A process stays in its cgroup for a moment after it was
    /// reaped (Linux 6.18). "Already gone" is success.
    pub fn remove(&self, cgroup: &mut Cgroup) -> Result<()> {
        let mut first = Ok(());
        let path = &cgroup.path;
        cgroup.members.retain(|member| {
            let removed = self.hierarchies[member.hierarchy].remove(path, &member.made);
            let busy = removed.is_err();
            if first.is_ok() {
                first = removed;
            }
            busy
        });
        first
    }

    /// How much of the cgroup's path existed before.
    pub fn parents_made(&self, cgroup: &Cgroup) -> Existed {
        let members = cgroup.members.iter();
        let found = members.filter_map(|m| Some((self.hierarchies[m.hierarchy].mount().into(), m.made.below()?)));
        found.collect()
    }

    /// Removes the parents of `path` that were `made` with it, as far as they are empty.
    pub fn remove_parents_made(&self, path: &str, made: &Existed) {
        let Ok(path) = checked_path(path) else { return };
        for hierarchy in &self.hierarchies {
            if let Some(existed) = made.get(hierarchy.mount()) {
                hierarchy.remove_made_parents(path, *existed);
            }
        }
    }

    /// Reads a file of the cgroup in the hierarchy of `controller`; `None` where this host has no
    /// such file. The file stays open for the next read.
    pub fn read(&self, cgroup: &Cgroup, controller: &str, file: &str) -> Option<String> {
        cgroup.member(self.index(controller)?)?.read(file)
    }

    /// Reads a file of the cgroup in the unified hierarchy, whatever its controllers: on hybrid
    /// hosts the pressure files are there too.
    pub fn read_unified(&self, cgroup: &Cgroup, file: &str) -> Option<String> {
        cgroup.member(self.unified()?)?.read(file)
    }

    /// The pids of all processes in the cgroup and below it, in any hierarchy, in the host's pid namespace.
    pub fn processes(&self, cgroup: &Cgroup) -> Vec<i32> {
        let mut pids = self.freezable(cgroup);
        for dir in self.beside_the_freezer(cgroup) {
            tree::collect_processes(dir, &mut pids);
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The pids of the processes that are frozen with the cgroup.
    pub fn freezable(&self, cgroup: &Cgroup) -> Vec<i32> {
        let mut pids = Vec::new();
        if let Some(dir) = self.freezer(cgroup) {
            cgroup.processes.borrow_mut().collect(self.version, dir, &mut pids);
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The cgroup's folders in the other hierarchies: somebody may have moved a process in some of them alone.
    fn beside_the_freezer<'a>(&self, cgroup: &'a Cgroup) -> impl Iterator<Item = BorrowedFd<'a>> {
        let freezer = self.index(FREEZER);
        let others = cgroup.members.iter().filter(move |member| Some(member.hierarchy) != freezer);
        others.filter_map(|member| member.made.dir().ok())
    }

    pub(crate) fn freezer<'a>(&self, cgroup: &'a Cgroup) -> Option<BorrowedFd<'a>> {
        cgroup.dir(self.index(FREEZER)?)
    }

    /// The folder of the cgroup by which its processes are frozen.
    pub fn freezer_folder(&self, cgroup: &Cgroup) -> Option<PathBuf> {
        let mount = self.hierarchies[self.index(FREEZER)?].mount();
        Some(mount.join(cgroup.path.trim_start_matches('/')))
    }

    /// Starts to freeze the processes of the cgroup, or thaws them. Freezing completes later: see
    /// [`Layout::is_frozen`].
    pub fn freeze(&self, cgroup: &Cgroup, frozen: bool) -> Result<()> {
        if self.goes_without() {
            let message = "tasks have no cgroups here, by which they could be frozen";
            return if frozen { Err(Error::new(Kind::Unsupported, message)) } else { Ok(()) };
        }
        let dir = self.freezer(cgroup);
        let dir = dir.ok_or_else(|| Error::new(Kind::NotFound, format!("cgroup {} has no freezer", cgroup.path)))?;
        let verb = if frozen { "freeze" } else { "thaw" };
        let done = match self.version {
            Version::V1 => v1::freeze(dir, frozen),
            Version::V2 => v2::freeze(dir, frozen),
        };
        if !frozen && matches!(done, Err(Errno::NOENT | Errno::NODEV)) {
            // The cgroup was removed, so no process is in it.
            return Ok(());
        }
        done.doing(Kind::Internal, || format!("cannot {verb} cgroup {}", cgroup.path))
    }

    /// Whether every process of the cgroup has stopped.
    pub fn is_frozen(&self, cgroup: &Cgroup) -> bool {
        self.freezer(cgroup).is_some_and(|dir| match self.version {
            Version::V1 => v1::is_frozen(dir),
            Version::V2 => v2::is_frozen(dir),
        })
    }

    /// Whether the cgroup itself is to be frozen, and not one above it.
    pub fn is_frozen_itself(&self, cgroup: &Cgroup) -> bool {
        self.freezer(cgroup).is_some_and(|dir| match self.version {
            Version::V1 => v1::is_frozen_itself(dir),
            Version::V2 => v2::is_frozen_itself(dir),
        })
    }

    /// Whether nothing freezes the processes of the cgroup, nor is about to.
    pub fn is_thawed(&self, cgroup: &Cgroup) -> bool {
        self.freezer(cgroup).is_some_and(|dir| match self.version {
            Version::V1 => v1::is_thawed(dir),
            Version::V2 => v2::is_thawed(dir),
        })
    }

    /// Sends SIGKILL to every process that is frozen with the cgroup. Returns a pidfd of each: when all have ended, call
    /// again until none is returned, because a process may have forked in between.
    ///
    /// The processes are frozen while their pids are looked up, so that none forks.
    pub fn kill(&self, cgroup: &Cgroup) -> Vec<OwnedFd> {
        self.freezer(cgroup).map_or_else(Vec::new, |dir| kill_below(self.version, dir))
    }

    /// Like [`kill`](Self::kill), of every process that is in the cgroup, or below it, in any hierarchy.
    pub fn kill_everywhere(&self, cgroup: &Cgroup) -> Vec<OwnedFd> {
        let mut killed = self.kill(cgroup);
        let mut known: BTreeSet<i32> = killed.iter().filter_map(|pidfd| sys::pid_of(pidfd.as_fd())).collect();
        for dir in self.beside_the_freezer(cgroup) {
            killed.extend(tree::signal_where(dir, libc::SIGKILL, |pid| known.insert(pid)));
        }
        killed
    }

    /// Sends `signal` once to every process that is in the cgroup, or below it, in any hierarchy.
    pub fn signal(&self, cgroup: &Cgroup, signal: i32) {
        let mut signalled = BTreeSet::new();
        for dir in cgroup.members.iter().filter_map(|member| member.made.dir().ok()) {
            tree::signal_where(dir, signal, |pid| signalled.insert(pid));
        }
    }
}

/// Kills every process below `dir`; returns a pidfd of each.
pub(crate) fn kill_below(version: Version, dir: BorrowedFd<'_>) -> Vec<OwnedFd> {
    match version {
        Version::V1 => v1::kill_below(dir),
        Version::V2 => v2::kill_below(dir),
    }
}
