//! A task's log: what it wrote, kept in files that do not grow without bound, or in the host's journal.
//!
//! ```text
//!   chunk ─► pieces (a line, or a part of a long one) ─► batch ─┬► rotated files
//!                                                               └► journal, an entry for each piece
//! ```
//!
//! Both streams share one [`Log`], so that their order is kept if they go to one file. A line is
//! held until it ends, at most [`PIECE`] bytes of it. What cannot be written holds up nothing: it
//! is counted, and noted in the log once there is room again. Must not: wait without a bound, or log
//! what it drops; its caller does.

mod batch;
mod files;
mod journald;
mod mark;
mod places;
mod rotated;

use std::cell::RefCell;
use std::rc::Rc;

use bowline_error::Result;
use bowline_model::log_line::Format;
use bowline_spec::Task;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use batch::Batch;
use journald::Journal;
use mark::At;
use rotated::Rotated;

pub use bowline_model::log_line::{LogLine, LogStream};
pub use files::{LogFile, LogFiles, rotated_file};
pub use mark::Mark;
pub use places::{Identity, LogPlace, log_places};

/// The most bytes of a line that are kept together.
const PIECE: usize = 16 * 1024;

/// Bytes written at a time, give or take a line.
const WRITE: usize = 32 * 1024;

/// Short raw lines are taken together up to this many bytes; a file may leave as much of its limit unused.
const AT_ONCE: usize = 4096;

/// Where one stream of a task is kept.
#[derive(Debug)]
pub struct Writer {
    log: Rc<RefCell<Log>>,
    stream: LogStream,
}

#[derive(Debug)]
struct Log {
    /// One place for both streams, or one for each.
    sinks: Vec<Sink>,
    /// The beginning of an unfinished line, of each stream.
    held: [Vec<u8>; 2],
    format: Format,
    /// The most bytes of a line that this log keeps together.
    piece: usize,
    /// Up to how many bytes several lines are taken as one; 0 as JSON.
    at_once: usize,
}

#[derive(Debug)]
enum Sink {
    File(Rotated),
    Journal(Box<Journal>),
}

impl Sink {
    fn open(&mut self) -> Result<()> {
        match self {
            Sink::File(file) => file.open(),
            Sink::Journal(journal) => journal.open(),
        }
    }

    /// Returns how many of the task's bytes were dropped.
    fn append(&mut self, stream: LogStream, batch: &Batch) -> u64 {
        match self {
            Sink::File(file) => file.append(batch),
            Sink::Journal(journal) => journal.append(stream, batch),
        }
    }

    /// Where the next pieces go, as far as it has files.
    fn end(&mut self) -> Option<At> {
        match self {
            Sink::File(file) => file.end(),
            Sink::Journal(_) => None,
        }
    }

    /// The next pieces may be there already, from this place on.
    fn find_from(&mut self, at: Option<At>) {
        match self {
            Sink::File(file) => file.begun = at.map(At::position),
            Sink::Journal(_) => {}
        }
    }

    /// Notes what is missing, if anything is; false if that fails.
    fn note(&mut self) -> bool {
        match self {
            Sink::File(file) => file.note(Timestamp::now()),
            Sink::Journal(journal) => journal.note(),
        }
    }

    /// How many of the task's bytes are missing and not noted yet.
    fn lost(&mut self) -> &mut u64 {
        match self {
            Sink::File(file) => &mut file.lost,
            Sink::Journal(journal) => &mut journal.lost,
        }
    }
}

/// Opens the log of `task` at `files`, for stdout and stderr where the stream is kept.
///
/// # Errors
/// `BadSpec` for a file that cannot be opened; `Unsupported` for a host without a journal.
pub fn open(task: &Task, files: &LogFiles) -> Result<[Option<Writer>; 2]> {
    let [out, err] = unopened(task, files);
    if let Some(writer) = out.as_ref().or(err.as_ref()) {
        writer.log.borrow_mut().sinks.iter_mut().try_for_each(Sink::open)?;
    }
    Ok([out, err])
}

