//! A host-wide lock for changing networks by plugins.
//!
//! Plugins such as `firewall` and `portmap` check whether a shared chain exists and then create it. iptables on
//! nf_tables holds no lock in between, so one of two concurrent plugins fails.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::bounded_run::Bounds;
use crate::process::host_lock;

/// How long to wait between two tries: flock(2) either waits without a limit or not at all.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The file that is locked. Only root may open it: any other user could hold everybody up.
const LOCK: &str = "/run/bowline-plugins";

/// Waits for the lock, which is held until the result is dropped. After the time that a plugin may take, or when the
/// shim ends, the caller goes on without it: `None`.
pub fn take(bounds: Bounds<'_>) -> Option<File> {
    let lock = host_lock::open(Path::new(LOCK))
        .inspect_err(|error| tracing::warn!(%error, "network plugins may run beside others"))
        .ok()?;
    let begun = Instant::now();
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(lock),
            Err(Errno::WOULDBLOCK) if begun.elapsed() < bounds.timeout && shim_lives(bounds) => {}
            Err(errno) => {
                tracing::warn!(%errno, after = ?begun.elapsed(), "network plugins run beside others");
                return None;
            }
        }
    }
}

/// Waits until the next try; `false` if the shim ends meanwhile.
fn shim_lives(bounds: Bounds<'_>) -> bool {
    let mut shim: Vec<PollFd<'_>> = bounds.shim.iter().map(|shim| PollFd::new(shim, PollFlags::IN)).collect();
    // A signal only makes the next try come earlier.
    !matches!(poll(&mut shim, Some(&LOOK)), Ok(ended) if ended > 0)
}
