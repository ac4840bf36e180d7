//! Ending whatever is in a cgroup, and the cgroup with it, whoever made it.
//!
//! ```text
//!   kill ─► wait ─► [some live] ─► kill again, five times ─► the rest to the parent ─► removed, depth first
//! ```
//!
//! On v1 a process in a frozen cgroup, or below one, does not die of SIGKILL:
//! once it was sent that, it is moved to where nobody is frozen.
//!
//! Every hierarchy is looked at: a cgroup may be left in one of them alone.
//! What has gone already is what was wanted. Blocks: for workers, and for
//! programs that may wait.

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

/// How often all that is there is killed: somebody may fork, or come in.
const PASSES: u32 = 5;

/// How long those that were killed may take to end, before they are killed again.
const ENDED: Duration = Duration::from_secs(2);

/// How long a cgroup may take to be empty after its last process has ended: v1
/// tells nobody.
const EMPTY: Duration = Duration::from_secs(1);

/// Asked when processes were looked up, and before any of them is signalled:
/// whether they may be.
pub type Permit<'a> = &'a dyn Fn() -> bool;

/// What became of a cgroup that was to go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Destroyed {
    /// Whether there was one, in any hierarchy.
    pub was_there: bool,
    /// Processes, or threads of a threaded one, that could not be ended and are
    /// in a parent now.
    pub moved: Vec<i32>,
}

