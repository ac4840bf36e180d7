//! Processes: ending and awaiting them, and changing their own attributes.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr;

use libc::{c_int, c_long, pid_t};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde::{Deserialize, Serialize};

use super::proc_stat::{self, ProcStat};
use super::{check, own, read_kernel_text};

/// The time namespace (linux/sched.h), which libc does not have for every target.
pub const CLONE_NEWTIME: c_int = 0x80;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// By itself, with this code (0–255).
    Exited(i32),
    /// Killed by the signal of this number.
    Signaled(i32),
    /// In a way that nobody can tell any more: its parent was another process.
    Unknown,
}

impl Ended {
    /// The code a shell would report: the exit code, or 128 + the signal; 255 where nobody knows.
    pub fn code(self) -> i32 {
        match self {
            Ended::Exited(code) => code,
            Ended::Signaled(signal) => 128 + signal,
            Ended::Unknown => 255,
        }
    }
}

/// A child that was reaped.
#[derive(Debug, Clone, Copy)]
pub struct Reaped {
    pub pid: pid_t,
    pub ended: Ended,
    /// CPU time of the child and of all below it that were waited for, in µs (getrusage(2)).
    pub cpu_usec: u64,
}

/// Reaps one ended child, whatever its exit signal; `None` when none is left.
///
/// The only place that waits for children: a second one would steal statuses.
pub fn reap() -> io::Result<Option<Reaped>> {
    let mut status: c_int = 0;
    // SAFETY: only numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `status` and `usage` outlive the call. `__WALL`: children cloned with
    // another exit signal than SIGCHLD are reaped too.
    let rc = unsafe { libc::wait4(-1, &mut status, libc::WNOHANG | libc::__WALL, &mut usage) };
    match check(c_long::from(rc)) {
        Ok(0) => Ok(None),
        Ok(pid) => Ok(Some(Reaped {
            pid: pid as pid_t,
            ended: ended(status),
            cpu_usec: usec(usage.ru_utime) + usec(usage.ru_stime),
        })),
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        Err(error) => Err(error),
    }
}

fn usec(time: libc::timeval) -> u64 {
    u64::try_from(time.tv_sec * 1_000_000 + time.tv_usec).unwrap_or(0)
}

/// Whether `pid` is a child of this process that was not reaped.
pub fn is_child(pid: pid_t) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Pid::from_raw(pid).is_some_and(|pid| waitid(WaitId::Pid(pid), options).is_ok())
}

fn ended(status: c_int) -> Ended {
    if libc::WIFSIGNALED(status) {
        Ended::Signaled(libc::WTERMSIG(status))
    } else {
        Ended::Exited(libc::WEXITSTATUS(status))
    }
}

/// How a process has ended whose parent is another one: `None` while it runs, [`Ended::Unknown`] if it was reaped and
/// the kernel does not keep its status. `pidfd` was opened while it was not reaped.
///
/// Needs the rights to look into the process, as ptrace(2) has them.
pub fn ended_elsewhere(pidfd: BorrowedFd<'_>) -> Option<Ended> {
    if let Some(status) = kept_status(pidfd) {
        return Some(ended(status));
    }
    // A process that nobody has reaped has its status in its stat file.
    if let Some(pid) = pid_of(pidfd)
        && let Some(text) = proc_stat::read(pid)
        // The pid was still its own after the file was read.
        && pid_of(pidfd).is_some()
    {
        let stat = ProcStat::parse(&text)?;
        return stat.has_ended().then(|| stat.number(52).map_or(Ended::Unknown, |status| ended(status as c_int)));
    }
    // Reaped while we looked.
    Some(kept_status(pidfd).map_or(Ended::Unknown, ended))
}

/// The wait status that the kernel keeps of a process that was reaped (PIDFD_GET_INFO, since Linux 6.15).
fn kept_status(pidfd: BorrowedFd<'_>) -> Option<c_int> {
    /// As in include/uapi/linux/pidfd.h, of the first version.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        mask: u64,
        cgroup: u64,
        ids: [u32; 11],
        exit_code: i32,
    }
    const EXIT: u64 = 1 << 3;
    /// `_IOWR(0xFF, 11, struct pidfd_info)`.
    const GET_INFO: libc::c_ulong = 0xC000_FF0B | (size_of::<Info>() as libc::c_ulong) << 16;
    let mut info = Info { mask: EXIT, ..Info::default() };
    // SAFETY: the borrow keeps the fd open, and the kernel writes no more than the size that the request names.
    let rc = unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO as _, &raw mut info) };
    (rc == 0 && info.mask & EXIT != 0).then_some(info.exit_code)
}

