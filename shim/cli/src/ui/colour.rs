//! The few colours of bowline's output.
//!
//! Coloured text is printed through `anstream`, which removes the codes where they are not wanted: no terminal,
//! `NO_COLOR`, `TERM=dumb`, `--color never`.

use anstyle::{AnsiColor, Style};

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
pub fn of_status(status: &str, exit_code: Option<i32>) -> Style {
    match (status, exit_code) {
        ("running", _) => AnsiColor::Green.on_default(),
        ("paused" | "stopping", _) => AnsiColor::Yellow.on_default(),
        ("dead" | "damaged", _) => BAD,
        ("exited", code) if code != Some(0) => BAD,
        _ => Style::new(),
    }
}
