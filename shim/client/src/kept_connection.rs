//! A connection that is kept from one call to the next, for a program that asks the same shim again and again.
//!
//! A new connection costs one more call, which asks what the shim serves. Must not: connect.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::shim::Shim;

/// A connection to a shim that serves what this library needs, once there is one. Clones share it.
#[derive(Clone, Default)]
pub struct Kept(Arc<Mutex<Option<Shim>>>);

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kept")
    }
}

impl Kept {
    /// The shim at the other end, unless it has closed the connection.
    pub(crate) fn open(&self) -> Option<Shim> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_some_and(|shim| shim.connection.as_ref().is_none_or(|it| is_closed(it))) {
            *kept = None;
        }
        kept.clone()
    }

    /// Keeps the connection to `shim`.
    pub(crate) fn keep(&self, shim: &Shim) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(shim.clone());
    }
}

/// Whether nobody is at the other end any more.
fn is_closed(connection: &OwnedFd) -> bool {
    const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut looked = [PollFd::new(connection, PollFlags::RDHUP)];
    // An error is answered by a new connection.
    poll(&mut looked, Some(&NOW)).map_or(true, |closed| closed > 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_connection_is_closed_once_its_other_end_is() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let ours = OwnedFd::from(ours);
        assert!(!is_closed(&ours));
        drop(theirs);
        assert!(is_closed(&ours));
    }
}
