//! One mounted hierarchy, and making, opening and removing a path in it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::mounts::Mount;
use super::tree::{self, open_dir, write_at};
use super::v1::{self, Cpuset};
use super::v2;
use crate::error::{Doing, Error, Kind, Result};

/// Cgroups below this are nobody's but ours: an empty one goes, whoever made it.
const OURS: &str = "bowline";

/// One hierarchy of this host.
#[derive(Debug)]
pub struct Hierarchy {
    /// Controllers mounted together, or `name=systemd`; on the unified
    /// hierarchy, those that are there.
    pub controllers: Vec<String>,
    /// Whether it is cgroup v2's.
    pub unified: bool,
    /// Whether a parent hands its controllers down to what is made in it.
    pub hands_down: bool,
    mount: PathBuf,
    dir: OwnedFd,
}

/// A cgroup in one hierarchy, held open.
#[derive(Debug)]
pub struct Made {
    /// Its folder.
    pub dir: OwnedFd,
    /// The file that processes join it by.
    pub tasks: OwnedFd,
    /// Whether it is in the unified hierarchy.
    pub unified: bool,
    /// How many of its path's parts were there before.
    existed: usize,
}

impl Hierarchy {
    /// The hierarchy that a mount is of; `None` for every other mount.
    pub fn of(mount: Mount) -> Result<Option<Hierarchy>> {
        if mount.root != Path::new("/") || !matches!(mount.kind.as_str(), "cgroup" | "cgroup2") {
            return Ok(None);
        }
        let unified = mount.kind == "cgroup2";
        let dir = open_dir(fs::CWD, &mount.target)
            .doing(Kind::Internal, || format!("cannot open {}", mount.target.display()))?;
        let controllers: Vec<String> = if unified {
            let there = tree::read_at(dir.as_fd(), "cgroup.controllers").unwrap_or_default();
            there.split_whitespace().map(str::to_owned).collect()
        } else {
            let known = |o: &String| o.starts_with("name=") || v1::CONTROLLERS.contains(&o.as_str());
            mount.options.into_iter().filter(known).collect()
        };
        Ok(Some(Hierarchy { controllers, unified, hands_down: false, mount: mount.target, dir }))
    }

    /// Whether both are mounts of one hierarchy.
    pub fn same_as(&self, other: &Hierarchy) -> bool {
        self.unified == other.unified && (self.unified || self.controllers == other.controllers)
    }

    fn join_file(&self) -> &'static str {
        if self.unified { v2::PROCS } else { v1::TASKS }
    }

    /// Writes `who`, a pid or `0` for the caller, to the join file of `path`.
    pub fn join(&self, path: &str, who: &str) -> Result<()> {
        let file = format!("{}/{}", path.trim_matches('/'), self.join_file());
        let file = file.trim_start_matches('/');
        write_at(self.dir.as_fd(), file, who).map_err(|errno| {
            let kind = if errno == Errno::NOENT { Kind::NotFound } else { Kind::Internal };
            Error::new(kind, format!("cannot join cgroup: {}: {errno}", self.mount.join(file).display()))
        })
    }

    /// Makes `path`, absolute and plain, with its parents.
    pub fn create(&self, path: &str) -> Result<Made> {
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

    fn try_create(&self, path: &str) -> rustix::io::Result<Made> {
        let mut parent = self.dir.try_clone().map_err(|_| Errno::MFILE)?;
        let mut parts = path.split('/').peekable();
        let mut existed = 0;
        let mut cpuset = None;
        let has_cpuset = !self.unified && self.controllers.iter().any(|c| c == "cpuset");
        while let Some(part) = parts.next() {
            let leaf = parts.peek().is_none();
            let mut new = true;
            if self.hands_down {
                v2::hand_down_controllers(parent.as_fd())?;
            }
            match fs::mkdirat(&parent, part, Mode::from_raw_mode(0o755)) {
                // A stale leaf has stale limits: only an empty one is replaced.
                Err(Errno::EXIST) if leaf => {
                    fs::unlinkat(&parent, part, AtFlags::REMOVEDIR)?;
                    fs::mkdirat(&parent, part, Mode::from_raw_mode(0o755))?;
                }
                Err(Errno::EXIST) => {
                    existed += 1;
                    new = false;
                }
                Ok(()) => {}
                Err(errno) => return Err(errno),
            }
            let dir = open_dir(&parent, Path::new(part))?;
            if has_cpuset {
                let inherited = inherit_cpuset(cpuset, parent.as_fd(), dir.as_fd(), new).inspect_err(|_| {
                    // Ours if it is still empty, and of no use.
                    let _ = fs::unlinkat(&parent, part, AtFlags::REMOVEDIR);
                })?;
                cpuset = Some(inherited);
            }
            parent = dir;
        }
        let tasks = self.open_join_file(&parent)?;
        Ok(Made { dir: parent, tasks, unified: self.unified, existed })
    }

    /// Hands controllers down to `path` after it was made.
    pub fn hand_down(&self, path: &str) -> rustix::io::Result<()> {
        let mut parent = self.dir.try_clone().map_err(|_| Errno::MFILE)?;
        for part in path[1..].split('/') {
            v2::hand_down_controllers(parent.as_fd())?;
            parent = open_dir(&parent, Path::new(part))?;
        }
        Ok(())
    }

    fn open_join_file(&self, dir: &OwnedFd) -> rustix::io::Result<OwnedFd> {
        fs::openat(dir, self.join_file(), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// Opens `path` if it is there.
    pub fn open(&self, path: &str) -> Result<Option<Made>> {
        let Ok(dir) = open_dir(&self.dir, Path::new(&path[1..])) else {
            return Ok(None);
        };
        let what = || format!("cannot open cgroup {}", self.mount.join(&path[1..]).display());
        let tasks = self.open_join_file(&dir).doing(Kind::Internal, what)?;
        Ok(Some(Made { dir, tasks, unified: self.unified, existed: usize::MAX }))
    }

    /// Removes `path`, which is `made`, with all below it, and those empty
    /// parents that were made with it or are below [`OURS`].
    pub fn remove(&self, path: &str, made: &Made) -> Result<()> {
        let path = Path::new(&path[1..]);
        tree::remove_tree(&self.dir, path)
            .doing(Kind::Internal, || format!("cannot remove cgroup {}", self.mount.join(path).display()))?;
        let mut parent = path.parent();
        while let Some(dir) = parent.filter(|p| !p.as_os_str().is_empty()) {
            let removable = dir.starts_with(OURS) || dir.components().count() > made.existed;
            // Others' children keep it.
            if !removable || fs::unlinkat(&self.dir, dir, AtFlags::REMOVEDIR).is_err() {
                break;
            }
            parent = dir.parent();
        }
        Ok(())
    }
}

/// Sees to it that processes can join the cgroup `dir` by its cpuset, which is
/// returned. That of `parent` is read unless it is known.
fn inherit_cpuset(
    known: Option<Cpuset>,
    parent: BorrowedFd<'_>,
    dir: BorrowedFd<'_>,
    new: bool,
) -> rustix::io::Result<Cpuset> {
    // A new one is empty, and need not be read.
    let own = if new { Cpuset::default() } else { Cpuset::of(dir)? };
    if own.is_complete() {
        return Ok(own);
    }
    let parents = known.map_or_else(|| Cpuset::of(parent), Ok)?;
    own.complete(dir, &parents)
}
