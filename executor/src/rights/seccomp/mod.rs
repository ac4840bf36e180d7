//! Seccomp filters: compiled once per profile, kept on disk, loaded by children.
//!
//!   profile ─ compile ─► libseccomp's BPF ─ unknown_calls ─► ENOSYS for calls it cannot know ─ rewrite ─► shorter
//!           ─ cache ─► Filter
//!
//! libseccomp takes 12–18 ms for the default profile, and dirties half a megabyte of memory: a worker runs it, once
//! for all tasks of this host.

#[cfg(feature = "seccomp")]
mod architecture;
#[cfg_attr(not(feature = "seccomp"), allow(dead_code, reason = "nothing is compiled"))]
mod bpf;
mod cache;
#[cfg(feature = "seccomp")]
mod compile;
#[cfg(feature = "seccomp")]
mod graph;
#[cfg(feature = "seccomp")]
mod rewrite;
#[cfg(feature = "seccomp")]
mod unknown_calls;
/// In the place of what compiles, in a program that is linked without libseccomp.
#[cfg(not(feature = "seccomp"))]
mod compile {
    use bowline_error::{Error, Kind, Result};
    use oci_spec::runtime::LinuxSeccomp;

    pub fn compile(_: &LinuxSeccomp) -> Result<Vec<u8>> {
        Err(Error::new(Kind::Unsupported, "this program was built without libseccomp, and launches no task")
            .in_field("seccomp")
            .hint("build it with the feature `seccomp` of bowline-executor, or have a shim launch the task"))
    }

    pub fn unknown(_: &LinuxSeccomp) -> Vec<&str> {
        Vec::new()
    }

    pub fn library() -> Option<String> {
        None
    }
}

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::json::handover::bytes;
use bowline_spec::capability::Capability;
use bowline_spec::seccomp::{self, Abis};
use bowline_sys::SharedText;
use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompFilterFlag, LinuxSyscall,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::process::worker;

pub use compile::library;

/// Changes when the format of cached filters changes, or the way they are compiled.
const FORMAT: &str = "bowline-seccomp-3";

/// A filter as the kernel loads it.
#[derive(Debug, Clone)]
pub struct Filter {
    /// `sock_filter` instructions, 8 bytes each.
    pub program: Rc<[u8]>,
    /// SECCOMP_FILTER_FLAG_* for the load.
    pub flags: u64,
    /// The process that decides what the filter leaves to it, if there is one.
    pub listener: Option<Rc<Listener>>,
    /// Whether it allows what a process calls to report an error.
    reports: bool,
}

/// A filter, as a shim hands it over.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    #[serde(with = "bytes")]
    program: Vec<u8>,
    flags: u64,
    listener: Option<Listener>,
    reports: bool,
}

impl Handed {
    pub fn take(self) -> Filter {
        let Handed { program, flags, listener, reports } = self;
        Filter { program: program.into(), flags, listener: listener.map(Rc::new), reports }
    }
}

impl Filter {
    /// The filter for the program that is executed in the shim's place.
    pub fn hand_over(&self) -> Handed {
        let listener = self.listener.as_deref().cloned();
        Handed { program: self.program.to_vec(), flags: self.flags, listener, reports: self.reports }
    }
}

/// What a process may call between its filter and the end of its report: it allocates, writes, and exits.
const OF_A_REPORT: [libc::c_long; 5] =
    [libc::SYS_brk, libc::SYS_mmap, libc::SYS_munmap, libc::SYS_write, libc::SYS_exit_group];

impl Filter {
    fn new(program: Vec<u8>, flags: u64, listener: Option<Rc<Listener>>) -> Filter {
        let reports = bpf::read(&program).is_some_and(|ops| OF_A_REPORT.iter().all(|call| allows(&ops, *call)));
        Filter { program: program.into(), flags, listener, reports }
    }

    /// # Errors
    /// `BadSpec` for a filter with a listener that no process could hand over.
    fn checked(self) -> Result<Filter> {
        let sends = || bpf::read(&self.program).is_some_and(|ops| allows(&ops, libc::SYS_sendmsg));
        if self.listener.is_some() && !sends() {
            let message = "SCMP_ACT_NOTIFY needs sendmsg to be allowed, by which the listener is handed over";
            return Err(Error::new(Kind::BadSpec, message).in_field("seccomp"));
        }
        Ok(self)
    }

