//! Control groups: which hierarchies this host has, and one cgroup in them.
//!
//! A *path* is the same below every hierarchy: `/bowline/web/web`. Processes
//! join by writing `0` to `tasks`, themselves: writing another process's pid to
//! `cgroup.procs` waits 5–16 ms for an RCU grace period after a quiet spell.
//! Folders and `tasks` files stay open, so that an exec resolves no path.
//!
//! What a process deserves is decided elsewhere; this only finds, makes, fills,
//! reads, kills and removes.

mod mounts;
mod tree;
mod v1;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use oci_spec::runtime::LinuxResources;
use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Doing, Error, Kind, Result};
use crate::sys;

use mounts::Mount;
use tree::{open_dir, read_at, write_at};
use v1::{CONTROLLERS, FREEZER, TASKS};

/// Finds this host's hierarchies.
///
/// # Errors
/// `Unsupported` when there is nothing to limit and account tasks with.
pub fn detect() -> Result<Layout> {
    let path = "/proc/self/mountinfo";
    let text = std::fs::read_to_string(path).doing(Kind::Internal, || format!("cannot read {path}"))?;
    Layout::from_mounts(mounts::parse(&text))
}

/// The hierarchies of this host.
#[derive(Debug)]
pub struct Layout {
    hierarchies: Vec<Hierarchy>,
}

#[derive(Debug)]
struct Hierarchy {
    /// Controllers mounted together, or `name=systemd`.
    controllers: Vec<String>,
    mount: PathBuf,
    dir: OwnedFd,
}

/// What a process needs to put itself into a cgroup: it writes `0` to each.
///
/// Borrowed fds by number, as they go through a clone.
#[derive(Debug, Clone, Default)]
pub struct Entry {
    tasks: Vec<RawFd>,
}

impl Layout {
    fn from_mounts(mounts: Vec<Mount>) -> Result<Layout> {
        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        for mount in mounts {
            if mount.kind != "cgroup" || mount.root != Path::new("/") {
                continue;
            }
            let controllers: Vec<String> = mount
                .options
                .into_iter()
                .filter(|o| o.starts_with("name=") || CONTROLLERS.contains(&o.as_str()))
                .collect();
            let seen = hierarchies.iter().any(|h| h.controllers == controllers);
            if controllers.is_empty() || seen {
                continue;
            }
            let dir = open_dir(fs::CWD, &mount.target)
                .doing(Kind::Internal, || format!("cannot open {}", mount.target.display()))?;
            hierarchies.push(Hierarchy { controllers, mount: mount.target, dir });
        }
        let layout = Layout { hierarchies };
        if layout.index(FREEZER).is_none() {
            return Err(Error::new(
                Kind::Unsupported,
                "this host has no cgroup v1 freezer hierarchy, by which a task's processes are found and killed",
            )
            .hint("cgroup v1 or the hybrid layout is needed by this version"));
        }
        Ok(layout)
    }

    fn index(&self, controller: &str) -> Option<usize> {
        self.hierarchies.iter().position(|h| h.controllers.iter().any(|c| c == controller))
    }

    /// The controllers that are mounted, for `doctor`.
    pub fn controllers(&self) -> Vec<&str> {
        let all = self.hierarchies.iter().flat_map(|h| &h.controllers);
        all.map(String::as_str).collect()
    }

    /// Moves the calling process, which has one thread, to `path` everywhere;
    /// `/` is the root cgroup.
    ///
    /// # Errors
    /// `NotFound` when the cgroup is missing from a hierarchy.
    pub fn enter(&self, path: &str) -> Result<()> {
        for hierarchy in &self.hierarchies {
            let file = format!("{}/{TASKS}", path.trim_matches('/'));
            let file = file.trim_start_matches('/');
            write_at(hierarchy.dir.as_fd(), file, "0").map_err(|errno| {
                let kind = if errno == Errno::NOENT { Kind::NotFound } else { Kind::Internal };
                let at = hierarchy.mount.join(file);
                Error::new(kind, format!("cannot join cgroup: {}: {errno}", at.display()))
            })?;
        }
        Ok(())
    }

    /// Makes the cgroup at `path` and, where missing, its parents.
    ///
    /// # Errors
    /// `AlreadyExists` when processes are in it; whatever was made is removed.
    pub fn create(&self, path: &str) -> Result<Cgroup> {
        let path = checked_path(path)?;
        let mut cgroup = Cgroup { path: path.to_owned(), members: Vec::with_capacity(self.hierarchies.len()) };
        for (index, hierarchy) in self.hierarchies.iter().enumerate() {
            match hierarchy.create(path) {
                Ok((dir, tasks)) => cgroup.members.push(Member { hierarchy: index, dir, tasks }),
                Err(error) => {
                    // The one that failed may have been made in part.
                    self.remove_path(path, index + 1);
                    return Err(error);
                }
            }
        }
        Ok(cgroup)
    }