/// Sends `signal` to the process behind `pidfd`.
///
/// By pidfd, not pid: once the child is reaped, its pid may belong to a stranger. `ESRCH` therefore
/// means "already exited", never "someone else".
pub fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: c_int) -> io::Result<()> {
    // SAFETY: the borrow keeps the fd open; a null siginfo makes the kernel
    // fill one in; a bad signal number is EINVAL, not undefined behaviour.
    let rc = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, ptr::null::<libc::siginfo_t>(), 0)
    };
    check(rc).map(drop)
}

/// Sends `signal` to every process of the group that process `leader` leads.
///
/// The caller is the parent of `leader` and has not reaped it: no other group has its number then.
pub fn signal_group(leader: pid_t, signal: c_int) -> io::Result<()> {
    // The groups 0 and 1 stand for others.
    if leader <= 1 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: kill touches no memory of ours; a bad signal number is EINVAL.
    check(c_long::from(unsafe { libc::kill(-leader, signal) })).map(drop)
}

/// Like [`pidfd_send_signal`], with a value for a process that waits for it (sigqueue(3)).
pub fn pidfd_send_value(pidfd: BorrowedFd<'_>, signal: c_int, value: u64) -> io::Result<()> {
    /// The kernel's siginfo_t of a queued signal on 64-bit machines, 128 bytes (sigaction(2)).
    #[repr(C)]
    struct Queued {
        number: c_int,
        errno: c_int,
        code: c_int,
        align: c_int,
        pid: pid_t,
        uid: libc::uid_t,
        value: u64,
        rest: [u64; 12],
    }
    let (pid, uid) = (std::process::id().cast_signed(), rustix::process::getuid().as_raw());
    let queued = Queued { number: signal, errno: 0, code: libc::SI_QUEUE, align: 0, pid, uid, value, rest: [0; 12] };
    // SAFETY: the borrow keeps the fd open, and `queued` is as large as what the kernel reads.
    let rc = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, &raw const queued, 0) };
    check(rc).map(drop)
}

/// Opens a pidfd of `pid`. The caller must know that the pid cannot have been
/// reused: it is its own unreaped child, or is verified afterwards.
pub fn pidfd_open(pid: pid_t) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed; a pid that is gone is ESRCH.
    let rc = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    check(rc).map(|fd| own(fd as RawFd))
}

/// The pid of the process behind `pidfd`; `None` once the process was reaped. As long as the
/// process cannot end, no other process has this pid.
pub fn pid_of(pidfd: BorrowedFd<'_>) -> Option<pid_t> {
    try_pid_of(pidfd).ok()?
}

fn try_pid_of(pidfd: BorrowedFd<'_>) -> io::Result<Option<pid_t>> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    // -1 once the process was reaped, 0 if it is in another pid namespace.
    Ok(pid.filter(|pid| *pid > 0))
}

/// Opens the process with this pid, if it is the one that started then: see [`ProcStat::started`]. `None` where that has
/// gone.
///
/// # Errors
/// Where it may still be there, as when no descriptor is left.
pub fn open_process(pid: pid_t, started: u64) -> io::Result<Option<OwnedFd>> {
    let found = || {
        let pidfd = pidfd_open(pid)?;
        let text = proc_stat::try_read_in(Path::new(&format!("/proc/{pid}")))?;
        let then = ProcStat::parse(&text).and_then(|stat| stat.started());
        let is_it = then == Some(started) && try_pid_of(pidfd.as_fd())? == Some(pid);
        Ok(is_it.then_some(pidfd))
    };
    unless_gone(found())
}

/// `None` for what the kernel says of a process that has gone, or that never was.
pub fn unless_gone<T>(found: io::Result<Option<T>>) -> io::Result<Option<T>> {
    match found {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT | libc::EINVAL)) => Ok(None),
        found => found,
    }
}

