//! What can go wrong, in one form that every layer above understands.
//!
//! An [`Error`] says what failed, on what, and why. Its [`Kind`] is what a caller can act upon, and
//! the only thing that wire and exit codes depend on. Must not: decide by matching text.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::io;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// What the caller can do about an error. Wire and exit codes depend on this alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// There is no such task, exec or file.
    NotFound,
    /// There is a task, sandbox or unit of that name already.
    AlreadyExists,
    /// The task is not in a state that allows this.
    WrongState,
    /// The task description is wrong, or does not fit this host.
    BadSpec,
    /// The command does not exist in the task's root filesystem.
    CommandNotFound,
    /// The command exists but cannot be executed.
    NotExecutable,
    /// This host or kernel cannot do what was asked for.
    Unsupported,
    /// All that there may be of something, such as terminals, is in use.
    Exhausted,
    /// A deadline that the caller gave passed.
    Timeout,
    /// The shim or systemd does not answer.
    Unavailable,
    /// The request itself is malformed.
    Usage,
    /// A record on disk cannot be read: its task or sandbox can only be removed.
    Damaged,
    /// Anything else: the host refused, or this is a bug.
    Internal,
}

/// The most bytes of a message, a hint and the name of a field. An image or a file may have names of any length, or very
/// many of them; and whoever reports an error has bounds as well, such as those of a pipe.
const MOST_OF_MESSAGE: usize = 8 << 10;
const MOST_OF_HINT: usize = 1 << 10;
const MOST_OF_FIELD: usize = 256;

/// An error with its kind, its text, and a hint at the fix where one is known.
///
/// The text is lower case, without a full stop, and ends with the cause. A text that is too long lacks its middle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    kind: Kind,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// What the system has answered, in this process alone.
    #[serde(skip)]
    cause: Option<Errno>,
}

/// The result of operations that fail with an [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Creates an error of `kind`; `message` says what failed, on what, and why.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: bounded(message.into(), MOST_OF_MESSAGE), field: None, hint: None, cause: None }
    }

    /// Puts the field that is wrong, such as `memory.limit`, in front of the message, and records it.
    pub fn in_field(self, field: impl Into<String>) -> Error {
        let field = field.into();
        self.within(&field).about(field)
    }

    /// Records the field of a task's or a sandbox's description that is wrong, which the message names already.
    pub fn about(mut self, field: impl Into<String>) -> Error {
        self.field = Some(bounded(field.into(), MOST_OF_FIELD));
        self
    }

    /// Adds a hint: what to do about the error.
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = Some(bounded(hint.into(), MOST_OF_HINT));
        self
    }

    /// Puts the larger step in front of the message: `context: message`.
    pub fn within(mut self, context: impl fmt::Display) -> Error {
        self.message = bounded(format!("{context}: {}", self.message), MOST_OF_MESSAGE);
        self
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What failed, on what, and why.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The field of the description that is wrong, if one is.
    pub fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    /// The hint: what to do about the error, if that is known.
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

/// Joins several errors into one, of the first error's kind, field and hint; no errors are a success.
pub fn together(errors: impl IntoIterator<Item = Error>) -> Result<()> {
    let all = errors.into_iter().reduce(|mut all, next| {
        all.message = bounded(format!("{}; {}", all.message, next.message), MOST_OF_MESSAGE);
        all.hint = all.hint.or(next.hint);
        all
    });
    all.map_or(Ok(()), Err)
}

/// Shortens a text as [`Error`] does its message, for whoever reports something without one.
pub fn bounded_message(text: &str) -> Cow<'_, str> {
    shortened(text, MOST_OF_MESSAGE)
}

/// Shortens a name, a path or a value that a message mentions, so that there is room for the rest.
pub fn bounded_name(text: &str) -> Cow<'_, str> {
    shortened(text, MOST_OF_FIELD)
}

fn bounded(text: String, most: usize) -> String {
    match shortened(&text, most) {
        Cow::Borrowed(_) => text,
        Cow::Owned(short) => short,
    }
}

