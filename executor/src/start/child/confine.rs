//! The last steps before execve: credentials, capabilities, filters; and resource limits, which come before them.
//!
//! The order matters: what needs a right comes before the step that gives it up.

use std::convert::Infallible;
use std::os::fd::{AsFd as _, BorrowedFd};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::{self as sys, Cloned, Image};
use oci_spec::runtime::{Capability, PosixRlimit, PosixRlimitType, Process, Spec};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::{Errno, FdFlags};
use rustix::process::{Gid, Resource, Rlimit, Uid};

use super::payload::Payload;
use super::{capabilities, command, scheduling};
use crate::output::io;
use crate::process::fd_passing;
use crate::process::inheritance;
use crate::rights::lsm::{Labels, Opened};
use crate::start::init_program::InitProgram;
use crate::view::joined_users;

/// Seconds that `bowline-init` may take until nobody can look into it, on a machine that is busy.
const INIT_STARTS_WITHIN: i64 = 30;

/// Confines the calling process as its spec says, calls `last`, and executes the program. The filter is loaded before
/// `last` or, see [`filters_last`], after it.
pub fn execute(
    payload: &Payload<'_>,
    labels: Option<&Opened<'_>>,
    program: &Image,
    last: impl FnOnce() -> Result<()>,
) -> Result<Infallible> {
    let (mut own, mut hidden) = (None, None);
    if let Some(init) = payload.init {
        let (hears, seen) = io::pipe()?;
        match sys::fork().map_err(|error| too_few(&error))? {
            Cloned::Parent { pid, .. } => {
                let failed = become_init_program(payload, labels, init, pid, seen.as_fd(), program);
                // The workload does not go on.
                let _ = rustix::io::write(&seen, b"x");
                return Err(failed?);
            }
            Cloned::Child => {
                drop(seen);
                hidden = Some(hears);
                begin_workload(payload)?;
                // Those of its parent refuse it.
                own = payload.labels.map(Labels::open).transpose()?;
            }
        }
    }
    let labels = own.as_ref().or(labels);
    // Only now its pid is known.
    let served = command::served(program, payload.service);
    let program = served.as_ref().unwrap_or(program);
    let process = payload.process;
    scheduling::personality(payload.spec)?;
    // This only announces the profile: it holds from execve on, and what follows is still unconfined.
    labels.map_or(Ok(()), Opened::apply)?;
    let user = process.user();
    let umask = user.umask().unwrap_or(0o022);
    rustix::process::umask(Mode::from_raw_mode(umask));
    // Enter the folder as root first, because it may be closed to the task's user; if root may not enter it, as on
    // a network filesystem, enter it as that user.
    let entered = enter(process);
    // From here on every file is opened close-on-exec. Done before a filter is loaded, which may deny the call.
    sys::close_on_exec_from_3().doing(Kind::Internal, || "cannot close the shim's files")?;
    for fd in payload.preserved() {
        // Ignores descriptors that the starter does not have open.
        let _ = sys::set_fd_flags(fd, FdFlags::empty());
    }
    // Before a filter is loaded, which may deny a wait.
    let init_is_hidden = || hidden.as_ref().map_or(Ok(()), |hears| await_hidden(hears.as_fd()));
    let late = process.no_new_privileges().unwrap_or(false);
    if !late {
        init_is_hidden()?;
        // Without no_new_privs only a privileged process may load a filter.
        load(payload)?;
    }
    take_identity(process, payload.spec)?;
    entered.or_else(|_| enter(process))?;
    if late {
        rustix::thread::set_no_new_privs(true).doing(Kind::Internal, || "cannot set no_new_privs")?;
        init_is_hidden()?;
    }
    let after = filters_last(payload);
    if late && !after {
        load(payload)?;
    }
    last()?;
    if after {
        load(payload)?;
    }
    Err(execute_in_turn(payload, program))
}

/// Executes `program`, or what comes after it in PATH if its user may not execute it; returns only if that fails.
fn execute_in_turn(payload: &Payload<'_>, program: &Image) -> Error {
    let is_closed = |error: &std::io::Error| error.raw_os_error() == Some(libc::EACCES);
    let error = program.execute();
    let after = |program: &Image| {
        let next = command::find_after(payload.process, program.path())?;
        Some(command::served(&next, payload.service).unwrap_or(next))
    };
    let mut next = if is_closed(&error) { after(program) } else { None };
    while let Some(program) = next {
        let error = program.execute();
        if !is_closed(&error) {
            return refused(&program, &error);
        }
        next = after(&program);
    }
    refused(program, &error)
}

