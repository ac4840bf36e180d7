//! Who owns cgroups: the living shims, of any state folder, and what they have started.
//!
//! A shim is known by its name and by the folder on its command line; any other program that embeds
//! the executor, by its lock of a task's folder; what either has started, by the parents of
//! processes. In doubt a cgroup has an owner.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bowline_sys::proc_stat::{self, ProcStat};

/// The name of our own shim, whose folder names its sandbox.
const OURS: &str = "bowline-shim";
/// The name of the lock in a task's folder.
const LOCK: &str = "lock";
/// The prefix of the shims that containerd starts, ours and others'.
const OF_CONTAINERD: &str = "containerd-shim-";
/// Programs that watch a container for other engines.
const OTHERS: [&str; 2] = ["conmon", "conmonrs"];

#[derive(Debug, Default)]
pub struct Shims {
    sandboxes: BTreeSet<String>,
    pids: BTreeSet<i32>,
}

impl Shims {
    /// Looks at every process. If the shim of a cgroup that existed before still lives, it is among
    /// them: the shim makes the cgroup.
    pub fn living() -> Shims {
        let mut shims = Shims::default();
        let ourselves = i32::try_from(std::process::id()).unwrap_or_default();
        // Nobody removes the cgroup that this process is in.
        shims.pids.insert(ourselves);
        // The command itself takes locks to look, and has no cgroups.
        shims.sandboxes.extend(lockers().into_iter().filter(|pid| !is_command(*pid)).flat_map(locked_by));
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // The command line of a kernel thread, or of a process that has ended, is empty.
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            match shim(&line) {
                Some(Shim::Of(sandbox)) => {
                    shims.sandboxes.insert(sandbox);
                    shims.pids.insert(pid);
                }
                Some(Shim::Unnamed) => drop(shims.pids.insert(pid)),
                None => {}
            }
        }
        shims
    }

    /// Whether a shim of the sandbox `id` lives.
    pub fn have(&self, id: &str) -> bool {
        self.sandboxes.contains(id)
    }

    /// Whether a shim lives that may be in the cgroup `name`: one of a sandbox whose id the name ends with, as the names
    /// of overhead cgroups may have any prefix.
    pub fn may_be_in(&self, name: &str) -> bool {
        self.sandboxes.iter().any(|id| name.ends_with(id.as_str()))
    }

    /// Whether one of `pids` is a shim, or was started below a shim or below a process that has the
    /// lock of one of the tasks `ids`. A process of another pid namespace, which reads as 0, counts
    /// too, because it may be one.
    pub fn are_above(&self, pids: &[i32], ids: &[&str]) -> bool {
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
                let locked = locked_by(pid);
                if ids.iter().any(|id| locked.contains(*id)) {
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

/// What a shim's command line says.
#[derive(Debug, PartialEq, Eq)]
enum Shim {
    Of(String),
    Unnamed,
}

fn shim(line: &[u8]) -> Option<Shim> {
    let mut args = line.split(|byte| *byte == 0).map(|arg| Path::new(OsStr::from_bytes(arg)));
    let name = args.next()?.file_name()?.to_str()?;
    if name.starts_with(OF_CONTAINERD) || OTHERS.contains(&name) {
        return Some(Shim::Unnamed);
    }
    if name != OURS {
        return None;
    }
    // Flags, each with its value.
    while let Some(flag) = args.next() {
        let value = args.next();
        if flag == Path::new("--folder") {
            let sandbox = value.and_then(Path::file_name).and_then(OsStr::to_str);
            return Some(sandbox.map_or(Shim::Unnamed, |sandbox| Shim::Of(sandbox.to_owned())));
        }
    }
    Some(Shim::Unnamed)
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

/// The tasks whose folders' locks a process has open.
fn locked_by(pid: i32) -> BTreeSet<String> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter_map(|link| task_of_lock(&link)).collect()
}

fn task_of_lock(path: &Path) -> Option<String> {
    (path.file_name()? == LOCK).then(|| path.parent()?.file_name()?.to_str().map(str::to_owned))?
}

/// The parent of a process.
fn parent_of(pid: i32) -> Option<i32> {
    ProcStat::parse(&proc_stat::read(pid)?)?.parent()
}

/// Whether `pid` is bowline, which will remove its own folders.
pub fn is_bowline(pid: i32) -> bool {
    name_of(pid).contains("bowline")
}

/// Whether some process holds the lock of the folder at `path`. Makes no lock where there is none.
pub fn is_locked(path: &Path) -> bool {
    let lock = fs::File::open(path.join(LOCK));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(fs::TryLockError::WouldBlock)))
}

/// Whether `pid` is the command, `bowline`.
fn is_command(pid: i32) -> bool {
    name_of(pid) == "bowline"
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
    fn a_shim_is_known_by_its_name_and_its_folder() {
        let of = |id: &str| Some(Shim::Of(id.to_owned()));
        let cases: [(&[&str], Option<Shim>); 9] = [
            (&["bowline-shim", "--folder", "/run/bowline/web-1", "--bowline", "/b"], of("web-1")),
            (&["/usr/bin/bowline-shim", "--shim-cgroup", "--folder", "--folder", "/s/a"], of("a")),
            (&["bowline-shim", "--shim-cgroup", "root"], Some(Shim::Unnamed)),
            (&["bowline-shim", "--folder"], Some(Shim::Unnamed)),
            (&["/bin/containerd-shim-runc-v2", "-id", "x"], Some(Shim::Unnamed)),
            (&["conmon"], Some(Shim::Unnamed)),
            (&["cat", "bowline-shim", "--folder", "/s/a"], None),
            (&["bowline", "start"], None),
            (&[""], None),
        ];
        for (args, expected) in cases {
            let line: String = args.iter().map(|arg| format!("{arg}\0")).collect();
            assert_eq!(shim(line.as_bytes()), expected, "{args:?}");
        }
    }

    #[test]
    fn who_has_the_lock_of_a_folder_is_its_owner() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("web-1");
        fs::create_dir(&folder).expect("ours");
        let lock = fs::File::create(folder.join("lock")).expect("ours");
        lock.lock().expect("nobody else has it");
        let ourselves = i32::try_from(std::process::id()).expect("a pid");
        assert!(lockers().contains(&ourselves) && locked_by(ourselves).contains("web-1"));
        let below = |ids: &[&str]| Shims::default().are_above(&[ourselves], ids);
        assert!(below(&["x", "web-1"]) && !below(&["x"]));
        assert_eq!(task_of_lock(Path::new("/s/web-1/lock (deleted)")), None);
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
