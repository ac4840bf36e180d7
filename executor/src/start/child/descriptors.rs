//! The shim's descriptors that a process has while it is being started.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;

use super::messages::tell_error;
use crate::output::io::{End, Stdio};

/// The descriptors that a process is handed: its standard streams, and what it needs on its way to execve. A
/// process that can trace it there reaches no others.
pub struct ChildFds<'a> {
    streams: [Stream<'a>; 3],
    report: BorrowedFd<'a>,
    others: Vec<RawFd>,
}

enum Stream<'a> {
    /// A descriptor that the shim has open already.
    Fd(BorrowedFd<'a>),
    /// A null device, which may have to be created first.
    Null(Option<BorrowedFd<'a>>),
}

impl<'a> ChildFds<'a> {
    /// Hands over the report pipe and `others`; the standard streams are the null device.
    pub fn new(report: BorrowedFd<'a>, others: Vec<RawFd>) -> ChildFds<'a> {
        ChildFds { streams: [(); 3].map(|()| Stream::Null(None)), report, others }
    }

    /// Hands over the standard streams of `stdio` too, with `null` for those that are the null device.
    pub fn with_streams(self, stdio: &'a Stdio, null: Option<BorrowedFd<'a>>) -> ChildFds<'a> {
        let streams = [&stdio.stdin, &stdio.stdout, &stdio.stderr].map(|end| match end {
            End::Fd(fd) => Stream::Fd(fd.as_fd()),
            End::Null => Stream::Null(null),
        });
        let others = self.others.into_iter().chain(stdio.terminal.as_ref().map(|wish| wish.socket.as_raw_fd()));
        ChildFds { streams, others: others.collect(), ..self }
    }

    /// Leaves the calling process with these descriptors and `also`, and closes all others. The process must have
    /// one thread and own none of the shim's fds. `null` is the null device where none was given. A stream that has
    /// nothing yet gets the report pipe: the next file that is opened would take a free number.
    pub fn take(&self, null: Option<BorrowedFd<'_>>, also: impl IntoIterator<Item = RawFd>) -> Result<()> {
        for (stream, number) in self.streams.iter().zip(0..) {
            let fd = match stream {
                Stream::Fd(fd) => *fd,
                Stream::Null(given) => given.or(null).unwrap_or(self.report),
            };
            sys::place_fd(fd, number).doing(Kind::Internal, || "cannot set up the standard streams")?;
        }
        let mut keep: Vec<RawFd> = self.others.iter().copied().chain(also).collect();
        keep.push(self.report());
        sys::close_all_but(&mut keep);
        Ok(())
    }

    /// The report pipe, by number.
    pub fn report(&self) -> RawFd {
        self.report.as_raw_fd()
    }

    /// Sends `message` up the report pipe. If the reader has gone, the message no longer matters.
    pub fn say(&self, message: &[u8]) {
        let _ = sys::write_fd(self.report(), message);
    }

    /// Sends an error up the report pipe.
    pub fn tell(&self, error: &Error) {
        tell_error(self.report(), error);
    }
}
