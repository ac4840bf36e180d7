//! All `unsafe` of init: its system calls and its first instruction.
//!
//! Written for the two architectures by hand, as there is no C library. Errors are left out where nothing could be done
//! about them: init has nobody to tell.

#![allow(unsafe_code)]

use core::arch::{asm, naked_asm};
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU64, Ordering};

pub const SIGCHLD: i32 = 17;
const SIGKILL: i32 = 9;

const PR_SET_DUMPABLE: usize = 4;
const PR_SET_NAME: usize = 15;
const PR_SET_CHILD_SUBREAPER: usize = 36;
const SIG_BLOCK: usize = 0;
/// The size of the kernel's set of signals, in bytes.
const SIGNAL_SET: usize = 8;
const ALL_SIGNALS: u64 = u64::MAX;
const PROT_READ_WRITE: usize = 3;
const MAP_SHARED: usize = 1;
const WNOHANG: usize = 1;
/// Also children that announce their end by no signal, as execs of the shim do where init reaps them.
const WALL: usize = 0x4000_0000;
const FIONREAD: usize = 0x541b;

#[cfg(target_arch = "x86_64")]
mod number {
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const MMAP: usize = 9;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const IOCTL: usize = 16;
    pub const GETPID: usize = 39;
    pub const WAIT4: usize = 61;
    pub const KILL: usize = 62;
    pub const RT_SIGTIMEDWAIT: usize = 128;
    pub const PRCTL: usize = 157;
    pub const EXIT_GROUP: usize = 231;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub const IOCTL: usize = 29;
    pub const CLOSE: usize = 57;
    pub const WRITE: usize = 64;
    pub const EXIT_GROUP: usize = 94;
    pub const KILL: usize = 129;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const RT_SIGTIMEDWAIT: usize = 137;
    pub const PRCTL: usize = 167;
    pub const GETPID: usize = 172;
    pub const MMAP: usize = 222;
    pub const WAIT4: usize = 260;
}

/// Makes a system call; a negative number from −4095 on is an error.
///
/// # Safety
/// The arguments are what the call takes: pointers among them are valid for it.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: the caller upholds what the call asks for; the kernel changes rcx and r11 besides the result.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// Makes a system call; a negative number from −4095 on is an error.
///
/// # Safety
/// The arguments are what the call takes: pointers among them are valid for it.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: the caller upholds what the call asks for; the kernel changes the result alone.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a as isize => result, in("x1") b, in("x2") c, in("x3") d,
            in("x4") e, in("x5") f, options(nostack));
    }
    result
}

/// The first instruction: the stack begins with the count of the arguments, which follow (System V ABI).
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    naked_asm!("xor ebp, ebp", "mov rdi, rsp", "and rsp, -16", "call {begin}", "ud2", begin = sym begin)
}

/// The first instruction: the stack begins with the count of the arguments, which follow (AAPCS64).
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    naked_asm!("mov x29, xzr", "mov x30, xzr", "mov x0, sp", "b {begin}", begin = sym begin)
}

extern "C" fn begin(stack: *const usize) -> ! {
    // SAFETY: the kernel has put the count there.
    let count = unsafe { *stack };
    // SAFETY: the arguments follow the count.
    let first = unsafe { stack.add(1) };
    // SAFETY: there are `count` of them, pointers to C strings that live as long as the process.
    let arguments = unsafe { core::slice::from_raw_parts(first.cast::<*const c_char>(), count) };
    super::run(arguments)
}

#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(101)
}

/// The text of an argument.
pub fn text(argument: *const c_char) -> &'static CStr {
    // SAFETY: it is one of the kernel's, NUL-terminated, and stays for as long as the process.
    unsafe { CStr::from_ptr(argument) }
}

/// Keeps other processes from tracing this one and from reaching its files.
pub fn hide() {
    // SAFETY: it takes no pointer.
    unsafe { call(number::PRCTL, [PR_SET_DUMPABLE, 0, 0, 0, 0, 0]) };
}

