//! Ends everything in a cgroup, and removes the cgroup, whoever made it.
//!
//! ```text
//!   kill ─► wait ─► [some live] ─► kill again, five times ─► the rest to the parent ─► removed, depth first
//! ```
//!
//! On v1 a process in a frozen cgroup, or below one, does not die of SIGKILL: once SIGKILL was
//! sent, the process is moved to where nothing is frozen.
//!
//! Every hierarchy is searched: a cgroup may be left in only one of them. What has gone already
//! counts as done. Blocks: for workers, and for programs that may wait.

use std::cell::OnceCell;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use bowline_error::{Error, Kind, Result, together};
use bowline_sys as sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::cgroup::Cgroup;
use crate::hierarchy::Hierarchy;
use crate::layout::{Layout, kill_below};
use crate::tree::{self, read_at, write_at};
use crate::v1::{self, FREEZER, TASKS};
use crate::v2;

/// How often everything in the cgroup is killed: processes may fork, or come in.
const PASSES: u32 = 5;

/// How long killed processes may take to end before they are killed again.
const ENDED: Duration = Duration::from_secs(2);

/// How long a cgroup may take to be empty after its last process has ended: v1 does not report it.
const EMPTY: Duration = Duration::from_secs(1);

/// Called after processes were looked up and before any of them is signalled: whether they may be signalled.
pub type Permit<'a> = &'a dyn Fn() -> bool;

/// The result of destroying a cgroup.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Destroyed {
    /// Whether the cgroup existed, in any hierarchy.
    pub was_there: bool,
    /// Processes, or threads of a threaded cgroup, that could not be ended and are in a parent now.
    pub moved: Vec<i32>,
}

impl Layout {
    /// Ends every process of the cgroup and of those below it, in any hierarchy. With a `permit`,
    /// only processes that were there before the permit was given: one that comes later is not hit.
    ///
    /// # Errors
    /// `WrongState` without the permit; `Internal` naming the processes that live on.
    pub fn kill_all(&self, cgroup: &Cgroup, permit: Option<Permit<'_>>) -> Result<()> {
        // The hierarchy where everything that forks can be stopped comes first.
        let freezer = self.index(FREEZER);
        let mut members: Vec<_> = cgroup.members.iter().collect();
        members.sort_by_key(|member| Some(member.hierarchy) != freezer);
        for _ in 0..PASSES {
            let begun = Instant::now();
            for member in &members {
                // The cgroup has been removed: no process is in it.
                let Ok(dir) = member.made.dir() else { continue };
                let killed = match permit {
                    None => self.kill_in(member.hierarchy, dir),
                    Some(permit) => self.kill_permitted(cgroup, member.hierarchy, dir, permit)?,
                };
                self.free(&killed);
                wait_for(&killed, begun);
            }
            if self.living(cgroup).is_empty() {
                return Ok(());
            }
        }
        match self.living(cgroup) {
            left if left.is_empty() => Ok(()),
            left => Err(still_there(cgroup, &left)),
        }
    }

    /// Kills, once, what is in a cgroup that could not be removed, in the hierarchies where it still is: somebody has moved
    /// it out of the one by which the cgroup's processes are found. Blocks as [`Layout::free`].
    pub fn kill_left(&self, cgroup: &Cgroup) {
        for member in &cgroup.members {
            if let Ok(dir) = member.made.dir() {
                self.free(&self.kill_in(member.hierarchy, dir));
            }
        }
    }