/// Moves the calling thread into the namespaces in `flags` (CLONE_NEW*) of the process behind `fd`,
/// or into the single namespace that `fd` refers to.
pub fn setns(fd: BorrowedFd<'_>, flags: c_int) -> io::Result<()> {
    // SAFETY: the borrow keeps the fd open; the kernel checks the rest.
    let rc = unsafe { libc::setns(fd.as_raw_fd(), flags) };
    check(c_long::from(rc)).map(drop)
}

/// Opens the user namespace that owns the namespace `fd`: ioctl_ns(2).
///
/// # Errors
/// `EPERM` when that is not the caller's or one below it; `ENOTTY` when `fd` is no namespace.
pub fn owner_of_namespace(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const NS_GET_USERNS: u32 = 0xb701;
    // SAFETY: NS_GET_USERNS takes no argument.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), NS_GET_USERNS as _) };
    check(c_long::from(rc)).map(|fd| own(fd as RawFd))
}

/// Whether this process is in the host's first user namespace. In any other, even root has no device nodes made, no
/// filter for devices, and only the cgroups that were left to it.
pub fn in_first_user_namespace() -> bool {
    // PROC_USER_INIT_INO of linux/proc_ns.h: a map of all ids tells less, as a privileged container has one too.
    const FIRST: u64 = 0xeffffffd;
    // A child keeps what its shim has found out.
    static IS_FIRST: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *IS_FIRST.get_or_init(|| rustix::fs::stat("/proc/self/ns/user").map_or(true, |stat| stat.st_ino == FIRST))
}

/// Moves the caller from the namespaces in `flags` (CLONE_NEW*) to new ones.
pub fn unshare(flags: c_int) -> io::Result<()> {
    // SAFETY: only namespace flags are passed by this crate, never CLONE_FILES
    // or CLONE_VM, so no Rust object changes its meaning.
    let rc = unsafe { libc::unshare(flags) };
    check(c_long::from(rc)).map(drop)
}

/// How a process is scheduled (sched_setattr(2)).
#[derive(Debug, Clone, Copy, Default)]
pub struct SchedulingAttributes {
    pub policy: u32,
    pub flags: u64,
    pub nice: i32,
    pub priority: u32,
    pub runtime: u64,
    pub deadline: u64,
    pub period: u64,
}

/// Changes how the calling thread is scheduled.
pub fn sched_setattr(wanted: &SchedulingAttributes) -> io::Result<()> {
    /// `struct sched_attr` in its first form (linux/sched/types.h).
    #[repr(C)]
    struct Attr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let SchedulingAttributes { policy, flags, nice, priority, runtime, deadline, period } = *wanted;
    let size = size_of::<Attr>() as u32;
    let attr = Attr { size, policy, flags, nice, priority, runtime, deadline, period };
    // SAFETY: `attr` is a valid sched_attr of the size that it names.
    let rc = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, ptr::from_ref(&attr), 0) };
    check(rc).map(drop)
}

/// Sets the I/O priority of the calling thread: class << 13 | level (ioprio_set(2)).
pub fn ioprio_set(priority: c_int) -> io::Result<()> {
    const IOPRIO_WHO_PROCESS: c_int = 1;
    // SAFETY: no pointers are passed.
    let rc = unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, priority) };
    check(rc).map(drop)
}

/// Sets the calling process's execution domain (personality(2)).
pub fn personality(domain: libc::c_ulong) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    let rc = unsafe { libc::personality(domain) };
    check(c_long::from(rc)).map(drop)
}

/// Lets the calling thread run on every CPU of its cpuset.
pub fn run_on_any_cpu() -> io::Result<()> {
    /// More CPUs than any kernel has: the kernel takes as many as it knows.
    const ALL: [u8; 1024] = [0xff; 1024];
    // SAFETY: the mask is valid for the length that is passed.
    let rc = unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, ALL.len(), ALL.as_ptr()) };
    check(rc).map(drop)
}

/// Lets the calling thread allocate memory on any node again (set_mempolicy(2)).
pub fn default_memory_policy() -> io::Result<()> {
    const MPOL_DEFAULT: c_int = 0;
    // SAFETY: the default policy takes no nodes, by a null mask of no bits.
    let rc = unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_DEFAULT, ptr::null::<libc::c_ulong>(), 0) };
    check(rc).map(drop)
}

