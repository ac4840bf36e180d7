//! A bridge that was made for one of our own lists: it is removed with the last interface in it.
//!
//! The plugin leaves the bridge behind. Its alias marks it as ours, so that a bridge that existed before, or that
//! somebody else has taken over, is left alone. A process that joins holds a shared lock on the host's network; one
//! that removes holds an exclusive one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Kind, Result};
use bowline_sys as sys;
use rustix::fs::{FlockOperation, flock};

/// The alias of bridges that are ours.
const ALIAS: &str = "bowline";

/// Held while a plugin makes a bridge, or puts an interface into it.
pub struct Joining<'a> {
    bridge: &'a str,
    there: bool,
    _lock: File,
}

impl<'a> Joining<'a> {
    /// Keeps the bridge from being removed until this is dropped.
    pub fn begin(bridge: &'a str) -> Result<Joining<'a>> {
        let lock = lock(FlockOperation::LockShared)?;
        Ok(Joining { bridge, there: folder(bridge).exists(), _lock: lock })
    }

    /// Marks the bridge as ours if it exists now and did not before.
    pub fn end(&self) {
        let alias = folder(self.bridge).join("ifalias");
        if !self.there && alias.exists() {
            let marked = fs::write(&alias, ALIAS);
            let _ = marked.inspect_err(|error| tracing::warn!(%error, self.bridge, "it will be left"));
        }
    }
}

/// Removes the bridge that an interface has left, if that was the last one and the bridge is ours.
pub fn left(bridge: &str) {
    if !is_done(bridge) {
        return;
    }
    let removed = lock(FlockOperation::LockExclusive).and_then(|_lock| {
        // Another process may have joined the bridge, or removed it.
        if !is_done(bridge) {
            return Ok(());
        }
        sys::remove_bridge(bridge).doing(Kind::Internal, || "cannot remove it")
    });
    let _ = removed.inspect_err(|error| tracing::warn!(%error, bridge, "the bridge is left"));
}

/// Whether the bridge is ours and empty.
fn is_done(bridge: &str) -> bool {
    let at = folder(bridge);
    let ours = fs::read_to_string(at.join("ifalias")).is_ok_and(|alias| alias.trim_end() == ALIAS);
    ours && fs::read_dir(at.join("brif")).is_ok_and(|mut inside| inside.next().is_none())
}

fn folder(bridge: &str) -> PathBuf {
    Path::new("/sys/class/net").join(bridge)
}

fn lock(how: FlockOperation) -> Result<File> {
    let what = || "cannot lock the host's network";
    let network = File::open("/proc/self/ns/net").doing(Kind::Internal, what)?;
    flock(&network, how).doing(Kind::Internal, what)?;
    Ok(network)
}
