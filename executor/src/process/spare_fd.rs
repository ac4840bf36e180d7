//! A descriptor in reserve, for what must not fail when none is left: an exit report, and the error for a client.
//!
//! There is one for the whole process, whose only thread takes it and gives it back between two
//! waits. Must not: be lent across a wait.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Mutex, PoisonError};

static SPARE: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Keeps a descriptor in reserve from now on, if there is one.
pub fn keep() {
    let spare = rustix::io::fcntl_dupfd_cloexec(std::io::stderr().as_fd(), 3).ok();
    *SPARE.lock().unwrap_or_else(PoisonError::into_inner) = spare;
}

/// Gives the descriptor up for what `act` does, and then keeps one again.
pub fn lend<T>(act: impl FnOnce() -> T) -> T {
    drop(SPARE.lock().unwrap_or_else(PoisonError::into_inner).take());
    let done = act();
    keep();
    done
}
