//! cgroup v1: the same path in every mounted hierarchy.
//!
//! Processes join by writing `0` to `tasks`, themselves: writing another
//! process's pid to `cgroup.procs` waits 5–16 ms for an RCU grace period after
//! a quiet spell. Directories and `tasks` files stay open, so that an exec
//! resolves no path.

use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType, LinuxResources};
use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::{Mount, checked_path};
use crate::error::{Doing, Error, Kind, Result};
use crate::sys;

/// The file that a thread joins a cgroup by.
const TASKS: &str = "tasks";
/// The hierarchy whose subtree says which processes a task has: execs with a
/// deadline have a child cgroup there.
const FREEZER: &str = "freezer";

/// The v1 hierarchies of this host.
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
    pub(super) fn from_mounts(mounts: Vec<Mount>) -> Result<Layout> {
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
            hierarchies.push(Hierarchy {
                controllers,
                mount: mount.target,
                dir,
            });
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
        self.hierarchies
            .iter()
            .position(|h| h.controllers.iter().any(|c| c == controller))
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
        let mut cgroup = Cgroup {
            path: path.to_owned(),
            members: Vec::with_capacity(self.hierarchies.len()),
        };
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
        self.remove_path(&path, self.hierarchies.len())
            .map_or(Ok(()), Err)
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
        for limit in limits(resources)? {
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
                    format!(
                        "cannot write {} to {} of cgroup {}: {errno}",
                        limit.value, limit.file, cgroup.path
                    ),
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
            collect_processes(dir, &mut pids);
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
        write_at(dir, "freezer.state", state)
            .doing(Kind::Internal, || format!("cannot write {state} to freezer.state of cgroup {}", cgroup.path))
    }

    /// Whether every process of the cgroup has stopped.
    pub fn is_frozen(&self, cgroup: &Cgroup) -> bool {
        self.read(cgroup, FREEZER, "freezer.state")
            .is_some_and(|state| state.trim() == "FROZEN")
    }

    /// Sends SIGKILL to every process in the cgroup and below it. Returns a
    /// pidfd of each: when all have ended, call again until none is returned,
    /// as one may have forked in between.
    ///
    /// They are frozen while their pids are looked up, so that none forks.
    pub fn kill(&self, cgroup: &Cgroup) -> Vec<OwnedFd> {
        match self.freezer(cgroup) {
            Some(dir) => kill_below(dir),
            None => Vec::new(),
        }
    }

    /// Sends `signal` to every process in the cgroup and below it.
    pub fn signal(&self, cgroup: &Cgroup, signal: i32) {
        if let Some(dir) = self.freezer(cgroup) {
            signal_below(dir, signal);
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
        let tasks = fs::openat(&dir, TASKS, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .doing(Kind::Internal, what)?;
        let parent = parent.dir.try_clone().doing(Kind::Internal, what)?;
        Ok(ExecGroup {
            name: name.to_owned(),
            freezer: index.unwrap_or_default(),
            parent,
            dir,
            tasks,
        })
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
        Entry {
            tasks: self.members.iter().map(|m| m.tasks.as_raw_fd()).collect(),
        }
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
        let tasks = task.members.iter().map(|m| {
            if m.hierarchy == self.freezer {
                self.tasks.as_raw_fd()
            } else {
                m.tasks.as_raw_fd()
            }
        });
        Entry { tasks: tasks.collect() }
    }

    /// As [`Layout::kill`].
    pub fn kill(&self) -> Vec<OwnedFd> {
        kill_below(self.dir.as_fd())
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
        Err(Error::new(
            Kind::Internal,
            format!("cannot create cgroup {}: its parent keeps vanishing", at().display()),
        ))
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
                inherit_cpuset(&parent, &dir)?;
            }
            parent = dir;
        }
        let tasks = fs::openat(&parent, TASKS, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok((parent, tasks))
    }

    fn remove(&self, path: &str) -> Result<()> {
        remove_tree(&self.dir, path).doing(Kind::Internal, || {
            format!("cannot remove cgroup {}", self.mount.join(path).display())
        })?;
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

/// A new v1 cpuset is empty, and a process cannot join an empty one.
fn inherit_cpuset(parent: &OwnedFd, child: &OwnedFd) -> rustix::io::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if read_at(child.as_fd(), file)?.trim().is_empty() {
            write_at(child.as_fd(), file, read_at(parent.as_fd(), file)?.trim())?;
        }
    }
    Ok(())
}

fn remove_tree(parent: &OwnedFd, path: &str) -> rustix::io::Result<()> {
    match fs::unlinkat(parent, path, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::BUSY | Errno::NOTEMPTY) => {}
        Err(errno) => return Err(errno),
    }
    let dir = open_dir(parent, Path::new(path))?;
    for name in child_groups(dir.as_fd()) {
        remove_tree(&dir, &name)?;
    }
    fs::unlinkat(parent, path, AtFlags::REMOVEDIR)
}

