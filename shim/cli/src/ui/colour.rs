//! Colours: few, and only for a person.
//!
//! What is painted goes through `anstream`, which takes the codes out where
//! nobody sees them: not a terminal, `NO_COLOR`, `TERM=dumb`, `--color never`.

use anstyle::{AnsiColor, Style};

/// `bowline:` before an error.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
/// `hint:` before the likely mend.
pub const HINT: Style = AnsiColor::Cyan.on_default();

/// What needs somebody's attention.
pub const BAD: Style = AnsiColor::Red.on_default();

/// Decides for the whole process, before anything is painted.
pub fn choose(when: clap::ColorChoice) {
    match when {
        clap::ColorChoice::Auto => anstream::ColorChoice::Auto,
        clap::ColorChoice::Always => anstream::ColorChoice::Always,
        clap::ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
}

/// How the word for a task's state looks.
pub fn of_status(status: &str, exit_code: Option<i32>) -> Style {
    match (status, exit_code) {
        ("running", _) => AnsiColor::Green.on_default(),
        ("paused" | "stopping", _) => AnsiColor::Yellow.on_default(),
        ("dead" | "damaged", _) => BAD,
        ("exited", code) if code != Some(0) => BAD,
        _ => Style::new(),
    }
}
