//! The terminal that we stand on: how wide it is, and a live view on it that
//! leaves it as it was, however it ends.
//!
//! ```text
//!   open ─► show ─► next: the time has come, another size, the end ─► drop
//! ```
//!
//! The view is the terminal's other screen, so that what was written before
//! stays. A thread waits for signals and one for keys, until the process ends.
//! Must not: know what is shown.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::AsFd;

use bowline_executor::{Doing, Kind, Result};
use rustix::termios::tcgetwinsize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::ui::terminal::{self, RawMode};

/// The other screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
/// The cursor, and the screen as it was.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// What a raw terminal makes of Ctrl-C.
const CTRL_C: u8 = 3;

/// How many columns there are for what goes to stdout: what `COLUMNS` says,
/// else what the terminal has; nothing where no terminal sets a limit.
pub fn width() -> Option<usize> {
    let asked = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    asked.filter(|columns| *columns > 0).or_else(|| width_of(io::stdout()))
}

/// How many columns the terminal behind `fd` has.
pub fn width_of(fd: impl AsFd) -> Option<usize> {
    size_of(fd).map(|(columns, _)| columns)
}

fn size_of(fd: impl AsFd) -> Option<(usize, usize)> {
    let size = tcgetwinsize(fd).ok()?;
    // A terminal that was never told its size says 0.
    (size.ws_col > 0).then(|| (size.ws_col.into(), size.ws_row.max(1).into()))
}

/// Whether a live view can be shown: on a terminal that can move its cursor.
pub fn is_live() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Why a live view is to be drawn anew, or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The time has come.
    Due,
    /// The terminal has another size.
    Resized,
    /// Somebody wants it to end: this is the exit code.
    End(u8),
}

/// What a person or the system does to a live view.
#[derive(Debug, Clone, Copy)]
enum Event {
    Signal(i32),
    Key(u8),
    /// There will be no more keys: the terminal has gone.
    NoMoreKeys,
}

/// A live view. Only one at a time.
pub struct Live {
    events: mpsc::UnboundedReceiver<Event>,
    raw: Option<RawMode>,
}

impl Live {
    /// Takes the terminal over.
    pub fn open() -> Result<Live> {
        let what = || "cannot take over the terminal";
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH]).doing(Kind::Internal, what)?;
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

    /// Shows `lines` in place of what is shown, as many as there is room for.
    pub fn show(&self, lines: &[String]) -> Result<()> {
        let (_, rows) = size_of(io::stdout()).unwrap_or((80, 24));
        let plain = anstream::AutoStream::choice(&io::stdout()) == anstream::ColorChoice::Never;
        let mut frame = String::from("\x1b[H");
        for (row, line) in lines.iter().take(rows).enumerate() {
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
        // What is left of a longer frame.
        frame += "\x1b[J";
        write(&frame).doing(Kind::Internal, || "cannot write to the terminal")
    }

    /// What comes first: `due`, another size, or the end.
    pub async fn next(&mut self, due: Instant) -> Next {
        loop {
            tokio::select! {
                Some(event) = self.events.recv() => match event {
                    Event::Signal(SIGWINCH) => return Next::Resized,
                    Event::Signal(SIGINT) | Event::Key(b'q' | b'Q' | CTRL_C) | Event::NoMoreKeys => return Next::End(0),
                    Event::Signal(other) => return Next::End(u8::try_from(128 + other).unwrap_or(u8::MAX)),
                    Event::Key(_) => {}
                },
                () = tokio::time::sleep_until(due) => return Next::Due,
            }
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        leave();
    }
}

/// A panic aborts: nothing is dropped.
fn leave_on_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        leave();
        usual(panic);
    }));
}

/// Nobody is left to tell if the terminal has gone.
fn leave() {
    let _ = write(LEAVE);
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
