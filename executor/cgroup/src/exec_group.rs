//! The cgroups of execs: one of their own below the task's, or the one to which the task's init has
//! moved; and how to kill an exec that has neither.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use bowline_sys::proc_stat::{self, ProcStat};
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;

use crate::cgroup::Cgroup;
use crate::entry::Entry;
use crate::layout::{Layout, kill_below};
use crate::membership::{Membership, UNIFIED};
use crate::tree::{self, open_dir};
use crate::v1::{FREEZER, TASKS};
use crate::v2;
use crate::version::Version;

/// The cgroup of an exec: below the task's, on v1 in the freezer hierarchy alone.
/// The next exec may use it when it is empty again.
#[derive(Debug)]
pub struct ExecGroup {
    version: Version,
    freezer: usize,
    number: u64,
    path: String,
    dir: OwnedFd,
    /// The file through which the exec joins the cgroup.
    tasks: OwnedFd,
}

impl ExecGroup {
    /// The entry through which the exec joins the task's cgroup everywhere, and this one in the freezer hierarchy.
    pub fn entry(&self, task: &Cgroup) -> Entry {
        let own = self.tasks.as_raw_fd();
        match (self.version, task.member(self.freezer)) {
            (Version::V1, Some(freezer)) => {
                let entry = Entry::new(self.path.clone(), task.v1_tasks(), task.unified());
                entry.with(own, freezer.made.tasks.as_raw_fd())
            }
            _ => Entry::new(self.path.clone(), task.v1_tasks(), Some((self.dir.as_raw_fd(), own))),
        }
    }

    /// Kills and returns what [`Layout::kill`] does, for the cgroup of this exec alone.
    pub fn kill(&self) -> Vec<OwnedFd> {
        kill_below(self.version, self.dir.as_fd())
    }

    /// The number of this cgroup among those of its task.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Stores a number with the cgroup, for whoever opens it after us; `None` removes it. Processes in the task cannot
    /// change it: attributes in `trusted` need CAP_SYS_ADMIN on the host (xattr(7)).
    ///
    /// # Errors
    /// What the kernel says.
    pub fn note(&self, number: Option<u64>) -> rustix::io::Result<()> {
        match number {
            Some(number) => fs::fsetxattr(&self.dir, NOTE, number.to_string().as_bytes(), fs::XattrFlags::empty()),
            None => match fs::fremovexattr(&self.dir, NOTE) {
                Err(Errno::NODATA) => Ok(()),
                removed => removed,
            },
        }
    }

    /// The number that [`ExecGroup::note`] has stored.
    pub fn noted(&self) -> Option<u64> {
        let mut text = [0; 20];
        let length = fs::fgetxattr(&self.dir, NOTE, &mut text).ok()?;
        std::str::from_utf8(text.get(..length)?).ok()?.parse().ok()
    }

    /// Whether nothing is left of the last exec.
    pub fn is_empty(&self) -> bool {
        let mut pids = Vec::new();
        tree::collect_processes(self.dir.as_fd(), &mut pids);
        pids.is_empty()
    }
}

/// The extended attribute of [`ExecGroup::note`].
const NOTE: &str = "trusted.bowline";

/// A cgroup of the unified hierarchy that the task has made below its own.
#[derive(Debug)]
pub struct Below {
    path: String,
    dir: OwnedFd,
    procs: OwnedFd,
}

impl Below {
    /// The entry through which a process joins this cgroup, and the task's cgroup elsewhere.
    pub fn entry(&self, task: &Cgroup) -> Entry {
        let unified = Some((self.dir.as_raw_fd(), self.procs.as_raw_fd()));
        Entry::new(self.path.clone(), task.v1_tasks(), unified)
    }
}

