//! All `unsafe` of the project: the system calls that rustix lacks, thinly.
//!
//! Must not: decide, log, or know what a task is.

#![allow(unsafe_code)]

#[cfg(feature = "absent")]
mod absent;
#[cfg(not(feature = "absent"))]
mod absent {
    /// Nothing is: see the feature `absent`.
    pub const fn absent(_: &str) -> bool {
        false
    }
}
mod recent;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::ptr;
use std::sync::OnceLock;

use libc::{c_int, c_long, pid_t};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub use absent::absent;
#[cfg(feature = "absent")]
pub use absent::all as all_absent;
pub use recent::{fsconfig, fsmount, fsopen, has_mount_fds, is_absent, move_mount, open_tree, openat2};

/// clone3 flags beyond 32 bits (linux/sched.h), which libc gives as an int.
const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// What `clone3` returned, on either side.
#[derive(Debug)]
pub enum Cloned {
    /// In the caller: the child's pid, as the caller sees it, and its pidfd.
    Parent {
        /// The child's pid in the caller's pid namespace.
        pid: pid_t,
        /// Refers to this very child, whatever becomes of its pid.
        pidfd: OwnedFd,
    },
    /// In the child.
    Child,
}

/// Clones the calling process, with `flags` of `clone3` (CLONE_*).
///
/// The child starts with default signal handlers (CLONE_CLEAR_SIGHAND). With
/// `CLONE_PARENT` in `flags` the exit signal must be 0 and is inherited.
/// `into_cgroup` is the folder of a cgroup v2 that the child begins in.
///
/// The child may run any Rust code, as the caller must have one thread only:
/// no lock can be held by a thread that the child lacks.
pub fn clone3(flags: u64, into_cgroup: Option<RawFd>) -> io::Result<Cloned> {
    // A worker has entered the task's mount namespace, where /proc is the
    // task's; it is a fork of a process that was asked already.
    if flags & libc::CLONE_PARENT as u64 == 0 {
        one_thread()?;
    }
    let mut pidfd: c_int = -1;
    // SAFETY: clone_args is plain data, for which all zeroes is a valid value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags | libc::CLONE_PIDFD as u64 | CLONE_CLEAR_SIGHAND;
    args.pidfd = ptr::from_mut(&mut pidfd) as u64;
    if flags & libc::CLONE_PARENT as u64 == 0 {
        args.exit_signal = libc::SIGCHLD as u64;
    }
    if let Some(cgroup) = into_cgroup {
        if absent("clone_into_cgroup") {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup as u64;
    }
    // SAFETY: `args` is a valid clone_args of the size passed, and `pidfd`
    // outlives the call. Without CLONE_VM the child has a copy of all memory,
    // and the caller has one thread, so the copy is consistent.
    let rc = unsafe { libc::syscall(libc::SYS_clone3, ptr::from_mut(&mut args), size_of::<libc::clone_args>()) };
    match check(rc)? {
        0 => Ok(Cloned::Child),
        pid => Ok(Cloned::Parent { pid: pid as pid_t, pidfd: own(pidfd) }),
    }
}

/// Clones the calling process, which has one thread, with nothing but a pidfd.
///
/// By clone(2), which filters allow that refuse clone3 as they cannot look into
/// its arguments; and without a look into `/proc`, which may be a task's. Its
/// signal handlers are the caller's.
pub fn fork() -> io::Result<Cloned> {
    let mut pidfd: c_int = -1;
    let flags = c_long::from(libc::CLONE_PIDFD | libc::SIGCHLD);
    let to = ptr::from_mut(&mut pidfd);
    // SAFETY: without CLONE_VM the child has a copy of all memory, and the
    // stack that it is given none of; `pidfd` outlives the call.
    let rc = unsafe { libc::syscall(libc::SYS_clone, flags, 0, to, 0, 0) };
    match check(rc)? {
        0 => Ok(Cloned::Child),
        pid => Ok(Cloned::Parent { pid: pid as pid_t, pidfd: own(pidfd) }),
    }
}

/// Has `fd` at `number` too, in place of what is there, across an execve.
///
/// For a child that is about to execute another program: nothing of ours that
/// owned the number may be used or dropped afterwards.
pub fn place_fd(fd: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: the borrow keeps `fd` open; the caller upholds the rest.
    let rc = unsafe { libc::dup2(fd.as_raw_fd(), number) };
    check(c_long::from(rc)).map(drop)
}

/// Whether [`clone3`] can clone into a cgroup: since Linux 5.7.
///
/// Asked once, with no fd that could be a cgroup's, so that nothing is cloned:
/// to a kernel that lacks it the arguments are too long.
pub fn clones_into_cgroups() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| clone3(0, Some(-1)).is_err_and(|error| error.raw_os_error() != Some(libc::E2BIG)))
}