    /// Whether it keeps a process in the namespaces that it is in, whatever the process may do otherwise.
    pub fn keeps_namespaces(&self) -> bool {
        let refused = |ops: &[bpf::Op], (arch, call): &(Arch, u32)| {
            let answer = bpf::answer(ops, *arch as u32, *call).map(|answer| answer & !SECCOMP_RET_DATA);
            let refused = [libc::SECCOMP_RET_ERRNO, libc::SECCOMP_RET_KILL_THREAD, libc::SECCOMP_RET_KILL_PROCESS];
            answer.is_some_and(|answer| refused.contains(&answer))
        };
        !LEAVING.is_empty()
            && bpf::read(&self.program).is_some_and(|ops| LEAVING.iter().all(|call| refused(&ops, call)))
    }

    /// Where a process with this filter leaves an error, if it may not report that otherwise.
    pub fn last_words(&self) -> Result<Option<SharedText>> {
        let words = (!self.reports).then(SharedText::new).transpose();
        words.doing(Kind::Internal, || "cannot share memory with a process")
    }
}

/// unshare(2) and setns(2), by every way in which a program can call them; empty where those are not listed here.
const LEAVING: &[(Arch, u32)] = if cfg!(target_arch = "x86_64") {
    // The x32 bit, __X32_SYSCALL_BIT, makes other numbers of the same architecture.
    &[
        (Arch::ScmpArchX86_64, 272),
        (Arch::ScmpArchX86_64, 308),
        (Arch::ScmpArchX86_64, 0x4000_0000 | 272),
        (Arch::ScmpArchX86_64, 0x4000_0000 | 308),
        (Arch::ScmpArchX86, 310),
        (Arch::ScmpArchX86, 346),
    ]
} else if cfg!(target_arch = "aarch64") {
    &[(Arch::ScmpArchAarch64, 97), (Arch::ScmpArchAarch64, 268), (Arch::ScmpArchArm, 337), (Arch::ScmpArchArm, 375)]
} else {
    &[]
};

/// Whether a filter allows a call of this architecture, whatever its arguments.
fn allows(program: &[bpf::Op], call: libc::c_long) -> bool {
    let allowed = [libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_LOG];
    let native = seccomp::native_arch() as u32;
    bpf::answer(program, native, call as u32).is_some_and(|answer| allowed.contains(&(answer & !SECCOMP_RET_DATA)))
}

/// The part of an answer that is no action (linux/seccomp.h).
const SECCOMP_RET_DATA: u32 = 0xffff;

/// The process that receives the listener of each process's filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    /// The Unix socket where it listens.
    pub path: PathBuf,
    /// Text that is sent with each listener.
    pub metadata: String,
}

/// The system calls that must pass before any process listens. The first hands the listener over, and reports of a failure
/// are written. runc refuses the latter too.
const BEFORE_ANYBODY_LISTENS: [&str; 2] = ["sendmsg", "write"];

/// A system call has six arguments.
const LAST_ARGUMENT: usize = 5;

/// Refuses what would have no effect, as the specification wants: an `errnoRet` of an action that answers nothing, and
/// metadata for no listener; and arguments that no call has.
fn check(profile: &LinuxSeccomp) -> Result<()> {
    use LinuxSeccompAction::{ScmpActErrno, ScmpActTrace};
    let bad = |field: String, why: String| Err(Error::new(Kind::BadSpec, format!("linux.seccomp.{field}: {why}")));
    let default = ("defaultErrnoRet".to_owned(), profile.default_action(), profile.default_errno_ret());
    let rules = profile.syscalls().iter().flatten().enumerate();
    let rules = rules.map(|(index, rule)| (format!("syscalls[{index}].errnoRet"), rule.action(), rule.errno_ret()));
    for (field, action, errno) in std::iter::once(default).chain(rules) {
        if errno.is_some_and(|errno| errno != 0) && !matches!(action, ScmpActErrno | ScmpActTrace) {
            return bad(field, format!("{action} answers with no errno"));
        }
    }
    for (index, rule) in profile.syscalls().iter().flatten().enumerate() {
        let args = rule.args().iter().flatten().map(LinuxSeccompArg::index).enumerate();
        if let Some((arg, number)) = args.into_iter().find(|(_, number)| *number > LAST_ARGUMENT) {
            return bad(
                format!("syscalls[{index}].args[{arg}].index"),
                format!("{number} is not 0 to {LAST_ARGUMENT}"),
            );
        }
    }
    let set = |text: Option<&OsStr>| text.is_some_and(|text| !text.is_empty());
    let metadata = profile.listener_metadata().as_deref().map(OsStr::new);
    if set(metadata) && !set(profile.listener_path().as_deref().map(Path::as_os_str)) {
        return bad("listenerMetadata".to_owned(), "there is no listenerPath".to_owned());
    }
    Ok(())
}