fn child_groups(dir: BorrowedFd<'_>) -> Vec<String> {
    let Ok(entries) = fs::Dir::read_from(dir) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| {
        let entry = entry.ok().filter(|e| e.file_type() == fs::FileType::Directory)?;
        let name = entry.file_name().to_str().ok()?;
        (name != "." && name != "..").then(|| name.to_owned())
    });
    names.collect()
}

fn read_pids(dir: BorrowedFd<'_>) -> Vec<i32> {
    let text = read_at(dir, "cgroup.procs").unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn collect_processes(dir: BorrowedFd<'_>, pids: &mut Vec<i32>) {
    pids.extend(read_pids(dir));
    for name in child_groups(dir) {
        if let Ok(child) = open_dir(dir, Path::new(&name)) {
            collect_processes(child.as_fd(), pids);
        }
    }
}

fn kill_below(dir: BorrowedFd<'_>) -> Vec<OwnedFd> {
    let mut pids = Vec::new();
    collect_processes(dir, &mut pids);
    if pids.is_empty() {
        return Vec::new();
    }
    let _ = write_at(dir, "freezer.state", "FROZEN");
    let killed = signal_below(dir, libc::SIGKILL);
    // A frozen process does not die.
    let _ = write_at(dir, "freezer.state", "THAWED");
    killed
}

/// Signals every process below `dir`; returns a pidfd of each.
fn signal_below(dir: BorrowedFd<'_>, signal: i32) -> Vec<OwnedFd> {
    let mut pids = Vec::new();
    collect_processes(dir, &mut pids);
    let opened: Vec<(i32, OwnedFd)> = pids
        .into_iter()
        .filter_map(|pid| Some((pid, sys::pidfd_open(pid).ok()?)))
        .collect();
    // Still listed after its pidfd was opened: the pidfd is of a member, not
    // of a stranger who was given the number of one that ended meanwhile.
    let mut members = Vec::new();
    collect_processes(dir, &mut members);
    let sent = opened.into_iter().filter(|(pid, pidfd)| {
        members.contains(pid) && sys::pidfd_send_signal(pidfd.as_fd(), signal).is_ok()
    });
    sent.map(|(_, pidfd)| pidfd).collect()
}

fn open_dir<Fd: AsFd>(parent: Fd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fs::openat(parent, path, flags, Mode::empty())
}

fn write_at(dir: BorrowedFd<'_>, file: &str, value: &str) -> rustix::io::Result<()> {
    let fd = fs::openat(dir, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&fd, value.as_bytes()).map(drop)
}

fn read_at(dir: BorrowedFd<'_>, file: &str) -> rustix::io::Result<String> {
    use std::io::Read as _;
    let fd = fs::openat(dir, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    std::fs::File::from(fd)
        .read_to_string(&mut text)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(text)
}

/// Controllers that can be mounted as v1 (cgroups(7)).
const CONTROLLERS: [&str; 14] = [
    "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "net_cls", "net_prio",
    "perf_event", "hugetlb", "rdma", "misc",
];

/// One value for one file.
#[derive(Debug, PartialEq, Eq)]
struct Limit {
    controller: &'static str,
    file: String,
    value: String,
}

/// `resources` as writes, in an order in which the kernel takes them.
fn limits(resources: &LinuxResources) -> Result<Vec<Limit>> {
    let mut out = Vec::new();
    let mut put = |controller, file: &str, value: String| {
        out.push(Limit { controller, file: file.to_owned(), value });
    };
    for rule in resources.devices().iter().flatten() {
        let file = if rule.allow() { "devices.allow" } else { "devices.deny" };
        put("devices", file, device_rule(rule));
    }
    if let Some(memory) = resources.memory() {
        // The limit first: a new cgroup's memory+swap limit is unlimited, and
        // the kernel wants it at or above the memory limit at all times.
        let files = [
            ("memory.limit_in_bytes", memory.limit()),
            ("memory.memsw.limit_in_bytes", memory.swap()),
            ("memory.soft_limit_in_bytes", memory.reservation()),
        ];
        for (file, value) in files {
            if let Some(value) = value {
                put("memory", file, value.to_string());
            }
        }
        if let Some(swappiness) = memory.swappiness() {
            put("memory", "memory.swappiness", swappiness.to_string());
        }
    }
    if let Some(cpu) = resources.cpu() {
        if let Some(shares) = cpu.shares() {
            put("cpu", "cpu.shares", shares.to_string());
        }
        if let Some(period) = cpu.period() {
            put("cpu", "cpu.cfs_period_us", period.to_string());
        }
        if let Some(quota) = cpu.quota() {
            put("cpu", "cpu.cfs_quota_us", quota.to_string());
        }
        if let Some(cpus) = cpu.cpus() {
            put("cpuset", "cpuset.cpus", cpus.clone());
        }
        if let Some(mems) = cpu.mems() {
            put("cpuset", "cpuset.mems", mems.clone());
        }
    }
    if let Some(pids) = resources.pids() {
        let limit = pids.limit();
        put("pids", "pids.max", if limit > 0 { limit.to_string() } else { "max".to_owned() });
    }
    if let Some(io) = resources.block_io() {
        if let Some(weight) = io.weight() {
            put("blkio", "blkio.weight", weight.to_string());
        }
        for device in io.weight_device().iter().flatten() {
            if let Some(weight) = device.weight() {
                put("blkio", "blkio.weight_device", format!("{}:{} {weight}", device.major(), device.minor()));
            }
        }
        let rates = [
            ("blkio.throttle.read_bps_device", io.throttle_read_bps_device()),
            ("blkio.throttle.write_bps_device", io.throttle_write_bps_device()),
            ("blkio.throttle.read_iops_device", io.throttle_read_iops_device()),
            ("blkio.throttle.write_iops_device", io.throttle_write_iops_device()),
        ];
        for (file, devices) in rates {
            for device in devices.iter().flatten() {
                put("blkio", file, format!("{}:{} {}", device.major(), device.minor(), device.rate()));
            }
        }
    }
    for hugepages in resources.hugepage_limits().iter().flatten() {
        let file = format!("hugetlb.{}.limit_in_bytes", hugepages.page_size());
        put("hugetlb", &file, hugepages.limit().to_string());
    }
    if let Some((key, value)) = resources.unified().iter().flatten().min() {
        return Err(Error::new(
            Kind::Unsupported,
            format!("cannot set {key} to {value}: it is a cgroup v2 key, and this host has cgroup v1"),
        ));
    }
    Ok(out)
}

/// A rule in the form of the devices controller: `c 1:3 rwm`.
fn device_rule(rule: &LinuxDeviceCgroup) -> String {
    let kind = match rule.typ().unwrap_or(LinuxDeviceType::A) {
        LinuxDeviceType::B => 'b',
        LinuxDeviceType::C | LinuxDeviceType::U => 'c',
        // "a" alone stands for every device and every access.
        LinuxDeviceType::A | LinuxDeviceType::P => return "a".to_owned(),
    };
    let number = |n: Option<i64>| n.filter(|n| *n >= 0).map_or("*".to_owned(), |n| n.to_string());
    let mut text = format!("{kind} {}:{}", number(rule.major()), number(rule.minor()));
    let access = rule.access().as_deref().unwrap_or("rwm");
    // Writing to a String cannot fail.
    let _ = write!(text, " {access}");
    text
}
