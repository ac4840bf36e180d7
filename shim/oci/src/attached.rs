//! A process in the foreground: its terminal relayed, signals passed on, its code returned.
//!
//! ```text
//!   stdin ─► terminal ─► stdout      signal ─► process      pidfd ─► code
//! ```
//!
//! Without a terminal the process has the caller's own streams, and nothing is copied.

use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use bowline_executor::WindowSize;
use bowline_executor::internal::{ArrivedSignal, Begun, report_signal};
use bowline_model::{Doing, Kind, Result};
use bowline_sys as sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};

use crate::notify::Notify;

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
fn callers_terminal() -> Option<OwnedFd> {
    let streams = [
        std::io::stdin().as_fd().try_clone_to_owned(),
        std::io::stdout().as_fd().try_clone_to_owned(),
        std::io::stderr().as_fd().try_clone_to_owned(),
    ];
    streams.into_iter().flatten().find(|stream| rustix::termios::isatty(stream))
}

/// The size of the caller's terminal.
pub fn size() -> WindowSize {
    let size = callers_terminal().and_then(|terminal| tcgetwinsize(terminal).ok());
    size.map(|size| WindowSize { rows: size.ws_row, columns: size.ws_col }).unwrap_or_default()
}

/// The caller's terminal in raw mode, until this is dropped.
struct Raw(Option<(OwnedFd, Termios)>);