/// The listener of a profile that notifies of calls.
///
/// # Errors
/// `BadSpec` for a profile under which no program could start, or that names no listener.
fn listener(profile: &LinuxSeccomp) -> Result<Option<Rc<Listener>>> {
    let bad = |why: &str| Err(Error::new(Kind::BadSpec, format!("SCMP_ACT_NOTIFY {why}")).in_field("seccomp"));
    if profile.default_action() == LinuxSeccompAction::ScmpActNotify {
        return bad("cannot be the default action");
    }
    let notifies = |rule: &&LinuxSyscall| rule.action() == LinuxSeccompAction::ScmpActNotify;
    let mut names = profile.syscalls().iter().flatten().filter(notifies).flat_map(|rule| rule.names()).peekable();
    let path = profile.listener_path().clone().filter(|path| !path.as_os_str().is_empty());
    if names.peek().is_none() {
        if path.is_some() {
            tracing::warn!("linux.seccomp.listenerPath has no effect: no rule has the action SCMP_ACT_NOTIFY");
        }
        return Ok(None);
    }
    if let Some(name) = names.find(|name| BEFORE_ANYBODY_LISTENS.contains(&name.as_str())) {
        return bad(&format!("cannot be of {name}, which is called before anybody listens"));
    }
    let Some(path) = path else { return bad("needs a listenerPath") };
    let metadata = profile.listener_metadata().clone().unwrap_or_default();
    Ok(Some(Rc::new(Listener { path, metadata })))
}

/// SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (linux/seccomp.h), Linux ≥ 5.19.
const WAIT_KILLABLE_RECV: u64 = 1 << 5;

/// What a filter is compiled from.
#[derive(Debug, Clone)]
pub enum Profile {
    /// The default profile: built only if its filter is not cached yet.
    Default {
        capabilities: BTreeSet<Capability>,
        /// The version of the running kernel.
        kernel: (u32, u32),
        abis: Abis,
    },
    /// A profile from a file.
    Given(Box<LinuxSeccomp>),
}

impl Profile {
    /// A name that no other profile has.
    fn name(&self) -> Result<Vec<u8>> {
        match self {
            Profile::Default { capabilities, kernel, abis } => {
                Ok(seccomp::default_profile_name(capabilities, seccomp::native_arch(), *kernel, *abis).into_bytes())
            }
            Profile::Given(profile) => {
                // The listener is not part of the filter.
                let mut profile = profile.clone();
                profile.set_listener_path(None).set_listener_metadata(None);
                serde_json::to_vec(&profile).doing(Kind::Internal, || "cannot write the seccomp profile as JSON")
            }
        }
    }

    fn load_flags(&self) -> Result<u64> {
        match self {
            Profile::Default { .. } => Ok(0),
            Profile::Given(profile) => load_flags(profile),
        }
    }

    /// Compiles the filter, which takes 12–18 ms.
    ///
    /// # Errors
    /// `BadSpec` for a profile that is none; `Unsupported` in a program without libseccomp.
    pub fn compile(&self) -> Result<Vec<u8>> {
        match self {
            Profile::Default { capabilities, kernel, abis } => {
                compile::compile(&seccomp::default_profile(capabilities, seccomp::native_arch(), *kernel, *abis))
            }
            Profile::Given(profile) => {
                let unknown = compile::unknown(profile);
                if !unknown.is_empty() {
                    tracing::debug!(?unknown, "seccomp: calls that this libseccomp does not know are left out");
                }
                compile::compile(profile)
            }
        }
    }
}

/// The filter of `profile`, from `cache` if it is there already.
///
/// # Errors
/// `BadSpec` for a profile that cannot be compiled: no task runs without the filter it asked for. A cache that
/// cannot be used only takes time.
pub async fn filter(profile: Profile, cache: &Path) -> Result<Filter> {
    let mut flags = profile.load_flags()?;
    let listener = match &profile {
        Profile::Default { .. } => None,
        Profile::Given(profile) => {
            check(profile)?;
            listener(profile)?
        }
    };
    if listener.is_some() {
        flags |= libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    }
    let path = cache.join(key(&profile)?);
    if let Some(program) = cache::read(&path) {
        return Filter::new(program, flags, listener).checked();
    }
    let program = worker::run_bounded("seccomp", MOST_SECONDS, move || {
        let program = profile.compile()?;
        if let Err(error) = cache::keep(&path, &program) {
            tracing::warn!(%error, path = %path.display(), "cannot keep the seccomp filter");
        }
        Ok(program)
    })
    .await?;
    let program = program.ok_or_else(|| {
        let message = format!("{MOST_SECONDS} s of the processor were not enough to compile the profile");
        let hint = "libseccomp does not come to an end with some profiles in which several rules for one system call have \
                    several conditions each";
        Error::new(Kind::BadSpec, message).in_field("seccomp").hint(hint)
    })?;
    Filter::new(program, flags, listener).checked()
}

