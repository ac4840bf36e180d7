//! The turn of whoever changes networks by plugins: one at a time on a host.
//!
//! Plugins such as `firewall` and `portmap` look whether a chain that all share is there and make it if not, and iptables
//! on nf_tables has no lock between both: of two at once, one fails.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::bounded::Bounds;
use crate::host_lock;

/// How often it is looked whether the others are done: the kernel tells of a lock's end only whoever waits without a bound.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// What is locked: a file of root's, or anybody could hold all up.
const LOCK: &str = "/run/bowline-plugins";

/// Waits for the turn, which lasts until the result is dropped. `None` where a plugin's time is over before: then it is
/// run beside others.
pub fn take(bounds: Bounds<'_>) -> Option<File> {
    let lock = host_lock::open(Path::new(LOCK)).ok()?;
    let begun = Instant::now();
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(lock),
            Err(Errno::WOULDBLOCK) if begun.elapsed() < bounds.timeout => wait(bounds),
            Err(errno) => {
                tracing::warn!(%errno, after = ?begun.elapsed(), "network plugins run beside others");
                return None;
            }
        }
    }
}

/// Until the next look, or the end of the shim: then the next plugin is not run.
fn wait(bounds: Bounds<'_>) {
    let mut shim: Vec<PollFd<'_>> = bounds.shim.iter().map(|shim| PollFd::new(shim, PollFlags::IN)).collect();
    // A signal only makes the next look come earlier.
    let _ = poll(&mut shim, Some(&LOOK));
}
