//! Descriptors in what a shim hands over to the program that is executed in its place: by their numbers, which an
//! execve keeps.
//!
//! Must not: know what a descriptor is for.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd, RawFd};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use rustix::io::FdFlags;
use serde::{Deserialize, Serialize};

// A shim has one thread.
thread_local! {
    static NAMED: RefCell<BTreeSet<RawFd>> = const { RefCell::new(BTreeSet::new()) };
}

/// A descriptor by its number. It stays with its owner until the execve, and is the reader's from then on.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fd(RawFd);

impl Fd {
    /// Names a descriptor, which is then among those that the execve keeps open.
    pub fn of(fd: &impl AsFd) -> Fd {
        let number = fd.as_fd().as_raw_fd();
        NAMED.with_borrow_mut(|named| named.insert(number));
        Fd(number)
    }

    /// The number of the descriptor in this process.
    pub fn number(&self) -> RawFd {
        self.0
    }

    /// Takes the descriptor over, in the program that was executed. Each is taken once.
    ///
    /// # Errors
    /// `Damaged` when the number is not open.
    pub fn take(self) -> Result<OwnedFd> {
        let closed = || Error::new(Kind::Damaged, format!("descriptor {} was not handed over", self.0));
        sys::inherited_fd(self.0).ok_or_else(closed)
    }
}

/// Forgets which descriptors were named.
pub fn begin() {
    NAMED.take();
}

/// The numbers of the descriptors that were named since [`begin`].
pub fn named() -> BTreeSet<RawFd> {
    NAMED.with_borrow(Clone::clone)
}

/// Has an execve keep the named descriptors open, or close them after all.
///
/// # Errors
/// `Internal` when one of them is not open.
pub fn keep_open(open: bool) -> Result<()> {
    let flags = if open { FdFlags::empty() } else { FdFlags::CLOEXEC };
    NAMED.with_borrow(|named| {
        named.iter().try_for_each(|number| {
            sys::set_fd_flags(*number, flags).doing(Kind::Internal, || format!("cannot hand over descriptor {number}"))
        })
    })
}
