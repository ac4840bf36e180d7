//! Lines of a log onto our own stdout and stderr, byte for byte as the task
//! wrote them, and in their order.

use bowline_executor::{Doing, Kind, LogLine, LogStream, Result};

use crate::ui::reader::{Reader, write_all};

/// Collected of one stream before it is written, in bytes.
const WRITE: usize = 64 * 1024;

/// See the module.
pub struct Printer {
    /// Stored lines as they are, to stdout.
    json: bool,
    timestamps: bool,
    /// What is not written yet, all of one stream.
    buffer: Vec<u8>,
    stream: LogStream,
    /// Of each stream: whether its last line has not ended.
    open: [bool; 2],
    dropped: u64,
    damaged: u64,
}

impl Printer {
    /// Prints stored lines as they are with `json`, else what the task wrote.
    pub fn new(json: bool, timestamps: bool) -> Printer {
        Printer {
            json,
            timestamps,
            buffer: Vec::new(),
            stream: LogStream::Stdout,
            open: [false; 2],
            dropped: 0,
            damaged: 0,
        }
    }

    /// Bytes that notes in the log say are missing.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Lines that are none.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Prints a stored line, if it is wanted.
    pub fn line(&mut self, stored: &[u8], wanted: impl Fn(&LogLine) -> bool) -> Result<Reader> {
        let Some(line) = LogLine::read(stored) else {
            self.damaged += 1;
            return Ok(Reader::There);
        };
        if !wanted(&line) {
            return Ok(Reader::There);
        }
        self.dropped += line.dropped;
        if self.json {
            return self.bytes(LogStream::Stdout, stored);
        }
        let Some(stream) = line.stream else { return Ok(Reader::There) };
        let goes_on = std::mem::replace(&mut self.open[stream as usize], line.partial);
        let time = (self.timestamps && !goes_on).then(|| format!("{:.9} ", line.time));
        let text = line.into_bytes();
        match time {
            Some(time) => self.bytes(stream, &[time.as_bytes(), &text].concat()),
            None => self.bytes(stream, &text),
        }
    }

    /// Prints bytes of `stream`.
    pub fn bytes(&mut self, stream: LogStream, bytes: &[u8]) -> Result<Reader> {
        // What comes by the other stream comes after: both may be one terminal.
        if (stream != self.stream || self.buffer.len() >= WRITE) && self.flush()? == Reader::Gone {
            return Ok(Reader::Gone);
        }
        self.stream = stream;
        self.buffer.extend_from_slice(bytes);
        Ok(Reader::There)
    }

    /// Writes what is not written yet.
    pub fn flush(&mut self) -> Result<Reader> {
        // Past the library's stdout, which writes line by line.
        let fd = match self.stream {
            LogStream::Stdout => rustix::stdio::stdout(),
            LogStream::Stderr => rustix::stdio::stderr(),
        };
        let reader = write_all(fd, &self.buffer)
            .doing(Kind::Internal, || format!("cannot write to {}", self.stream.as_str()))?;
        self.buffer.clear();
        Ok(reader)
    }
}