/// Loads an eBPF program that decides over devices (BPF_PROG_TYPE_CGROUP_DEVICE)
/// and attaches it to the cgroup v2 `cgroup`, which it goes with.
///
/// `program` is an array of `struct bpf_insn`, 8 bytes each.
pub fn attach_device_program(cgroup: BorrowedFd<'_>, program: &[u64]) -> io::Result<()> {
    const BPF_PROG_LOAD: c_int = 5;
    const BPF_PROG_ATTACH: c_int = 8;
    const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
    const BPF_CGROUP_DEVICE: u32 = 6;
    const BPF_F_ALLOW_MULTI: u32 = 2;
    /// A signal interrupts it once; many children may end at a time.
    const TRIES: u32 = 100;

    /// The head of `union bpf_attr` for BPF_PROG_LOAD; the kernel takes what
    /// is missing as zero.
    #[repr(C)]
    struct Load {
        kind: u32,
        length: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
    }
    /// The same for BPF_PROG_ATTACH.
    #[repr(C)]
    struct Attach {
        target: u32,
        program: u32,
        kind: u32,
        flags: u32,
    }
    let length = u32::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    let load = Load {
        kind: BPF_PROG_TYPE_CGROUP_DEVICE,
        length,
        instructions: program.as_ptr() as u64,
        license: c"Apache".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
    };
    let mut tries = 0..TRIES;
    let loaded = loop {
        // SAFETY: `load` is a valid head of bpf_attr of the size passed; what it
        // points at outlives the call, and the kernel verifies the program.
        let rc = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, ptr::from_ref(&load), size_of::<Load>()) };
        match check(rc) {
            // A signal has come while the kernel verified it: a child has ended.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && tries.next().is_some() => {}
            loaded => break own(loaded? as RawFd),
        }
    };
    let attach = Attach {
        target: cgroup.as_raw_fd() as u32,
        program: loaded.as_raw_fd() as u32,
        kind: BPF_CGROUP_DEVICE,
        flags: BPF_F_ALLOW_MULTI,
    };
    // SAFETY: as above; both fds are open.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_ATTACH, ptr::from_ref(&attach), size_of::<Attach>()) };
    check(rc).map(drop)
}

/// Fails unless the calling process has exactly one thread.
fn one_thread() -> io::Result<()> {
    // "." and ".." count as links too.
    match std::fs::metadata("/proc/self/task")?.nlink() {
        3 => Ok(()),
        links => Err(io::Error::other(format!("{} threads where one is allowed", links.saturating_sub(2)))),
    }
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this code (0–255).
    Exited(i32),
    /// By this signal.
    Signaled(i32),
}

impl Ended {
    /// The code a shell would report: the exit code, or 128 + the signal.
    pub fn code(self) -> i32 {
        match self {
            Ended::Exited(code) => code,
            Ended::Signaled(signal) => 128 + signal,
        }
    }
}

/// Reaps one ended child of whatever exit signal; `None` when none is left.
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

fn ended(status: c_int) -> Ended {
    if libc::WIFSIGNALED(status) {
        Ended::Signaled(libc::WTERMSIG(status))
    } else {
        Ended::Exited(libc::WEXITSTATUS(status))
    }
}

/// Sends `signal` to the process behind `pidfd`.
///
/// By pidfd, not pid: once the child is reaped its number may belong to a
/// stranger. `ESRCH` therefore means "already exited", never "someone else".
pub fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: c_int) -> io::Result<()> {
    // SAFETY: the borrow keeps the fd open; a null siginfo makes the kernel
    // fill one in; a bad signal number is EINVAL, not undefined behaviour.
    let rc = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, ptr::null::<libc::siginfo_t>(), 0)
    };
    check(rc).map(drop)
}

