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

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;

use bowline_spec::capability::Capability;
use bowline_spec::seccomp;
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

/// What a filter is compiled from.
#[derive(Debug, Clone)]
pub enum Profile {
    /// The default one: made only when there is no filter of it yet.
    Default {
        /// The task's.
        capabilities: BTreeSet<Capability>,
        /// The running one's version.
        kernel: (u32, u32),
    },
    /// A file's.
    Given(Box<LinuxSeccomp>),
}

impl Profile {
    /// What no other profile has.
    fn name(&self) -> Result<Vec<u8>> {
        match self {
            Profile::Default { capabilities, kernel } => {
                Ok(seccomp::default_profile_name(capabilities, seccomp::native_arch(), *kernel).into_bytes())
            }
            Profile::Given(profile) => {
                serde_json::to_vec(profile).doing(Kind::Internal, || "cannot write the seccomp profile as JSON")
            }
        }
    }

    fn load_flags(&self) -> Result<u64> {
        match self {
            Profile::Default { .. } => Ok(0),
            Profile::Given(profile) => load_flags(profile),
        }
    }

    fn compile(&self) -> Result<Vec<u8>> {
        match self {
            Profile::Default { capabilities, kernel } => {
                compile::compile(&seccomp::default_profile(capabilities, seccomp::native_arch(), *kernel))
            }
            Profile::Given(profile) => compile::compile(profile),
        }
    }
}

/// The filter of `profile`, from `cache` where it is kept already.
///
/// # Errors
/// `BadSpec` for a profile that cannot be compiled: no task runs without the
/// filter it asked for. A cache that cannot be used costs time only.
pub async fn filter(profile: Profile, cache: &Path) -> Result<Filter> {
    let flags = profile.load_flags()?;
    let path = cache.join(key(&profile)?);
    if let Some(program) = cache::read(&path) {
        return Ok(Filter { program: program.into(), flags });
    }
    let program = worker::run("seccomp", move || {
        let program = profile.compile()?;
        if let Err(error) = cache::keep(&path, &program) {
            tracing::warn!(%error, path = %path.display(), "cannot keep the seccomp filter");
        }
        Ok(program)
    })
    .await?;
    Ok(Filter { program: program.into(), flags })
}

/// What a kept filter is found by: profile, architecture, and all that compiles.
fn key(profile: &Profile) -> Result<String> {
    let library = libseccomp::ScmpVersion::current().map_or_else(|_| String::new(), |v| v.to_string());
    let name = profile.name()?;
    let mut digest = Sha256::new();
    for part in [
        FORMAT.as_bytes(),
        env!("CARGO_PKG_VERSION").as_bytes(),
        std::env::consts::ARCH.as_bytes(),
        library.as_bytes(),
        &name,
    ] {
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
    use bowline_spec::capability;

    use super::*;

    fn key_of(profile: &Profile) -> String {
        key(profile).expect("a key")
    }

    #[test]
    fn profiles_that_differ_are_kept_apart_and_equal_ones_are_not() {
        let default = |capabilities, kernel| Profile::Default { capabilities, kernel };
        let usual = default(capability::default_set(), (6, 1));
        assert_eq!(key_of(&usual), key_of(&default(capability::default_set(), (6, 18))));
        assert_ne!(key_of(&usual), key_of(&default(capability::default_set(), (4, 1))));
        assert_ne!(key_of(&usual), key_of(&default(Capability::all(), (6, 1))));

        let whole = seccomp::default_profile(&capability::default_set(), seccomp::native_arch(), (6, 1));
        let given = |profile: &LinuxSeccomp| Profile::Given(Box::new(profile.clone()));
        let mut other = whole.clone();
        other.set_default_errno_ret(Some(13));
        assert_eq!(key_of(&given(&whole)), key_of(&given(&whole)));
        assert_ne!(key_of(&given(&whole)), key_of(&given(&other)));
        assert_eq!(given(&whole).load_flags().expect("flags"), usual.load_flags().expect("flags"));
        assert_eq!(given(&whole).compile().expect("it compiles"), usual.compile().expect("it compiles"));
    }
}
