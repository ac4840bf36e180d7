//! Seccomp filters: compiled once per profile, kept on disk, loaded by children.
//!
//!   profile ─ compile ─► libseccomp's BPF ─ rewrite ─► shorter ─ cache ─► Filter
//!
//! libseccomp takes 12–18 ms for the default profile, and dirties half a
//! megabyte of memory: a worker does it, once for all tasks of this host.

mod bpf;
mod cache;
mod compile;
mod graph;
mod rewrite;

use std::path::Path;
use std::rc::Rc;

use oci_spec::runtime::{LinuxSeccomp, LinuxSeccompFilterFlag};
use sha2::{Digest, Sha256};

use crate::error::{Doing, Error, Kind, Result};
use crate::worker;

/// Changes when the format of a kept filter, or how we compile, does.
const FORMAT: &str = "bowline-seccomp-2";

/// A filter as the kernel loads it.
#[derive(Debug, Clone)]
pub struct Filter {
    /// `sock_filter` instructions, 8 bytes each.
    pub program: Rc<[u8]>,
    /// SECCOMP_FILTER_FLAG_* for the load.
    pub flags: u64,
}

/// The filter of `profile`, from `cache` where it is kept already.
///
/// # Errors
/// `BadSpec` for a profile that cannot be compiled: no task runs without the
/// filter it asked for. A cache that cannot be used costs time only.
pub async fn filter(profile: &LinuxSeccomp, cache: &Path) -> Result<Filter> {
    let flags = load_flags(profile)?;
    let path = cache.join(key(profile)?);
    if let Some(program) = cache::read(&path) {
        return Ok(Filter { program: program.into(), flags });
    }
    let profile = profile.clone();
    let program = worker::run("seccomp", move || {
        let program = compile::compile(&profile)?;
        if let Err(error) = cache::keep(&path, &program) {
            tracing::warn!(%error, path = %path.display(), "cannot keep the seccomp filter");
        }
        Ok(program)
    })
    .await?;
    Ok(Filter { program: program.into(), flags })
}

/// What a kept filter is found by: profile, architecture, library, format.
fn key(profile: &LinuxSeccomp) -> Result<String> {
    let json = serde_json::to_vec(profile).doing(Kind::Internal, || "cannot write the seccomp profile as JSON")?;
    let version = libseccomp::ScmpVersion::current().map_or_else(|_| String::new(), |v| v.to_string());
    let mut digest = Sha256::new();
    for part in [FORMAT.as_bytes(), std::env::consts::ARCH.as_bytes(), version.as_bytes(), &json] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    let hex: String = digest.finalize().iter().map(|b| format!("{b:02x}")).collect();
    Ok(format!("{hex}.bpf"))
}

fn load_flags(profile: &LinuxSeccomp) -> Result<u64> {
    let mut flags = 0;
    for flag in profile.flags().iter().flatten() {
        flags |= match flag {
            LinuxSeccompFilterFlag::SeccompFilterFlagLog => libc::SECCOMP_FILTER_FLAG_LOG,
            // One thread at execve: nothing to synchronise.
            LinuxSeccompFilterFlag::SeccompFilterFlagTsync => 0,
            LinuxSeccompFilterFlag::SeccompFilterFlagSpecAllow => libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            LinuxSeccompFilterFlag::SeccompFilterFlagWaitKillableRecv => {
                return Err(Error::new(
                    Kind::Unsupported,
                    "seccomp: SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV is not supported",
                ));
            }
        };
    }
    Ok(flags)
}

#[cfg(test)]
mod equivalence;

#[cfg(test)]
mod tests {
    use bowline_spec::{capability, seccomp};

    use super::*;

    #[test]
    fn profiles_that_differ_are_kept_apart_and_equal_ones_are_not() {
        let profile = seccomp::default_profile(&capability::default_set(), seccomp::native_arch(), (6, 1));
        let mut other = profile.clone();
        other.set_default_errno_ret(Some(13));
        assert_eq!(key(&profile).expect("a key"), key(&profile.clone()).expect("a key"));
        assert_ne!(key(&profile).expect("a key"), key(&other).expect("a key"));
    }
}
