//! In which cgroups a process is: `/proc/PID/cgroup`, see cgroups(7). Their names need not be UTF-8.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// What stands for the unified hierarchy where others have the names of their controllers.
pub const UNIFIED: &str = "";

/// The cgroups of one process, one in each hierarchy.
#[derive(Debug, Default)]
pub struct Membership(Vec<u8>);

impl Membership {
    /// The caller's membership.
    ///
    /// # Errors
    /// What the kernel answers: there is no `/proc`, for example.
    pub fn own() -> io::Result<Membership> {
        std::fs::read("/proc/self/cgroup").map(Membership)
    }

    /// The membership of another process.
    ///
    /// # Errors
    /// What the kernel answers: the process has gone, for example.
    pub fn of(pid: i32) -> io::Result<Membership> {
        std::fs::read(format!("/proc/{pid}/cgroup")).map(Membership)
    }

    /// The controllers of each hierarchy, separated by commas, and the path of the cgroup in it.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Path)> {
        // 7:cpu,cpuacct:/bowline/web
        self.0.split(|byte| *byte == b'\n').filter_map(|line| {
            let mut fields = line.splitn(3, |byte| *byte == b':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            Some((str::from_utf8(controllers).ok()?, Path::new(OsStr::from_bytes(path))))
        })
    }

    /// The path of the cgroup in the hierarchy of `controller`, or in the [`UNIFIED`] one.
    pub fn path(&self, controller: &str) -> Option<&Path> {
        self.all().find(|(controllers, _)| controllers.split(',').any(|name| name == controller)).map(|(_, path)| path)
    }
}

impl From<&str> for Membership {
    fn from(text: &str) -> Membership {
        Membership(text.into())
    }
}
