//! Reads the files of a log from the oldest to the newest, while a shim may write and rotate them.
//!
//! Files are opened from the newest to the oldest, the direction in which rotation moves them. A file that moves
//! meanwhile is met again, recognised by its inode, and never missed. The place where it was met last counts, as a
//! newer file may have been met in between. A file that is no longer the newest gets no more lines. Must not: know what
//! a line contains or what it is read for.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bowline_executor::{Doing, Error, Kind, Result, rotated_log};
use jiff::Timestamp;
use rustix::fs::OFlags;

use crate::ui::reader::Reader;

/// How many bytes are read at a time.
const BLOCK: usize = 64 * 1024;

/// The kind of data in the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Lines; the last one counts only once it has ended.
    Lines,
    Bytes,
}

/// One file, and how far it has been read.
struct Part {
    file: File,
    /// The device and inode numbers.
    identity: (u64, u64),
    read: u64,
}

/// All files of one log.
pub struct Chain {
    path: PathBuf,
    /// The most files that a log can have.
    most: u32,
    content: Content,
    /// The files that are open, oldest first.
    parts: VecDeque<Part>,
}

impl Chain {
    /// Opens all existing files of the log whose newest file is `path`.
    pub fn open(path: &Path, most: u32, content: Content) -> Result<Chain> {
        let mut chain = Chain { path: path.to_owned(), most, content, parts: VecDeque::new() };
        chain.parts = chain.newer_than(None)?;
        Ok(chain)
    }

    /// The folder that holds the files.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Skips files that were last written before `since`.
    pub fn skip_until(&mut self, since: Timestamp) {
        let since = SystemTime::from(since);
        let older = |part: &Part| part.file.metadata().and_then(|meta| meta.modified()).is_ok_and(|time| time < since);
        while self.parts.len() > 1 && self.parts.front().is_some_and(older) {
            self.parts.pop_front();
        }
    }

    /// Skips all but the last `lines` lines that are `wanted`, reading from the end. Of bytes, every line is wanted.
    pub fn skip_to_last(&mut self, lines: u64, wanted: impl Fn(&[u8]) -> bool) -> Result<()> {
        let mut left = lines;
        let content = self.content;
        let failed = || format!("cannot read {}", self.path.display());
        for index in (0..self.parts.len()).rev() {
            let file = &self.parts[index].file;
            let mut size = file.metadata().doing(Kind::Internal, failed)?.len();
            if content == Content::Lines {
                size = whole_lines(file, size).doing(Kind::Internal, failed)?;
            }
            if left > 0 {
                let found = line_from_the_end(file, size, |range| {
                    left -= u64::from(content == Content::Bytes || wanted(&bytes(file, range)?));
                    Ok(left == 0)
                });
                match found.doing(Kind::Internal, failed)? {
                    Some(start) => size = start,
                    None => continue,
                }
            }
            self.parts.drain(..index);
            if let Some(part) = self.parts.front_mut() {
                part.read = size;
            }
            return Ok(());
        }
        Ok(())
    }

    /// Passes what has not been read yet to `emit`: bytes, or lines with their newline.
    pub fn read(&mut self, mut emit: impl FnMut(&[u8]) -> Result<Reader>) -> Result<Reader> {
        let mut buffer = Vec::new();
        loop {
            let Some(part) = self.parts.front_mut() else {
                self.parts = self.newer_than(None)?;
                if self.parts.is_empty() {
                    return Ok(Reader::There);
                }
                continue;
            };
            let more = part.next(self.content, &mut buffer, &mut emit);
            match more.map_err(|failed| failed.at(&self.path))? {
                More::Some => continue,
                More::Gone => return Ok(Reader::Gone),
                More::End => {}
            }
            if self.parts.len() == 1 {
                // The file may have been written and renamed since it was read. It is read once more now that a newer
                // file follows it.
                let newer = self.newer_than(self.parts.front())?;
                if newer.is_empty() {
                    return Ok(Reader::There);
                }
                self.parts.extend(newer);
            } else {
                self.parts.pop_front();
            }
            // An unfinished line is dropped if its file is finished; otherwise it is read again.
            buffer.clear();
        }
    }

    /// Opens the files that are newer than `last`, oldest first.
    fn newer_than(&self, last: Option<&Part>) -> Result<VecDeque<Part>> {
        let mut met: Vec<Part> = Vec::new();
        for age in 0..self.most {
            let path = rotated_log(&self.path, age);
            // A number is unused for a moment while files are renamed.
            let Some(part) = open(&path).map_err(|error| cannot_read(&path, &error))? else { continue };
            if last.is_some_and(|last| last.identity == part.identity) {
                break;
            }
            met.push(part);
        }
        Ok(where_last_met(met, |part| part.identity).into())
    }
}

