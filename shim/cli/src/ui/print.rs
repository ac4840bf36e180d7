//! Prints results to stdout, and errors with their hints to stderr.

use std::io::{ErrorKind, Write as _};

use bowline_executor::{Doing as _, Kind, Result};

use crate::ui::{colour, reader};

/// Prints an error, and the likely fix.
pub fn complain(message: &str, hint: Option<&str>) {
    let mut stderr = anstream::stderr().lock();
    let (error, hinted) = (colour::ERROR, colour::HINT);
    // Ignore errors: there is nowhere to report them.
    let _ = writeln!(stderr, "{error}bowline:{error:#} {message}");
    if let Some(hint) = hint {
        let _ = writeln!(stderr, "{hinted}hint:{hinted:#} {hint}");
    }
}

/// Prints a result. A reader that is gone is no error.
pub fn say(text: &str) -> Result<()> {
    reader::print(format!("{text}\n").as_bytes())
}

/// Prints lines for people, which may contain colours.
pub fn show(lines: &[String]) -> Result<()> {
    let mut stdout = anstream::stdout().lock();
    match lines.iter().try_for_each(|line| writeln!(stdout, "{line}")) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        shown => shown.doing(Kind::Internal, || "cannot write to stdout"),
    }
}
