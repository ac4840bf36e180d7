//! The terminal that we stand on: how wide it is.

use std::io;
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// How many columns there are for what goes to stdout: what `COLUMNS` says,
/// else what the terminal has; nothing where no terminal sets a limit.
pub fn width() -> Option<usize> {
    let asked = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    asked.filter(|columns| *columns > 0).or_else(|| width_of(io::stdout()))
}

/// How many columns the terminal behind `fd` has.
pub fn width_of(fd: impl AsFd) -> Option<usize> {
    let columns = tcgetwinsize(fd).ok()?.ws_col;
    // A terminal that was never told its size says 0.
    (columns > 0).then(|| columns.into())
}
