//! Both ends of a terminal for the task, from its own `/dev/pts`.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use bowline_error::{Doing, Error, Kind, Result};
use rustix::fs::{self, OFlags};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};

use super::inside::{self, Make};
use super::trees::Trees;
use crate::view::inside_root::{self, Symlinks};

/// The terminal multiplexer, which makes a new terminal each time it is opened
/// (Documentation/filesystems/devpts.rst).
const MULTIPLEXER: (&str, u32, u32) = ("/dev/pts/ptmx", 5, 2);

/// DEVPTS_SUPER_MAGIC (linux/magic.h).
const DEVPTS: fs::FsWord = 0x1cd1;

/// Both ends of a terminal.
#[derive(Debug)]
pub struct Pty {
    /// The end that the shim reads and writes.
    pub master: OwnedFd,
    /// The end that the process has.
    pub slave: OwnedFd,
}

/// Opens a new terminal of the `/dev/pts` in `root`.
///
/// # Errors
/// `Exhausted` if all terminals are in use; `BadSpec` if `/dev/pts` there makes none.
pub fn open(root: BorrowedFd<'_>) -> Result<Pty> {
    let (path, major, minor) = MULTIPLEXER;
    let refused = |why: &dyn std::fmt::Display| {
        Error::new(Kind::BadSpec, format!("cannot open a terminal: {path}: {why}"))
            .hint("a task with a terminal needs the devpts filesystem that bowline mounts at /dev/pts")
    };
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = inside_root::open(root, Path::new(path), flags, Symlinks::Refused);
    let master = opened.map_err(|errno| if errno == Errno::NOSPC { exhausted() } else { refused(&errno) })?;
    let stat = fs::fstat(&master).map_err(|errno| refused(&errno))?;
    let filesystem = fs::fstatfs(&master).map_err(|errno| refused(&errno))?;
    // The task may have put anything there.
    if filesystem.f_type != DEVPTS || stat.st_rdev != fs::makedev(major, minor) {
        return Err(refused(&"it is no terminal multiplexer"));
    }
    let slave = unlockpt(&master)
        .and_then(|()| ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC));
    Ok(Pty { slave: slave.map_err(|errno| refused(&errno))?, master })
}

/// The kernel bounds the terminals of each `/dev/pts` (its option `max`), and of the host.
fn exhausted() -> Error {
    Error::new(Kind::Exhausted, "cannot open a terminal: all that this task, or the host, may have are in use")
        .hint("end programs that have one, or do without a terminal; `cat /proc/sys/kernel/pty/nr` counts the host's")
}

/// Mounts a terminal onto `/dev/console`, where init finds it by a fixed name
/// (OCI runtime spec, "Default Devices"), in `dev`, the task's own `/dev`.
pub fn mount_console(trees: &Trees, dev: BorrowedFd<'_>, slave: BorrowedFd<'_>) -> Result<()> {
    let what = || "cannot mount the terminal onto /dev/console";
    let tree = trees.copy_of(slave, false).doing(Kind::Internal, what)?;
    let target = inside::open(dev, Path::new("/console"), Make::File)?;
    trees.attach(&tree, &target).doing(Kind::Internal, what)
}