    /// Opens a cgroup that exists in at least one hierarchy, as after a crash.
    /// `None` when it exists in none.
    pub fn open(&self, path: &str) -> Result<Option<Cgroup>> {
        let path = checked_path(path)?;
        let mut members = Vec::new();
        for (index, hierarchy) in self.hierarchies.iter().enumerate() {
            let Ok(dir) = open_dir(&hierarchy.dir, Path::new(&path[1..])) else {
                continue;
            };
            let tasks = fs::openat(&dir, TASKS, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
                .doing(Kind::Internal, || format!("cannot open {TASKS} of cgroup {path}"))?;
            members.push(Member { hierarchy: index, dir, tasks });
        }
        let path = path.to_owned();
        Ok((!members.is_empty()).then_some(Cgroup { path, members }))
    }

    /// Removes the cgroup with everything below it, then those parents of it
    /// that have become empty, up to the root.
    ///
    /// # Errors
    /// Names the hierarchy in which processes are left. "Already gone" is success.
    pub fn remove(&self, cgroup: Cgroup) -> Result<()> {
        let path = cgroup.path.clone();
        drop(cgroup);
        self.remove_path(&path, self.hierarchies.len()).map_or(Ok(()), Err)
    }

    /// Removes `path` from the first `count` hierarchies; the first error, if any.
    fn remove_path(&self, path: &str, count: usize) -> Option<Error> {
        let mut first = None;
        for hierarchy in &self.hierarchies[..count] {
            if let Err(error) = hierarchy.remove(&path[1..]) {
                tracing::warn!(%error, "cgroup left behind");
                first.get_or_insert(error);
            }
        }
        first
    }

    /// Puts the limits of `resources` into effect.
    ///
    /// # Errors
    /// `Unsupported` when a limit needs a controller or file that this host
    /// lacks; `BadSpec` when the kernel refuses the value. Both name file and value.
    pub fn apply(&self, cgroup: &Cgroup, resources: &LinuxResources) -> Result<()> {
        for limit in v1::limits(resources)? {
            let Some(dir) = self.index(limit.controller).and_then(|i| cgroup.dir(i)) else {
                return Err(Error::new(
                    Kind::Unsupported,
                    format!(
                        "cannot set {} to {}: the cgroup controller {} is not mounted on this host",
                        limit.file, limit.value, limit.controller
                    ),
                )
                .hint("`bowline doctor` shows what this host can limit"));
            };
            write_at(dir, &limit.file, &limit.value).map_err(|errno| {
                let kind = match errno {
                    Errno::NOENT => Kind::Unsupported,
                    Errno::INVAL | Errno::RANGE | Errno::NODEV | Errno::BUSY => Kind::BadSpec,
                    _ => Kind::Internal,
                };
                Error::new(
                    kind,
                    format!("cannot write {} to {} of cgroup {}: {errno}", limit.value, limit.file, cgroup.path),
                )
            })?;
        }
        Ok(())
    }

    /// Reads a file of the cgroup in the hierarchy of `controller`; `None`
    /// where this host has no such file.
    pub fn read(&self, cgroup: &Cgroup, controller: &str, file: &str) -> Option<String> {
        let dir = cgroup.dir(self.index(controller)?)?;
        read_at(dir, file).ok()
    }

    /// Reads a file that holds one number.
    pub fn read_number(&self, cgroup: &Cgroup, controller: &str, file: &str) -> Option<u64> {
        self.read(cgroup, controller, file)?.trim().parse().ok()
    }

    /// Reads the value behind `key` in a file of `key value` lines.
    pub fn read_keyed(&self, cgroup: &Cgroup, controller: &str, file: &str, key: &str) -> Option<u64> {
        let text = self.read(cgroup, controller, file)?;
        let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
        pairs.find(|(k, _)| *k == key)?.1.trim().parse().ok()
    }

    /// Every process of the cgroup and of those below it, in the host's pids.
    pub fn processes(&self, cgroup: &Cgroup) -> Vec<i32> {
        let mut pids = Vec::new();
        if let Some(dir) = self.freezer(cgroup) {
            tree::collect_processes(dir, &mut pids);
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    fn freezer<'a>(&self, cgroup: &'a Cgroup) -> Option<BorrowedFd<'a>> {
        cgroup.dir(self.index(FREEZER)?)
    }

    /// Asks for the processes of the cgroup to be frozen, or thawed. Freezing
    /// completes later: see [`Layout::is_frozen`].
    pub fn freeze(&self, cgroup: &Cgroup, frozen: bool) -> Result<()> {
        let state = if frozen { "FROZEN" } else { "THAWED" };
        let dir = self.freezer(cgroup);
        let dir = dir.ok_or_else(|| Error::new(Kind::NotFound, format!("cgroup {} has no freezer", cgroup.path)))?;
        v1::freeze(dir, frozen)
            .doing(Kind::Internal, || format!("cannot write {state} to freezer.state of cgroup {}", cgroup.path))
    }

    /// Whether every process of the cgroup has stopped.
    pub fn is_frozen(&self, cgroup: &Cgroup) -> bool {
        self.freezer(cgroup).is_some_and(v1::is_frozen)
    }

    /// Sends SIGKILL to every process in the cgroup and below it. Returns a
    /// pidfd of each: when all have ended, call again until none is returned,
    /// as one may have forked in between.
    ///
    /// They are frozen while their pids are looked up, so that none forks.
    pub fn kill(&self, cgroup: &Cgroup) -> Vec<OwnedFd> {
        match self.freezer(cgroup) {
            Some(dir) => v1::kill_below(dir),
            None => Vec::new(),
        }
    }

    /// Sends `signal` to every process in the cgroup and below it.
    pub fn signal(&self, cgroup: &Cgroup, signal: i32) {
        if let Some(dir) = self.freezer(cgroup) {
            tree::signal_below(dir, signal);
        }
    }

    /// A cgroup for one exec, below the task's in the freezer hierarchy alone,
    /// so that everything it starts can be found again.
    pub fn create_exec_group(&self, cgroup: &Cgroup, name: &str) -> Result<ExecGroup> {
        let what = || format!("cannot create cgroup {}/{name}", cgroup.path);
        let index = self.index(FREEZER);
        let parent = index.and_then(|i| cgroup.member(i));
        let parent = parent.ok_or_else(|| Error::new(Kind::NotFound, what()))?;
        fs::mkdirat(&parent.dir, name, Mode::from_raw_mode(0o755)).doing(Kind::Internal, what)?;
        let dir = open_dir(&parent.dir, Path::new(name)).doing(Kind::Internal, what)?;
        let tasks =
            fs::openat(&dir, TASKS, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).doing(Kind::Internal, what)?;
        let parent = parent.dir.try_clone().doing(Kind::Internal, what)?;
        Ok(ExecGroup { name: name.to_owned(), freezer: index.unwrap_or_default(), parent, dir, tasks })
    }
}

/// One cgroup, in every hierarchy, held open.
#[derive(Debug)]
pub struct Cgroup {
    path: String,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    hierarchy: usize,
    dir: OwnedFd,
    tasks: OwnedFd,
}

impl Cgroup {
    /// What a child needs to join it.
    pub fn entry(&self) -> Entry {
        Entry { tasks: self.members.iter().map(|m| m.tasks.as_raw_fd()).collect() }
    }