impl Raw {
    fn enter() -> Raw {
        let before = callers_terminal().and_then(|terminal| tcgetattr(&terminal).ok().map(|before| (terminal, before)));
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

/// Follows a child of this process to its end, and passes on that it is ready. Returns its code as a shell does: 128 and
/// the signal for one that a signal has ended.
///
/// # Errors
/// `Internal` where it cannot be waited for.
pub fn follow(begun: Begun, signals: &Signals, mut notify: Option<Notify>) -> Result<u8> {
    let Begun { live, terminal } = begun;
    let mut relay = terminal.map(Relay::begin).transpose()?;
    let mut has_ended = false;
    while !has_ended {
        let mut watched = vec![
            PollFd::from_borrowed_fd(live.pidfd.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(signals.0.as_fd(), PollFlags::IN),
        ];
        watched.extend(notify.iter().map(Notify::watched).chain(relay.iter().flat_map(Relay::watched)));
        match poll(&mut watched, None) {
            Err(Errno::INTR) => continue,
            polled => polled.doing(Kind::Internal, || "cannot wait for a process")?,
        };
        has_ended = !watched[0].revents().is_empty();
        drop(watched);
        // This process is the manager's main process.
        notify.take_if(|notify| notify.pass_ready(None));
        while let Some(signal) = signals.next() {
            match (signal, &relay) {
                (libc::SIGWINCH, Some(relay)) => relay.resize(),
                // ESRCH: it has just ended.
                (signal, _) => drop(sys::pidfd_send_signal(live.pidfd.as_fd(), signal)),
            }
        }
        relay.iter_mut().for_each(Relay::go_on);
    }
    if let Some(relay) = relay {
        relay.finish();
    }
    let ended = rustix::io::retry_on_intr(|| waitpid(Pid::from_raw(live.pid), WaitOptions::empty()));
    let status = ended.doing(Kind::Internal, || "cannot wait for a process")?.map(|(_, status)| status);
    let code =
        status.and_then(|status| status.exit_status().or(status.terminating_signal().map(|signal| 128 + signal)));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}

/// The most bytes that are written at once: a pipe that is ready takes as many without a wait (PIPE_BUF, pipe(7)).
const CHUNK: usize = 4096;

/// A terminal, copied from and to the caller's streams. Neither way waits for the other: a reader that is slow would hold up
/// signals, and what a process echoes its own input.
struct Relay {
    terminal: File,
    /// Read from stdin, and not yet written to the terminal; `None` once stdin has ended.
    input: Option<Vec<u8>>,
    /// Read from the terminal, and not yet written to stdout; `None` once either has ended.
    output: Option<Vec<u8>>,
    _raw: Raw,
}

impl Relay {
    fn begin(terminal: OwnedFd) -> Result<Relay> {
        rustix::io::ioctl_fionbio(&terminal, true).doing(Kind::Internal, || "cannot watch a terminal")?;
        let (input, output) = (Some(Vec::new()), Some(Vec::new()));
        Ok(Relay { terminal: File::from(terminal), input, output, _raw: Raw::enter() })
    }

    fn resize(&self) {
        let size = callers_terminal().and_then(|callers| tcgetwinsize(callers).ok());
        let _ = size.map(|size| tcsetwinsize(&self.terminal, size));
    }

    /// What to wait for: the other end of what is pending, or what comes next.
    fn watched(&self) -> Vec<PollFd<'_>> {
        let mut of_terminal = PollFlags::empty();
        let mut all = Vec::new();
        match &self.input {
            Some(pending) if pending.is_empty() => {
                all.push(PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN))
            }
            Some(_) => of_terminal |= PollFlags::OUT,
            None => {}
        }
        match &self.output {
            Some(pending) if pending.is_empty() => of_terminal |= PollFlags::IN,
            Some(_) => all.push(PollFd::from_borrowed_fd(rustix::stdio::stdout(), PollFlags::OUT)),
            None => {}
        }
        if !of_terminal.is_empty() {
            all.push(PollFd::from_borrowed_fd(self.terminal.as_fd(), of_terminal));
        }
        all
    }

    /// Copies what can be copied without a wait.
    fn go_on(&mut self) {
        if self.input.as_ref().is_some_and(Vec::is_empty) && is_ready(rustix::stdio::stdin(), PollFlags::IN) {
            self.input = read(rustix::stdio::stdin());
        }
        if self.input.as_mut().is_some_and(|pending| !write(self.terminal.as_fd(), pending)) {
            self.input = None;
        }
        if self.output.as_ref().is_some_and(Vec::is_empty) && is_ready(self.terminal.as_fd(), PollFlags::IN) {
            self.output = read(self.terminal.as_fd());
        }
        let may_write = self.output.as_ref().is_some_and(|pending| !pending.is_empty());
        if may_write
            && is_ready(rustix::stdio::stdout(), PollFlags::OUT)
            && self.output.as_mut().is_some_and(|pending| !write(rustix::stdio::stdout(), pending))
        {
            self.output = None;
        }
    }

    /// Copies what a process that has ended has left in its terminal.
    fn finish(mut self) {
        while let Some(pending) = &mut self.output {
            if !pending.is_empty() {
                // Now it may wait.
                let mut watched = [PollFd::from_borrowed_fd(rustix::stdio::stdout(), PollFlags::OUT)];
                let _ = poll(&mut watched, None);
                if !write(rustix::stdio::stdout(), pending) {
                    return;
                }
            } else if is_ready(self.terminal.as_fd(), PollFlags::IN) {
                self.output = read(self.terminal.as_fd());
            } else {
                return;
            }
        }
    }
}

fn is_ready(fd: BorrowedFd<'_>, wanted: PollFlags) -> bool {
    let mut watched = [PollFd::from_borrowed_fd(fd, wanted)];
    poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Reads what is there; `None` at the end: a terminal answers EIO once nobody has its other end.
fn read(fd: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; CHUNK];
    match rustix::io::read(fd, &mut bytes) {
        Ok(0) => None,
        Ok(length) => {
            bytes.truncate(length);
            Some(bytes)
        }
        Err(Errno::INTR | Errno::AGAIN) => Some(Vec::new()),
        Err(_) => None,
    }
}

/// Writes what is pending, as far as it goes; returns whether more may be written.
fn write(fd: BorrowedFd<'_>, pending: &mut Vec<u8>) -> bool {
    if pending.is_empty() {
        return true;
    }
    match rustix::io::write(fd, pending) {
        Ok(length) => {
            pending.drain(..length);
            true
        }
        Err(errno) => matches!(errno, Errno::INTR | Errno::AGAIN),
    }
}
