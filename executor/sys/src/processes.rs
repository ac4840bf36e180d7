//! Processes: making, ending and awaiting them, and changing their own attributes.

use std::arch::asm;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use libc::{c_int, c_long, c_void, pid_t};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde::{Deserialize, Serialize};

use super::memory::SharedPid;
use super::proc_stat::{self, ProcStat};
use super::signals::with_signals_blocked;
use super::{absent, check, own};

/// The time namespace (linux/sched.h), which libc does not have for every target.
pub const CLONE_NEWTIME: c_int = 0x80;

/// clone3 flags beyond 32 bits (linux/sched.h), which libc gives as an int.
const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// The result of `clone3`, on either side.
#[derive(Debug)]
pub enum Cloned {
    /// In the caller: the child's pid, as the caller sees it, and its pidfd.
    Parent {
        /// The child's pid in the caller's pid namespace.
        pid: pid_t,
        /// Refers to this very child, even if its pid is reused.
        pidfd: OwnedFd,
    },
    Child,
}

/// Clones the calling process, with `flags` of `clone3` (CLONE_*).
///
/// The child starts with default signal handlers (CLONE_CLEAR_SIGHAND). `into_cgroup` is the folder of a cgroup v2 that
/// the child begins in.
///
/// The child may run any Rust code, because the caller must have one thread only: no lock can be
/// held by a thread that the child lacks.
pub fn clone3(flags: u64, into_cgroup: Option<RawFd>) -> io::Result<Cloned> {
    one_thread()?;
    let mut pidfd: c_int = -1;
    let mut args = clone_args(flags | libc::CLONE_PIDFD as u64, into_cgroup)?;
    args.pidfd = ptr::from_mut(&mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: `args` is a valid clone_args of the size passed, and `pidfd` outlives the call. Without CLONE_VM the child
    // has a copy of all memory, and the caller has one thread, so the copy is consistent.
    let rc = unsafe { libc::syscall(libc::SYS_clone3, ptr::from_mut(&mut args), size_of::<libc::clone_args>()) };
    match check(rc)? {
        0 => Ok(Cloned::Child),
        pid => Ok(Cloned::Parent { pid: pid as pid_t, pidfd: own(pidfd) }),
    }
}

/// Goes on as another process, in the namespaces that the caller has entered for its children: clones a sibling,
/// with `flags` of `clone3` (CLONE_*), that has the caller's memory, and ends the caller. Returns in the sibling alone.
///
/// No memory is copied; copying is most of what a fork takes. The kernel stores the sibling's pid in `told`, for the
/// parent of both. The caller writes `tag` and the pid, in four bytes, to the pipe `report`, and exits with 0. It must
/// have no signal handlers: they would run on the stack that is the sibling's by then.
///
/// `into_cgroup` is as for [`clone3`].
///
/// # Errors
/// The kernel's; then the caller goes on as itself.
pub fn go_on_beside(
    flags: u64,
    into_cgroup: Option<RawFd>,
    told: &SharedPid,
    report: RawFd,
    tag: u8,
) -> io::Result<()> {
    let mut args = clone_args(flags | (libc::CLONE_VM | libc::CLONE_PARENT) as u64, into_cgroup)?;
    args.flags |= libc::CLONE_PARENT_SETTID as u64;
    args.parent_tid = told.address();
    // Not on the stack, which is the sibling's at once. The sibling leaves it alone.
    let message = Box::into_raw(Box::new([tag, 0, 0, 0, 0]));
    // SAFETY: `args` is a valid clone_args of its size, and `told` outlives the call. The caller has one thread, as the
    // fork of a process that was examined; from its clone on it touches neither stack nor heap, but for `message`.
    match unsafe { clone_and_leave(&args, message.cast(), report) } {
        0 => Ok(()),
        error => {
            // SAFETY: it was made above, and there is no sibling.
            drop(unsafe { Box::from_raw(message) });
            Err(io::Error::from_raw_os_error(-error as c_int))
        }
    }
}

/// Clones by `args`. In the caller the child's pid is stored after the first byte of `message`, whose five bytes are
/// written to `report`; then the caller exits. Returns 0 in the child, and a negative errno when there is none.
#[cfg(target_arch = "x86_64")]
unsafe fn clone_and_leave(args: &libc::clone_args, message: *mut u8, report: RawFd) -> c_long {
    let mut result = libc::SYS_clone3;
    // SAFETY: as the caller of this function says; what is clobbered is named.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jle 2f",
            "mov dword ptr [{message} + 1], eax",
            "mov edi, {report:e}",
            "mov rsi, {message}",
            "mov edx, 5",
            "mov eax, {write}",
            "syscall",
            "xor edi, edi",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "2:",
            message = in(reg) message,
            report = in(reg) report,
            write = const libc::SYS_write,
            exit = const libc::SYS_exit_group,
            inlateout("rax") result,
            inout("rdi") ptr::from_ref(args) => _,
            inout("rsi") size_of::<libc::clone_args>() => _,
            out("rdx") _,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result
}

/// The other processor's registers and instructions.
#[cfg(target_arch = "aarch64")]
unsafe fn clone_and_leave(args: &libc::clone_args, message: *mut u8, report: RawFd) -> c_long {
    let mut result = ptr::from_ref(args).addr() as c_long;
    // SAFETY: as the caller of this function says; what is clobbered is named.
    unsafe {
        asm!(
            "svc 0",
            "cmp x0, 0",
            "b.le 2f",
            "stur w0, [{message}, 1]",
            "mov w0, {report:w}",
            "mov x1, {message}",
            "mov x2, 5",
            "mov x8, {write}",
            "svc 0",
            "mov x0, 0",
            "mov x8, {exit}",
            "svc 0",
            "brk 1",
            "2:",
            message = in(reg) message,
            report = in(reg) report,
            write = const libc::SYS_write,
            exit = const libc::SYS_exit_group,
            inlateout("x0") result,
            inout("x1") size_of::<libc::clone_args>() => _,
            inout("x8") libc::SYS_clone3 => _,
            out("x2") _,
            options(nostack),
        );
    }
    result
}

/// What `clone3` is asked with `flags`, and to clear signal handlers.
///
/// # Errors
/// The kernel's, where it is taken for one that does not clone into cgroups.
fn clone_args(flags: u64, into_cgroup: Option<RawFd>) -> io::Result<libc::clone_args> {
    // SAFETY: clone_args is plain data, for which all zeroes is a valid value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags | CLONE_CLEAR_SIGHAND;
    if let Some(cgroup) = into_cgroup {
        if absent("clone_into_cgroup") {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup as u64;
    }
    Ok(args)
}

/// Clones the calling process, which has one thread, with nothing but a pidfd.
///
/// Uses clone(2), which is allowed by filters that refuse clone3 because they cannot look into its
/// arguments; and does not look into `/proc`, which may be a task's. The child's signal handlers
/// are the caller's.
pub fn fork() -> io::Result<Cloned> {
    let mut pidfd: c_int = -1;
    let flags = c_long::from(libc::CLONE_PIDFD | libc::SIGCHLD);
    let to = ptr::from_mut(&mut pidfd);
    // SAFETY: without CLONE_VM the child has a copy of all memory, and it gets no stack of its own;
    // `pidfd` outlives the call.
    let rc = unsafe { libc::syscall(libc::SYS_clone, flags, 0, to, 0, 0) };
    match check(rc)? {
        0 => Ok(Cloned::Child),
        pid => Ok(Cloned::Parent { pid: pid as pid_t, pidfd: own(pidfd) }),
    }
}

/// Like [`fork`], for a caller that may have several threads: the C library sees to its own locks, so that the child may
/// allocate. The child must take no other lock that a thread of the caller may hold.
pub fn fork_among_threads() -> io::Result<Cloned> {
    // SAFETY: the call has no precondition; what the child may do is the caller's to uphold.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Cloned::Child),
        // Nobody else waits for the child, so the pid stays its own.
        pid => match super::pidfd_open(pid) {
            Ok(pidfd) => Ok(Cloned::Parent { pid, pidfd }),
            Err(error) => {
                let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
                Err(error)
            }
        },
    }
}

/// Calls `act` in a new user namespace and returns its result. `act` runs in a child with our
/// memory and our fds, which has ended when this returns.
///
/// Our memory need not be copied for it, and copying is most of what a fork takes. `act` must not
/// panic, nor change what belongs to a process.
pub fn in_user_namespace<T>(act: impl FnOnce() -> T) -> io::Result<T> {
    struct Call<F, T> {
        act: Option<F>,
        made: Option<T>,
    }
    extern "C" fn run<F: FnOnce() -> T, T>(call: *mut c_void) -> c_int {
        // SAFETY: `call` belongs to the caller, which waits and does not touch it meanwhile.
        let call = unsafe { &mut *call.cast::<Call<F, T>>() };
        call.made = call.act.take().map(|act| act());
        0
    }
    fn run_of<F: FnOnce() -> T, T>(_: &Call<F, T>) -> extern "C" fn(*mut c_void) -> c_int {
        run::<F, T>
    }
    let mut call = Call { act: Some(act), made: None };
    let run = run_of(&call);
    let stack = Stack::new()?;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_NEWUSER;
    // A signal handler of ours would take the child for us.
    let rc = with_signals_blocked(|| {
        // SAFETY: the stack, aligned and large enough for a few system calls, and `call` outlive
        // the child: with CLONE_VFORK this thread waits until the child has ended, so that nothing
        // else uses either, or our thread's memory.
        unsafe { libc::clone(run, stack.top(), flags, ptr::from_mut(&mut call).cast()) }
    });
    let pid = check(c_long::from(rc))?;
    // SAFETY: a null status is allowed. `__WALL`: the child has no exit signal, so nobody else has
    // noticed its end, and it has ended.
    unsafe { libc::waitpid(pid as pid_t, ptr::null_mut(), libc::__WALL) };
    call.made.ok_or_else(|| io::Error::other("the child was killed"))
}

/// A stack for a child that shares our memory: mapped for that alone, because pages of our own
/// stack that were touched once would stay ours.
struct Stack(*mut c_void);

impl Stack {
    const SIZE: usize = 32 << 10;

    fn new() -> io::Result<Stack> {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let at = unsafe { libc::mmap(ptr::null_mut(), Stack::SIZE, rights, flags | libc::MAP_STACK, -1, 0) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Stack(at)) }
    }

    /// The end of the stack, from which it grows down: aligned to a page.
    fn top(&self) -> *mut c_void {
        self.0.wrapping_byte_add(Stack::SIZE)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the child that ran on it has ended.
        unsafe { libc::munmap(self.0, Stack::SIZE) };
    }
}