/// Sets by which nodes the calling thread, and what it executes, allocates memory (set_mempolicy(2)). `mode` includes
/// its flags; node n is bit n % 64 of `nodes[n / 64]`.
pub fn set_memory_policy(mode: c_int, nodes: &[u64]) -> io::Result<()> {
    // The kernel takes one bit less than it is told, and a mode without nodes a null mask.
    let (mask, bits) = match nodes.iter().any(|bits| *bits != 0) {
        true => (nodes.as_ptr(), nodes.len() * 64 + 1),
        false => (ptr::null(), 0),
    };
    // SAFETY: the mask has as many bits as are read of it.
    let rc = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, bits) };
    check(rc).map(drop)
}

/// A program to execute, with all that execve(2) takes: nothing is allocated once a seccomp filter is loaded, which may
/// deny what that needs.
pub struct Image {
    path: CString,
    // The pointers are into these.
    argv: Vec<CString>,
    envp: Vec<CString>,
    argv_pointers: Vec<*const libc::c_char>,
    envp_pointers: Vec<*const libc::c_char>,
}

impl Image {
    /// The program at `path` with these arguments and variables.
    pub fn new(path: CString, argv: Vec<CString>, envp: Vec<CString>) -> Image {
        let pointers = |strings: &[CString]| strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect();
        let (argv_pointers, envp_pointers) = (pointers(&argv), pointers(&envp));
        Image { path, argv, envp, argv_pointers, envp_pointers }
    }

    pub fn path(&self) -> &CStr {
        &self.path
    }

    pub fn envp(&self) -> &[CString] {
        &self.envp
    }

    pub fn argv(&self) -> &[CString] {
        &self.argv
    }

    /// Executes the file behind `fd` with these arguments and variables, whatever is at the path; returns only if that
    /// fails.
    pub fn execute_file(&self, fd: BorrowedFd<'_>) -> io::Error {
        let (argv, envp) = (self.argv_pointers.as_ptr(), self.envp_pointers.as_ptr());
        let empty = c"".as_ptr();
        // SAFETY: as for `execute`; the empty path says that the file is `fd` itself.
        unsafe { libc::syscall(libc::SYS_execveat, fd.as_raw_fd(), empty, argv, envp, libc::AT_EMPTY_PATH) };
        io::Error::last_os_error()
    }

    /// Executes the program; returns only if that fails.
    pub fn execute(&self) -> io::Error {
        // SAFETY: both arrays are null-terminated and point at C strings that `self` owns, on the heap.
        unsafe { libc::execve(self.path.as_ptr(), self.argv_pointers.as_ptr(), self.envp_pointers.as_ptr()) };
        io::Error::last_os_error()
    }
}

/// Ends the calling process at once: no destructors, no exit handlers.
///
/// Cloned children end with this, because they share epoll sets and sockets with the shim and must
/// not run their destructors.
pub fn exit_now(code: c_int) -> ! {
    // SAFETY: the call has no preconditions.
    unsafe { libc::syscall(libc::SYS_exit_group, code) };
    // A seccomp filter may deny the calls that end a process. `_exit` would try them for ever.
    std::process::abort()
}

/// Makes `/proc/self/cmdline` show `name`, and nothing of the program's arguments. The memory is
/// overwritten in place, because pointing the kernel elsewhere needs a privilege.
pub fn overwrite_command_line(name: &[u8]) -> io::Result<()> {
    // proc(5): arg_start and arg_end; the name in the fields before may contain anything.
    const ARG_START: usize = 48 - 3;
    let stat = read_kernel_text("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<usize>().ok());
    let (Some(start), Some(end)) = (number(ARG_START), number(ARG_START + 1)) else {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    };
    let length = end.saturating_sub(start);
    if start == 0 || name.len() >= length {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    // SAFETY: the kernel says that the arguments are there, on our own stack; nothing borrows them:
    // the caller has read its own, which are copies.
    let arguments = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, length) };
    arguments.fill(0);
    arguments[..name.len()].copy_from_slice(name);
    Ok(())
}

/// Gives the calling process an empty session keyring, so that it cannot read the keys of the shim's starter.
pub fn new_session_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: c_int = 1;
    // SAFETY: a null name asks for an anonymous keyring.
    let rc = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, ptr::null::<libc::c_char>()) };
    check(rc).map(drop)
}
