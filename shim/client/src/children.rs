//! The shims that this process has started and does not wait for.
//!
//! A shim outlives whoever has started it. One that ends while its starter lives stays a zombie until the starter
//! collects it: that happens each time another is started, or a task is waited for or removed. So there are never more
//! zombies than shims that have ended since. No thread and no signal handler is needed, which the program may want for
//! itself. Must not: wait, or touch a child that is not a shim of ours.

use std::process::Child;
use std::sync::{Mutex, PoisonError};

static SHIMS: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// Collects the end of `shim` once it has ended.
pub fn keep(mut shim: Child) {
    // The shim was asked for something: it no longer leaves with us.
    drop(shim.stdin.take());
    collect();
    SHIMS.lock().unwrap_or_else(PoisonError::into_inner).push(shim);
}

/// Collects those that have ended by now.
pub fn collect() {
    // An error means that the program collects all of its children itself, or ignores SIGCHLD.
    SHIMS.lock().unwrap_or_else(PoisonError::into_inner).retain_mut(|shim| matches!(shim.try_wait(), Ok(None)));
}
