//! Who owns cgroups: the shims that live, of whatever state folder, and what
//! they have started.
//!
//! A shim is known by its name and by the folder that it was told; what it is
//! above of, by the parents of processes. In doubt a cgroup has an owner.

use crate::proc_stat::ProcStat;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The name of our own shim, which says by its folder what its sandbox is.
const OURS: &str = "bowline-shim";
/// With what those begin that containerd starts, ours and others'.
const OF_CONTAINERD: &str = "containerd-shim-";
/// What watches a container for others.
const OTHERS: [&str; 2] = ["conmon", "conmonrs"];

/// The shims that live.
#[derive(Debug, Default)]
pub struct Shims {
    sandboxes: BTreeSet<String>,
    pids: BTreeSet<i32>,
}

impl Shims {
    /// Looks at every process. Whatever cgroup was there before has its shim
    /// among them, if that still lives: it is made by the shim.
    pub fn living() -> Shims {
        let mut shims = Shims::default();
        // Nobody removes what we are in.
        shims.pids.extend(i32::try_from(std::process::id()));
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // Of one that has ended, or of a kernel thread, it is empty.
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

    /// Whether one lives that is of the sandbox `id`.
    pub fn have(&self, id: &str) -> bool {
        self.sandboxes.contains(id)
    }

    /// Whether one of `pids` is a shim or was started below one. So is, for all
    /// we know, a process of another pid namespace, which reads as 0.
    pub fn are_above(&self, pids: &[i32]) -> bool {
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
                match parent_of(pid) {
                    // It has ended, or its parent is of another pid namespace.
                    None | Some(0) => return false,
                    Some(parent) => pid = parent,
                }
            }
        })
    }
}

/// What a command line is, if it is a shim's.
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

/// The parent of a process.
fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    ProcStat::parse(&stat)?.parent()
}

/// Whether `pid` is bowline, which removes what it said it would.
pub fn is_bowline(pid: i32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = Path::new(OsStr::from_bytes(first)).file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.contains("bowline")
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
    fn what_was_started_below_a_shim_is_the_shims() {
        let own = i32::try_from(std::process::id()).expect("a pid");
        let parent = parent_of(own).expect("we have one");
        let above = |pid| Shims { pids: [pid].into(), ..Shims::default() };
        assert!(above(own).are_above(&[own]) && above(parent).are_above(&[own]));
        assert!(!above(i32::MAX).are_above(&[own]) && !above(own).are_above(&[]));
        assert!(above(i32::MAX).are_above(&[0]), "nobody knows whose that is");
    }
}
