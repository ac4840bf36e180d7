//! The signals of a process: those that it blocks or waits for, and their defaults.

use std::{io, ptr};

use libc::{c_int, c_long, pid_t};

use super::{check, read_kernel_text};

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

/// The signals that the calling process ignores or handles: all of them where `/proc` does not tell.
pub fn changed_signals() -> impl Iterator<Item = c_int> {
    let status = read_kernel_text("/proc/self/status").unwrap_or_default();
    let mask = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(u64::MAX)
    };
    let changed = mask("SigIgn:") | mask("SigCgt:");
    (1..=64).filter(move |signal| changed >> (signal - 1) & 1 == 1)
}

/// Every signal there is, but for those two that the C library keeps to itself.
pub const ALL_SIGNALS: [c_int; 64] = {
    let mut all = [0; 64];
    let mut at = 0;
    while at < all.len() {
        all[at] = at as c_int + 1;
        at += 1;
    }
    all
};

/// Blocks these signals and no others.
pub fn block_signals(signals: &[c_int]) {
    let set = signal_set(signals);
    // SAFETY: the set is valid; no old mask is asked for.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &set, ptr::null_mut()) };
}

/// Calls `act` with all signals blocked; restores the old mask afterwards.
pub fn with_signals_blocked<T>(act: impl FnOnce() -> T) -> T {
    // SAFETY: sigset_t is plain data, filled in by the next call.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `all` is a valid place for a set.
    unsafe { libc::sigfillset(&mut all) };
    let mut before = all;
    // SAFETY: both sets are valid.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) };
    let done = act();
    // SAFETY: the set is valid; no old mask is asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut()) };
    done
}

/// Waits for one of these signals, which must be blocked. Returns the signal and the pid of its
/// sender, 0 for a sender without a pid in the caller's namespace.
pub fn wait_for_signal(signals: &[c_int]) -> io::Result<(c_int, pid_t)> {
    let set = signal_set(signals);
    // SAFETY: siginfo_t is plain data, for which all zeroes is a valid value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set and the place for the signal's information are valid.
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