/// Opens a pidfd of `pid`. The caller must know that the pid cannot have been
/// reused: it is its own unreaped child, or is verified afterwards.
pub fn pidfd_open(pid: pid_t) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed; a pid that is gone is ESRCH.
    let rc = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    check(rc).map(|fd| own(fd as RawFd))
}

/// Moves the calling thread into the namespaces in `flags` (CLONE_NEW*) of the
/// process behind `fd`, or into the one namespace that `fd` is.
pub fn setns(fd: BorrowedFd<'_>, flags: c_int) -> io::Result<()> {
    // SAFETY: the borrow keeps the fd open; the kernel checks the rest.
    let rc = unsafe { libc::setns(fd.as_raw_fd(), flags) };
    check(c_long::from(rc)).map(drop)
}

/// Leaves the namespaces in `flags` (CLONE_NEW*) for new ones.
pub fn unshare(flags: c_int) -> io::Result<()> {
    // SAFETY: only namespace flags are passed by this crate, never CLONE_FILES
    // or CLONE_VM, so no Rust object changes its meaning.
    let rc = unsafe { libc::unshare(flags) };
    check(c_long::from(rc)).map(drop)
}

/// Attributes for [`mount_setattr`]; MOUNT_ATTR_* bits.
#[derive(Debug, Clone, Copy, Default)]
pub struct MountAttributes {
    /// Bits to set.
    pub set: u64,
    /// Bits to clear.
    pub clear: u64,
    /// MS_SHARED, MS_SLAVE, MS_PRIVATE or MS_UNBINDABLE; 0 leaves it.
    pub propagation: u64,
}

impl MountAttributes {
    /// Whether nothing is to be changed.
    pub fn is_none(&self) -> bool {
        self.set | self.clear | self.propagation == 0
    }
}

/// Changes the attributes of the mount that `mount` is the root of; with
/// `recursive`, of all mounts below it too. Linux ≥ 5.12.
pub fn mount_setattr(mount: BorrowedFd<'_>, recursive: bool, attributes: MountAttributes) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: attributes.set,
        attr_clr: attributes.clear,
        propagation: attributes.propagation,
        userns_fd: 0,
    };
    set_attributes(mount, recursive, &attr)
}

/// Has the detached mount `mount` show its files' owners as the user namespace
/// `owners` maps them; with `recursive`, all mounts below it too. Linux ≥ 5.12,
/// where the filesystem can.
pub fn mount_idmap(mount: BorrowedFd<'_>, recursive: bool, owners: BorrowedFd<'_>) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: owners.as_raw_fd() as u64,
    };
    set_attributes(mount, recursive, &attr)
}

fn set_attributes(mount: BorrowedFd<'_>, recursive: bool, attr: &libc::mount_attr) -> io::Result<()> {
    if absent("mount_setattr") {
        return Err(io::Error::from_raw_os_error(libc::ENOSYS));
    }
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: `attr` is a valid mount_attr of the size passed, the path is an
    // empty C string, and the borrows keep the fds open.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            ptr::from_ref(attr),
            size_of::<libc::mount_attr>(),
        )
    };
    check(rc).map(drop)
}

/// Loads a seccomp filter, for the calling thread and all it becomes.
///
/// `program` is an array of `sock_filter` as libseccomp exports it (8 bytes
/// each); `flags` are SECCOMP_FILTER_FLAG_*. With NEW_LISTENER among them the
/// listener is returned.
pub fn seccomp_load(program: &[u8], flags: u64) -> io::Result<Option<OwnedFd>> {
    let length = program.len() / size_of::<libc::sock_filter>();
    let mut instructions: Vec<libc::sock_filter> = program
        .chunks_exact(size_of::<libc::sock_filter>())
        .map(|c| libc::sock_filter {
            code: u16::from_ne_bytes([c[0], c[1]]),
            jt: c[2],
            jf: c[3],
            k: u32::from_ne_bytes([c[4], c[5], c[6], c[7]]),
        })
        .collect();
    let Ok(len) = u16::try_from(length) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    let fprog = libc::sock_fprog { len, filter: instructions.as_mut_ptr() };
    // SAFETY: `fprog` points at `len` instructions that live until the call
    // returns; the kernel copies and verifies them.
    let rc = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, ptr::from_ref(&fprog)) };
    let result = check(rc)?;
    Ok((flags & libc::SECCOMP_FILTER_FLAG_NEW_LISTENER != 0).then(|| own(result as RawFd)))
}

