//! System call filters: the default profile, and profiles from files.
//!
//! Both come out in OCI's form, with every condition decided. Compiling one to
//! BPF, and caching that, is the executor's.

mod default;
mod profile;

pub use default::{default_profile, default_profile_name};
pub use profile::parse_profile;

use oci_spec::runtime::Arch;

/// Whose programs a filter is for: those of every architecture that the kernel runs, or of the native one alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abis {
    /// The native architecture, and its 32-bit ones.
    All,
    /// The native architecture. libseccomp kills a thread that makes a call of another one.
    Native,
}

/// The architecture that this is compiled for.
pub fn native_arch() -> Arch {
    if cfg!(target_arch = "x86_64") {
        Arch::ScmpArchX86_64
    } else if cfg!(target_arch = "aarch64") {
        Arch::ScmpArchAarch64
    } else if cfg!(target_arch = "riscv64") {
        Arch::ScmpArchRiscv64
    } else if cfg!(target_arch = "s390x") {
        Arch::ScmpArchS390x
    } else {
        Arch::ScmpArchNative
    }
}

/// The other architectures whose programs a kernel of `arch` runs. Without
/// them in the filter, libseccomp kills whatever such a program calls.
fn sub_architectures(arch: Arch) -> Vec<Arch> {
    match arch {
        Arch::ScmpArchX86_64 => vec![Arch::ScmpArchX86, Arch::ScmpArchX32],
        Arch::ScmpArchAarch64 => vec![Arch::ScmpArchArm],
        Arch::ScmpArchS390x => vec![Arch::ScmpArchS390],
        _ => vec![],
    }
}
