//! The terminal that bowline itself runs in: is it one, how large, and raw
//! while a task has it.

use std::io::{IsTerminal as _, Stdin, stdin, stdout};
use std::os::fd::AsFd as _;
use std::sync::Mutex;

use bowline_executor::{Doing, Error, Kind, Result};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use bowline_protocol::wire::proto::bowline::WindowSize;

/// How the terminal was before it was made raw, for as long as it is.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// How large it is; 24 by 80 where nobody knows.
pub fn size() -> WindowSize {
    let known = [stdout().as_fd().try_clone_to_owned(), stdin().as_fd().try_clone_to_owned()].into_iter().flatten();
    let size = known.filter_map(|fd| tcgetwinsize(fd).ok()).find(|size| size.ws_row > 0 && size.ws_col > 0);
    let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row, size.ws_col));
    WindowSize { rows: rows.into(), columns: columns.into(), ..WindowSize::default() }
}

/// Whether keys come from it.
pub fn is_stdin() -> bool {
    stdin().is_terminal()
}

/// Refuses what needs a terminal where there is none.
///
/// # Errors
/// `Usage`, naming the stream that is none.
pub fn require() -> Result<()> {
    let none = match (stdin().is_terminal(), stdout().is_terminal()) {
        (true, true) => return Ok(()),
        (false, _) => "stdin",
        (true, false) => "stdout",
    };
    Err(Error::new(Kind::Usage, format!("-t needs a terminal, and {none} is none"))
        .hint("leave -t out to pass plain bytes; script(1) makes a terminal where there is none"))
}

/// A terminal that passes every key on as it is, until this is dropped.
#[derive(Debug)]
pub struct RawMode(Stdin);

impl RawMode {
    /// Makes the terminal at stdin raw. Restored also by a panic.
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

    /// Makes it raw again: somebody may have changed it while we were stopped.
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
        // It may have gone: then there is nothing to restore.
        let _ = tcsetattr(stdin(), OptionalActions::Drain, &before);
    }
}

fn lock() -> std::sync::MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
