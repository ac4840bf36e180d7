//! One mounted hierarchy: makes, opens and removes a path in it.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_spec::place::{OURS, OVERHEAD};
use bowline_sys::mountinfo::Mount;
use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::{v1, v2};
use crate::membership::Membership;
use crate::tree::{self, open_dir, write_at};

/// One hierarchy of this host.
#[derive(Debug)]
pub struct Hierarchy {
    /// The controllers that are mounted together, or `name=systemd`; on the unified hierarchy, the
    /// controllers that it has.
    pub controllers: Vec<String>,
    /// Whether it is cgroup v2's.
    pub unified: bool,
    /// Whether a parent hands its controllers down to what is made in it.
    pub hands_down: bool,
    mount: PathBuf,
    dir: Rc<OwnedFd>,
}

/// A cgroup in one hierarchy, held open.
#[derive(Debug)]
pub struct Made {
    /// The file through which processes join the cgroup.
    pub tasks: OwnedFd,
    /// Whether it is in the unified hierarchy.
    pub unified: bool,
    top: Rc<OwnedFd>,
    path: String,
    dir: OnceCell<OwnedFd>,
    /// How many parts of the path existed before.
    existed: usize,
    /// How many parts of the path stay, whoever made them: the sandbox's, for a member's cgroup; all, of one that was
    /// there before.
    keeps: usize,
}

impl Made {
    /// How many parts of the path existed before, if some of the cgroup's parents did not, or it did itself and stays.
    pub fn below(&self) -> Option<usize> {
        Some(self.existed).filter(|existed| self.stays() || *existed < self.parts() - 1)
    }

    /// Keeps the first `parts` parts of the path when the cgroup is removed.
    pub fn keep(&mut self, parts: usize) {
        self.keeps = parts;
    }

    /// Takes over how many parts of the path existed before: all of a cgroup that was there itself, which stays.
    pub fn take_existed(&mut self, existed: usize) {
        self.existed = existed;
        if self.was_there() {
            self.keep(existed);
        }
    }

    /// How many parts the path has.
    pub fn parts(&self) -> usize {
        self.path.split('/').count()
    }

    /// Whether the cgroup was there before.
    pub fn was_there(&self) -> bool {
        self.existed == self.parts()
    }

    /// Whether the cgroup itself stays when it is to be removed.
    fn stays(&self) -> bool {
        self.keeps >= self.parts()
    }

    /// The folder, opened when it is first needed: a short task needs the folder of few hierarchies.
    pub fn dir(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        if let Some(dir) = self.dir.get() {
            return Ok(dir.as_fd());
        }
        let dir = open_dir(&self.top, Path::new(&self.path))?;
        Ok(self.dir.get_or_init(|| dir).as_fd())
    }
}

