//! File descriptors: handed down by number, watched, and closed many at a time.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicI32, Ordering};

use libc::c_long;
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::check;
use super::clones::one_thread;
use super::recent::{is_absent, mark_close_on_exec};

/// Duplicates `fd` to `number`, in place of what is there, and keeps it open across an execve.
///
/// For a child that is about to execute another program: no object of ours that owned the number
/// may be used or dropped afterwards.
pub fn place_fd(fd: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: the borrow keeps `fd` open; the caller upholds the rest.
    let rc = unsafe { libc::dup2(fd.as_raw_fd(), number) };
    check(c_long::from(rc)).map(drop)
}

/// Like [`place_fd`], in a child that holds both by number, across its clone.
pub fn place_fd_at(fd: RawFd, number: RawFd) -> io::Result<()> {
    // SAFETY: the child owns neither; it uses `number` for what is there from now on.
    let rc = unsafe { libc::dup2(fd, number) };
    check(c_long::from(rc)).map(drop)
}

/// Lets the program that `command` starts next inherit `fds`, under the numbers that they have here. Returns what the
/// caller keeps until that is started.
///
/// Where this process has one thread, close-on-exec is cleared here, and the child need not copy our memory. Another
/// thread might start a program meanwhile, which would inherit them too; close-on-exec is cleared in the child then, which
/// also begins a session of its own first: no signal to our process group reaches it.
pub fn hand_down(command: &mut impl CommandExt, fds: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
    let share = |fds: &[OwnedFd]| -> io::Result<()> {
        fds.iter().try_for_each(|fd| rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())).map_err(Into::into)
    };
    if one_thread().is_ok() {
        return share(&fds).map(|()| fds);
    }
    // SAFETY: between fork and execve the closure makes system calls alone, and touches no memory but the list of fds. It
    // neither allocates nor takes a lock: another thread may have held one at the fork.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            share(&fds)
        })
    };
    Ok(Vec::new())
}

/// Takes over an fd that our parent process handed down by number.
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

/// Whether the program that executed this one has left it the descriptor `number`: what was opened since is close-on-exec.
pub fn is_handed_down(number: RawFd) -> bool {
    // SAFETY: F_GETFD only asks whether the number is open, and for its flags.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// Sets the flags of an fd that its owner keeps open.
pub fn set_fd_flags(number: RawFd, flags: rustix::io::FdFlags) -> io::Result<()> {
    // SAFETY: only flags are set, and a number that is not open is EBADF.
    let rc = unsafe { libc::fcntl(number, libc::F_SETFD, flags.bits()) };
    check(c_long::from(rc)).map(drop)
}

/// Locks the byte at `offset` of a file for this open file description, until its last fd is closed
/// (F_OFD_SETLK). `false` when another description has the lock.
pub fn lock_byte(file: BorrowedFd<'_>, offset: u32) -> io::Result<bool> {
    // SAFETY: flock is plain data, for which all zeroes is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = offset.into();
    lock.l_len = 1;
    // SAFETY: the borrow keeps the fd open, and `lock` outlives the call.
    let rc = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, std::ptr::from_ref(&lock)) };
    match check(c_long::from(rc)) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Registers something that owns an fd with the event loop.
pub fn register_fd<T: AsRawFd + Into<OwnedFd>>(owner: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: `Into<OwnedFd>` says that `owner` has the one fd that it names, and nothing in this
    // crate swaps this fd for another.
    unsafe { AsyncFd::register(owner) }.map_err(io::Error::from)
}

/// Like [`register_fd`], for one kind of readiness: no other kind wakes the loop.
pub fn register_fd_for<T: AsRawFd + Into<OwnedFd>>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
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

/// The highest number that [`close_all_but`] has kept: what was opened since has the lowest free numbers.
static KEPT: AtomicI32 = AtomicI32::new(0);

/// How many fds a child opens at most between [`close_all_but`] and its execve, and many more.
const OPENED: RawFd = 1024;

/// Marks every fd from 3 on close-on-exec, in a child that has called [`close_all_but`].
///
/// Before Linux 5.11 the fds are marked one by one. Their numbers are not listed in `/proc`: the child may have none.
pub fn close_on_exec_from_3() -> io::Result<()> {
    match mark_close_on_exec(3, u32::MAX) {
        Err(errno) if is_absent(errno) || errno == Errno::INVAL => {}
        outcome => return outcome.map_err(io::Error::from),
    }
    for fd in 3..KEPT.load(Ordering::Relaxed).saturating_add(OPENED) {
        // SAFETY: only a flag is set, and a number that is not open is EBADF.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

/// Closes every fd from 3 on but `keep`, in a process that owns none of the rest.
///
/// For cloned children, whose copies of the shim's fds keep pipes open that the shim believes
/// closed; and for the first step of a program, before it owns any fds.
pub fn close_all_but(keep: &mut [RawFd]) {
    keep.sort_unstable();
    KEPT.store(keep.last().copied().unwrap_or(0), Ordering::Relaxed);
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

/// Closes an fd that a child holds by number and no longer uses.
pub fn close_fd(fd: RawFd) {
    // SAFETY: as for `close_all_but`.
    unsafe { libc::close(fd) };
}

/// Closes fds that a child holds by number and no longer uses, those with consecutive numbers at once.
pub fn close_fds(fds: &[RawFd]) {
    for run in fds.chunk_by(|fd, next| fd.checked_add(1) == Some(*next)) {
        if let (Some(first), Some(last)) = (run.first(), run.last()) {
            // SAFETY: as for `close_all_but`.
            unsafe { libc::syscall(libc::SYS_close_range, *first, *last, 0) };
        }
    }
}

/// Closes every fd, in a child that no longer uses any.
pub fn close_all() {
    // SAFETY: the caller is a child that ends by `exit_now`, and uses no fd again.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
}