/// Whether the filter is loaded only before execve, after the hooks of the container, which must do without the calls
/// that it denies to us otherwise. Without no_new_privs that takes a right that is gone by then; a listener must be
/// handed over while the container is created; and what may trace us must not find us without a filter.
pub fn filters_last(payload: &Payload<'_>) -> bool {
    let process = payload.process;
    let may_trace = process.capabilities().as_ref().is_some_and(|sets| {
        let sets = [sets.effective(), sets.permitted(), sets.bounding()];
        sets.into_iter().flatten().any(|set| set.contains(&Capability::SysPtrace))
    });
    process.no_new_privileges() == Some(true) && payload.notify.is_none() && !may_trace
}

/// Becomes the process's user, with its capabilities.
fn take_identity(process: &Process, spec: &Spec) -> Result<()> {
    let user = process.user();
    capabilities::bound(process.capabilities().as_ref())?;
    let groups = user.additional_gids().as_deref().unwrap_or_default();
    // Before a user namespace is joined, all are dropped; inside, not even that may be allowed.
    let groups = Some(groups).filter(|groups| !groups.is_empty() || joined_users::path(spec).is_none());
    set_ids(user.uid(), user.gid(), groups)?;
    capabilities::apply(process.capabilities().as_ref())
}

/// The workload, a child of the calling process by now, goes on as init would without the program: it leads a session,
/// with the terminal.
fn begin_workload(payload: &Payload<'_>) -> Result<()> {
    rustix::process::setsid().doing(Kind::Internal, || "cannot begin a session")?;
    if payload.stdio.terminal.is_some() {
        let what = || "cannot set up the terminal";
        rustix::process::ioctl_tiocsctty(rustix::stdio::stdin()).doing(Kind::Internal, what)?;
    }
    Ok(())
}

/// Waits until the process above is `bowline-init` and has closed its standard streams: nobody can trace it or reach its
/// files by then. From its execve on until then any process of the same user could.
fn await_hidden(hears: BorrowedFd<'_>) -> Result<()> {
    let most = Timespec { tv_sec: INIT_STARTS_WITHIN, tv_nsec: 0 };
    let ready = rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&hears, PollFlags::IN)], Some(&most)));
    let what = || "cannot wait for the task's init";
    if ready.doing(Kind::Internal, what)? == 0 {
        let message = format!("the task's init does not start within {INIT_STARTS_WITHIN} s");
        return Err(Error::new(Kind::Timeout, message));
    }
    match rustix::io::read(hears, &mut [0]).doing(Kind::Internal, what)? {
        0 => Ok(()),
        // It says itself why it cannot run.
        _ => sys::exit_now(1),
    }
}

/// Becomes `bowline-init`, with the workload's rights and without its filter, which may deny what it does. Returns the
/// error for which that failed.
fn become_init_program(
    payload: &Payload<'_>,
    labels: Option<&Opened<'_>>,
    init: &InitProgram,
    workload: i32,
    seen: BorrowedFd<'_>,
    program: &Image,
) -> Result<Error> {
    labels.map_or(Ok(()), Opened::apply)?;
    sys::close_on_exec_from_3().doing(Kind::Internal, || "cannot close the shim's files")?;
    // It closes this once nobody can look into it.
    sys::place_fd(seen, 0).doing(Kind::Internal, || "cannot set up init's descriptors")?;
    rustix::process::chdir("/").doing(Kind::Internal, || "cannot change to /")?;
    take_identity(payload.process, payload.spec)?;
    if payload.process.no_new_privileges() == Some(true) {
        rustix::thread::set_no_new_privs(true).doing(Kind::Internal, || "cannot set no_new_privs")?;
    }
    // What comes before it waits for signals is kept for it.
    sys::block_signals(&sys::ALL_SIGNALS);
    Ok(init.execute(workload, program))
}

fn too_few(error: &std::io::Error) -> Error {
    let again = error.raw_os_error() == Some(libc::EAGAIN);
    let kind = if again { Kind::BadSpec } else { Kind::Internal };
    let error = Error::new(kind, format!("cannot start the workload below its init: {error}"));
    if again { error.hint("raise the limit of processes by one, or write `init = false`") } else { error }
}

/// The most supplementary groups of a process (NGROUPS_MAX, linux/limits.h).
const MOST_GROUPS: usize = 65_536;

