//! Prints lines of a log to our stdout and stderr, byte for byte as the task wrote them and in the same order.

use bowline_model::log_line::LogLine;
use bowline_model::log_line::LogStream;
use bowline_model::{Doing, Kind, Result};
use jiff::Timestamp;

use crate::ui::print::complain;
use crate::ui::reader::{Reader, write_all};

/// How many bytes of one stream are collected before they are written.
const WRITE: usize = 64 * 1024;

/// Prints to stdout and stderr, with a buffer.
pub struct Printer {
    /// Whether stored lines are printed as they are, to stdout.
    json: bool,
    timestamps: bool,
    /// Data that is not written yet, all of `stream`.
    buffer: Vec<u8>,
    stream: LogStream,
    /// For each stream, whether its last line is unfinished.
    open: [bool; 2],
    dropped: u64,
    damaged: u64,
}

impl Printer {
    /// With `json`, prints stored lines as they are; otherwise what the task wrote.
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

    /// The number of bytes that the log notes as lost.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The number of damaged lines.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Prints a stored line if it is wanted.
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

    /// Says that so many bytes of the log are missing at this place.
    pub fn gap(&mut self, bytes: u64) -> Result<Reader> {
        if self.json {
            let note = format!("{{\"time\":\"{:.9}\",\"removed\":{bytes}}}\n", Timestamp::now());
            self.bytes(LogStream::Stdout, note.as_bytes())?;
        }
        // A line that began before it does not go on behind it.
        self.open = [false; 2];
        let reader = self.flush()?;
        complain(
            &format!("{bytes} bytes of the log are missing here: they were removed before they could be read"),
            None,
        );
        Ok(reader)
    }

    pub fn bytes(&mut self, stream: LogStream, bytes: &[u8]) -> Result<Reader> {
        // Write this stream's data before the other stream's: both may be the same terminal.
        if (stream != self.stream || self.buffer.len() >= WRITE) && self.flush()? == Reader::Gone {
            return Ok(Reader::Gone);
        }
        self.stream = stream;
        self.buffer.extend_from_slice(bytes);
        Ok(Reader::There)
    }

    /// Writes the collected data to its stream.
    pub fn flush(&mut self) -> Result<Reader> {
        // Bypass the standard library's stdout, which writes line by line.
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
