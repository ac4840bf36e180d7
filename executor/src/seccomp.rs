//! Seccomp filters: compiled once per profile, kept on disk, loaded by children.
//!
//! libseccomp takes 12–18 ms for the default profile, and dirties half a
//! megabyte of memory: a worker does it, once for all tasks of this host.
//! A kept filter is used only if it is ours alone and its digest is right;
//! anything else is compiled anew.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use libseccomp::{ScmpAction, ScmpArch, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall};
use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompFilterFlag, LinuxSeccompOperator, LinuxSyscall,
};
use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use crate::error::{Doing, Error, Kind, Result};
use crate::worker;

/// Changes when the format of a kept filter, or how we compile, does.
const FORMAT: &str = "bowline-seccomp-1";
/// Bytes of the digest that a kept filter begins with.
const DIGEST: usize = 32;
/// The longest filter the kernel takes: BPF_MAXINSNS instructions of 8 bytes.
const LONGEST: usize = 4096 * 8;

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
    if let Some(program) = read_kept(&path) {
        return Ok(Filter { program: program.into(), flags });
    }
    let profile = profile.clone();
    let program = worker::run("seccomp", move || {
        let program = compile(&profile)?;
        if let Err(error) = keep(&path, &program) {
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

fn read_kept(path: &Path) -> Option<Vec<u8>> {
    let mut file =
        File::options().read(true).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32).open(path).ok()?;
    let meta = file.metadata().ok()?;
    let ours = meta.is_file() && meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o077 == 0;
    let fits = meta.len() as usize <= DIGEST + LONGEST;
    let mut bytes = Vec::new();
    if ours && fits {
        file.read_to_end(&mut bytes).ok()?;
    }
    let program = bytes.get(DIGEST..).filter(|p| !p.is_empty() && p.len() % 8 == 0);
    let intact = program.is_some_and(|p| Sha256::digest(p).as_slice() == &bytes[..DIGEST]);
    if !intact {
        tracing::warn!(path = %path.display(), "kept seccomp filter refused: not ours alone, or damaged");
        return None;
    }
    bytes.drain(..DIGEST);
    Some(bytes)
}

fn keep(path: &Path, program: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let temporary: PathBuf = folder.join(format!(".{}.new", std::process::id()));
    // A left-over of a worker that was killed, of another life of this pid.
    let _ = std::fs::remove_file(&temporary);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = file
        .write_all(&Sha256::digest(program))
        .and_then(|()| file.write_all(program))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
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

/// Compiles a profile to BPF, as a binary tree over the system call numbers.
fn compile(profile: &LinuxSeccomp) -> Result<Vec<u8>> {
    let bad = |error: libseccomp::error::SeccompError| Error::new(Kind::BadSpec, format!("seccomp: {error}"));
    let default = action(profile.default_action(), profile.default_errno_ret())?;
    let mut context = ScmpFilterContext::new(default).map_err(bad)?;
    context.set_ctl_optimize(2).map_err(bad)?;
    context.set_ctl_nnp(false).map_err(bad)?;
    for architecture in profile.architectures().iter().flatten() {
        context.add_arch(arch(*architecture)?).map_err(bad)?;
    }
    for rule in profile.syscalls().iter().flatten() {
        add(&mut context, rule, default)?;
    }
    // Exported to a file, as libseccomp below 2.6 cannot export to memory.
    let what = || "seccomp: cannot export the filter";
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
        // A name that this libseccomp does not know cannot be called by number
        // either without meeting the default action, as in other runtimes.
        let Ok(syscall) = ScmpSyscall::from_name(name) else { continue };
        let bad = |error| Error::new(Kind::BadSpec, format!("seccomp: rule for {name}: {error}"));
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
        LinuxSeccompAction::ScmpActNotify => {
            return Err(Error::new(Kind::Unsupported, "seccomp: SCMP_ACT_NOTIFY is not supported"));
        }
    })
}

fn arch(arch: Arch) -> Result<ScmpArch> {
    Ok(match arch {
        Arch::ScmpArchNative => ScmpArch::Native,
        Arch::ScmpArchX86 => ScmpArch::X86,
        Arch::ScmpArchX86_64 => ScmpArch::X8664,
        Arch::ScmpArchX32 => ScmpArch::X32,
        Arch::ScmpArchArm => ScmpArch::Arm,
        Arch::ScmpArchAarch64 => ScmpArch::Aarch64,
        other => {
            return Err(Error::new(Kind::Unsupported, format!("seccomp: architecture {other:?} is not supported")));
        }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use bowline_spec::{capability, seccomp};

    use super::*;

    fn default_profile() -> LinuxSeccomp {
        seccomp::default_profile(&capability::default_set(), seccomp::native_arch(), (6, 1))
    }

    #[test]
    fn the_default_profile_compiles_to_what_the_kernel_takes() {
        let program = compile(&default_profile()).expect("it compiles");
        assert_eq!(program.len() % 8, 0);
        assert!(program.len() <= LONGEST, "{} bytes", program.len());
    }

    #[test]
    fn profiles_that_differ_are_kept_apart_and_equal_ones_are_not() {
        let profile = default_profile();
        let mut other = profile.clone();
        other.set_default_errno_ret(Some(13));
        assert_eq!(key(&profile).expect("a key"), key(&profile.clone()).expect("a key"));
        assert_ne!(key(&profile).expect("a key"), key(&other).expect("a key"));
    }

    #[test]
    fn a_kept_filter_is_read_back_only_if_it_is_ours_alone_and_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("cache").join("filter.bpf");
        let program = [6, 0, 0, 0, 0, 0, 0xff, 0x7f];
        keep(&path, &program).expect("kept");
        assert_eq!(read_kept(&path).as_deref(), Some(&program[..]));

        let whole = std::fs::read(&path).expect("readable");
        let mut poisoned = whole.clone();
        poisoned[DIGEST] ^= 1;
        for (what, bytes) in [("poisoned", &poisoned[..]), ("truncated", &whole[..whole.len() - 4]), ("empty", &[])] {
            std::fs::write(&path, bytes).expect("written");
            assert_eq!(read_kept(&path), None, "{what}");
        }
        std::fs::write(&path, &whole).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("opened up");
        assert_eq!(read_kept(&path), None, "open to others");
        keep(&path, &program).expect("kept anew");
        let link = dir.path().join("link.bpf");
        std::os::unix::fs::symlink(&path, &link).expect("linked");
        assert_eq!(read_kept(&link), None, "a symlink");
    }

    #[test]
    fn what_cannot_be_enforced_is_refused() {
        let mut profile = default_profile();
        profile.set_default_action(LinuxSeccompAction::ScmpActNotify);
        assert_eq!(compile(&profile).map_err(|e| e.kind()), Err(Kind::Unsupported));
    }
}
