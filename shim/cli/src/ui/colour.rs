//! The few colours of bowline's output.
//!
//! Coloured text is printed through `anstream`, which removes the codes where they are not wanted: no terminal,
//! `NO_COLOR`, `TERM=dumb`, `--color never`.

use anstyle::{AnsiColor, Style};
use bowline_model::status::Shown;

/// Style of `bowline:` before an error.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
/// Style of `hint:` before the likely fix.
pub const HINT: Style = AnsiColor::Cyan.on_default();

/// Style of what needs attention.
pub const BAD: Style = AnsiColor::Red.on_default();

/// Sets the colour choice for the whole process, before anything is printed.
pub fn choose(when: clap::ColorChoice) {
    match when {
        clap::ColorChoice::Auto => anstream::ColorChoice::Auto,
        clap::ColorChoice::Always => anstream::ColorChoice::Always,
        clap::ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
}

/// The style of the word for a task's state.
pub fn of_status(status: Shown, exit_code: Option<i32>) -> Style {
    match status {
        Shown::Running => AnsiColor::Green.on_default(),
        Shown::Paused | Shown::Stopping => AnsiColor::Yellow.on_default(),
        Shown::Dead | Shown::Damaged => BAD,
        Shown::Exited if exit_code != Some(0) => BAD,
        Shown::Created | Shown::NotAnswering | Shown::Exited => Style::new(),
    }
}
