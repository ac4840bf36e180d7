//! Architectures as libseccomp names them.

use bowline_error::{Error, Kind, Result};
use libseccomp::ScmpArch;
use oci_spec::runtime::Arch;

/// The architecture for libseccomp, which refuses those of another byte order.
///
/// # Errors
/// `Unsupported` for an architecture on which numbers of calls mean something else.
pub fn scmp(arch: Arch) -> Result<ScmpArch> {
    Ok(match arch {
        Arch::ScmpArchNative => ScmpArch::Native,
        Arch::ScmpArchX86 => ScmpArch::X86,
        Arch::ScmpArchX86_64 => ScmpArch::X8664,
        Arch::ScmpArchX32 => ScmpArch::X32,
        Arch::ScmpArchArm => ScmpArch::Arm,
        Arch::ScmpArchAarch64 => ScmpArch::Aarch64,
        Arch::ScmpArchMips => ScmpArch::Mips,
        Arch::ScmpArchMips64 => ScmpArch::Mips64,
        Arch::ScmpArchMips64n32 => ScmpArch::Mips64N32,
        Arch::ScmpArchMipsel => ScmpArch::Mipsel,
        Arch::ScmpArchMipsel64 => ScmpArch::Mipsel64,
        Arch::ScmpArchMipsel64n32 => ScmpArch::Mipsel64N32,
        Arch::ScmpArchPpc => ScmpArch::Ppc,
        Arch::ScmpArchPpc64 => ScmpArch::Ppc64,
        Arch::ScmpArchPpc64le => ScmpArch::Ppc64Le,
        Arch::ScmpArchRiscv64 => ScmpArch::Riscv64,
        // s390 passes large numbers as call 0.
        other => {
            return Err(Error::new(Kind::Unsupported, format!("seccomp: architecture {other:?} is not supported")));
        }
    })
}
