//! Pieces of one stream on their way to a file: one write for many lines.

use bowline_model::log_line::{self as line, Format, LogStream};
use jiff::Timestamp;

/// Encoded pieces, with where each ends.
#[derive(Debug)]
pub struct Batch {
    /// How each line begins; nothing for raw bytes.
    head: Option<Vec<u8>>,
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Where the piece ends in the bytes.
    end: usize,
    /// How many of the task's bytes are in the piece.
    payload: usize,
}

impl Batch {
    /// Creates an empty batch for what `stream` wrote at `time`.
    pub fn new(format: Format, stream: LogStream, time: Timestamp) -> Batch {
        let head = (format == Format::Json).then(|| line::head(stream, time));
        Batch { head, bytes: Vec::new(), pieces: Vec::new() }
    }

    /// Adds a piece of the held bytes, which it takes, and `rest`; with a newline if the line ends there.
    pub fn push(&mut self, held: &mut Vec<u8>, rest: &[u8], ends: bool) {
        let held = std::mem::take(held);
        let payload = held.len() + rest.len() + usize::from(ends);
        match &self.head {
            Some(head) if held.is_empty() => line::push(&mut self.bytes, head, rest, ends),
            Some(head) => line::push(&mut self.bytes, head, &[&held, rest].concat(), ends),
            None => {
                self.bytes.extend_from_slice(&held);
                self.bytes.extend_from_slice(rest);
                self.bytes.extend_from_slice(if ends { b"\n" } else { b"" });
            }
        }
        self.pieces.push(Piece { end: self.bytes.len(), payload });
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Where piece `index` begins, or where the last one ends.
    fn begin(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.pieces[before].end)
    }

    /// How many pieces from `first` on fit into `room` bytes.
    pub fn fitting(&self, first: usize, room: u64) -> usize {
        let begin = self.begin(first);
        self.pieces[first..].partition_point(|piece| (piece.end - begin) as u64 <= room)
    }

    /// The bytes of `count` pieces from `first` on.
    pub fn bytes(&self, first: usize, count: usize) -> &[u8] {
        &self.bytes[self.begin(first)..self.begin(first + count)]
    }

    /// How many of the task's bytes are in the pieces from `first` on.
    pub fn payload(&self, first: usize) -> u64 {
        self.pieces[first..].iter().map(|piece| piece.payload as u64).sum()
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.pieces.clear();
    }
}
