//! The terminal of a process: the process makes it inside, so that it is the task's own, and hands it out to the shim.
//!
//! ```text
//!   process: /dev/pts/ptmx ─► both ends ─ SCM_RIGHTS ─► shim: pumps the master
//! ```
//!
//! Must not: know who looks at the terminal.

use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::json::handover::Fd;
use bowline_sys as sys;
use oci_spec::runtime::Process;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use rustix::termios::{Winsize, tcsetwinsize};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;

/// The size of a terminal, in characters; 0 is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WindowSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

impl WindowSize {
    /// This size or, if it is unknown, the one that the configuration of the terminal's process names.
    pub fn or_of(self, process: &Process) -> WindowSize {
        let unknown = self == WindowSize::default();
        let characters = |count: u64| u16::try_from(count).unwrap_or(u16::MAX);
        match process.console_size().filter(|_| unknown) {
            Some(size) => WindowSize { rows: characters(size.height()), columns: characters(size.width()) },
            None => self,
        }
    }

    /// Sets the size of the terminal at `fd`; the kernel notifies its foreground processes.
    pub fn set(self, fd: impl AsFd) -> Result<()> {
        let size = Winsize { ws_row: self.rows, ws_col: self.columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(fd, size).doing(Kind::Internal, || "cannot change a terminal's size")
    }
}

/// What a process needs to make its terminal.
#[derive(Debug)]
pub struct Wish {
    /// Where the process sends both ends of the terminal.
    pub socket: OwnedFd,
    /// The size that the terminal has at first.
    pub size: WindowSize,
    /// Whether the ends of lines stay as they are, without a return before each.
    pub keeps_lines: bool,
}

/// The shim's end of the socket in a [`Wish`].
#[derive(Debug)]
pub struct Awaited(OwnedFd);

/// A terminal in the shim's hands.
#[derive(Debug)]
pub struct Terminal {
    /// Reads what the task writes, and takes its input.
    pub master: Rc<AsyncFd<File>>,
    /// Kept open, so that a task that closes its terminal can open it again.
    slave: OwnedFd,
}

/// Creates the [`Wish`] for a process and the end at which the shim gets the terminal.
pub fn wish(size: WindowSize) -> Result<(Wish, Awaited)> {
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (ours, socket) = pair.doing(Kind::Internal, || "cannot make a socket for a terminal")?;
    Ok((Wish { socket, size, keeps_lines: false }, Awaited(ours)))
}

impl Awaited {
    /// Receives the master of the terminal, for somebody else.
    pub fn master(self) -> Result<OwnedFd> {
        self.both().map(|[master, _]| master)
    }

    /// Receives the terminal, once the process has reported that it is set up.
    pub fn receive(self) -> Result<Terminal> {
        let what = || "cannot take over a terminal";
        let [master, slave] = self.both()?;
        rustix::io::ioctl_fionbio(&master, true).doing(Kind::Internal, what)?;
        let master = Rc::new(sys::register_fd(File::from(master)).doing(Kind::Internal, what)?);
        Ok(Terminal { master, slave })
    }

    /// Receives master and slave.
    fn both(self) -> Result<[OwnedFd; 2]> {
        let what = || "cannot take over a terminal";
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0u8];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        recvmsg(&self.0, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags).doing(Kind::Internal, what)?;
        let mut fds = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let mut fds = fds.next().into_iter().flatten();
        let (Some(master), Some(slave)) = (fds.next(), fds.next()) else {
            return Err(Error::new(Kind::Internal, "a process has sent no terminal"));
        };
        Ok([master, slave])
    }
}

/// A terminal, as a shim hands it over.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    master: Fd,
    slave: Fd,
}

impl Handed {
    pub fn take(self) -> Result<Terminal> {
        let master =
            sys::register_fd(File::from(self.master.take()?)).doing(Kind::Internal, || "cannot watch a terminal")?;
        Ok(Terminal { master: Rc::new(master), slave: self.slave.take()? })
    }
}

impl Terminal {
    /// The terminal for the program that is executed in the shim's place.
    pub fn hand_over(&self) -> Handed {
        Handed { master: Fd::of(self.master.get_ref()), slave: Fd::of(&self.slave) }
    }

    /// Sets the size of the terminal.
    pub fn resize(&self, size: WindowSize) -> Result<()> {
        size.set(&self.slave)
    }
}
