//! Sets the capabilities of the program before it is executed.
//!
//! ```text
//!   bound (as root) ─► user and groups change ─► apply
//! ```
//!
//! Each capability that is taken from the bounding set needs one system call, and the rest together needs three: a
//! health check is an exec, and waits for them.

use std::collections::HashSet;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_spec::capability::Capability as Known;
use oci_spec::runtime::{Capabilities, Capability, LinuxCapabilities};
use rustix::io::Errno;
use rustix::thread::{self, CapabilitySet, CapabilitySets};

/// How many capabilities the kernel's sets have room for; it knows fewer.
const MOST: u64 = 64;

/// Takes the capabilities that the task may never have from the bounding set: all, where none are wanted. Needs SETPCAP.
pub fn bound(wanted: Option<&LinuxCapabilities>) -> Result<()> {
    let kept = set(wanted.and_then(|wanted| wanted.bounding().as_ref()));
    for capability in (0..MOST).map(|number| CapabilitySet::from_bits_retain(1 << number)) {
        if kept.contains(capability) {
            continue;
        }
        match thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The previous capability was the last that the kernel knows.
            Err(Errno::INVAL) => return Ok(()),
            Err(errno) => return Err(errno).doing(Kind::Unsupported, || "cannot bound the task's capabilities"),
        }
    }
    Ok(())
}

/// Gives the calling process the wanted sets, from the capabilities that it has; empty ones, where none are wanted.
///
/// # Errors
/// `Unsupported`, with the names of the wanted capabilities that this process lacks.
pub fn apply(wanted: Option<&LinuxCapabilities>) -> Result<()> {
    let what = || "cannot set the task's capabilities";
    let of = |pick: fn(&LinuxCapabilities) -> &Option<Capabilities>| set(wanted.and_then(|sets| pick(sets).as_ref()));
    let sets = CapabilitySets {
        effective: of(LinuxCapabilities::effective),
        permitted: of(LinuxCapabilities::permitted),
        inheritable: of(LinuxCapabilities::inheritable),
    };
    if let Err(errno) = thread::set_capabilities(None, sets) {
        let missing = missing(wanted);
        if missing.is_empty() {
            return Err(errno).doing(Kind::Internal, what);
        }
        let message = format!("this host has no {} to give", missing.join(", "));
        return Err(Error::new(Kind::Unsupported, message)
            .in_field("capabilities")
            .hint("bowline itself runs without it"));
    }
    // The process that started this one may have left some there.
    thread::clear_ambient_capability_set().doing(Kind::Internal, what)?;
    // The log names the others.
    let ambient = of(LinuxCapabilities::ambient) & sets.inheritable & sets.permitted;
    for capability in ambient.iter() {
        thread::configure_capability_in_ambient_set(capability, true).doing(Kind::Internal, what)?;
    }
    Ok(())
}

/// Takes all capabilities from the calling process permanently.
pub fn give_up() -> Result<()> {
    bound(None)?;
    apply(None)
}

/// The names of the wanted capabilities that this process lacks.
fn missing(wanted: Option<&LinuxCapabilities>) -> Vec<String> {
    let ours = thread::capabilities(None).map_or_else(|_| CapabilitySet::empty(), |sets| sets.permitted);
    let wanted =
        wanted.and_then(|wanted| wanted.permitted().as_ref()).into_iter().flatten().filter(|c| !ours.contains(bit(c)));
    let mut missing: Vec<String> = wanted.map(|c| Known::of_oci(c).to_string()).collect();
    missing.sort();
    missing
}

fn set(capabilities: Option<&HashSet<Capability>>) -> CapabilitySet {
    capabilities.into_iter().flatten().map(bit).collect()
}

fn bit(capability: &Capability) -> CapabilitySet {
    CapabilitySet::from_bits_retain(1 << Known::of_oci(capability).number())
}
