//! Compiles a profile to BPF with libseccomp, and shortens the result.

use std::fs::File;
use std::io::Read as _;

use bowline_error::{Doing, Error, Kind, Result};
use libseccomp::{ScmpAction, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall};
use oci_spec::runtime::{LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompOperator, LinuxSyscall};

use super::{architecture, rewrite, unknown_calls};

/// Compiles a profile to BPF that the kernel loads quickly.
///
/// # Errors
/// `BadSpec` or `Unsupported` for a profile that cannot be enforced as it is.
pub fn compile(profile: &LinuxSeccomp) -> Result<Vec<u8>> {
    Ok(rewrite::shorter(whole(profile)?))
}

/// The version of libseccomp, such as `2.5.4`.
pub fn library() -> Option<String> {
    let version = libseccomp::ScmpVersion::current().ok()?;
    Some(format!("{}.{}.{}", version.major, version.minor, version.micro))
}

/// The names in a profile's rules that this libseccomp does not know. Such a call meets the default action, or the
/// answer for newer calls, as in other runtimes.
pub fn unknown(profile: &LinuxSeccomp) -> Vec<&str> {
    let names = profile.syscalls().iter().flatten().flat_map(|rule| rule.names());
    names.map(String::as_str).filter(|name| ScmpSyscall::from_name(name).is_err()).collect()
}

/// A profile as BPF, with the answer for calls that are newer.
pub(super) fn whole(profile: &LinuxSeccomp) -> Result<Vec<u8>> {
    unknown_calls::answered(profile, by_libseccomp(profile)?)
}

/// Compiles a profile to BPF, as a binary tree over the system call numbers.
pub(super) fn by_libseccomp(profile: &LinuxSeccomp) -> Result<Vec<u8>> {
    let bad = |error: libseccomp::error::SeccompError| Error::new(Kind::BadSpec, error.to_string()).in_field("seccomp");
    let default = action(profile.default_action(), profile.default_errno_ret())?;
    let mut context = ScmpFilterContext::new(default).map_err(bad)?;
    context.set_ctl_optimize(2).map_err(bad)?;
    context.set_ctl_nnp(false).map_err(bad)?;
    for architecture in profile.architectures().iter().flatten() {
        architecture::add(&mut context, *architecture)?;
    }
    for rule in profile.syscalls().iter().flatten() {
        add(&mut context, rule, default)?;
    }
    // Exported to a file, because libseccomp below 2.6 cannot export to memory.
    let what = || "cannot export the seccomp filter";
    let file = rustix::fs::memfd_create("seccomp", rustix::fs::MemfdFlags::CLOEXEC).doing(Kind::Internal, what)?;
    context.export_bpf(&file).map_err(bad)?;
    let mut file = File::from(file);
    std::io::Seek::rewind(&mut file).doing(Kind::Internal, what)?;
    let mut program = Vec::new();
    file.read_to_end(&mut program).doing(Kind::Internal, what)?;
    Ok(program)
}

fn add(context: &mut ScmpFilterContext, rule: &LinuxSyscall, default: ScmpAction) -> Result<()> {
    let action = action(rule.action(), rule.errno_ret())?;
    if action == default {
        // libseccomp refuses a rule that changes nothing.
        return Ok(());
    }
    for name in rule.names() {
        if name.is_empty() {
            return Err(Error::new(Kind::BadSpec, "syscalls.names: a name is empty").in_field("seccomp"));
        }
        // See `unknown`.
        let Ok(syscall) = ScmpSyscall::from_name(name) else { continue };
        let bad = |error| Error::new(Kind::BadSpec, format!("rule for {name}: {error}")).in_field("seccomp");
        let args = rule.args().as_deref().unwrap_or_default();
        let repeated = args.iter().any(|a| args.iter().filter(|b| a.index() == b.index()).count() > 1);
        if args.is_empty() {
            context.add_rule(action, syscall).map_err(bad)?;
        } else if repeated {
            // Several conditions on one argument: any of them is enough.
            for arg in args {
                context.add_rule_conditional(action, syscall, &[compare(arg)]).map_err(bad)?;
            }
        } else {
            let all: Vec<ScmpArgCompare> = args.iter().map(compare).collect();
            context.add_rule_conditional(action, syscall, &all).map_err(bad)?;
        }
    }
    Ok(())
}

fn compare(arg: &LinuxSeccompArg) -> ScmpArgCompare {
    let (operator, datum) = match arg.op() {
        LinuxSeccompOperator::ScmpCmpNe => (ScmpCompareOp::NotEqual, arg.value()),
        LinuxSeccompOperator::ScmpCmpLt => (ScmpCompareOp::Less, arg.value()),
        LinuxSeccompOperator::ScmpCmpLe => (ScmpCompareOp::LessOrEqual, arg.value()),
        LinuxSeccompOperator::ScmpCmpEq => (ScmpCompareOp::Equal, arg.value()),
        LinuxSeccompOperator::ScmpCmpGe => (ScmpCompareOp::GreaterEqual, arg.value()),
        LinuxSeccompOperator::ScmpCmpGt => (ScmpCompareOp::Greater, arg.value()),
        LinuxSeccompOperator::ScmpCmpMaskedEq => {
            (ScmpCompareOp::MaskedEqual(arg.value()), arg.value_two().unwrap_or(0))
        }
    };
    ScmpArgCompare::new(arg.index() as u32, operator, datum)
}

fn action(action: LinuxSeccompAction, errno: Option<u32>) -> Result<ScmpAction> {
    let errno = errno.unwrap_or(libc::EPERM as u32);
    Ok(match action {
        LinuxSeccompAction::ScmpActKill | LinuxSeccompAction::ScmpActKillThread => ScmpAction::KillThread,
        LinuxSeccompAction::ScmpActKillProcess => ScmpAction::KillProcess,
        LinuxSeccompAction::ScmpActTrap => ScmpAction::Trap,
        LinuxSeccompAction::ScmpActErrno => ScmpAction::Errno(errno as i32),
        LinuxSeccompAction::ScmpActTrace => ScmpAction::Trace(errno as u16),
        LinuxSeccompAction::ScmpActAllow => ScmpAction::Allow,
        LinuxSeccompAction::ScmpActLog => ScmpAction::Log,
        LinuxSeccompAction::ScmpActNotify => ScmpAction::Notify,
    })
}

#[cfg(test)]
mod tests {
    use bowline_spec::{capability, seccomp};
    use oci_spec::runtime::Arch;

    use super::*;

    #[test]
    fn what_cannot_be_enforced_is_refused() {
        let all = seccomp::Abis::All;
        let mut profile = seccomp::default_profile(&capability::default_set(), seccomp::native_arch(), (6, 1), all);
        // Others' byte order is another, or their numbers of calls mean something else.
        for (architecture, name) in [
            (Arch::ScmpArchMips, "SCMP_ARCH_MIPS"),
            (Arch::ScmpArchMips64n32, "SCMP_ARCH_MIPS64N32"),
            (Arch::ScmpArchPpc64, "SCMP_ARCH_PPC64"),
            (Arch::ScmpArchS390x, "SCMP_ARCH_S390X"),
        ] {
            profile.set_architectures(Some(vec![architecture]));
            let error = compile(&profile).expect_err(name);
            assert_eq!(error.kind(), Kind::Unsupported, "{error}");
            assert!(error.to_string().contains(&format!("linux.seccomp.architectures: {name} ")), "{error}");
        }
    }
}
