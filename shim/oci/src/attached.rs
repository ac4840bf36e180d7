//! A process in the foreground: its terminal relayed, signals passed on, its code returned.
//!
//! ```text
//!   stdin ─► terminal ─► stdout      signal ─► process      pidfd ─► code
//! ```
//!
//! Without a terminal the process has the caller's own streams, and nothing is copied.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use bowline_executor::internal::{ArrivedSignal, Begun, report_signal};
use bowline_executor::{Doing, Kind, Result, WindowSize};
use bowline_sys as sys;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};

/// Signals that are not passed on: they tell of this process's own children, terminal or faults.
const OWN: [i32; 9] = [
    libc::SIGCHLD,
    libc::SIGPIPE,
    libc::SIGURG,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
];

/// The signals that arrive from now on.
pub struct Signals(UnixDatagram);

impl Signals {
    /// Keeps what ends this process by default for [`follow`].
    ///
    /// # Errors
    /// `Internal` where signals cannot be received.
    pub fn begin() -> Result<Signals> {
        let what = || "cannot receive signals";
        let (ours, theirs) = UnixDatagram::pair().doing(Kind::Internal, what)?;
        ours.set_nonblocking(true).doing(Kind::Internal, what)?;
        let theirs = Arc::new(OwnedFd::from(theirs));
        let is_fixed = |signal: &i32| [libc::SIGKILL, libc::SIGSTOP, 32, 33].contains(signal) || OWN.contains(signal);
        for signal in (1..=64).filter(|signal| !is_fixed(signal)) {
            report_signal(signal, theirs.clone()).doing(Kind::Internal, what)?;
        }
        Ok(Signals(ours))
    }

    fn next(&self) -> Option<i32> {
        let mut bytes = [0; ArrivedSignal::LENGTH];
        self.0.recv(&mut bytes).ok().filter(|length| *length == bytes.len())?;
        Some(ArrivedSignal::of(bytes).number)
    }
}

/// The caller's terminal, by the first of its streams that is one.
fn terminal() -> Option<OwnedFd> {
    let streams = [
        std::io::stdin().as_fd().try_clone_to_owned(),
        std::io::stdout().as_fd().try_clone_to_owned(),
        std::io::stderr().as_fd().try_clone_to_owned(),
    ];
    streams.into_iter().flatten().find(|stream| rustix::termios::isatty(stream))
}

/// The size of the caller's terminal.
pub fn size() -> WindowSize {
    let size = terminal().and_then(|terminal| tcgetwinsize(terminal).ok());
    size.map(|size| WindowSize { rows: size.ws_row, columns: size.ws_col }).unwrap_or_default()
}

/// The caller's terminal in raw mode, until this is dropped.
struct Raw(Option<(OwnedFd, Termios)>);

impl Raw {
    fn enter() -> Raw {
        let before = terminal().and_then(|terminal| tcgetattr(&terminal).ok().map(|before| (terminal, before)));
        if let Some((terminal, before)) = &before {
            let mut raw = before.clone();
            raw.make_raw();
            let _ = tcsetattr(terminal, OptionalActions::Now, &raw);
        }
        Raw(before)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some((terminal, before)) = &self.0 {
            let _ = tcsetattr(terminal, OptionalActions::Drain, before);
        }
    }
}

/// Follows a child of this process to its end; returns its code as a shell does: 128 and the signal for one that a signal
/// has ended.
///
/// # Errors
/// `Internal` where it cannot be waited for.
pub fn follow(begun: Begun, signals: &Signals) -> Result<u8> {
    let Begun { live, terminal } = begun;
    let terminal = terminal.map(File::from);
    let _raw = terminal.as_ref().map(|_| Raw::enter());
    let resize = || {
        let size = self::terminal().and_then(|callers| tcgetwinsize(callers).ok());
        terminal.as_ref().zip(size).map(|(terminal, size)| tcsetwinsize(terminal, size));
    };
    let mut reads = terminal.is_some();
    let mut shows = terminal.is_some();
    loop {
        let stdin = std::io::stdin();
        let mut watched = vec![
            PollFd::from_borrowed_fd(live.pidfd.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(signals.0.as_fd(), PollFlags::IN),
        ];
        if let Some(terminal) = terminal.as_ref().filter(|_| shows) {
            watched.push(PollFd::from_borrowed_fd(terminal.as_fd(), PollFlags::IN));
        }
        if reads {
            watched.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
        }
        match poll(&mut watched, None) {
            Err(rustix::io::Errno::INTR) => continue,
            polled => polled.doing(Kind::Internal, || "cannot wait for a process")?,
        };
        let came: Vec<bool> = watched.iter().map(|one| !one.revents().is_empty()).collect();
        while let Some(signal) = signals.next() {
            match signal {
                libc::SIGWINCH if terminal.is_some() => resize(),
                // ESRCH: it has just ended.
                signal => drop(sys::pidfd_send_signal(live.pidfd.as_fd(), signal)),
            }
        }
        if let Some(terminal) = &terminal {
            if shows && came[2] {
                shows = copy(terminal, std::io::stdout().as_fd());
            }
            if reads && came[came.len() - 1] {
                reads = copy(
                    &File::from(stdin.as_fd().try_clone_to_owned().doing(Kind::Internal, || "stdin")?),
                    terminal.as_fd(),
                );
            }
        }
        if came[0] {
            break;
        }
    }
    if let Some(terminal) = terminal.filter(|_| shows) {
        rest(&terminal);
    }
    let pid = Pid::from_raw(live.pid);
    let ended = rustix::io::retry_on_intr(|| waitpid(pid, WaitOptions::empty()));
    let (_, status) = ended.doing(Kind::Internal, || "cannot wait for a process")?.unwrap_or_else(|| unreachable!());
    let code = status.exit_status().or(status.terminating_signal().map(|signal| 128 + signal)).unwrap_or(255);
    Ok(u8::try_from(code).unwrap_or(u8::MAX))
}

/// Copies what is there; returns whether more may come.
fn copy(mut from: &File, to: BorrowedFd<'_>) -> bool {
    let mut buffer = [0; 16 << 10];
    let length = match from.read(&mut buffer) {
        Ok(length @ 1..) => length,
        Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => return true,
        // EIO: nobody has the other end of the terminal.
        Ok(0) | Err(_) => return false,
    };
    let Ok(to) = to.try_clone_to_owned() else { return false };
    File::from(to).write_all(&buffer[..length]).is_ok()
}

/// Copies what a process has left in its terminal.
fn rest(terminal: &File) {
    let is_there = |terminal: &File| {
        let mut watched = [PollFd::new(terminal, PollFlags::IN)];
        let now = rustix::event::Timespec::default();
        poll(&mut watched, Some(&now)).is_ok_and(|ready| ready > 0) && watched[0].revents().contains(PollFlags::IN)
    };
    while is_there(terminal) && copy(terminal, std::io::stdout().as_fd()) {}
}