    fn member(&self, hierarchy: usize) -> Option<&Member> {
        self.members.iter().find(|m| m.hierarchy == hierarchy)
    }

    fn dir(&self, hierarchy: usize) -> Option<BorrowedFd<'_>> {
        self.member(hierarchy).map(|m| m.dir.as_fd())
    }
}

impl Entry {
    /// Moves the calling process, which has one thread.
    pub fn join(&self) -> io::Result<()> {
        for &fd in &self.tasks {
            // The shim holds these open for as long as any child may join.
            sys::write_fd(fd, b"0")?;
        }
        Ok(())
    }

    /// The fds that must stay open in the child until it has joined.
    pub fn fds(&self) -> &[RawFd] {
        &self.tasks
    }
}

/// The cgroup of one exec with a deadline: in the freezer hierarchy, below the task's.
#[derive(Debug)]
pub struct ExecGroup {
    name: String,
    freezer: usize,
    parent: OwnedFd,
    dir: OwnedFd,
    tasks: OwnedFd,
}

impl ExecGroup {
    /// What the exec needs to join the task's cgroup everywhere and this one
    /// in the freezer hierarchy.
    pub fn entry(&self, task: &Cgroup) -> Entry {
        let tasks = task
            .members
            .iter()
            .map(|m| if m.hierarchy == self.freezer { self.tasks.as_raw_fd() } else { m.tasks.as_raw_fd() });
        Entry { tasks: tasks.collect() }
    }