impl Layout {
    /// Makes a cgroup for one exec at a time, below the task's (v1: in the freezer hierarchy
    /// alone), so that everything the exec starts can be found again. It is removed with the
    /// task's.
    pub fn create_exec_group(&self, cgroup: &Cgroup, name: &str, number: u64) -> Result<ExecGroup> {
        let what = || format!("cannot create cgroup {}/{name}", cgroup.path);
        let parent = self.freezer(cgroup).ok_or_else(|| Error::new(Kind::NotFound, what()))?;
        fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)).doing(Kind::Internal, what)?;
        self.open_exec_group(cgroup, name, number)
    }

    /// Opens a cgroup that [`Layout::create_exec_group`] has made.
    ///
    /// # Errors
    /// `NotFound` when the task's cgroup is gone; `Internal` when this one is.
    pub fn open_exec_group(&self, cgroup: &Cgroup, name: &str, number: u64) -> Result<ExecGroup> {
        let path = format!("{}/{name}", cgroup.path);
        let what = || format!("cannot open cgroup {path}");
        let parent = self.freezer(cgroup).ok_or_else(|| Error::new(Kind::NotFound, what()))?;
        let index = self.index(FREEZER);
        let dir = open_dir(parent, Path::new(name)).doing(Kind::Internal, what)?;
        let file = match self.version {
            Version::V1 => TASKS,
            Version::V2 => v2::PROCS,
        };
        let tasks = open_to_join(dir.as_fd(), file).doing(Kind::Internal, what)?;
        Ok(ExecGroup { version: self.version, freezer: index.unwrap_or_default(), number, path, dir, tasks })
    }

    /// The names of the cgroups right below the one that execs' are made in.
    pub fn names_below(&self, cgroup: &Cgroup) -> Vec<String> {
        let entries = self.freezer(cgroup).and_then(|dir| fs::Dir::read_from(dir).ok());
        let folders =
            entries.into_iter().flatten().flatten().filter(|entry| entry.file_type() == fs::FileType::Directory);
        let names = folders.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        names.filter(|name| !name.starts_with('.')).collect()
    }

    /// Removes the cgroup of an exec, unless a process is in it; returns whether it is gone.
    pub fn remove_exec_group(&self, cgroup: &Cgroup, name: &str) -> bool {
        let removed = self.freezer(cgroup).map(|parent| fs::unlinkat(parent, name, fs::AtFlags::REMOVEDIR));
        !matches!(removed, Some(Err(Errno::BUSY | Errno::NOTEMPTY)))
    }

    /// The cgroup of process `pid` in the unified hierarchy. The process must not be reaped meanwhile.
    ///
    /// # Errors
    /// `WrongState` when the cgroup is neither the task's nor below it: no process is put where the
    /// task's limits do not apply.
    pub fn below_of(&self, cgroup: &Cgroup, pid: i32) -> Result<Below> {
        let found = Membership::of(pid).doing(Kind::Internal, || "cannot tell in which cgroup the task's init is")?;
        let path = found.path(UNIFIED).unwrap_or(Path::new(""));
        let inner = path.strip_prefix(&cgroup.path).map_err(|_| {
            let message =
                format!("the task's init is in cgroup {}, which is not below {}", path.display(), cgroup.path);
            Error::new(Kind::WrongState, message)
                .hint("somebody has moved it; an exec would not have the task's limits there")
        })?;
        let what = || format!("cannot open cgroup {}", path.display());
        let own = cgroup.members.iter().find(|m| m.made.unified);
        let own = own.ok_or_else(|| Error::new(Kind::NotFound, what()))?;
        let dir =
            own.made.dir().and_then(|dir| open_dir(dir, &Path::new(".").join(inner))).doing(Kind::Internal, what)?;
        let procs = open_to_join(dir.as_fd(), v2::PROCS).doing(Kind::Internal, what)?;
        Ok(Below { path: path.display().to_string(), dir, procs })
    }

    /// Sends SIGKILL to every process of this session that is in the cgroup or below it. Returns a
    /// pidfd of each: when all have ended, call again until none is returned.
    pub fn kill_session(&self, cgroup: &Cgroup, session: i32) -> Vec<OwnedFd> {
        self.signal_session(cgroup, session, libc::SIGKILL)
    }

    /// Like [`Layout::kill_session`], with any signal.
    pub fn signal_session(&self, cgroup: &Cgroup, session: i32, signal: i32) -> Vec<OwnedFd> {
        let in_session = |pid| parentage_of(pid).is_some_and(|of| of.session == session);
        self.freezer(cgroup).map_or_else(Vec::new, |dir| tree::signal_where(dir, signal, in_session))
    }

    /// Moves the session that process `leader` leads, all processes in the cgroup namespace `own`, and what descends from
    /// these, into `group`, as far as they are in the cgroup or below it. Whatever these processes start from then on is
    /// in `group` too.
    ///
    /// # Errors
    /// What the kernel says, for example where the task's cgroup is a threaded one; `WrongState` when new ones come faster
    /// than they are moved.
    pub fn gather(&self, cgroup: &Cgroup, group: &ExecGroup, leader: i32, own: Option<BorrowedFd<'_>>) -> Result<()> {
        let what = || format!("cannot move processes to cgroup {}", group.path);
        let dir = self.freezer(cgroup).ok_or_else(|| Error::new(Kind::NotFound, what()))?;
        let own = own.and_then(|own| fs::fstat(own).ok()).map(|stat| (stat.st_dev, stat.st_ino));
        let is_first = |pid: i32, of: &Parentage| of.session == leader || own.is_some() && own == namespace_of(pid);
        // On v1, `tasks` would move one thread.
        let procs = open_to_join(group.dir.as_fd(), v2::PROCS).doing(Kind::Internal, what)?;
        for _ in 0..GATHERED_AT_MOST {
            let mut moved = false;
            for (pid, pidfd) in family(dir, group.dir.as_fd(), is_first) {
                let lives = || sys::pidfd_send_signal(pidfd.as_fd(), 0).is_ok();
                if !lives() {
                    continue;
                }
                match rustix::io::write(&procs, pid.to_string().as_bytes()) {
                    Ok(_) | Err(Errno::SRCH) => moved = true,
                    Err(errno) => return Err(errno).doing(Kind::Internal, what),
                }
                // A process that was reaped in between may have left its pid to a stranger, which must not be killed.
                if !lives() && members(group.dir.as_fd()).contains(&pid) {
                    return Err(Error::new(Kind::WrongState, format!("{}: process {pid} is another one", what())));
                }
            }
            if !moved {
                return Ok(());
            }
        }
        Err(Error::new(Kind::WrongState, format!("{}: they start others all the time", what())))
    }
}

