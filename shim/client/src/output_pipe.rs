//! A pipe for the output of a command in a task: the shim opens it by its name in our `/proc`, and the command holds it.
//! There is no file to it that the command could reach, and nothing is copied on the way.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use rustix::fs::fstat;
use rustix::net::sockopt::socket_peercred;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::shim::Shim;

/// The writing end of a pipe of ours. The shim opens another one, which it can as long as this one is there.
#[derive(Debug)]
pub struct OutputPipe {
    write: OwnedFd,
    /// The pipe's.
    pub inode: u64,
}

impl OutputPipe {
    /// Makes a pipe, with its reading end.
    pub fn new() -> io::Result<(OwnedFd, OutputPipe)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        let inode = fstat(&write)?.st_ino;
        Ok((read, OutputPipe { write, inode }))
    }

    /// Its name for the shim.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.write.as_raw_fd())
    }
}

impl From<OutputPipe> for OwnedFd {
    fn from(pipe: OutputPipe) -> OwnedFd {
        pipe.write
    }
}

impl Shim {
    /// Whether the shim sees our processes by the pids that we have: it lives in our pid namespace.
    pub fn sees_us(&self) -> bool {
        let namespace = |of: &str| fs::metadata(format!("/proc/{of}/ns/pid")).ok().map(|meta| (meta.dev(), meta.ino()));
        let peer = self.connection.as_ref().and_then(|connection| socket_peercred(connection).ok());
        let shim = peer.and_then(|peer| namespace(&peer.pid.as_raw_nonzero().to_string()));
        shim.is_some() && shim == namespace("self")
    }
}