/// The first groups of a list, and how many more there are.
fn listed(groups: &[u32]) -> String {
    const SHOWN: usize = 16;
    match groups.len().checked_sub(SHOWN) {
        None | Some(0) => format!("{groups:?}"),
        Some(more) => format!("{:?} and {more} more", &groups[..SHOWN]),
    }
}

/// Sets user, groups and group permanently, and keeps capabilities for the next step. With fewer capabilities, any
/// process of the task might trace this one, if it were not hidden again by then. Without `groups` those stay.
pub fn set_ids(uid: u32, gid: u32, groups: Option<&[u32]>) -> Result<()> {
    // Root keeps them anyway.
    let keep = |keep: bool| if uid == 0 { Ok(()) } else { rustix::thread::set_keep_capabilities(keep) };
    keep(true).doing(Kind::Internal, || "cannot keep capabilities")?;
    if let Some(groups) = groups {
        let all: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
        rustix::thread::set_thread_groups(&all).map_err(|errno| match errno {
            Errno::INVAL if all.len() > MOST_GROUPS => {
                let message = format!("{} groups are more than a process can be in: {MOST_GROUPS}", all.len());
                Error::new(Kind::BadSpec, message)
                    .in_field("user")
                    .hint("/etc/group of the root filesystem must list the user in fewer groups")
            }
            Errno::INVAL => Error::new(Kind::BadSpec, format!("one of the groups {} is not mapped", listed(groups)))
                .in_field("user")
                .hint("map it in the task's user namespace, or choose one that is"),
            errno => Error::new(Kind::Internal, format!("cannot set the groups {}: {errno}", listed(groups))),
        })?;
    }
    // With CAP_SETGID and CAP_SETUID these set the real, effective and saved ids. A filter may deny setresuid(2):
    // runc makes these calls.
    rustix::thread::set_thread_gid(Gid::from_raw(gid)).map_err(|errno| unmapped("group", gid, errno))?;
    rustix::thread::set_thread_uid(Uid::from_raw(uid)).map_err(|errno| unmapped("user", uid, errno))?;
    inheritance::hide()?;
    keep(false).doing(Kind::Internal, || "cannot settle capabilities")
}

fn unmapped(what: &str, id: u32, errno: Errno) -> Error {
    if errno == Errno::INVAL {
        return Error::new(Kind::BadSpec, format!("{id} is not mapped in the task's user namespace"))
            .in_field(what)
            .hint(format!("map it by {what}_mappings, or choose one that is"));
    }
    Error::new(Kind::Internal, format!("cannot become {what} {id}: {errno}"))
}

/// Sets how readily the kernel kills the process `of` (a pid or `self`), and its future children, when memory is
/// short. Uses the host's `/proc`, because the task's may be anything.
pub fn oom_score_adj(of: impl std::fmt::Display, process: &Process) -> Result<()> {
    let set = |value: i32| std::fs::write(format!("/proc/{of}/oom_score_adj"), value.to_string());
    let Some(value) = process.oom_score_adj() else {
        if inheritance::has_oom_score() {
            // A value below the one that the shim got from its caller needs CAP_SYS_RESOURCE.
            let _ = set(0);
        }
        return Ok(());
    };
    let what = || format!("cannot set it to {value} (lowering it needs CAP_SYS_RESOURCE)");
    set(value).doing(Kind::Unsupported, what).map_err(|error| error.in_field("oom_score_adj"))
}

/// Sets the resource limits of the calling process. Init does so before it is ready, so that a limit that this host
/// cannot give fails the creation of the container, as with runc.
pub fn set_rlimits(process: &Process) -> Result<()> {
    let named = process.rlimits().as_deref().unwrap_or_default();
    named.iter().try_for_each(set_rlimit)?;
    for (kind, limit) in inheritance::limits() {
        if named.iter().all(|rlimit| resource(rlimit.typ()) != *kind) {
            let what = || format!("cannot set the resource limit {kind:?}");
            rustix::process::setrlimit(*kind, *limit).doing(Kind::Internal, what)?;
        }
    }
    Ok(())
}

fn set_rlimit(rlimit: &PosixRlimit) -> Result<()> {
    let value = |n: u64| (n != u64::MAX).then_some(n);
    let limit = Rlimit { current: value(rlimit.soft()), maximum: value(rlimit.hard()) };
    rustix::process::setrlimit(resource(rlimit.typ()), limit).map_err(|errno| {
        let message = format!("cannot set {} to {}:{}: {errno}", rlimit.typ(), rlimit.soft(), rlimit.hard());
        Error::new(Kind::BadSpec, message)
            .in_field("rlimits")
            .hint("raising a hard limit needs CAP_SYS_RESOURCE on the host")
    })
}