/// How much of the processor a profile may take.
const MOST_SECONDS: u64 = 10;

/// The key of a cached filter: profile, architecture, and everything that compiles it.
fn key(profile: &Profile) -> Result<String> {
    let library = library().unwrap_or_default();
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
    // As runc does: processes do not pay for a mitigation that only a profile with flags asks for.
    let Some(named) = profile.flags() else { return Ok(libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW) };
    let mut flags = 0;
    for flag in named {
        flags |= match flag {
            LinuxSeccompFilterFlag::SeccompFilterFlagLog => libc::SECCOMP_FILTER_FLAG_LOG,
            // There is one thread at execve, and nothing to synchronise.
            LinuxSeccompFilterFlag::SeccompFilterFlagTsync => 0,
            LinuxSeccompFilterFlag::SeccompFilterFlagSpecAllow => libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            LinuxSeccompFilterFlag::SeccompFilterFlagWaitKillableRecv => {
                // The kernel accepts this flag only with a listener.
                if listener(profile)?.is_some() { WAIT_KILLABLE_RECV } else { 0 }
            }
        };
    }
    Ok(flags)
}

#[cfg(all(test, feature = "seccomp"))]
mod equivalence;

#[cfg(test)]
mod tests {
    use bowline_spec::capability;
    use serde_json::json;

    use super::*;

    fn key_of(profile: &Profile) -> String {
        key(profile).expect("a key")
    }

    #[test]
    fn a_listener_is_wanted_by_whoever_notifies() {
        let profile = |default: &str, call: &str, path: &str| -> LinuxSeccomp {
            let rules = json!([{"names": [call], "action": "SCMP_ACT_NOTIFY"}]);
            let json =
                json!({"defaultAction": default, "listenerPath": path, "listenerMetadata": "x", "syscalls": rules});
            serde_json::from_value(json).expect("a profile")
        };
        let allow = "SCMP_ACT_ALLOW";
        let found = listener(&profile(allow, "mkdir", "/run/agent")).expect("good").expect("wanted");
        assert_eq!((&*found.path, &*found.metadata), (Path::new("/run/agent"), "x"));
        for bad in [
            profile("SCMP_ACT_NOTIFY", "mkdir", "/run/agent"),
            profile(allow, "sendmsg", "/run/agent"),
            profile(allow, "write", "/run/agent"),
            profile(allow, "mkdir", ""),
        ] {
            assert_eq!(listener(&bad).map_err(|e| e.kind()), Err(Kind::BadSpec));
        }
        let one = Profile::Given(Box::new(profile(allow, "mkdir", "/run/one")));
        let other = Profile::Given(Box::new(profile(allow, "mkdir", "/run/other")));
        assert_eq!(key_of(&one), key_of(&other), "one filter, whoever listens");
        assert!(one.compile().is_ok_and(|program| !program.is_empty()));
    }

    #[test]
    fn profiles_that_differ_are_kept_apart_and_equal_ones_are_not() {
        let default = |capabilities, kernel| Profile::Default { capabilities, kernel, abis: Abis::All };
        let usual = default(capability::default_set(), (6, 1));
        assert_eq!(key_of(&usual), key_of(&default(capability::default_set(), (6, 18))));
        assert_ne!(key_of(&usual), key_of(&default(capability::default_set(), (4, 1))));
        assert_ne!(key_of(&usual), key_of(&default(Capability::all(), (6, 1))));
        let native = Profile::Default { capabilities: capability::default_set(), kernel: (6, 1), abis: Abis::Native };
        assert_ne!(key_of(&usual), key_of(&native));

        let whole = seccomp::default_profile(&capability::default_set(), seccomp::native_arch(), (6, 1), Abis::All);
        let given = |profile: &LinuxSeccomp| Profile::Given(Box::new(profile.clone()));
        let mut other = whole.clone();
        other.set_default_errno_ret(Some(13));
        assert_eq!(key_of(&given(&whole)), key_of(&given(&whole)));
        assert_ne!(key_of(&given(&whole)), key_of(&given(&other)));
        assert_eq!(given(&whole).load_flags().expect("flags"), libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW);
        other.set_flags(Some(Vec::new()));
        assert_eq!(given(&other).load_flags().expect("flags"), usual.load_flags().expect("flags"));
        assert_eq!(given(&whole).compile().expect("it compiles"), usual.compile().expect("it compiles"));
    }
}