impl Hierarchy {
    /// The hierarchy of a mount; `None` for a mount of another kind.
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
        Ok(Some(Hierarchy { controllers, unified, hands_down: false, mount: mount.target, dir: Rc::new(dir) }))
    }

    /// Whether both are mounts of one hierarchy.
    pub fn same_as(&self, other: &Hierarchy) -> bool {
        self.unified == other.unified && (self.unified || self.controllers == other.controllers)
    }

    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// Whether cgroups in the hierarchy have `file`, judged by the first cgroup that there is;
    /// `None` if there is none. The top itself lacks some files.
    pub fn has_below(&self, file: &str) -> Option<bool> {
        let mut entries = std::fs::read_dir(&self.mount).ok()?.flatten();
        let below = entries.find(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))?;
        Some(below.path().join(file).exists())
    }

    pub fn top(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Whether there is a cgroup at `path`, which is absolute and without `..`.
    pub fn has(&self, path: &str) -> bool {
        fs::statat(&self.dir, &path[1..], AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Whether this process may make cgroups below `path`.
    pub fn may_write(&self, path: &Path) -> bool {
        let path = path.strip_prefix("/").ok().filter(|path| path.as_os_str() != "").unwrap_or(Path::new("."));
        fs::accessat(&self.dir, path, fs::Access::WRITE_OK, AtFlags::empty()).is_ok()
    }

    /// The names of the cgroups directly below `path`, as far as they are UTF-8; none if `path` does not exist.
    pub fn children(&self, path: &str) -> Vec<String> {
        self.names_below(path).into_iter().filter_map(|name| name.into_string().ok()).collect()
    }

    /// Like [`Hierarchy::children`], with the names that are no UTF-8.
    pub fn names_below(&self, path: &str) -> Vec<OsString> {
        let below = if path == "/" { "." } else { &path[1..] };
        open_dir(&self.dir, Path::new(below)).map(|dir| tree::names_below(dir.as_fd())).unwrap_or_default()
    }

    /// Whether a process is at `path`, where this is a v1 hierarchy.
    pub fn is_at(&self, path: &str, process: &Membership) -> bool {
        self.controllers.iter().any(|own| process.path(own) == Some(Path::new(path)))
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

    /// Moves a process with all its threads.
    ///
    /// # Errors
    /// `NotFound` when it has ended.
    pub fn move_process(&self, path: &str, pid: i32) -> Result<()> {
        let file = format!("{}/{}", path.trim_matches('/'), v2::PROCS);
        let file = file.trim_start_matches('/');
        write_at(self.dir.as_fd(), file, &pid.to_string()).map_err(|errno| {
            let kind = if errno == Errno::SRCH { Kind::NotFound } else { Kind::Internal };
            Error::new(kind, format!("cannot move process {pid} to {}: {errno}", self.mount.join(file).display()))
        })
    }

    /// Makes `path`, which is absolute and without `..`, with its parents.
    pub fn create(&self, path: &str) -> Result<Made> {
        self.persist(path, |path| {
            let existed = match self.make(path) {
                Err(Errno::EXIST) => {
                    // A stale leaf has stale limits: only an empty one is replaced.
                    fs::unlinkat(&self.dir, path, AtFlags::REMOVEDIR)?;
                    self.make(path)?
                }
                existed => existed?,
            };
            let held = self.fill_cpusets(path).and_then(|()| self.hold(path, existed));
            held.inspect_err(|_| self.unmake(path, existed))
        })
    }

    /// Like [`Hierarchy::create`], but a cgroup that is there is used as it is, with its limits.
    pub fn create_or_use(&self, path: &str) -> Result<Made> {
        self.persist(path, |path| {
            let existed = self.make_or_keep(path)?;
            let held = self.fill_cpusets(path).and_then(|()| self.hold(path, existed));
            held.inspect_err(|_| self.unmake(path, existed))
        })
    }

    /// Removes what was just made of `path`, as far as it is empty; its first `existed` parts were there before.
    fn unmake(&self, path: &str, existed: usize) {
        let path = Path::new(path);
        if path.components().count() <= existed {
            return;
        }
        // If this fails, the cgroup is gone already, or no longer ours alone.
        let _ = fs::unlinkat(&self.dir, path, AtFlags::REMOVEDIR);
        self.remove_parents(path, existed, 0);
    }

    /// Makes `path`, unless it is there.
    pub fn prepare(&self, path: &str) -> Result<()> {
        self.persist(path, |path| {
            let existed = self.make_or_keep(path)?;
            self.fill_cpusets(path).inspect_err(|_| self.unmake(path, existed))
        })
    }

    /// Retries, because another shim may remove an empty parent between two steps of `make`, or while one is made in it.
    fn persist<T>(&self, path: &str, make: impl Fn(&str) -> rustix::io::Result<T>) -> Result<T> {
        let at = || self.mount.join(&path[1..]);
        for _ in 0..16 {
            match make(&path[1..]) {
                Err(Errno::NOENT | Errno::NODEV) => continue,
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

    fn fill_cpusets(&self, path: &str) -> rustix::io::Result<()> {
        if self.unified || !self.controllers.iter().any(|c| c == "cpuset") {
            return Ok(());
        }
        v1::fill_cpusets(self.dir.as_fd(), path)
    }

    /// Makes the leaf of `path`, and its parents where they are missing, which is rare. Returns how
    /// many parts existed before.
    fn make(&self, path: &str) -> rustix::io::Result<usize> {
        let (parent, depth) = match path.rsplit_once('/') {
            Some((parent, _)) => (parent, path.split('/').count() - 1),
            None => (".", 0),
        };
        let mkdir = || fs::mkdirat(&self.dir, path, Mode::from_raw_mode(0o755));
        if !self.hands_down {
            match mkdir() {
                Err(Errno::NOENT) if depth > 0 => {}
                made => return made.map(|()| depth),
            }
        }
        let existed = if depth > 0 { self.make_or_keep(parent)? } else { 0 };
        let ready = || match self.hands_down {
            true => v2::hand_down_controllers(open_dir(&self.dir, Path::new(parent))?.as_fd()),
            false => Ok(()),
        };
        let made = ready().and_then(|()| mkdir()).map(|()| existed);
        made.inspect_err(|_| self.remove_parents(Path::new(path), existed, 0))
    }

    /// Like [`Hierarchy::make`], but accepts a leaf that exists.
    fn make_or_keep(&self, path: &str) -> rustix::io::Result<usize> {
        match self.make(path) {
            Err(Errno::EXIST) => Ok(path.split('/').count()),
            made => made,
        }
    }

    fn hold(&self, path: &str, existed: usize) -> rustix::io::Result<Made> {
        let file = format!("{path}/{}", self.join_file());
        let tasks = fs::openat(&self.dir, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        let (top, path, dir) = (self.dir.clone(), path.to_owned(), OnceCell::new());
        let made = Made { tasks, unified: self.unified, top, path, dir, existed, keeps: 0 };
        if self.unified {
            // Processes are cloned into this folder, so make sure now that it can be opened.
            made.dir()?;
        }
        Ok(made)
    }

    /// Hands controllers down to `path` after it was made.
    pub fn hand_down(&self, path: &str) -> rustix::io::Result<()> {
        let mut parent = open_dir(&self.dir, Path::new("."))?;
        for part in path[1..].split('/') {
            v2::hand_down_controllers(parent.as_fd())?;
            parent = open_dir(&parent, Path::new(part))?;
        }
        Ok(())
    }

    /// Opens `path` if it is there.
    pub fn open(&self, path: &str) -> Result<Option<Made>> {
        let what = || format!("cannot open cgroup {}", self.mount.join(&path[1..]).display());
        // A cgroup that existed before takes no parent with it when it is removed.
        match self.hold(&path[1..], usize::MAX) {
            Ok(made) => Ok(Some(made)),
            // The second error comes while the cgroup is being removed.
            Err(Errno::NOENT | Errno::NODEV) => Ok(None),
            Err(errno) => Err(errno).doing(Kind::Internal, what),
        }
    }

    /// Removes `path`, which is `made`, with everything below it, and those empty parents that were
    /// made with it or are below [`OURS`]. One that was there before stays.
    pub fn remove(&self, path: &str, made: &Made) -> Result<()> {
        if made.stays() {
            return Ok(());
        }
        let path = Path::new(&path[1..]);
        tree::remove_tree(&self.dir, path)
            .doing(Kind::Internal, || format!("cannot remove cgroup {}", self.mount.join(path).display()))?;
        self.remove_parents(path, made.existed, made.keeps);
        Ok(())
    }

    /// Removes `path` and its parents, as far as they are empty.
    pub fn remove_empty(&self, path: &str) {
        let path = Path::new(&path[1..]);
        if fs::unlinkat(&self.dir, path, AtFlags::REMOVEDIR).is_ok() {
            self.remove_parents(path, usize::MAX, 0);
        }
    }

    /// Removes the parents of `path` beyond its first `existed` parts, as far as they are empty.
    pub fn remove_made_parents(&self, path: &str, existed: usize) {
        self.remove_parents(Path::new(&path[1..]), existed, 0);
    }

    /// Removes the empty parents of `path` that are below [`OURS`] or were made beyond its first
    /// `existed` parts; never its first `keeps` parts.
    fn remove_parents(&self, path: &Path, existed: usize, keeps: usize) {
        let mut parent = path.parent();
        while let Some(dir) = parent.filter(|p| p.components().count() > keeps) {
            let ours = dir.starts_with(OURS) || dir.starts_with(OVERHEAD);
            let removable = ours || dir.components().count() > existed;
            // It stays if others have cgroups in it.
            if !removable || fs::unlinkat(&self.dir, dir, AtFlags::REMOVEDIR).is_err() {
                break;
            }
            parent = dir.parent();
        }
    }
}
