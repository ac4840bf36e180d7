//! The width of our terminal, and a live view that always restores the terminal when it ends.
//!
//! ```text
//!   open ─► show ─► next: due, resized or ended ─► drop
//! ```
//!
//! The view uses the terminal's alternate screen, so earlier output stays. One thread waits for signals and one for
//! keys, until the process ends. Must not: know what is shown.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::AsFd;

use bowline_executor::internal::{is_signal_ignored, with_signals_blocked};
use bowline_model::{Doing, Kind, Result};
use rustix::termios::tcgetwinsize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::ui::table::fit;
use crate::ui::terminal::{self, RawMode};

/// Switches to the alternate screen, hides the cursor and clears the screen.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
/// Shows the cursor and switches back to the normal screen.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The byte that Ctrl-C sends in raw mode.
const CTRL_C: u8 = 3;

/// The number of columns for stdout: `COLUMNS` if set, else the terminal's width, or `None` if stdout is no terminal.
pub fn width() -> Option<usize> {
    let asked = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    asked.filter(|columns| *columns > 0).or_else(|| width_of(io::stdout()))
}

/// The number of columns of the terminal behind `fd`.
pub fn width_of(fd: impl AsFd) -> Option<usize> {
    size_of(fd).map(|(columns, _)| columns)
}

fn size_of(fd: impl AsFd) -> Option<(usize, usize)> {
    let size = tcgetwinsize(fd).ok()?;
    // A terminal whose size was never set reports 0.
    (size.ws_col > 0).then(|| (size.ws_col.into(), size.ws_row.max(1).into()))
}

/// Whether stdout can show a live view: it is a terminal that can move its cursor.
pub fn is_live() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// What a live view must do next: redraw, or end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The given time has come.
    Due,
    Resized,
    /// A key that the view itself knows nothing of.
    Key(u8),
    /// A key or a signal ends the view; holds the exit code.
    End(u8),
}

/// A signal or a key press that a live view receives.
#[derive(Debug, Clone, Copy)]
enum Event {
    Signal(i32),
    Key(u8),
    /// No more keys can come: the terminal is gone.
    NoMoreKeys,
}

/// A live view of the terminal. Only one may exist at a time.
pub struct Live {
    events: mpsc::UnboundedReceiver<Event>,
    raw: Option<RawMode>,
}

impl Live {
    /// Takes over the terminal: watches for signals and keys, and switches to the alternate screen.
    pub fn open() -> Result<Live> {
        let what = || "cannot take over the terminal";
        // Their handler is there before it knows what to do: a signal that comes in between would be lost.
        let heeded =
            [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH].into_iter().filter(|signal| !is_signal_ignored(*signal));
        let signals = with_signals_blocked(|| Signals::new(heeded));
        let mut signals = signals.doing(Kind::Internal, what)?;
        let (send, events) = mpsc::unbounded_channel();
        let keys = send.clone();
        std::thread::spawn(move || signals.forever().all(|signal| send.send(Event::Signal(signal)).is_ok()));
        let raw = terminal::is_stdin().then(RawMode::enter).transpose()?;
        leave_on_panic();
        let live = Live { events, raw };
        if live.raw.is_some() {
            std::thread::spawn(move || {
                let pressed = io::stdin().lock().bytes().map_while(|key| key.ok());
                for event in pressed.map(Event::Key).chain([Event::NoMoreKeys]) {
                    let _ = keys.send(event);
                }
            });
        }
        write(ENTER).doing(Kind::Internal, what)?;
        Ok(live)
    }

    /// Replaces the screen content with a table, cut to the height of the screen.
    pub fn show(&self, lines: Vec<String>) -> Result<()> {
        let (_, rows) = size_of(io::stdout()).unwrap_or((80, 24));
        let lines = fit(lines, rows);
        let plain = anstream::AutoStream::choice(&io::stdout()) == anstream::ColorChoice::Never;
        let mut frame = String::from("\x1b[H");
        for (row, line) in lines.iter().enumerate() {
            if row > 0 {
                frame += "\r\n";
            }
            if plain {
                frame += &anstream::adapter::strip_str(line).to_string();
            } else {
                frame += line;
            }
            frame += "\x1b[K";
        }
        // Clear what remains of a longer frame.
        frame += "\x1b[J";
        write(&frame).doing(Kind::Internal, || "cannot write to the terminal")
    }

    /// Waits for the first of: `due`, a resize, a key, or the end.
    pub async fn next(&mut self, due: Instant) -> Next {
        tokio::select! {
            Some(event) = self.events.recv() => match event {
                Event::Signal(SIGWINCH) => Next::Resized,
                Event::Signal(SIGINT) | Event::Key(b'q' | b'Q' | CTRL_C) | Event::NoMoreKeys => Next::End(0),
                Event::Signal(other) => Next::End(u8::try_from(128 + other).unwrap_or(u8::MAX)),
                Event::Key(key) => Next::Key(key),
            },
            () = tokio::time::sleep_until(due) => Next::Due,
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        leave();
    }
}

/// Restores the terminal on a panic: a panic aborts, so nothing is dropped.
fn leave_on_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        leave();
        usual(panic);
    }));
}

/// Restores the terminal. Ignores errors: the terminal may be gone.
fn leave() {
    let _ = write(LEAVE);
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
