//! How a process gets into its cgroup.

use std::io;
use std::os::fd::RawFd;

use bowline_sys as sys;

/// How a process gets into a cgroup: it is cloned into it on the unified hierarchy, and writes `0`
/// to each `tasks` file on the others.
///
/// Holds borrowed fds by number, because they go through a clone.
#[derive(Debug, Clone, Default)]
pub struct Entry {
    /// The cgroup's path, for messages.
    path: String,
    tasks: Vec<RawFd>,
    /// On the unified hierarchy: the cgroup's folder, and its `cgroup.procs`.
    unified: Option<(RawFd, RawFd)>,
    /// A `tasks` file, and the number among `tasks` at which a worker puts it.
    instead: Option<(RawFd, RawFd)>,
}

impl Entry {
    /// The entry of a process that stays where its parent is.
    pub fn none() -> Entry {
        Entry::default()
    }

    /// The entry to the cgroup `path`, from its open fds.
    ///
    /// Before Linux 5.7 a process cannot be cloned into a cgroup. The shim asks the kernel once: a
    /// worker that asked would take the answer with it when it ends.
    pub(super) fn new(path: String, tasks: Vec<RawFd>, unified: Option<(RawFd, RawFd)>) -> Entry {
        let entry = Entry { path, tasks, unified, instead: None };
        if unified.is_none() || sys::clones_into_cgroups() { entry } else { entry.joined_late() }
    }

    /// Like this one, but with another `tasks` file in the place of one of these. A worker puts it there, as numbers in a
    /// row are closed by one call.
    pub(super) fn with(self, tasks: RawFd, instead_of: RawFd) -> Entry {
        Entry { instead: Some((tasks, instead_of)), ..self }
    }

    /// The first step of a worker, whose descriptors are its own.
    pub fn prepare(&self) -> io::Result<()> {
        self.instead.map_or(Ok(()), |(tasks, number)| sys::place_fd_at(tasks, number))
    }

    /// Moves the calling process, which must have one thread.
    pub fn join(&self) -> io::Result<()> {
        for &fd in &self.tasks {
            // The shim holds these fds open for as long as any child may join.
            sys::write_fd(fd, b"0")?;
        }
        Ok(())
    }

    /// Closes the fds by which the calling process has joined.
    pub fn close(&self) {
        sys::close_fds(&self.tasks);
    }

    /// The folder of the cgroup to clone the process into.
    pub fn cloned_into(&self) -> Option<RawFd> {
        self.unified.map(|(dir, _)| dir)
    }

    /// The entry for a process that could not be cloned into its cgroup because of its pids limit: the
    /// process joins after the clone, as on v1, which the limit does not prevent.
    pub fn joined_late(&self) -> Entry {
        let mut tasks = self.tasks.clone();
        tasks.extend(self.unified.map(|(_, procs)| procs));
        Entry { path: self.path.clone(), tasks, ..Entry::default() }
    }

    /// The cgroup's path, for messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The fds that must stay open in the child until it has joined.
    pub fn fds(&self) -> &[RawFd] {
        &self.tasks
    }
}
