//! Prints results to stdout, and errors with their hints to stderr.

use std::borrow::Cow;
use std::io::{ErrorKind, Write as _};

use bowline_model::bounded_message;
use bowline_model::{Doing as _, Kind, Result};

use crate::ui::{colour, pages, reader};

/// Prints an error, and the likely fix, in one line each.
pub fn complain(message: &str, hint: Option<&str>) {
    let message = bounded_message(message);
    let message = one_line(&message);
    let mut stderr = anstream::stderr().lock();
    let (error, hinted) = (colour::ERROR, colour::HINT);
    // Ignore errors: there is nowhere to report them.
    let _ = writeln!(stderr, "{error}bowline:{error:#} {message}");
    if let Some(hint) = hint.map(pages::placed) {
        let hint = one_line(&hint);
        let _ = writeln!(stderr, "{hinted}hint:{hinted:#} {hint}");
    }
}

/// Escapes control characters, as names and paths may contain newlines.
fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return text.into();
    }
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    text.chars().map(escaped).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_stays_in_one_line() {
        assert_eq!(one_line("cannot read /a\nb\u{1b}[2J é"), "cannot read /a\\nb\\u{1b}[2J é");
    }
}
