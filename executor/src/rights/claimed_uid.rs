//! Gives an untrusted task a user of its own.
//!
//! ```text
//!   the shim's pid ─► a number of the range ─ taken? ─► the next
//! ```
//!
//! A number is taken while a shim holds the lock of its byte in one file, which root alone may
//! open, or while a process has it as its user. The kernel frees the lock with the shim, however
//! that ends: nothing is left to clean up, and shims of other state folders and namespaces are seen
//! too. Processes that a dead shim has left running still have its number.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::json::handover::Fd;
use bowline_spec::untrusted::UIDS;
use bowline_sys as sys;
use rustix::fs::Uid;
use rustix::io::Errno;
use rustix::process::getpriority_user;
use serde::{Deserialize, Serialize};

use crate::process::host_lock;

/// The file with a byte for each number, one for the whole host.
const LOCKS: &str = "/run/bowline-users";

/// A user that no other task has while this value lives.
#[derive(Debug)]
pub struct ClaimedUid {
    /// The user id, which is the group id too.
    pub uid: u32,
    lock: OwnedFd,
}

/// A claim, as a shim hands it over.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    uid: u32,
    lock: Fd,
}

impl Handed {
    pub fn take(self) -> Result<ClaimedUid> {
        Ok(ClaimedUid { uid: self.uid, lock: self.lock.take()? })
    }
}

impl ClaimedUid {
    /// The claim for the program that is executed in the shim's place.
    pub fn hand_over(&self) -> Handed {
        Handed { uid: self.uid, lock: Fd::of(&self.lock) }
    }
}

/// Claims a number of [`UIDS`].
///
/// # Errors
/// `Internal` when all are taken; `WrongState` when other users may open the file of the locks.
pub fn claim() -> Result<ClaimedUid> {
    let file = host_lock::open(Path::new(LOCKS))?;
    let size = UIDS.end - UIDS.start;
    // Pids go round, so that a number is reused late.
    let first = std::process::id() % size;
    for offset in (0..size).map(|step| (first + step) % size) {
        let uid = UIDS.start + offset;
        let what = || format!("cannot claim user {uid}");
        if !sys::lock_byte(file.as_fd(), offset).doing(Kind::Internal, what)? {
            continue;
        }
        match getpriority_user(Uid::from_raw(uid)) {
            Err(Errno::SRCH) => return Ok(ClaimedUid { uid, lock: file.into() }),
            // Closing this file releases the lock too.
            Ok(_) => {}
            Err(errno) => return Err(errno).doing(Kind::Internal, what),
        }
    }
    let all = format!("every user from {} to {} is taken", UIDS.start, UIDS.end - 1);
    Err(Error::new(Kind::Internal, all).hint("`ps -eo uid,pid,args` and `bowline ps` show who uses them"))
}

/// Claims the number of a task whose shim died, which the task's processes may have.
///
/// # Errors
/// `WrongState` when another shim has it.
pub fn claim_again(uid: u32) -> Result<ClaimedUid> {
    let file = host_lock::open(Path::new(LOCKS))?;
    let what = || format!("cannot claim user {uid}");
    let offset = uid.checked_sub(UIDS.start).filter(|_| UIDS.contains(&uid));
    let offset = offset.ok_or_else(|| Error::new(Kind::Damaged, format!("{}: it is no task's own", what())))?;
    if sys::lock_byte(file.as_fd(), offset).doing(Kind::Internal, what)? {
        return Ok(ClaimedUid { uid, lock: file.into() });
    }
    Err(Error::new(Kind::WrongState, format!("{}: another shim has it", what())))
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
