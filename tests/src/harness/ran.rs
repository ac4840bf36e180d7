//! A command that has ended: what it said, and what that should have been.

use serde_json::Value;

/// A command that has ended.
#[derive(Debug, Clone)]
pub struct Ran {
    /// The command line, for messages.
    pub command: String,
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to stdout.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr.
    pub stderr: Vec<u8>,
}

impl Ran {
    /// Its stdout as text, without the last newline.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end_matches('\n').to_owned()
    }

    /// Its stderr as text, without the last newline.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).trim_end_matches('\n').to_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("no JSON: {error}\n{self}"))
    }

    /// Whether bowline itself failed, and not what it ran.
    pub fn is_refusal(&self) -> bool {
        matches!(self.code, Some(2 | 124..=127)) && self.err().starts_with("bowline: ")
    }

    #[track_caller]
    pub fn assert_code(&self, code: i32) -> &Ran {
        assert!(self.code == Some(code), "expected the exit code {code}\n{self}");
        self
    }

    /// It exited with 0, and `out` was all that it said.
    #[track_caller]
    pub fn assert_says(&self, out: &str) -> &Ran {
        self.assert_code(0);
        assert!(self.out() == out, "expected {out:?}\n{self}");
        self
    }

    /// It failed with `code`, in bowline's form: nothing on stdout, one line
    /// on stderr, perhaps a hint after it; the line has all of `parts`.
    #[track_caller]
    pub fn assert_refused(&self, code: i32, parts: &[&str]) -> &Ran {
        self.assert_code(code);
        assert!(self.stdout.is_empty(), "an error goes to stderr alone\n{self}");
        let err = self.err();
        let mut lines = err.lines();
        let message = lines.next().unwrap_or_default();
        assert!(message.starts_with("bowline: "), "expected a message of bowline\n{self}");
        assert!(!message.ends_with('.') || message.ends_with("..."), "a message has no full stop\n{self}");
        assert!(lines.next().is_none_or(|l| l.starts_with("hint: ")), "expected one line, then a hint\n{self}");
        assert!(lines.next().is_none(), "expected one line, then a hint\n{self}");
        for part in parts {
            assert!(message.contains(part), "the message should have {part:?}\n{self}");
        }
        self
    }
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let code = self.code.map_or("a signal".to_owned(), |c| c.to_string());
        writeln!(f, "$ {}", self.command)?;
        for (name, bytes) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !bytes.is_empty() {
                writeln!(f, "[{name}] {}", shortened(bytes))?;
            }
        }
        write!(f, "[ended by {code}]")
    }
}

/// Bytes as text that does not drown everything else.
pub(super) fn shortened(bytes: &[u8]) -> String {
    const MOST: usize = 600;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MOST)]).into_owned();
    match bytes.len() {
        length if length > MOST => format!("{text}… ({length} bytes)"),
        _ => text.trim_end().to_owned(),
    }
}