    /// Moves those processes back into the cgroup that another cgroup, in which somebody has put them, keeps frozen. What
    /// the other hierarchies list is the cgroup's. Blocks as [`Layout::free`].
    ///
    /// # Errors
    /// The kernel's, for the first that cannot be moved.
    pub fn take_back_frozen(&self, cgroup: &Cgroup) -> Result<()> {
        let Some(freezer) = self.v1_freezer() else { return Ok(()) };
        for pid in self.outside(cgroup, &[]).into_iter().filter(|pid| self.freezes(*pid)) {
            match freezer.move_process(&cgroup.path, pid) {
                Err(error) if error.kind() != Kind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// The living processes of the cgroup that are not in it by the hierarchy in which it is frozen and killed: those that
    /// other hierarchies list, and those of `known`.
    pub fn outside(&self, cgroup: &Cgroup, known: &[i32]) -> Vec<i32> {
        let inside = self.freezable(cgroup);
        let listed = if self.holds_frozen() { self.processes_at(&cgroup.path) } else { Vec::new() };
        let mut outside: Vec<i32> = listed.into_iter().chain(known.iter().copied()).collect();
        outside.sort_unstable();
        outside.dedup();
        let is_outside = |pid: i32| self.path_of(pid).is_some_and(|path| !path.starts_with(&cgroup.path));
        // One that has ended is in the root cgroup.
        outside.retain(|pid| !inside.contains(pid) && is_outside(*pid) && lives(*pid));
        outside
    }

    /// Whether the process behind a pidfd is frozen where a frozen process does not die, which is on v1.
    pub fn is_held(&self, pidfd: BorrowedFd<'_>) -> bool {
        sys::pid_of(pidfd).is_some_and(|pid| self.freezes(pid))
    }

    /// Whether a process is frozen on v1, where a frozen process does not die and looks like one that waits for a disk.
    pub fn freezes(&self, pid: i32) -> bool {
        let held = |freezer: &Hierarchy| Some(v1::is_held(freezer.top(), &self.path_of(pid)?));
        self.v1_freezer().and_then(held).unwrap_or_default()
    }

    /// Whether this host has such hierarchies: on v2 a frozen process dies.
    pub fn holds_frozen(&self) -> bool {
        self.v1_freezer().is_some()
    }

    pub(crate) fn v1_freezer(&self) -> Option<&Hierarchy> {
        self.index(FREEZER).map(|index| &self.hierarchies[index]).filter(|freezer| !freezer.unified)
    }

    /// Lets processes die that were sent SIGKILL while a parent of their cgroup is frozen: they are
    /// moved to the top of the hierarchy, which cannot be frozen, and run no instruction of their
    /// program there. Other processes that are frozen with them stay frozen. Blocks for the
    /// kernel's grace period.
    pub fn free(&self, killed: &[OwnedFd]) {
        for pidfd in killed.iter().map(OwnedFd::as_fd).filter(|pidfd| self.is_held(*pidfd)) {
            let Some((pid, freezer)) = sys::pid_of(pidfd).zip(self.index(FREEZER)) else { continue };
            if let Err(errno) = write_at(self.hierarchies[freezer].top(), v2::PROCS, &pid.to_string()) {
                tracing::warn!(%errno, pid, "a process that was killed stays in a frozen cgroup");
            }
        }
    }

    /// A pidfd of process `pid` if that is in the cgroup or below it: never of a stranger that was given its pid.
    pub fn member(&self, cgroup: &Cgroup, pid: i32) -> Option<OwnedFd> {
        cgroup.members.iter().find_map(|member| tree::member(member.made.dir().ok()?, pid))
    }

    /// Kills the processes in one hierarchy; returns a pidfd of each.
    fn kill_in(&self, hierarchy: usize, dir: BorrowedFd<'_>) -> Vec<OwnedFd> {
        if self.hierarchies[hierarchy].unified {
            return v2::kill_below(dir);
        }
        if Some(hierarchy) != self.index(FREEZER) {
            return tree::signal_below(dir, libc::SIGKILL);
        }
        let killed = kill_below(self.version, dir);
        if !killed.is_empty() {
            // Thaw also what another process has frozen below.
            v1::thaw_below(dir);
        }
        killed
    }

    /// Kills only the processes for which `permit` was given; returns a pidfd of each.
    fn kill_permitted(
        &self,
        cgroup: &Cgroup,
        hierarchy: usize,
        dir: BorrowedFd<'_>,
        permit: Permit<'_>,
    ) -> Result<Vec<OwnedFd>> {
        if tree::members_below(dir).is_empty() {
            return Ok(Vec::new());
        }
        let refused =
            || Error::new(Kind::WrongState, format!("cgroup {} is in use: somebody has come to own it", cgroup.path));
        // Before freezing anything that must not be frozen.
        if !permit() {
            return Err(refused());
        }
        let (unified, freezer) = (self.hierarchies[hierarchy].unified, Some(hierarchy) == self.index(FREEZER));
        // Freeze the processes while they are looked up and the permit is asked for, so that none
        // forks. Processes that cannot be frozen are killed all the same.
        let _ = match (unified, freezer) {
            (true, _) => v2::freeze(dir, true),
            (false, true) => v1::freeze(dir, true),
            (false, false) => Ok(()),
        };
        let given = OnceCell::new();
        let killed = tree::signal_where(dir, libc::SIGKILL, |_| *given.get_or_init(permit));
        match (unified, freezer) {
            (true, _) => drop(v2::freeze(dir, false)),
            (false, true) => v1::thaw_below(dir),
            (false, false) => {}
        }
        if given.get() == Some(&false) { Err(refused()) } else { Ok(killed) }
    }

    /// Every process of the cgroup at `path`, which is absolute and without `..`, and of those
    /// below it, in any hierarchy; 0 for a process of another pid namespace.
    pub fn processes_at(&self, path: &str) -> Vec<i32> {
        let mut pids = Vec::new();
        for hierarchy in &self.hierarchies {
            if let Ok(dir) = tree::open_dir(hierarchy.top(), Path::new(&path[1..])) {
                tree::collect_processes(dir.as_fd(), &mut pids);
            }
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The processes in the cgroup and in those below it, in any hierarchy, that have not ended: an ended one is listed for
    /// a moment longer. 0 for a process of another pid namespace.
    pub fn living(&self, cgroup: &Cgroup) -> Vec<i32> {
        self.processes_at(&cgroup.path).into_iter().filter(|pid| lives(*pid)).collect()
    }

    /// Ends the processes in the cgroup at `path` and removes it with everything below it.
    /// Processes that cannot be ended are moved to the nearest parent that takes them.
    ///
    /// # Errors
    /// As [`Layout::kill_all`] without the permit; else everything that kept the cgroup from being removed, in one.
    pub fn destroy(&self, path: &str, permit: Option<Permit<'_>>) -> Result<Destroyed> {
        self.destroy_or(path, permit, |cgroup| Ok(self.move_up(cgroup)))
    }

    /// Like [`Layout::destroy`], but processes that cannot be ended stay where they are, so that they are found again.
    ///
    /// # Errors
    /// Names the processes that live on.
    pub fn end(&self, path: &str, permit: Option<Permit<'_>>) -> Result<()> {
        let keep = |cgroup: &Cgroup| match self.living(cgroup) {
            left if left.is_empty() => Ok(Vec::new()),
            left => Err(still_there(cgroup, &left)),
        };
        self.destroy_or(path, permit, keep).map(drop)
    }

    /// Ends and removes; calls `rest` for a cgroup in which processes may live on.
    fn destroy_or(
        &self,
        path: &str,
        permit: Option<Permit<'_>>,
        rest: impl FnOnce(&Cgroup) -> Result<Vec<i32>>,
    ) -> Result<Destroyed> {
        let Some(mut cgroup) = self.open(path)? else {
            return Ok(Destroyed::default());
        };
        let mut errors = Vec::new();
        match self.kill_all(&cgroup, permit) {
            Err(error) if error.kind() == Kind::WrongState => return Err(error),
            Err(error) => errors.push(error),
            // Its current owner may have made it.
            Ok(()) if permit.is_some_and(|permit| !permit()) => {
                return Err(Error::new(Kind::WrongState, format!("cgroup {path} has an owner by now")));
            }
            Ok(()) => {}
        }
        let moved = rest(&cgroup)?;
        let removed = self.remove_patiently(&mut cgroup);
        if removed.is_ok() {
            return Ok(Destroyed { was_there: true, moved });
        }
        errors.extend(removed.err());
        together(errors).map(|()| Destroyed::default())
    }

    /// Removes the cgroup at `path` if it is empty, or will be soon; ends no process.
    ///
    /// # Errors
    /// The kernel's error when the cgroup is in use.
    pub fn remove_unused(&self, path: &str) -> Result<()> {
        self.open(path)?.map_or(Ok(()), |mut cgroup| self.remove_patiently(&mut cgroup))
    }

    /// Removes an emptied cgroup from every hierarchy.
    fn remove_patiently(&self, cgroup: &mut Cgroup) -> Result<()> {
        let begun = Instant::now();
        let mut wait = Duration::from_micros(100);
        loop {
            let mut errors = Vec::new();
            let path = cgroup.path.clone();
            cgroup.members.retain(|member| {
                let removed = self.hierarchies[member.hierarchy].remove(&path, &member.made);
                removed.map_err(|error| errors.push(error)).is_err()
            });
            if errors.is_empty() || begun.elapsed() > EMPTY {
                return together(errors);
            }
            std::thread::sleep(wait);
            wait *= 2;
        }
    }

    /// Moves what is left in the cgroup, and in those below it, to the nearest parent that takes
    /// it. Returns the pids that were moved.
    fn move_up(&self, cgroup: &Cgroup) -> Vec<i32> {
        let mut moved = Vec::new();
        for member in &cgroup.members {
            let hierarchy = &self.hierarchies[member.hierarchy];
            let Ok(dir) = member.made.dir() else { continue };
            let file = match hierarchy.unified {
                false => TASKS,
                true if is_threaded(dir) => v2::THREADS,
                true => v2::PROCS,
            };
            let mut ids = Vec::new();
            tree::collect(dir, file, &mut ids);
            // Writing a 0 would move the caller.
            let ids = ids.into_iter().filter(|id| *id > 0);
            moved.extend(ids.filter(|id| move_one(hierarchy, &cgroup.path, file, *id)));
        }
        moved.sort_unstable();
        moved.dedup();
        moved
    }
}

/// Moves `id` to a parent of `path`; returns whether that worked.
fn move_one(hierarchy: &Hierarchy, path: &str, file: &str, id: i32) -> bool {
    let mut above = path;
    while let Some((parent, _)) = above.rsplit_once('/') {
        let join = format!("{parent}/{file}");
        match write_at(hierarchy.top(), join.trim_start_matches('/'), &id.to_string()) {
            Ok(()) => return true,
            Err(Errno::SRCH) => return false,
            // On v2 a parent that has handed controllers down takes no process; the top of the hierarchy does.
            Err(errno) => tracing::debug!(%errno, id, join, "not moved there"),
        }
        above = parent;
    }
    false
}

/// Whether the members of the cgroup are threads of processes in a parent.
pub fn is_threaded(dir: BorrowedFd<'_>) -> bool {
    read_at(dir, v2::TYPE).is_ok_and(|kind| kind.trim() == "threaded")
}

/// Whether a listed process has not ended; 0 is one of another pid namespace.
fn lives(pid: i32) -> bool {
    match sys::pidfd_open(pid) {
        Ok(pidfd) => !has_ended(&pidfd, Duration::ZERO),
        Err(_) => pid == 0,
    }
}

fn still_there(cgroup: &Cgroup, left: &[i32]) -> Error {
    let pids: Vec<String> = left.iter().map(i32::to_string).collect();
    let message = match left.len() {
        1 => format!("cannot kill process {} of cgroup {}", pids[0], cgroup.path),
        _ => format!("cannot kill {} processes of cgroup {}: {}", pids.len(), cgroup.path, pids.join(", ")),
    };
    Error::new(Kind::Internal, message)
        .hint("a process ends when what it waits for in the kernel is done, or a frozen parent cgroup is thawed")
}

/// Waits until all have ended, in a pass that began at `begun`.
fn wait_for(killed: &[OwnedFd], begun: Instant) {
    for pidfd in killed {
        has_ended(pidfd, ENDED.saturating_sub(begun.elapsed()));
    }
}

/// Waits until the process behind a pidfd has ended, at most `within`; returns whether it has.
pub fn has_ended(pidfd: &OwnedFd, within: Duration) -> bool {
    let begun = Instant::now();
    loop {
        let left = Timespec::try_from(within.saturating_sub(begun.elapsed())).unwrap_or_default();
        // A pidfd is readable once its process has ended.
        match poll(&mut [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
}