/// Reverses the files from newest-first to oldest-first, and keeps each where it was met last.
fn where_last_met<T, Id: PartialEq>(met: Vec<T>, id: impl Fn(&T) -> Id) -> Vec<T> {
    let mut found: Vec<T> = Vec::new();
    for one in met.into_iter().rev() {
        if found.iter().all(|other| id(other) != id(&one)) {
            found.push(one);
        }
    }
    found
}

/// The result of reading one block.
enum More {
    Some,
    End,
    Gone,
}

/// Why reading one block failed.
enum Failed {
    Read(io::Error),
    Emit(Error),
}

impl Failed {
    fn at(self, path: &Path) -> Error {
        match self {
            Failed::Read(error) => cannot_read(path, &error),
            Failed::Emit(error) => error,
        }
    }
}

impl Part {
    /// Passes on one block of what has not been read yet. `buffer` is empty, or still holds the start of a line from
    /// the last call.
    fn next(
        &mut self,
        content: Content,
        buffer: &mut Vec<u8>,
        emit: &mut impl FnMut(&[u8]) -> Result<Reader>,
    ) -> std::result::Result<More, Failed> {
        let begun = buffer.len();
        buffer.resize(begun + BLOCK, 0);
        let length = read_at(&self.file, &mut buffer[begun..], self.read + begun as u64).map_err(Failed::Read)?;
        buffer.truncate(begun + length);
        if length == 0 {
            // Somebody may have truncated the file: new data then comes at its new end.
            let size = self.file.metadata().map_err(Failed::Read)?.len();
            self.read = self.read.min(size);
            return Ok(More::End);
        }
        let done = match content {
            Content::Bytes => buffer.len(),
            Content::Lines => buffer.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1),
        };
        let pieces: Box<dyn Iterator<Item = &[u8]>> = match content {
            Content::Bytes => Box::new(std::iter::once(&buffer[..done])),
            Content::Lines => Box::new(buffer[..done].split_inclusive(|byte| *byte == b'\n')),
        };
        for piece in pieces {
            if emit(piece).map_err(Failed::Emit)? == Reader::Gone {
                return Ok(More::Gone);
            }
        }
        self.read += done as u64;
        buffer.drain(..done);
        Ok(More::Some)
    }
}

fn open(path: &Path) -> io::Result<Option<Part>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let meta = file.metadata()?;
    Ok(meta.is_file().then(|| Part { file, identity: (meta.dev(), meta.ino()), read: 0 }))
}

/// The length of the finished lines within the first `size` bytes of a file.
fn whole_lines(file: &File, size: u64) -> io::Result<u64> {
    if size == 0 || bytes(file, size - 1..size)? == b"\n" {
        return Ok(size);
    }
    Ok(line_from_the_end(file, size, |_| Ok(true))?.unwrap_or(0))
}

/// Visits the lines of a file from its end until `enough` returns true; returns where that line starts.
fn line_from_the_end(
    file: &File,
    size: u64,
    mut enough: impl FnMut(Range<u64>) -> io::Result<bool>,
) -> io::Result<Option<u64>> {
    let mut end = size;
    let mut before = size;
    while before > 0 {
        let block = before.saturating_sub(BLOCK as u64)..before;
        before = block.start;
        let text = bytes(file, block)?;
        for newline in (0..text.len()).rev().filter(|at| text[*at] == b'\n') {
            let start = before + newline as u64 + 1;
            if start < end && enough(start..end)? {
                return Ok(Some(start));
            }
            end = start;
        }
    }
    Ok((end > 0 && enough(0..end)?).then_some(0))
}

