//! The terminal that bowline itself runs in: whether it is one, its size, and raw mode while a task has it.

use std::io::{IsTerminal as _, Stdin, stderr, stdin, stdout};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Mutex;

use bowline_executor::internal::ArrivedSignal;
use bowline_model::{Doing, Error, Kind, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use signal_hook::consts::SIGHUP;

use bowline_protocol::wire::proto::bowline::WindowSize;

/// The terminal's settings before raw mode, while raw mode is on.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The terminal's size; 24 by 80 if it is unknown.
pub fn size() -> WindowSize {
    let known = [stdout().as_fd().try_clone_to_owned(), stdin().as_fd().try_clone_to_owned()].into_iter().flatten();
    let size = known.filter_map(|fd| tcgetwinsize(fd).ok()).find(|size| size.ws_row > 0 && size.ws_col > 0);
    let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row, size.ws_col));
    WindowSize { rows: rows.into(), columns: columns.into(), ..WindowSize::default() }
}

/// Whether stdin is a terminal.
pub fn is_stdin() -> bool {
    stdin().is_terminal()
}

/// The terminal of our session, which our streams need not be at.
pub struct OfSession(Option<OwnedFd>);

impl OfSession {
    /// Opens it, if there is one.
    pub fn open() -> OfSession {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        OfSession(rustix::fs::open("/dev/tty", flags, Mode::empty()).ok())
    }

    /// Whether `signal` is from the loss of our terminal, and not sent by somebody. A shell that has lost it sends SIGHUP
    /// too.
    pub fn is_lost(&self, signal: ArrivedSignal) -> bool {
        let is_hung_up = |read: rustix::io::Result<Termios>| read.is_err_and(|error| error == Errno::IO);
        let streams = || [tcgetattr(stdin()), tcgetattr(stdout()), tcgetattr(stderr())];
        let own = || self.0.as_ref().map(tcgetattr);
        signal.number == SIGHUP && (signal.by_kernel || own().into_iter().chain(streams()).any(is_hung_up))
    }
}

/// Returns an error unless stdin and stdout are terminals.
///
/// # Errors
/// `Usage`, naming the stream that is no terminal.
pub fn require() -> Result<()> {
    let none = match (stdin().is_terminal(), stdout().is_terminal()) {
        (true, true) => return Ok(()),
        (false, _) => "stdin",
        (true, false) => "stdout",
    };
    Err(Error::new(Kind::Usage, format!("-t needs a terminal, and {none} is none"))
        .hint("leave -t out to pass plain bytes; script(1) makes a terminal where there is none"))
}

/// Raw mode: the terminal passes on every key unchanged, until this value is dropped.
#[derive(Debug)]
pub struct RawMode(Stdin);

impl RawMode {
    /// Makes the terminal at stdin raw. A panic also restores it.
    pub fn enter() -> Result<RawMode> {
        let raw = RawMode(stdin());
        let before = tcgetattr(&raw.0).doing(Kind::Internal, || "cannot read the terminal's settings")?;
        *lock() = Some(before);
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            hook(panic);
        }));
        raw.apply()?;
        Ok(raw)
    }

    /// Makes the terminal raw again: somebody may have changed it while we were stopped.
    pub fn apply(&self) -> Result<()> {
        let Some(mut wanted) = lock().clone() else { return Ok(()) };
        wanted.make_raw();
        tcsetattr(&self.0, OptionalActions::Now, &wanted).doing(Kind::Internal, || "cannot make the terminal raw")
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    if let Some(before) = lock().take() {
        // The terminal may be gone; then there is nothing to restore.
        let _ = tcsetattr(stdin(), OptionalActions::Drain, &before);
    }
}

fn lock() -> std::sync::MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
