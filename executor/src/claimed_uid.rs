//! A user of its own for a task that nobody vouches for.
//!
//! ```text
//!   the shim's pid ─► a number of the range ─ taken? ─► the next
//! ```
//!
//! A number is taken while a socket of its name is bound, or a process has it.
//! The kernel frees the name with the last holder of the socket, the shim,
//! however that ends: nothing is left to clean up, and shims of other state
//! folders are asked too. What a shim that died has left running still has
//! its number.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use bowline_spec::untrusted::UIDS;
use rustix::fs::Uid;
use rustix::io::Errno;
use rustix::process::getpriority_user;

use crate::error::{Doing, Error, Kind, Result};

/// A user that no other task has while this lives.
#[derive(Debug)]
pub struct ClaimedUid {
    /// Its number, and that of its group.
    pub uid: u32,
    _held: UnixDatagram,
}

/// Claims a number of [`UIDS`].
///
/// # Errors
/// `Internal` when all are taken.
pub fn claim() -> Result<ClaimedUid> {
    let size = UIDS.end - UIDS.start;
    // Pids go round, so that a number comes back late.
    let first = std::process::id() % size;
    for offset in 0..size {
        let uid = UIDS.start + (first + offset) % size;
        let what = || format!("cannot claim user {uid}");
        let name = SocketAddr::from_abstract_name(format!("bowline/user/{uid}")).doing(Kind::Internal, what)?;
        let held = match UnixDatagram::bind_addr(&name) {
            Ok(held) => held,
            Err(error) if error.kind() == ErrorKind::AddrInUse => continue,
            Err(error) => return Err(error).doing(Kind::Internal, what),
        };
        match getpriority_user(Uid::from_raw(uid)) {
            Err(Errno::SRCH) => return Ok(ClaimedUid { uid, _held: held }),
            Ok(_) => {}
            Err(errno) => return Err(errno).doing(Kind::Internal, what),
        }
    }
    let all = format!("every user from {} to {} is taken", UIDS.start, UIDS.end - 1);
    Err(Error::new(Kind::Internal, all).hint("`ps -eo uid,pid,args` shows by whom"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_claimed_once_until_it_is_let_go() {
        let claims: Vec<ClaimedUid> = (0..50).map(|_| claim().expect("free ones")).collect();
        let mut uids: Vec<u32> = claims.iter().map(|claim| claim.uid).collect();
        uids.sort_unstable();
        uids.dedup();
        assert_eq!(uids.len(), 50);
        assert!(uids.iter().all(|uid| UIDS.contains(uid)));
    }
}
