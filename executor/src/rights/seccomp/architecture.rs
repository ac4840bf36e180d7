//! Architectures as libseccomp names them.

use bowline_error::{Error, Kind, Result};
use libseccomp::error::SeccompError;
use libseccomp::{ScmpArch, ScmpFilterContext};
use oci_spec::runtime::Arch;

/// Adds an architecture to a filter.
///
/// # Errors
/// `Unsupported` for one that libseccomp does not filter here.
pub fn add(context: &mut ScmpFilterContext, arch: Arch) -> Result<()> {
    // That is its whole reason.
    let hint = "name only architectures with the byte order of this host's";
    let refused = |error: SeccompError| format!("linux.seccomp.architectures: {arch} is not supported: {error}");
    let added = context.add_arch(scmp(arch)?).map(drop);
    added.map_err(|error| Error::new(Kind::Unsupported, refused(error)).hint(hint))
}

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
            return Err(Error::new(
                Kind::Unsupported,
                format!("linux.seccomp.architectures: {other} is not supported"),
            ));
        }
    })
}
