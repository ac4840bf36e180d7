//! Writes to our own stdout or stderr, and detects that the reader is gone.
//!
//! A reader that is gone is not an error: it has read what it wanted. Anything else that prevents output is an error.

use std::io;
use std::os::fd::AsFd;

use bowline_model::{Doing as _, Kind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Whether somebody still reads our output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    There,
    /// Nobody reads any more: stop, without an error.
    Gone,
}

impl Reader {
    /// Interprets poll(2) events of an output: the reader is gone if a pipe or socket has lost its peer, or a terminal
    /// its other end.
    pub fn after(revents: PollFlags) -> Reader {
        if revents.intersects(PollFlags::ERR | PollFlags::HUP) { Reader::Gone } else { Reader::There }
    }

    /// Checks `output` now, without waiting.
    pub fn of(output: impl AsFd) -> Reader {
        let mut watched = [PollFd::new(&output, PollFlags::empty())];
        match poll(&mut watched, Some(&Timespec::default())) {
            Ok(_) => Reader::after(watched[0].revents()),
            Err(_) => Reader::There,
        }
    }
}

/// Writes all of `bytes` without the standard library's buffer, however long that takes.
pub fn write_all(output: impl AsFd, mut bytes: &[u8]) -> io::Result<Reader> {
    while !bytes.is_empty() {
        match rustix::io::write(&output, bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(Errno::INTR) => {}
            // Another process that shares the file description may have made it non-blocking.
            Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&output, PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            },
            Err(Errno::PIPE | Errno::CONNRESET) => return Ok(Reader::Gone),
            // A terminal that was hung up returns EIO, as a broken disk does.
            Err(_) if Reader::of(&output) == Reader::Gone => return Ok(Reader::Gone),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(Reader::There)
}

/// Prints a result to stdout. Does nothing more if the reader is gone.
pub fn print(bytes: &[u8]) -> Result<()> {
    write_all(rustix::stdio::stdout(), bytes).doing(Kind::Internal, || "cannot write to stdout").map(drop)
}