/// Whether [`clone3`] can clone into a cgroup: since Linux 5.7.
///
/// The kernel is asked once, with an fd that can be no cgroup's, so that nothing is cloned: a
/// kernel without the feature finds the arguments too long.
pub fn clones_into_cgroups() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| clone3(0, Some(-1)).is_err_and(|error| error.raw_os_error() != Some(libc::E2BIG)))
}

/// Fails unless the calling process has exactly one thread.
pub(super) fn one_thread() -> io::Result<()> {
    // "." and ".." count as links too.
    match std::fs::metadata("/proc/self/task")?.nlink() {
        3 => Ok(()),
        links => Err(io::Error::other(format!("{} threads where one is allowed", links.saturating_sub(2)))),
    }
}

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

/// Reaps one ended child, whatever its exit signal; `None` when none is left.
///
/// The only place that waits for children: a second one would steal statuses.
pub fn reap() -> io::Result<Option<(pid_t, Ended)>> {
    let mut status: c_int = 0;
    // SAFETY: `status` outlives the call. `__WALL`: children cloned with
    // another exit signal than SIGCHLD are reaped too.
    let rc = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::__WALL) };
    match check(c_long::from(rc)) {
        Ok(0) => Ok(None),
        Ok(pid) => Ok(Some((pid as pid_t, ended(status)))),
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        Err(error) => Err(error),
    }
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
    let stat = std::fs::read_to_string("/proc/self/stat")?;
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
