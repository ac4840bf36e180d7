//! Refuses limits that only the other cgroup version has, naming the field.
//!
//! Fields that managers send although they have no effect are logged, because runc starts such containers. Pure, but
//! for the log.

use bowline_error::{Error, Kind, Result};
use oci_spec::runtime::LinuxResources;

use crate::limit::Limit;
use crate::version::Version;

/// Refuses what this version does not have.
///
/// # Errors
/// `Unsupported` naming the field.
pub fn check(resources: &LinuxResources, limits: &[Limit], version: Version) -> Result<()> {
    match version {
        Version::V1 => {
            let Some((key, value)) = resources.unified().iter().flatten().min() else { return Ok(()) };
            let message = format!("cannot set {key} to {value}: it is a cgroup v2 key, and this host has cgroup v1");
            Err(Error::new(Kind::Unsupported, message))
        }
        Version::V2 => {
            // Every cgroup of v2 counts what is below it.
            let mut only = limits.iter().filter(|limit| **limit != Limit::UseHierarchy);
            let Some(field) = only.find_map(Limit::field) else { return Ok(()) };
            let message = format!("linux.resources.{field}: only cgroup v1 has it, and this host has cgroup v2");
            Err(Error::new(Kind::Unsupported, message))
        }
    }
}

/// Logs what is set and has no effect.
pub fn log(resources: &LinuxResources, version: Version) {
    let none = |field: &str, why: &str| tracing::warn!("linux.resources.{field} has no effect: {why}");
    let Some(memory) = resources.memory() else { return };
    for (field, set) in [("memory.kernel", memory.kernel()), ("memory.kernelTCP", memory.kernel_tcp())] {
        if set.is_some_and(|most| most != 0) {
            none(field, "the kernel counts this memory with all other, under memory.limit");
        }
    }
    if version == Version::V2 && memory.swappiness().is_some() {
        none("memory.swappiness", "cgroup v2 has one for the whole host");
    }
}
