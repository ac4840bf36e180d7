//! Who owns cgroups: the living shims, of any state folder, and what they have started.
//!
//! ```text
//!   a shim of ours, or a program that embeds the executor ─► root's, in our pid namespace, holds the lock of the folder
//!   a shim of another engine ─► named as one, and may do all that this process may
//! ```
//!
//! Anybody can give a process any name and arguments, so a name alone makes no owner. Below an owner, the parents of
//! processes tell. A process that cannot be seen counts as having an owner.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bowline_cgroup::Layout;
use bowline_error::{Error, Kind};
use bowline_model::folder::Folder;
use bowline_model::trust;
use bowline_sys::proc_stat::{self, ProcStat};

/// The name of the lock in a task's folder.
const LOCK: &str = "lock";
/// The names of the programs that watch a container for other engines, and the beginning of containerd's.
const OTHERS: [&str; 2] = ["conmon", "conmonrs"];
const OF_CONTAINERD: &str = "containerd-shim-";

#[derive(Debug, Default)]
pub struct Shims {
    /// The names on the host of what they are shims of.
    names: BTreeSet<String>,
    /// The ids of the same, by which an older bowline has named their cgroups.
    ids: BTreeSet<String>,
    pids: BTreeSet<i32>,
}

impl Shims {
    /// Looks at every process. If the shim of a cgroup that existed before still lives, it is among
    /// them: the shim makes the cgroup.
    pub fn living() -> Shims {
        let mut shims = Shims::default();
        let ourselves = Process::own();
        // Nobody removes the cgroup that this process is in.
        shims.pids.insert(i32::try_from(std::process::id()).unwrap_or_default());
        let lockers = lockers();
        let is_us = |pid: i32| pid.cast_unsigned() == std::process::id();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let name = name_of(pid);
            // A lock that was handed on is another's in the list of locks, so our shims are known by their name too. The
            // command itself takes locks to look, and has no cgroups; so does this process.
            let is_another = name != "bowline" && !is_us(pid);
            if name == "bowline-shim" || lockers.contains(&pid) && is_another {
                let held = locked_by(pid);
                if !held.is_empty() && name == "bowline-shim" {
                    shims.pids.insert(pid);
                }
                shims.ids.extend(held.iter().map(Folder::name));
                shims.names.extend(held.iter().map(Folder::name_on_host));
            } else if (name.starts_with(OF_CONTAINERD) || OTHERS.contains(&&*name))
                && Process::of(pid).is_some_and(|other| other.may_all_of(ourselves.as_ref()))
            {
                shims.pids.insert(pid);
            }
        }
        shims
    }

    /// Whether a shim of what has this name on the host lives.
    pub fn have(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Whether a shim lives that may have the cgroup `name`, which an older bowline may have made: that named it by the
    /// id alone in every state folder.
    pub fn may_have(&self, name: &str) -> bool {
        self.names.contains(name) || self.ids.contains(name)
    }

    /// Whether a shim lives that may be in the cgroup `name`: one of a sandbox whose name it ends with, as the names of
    /// overhead cgroups may have any prefix.
    pub fn may_be_in(&self, name: &str) -> bool {
        self.names.iter().chain(&self.ids).any(|own| name.ends_with(own.as_str()))
    }

    /// Whether one of `pids` is a shim, or was started below a shim or below a process that holds the lock of what has
    /// one of the `names` on the host. A process of another pid namespace, which reads as 0, counts too, because it may
    /// be one.
    pub fn are_above(&self, pids: &[i32], names: &[&str]) -> bool {
        let mut seen = BTreeSet::new();
        pids.iter().any(|pid| {
            let mut pid = *pid;
            loop {
                if pid == 0 || self.pids.contains(&pid) {
                    return true;
                }
                if pid == 1 || !seen.insert(pid) {
                    return false;
                }
                // The process that was handed the lock is not the one that took it.
                if locked_by(pid).iter().any(|folder| names.contains(&&*folder.name_on_host())) {
                    return true;
                }
                match parent_of(pid) {
                    // The process has ended, or its parent is in another pid namespace.
                    None | Some(0) => return false,
                    Some(parent) => pid = parent,
                }
            }
        })
    }
}

/// Who a process is, as proc_pid_status(5) says.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    /// Whether all of its uids are root's, or those of this process's user.
    is_trusted: bool,
    /// Whether it is in our pid namespace, and not in one below.
    is_beside_us: bool,
    /// Its effective capabilities.
    capabilities: u64,
    /// Its user namespace.
    users: Option<PathBuf>,
}

impl Process {
    fn own() -> Option<Process> {
        Process::of(i32::try_from(std::process::id()).ok()?)
    }

