//! Gives the calling process its terminal, and the shim both ends of it.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use bowline_error::{Doing, Kind, Result};
use oci_spec::runtime::Process;
use rustix::fs::Uid;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::termios::{OptionalActions, OutputModes, tcgetattr, tcsetattr};

use crate::output::io::Wish;
use crate::view::rootfs::Pty;

/// Hands both ends of `pty` to the shim, and makes it the standard streams of this process.
pub fn take(wish: &Wish, process: &Process, pty: &Pty) -> Result<()> {
    let what = || "cannot set up the terminal";
    // The terminal belongs to its user; its group stays that of all terminals.
    rustix::fs::fchown(&pty.slave, Some(Uid::from_raw(process.user().uid())), None).doing(Kind::Internal, what)?;
    wish.size.set(&pty.slave)?;
    if wish.keeps_lines {
        let mut modes = tcgetattr(&pty.slave).doing(Kind::Internal, what)?;
        modes.output_modes.remove(OutputModes::ONLCR);
        tcsetattr(&pty.slave, OptionalActions::Now, &modes).doing(Kind::Internal, what)?;
    }
    let fds = [pty.master.as_fd(), pty.slave.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    // Descriptors travel with at least one byte of data.
    sendmsg(&wish.socket, &[IoSlice::new(b"t")], &mut ancillary, SendFlags::NOSIGNAL).doing(Kind::Internal, what)?;
    rustix::stdio::dup2_stdin(&pty.slave).doing(Kind::Internal, what)?;
    rustix::stdio::dup2_stdout(&pty.slave).doing(Kind::Internal, what)?;
    rustix::stdio::dup2_stderr(&pty.slave).doing(Kind::Internal, what)
}

/// Makes the terminal the controlling one of this process, which leads a session.
pub fn control(pty: &Pty) -> Result<()> {
    rustix::process::ioctl_tiocsctty(&pty.slave).doing(Kind::Internal, || "cannot set up the terminal")
}