/// Reads the bytes of a file in `range`, as far as they exist.
fn bytes(file: &File, range: Range<u64>) -> io::Result<Vec<u8>> {
    let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let mut bytes = vec![0; length];
    let mut done = 0;
    while done < length {
        match read_at(file, &mut bytes[done..], range.start + done as u64)? {
            0 => break,
            more => done += more,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        match file.read_at(buffer, offset) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

fn cannot_read(path: &Path, error: &io::Error) -> Error {
    Error::new(Kind::Internal, format!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    struct Files {
        dir: tempfile::TempDir,
    }

    impl Files {
        fn new() -> Files {
            Files { dir: tempfile::tempdir().unwrap() }
        }

        fn path(&self) -> PathBuf {
            self.dir.path().join("log")
        }

        fn append(&self, text: &str) {
            use std::io::Write as _;
            let file = File::options().append(true).create(true).open(self.path());
            file.unwrap().write_all(text.as_bytes()).unwrap();
        }

        fn rotate(&self) {
            for age in (0..3).rev() {
                let _ = fs::rename(rotated_log(&self.path(), age), rotated_log(&self.path(), age + 1));
            }
        }

        fn chain(&self, content: Content) -> Chain {
            Chain::open(&self.path(), 4, content).unwrap()
        }
    }

    fn read(chain: &mut Chain) -> Vec<String> {
        let mut found = Vec::new();
        let all = chain.read(|bytes| {
            found.push(String::from_utf8(bytes.to_vec()).unwrap());
            Ok(Reader::There)
        });
        assert_eq!(all.unwrap(), Reader::There);
        found
    }

    #[test]
    fn files_are_read_oldest_first_and_each_line_once() {
        let files = Files::new();
        files.append("1\n2\n");
        files.rotate();
        files.append("3\n4");
        let mut chain = files.chain(Content::Lines);
        assert_eq!(read(&mut chain), ["1\n", "2\n", "3\n"]);
        files.append("!\n5\n");
        files.rotate();
        files.rotate();
        files.append("6\n");
        assert_eq!(read(&mut chain), ["4!\n", "5\n", "6\n"]);
        assert!(read(&mut chain).is_empty());
    }

    #[test]
    fn files_that_move_while_they_are_looked_for_stay_in_order() {
        let ordered = |met: &[u32]| where_last_met(met.to_vec(), |one| *one);
        assert_eq!(ordered(&[4, 3, 2]), [2, 3, 4]);
        assert_eq!(ordered(&[4, 4, 3, 3, 2]), [2, 3, 4], "one rotation before the second and the fourth");
        assert_eq!(ordered(&[4, 5, 4, 3, 2]), [2, 3, 4, 5], "two before the second");
    }

    #[test]
    fn a_line_longer_than_a_block_is_one() {
        let files = Files::new();
        let long = "x".repeat(3 * BLOCK) + "\n";
        files.append(&long);
        files.append("end\n");
        assert_eq!(read(&mut files.chain(Content::Lines)), [long, "end\n".into()]);
    }

    #[test]
    fn a_file_that_is_cut_short_is_gone_on_with() {
        let files = Files::new();
        files.append("1\nhalf a li");
        let mut chain = files.chain(Content::Lines);
        assert_eq!(read(&mut chain), ["1\n"]);
        File::options().write(true).open(files.path()).unwrap().set_len(2).unwrap();
        files.append("2\n");
        assert_eq!(read(&mut chain), ["2\n"]);
    }

    #[test]
    fn the_last_lines_are_found_from_the_end() {
        for content in [Content::Lines, Content::Bytes] {
            for lines in 0..7 {
                let files = Files::new();
                files.append("1\n2\n");
                files.rotate();
                files.append("3\n4\n5\n");
                let mut chain = files.chain(content);
                chain.skip_to_last(lines, |_| true).unwrap();
                let from = 6_u64.saturating_sub(lines).max(1);
                let expected: String = (from..=5).map(|n| format!("{n}\n")).collect();
                assert_eq!(read(&mut chain).concat(), expected, "{lines}");
            }
        }
    }

    #[test]
    fn none_of_the_last_lines_is_one_that_has_not_ended() {
        let files = Files::new();
        files.append("1\n2");
        for (lines, before) in [(0, 0), (1, 1)] {
            let mut chain = files.chain(Content::Lines);
            chain.skip_to_last(lines, |_| true).unwrap();
            assert_eq!(read(&mut chain).len(), before);
        }
        let mut chain = files.chain(Content::Lines);
        chain.skip_to_last(0, |_| true).unwrap();
        files.append("2\n");
        assert_eq!(read(&mut chain), ["22\n"]);
    }

    #[test]
    fn the_last_lines_are_of_those_that_are_wanted() {
        let files = Files::new();
        files.append(&(1..=50_000).map(|n| format!("{n}\n")).collect::<String>());
        let mut chain = files.chain(Content::Lines);
        chain.skip_to_last(2, |line| line.ends_with(b"7\n")).unwrap();
        assert_eq!(read(&mut chain).concat(), (49_987..=50_000).map(|n| format!("{n}\n")).collect::<String>());
    }

    #[test]
    fn files_from_before_a_time_are_left_out() {
        let files = Files::new();
        files.append("1\n");
        let old = SystemTime::UNIX_EPOCH;
        File::options().write(true).open(files.path()).unwrap().set_modified(old).unwrap();
        files.rotate();
        files.append("2\n");
        let mut chain = files.chain(Content::Lines);
        chain.skip_until(Timestamp::from_second(1).unwrap());
        assert_eq!(read(&mut chain), ["2\n"]);
    }
}
