//! Maps of owners for binds whose source lies in an earlier mount: that exists in init's mount namespace alone.
//!
//! ```text
//!   init: copies the source ─ SCM_RIGHTS ─► helper of the shim: maps its owners ─► init: attaches it
//! ```
//!
//! The kernel maps owners of a mount before it is attached, for who has rights to its filesystem; in a user namespace
//! init has none. The helper ends with init's setup. Must not: open a path.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};

use crate::process::fd_passing;
use crate::process::worker;

/// What the owners of one mount are shown by.
#[derive(Debug)]
pub struct Owners {
    /// The user namespace with the maps.
    pub users: OwnedFd,
    /// Whether they are for the mounts below too.
    pub recursive: bool,
}

impl Owners {
    /// Maps the owners of `tree`, which is not attached.
    pub fn show(&self, tree: BorrowedFd<'_>) -> Result<()> {
        sys::mount_idmap(tree, self.recursive, self.users.as_fd()).map_err(|errno| refused(&errno))
    }
}

fn refused(errno: &dyn std::fmt::Display) -> Error {
    Error::new(Kind::Unsupported, format!("its filesystem or this kernel cannot map owners: {errno}"))
}

/// Init's end of the socket to the helper.
#[derive(Debug)]
pub struct Mapper(OwnedFd);

impl Mapper {
    /// Starts the helper for mounts with these owners, which init will open in their order; none for none.
    pub fn start(all: &[Owners]) -> Result<Option<Mapper>> {
        if all.is_empty() {
            return Ok(None);
        }
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (theirs, ours) = pair.doing(Kind::Internal, || "cannot make a socket for owners of mounts")?;
        let mut keep = vec![ours.as_raw_fd()];
        keep.extend(all.iter().map(|owners| owners.users.as_raw_fd()));
        // Nobody waits for its answer: the sweep reaps it.
        worker::start_apart("owners of mounts", || sys::clone3(0, None), &keep, || serve(&ours, all)).map(drop)?;
        Ok(Some(Mapper(theirs)))
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// Maps the owners of `tree`, the copy of the next source.
    pub fn show(&self, tree: BorrowedFd<'_>) -> Result<()> {
        let what = || "cannot have its owners mapped";
        fd_passing::send(self.0.as_fd(), b"t", tree).doing(Kind::Internal, what)?;
        let mut errno = [0; 4];
        let mut got = 0;
        while got < errno.len() {
            match rustix::io::read(&self.0, &mut errno[got..]).doing(Kind::Internal, what)? {
                0 => return Err(Error::new(Kind::Internal, "the helper that maps owners has ended")),
                more => got += more,
            }
        }
        match i32::from_ne_bytes(errno) {
            0 => Ok(()),
            errno => Err(refused(&Errno::from_raw_os_error(errno))),
        }
    }
}

/// In the helper: maps the owners of each tree that comes, until init closes its end.
fn serve(socket: &OwnedFd, all: &[Owners]) -> Result<()> {
    let what = || "cannot map owners for init";
    for owners in all {
        let Some(tree) = fd_passing::receive(socket.as_fd(), RecvFlags::empty()).doing(Kind::Internal, what)? else {
            break;
        };
        let mapped = sys::mount_idmap(tree.as_fd(), owners.recursive, owners.users.as_fd());
        let errno = mapped.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EINVAL), |()| 0);
        rustix::io::write(socket, &errno.to_ne_bytes()).doing(Kind::Internal, what)?;
    }
    Ok(())
}