/// How a process is scheduled (sched_setattr(2)).
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs, reason = "sched_setattr(2)")]
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
    // SAFETY: `attr` is a valid sched_attr of the size that it tells.
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

/// Replaces the program; returns only on failure, with the reason.
pub fn execve(path: &CString, argv: &[CString], envp: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        let ends = [ptr::null()];
        strings.iter().map(|s| s.as_ptr()).chain(ends).collect()
    };
    let (argv, envp) = (pointers(argv), pointers(envp));
    // SAFETY: both arrays are null-terminated and point at C strings that
    // outlive the call.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}

/// Ends the calling process at once: no destructors, no exit handlers.
///
/// What a cloned child ends with, as it shares epoll sets and sockets with the
/// shim and must not run their destructors.
pub fn exit_now(code: c_int) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Gives `signals` their default disposition and blocks none.
///
/// `CLONE_CLEAR_SIGHAND` resets handlers but keeps ignored signals ignored,
/// and Rust ignores SIGPIPE.
pub fn default_signals(signals: impl IntoIterator<Item = c_int>) {
    // The kernel's own sigaction, not glibc's, which keeps 32 and 33 to itself
    // and would leave them ignored: handler, flags, restorer and mask all 0.
    let default = [0u64; 4];
    for signal in signals {
        // SAFETY: `default` is a valid kernel sigaction that outlives the call;
        // KILL and STOP fail without effect.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), ptr::null_mut::<u64>(), 8) };
    }
    // SAFETY: sigset_t is plain data, filled in by the next call.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `none` is a valid place for a set.
    unsafe { libc::sigemptyset(&mut none) };
    // SAFETY: the set is valid; no old mask is asked for.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut()) };
}

/// Blocks these signals and no others.
pub fn block_signals(signals: &[c_int]) {
    let set = signal_set(signals);
    // SAFETY: the set is valid; no old mask is asked for.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &set, ptr::null_mut()) };
}

/// Waits for one of these signals, which are blocked: which it was, and the pid
/// of who has sent it, 0 for one that the caller has no number for.
pub fn wait_for_signal(signals: &[c_int]) -> io::Result<(c_int, pid_t)> {
    let set = signal_set(signals);
    // SAFETY: siginfo_t is plain data, for which all zeroes is a valid value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set and the place for what is known of the signal are valid.
    let number = unsafe { libc::sigwaitinfo(&set, &mut info) };
    check(c_long::from(number))?;
    // SAFETY: the kernel has filled it in, with a pid for signals that are sent.
    Ok((number, unsafe { info.si_pid() }))
}

fn signal_set(signals: &[c_int]) -> libc::sigset_t {
    // SAFETY: sigset_t is plain data, filled in by the next call.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a valid place for a set.
    unsafe { libc::sigemptyset(&mut set) };
    for &signal in signals {
        // SAFETY: the set is valid; no such signal is an error without effect.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}

/// Has `/proc/self/cmdline` say `name`, and nothing of what the program was
/// called with: in place, as to say where else to look needs a right.
pub fn overwrite_command_line(name: &[u8]) -> io::Result<()> {
    // proc(5): arg_start and arg_end; the name before may contain anything.
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
    // SAFETY: the kernel says that the arguments are there, on our own stack;
    // nobody borrows them: the caller has read its own, which are copies.
    let arguments = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, length) };
    arguments.fill(0);
    arguments[..name.len()].copy_from_slice(name);
    Ok(())
}

/// Gives the calling process an empty session keyring, so that it cannot read
/// the keys of whoever started the shim.
pub fn new_session_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: c_int = 1;
    // SAFETY: a null name asks for an anonymous keyring.
    let rc = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, ptr::null::<libc::c_char>()) };
    check(rc).map(drop)
}

/// Brings the loopback interface of the current network namespace up.
pub fn loopback_up() -> io::Result<()> {
    set_link_flags(&link_socket()?, link_name("lo")?, libc::IFF_UP | libc::IFF_RUNNING)
}