    fn of(pid: i32) -> Option<Process> {
        // The name of a process need not be UTF-8.
        let status = fs::read(format!("/proc/{pid}/status")).ok()?;
        let users = fs::read_link(format!("/proc/{pid}/ns/user")).ok();
        Some(Process { users, ..Process::parse(&String::from_utf8_lossy(&status)) })
    }

    fn parse(status: &str) -> Process {
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.unwrap_or_default().split_whitespace()
        };
        let ours = rustix::process::geteuid().as_raw();
        let mut uids = field("Uid").map(|uid| uid.parse::<u32>().ok()).peekable();
        Process {
            is_trusted: uids.peek().is_some() && uids.all(|uid| uid == Some(0) || uid == Some(ours)),
            is_beside_us: field("NSpid").count() == 1,
            capabilities: field("CapEff").next().and_then(|all| u64::from_str_radix(all, 16).ok()).unwrap_or_default(),
            users: None,
        }
    }

    /// Whether it may do all that `other` may: a program that watches containers, not what is in one.
    fn may_all_of(&self, other: Option<&Process>) -> bool {
        let has_all =
            |other: &Process| self.users == other.users && self.capabilities & other.capabilities == other.capabilities;
        self.is_trusted && self.is_beside_us && other.is_some_and(has_all)
    }
}

/// The processes that have taken a lock of a whole file, such as that of a task's folder, and still
/// live: proc_locks(5).
fn lockers() -> BTreeSet<i32> {
    // 1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF
    let locker = |line: &str| {
        let mut words = line.split_whitespace().filter(|word| *word != "->").skip(1);
        let kind = words.next()?;
        words.nth(2).filter(|_| kind == "FLOCK")?.parse().ok()
    };
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.lines().filter_map(locker).filter(|pid| *pid > 0).collect()
}

/// The folders whose own locks a process holds, unless it could be anybody's.
fn locked_by(pid: i32) -> Vec<Folder> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let locks = open.filter_map(|entry| {
        let folder = folder_of_lock(&fs::read_link(entry.path()).ok()?)?;
        let number = entry.file_name();
        // What is at this path for the process need not be there for us.
        let (held, there) = (fs::metadata(entry.path()).ok()?, fs::symlink_metadata(folder.file(LOCK)).ok()?);
        let is_it = (held.dev(), held.ino()) == (there.dev(), there.ino()) && holds(pid, &number);
        is_it.then_some(folder)
    });
    let locks: Vec<Folder> = locks.collect();
    // Looked up last, as hardly any process has one.
    let is_owner = |process: Process| process.is_trusted && process.is_beside_us;
    if locks.is_empty() || Process::of(pid).is_some_and(is_owner) { locks } else { Vec::new() }
}

/// Whether the process holds a lock of a whole file by this descriptor: proc_pid_fdinfo(5).
fn holds(pid: i32, number: &OsStr) -> bool {
    let info = fs::read_to_string(Path::new(&format!("/proc/{pid}/fdinfo")).join(number)).unwrap_or_default();
    info.lines()
        .any(|line| line.strip_prefix("lock:").is_some_and(|lock| lock.split_whitespace().any(|w| w == "FLOCK")))
}

/// The process that holds the lock of `folder` now: `shim` where it is one of those that do. `None` where none of the
/// processes that are seen from here does.
pub fn holder(folder: &Folder, shim: Option<i32>) -> Option<i32> {
    let is_us = |pid: &i32| pid.cast_unsigned() == std::process::id();
    let all = || fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = std::iter::once_with(all).flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // Whoever has taken the lock usually still has it, unless it was handed on.
    let others = std::iter::once_with(lockers).flatten().chain(all).filter(|pid| !is_us(pid));
    shim.into_iter().chain(others).find(|pid| is_holder(*pid, folder))
}

/// Whether the process holds the lock of `folder`. If the process has ended, another may have its pid by now: then this
/// looks at the other.
pub fn is_holder(pid: i32, folder: &Folder) -> bool {
    let Ok(lock) = fs::symlink_metadata(folder.file(LOCK)) else { return false };
    let mut open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.any(|entry| {
        let is_named = fs::read_link(entry.path()).is_ok_and(|path| path.file_name().is_some_and(|name| name == LOCK));
        let is_it = |file: fs::Metadata| (file.dev(), file.ino()) == (lock.dev(), lock.ino());
        is_named && fs::metadata(entry.path()).is_ok_and(is_it) && holds(pid, &entry.file_name())
    })
}

/// Whether a task or sandbox in another folder than `folder`, whose record names `path`, owns the cgroup there now.
pub(crate) fn is_taken(layout: &Layout, folder: &Folder, path: &str) -> bool {
    layout.owner(path).is_some_and(|owner| owner.exists() && folder.path().exists() && !is_same(&owner, folder.path()))
}