/// How often [`Layout::gather`] looks for processes that were started meanwhile.
const GATHERED_AT_MOST: usize = 100;

/// The processes below `dir`, and not below `group`, that `is_first` names, or that descend from one of these, or from one
/// in `group`; with a pidfd of each.
fn family(
    dir: BorrowedFd<'_>,
    group: BorrowedFd<'_>,
    is_first: impl Fn(i32, &Parentage) -> bool,
) -> Vec<(i32, OwnedFd)> {
    let all = tree::members_below(dir);
    let inside: BTreeSet<i32> = members(group).into_iter().collect();
    let found = all.into_iter().filter_map(|pidfd| {
        let pid = sys::pid_of(pidfd.as_fd())?;
        Some((pid, parentage_of(pid)?, pidfd))
    });
    let (mut family, mut others): (Vec<_>, Vec<_>) = found.partition(|(pid, of, _)| is_first(*pid, of));
    loop {
        let parents: BTreeSet<i32> = family.iter().map(|(pid, ..)| *pid).chain(inside.iter().copied()).collect();
        let (children, rest): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|(_, of, _)| parents.contains(&of.parent));
        others = rest;
        if children.is_empty() {
            break;
        }
        family.extend(children);
    }
    family.into_iter().filter(|(pid, ..)| !inside.contains(pid)).map(|(pid, _, pidfd)| (pid, pidfd)).collect()
}

/// The device and inode of a process's cgroup namespace.
fn namespace_of(pid: i32) -> Option<(u64, u64)> {
    fs::stat(format!("/proc/{pid}/ns/cgroup")).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

fn members(dir: BorrowedFd<'_>) -> Vec<i32> {
    let mut pids = Vec::new();
    tree::collect_processes(dir, &mut pids);
    pids
}

fn open_to_join(dir: BorrowedFd<'_>, file: &str) -> rustix::io::Result<OwnedFd> {
    fs::openat(dir, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Whom a process belongs to.
#[derive(Debug, PartialEq, Eq)]
struct Parentage {
    parent: i32,
    session: i32,
}

/// The parentage of a process that has not ended.
fn parentage_of(pid: i32) -> Option<Parentage> {
    parse_parentage(&proc_stat::read(pid)?)
}

fn parse_parentage(stat: &str) -> Option<Parentage> {
    let stat = ProcStat::parse(stat).filter(|stat| !stat.has_ended())?;
    Some(Parentage { parent: stat.pid(4)?, session: stat.pid(6)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_found_behind_any_name() {
        assert_eq!(parse_parentage("77 (a) 1 2 3) S 1 70 71 0 -1"), Some(Parentage { parent: 1, session: 71 }));
        assert_eq!(parse_parentage("77 (sleep) Z 1 70 71 0 -1"), None, "it has ended");
        assert_eq!(parse_parentage("77"), None);
    }
}
