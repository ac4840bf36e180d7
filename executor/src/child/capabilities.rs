//! The capability sets of the program to be.
//!
//! ```text
//!   bound (as root) ─► user and groups change ─► apply
//! ```
//!
//! One system call for each that is taken from the bounding set, and three for
//! all the rest: an exec is a health check, and waits for them.

use std::collections::HashSet;

use bowline_error::{Doing, Error, Kind, Result};
use libcontainer::capabilities::CapabilityExt as _;
use oci_spec::runtime::{Capability, LinuxCapabilities, LinuxCapabilitiesBuilder};
use rustix::io::Errno;
use rustix::thread::{self, CapabilitySet, CapabilitySets};

/// The kernel's sets have room for these; it knows fewer.
const MOST: u64 = 64;

/// Takes what the task may never have from the bounding set. Needs SETPCAP.
pub fn bound(wanted: &LinuxCapabilities) -> Result<()> {
    let kept = set(wanted.bounding().as_ref());
    for capability in (0..MOST).map(|number| CapabilitySet::from_bits_retain(1 << number)) {
        if kept.contains(capability) {
            continue;
        }
        match thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The kernel's last was the one before.
            Err(Errno::INVAL) => return Ok(()),
            Err(errno) => return Err(errno).doing(Kind::Unsupported, || "cannot bound the task's capabilities"),
        }
    }
    Ok(())
}

/// Gives the calling process the sets that are wanted, of those that it has.
///
/// # Errors
/// `Unsupported` naming those that are wanted and are not there.
pub fn apply(wanted: &LinuxCapabilities) -> Result<()> {
    let what = || "cannot set the task's capabilities";
    let sets = CapabilitySets {
        effective: set(wanted.effective().as_ref()),
        permitted: set(wanted.permitted().as_ref()),
        inheritable: set(wanted.inheritable().as_ref()),
    };
    if let Err(errno) = thread::set_capabilities(None, sets) {
        let missing = missing(wanted);
        if missing.is_empty() {
            return Err(errno).doing(Kind::Internal, what);
        }
        let message = format!("capabilities: this host has no {} to give", missing.join(", "));
        return Err(Error::new(Kind::Unsupported, message).hint("bowline itself runs without it"));
    }
    // What whoever started us may have left there.
    thread::clear_ambient_capability_set().doing(Kind::Internal, what)?;
    // One that is not inheritable cannot be ambient (capabilities(7)), and is
    // left out by every runtime: the usual example of a configuration has some.
    let ambient = set(wanted.ambient().as_ref()) & sets.inheritable & sets.permitted;
    for capability in ambient.iter() {
        thread::configure_capability_in_ambient_set(capability, true).doing(Kind::Internal, what)?;
    }
    Ok(())
}

/// Takes all capabilities from the calling process, for good.
pub fn give_up() -> Result<()> {
    let none = LinuxCapabilitiesBuilder::default()
        .bounding(HashSet::new())
        .effective(HashSet::new())
        .inheritable(HashSet::new())
        .permitted(HashSet::new())
        .ambient(HashSet::new())
        .build();
    let none = none.doing(Kind::Internal, || "cannot name no capabilities")?;
    bound(&none)?;
    apply(&none)
}

/// Those of the wanted capabilities that we do not have ourselves.
fn missing(wanted: &LinuxCapabilities) -> Vec<String> {
    let ours = thread::capabilities(None).map_or_else(|_| CapabilitySet::empty(), |sets| sets.permitted);
    let wanted = wanted.permitted().iter().flatten().filter(|c| !ours.contains(bit(c)));
    let mut missing: Vec<String> = wanted.map(|c| c.to_cap().to_string()).collect();
    missing.sort();
    missing
}

fn set(capabilities: Option<&HashSet<Capability>>) -> CapabilitySet {
    capabilities.into_iter().flatten().map(bit).collect()
}

fn bit(capability: &Capability) -> CapabilitySet {
    CapabilitySet::from_bits_retain(capability.to_cap().bitmask())
}