/// A log, as a shim hands it over: what is in no file yet.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Handed {
    held: [Vec<u8>; 2],
    /// How many bytes each file, or the journal, lacks.
    lost: Vec<u64>,
}

/// Goes on with the log of `task` at `files`, which are opened by the next write.
pub fn go_on(task: &Task, files: &LogFiles, handed: Handed) -> [Option<Writer>; 2] {
    let writers = unopened(task, files);
    if let Some(writer) = writers.iter().flatten().next() {
        let mut log = writer.log.borrow_mut();
        log.held = handed.held;
        log.sinks.iter_mut().zip(handed.lost).for_each(|(sink, lost)| *sink.lost() = lost);
    }
    writers
}

fn unopened(task: &Task, files: &LogFiles) -> [Option<Writer>; 2] {
    let max_size = task.log.max_size();
    let most = usize::try_from(max_size).unwrap_or(usize::MAX);
    let (format, piece, at_once) = match files {
        // Escaping may turn each byte into six, and the rest of the line needs room.
        LogFiles::Json(..) => (Format::Json, PIECE.min(most / 8), 0),
        LogFiles::Raw(_) => (Format::Raw, PIECE.min(most), AT_ONCE.min(most / 8)),
        LogFiles::Journal(..) => (Format::Raw, journald::PIECE, 0),
    };
    let sinks: Vec<Sink> = match files {
        LogFiles::Journal(_, id, state) => vec![Sink::Journal(Box::new(Journal::of(id.as_str(), state)))],
        LogFiles::Json(..) | LogFiles::Raw(_) => {
            let of = |(_, file): (_, &LogFile)| Rotated::at(file, max_size, task.log.max_files(), format);
            files.all().into_iter().map(of).map(Sink::File).collect()
        }
    };
    if sinks.is_empty() {
        return [None, None];
    }
    let log = Rc::new(RefCell::new(Log { sinks, held: Default::default(), format, piece, at_once }));
    let writer = |stream| files.has(stream).then(|| Writer { log: log.clone(), stream });
    [writer(LogStream::Stdout), writer(LogStream::Stderr)]
}

impl Writer {
    /// Keeps `bytes`. Returns how many bytes were dropped.
    pub fn write(&self, bytes: &[u8]) -> u64 {
        self.log.borrow_mut().write(self.stream, bytes, Timestamp::now())
    }

    /// Like [`Writer::write`], for what another shim can go on with by [`Writer::go_on`]: `keep` stores what it needs.
    pub fn write_marked(&self, bytes: &[u8], keep: impl FnOnce(Mark)) -> u64 {
        let mut log = self.log.borrow_mut();
        let time = Timestamp::now();
        if let Some(at) = log.sink(self.stream).end() {
            keep(Mark { time, at });
        }
        log.write(self.stream, bytes, time)
    }

    /// Writes what is missing of `bytes` in the log, of which a shim that was killed meanwhile has written some or all
    /// since `mark`. Returns how many bytes were dropped.
    pub fn go_on(&self, bytes: &[u8], mark: Mark) -> u64 {
        let mut log = self.log.borrow_mut();
        log.sink(self.stream).find_from(Some(mark.at));
        let dropped = log.write(self.stream, bytes, mark.time);
        log.sink(self.stream).find_from(None);
        dropped
    }

    /// The stream that is kept.
    pub fn stream(&self) -> LogStream {
        self.stream
    }

    /// The log for the program that is executed in the shim's place.
    pub fn hand_over(&self) -> Handed {
        let mut log = self.log.borrow_mut();
        Handed { held: log.held.clone(), lost: log.sinks.iter_mut().map(|sink| *sink.lost()).collect() }
    }