/// Removes the bridge `name` of the current network namespace, with whatever is
/// still in it.
pub fn remove_bridge(name: &str) -> io::Result<()> {
    /// linux/sockios.h
    const SIOCBRDELBR: u32 = 0x89a1;
    let name = link_name(name)?;
    let socket = link_socket()?;
    // One that is up is busy.
    set_link_flags(&socket, name, 0)?;
    // SAFETY: SIOCBRDELBR reads IFNAMSIZ bytes, which `name` has.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCBRDELBR as _, name.as_ptr()) };
    check(c_long::from(rc)).map(drop)
}

/// What requests about interfaces are made by.
fn link_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let rc = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    Ok(own(check(c_long::from(rc))? as RawFd))
}

fn link_name(text: &str) -> io::Result<[libc::c_char; libc::IFNAMSIZ]> {
    let mut name = [0; libc::IFNAMSIZ];
    // The last byte stays NUL.
    if text.len() >= name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    name.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte as libc::c_char);
    Ok(name)
}

fn set_link_flags(socket: &OwnedFd, name: [libc::c_char; libc::IFNAMSIZ], flags: c_int) -> io::Result<()> {
    // SAFETY: ifreq is plain data, for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name = name;
    request.ifr_ifru.ifru_flags = flags as i16;
    // SAFETY: SIOCSIFFLAGS reads an ifreq, which `request` is.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request) };
    check(c_long::from(rc)).map(drop)
}

/// Takes over an fd that the process that started us handed down by number.
///
/// `None` when nothing is open there.
pub fn inherited_fd(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: F_GETFD only asks whether the number is open.
    let rc = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if rc < 0 {
        return None;
    }
    // SAFETY: the number is open, and the caller hands each inherited number
    // over once, before anything else could own it.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(fd.as_fd(), rustix::io::FdFlags::CLOEXEC).ok()?;
    Some(fd)
}

/// Registers something that owns an fd with the event loop.
pub fn watch<T: AsRawFd + Into<OwnedFd>>(owner: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: `Into<OwnedFd>` says that `owner` has the one fd that it names,
    // and nothing in this crate swaps it for another.
    unsafe { AsyncFd::register(owner) }.map_err(io::Error::from)
}

/// The same for one kind of readiness: no other wakes the loop.
pub fn watch_for<T: AsRawFd + Into<OwnedFd>>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: as above.
    unsafe { AsyncFd::register_with_interest(owner, interest) }.map_err(io::Error::from)
}

/// Writes to an fd that a child holds by number, across its clone.
///
/// A number that is not open is `EBADF`; the caller keeps it open.
pub fn write_fd(fd: RawFd, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the buffer is valid for its length; the fd is only written to.
    let rc = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    check(rc as c_long).map(drop)
}

/// Reads from an fd that a child holds by number, across its clone.
pub fn read_fd(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the buffer is valid for its length.
    let rc = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
    check(rc as c_long).map(|length| length as usize)
}

/// Marks every fd from 3 on close-on-exec.
pub fn close_on_exec_from_3() -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: c_int = 4;
    // SAFETY: with this flag nothing is closed, only marked.
    let rc = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, CLOSE_RANGE_CLOEXEC) };
    check(rc).map(drop)
}

/// Closes every fd from 3 on but `keep`, in a process that owns none of the rest.
///
/// For cloned children, whose copies of the shim's fds keep pipes open that the
/// shim believes closed; and for a program's first step, before it owns any.
pub fn close_all_but(keep: &mut [RawFd]) {
    keep.sort_unstable();
    let mut first: RawFd = 3;
    let ends = [RawFd::MAX];
    for &fd in keep.iter().chain(&ends) {
        if fd > first {
            // SAFETY: the caller never uses or drops an fd it did not keep: it
            // is a child that ends by execve or `exit_now`, or owns none yet.
            unsafe { libc::syscall(libc::SYS_close_range, first, fd - 1, 0) };
        }
        first = first.max(fd.saturating_add(1));
    }
}

/// Closes every fd, in a child that uses none any more.
pub fn close_all() {
    // SAFETY: the caller is a child that ends by `exit_now`, and uses no fd again.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
}

fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: every caller passes an fd that the kernel has just returned to
    // it and that nothing else knows of.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn check(rc: c_long) -> io::Result<c_long> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}