/// Whether both paths lead to one folder.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    one == other || identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// Whether `pid` was started as a shim of ours: one that takes something over is in no record yet.
pub fn is_named_shim(pid: i32) -> bool {
    name_of(pid) == "bowline-shim"
}

/// Whether somebody, or a tracer, has stopped the process.
pub fn is_stopped(pid: i32) -> bool {
    proc_stat::read(pid)
        .is_some_and(|stat| ProcStat::parse(&stat).is_some_and(|stat| matches!(stat.state(), "T" | "t")))
}

/// The error for what is kept `by` a process: `what` says in which way.
pub fn kept(what: &str, by: i32) -> Error {
    let name = name_of(by);
    let (stopped, hint) = match is_stopped(by) {
        true => (", which somebody has stopped", "it lets go of the task once it goes on"),
        false => ("", "try again once that lets go of its lock"),
    };
    Error::new(Kind::WrongState, format!("{what} by process {by} ({name}){stopped}")).hint(hint)
}

fn folder_of_lock(path: &Path) -> Option<Folder> {
    (path.file_name()? == LOCK).then(|| Folder::at(path.parent().unwrap_or(path)))
}

/// The parent of a process.
fn parent_of(pid: i32) -> Option<i32> {
    ProcStat::parse(&proc_stat::read(pid)?)?.parent()
}

/// Whether `pid` is bowline, which will remove its own folders.
pub fn is_bowline(pid: i32) -> bool {
    name_of(pid).contains("bowline") && Process::of(pid).is_some_and(|it| it.is_trusted && it.is_beside_us)
}

/// Whether some process holds the lock of the folder at `path`. Makes no lock where there is none.
pub fn is_locked(path: &Path) -> bool {
    let lock = trust::open(fs::File::options().read(true), &path.join(LOCK));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(fs::TryLockError::WouldBlock)))
}

/// The name by which the program of `pid` was started.
fn name_of(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = Path::new(OsStr::from_bytes(first)).file_name();
    name.unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_nobodys_root_or_in_a_container_is_no_owner() {
        let status = |uids: &str, pids: &str, caps: &str| {
            Process::parse(&format!("Name:\tconmon\nUid:\t{uids}\nNSpid:\t{pids}\nCapEff:\t{caps}\n"))
        };
        let own = status("0\t0\t0\t0", "5", "1ff");
        assert!(status("0\t0\t0\t0", "7", "3ff").may_all_of(Some(&own)));
        for (uids, pids, caps) in [
            ("100\t0\t0\t0", "7", "1ff"),
            ("100000\t100000\t100000\t100000", "7", "1ff"),
            ("0\t0\t0\t0", "7\t1", "1ff"),
            ("0\t0\t0\t0", "7", "ff"),
            ("", "7", "1ff"),
        ] {
            assert!(!status(uids, pids, caps).may_all_of(Some(&own)), "{uids} {pids} {caps}");
        }
    }

    #[test]
    fn who_has_the_lock_of_a_folder_is_its_owner() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("web-1");
        fs::create_dir(&folder).expect("ours");
        let lock = fs::File::create(folder.join("lock")).expect("ours");
        let ourselves = i32::try_from(std::process::id()).expect("a pid");
        assert!(locked_by(ourselves).iter().all(|of| of.path() != folder), "it is open, and not locked");
        lock.lock().expect("nobody else has it");
        let has = |folder: &Path| locked_by(ourselves).iter().any(|of| of.path() == folder);
        assert!(lockers().contains(&ourselves) && has(&folder));
        let name = Folder::at(&folder).name_on_host();
        let below = |names: &[&str]| Shims::default().are_above(&[ourselves], names);
        assert!(name.starts_with("web-1.") && below(&["x", &name]) && !below(&["x", "web-1"]));
        assert!(folder_of_lock(Path::new("/s/web-1/lock (deleted)")).is_none());
        fs::remove_file(folder.join("lock")).expect("ours");
        fs::write(folder.join("lock"), "").expect("ours");
        assert!(!has(&folder), "it is the lock of a folder that was there before");
    }

    #[test]
    fn what_was_started_below_a_shim_is_the_shims() {
        let own = i32::try_from(std::process::id()).expect("a pid");
        let parent = parent_of(own).expect("we have one");
        let above = |pid| Shims { pids: [pid].into(), ..Shims::default() };
        assert!(above(own).are_above(&[own], &[]) && above(parent).are_above(&[own], &[]));
        assert!(!above(i32::MAX).are_above(&[own], &[]) && !above(own).are_above(&[], &[]));
        assert!(above(i32::MAX).are_above(&[0], &[]), "nobody knows whose that is");
    }
}