    /// Calls `read` with the held part of a line.
    pub fn with_held<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        read(&self.log.borrow().held[self.stream as usize])
    }

    /// Goes on with the part of a line that a shim before has held.
    pub fn hold(&self, part: Vec<u8>) {
        self.log.borrow_mut().held[self.stream as usize] = part;
    }

    /// Keeps the held part of a line that may never end, such as a prompt. Returns how many bytes
    /// were dropped. More may be written afterwards.
    pub fn flush(&self) -> u64 {
        self.log.borrow_mut().flush(self.stream)
    }
}

impl Log {
    fn write(&mut self, stream: LogStream, bytes: &[u8], time: Timestamp) -> u64 {
        let mut batch = Batch::new(self.format, stream, time);
        let mut held = std::mem::take(&mut self.held[stream as usize]);
        let mut dropped = 0;
        let mut bytes = bytes;
        while !bytes.is_empty() {
            let at_once = if held.is_empty() { self.at_once } else { 0 };
            let (lines, more) = bytes.split_at(lines(bytes, at_once));
            bytes = more;
            let (mut rest, ends) = lines.strip_suffix(b"\n").map_or((lines, false), |text| (text, true));
            while held.len() + rest.len() > self.piece {
                let cut = whole_characters(rest, self.piece - held.len());
                batch.push(&mut held, &rest[..cut], false);
                rest = &rest[cut..];
            }
            match ends {
                true => batch.push(&mut held, rest, true),
                false => held.extend_from_slice(rest),
            }
            if batch.len() >= WRITE {
                dropped += self.append(stream, &mut batch);
            }
        }
        self.held[stream as usize] = held;
        dropped + self.append(stream, &mut batch)
    }

    fn flush(&mut self, stream: LogStream) -> u64 {
        let mut held = std::mem::take(&mut self.held[stream as usize]);
        let mut batch = Batch::new(self.format, stream, Timestamp::now());
        if !held.is_empty() {
            batch.push(&mut held, b"", false);
        }
        let dropped = self.append(stream, &mut batch);
        self.sink(stream).note();
        dropped
    }

    fn append(&mut self, stream: LogStream, batch: &mut Batch) -> u64 {
        let dropped = self.sink(stream).append(stream, batch);
        batch.clear();
        dropped
    }

    fn sink(&mut self, stream: LogStream) -> &mut Sink {
        let index = (stream as usize).min(self.sinks.len() - 1);
        &mut self.sinks[index]
    }
}

/// How many bytes of `text` to take next: one line, or whole lines up to
/// `at_once` bytes; all if no line ends.
fn lines(text: &[u8], at_once: usize) -> usize {
    let newline = |byte: &u8| *byte == b'\n';
    let several = text[..text.len().min(at_once)].iter().rposition(newline);
    let last = several.or_else(|| text.iter().position(newline));
    last.map_or(text.len(), |last| last + 1)
}

/// How many bytes of `text` to take, at most `most`, without cutting a UTF-8 character in two if possible.
fn whole_characters(text: &[u8], most: usize) -> usize {
    let begins = |at: &usize| text.get(*at).is_none_or(|byte| byte & 0xc0 != 0x80);
    (most.saturating_sub(3)..=most).rev().find(begins).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_one_by_one_or_together() {
        for (text, at_once, length) in [
            ("a\nb\nc", 0, 2),
            ("a\nb\nc", 100, 4),
            ("a\nb\nc\n", 5, 4),
            ("a\nb\nc\n", 6, 6),
            ("long\nb\n", 3, 5),
            ("no end", 3, 6),
        ] {
            assert_eq!(lines(text.as_bytes(), at_once), length, "{text:?}, {at_once}");
        }
    }

    #[test]
    fn a_cut_leaves_characters_whole() {
        for (text, most, cut) in
            [("abcdef", 4, 4), ("abcdé", 5, 4), ("abc€", 5, 3), ("a\u{1f600}b", 4, 1), ("a\u{1f600}b", 5, 5)]
        {
            assert_eq!(whole_characters(text.as_bytes(), most), cut, "{text}");
        }
        assert_eq!(whole_characters(&[0x80; 9], 7), 7, "no UTF-8: anywhere");
    }
}
