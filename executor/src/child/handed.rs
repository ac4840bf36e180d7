//! What a process that is being started has of the shim's descriptors.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;

use crate::io::{End, Stdio};

/// The descriptors that a process is handed: its standard streams, and what it
/// needs on its way to execve. Whoever can trace it there reaches no others.
pub struct Handed<'a> {
    streams: [Stream<'a>; 3],
    report: BorrowedFd<'a>,
    others: Vec<RawFd>,
}

enum Stream<'a> {
    /// Open already.
    Fd(BorrowedFd<'a>),
    /// A null device, which may have to be made first.
    Null(Option<BorrowedFd<'a>>),
}

impl<'a> Handed<'a> {
    /// The pipe it reports by, and `others`.
    pub fn new(report: BorrowedFd<'a>, others: Vec<RawFd>) -> Handed<'a> {
        Handed { streams: [(); 3].map(|()| Stream::Null(None)), report, others }
    }

    /// With its own standard streams, and `null` for those of them that are the
    /// null device.
    pub fn with_streams(self, stdio: &'a Stdio, null: Option<BorrowedFd<'a>>) -> Handed<'a> {
        let streams = [&stdio.stdin, &stdio.stdout, &stdio.stderr].map(|end| match end {
            End::Fd(fd) => Stream::Fd(fd.as_fd()),
            End::Null => Stream::Null(null),
        });
        let others = self.others.into_iter().chain(stdio.terminal.as_ref().map(|wish| wish.socket.as_raw_fd()));
        Handed { streams, others: others.collect(), ..self }
    }

    /// Leaves the calling process, which has one thread and owns none of the
    /// shim's fds, with these, and with `also`. `null` is the null device where
    /// there was none. A stream that has nothing yet is the pipe of the report: a
    /// number that is free would be taken by whatever is opened next.
    pub fn take(&self, null: Option<BorrowedFd<'_>>, also: impl IntoIterator<Item = RawFd>) -> Result<()> {
        for (stream, number) in self.streams.iter().zip(0..) {
            let fd = match stream {
                Stream::Fd(fd) => *fd,
                Stream::Null(given) => given.or(null).unwrap_or(self.report),
            };
            sys::place_fd(fd, number).doing(Kind::Internal, || "cannot set up the standard streams")?;
        }
        let mut keep: Vec<RawFd> = self.others.iter().copied().chain(also).collect();
        keep.push(self.report.as_raw_fd());
        sys::close_all_but(&mut keep);
        Ok(())
    }

    /// Sends `message` up the pipe of the report. A reader that has gone does not care.
    pub fn say(&self, message: &[u8]) {
        let _ = sys::write_fd(self.report.as_raw_fd(), message);
    }

    /// Sends an error up the pipe of the report.
    pub fn tell(&self, error: &Error) {
        super::tell_error(self.report.as_raw_fd(), error);
    }
}
