//! What is wrong with a description: which field, why, and where it stands.

use std::fmt;

/// What in a description is wrong.
///
/// Prints as `memory.limit: "64Q" is not a size; … (line 3, column 9)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    /// The field as a dotted path, such as `memory.limit` or `mounts[0].source`.
    /// Empty where a value stands alone (a flag's argument) or the text has no
    /// fields yet (a syntax error).
    pub field: String,
    /// What is wrong with it, and what would be right.
    pub reason: String,
    /// The line of the text, from 1, where there is a text.
    pub line: Option<usize>,
    /// The column in that line, from 1, in characters.
    pub column: Option<usize>,
}

impl Invalid {
    /// `field` is wrong because of `reason`.
    pub fn new(field: impl Into<String>, reason: impl Into<String>) -> Invalid {
        Invalid { field: field.into(), reason: reason.into(), line: None, column: None }
    }

    /// A value that knows nothing of the field it is meant for.
    pub(crate) fn value(reason: impl Into<String>) -> Invalid {
        Invalid::new("", reason)
    }

    /// The error, reported for `field`.
    pub fn in_field(mut self, field: impl Into<String>) -> Invalid {
        self.field = field.into();
        self
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.reason)?;
        match (self.line, self.column) {
            (Some(line), Some(column)) => write!(f, " (line {line}, column {column})"),
            (Some(line), None) => write!(f, " (line {line})"),
            (None, _) => Ok(()),
        }
    }
}

impl std::error::Error for Invalid {}
