//! Clones and forks of the calling process.

use std::arch::asm;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::ptr;
use std::sync::OnceLock;

use libc::{c_int, c_long, c_void, pid_t};
use rustix::process::{Pid, Signal, kill_process};

use super::memory::SharedPid;
use super::signals::with_signals_blocked;
use super::{absent, check, own};

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

/// Goes on as another process, in the namespaces that the caller has entered for its children: clones a sibling, with
/// `flags` of `clone3` (CLONE_*), and ends the caller. Returns in the sibling alone.
///
/// With CLONE_VM the sibling takes over the caller's memory; copying it is most of what a fork takes. Until the caller
/// has ended, the sibling has company in its memory: it must enter no time namespace, and change no score for the
/// out-of-memory killer.
///
/// The kernel stores the sibling's pid in `told`, for the parent of both. The caller writes `tag` and the pid, in four
/// bytes, to the pipe `report`, and exits with 0. It must come from [`clone3`]: signal handlers would run on the stack
/// that is the sibling's by then, and the kernel would clear the tid of a thread of libc's (set_tid_address(2)).
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
    let mut args = clone_args(flags | libc::CLONE_PARENT as u64, into_cgroup)?;
    args.flags |= libc::CLONE_PARENT_SETTID as u64;
    args.parent_tid = told.address();
    // Not on the stack, which is the sibling's at once. The sibling leaves it alone. A program with a shadow stack, which
    // none of ours has, could not return in the sibling.
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
