//! Sends one descriptor through a Unix socket, and receives it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{Errno, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Sends `fd`, with a text of at least a byte to carry it. Returns how much of the text was sent.
pub fn send(socket: BorrowedFd<'_>, text: &[u8], fd: BorrowedFd<'_>) -> Result<usize> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(socket, &[IoSlice::new(text)], &mut ancillary, SendFlags::NOSIGNAL)
}

/// Receives a descriptor, with a byte that carries it; `None` if the sender has gone.
///
/// # Errors
/// `EMFILE` if this process has no room for another.
pub fn receive(socket: BorrowedFd<'_>, flags: RecvFlags) -> Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    if recvmsg(socket, &mut [IoSliceMut::new(&mut [0u8])], &mut ancillary, flags)?.bytes == 0 {
        return Ok(None);
    }
    let mut fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fds.next().map(Some).ok_or(Errno::MFILE)
}