/// Shortens a text to at most `most` bytes: its beginning says what was done, and its end why that failed.
fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    const GAP: &str = " … ";
    if text.len() <= most {
        return text.into();
    }
    let half = (most - GAP.len()) / 2;
    let before = (0..=half).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    let after = (text.len() - half..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    format!("{}{GAP}{}", &text[..before], &text[after..]).into()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    /// What the system has answered, as a rustix `Errno`, where this process has made the call that failed. The text ends
    /// with it already.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}

impl From<bowline_spec::Invalid> for Error {
    fn from(invalid: bowline_spec::Invalid) -> Error {
        let error = Error::new(Kind::BadSpec, invalid.to_string());
        if invalid.field.is_empty() { error } else { error.about(invalid.field) }
    }
}

/// Turns any failure into an [`Error`] by saying what was being done.
pub trait Doing<T> {
    /// `what` reads as "cannot create folder /run/x"; the cause is appended.
    fn doing<S: fmt::Display>(self, kind: Kind, what: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: fmt::Display + 'static> Doing<T> for std::result::Result<T, E> {
    fn doing<S: fmt::Display>(self, kind: Kind, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|cause| failed(kind, format!("{}: {cause}", what()), &cause))
    }
}

/// Not inlined: there is one `doing` for each type of results and each text.
#[inline(never)]
fn failed(kind: Kind, message: String, cause: &dyn Any) -> Error {
    let mut error = Error::new(kind, message);
    let of_io = || cause.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
    error.cause = cause.downcast_ref::<Errno>().copied().or_else(of_io);
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_errors_are_told_in_one_line() {
        assert_eq!(together([]), Ok(()));
        let errors = [Error::new(Kind::NotFound, "a"), Error::new(Kind::Internal, "b").hint("c")];
        assert_eq!(together(errors), Err(Error::new(Kind::NotFound, "a; b").hint("c")));
    }

    #[test]
    fn a_text_that_is_too_long_keeps_its_beginning_and_the_cause() {
        let long = "\u{fc}\n".repeat(1 << 20);
        let error = Error::new(Kind::BadSpec, format!("cannot use {long}: it is too long")).within("task a");
        let error = error.about(long.clone()).hint(long);
        assert!(error.message().starts_with("task a: cannot use \u{fc}") && error.message().ends_with("too long"));
        let bound = |text: Option<&str>, most| text.is_some_and(|text| (most - 4..=most).contains(&text.len()));
        assert!(bound(Some(error.message()), MOST_OF_MESSAGE));
        assert!(bound(error.hint_text(), MOST_OF_HINT) && bound(error.field(), MOST_OF_FIELD));
        let all =
            Error::new(Kind::Internal, "\u{1}".repeat(1 << 20)).about("\u{1}".repeat(999)).hint("\u{1}".repeat(9999));
        let json = serde_json::to_vec(&all).expect("it has text alone");
        assert!(json.len() < 64 << 10, "an error fits into what a child shares with the shim: {}", json.len());
    }

    #[test]
    fn a_field_is_named_once_and_stays_known() {
        let error = Error::new(Kind::BadSpec, "too small").in_field("memory.limit").within("task a");
        assert_eq!((error.message(), error.field()), ("task a: memory.limit: too small", Some("memory.limit")));
        let invalid = bowline_spec::Invalid::new("pids", "no number");
        assert_eq!(Error::from(invalid), Error::new(Kind::BadSpec, "no number").in_field("pids"));
        assert_eq!(Error::from(bowline_spec::Invalid::new("", "no TOML")), Error::new(Kind::BadSpec, "no TOML"));
    }

    #[test]
    fn a_cause_is_appended_to_what_was_being_done() {
        let failed: std::io::Result<()> = Err(std::io::Error::from_raw_os_error(libc::ENOENT));
        let error = failed.doing(Kind::NotFound, || "cannot read /x").expect_err("it failed");
        assert_eq!(error.kind(), Kind::NotFound);
        assert_eq!(error.to_string(), "cannot read /x: No such file or directory (os error 2)");
        let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<Errno>());
        assert_eq!(cause, Some(&Errno::NOENT));
    }
}