    /// As [`Layout::kill`].
    pub fn kill(&self) -> Vec<OwnedFd> {
        v1::kill_below(self.dir.as_fd())
    }

    /// Removes the cgroup. If an exec that ended in time left a daemon in it,
    /// it stays, and goes with the task's.
    pub fn remove(self) {
        let ExecGroup { name, parent, dir, tasks, .. } = self;
        drop((dir, tasks));
        if let Err(errno) = fs::unlinkat(&parent, &name, AtFlags::REMOVEDIR) {
            tracing::debug!(%errno, name, "exec cgroup stays until the task goes");
        }
    }
}

impl Hierarchy {
    /// Makes `path`; returns its folder and its `tasks` file.
    fn create(&self, path: &str) -> Result<(OwnedFd, OwnedFd)> {
        let at = || self.mount.join(&path[1..]);
        // Another shim may remove an empty parent between two of our steps.
        for _ in 0..16 {
            match self.try_create(&path[1..]) {
                Err(Errno::NOENT) => continue,
                Err(Errno::BUSY | Errno::NOTEMPTY) => {
                    return Err(Error::new(
                        Kind::AlreadyExists,
                        format!("cgroup {} exists already and is in use", at().display()),
                    )
                    .hint("an earlier run left it behind; kill its processes and remove it"));
                }
                done => return done.doing(Kind::Internal, || format!("cannot create cgroup {}", at().display())),
            }
        }
        Err(Error::new(Kind::Internal, format!("cannot create cgroup {}: its parent keeps vanishing", at().display())))
    }

    fn try_create(&self, path: &str) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
        let mut parent = self.dir.try_clone().map_err(|_| Errno::MFILE)?;
        let mut parts = path.split('/').peekable();
        while let Some(part) = parts.next() {
            let leaf = parts.peek().is_none();
            match fs::mkdirat(&parent, part, Mode::from_raw_mode(0o755)) {
                // A stale leaf has stale limits: only an empty one is replaced.
                Err(Errno::EXIST) if leaf => {
                    fs::unlinkat(&parent, part, AtFlags::REMOVEDIR)?;
                    fs::mkdirat(&parent, part, Mode::from_raw_mode(0o755))?;
                }
                Err(Errno::EXIST) | Ok(()) => {}
                Err(errno) => return Err(errno),
            }
            let dir = open_dir(&parent, Path::new(part))?;
            if self.controllers.iter().any(|c| c == "cpuset") {
                v1::inherit_cpuset(&parent, &dir)?;
            }
            parent = dir;
        }
        let tasks = fs::openat(&parent, TASKS, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok((parent, tasks))
    }

    fn remove(&self, path: &str) -> Result<()> {
        tree::remove_tree(&self.dir, path)
            .doing(Kind::Internal, || format!("cannot remove cgroup {}", self.mount.join(path).display()))?;
        // Parents go with their last child; others' children keep them.
        let mut parent = Path::new(path).parent();
        while let Some(dir) = parent.filter(|p| !p.as_os_str().is_empty()) {
            if fs::unlinkat(&self.dir, dir, AtFlags::REMOVEDIR).is_err() {
                break;
            }
            parent = dir.parent();
        }
        Ok(())
    }
}

/// One value for one file.
#[derive(Debug, PartialEq, Eq)]
struct Limit {
    controller: &'static str,
    file: String,
    value: String,
}

/// A cgroup path as the kernel and this crate write it: absolute, no `..`.
///
/// # Errors
/// `BadSpec` naming the path.
pub fn checked_path(path: &str) -> Result<&str> {
    let plain = path.starts_with('/')
        && path.len() > 1
        && Path::new(path).components().skip(1).all(|c| matches!(c, std::path::Component::Normal(_)))
        && !path.contains("//")
        && !path.ends_with('/')
        && !path.contains("/./");
    if plain {
        return Ok(path);
    }
    Err(Error::new(Kind::BadSpec, format!("cgroup path {path:?} is not absolute and plain"))
        .hint("write it as /parent/name, without `..`, `.` or empty parts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_path_is_absolute_and_plain() {
        assert!(checked_path("/bowline/web/web").is_ok());
        for bad in ["", "/", "a/b", "/a/../b", "/a/", "/a//b", "/a/./b", "/.."] {
            assert!(checked_path(bad).is_err(), "{bad:?}");
        }
    }
}