impl Layout {
    /// Ends every process of the cgroup and of those below it, in whatever
    /// hierarchy it is. With a `permit`, those alone that were there before that
    /// was given: nobody who comes then is hit.
    ///
    /// # Errors
    /// `WrongState` without the permit; `Internal` naming those that live on.
    pub fn kill_all(&self, cgroup: &Cgroup, permit: Option<Permit<'_>>) -> Result<()> {
        // Where all that forks can be stopped comes first.
        let freezer = self.index(FREEZER);
        let mut members: Vec<_> = cgroup.members.iter().collect();
        members.sort_by_key(|member| Some(member.hierarchy) != freezer);
        for _ in 0..PASSES {
            let begun = Instant::now();
            for member in &members {
                // It has been removed: nobody is in it.
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

    /// Whether the process behind a pidfd is frozen where a frozen process does
    /// not die: on v1.
    pub fn is_held(&self, pidfd: BorrowedFd<'_>) -> bool {
        let held = |freezer: &Hierarchy| Some(v1::is_held(freezer.top(), &self.path_of(sys::pid_of(pidfd)?)?));
        self.v1_freezer().and_then(held).unwrap_or_default()
    }

    /// Whether there is such a place here: v2 lets what is frozen die.
    pub fn holds_frozen(&self) -> bool {
        self.v1_freezer().is_some()
    }

    fn v1_freezer(&self) -> Option<&Hierarchy> {
        self.index(FREEZER).map(|index| &self.hierarchies[index]).filter(|freezer| !freezer.unified)
    }

    /// Has those die that were sent SIGKILL, and that somebody keeps frozen with a
    /// parent of their cgroup: they are moved to the top of the hierarchy, which
    /// nobody can freeze, and run no instruction of their own there. Whoever else
    /// is frozen with them stays so. Blocks for the kernel's grace period.
    pub fn free(&self, killed: &[OwnedFd]) {
        for pidfd in killed.iter().map(OwnedFd::as_fd).filter(|pidfd| self.is_held(*pidfd)) {
            let Some((pid, freezer)) = sys::pid_of(pidfd).zip(self.index(FREEZER)) else { continue };
            if let Err(errno) = write_at(self.hierarchies[freezer].top(), v2::PROCS, &pid.to_string()) {
                tracing::warn!(%errno, pid, "a process that was killed stays in a frozen cgroup");
            }
        }
    }

    /// A pidfd of process `pid` if that is in the cgroup or below it: never of a
    /// stranger who was given its number.
    pub fn member(&self, cgroup: &Cgroup, pid: i32) -> Option<OwnedFd> {
        cgroup.members.iter().find_map(|member| tree::member(member.made.dir().ok()?, pid))
    }

    /// Kills what is in one hierarchy; returns a pidfd of each.
    fn kill_in(&self, hierarchy: usize, dir: BorrowedFd<'_>) -> Vec<OwnedFd> {
        if self.hierarchies[hierarchy].unified {
            return v2::kill_below(dir);
        }
        if Some(hierarchy) != self.index(FREEZER) {
            return tree::signal_below(dir, libc::SIGKILL);
        }
        let killed = kill_below(self.version, dir);
        if !killed.is_empty() {
            // Who has frozen one below is not asked.
            v1::thaw_below(dir);
        }
        killed
    }

    /// Kills only the processes that `permit` was given for; returns a pidfd of each.
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
        // Before anybody is frozen who must not be.
        if !permit() {
            return Err(refused());
        }
        let (unified, freezer) = (self.hierarchies[hierarchy].unified, Some(hierarchy) == self.index(FREEZER));
        // Frozen while they are looked up and asked for, so that none forks. One
        // that cannot be is killed all the same.
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

    /// Every process of the cgroup at `path`, absolute and plain, and of those
    /// below it, in whatever hierarchy; 0 for one of another pid namespace.
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

    /// Those of them that have not ended: one is listed for a moment longer.
    fn living(&self, cgroup: &Cgroup) -> Vec<i32> {
        let lives = |pid: &i32| match sys::pidfd_open(*pid) {
            Ok(pidfd) => !has_ended(&pidfd, Duration::ZERO),
            // It has gone, or is of another pid namespace.
            Err(_) => *pid == 0,
        };
        self.processes_at(&cgroup.path).into_iter().filter(lives).collect()
    }

    /// Ends what is in the cgroup at `path` and removes it with all below it.
    /// What cannot be ended is moved to the nearest parent that takes it.
    ///
    /// # Errors
    /// As [`Layout::kill_all`] without the permit; else all that kept it from
    /// going, in one.
    pub fn destroy(&self, path: &str, permit: Option<Permit<'_>>) -> Result<Destroyed> {
        self.destroy_or(path, permit, |cgroup| Ok(self.move_up(cgroup)))
    }

    /// As [`Layout::destroy`], but what cannot be ended stays where it is, so that it is found again.
    ///
    /// # Errors
    /// Names who lives on.
    pub fn end(&self, path: &str, permit: Option<Permit<'_>>) -> Result<()> {
        let keep = |cgroup: &Cgroup| match self.living(cgroup) {
            left if left.is_empty() => Ok(Vec::new()),
            left => Err(still_there(cgroup, &left)),
        };
        self.destroy_or(path, permit, keep).map(drop)
    }

    /// Ends and removes; `rest` is done of a cgroup in which somebody may live on.
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
            // It may have been made by whoever owns it now.
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

    /// Removes the cgroup at `path` if nothing is in it, or leaves it soon; ends nobody.
    ///
    /// # Errors
    /// As the kernel refuses to remove what is in use.
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

    /// Moves what is left in the cgroup, and in those below it, to the nearest
    /// parent that takes it. Returns the pids that it moved.
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
            // Written, a 0 would be us.
            let ids = ids.into_iter().filter(|id| *id > 0);
            moved.extend(ids.filter(|id| move_one(hierarchy, &cgroup.path, file, *id)));
        }
        moved.sort_unstable();
        moved.dedup();
        moved
    }
}

/// Whether `id` could be moved to a parent of `path`.
fn move_one(hierarchy: &Hierarchy, path: &str, file: &str, id: i32) -> bool {
    let mut above = path;
    while let Some((parent, _)) = above.rsplit_once('/') {
        let join = format!("{parent}/{file}");
        match write_at(hierarchy.top(), join.trim_start_matches('/'), &id.to_string()) {
            Ok(()) => return true,
            Err(Errno::SRCH) => return false,
            // On v2 a parent that has handed controllers down takes none; the
            // top of all does.
            Err(errno) => tracing::debug!(%errno, id, join, "not moved there"),
        }
        above = parent;
    }
    false
}

/// Whether its members are threads, whose processes are a parent's.
pub fn is_threaded(dir: BorrowedFd<'_>) -> bool {
    read_at(dir, v2::TYPE).is_ok_and(|kind| kind.trim() == "threaded")
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

/// Waits until all have ended, in a pass that has begun then.
fn wait_for(killed: &[OwnedFd], begun: Instant) {
    for pidfd in killed {
        has_ended(pidfd, ENDED.saturating_sub(begun.elapsed()));
    }
}

/// Whether the process behind a pidfd has ended by then.
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