/// Sets the name in lists of processes.
pub fn name(name: &CStr) {
    // SAFETY: it is NUL-terminated.
    unsafe { call(number::PRCTL, [PR_SET_NAME, name.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// Takes over orphans, also where this is not the first process of its namespace.
pub fn be_subreaper() {
    // SAFETY: it takes no pointer.
    unsafe { call(number::PRCTL, [PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0, 0]) };
}

/// Blocks all signals: they wait for [`wait_for_signal`], even those that the first process of a namespace would not get.
pub fn block_signals() {
    let all = ALL_SIGNALS;
    // SAFETY: the set is valid, and no old one is asked for.
    unsafe { call(number::RT_SIGPROCMASK, [SIG_BLOCK, &raw const all as usize, 0, SIGNAL_SET, 0, 0]) };
}

/// A signal that has come.
pub struct Signal {
    pub number: i32,
    /// What its sender has sent with it (sigqueue(3)), else anything.
    pub value: u64,
}

/// The kernel's siginfo_t of a queued signal, 128 bytes.
#[repr(C)]
struct Information {
    number: i32,
    error: i32,
    code: i32,
    _align: i32,
    pid: i32,
    uid: u32,
    value: u64,
    rest: [u64; 12],
}

pub fn wait_for_signal() -> Signal {
    let all = ALL_SIGNALS;
    let mut information = core::mem::MaybeUninit::<Information>::uninit();
    let set = &raw const all as usize;
    loop {
        // SAFETY: the set is valid, and there is room for the information.
        let number =
            unsafe { call(number::RT_SIGTIMEDWAIT, [set, information.as_mut_ptr() as usize, 0, SIGNAL_SET, 0, 0]) };
        if number > 0 {
            // SAFETY: the kernel has filled all of it in.
            let Information { value, .. } = unsafe { information.assume_init() };
            return Signal { number: number as i32, value };
        }
    }
}

/// Reaps a child that has ended: its pid and its status, as of wait(2).
pub fn reap() -> Option<(i32, i32)> {
    let mut status = 0i32;
    // SAFETY: there is room for the status; nothing else is asked for.
    let pid = unsafe { call(number::WAIT4, [usize::MAX, &raw mut status as usize, WNOHANG | WALL, 0, 0, 0]) };
    (pid > 0).then_some((pid as i32, status))
}

/// Sends a signal to a child that was not reaped.
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: it takes no pointer.
    unsafe { call(number::KILL, [pid as usize, signal as usize, 0, 0, 0, 0]) };
}

/// Kills every other process of the pid namespace, if this is its first.
pub fn kill_namespace() {
    // SAFETY: it takes no pointer.
    if unsafe { call(number::GETPID, [0; 6]) } == 1 {
        kill(-1, SIGKILL);
    }
}

/// How many bytes of a pipe are unread.
pub fn unread(fd: i32) -> i32 {
    let mut count = 0i32;
    // SAFETY: there is room for the count, which stays 0 where nothing is open.
    unsafe { call(number::IOCTL, [fd as usize, FIONREAD, &raw mut count as usize, 0, 0, 0]) };
    count
}

pub fn write(fd: i32, bytes: &[u8]) {
    // SAFETY: the bytes are valid for their length.
    unsafe { call(number::WRITE, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) };
}

pub fn close(fd: i32) {
    // SAFETY: nothing here uses the number again.
    unsafe { call(number::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
}

pub fn exit(code: i32) -> ! {
    loop {
        // SAFETY: it takes no pointer.
        unsafe { call(number::EXIT_GROUP, [code as usize, 0, 0, 0, 0, 0]) };
    }
}

/// The status file, mapped: storing takes no system call, and nothing is open that another process might reach.
pub struct ExitStatus(&'static AtomicU64);

impl ExitStatus {
    /// Maps the file behind `fd`, and closes that.
    pub fn map(fd: i32) -> Option<ExitStatus> {
        // SAFETY: a new mapping overlaps no existing one.
        let page = unsafe { call(number::MMAP, [0, bowline_init::PAGE, PROT_READ_WRITE, MAP_SHARED, fd as usize, 0]) };
        close(fd);
        let page = (page > 0).then_some(page as *const AtomicU64)?;
        // SAFETY: it is mapped for as long as the process lives, and aligned to a page.
        Some(ExitStatus(unsafe { &*page }))
    }

    pub fn store(&self, number: u64) {
        self.0.store(number, Ordering::Release);
    }
}
