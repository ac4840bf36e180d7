//! Prints lines of a log to our stdout and stderr, byte for byte as the task wrote them and in the same order.

use std::borrow::Cow;
use std::sync::Mutex;

use bowline_model::log_line::LogLine;
use bowline_model::log_line::LogStream;
use bowline_model::{Doing, Kind, Result};
use bowline_spec::id::TaskId;
use jiff::Timestamp;
use regex_lite::Regex;

use crate::input::args::LogsArgs;
use crate::ui::print::complain;
use crate::ui::reader::{Reader, write_all};

/// How many bytes of one stream are collected before they are written.
const WRITE: usize = 64 * 1024;

/// How much of a line is put together before it is matched, or printed after its task's id.
const WHOLE: usize = 1024 * 1024;

/// Whose lines they are, where several tasks' are printed.
pub struct Whose {
    pub id: TaskId,
    /// How many letters the longest of their ids has.
    pub width: usize,
}

/// The pieces of a line that has not ended yet.
#[derive(Default)]
struct Held {
    time: Option<Timestamp>,
    text: Vec<u8>,
    /// As they are stored, where that is printed.
    stored: Vec<u8>,
}

/// Several logs are printed at once.
static TURN: Mutex<()> = Mutex::new(());

/// Prints to stdout and stderr, with a buffer.
pub struct Printer {
    /// What each line begins with.
    whose: Option<Whose>,
    /// What the lines that are printed match.
    grep: Option<Regex>,
    /// For each stream, the begin of a line that can be printed, or matched, only as a whole.
    held: [Held; 2],
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
    /// Prints what the task wrote, or with `--json` stored lines.
    pub fn new(args: &LogsArgs, whose: Option<Whose>) -> Printer {
        Printer {
            whose,
            grep: args.grep.clone(),
            held: Default::default(),
            json: args.json,
            timestamps: args.timestamps,
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
        if let (true, Some(stream)) = (self.is_by_lines(), line.stream) {
            return self.hold(stream, line, stored);
        }
        if self.json {
            return self.stored(stored);
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

    /// Prints what the task wrote, where the log has no lines of its own.
    pub fn raw(&mut self, stream: LogStream, bytes: &[u8]) -> Result<Reader> {
        if !self.is_by_lines() {
            return self.bytes(stream, bytes);
        }
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let held = &mut self.held[stream as usize];
            held.text.extend_from_slice(piece);
            let is_whole = piece.ends_with(b"\n") || held.text.len() >= WHOLE;
            if is_whole && self.let_go(stream)? == Reader::Gone {
                return Ok(Reader::Gone);
            }
        }
        Ok(Reader::There)
    }

    /// Whether lines are put together: to match them, or as those of several tasks would be mixed.
    fn is_by_lines(&self) -> bool {
        self.whose.is_some() || self.grep.is_some()
    }

    fn hold(&mut self, stream: LogStream, line: LogLine, stored: &[u8]) -> Result<Reader> {
        let held = &mut self.held[stream as usize];
        let is_partial = line.partial;
        held.time.get_or_insert(line.time);
        held.text.extend(line.into_bytes());
        if self.json {
            held.stored.extend_from_slice(&named(self.whose.as_ref(), stored));
        }
        if is_partial && held.text.len() < WHOLE { Ok(Reader::There) } else { self.let_go(stream) }
    }

    /// Prints the line that was put together, if it matches.
    fn let_go(&mut self, stream: LogStream) -> Result<Reader> {
        let Held { time, mut text, stored } = std::mem::take(&mut self.held[stream as usize]);
        let line = text.strip_suffix(b"\n").unwrap_or(&text);
        let is_nothing = text.is_empty();
        if is_nothing || self.grep.as_ref().is_some_and(|grep| !grep.is_match(&String::from_utf8_lossy(line))) {
            return Ok(Reader::There);
        }
        if self.json {
            return self.bytes(LogStream::Stdout, &stored);
        }
        let mut printed = self.whose.as_ref().map(Whose::in_text).unwrap_or_default();
        if let Some(time) = time.filter(|_| self.timestamps) {
            printed += &format!("{time:.9} ");
        }
        // What another task wrote comes after it.
        if self.whose.is_some() && !text.ends_with(b"\n") {
            text.push(b'\n');
        }
        self.bytes(stream, &[printed.as_bytes(), &text].concat())
    }

    /// Prints a stored line, or note, as it is.
    fn stored(&mut self, stored: &[u8]) -> Result<Reader> {
        let stored = named(self.whose.as_ref(), stored);
        self.bytes(LogStream::Stdout, &stored)
    }

    /// Prints lines that have begun, as they do not go on.
    pub fn end(&mut self) -> Result<Reader> {
        for stream in [LogStream::Stdout, LogStream::Stderr] {
            if self.let_go(stream)? == Reader::Gone {
                return Ok(Reader::Gone);
            }
        }
        self.flush()
    }

    /// Which task's log it is, where several are printed.
    pub fn of_task(&self) -> String {
        self.whose.as_ref().map_or_else(String::new, |whose| format!(" of task {}", whose.id))
    }

    /// Says that so many bytes of the log are missing at this place.
    pub fn gap(&mut self, bytes: u64) -> Result<Reader> {
        if self.json {
            let note = format!("{{\"time\":\"{:.9}\",\"removed\":{bytes}}}\n", Timestamp::now());
            self.stored(note.as_bytes())?;
        }
        // A line that began before it does not go on behind it.
        self.open = [false; 2];
        let reader = self.end()?;
        let of = self.of_task();
        complain(
            &format!("{bytes} bytes of the log{of} are missing here: they were removed before they could be read"),
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
        let _turn = TURN.lock();
        let reader = write_all(fd, &self.buffer)
            .doing(Kind::Internal, || format!("cannot write to {}", self.stream.as_str()))?;
        self.buffer.clear();
        Ok(reader)
    }
}

impl Whose {
    fn in_text(&self) -> String {
        format!("{:<width$} | ", self.id.as_str(), width = self.width)
    }
}

/// A stored line, with its task where several are printed.
fn named<'l>(whose: Option<&Whose>, stored: &'l [u8]) -> Cow<'l, [u8]> {
    match (whose, stored.strip_prefix(b"{")) {
        (Some(whose), Some(rest)) => Cow::Owned([format!("{{\"task\":\"{}\",", whose.id).as_bytes(), rest].concat()),
        _ => Cow::Borrowed(stored),
    }
}
