//! One line of a JSON log, written and read.
//!
//! ```json
//! {"time":"2026-05-01T12:00:00.123456789Z","stream":"stdout","line":"ready"}
//! {"time":"…","stream":"stderr","latin1":"\u00ff: no UTF-8"}
//! {"time":"…","stream":"stdout","line":"a part of a long li","partial":true}
//! {"time":"…","dropped":1234}
//! ```
//!
//! `line` has no newline; `partial` says that the task wrote none either. A line that is not UTF-8
//! is kept under `latin1`, one character for each byte: nothing is lost, and grep still finds its
//! ASCII. `dropped` is no line but says that so many bytes are missing before the next one.

use std::io::Write as _;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How a line is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Json,
    Raw,
}

/// The stream that a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogStream {
    /// Standard output, or a terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

impl LogStream {
    /// The stream's name as the log files have it.
    pub fn as_str(self) -> &'static str {
        match self {
            LogStream::Stdout => "stdout",
            LogStream::Stderr => "stderr",
        }
    }
}

/// A line read from a JSON log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LogLine {
    /// When the shim read the line from the task.
    pub time: Timestamp,
    /// The stream that the line came from; `None` for a note of missing bytes.
    pub stream: Option<LogStream>,
    #[serde(default)]
    line: Option<String>,
    #[serde(default)]
    latin1: Option<String>,
    /// Whether the task has not ended the line here.
    #[serde(default)]
    pub partial: bool,
    /// How many bytes are missing before the next line.
    #[serde(default)]
    pub dropped: u64,
}

impl LogLine {
    /// Parses a line; `None` for a damaged one.
    pub fn read(line: &[u8]) -> Option<LogLine> {
        serde_json::from_slice(line).ok()
    }

    /// What the task wrote, with the newline if there was one.
    pub fn into_bytes(self) -> Vec<u8> {
        let mut bytes = match (self.line, self.latin1) {
            (Some(line), _) => line.into_bytes(),
            // Characters that are no single byte are never written.
            (None, Some(text)) => text.chars().map(|c| u8::try_from(c).unwrap_or(b'?')).collect(),
            (None, None) => return Vec::new(),
        };
        if !self.partial {
            bytes.push(b'\n');
        }
        bytes
    }
}

/// How each line of a stream begins that is written at `time`.
pub fn head(stream: LogStream, time: Timestamp) -> Vec<u8> {
    format!(r#"{{"time":"{time:.9}","stream":"{}","#, stream.as_str()).into_bytes()
}

/// Appends a line that begins with `head` and keeps `bytes`.
pub fn push(out: &mut Vec<u8>, head: &[u8], bytes: &[u8], ends: bool) {
    out.extend_from_slice(head);
    match std::str::from_utf8(bytes) {
        Ok(text) => push_text(out, "line", text),
        Err(_) => push_text(out, "latin1", &bytes.iter().map(|byte| char::from(*byte)).collect::<String>()),
    }
    out.extend_from_slice(if ends { b"}\n" } else { b",\"partial\":true}\n" });
}

fn push_text(out: &mut Vec<u8>, name: &str, text: &str) {
    // Writing to memory does not fail, and a string is always JSON.
    let _ = write!(out, "\"{name}\":");
    let _ = serde_json::to_writer(out, text);
}

/// The note that `bytes` bytes are missing.
pub fn note(bytes: u64, time: Timestamp) -> Vec<u8> {
    format!("{{\"time\":\"{time:.9}\",\"dropped\":{bytes}}}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LONGEST_HEAD: usize = 128;

    fn written(bytes: &[u8], ends: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let time = Timestamp::from_second(1_777_636_800).expect("a time");
        push(&mut out, &head(LogStream::Stdout, time), bytes, ends);
        out
    }

    #[test]
    fn lines_are_written_as_documented() {
        let text = |bytes, ends| String::from_utf8(written(bytes, ends)).expect("JSON is UTF-8");
        let head = r#"{"time":"2026-05-01T12:00:00.000000000Z","stream":"stdout","#;
        assert_eq!(text(b"say \"hi\"\t", true), format!("{head}\"line\":\"say \\\"hi\\\"\\t\"}}\n"));
        assert_eq!(text(b"\xff!", true), format!("{head}\"latin1\":\"ÿ!\"}}\n"));
        assert_eq!(text(b"> ", false), format!("{head}\"line\":\"> \",\"partial\":true}}\n"));
    }

    #[test]
    fn a_note_reads_back() {
        let note = note(1234, Timestamp::UNIX_EPOCH);
        assert_eq!(String::from_utf8_lossy(&note), "{\"time\":\"1970-01-01T00:00:00.000000000Z\",\"dropped\":1234}\n");
        let read = LogLine::read(&note).expect("JSON");
        assert_eq!((read.dropped, read.stream), (1234, None));
        assert!(read.into_bytes().is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_read_back(bytes: Vec<u8>, ends: bool) {
            let line = written(&bytes, ends);
            prop_assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            prop_assert!(line.len() <= LONGEST_HEAD + 6 * bytes.len());
            let read = LogLine::read(&line).expect("what was written");
            prop_assert_eq!(read.partial, !ends);
            let newline: &[u8] = if ends { b"\n" } else { b"" };
            prop_assert_eq!(read.into_bytes(), [&bytes, newline].concat());
        }
    }
}
