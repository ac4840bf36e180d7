//! Whoever reads our own stdout or stderr: writing to it, and whether it has gone.
//!
//! Nobody complains of a reader that has gone: it has what it wanted. Anything
//! else that keeps output from being written is an error.

use std::io;
use std::os::fd::AsFd;

use bowline_executor::{Doing as _, Kind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Whether anybody still reads what is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// Somebody does.
    There,
    /// Nobody does: no reason to go on, nor to complain.
    Gone,
}

impl Reader {
    /// Whether poll(2) says of an output that its reader has gone: a pipe's, a
    /// socket's peer, or a terminal's other end.
    pub fn after(revents: PollFlags) -> Reader {
        if revents.intersects(PollFlags::ERR | PollFlags::HUP) { Reader::Gone } else { Reader::There }
    }

    /// Looks at `output` now.
    pub fn of(output: impl AsFd) -> Reader {
        let mut watched = [PollFd::new(&output, PollFlags::empty())];
        match poll(&mut watched, Some(&Timespec::default())) {
            Ok(_) => Reader::after(watched[0].revents()),
            Err(_) => Reader::There,
        }
    }
}

/// Writes all of `bytes` past the library's buffer, however long that takes.
pub fn write_all(output: impl AsFd, mut bytes: &[u8]) -> io::Result<Reader> {
    while !bytes.is_empty() {
        match rustix::io::write(&output, bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(Errno::INTR) => {}
            // Whoever shares the description may have made it non-blocking.
            Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&output, PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            },
            Err(Errno::PIPE | Errno::CONNRESET) => return Ok(Reader::Gone),
            // A terminal that was hung up answers EIO, as a broken disk does.
            Err(_) if Reader::of(&output) == Reader::Gone => return Ok(Reader::Gone),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(Reader::There)
}

/// Prints a result, which a reader that has gone does not want.
pub fn print(bytes: &[u8]) -> Result<()> {
    write_all(rustix::stdio::stdout(), bytes).doing(Kind::Internal, || "cannot write to stdout").map(drop)
}
