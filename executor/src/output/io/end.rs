//! The ends of stdin, stdout and stderr that the process itself holds.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use bowline_error::{Doing, Kind, Result};
use oci_spec::runtime::{Process, Spec};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Uid};

use super::terminal::Wish;
use crate::view::idmap::host_ids;

/// The standard streams of a process.
#[derive(Debug)]
pub struct Stdio {
    /// Read from as fd 0.
    pub stdin: End,
    /// Written to as fd 1.
    pub stdout: End,
    /// Written to as fd 2.
    pub stderr: End,
    /// If set, the process makes itself a terminal, which replaces all three streams.
    pub terminal: Option<Wish>,
    /// Further reading ends of the outputs' pipes, for an init that keeps the pipes open.
    pub kept: Vec<OwnedFd>,
}

/// The process's end of one standard stream.
#[derive(Debug)]
pub enum End {
    /// A null device that belongs to the task. A task never gets the host's null device, because it
    /// could change that device's mode, owner and times.
    Null,
    /// A pipe, a FIFO or a file.
    Fd(OwnedFd),
}

impl End {
    /// The open fd, unless this is the null device.
    pub fn fd(&self) -> Option<&OwnedFd> {
        match self {
            End::Null => None,
            End::Fd(fd) => Some(fd),
        }
    }
}

impl Stdio {
    /// Whether any of the streams is the null device.
    pub fn wants_null(&self) -> bool {
        let ends = [&self.stdin, &self.stdout, &self.stderr];
        self.terminal.is_none() && ends.into_iter().any(|end| matches!(end, End::Null))
    }
}

/// A close-on-exec pipe: reading end, writing end.
pub fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    pipe_with(PipeFlags::CLOEXEC).doing(Kind::Internal, || "cannot make a pipe")
}

/// The user and group that own the ends a process gets, in host ids: the process's own, so that it
/// can open `/dev/stdout` again.
#[derive(Debug, Clone, Copy)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    /// The owner of the streams of a process. `group` owns them instead of the process's own, if it is given.
    pub fn of(spec: &Spec, process: Option<&Process>, group: Option<u32>) -> Owner {
        let user = process.map_or((0, 0), |process| (process.user().uid(), process.user().gid()));
        let (uid, gid) = host_ids(spec, user.0, user.1);
        Owner { uid, gid: group.unwrap_or(gid) }
    }

    pub fn take(self, stream: &OwnedFd) -> Result<()> {
        let (uid, gid) = (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)));
        rustix::fs::fchown(stream, uid, gid).doing(Kind::Internal, || "cannot give a process its streams")
    }
}

/// Whether a file from a caller's path is the host's null device.
pub fn is_null(file: &File) -> Result<bool> {
    let file = file.metadata().doing(Kind::Internal, || "cannot examine a stream")?;
    Ok(file.file_type().is_char_device() && file.rdev() == rustix::fs::makedev(1, 3))
}
