//! The signals of a process: those that it blocks or waits for, and their defaults.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{io, ptr};

use libc::{c_int, c_long, c_void, pid_t};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

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

/// Has each of `signals` end this process until its next execve: to the first process of a pid namespace the kernel delivers
/// none that it does not handle.
pub fn exit_on(signals: &[c_int]) -> io::Result<()> {
    extern "C" fn exit(signal: c_int) {
        super::exit_now(128 + signal)
    }
    for &signal in signals {
        // SAFETY: sigaction is plain data: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = exit as *const () as usize;
        // SAFETY: the handler makes one call, which is safe in any handler; the action is valid, no old one is asked for.
        check(unsafe { libc::sigaction(signal, &action, ptr::null_mut()) }.into())?;
    }
    Ok(())
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

/// Calls `act` with all signals blocked in this thread; restores the old mask afterwards.
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

/// A signal that [`report_signal`] has reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    pub number: c_int,
    /// Whether the kernel sent it: a key was typed at our terminal, or the terminal has gone. No process can pretend this.
    pub by_kernel: bool,
    /// When it arrived, by CLOCK_MONOTONIC.
    pub at: Duration,
}

impl Arrived {
    /// The bytes of a report.
    pub const LENGTH: usize = 16;

    fn to_bytes(self) -> [u8; Arrived::LENGTH] {
        let ns = u64::try_from(self.at.as_nanos()).unwrap_or(u64::MAX).to_ne_bytes();
        let [a, b, c, d, e, f, g, h] = ns;
        [a, b, c, d, e, f, g, h, self.number as u8, u8::from(self.by_kernel), 0, 0, 0, 0, 0, 0]
    }

    /// Reads a report.
    pub fn of(bytes: [u8; Arrived::LENGTH]) -> Arrived {
        let [a, b, c, d, e, f, g, h, number, by_kernel, ..] = bytes;
        let at = Duration::from_nanos(u64::from_ne_bytes([a, b, c, d, e, f, g, h]));
        Arrived { number: c_int::from(number), by_kernel: by_kernel != 0, at }
    }
}

/// The socket to which each signal is reported, by its number.
static REPORTED_TO: [OnceLock<Arc<OwnedFd>>; 65] = [const { OnceLock::new() }; 65];

/// Whether this process ignores `signal`: as under nohup(1), or in the background of a shell without job control.
pub fn is_signal_ignored(signal: c_int) -> bool {
    // SAFETY: sigaction is plain data, for which all zeroes is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: `action` is a valid place; nothing is changed.
    let rc = unsafe { libc::sigaction(signal, ptr::null(), &mut action) };
    rc == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Has `signal` send an [`Arrived`] to the socket `to` from now on, instead of what it does to this process; one that
/// is ignored stays so, as in any other program. A report for which the socket has no room is lost.
///
/// Not by signal-hook-registry: it installs its handler before it stores what that is to do, and a signal that comes in
/// between is lost.
///
/// # Errors
/// `EBUSY` for a signal that is reported already; `EINVAL` for one that cannot be handled.
pub fn report_signal(signal: c_int, to: Arc<OwnedFd>) -> io::Result<()> {
    let place = usize::try_from(signal).ok().and_then(|signal| REPORTED_TO.get(signal)).ok_or(Errno::INVAL)?;
    // Before the handler is there, which may be called at once.
    place.set(to).map_err(|_| Errno::BUSY)?;
    let handler: extern "C" fn(c_int, *const libc::siginfo_t, *const c_void) = report;
    // SAFETY: sigaction is plain data, for which all zeroes is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: as above.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: `action` is valid, its handler takes what SA_SIGINFO gives it and does only what a handler may do, and `old`
    // is a valid place.
    let mut rc = unsafe { libc::sigaction(signal, &action, &mut old) };
    if rc == 0 && old.sa_sigaction == libc::SIG_IGN {
        // Nearly never: asking first would be a call for each signal of each command.
        // SAFETY: `old` is what the kernel has given.
        rc = unsafe { libc::sigaction(signal, &old, ptr::null_mut()) };
    }
    check(c_long::from(rc)).map(drop)
}

/// The handler of [`report_signal`]: makes two system calls with memory of its own stack, and neither allocates, takes a
/// lock, nor panics.
extern "C" fn report(signal: c_int, info: *const libc::siginfo_t, _: *const c_void) {
    let Some(to) = usize::try_from(signal).ok().and_then(|signal| REPORTED_TO.get(signal)?.get()) else { return };
    // SAFETY: the kernel passes a valid siginfo to a handler with SA_SIGINFO.
    let by_kernel = unsafe { (*info).si_code } == libc::SI_KERNEL;
    // SAFETY: the address of this thread's errno, which is always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let arrived = Arrived { number: signal, by_kernel, at: monotonic() };
    let _ = send(&**to, &arrived.to_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    // SAFETY: as above. What the handler has interrupted finds its own errno.
    unsafe { *errno = before };
}

/// The time by CLOCK_MONOTONIC. May be called in a signal handler.
fn monotonic() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid place for a time; clock_gettime may be called in a handler (signal-safety(7)).
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
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

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read as _};
    use std::os::unix::net::UnixStream;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[test]
    fn a_signal_that_is_ignored_stays_so() {
        let (mut read, write) = UnixStream::pair().expect("sockets");
        // SAFETY: no code runs for an ignored signal, and no other test has this one.
        unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
        report_signal(libc::SIGTTOU, Arc::new(write.into())).expect("nothing is changed");
        assert!(is_signal_ignored(libc::SIGTTOU) && !is_signal_ignored(libc::SIGUSR2));
        kill_process(getpid(), Signal::TTOU).expect("it lives");
        read.set_nonblocking(true).expect("ours");
        assert_eq!(
            read.read(&mut [0]).map_err(|error| error.kind()),
            Err(ErrorKind::WouldBlock),
            "nothing is reported"
        );
    }

    #[test]
    fn a_signal_is_reported_once_to_one_receiver() {
        let (mut read, write) = UnixStream::pair().expect("sockets");
        let write = Arc::new(OwnedFd::from(write));
        report_signal(libc::SIGUSR2, write.clone()).expect("it can be handled");
        assert_eq!(
            report_signal(libc::SIGUSR2, write.clone()).map_err(|error| error.kind()),
            Err(ErrorKind::ResourceBusy)
        );
        for none in [-1, 0, 65, libc::SIGKILL] {
            assert_eq!(report_signal(none, write.clone()).map_err(|error| error.kind()), Err(ErrorKind::InvalidInput));
        }
        let before = monotonic();
        kill_process(getpid(), Signal::USR2).expect("it lives");
        let mut bytes = [0; Arrived::LENGTH];
        read.read_exact(&mut bytes).expect("it is reported");
        let arrived = Arrived::of(bytes);
        assert_eq!((arrived.number, arrived.by_kernel), (libc::SIGUSR2, false));
        assert!((before..=monotonic()).contains(&arrived.at));
    }
}