fn resource(kind: PosixRlimitType) -> Resource {
    match kind {
        PosixRlimitType::RlimitCpu => Resource::Cpu,
        PosixRlimitType::RlimitFsize => Resource::Fsize,
        PosixRlimitType::RlimitData => Resource::Data,
        PosixRlimitType::RlimitStack => Resource::Stack,
        PosixRlimitType::RlimitCore => Resource::Core,
        PosixRlimitType::RlimitRss => Resource::Rss,
        PosixRlimitType::RlimitNproc => Resource::Nproc,
        PosixRlimitType::RlimitNofile => Resource::Nofile,
        PosixRlimitType::RlimitMemlock => Resource::Memlock,
        PosixRlimitType::RlimitAs => Resource::As,
        PosixRlimitType::RlimitLocks => Resource::Locks,
        PosixRlimitType::RlimitSigpending => Resource::Sigpending,
        PosixRlimitType::RlimitMsgqueue => Resource::Msgqueue,
        PosixRlimitType::RlimitNice => Resource::Nice,
        PosixRlimitType::RlimitRtprio => Resource::Rtprio,
        PosixRlimitType::RlimitRttime => Resource::Rttime,
    }
}

/// Changes to the working directory, and refuses one outside the root: an fd that leaked from the host could lead
/// there (CVE-2024-21626).
fn enter(process: &Process) -> Result<()> {
    let cwd = process.cwd();
    let in_workdir = |error: Error| error.in_field("workdir");
    let outside = || format!("{} is outside the root filesystem", cwd.display());
    let entered = rustix::process::chdir(cwd).doing(Kind::BadSpec, || format!("cannot enter {}", cwd.display()));
    entered.map_err(in_workdir)?;
    let here = rustix::process::getcwd(Vec::new()).doing(Kind::BadSpec, outside).map_err(in_workdir)?;
    if here.to_bytes().first() == Some(&b'/') {
        return Ok(());
    }
    Err(in_workdir(Error::new(Kind::BadSpec, outside())))
}

/// More memory than an error takes on its way to the shim, and less than what the allocator maps separately.
const SPARE: usize = 64 << 10;

/// Loads the filter, and hands its listener to the shim at once: system calls that the filter notifies of block
/// until a process has the listener.
fn load(payload: &Payload<'_>) -> Result<()> {
    let Some((program, flags)) = payload.filter else { return Ok(()) };
    if payload.last_words.is_some() {
        // Leave the allocator what an error takes: the filter may deny the calls by which it gets more.
        // Opaque, or the compiler leaves the allocation out.
        drop(std::hint::black_box(Vec::<u8>::with_capacity(SPARE)));
    }
    let loaded = sys::seccomp_load(program, flags).doing(Kind::Unsupported, || "cannot load the seccomp filter")?;
    let (Some(listener), Some(socket)) = (loaded, payload.notify) else { return Ok(()) };
    let what = || "cannot hand over the listener of the seccomp filter";
    fd_passing::send(socket, b"s", listener.as_fd()).doing(Kind::Internal, what)?;
    // Closed by execve: the filter may deny close(2).
    std::mem::forget(listener);
    Ok(())
}

fn refused(program: &Image, error: &std::io::Error) -> Error {
    let path = program.path().to_string_lossy();
    let (kind, why) = match error.raw_os_error() {
        // The file existed a moment ago, so the interpreter or loader that it names is missing.
        Some(libc::ENOENT) => {
            (Kind::CommandNotFound, "its interpreter or loader is missing: no such file or directory")
        }
        Some(libc::EACCES | libc::EPERM) => (Kind::NotExecutable, "permission denied"),
        Some(libc::ENOEXEC) => (Kind::NotExecutable, "it is neither a program for this machine nor a script with #!"),
        Some(libc::ETXTBSY) => (Kind::NotExecutable, "it is open for writing"),
        Some(libc::E2BIG) => (Kind::BadSpec, "arguments and environment together are too long"),
        _ => return Error::new(Kind::Internal, format!("cannot run {path}: {error}")),
    };
    Error::new(kind, format!("cannot run {path}: {why}"))
}
