//! Reads the files of a log from the oldest to the newest, while a shim may write and rotate them.
//!
//! Files are opened from the newest to the oldest, the direction in which rotation moves them. The shim records the place
//! of each file in the log: it gives their order, however often they moved meanwhile, and how many bytes are missing
//! between two of them. A file that is no longer the newest gets no more lines. Must not: know what a line contains or
//! what it is read for.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::SystemTime;

use bowline_executor::internal::{FileIdentity, LogFile, LogPlace, log_places, rotated_log};
use bowline_model::trust::is_planted;
use bowline_model::{Doing, Error, Kind, Result};
use jiff::Timestamp;
use rustix::fs::OFlags;

use crate::ui::reader::Reader;

/// How many bytes are read at a time.
const BLOCK: usize = 64 * 1024;

/// How often to look for files that rotation moves past us.
const LOOKS: usize = 4;

/// The kind of data in the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Lines; the last one counts only once it has ended.
    Lines,
    Bytes,
}

/// What is read.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes, or a line with its newline.
    Text(&'a [u8]),
    /// So many bytes of the log that rotation has removed.
    Gap(u64),
}

/// One file, and how far it has been read.
struct Part {
    file: File,
    identity: FileIdentity,
    /// Its place in the log, as far as that is known.
    place: Option<LogPlace>,
    read: u64,
    /// Where reading ends, if it ends before the end of the file.
    until: Option<u64>,
}

impl Part {
    fn number(&self) -> Option<u64> {
        self.place.map(|place| place.number)
    }

    /// Its place: the newest record of it, or what was known of it before.
    fn place_in(&self, places: &[LogPlace]) -> Option<LogPlace> {
        let records = places.iter().filter(|place| place.file == self.identity);
        records.max_by_key(|place| place.number).copied().or(self.place)
    }

    fn size(&self) -> io::Result<u64> {
        let size = self.file.metadata()?.len();
        Ok(self.until.map_or(size, |until| size.min(until)))
    }
}

/// All files of one log.
pub struct Chain {
    files: LogFile,
    /// The most files that a log can have.
    most: u32,
    content: Content,
    /// The files that are open, oldest first.
    parts: VecDeque<Part>,
    /// The start of a line whose end is in the next block.
    buffer: Vec<u8>,
    /// Whether to read what comes later, too.
    follow: bool,
    /// How many bytes of the log come before what is read next, if no file tells.
    position: Option<u64>,
}

impl Chain {
    /// Opens all existing files of the log. Reads what they have now, or with `follow` what comes later, too.
    pub fn open(files: &LogFile, most: u32, content: Content, follow: bool) -> Result<Chain> {
        let (parts, buffer) = (VecDeque::new(), Vec::new());
        let mut chain = Chain { files: files.clone(), most, content, parts, buffer, follow, position: None };
        let is_unused = log_places(&files.places).is_empty();
        chain.parts = chain.newer(None)?;
        if chain.parts.is_empty() && is_unused {
            // The first byte of the log is still to come.
            chain.position = Some(0);
        }
        if let Some(newest) = chain.parts.back_mut().filter(|_| !follow) {
            newest.until = Some(newest.size().map_err(|error| cannot_read(&files.path, &error))?);
        }
        Ok(chain)
    }

    /// The folder that holds the files.
    pub fn folder(&self) -> &Path {
        self.files.path.parent().unwrap_or(Path::new("/"))
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
        let failed = || format!("cannot read {}", self.files.path.display());
        for index in (0..self.parts.len()).rev() {
            let mut size = self.parts[index].size().doing(Kind::Internal, failed)?;
            let file = &self.parts[index].file;
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

    /// Passes the next block of what has not been read yet to `emit`.
    pub fn step(&mut self, emit: &mut impl FnMut(Piece<'_>) -> Result<Reader>) -> Result<Step> {
        let Chain { parts, buffer, content, .. } = self;
        if let Some(part) = parts.front_mut() {
            match part.next(*content, buffer, emit).map_err(|failed| failed.at(&self.files.path))? {
                Step::End => {}
                done => return Ok(done),
            }
        }
        // An unfinished line is dropped if its file is finished; otherwise it is read again.
        buffer.clear();
        if parts.len() < 2 {
            if !self.follow {
                return Ok(Step::End);
            }
            let newer = self.newer(self.parts.front())?;
            if newer.is_empty() {
                return Ok(Step::End);
            }
            // The file may have been written and renamed since it was read. It is read once more now that a newer file
            // follows it.
            let was_none = self.parts.is_empty();
            self.parts.extend(newer);
            if !was_none {
                return Ok(Step::More);
            }
        } else if let Some(last) = self.parts.pop_front() {
            self.position = self.end_of(&last)?;
        }
        match self.gap() {
            0 => Ok(Step::More),
            gap => Ok(if emit(Piece::Gap(gap))? == Reader::Gone { Step::Gone } else { Step::More }),
        }
    }

    /// Where in the log this file ends, as far as that is recorded.
    fn end_of(&self, part: &Part) -> Result<Option<u64>> {
        let size = part.size().map_err(|error| cannot_read(&self.files.path, &error))?;
        Ok(part.place.map(|place| place.start + size))
    }

    /// How many bytes of the log are missing before the next file.
    fn gap(&self) -> u64 {
        let start = self.parts.front().and_then(|part| part.place).map(|place| place.start);
        start.zip(self.position).map_or(0, |(start, position)| start.saturating_sub(position))
    }

    /// Opens the files that are newer than `last`, oldest first.
    fn newer(&self, last: Option<&Part>) -> Result<VecDeque<Part>> {
        let mut found: Vec<Part> = Vec::new();
        for _ in 0..LOOKS {
            let mut met = self.look(last)?;
            // Read after the files are opened: none of them can have become another since.
            let places = log_places(&self.files.places);
            if places.is_empty() {
                // The second file of a log brings the first records: this one begins the log.
                if let Some(newest) = met.last_mut() {
                    newest.place = Some(LogPlace { number: 0, file: newest.identity, start: 0 });
                }
                return Ok(met.into());
            }
            let before = last.and_then(|last| last.place_in(&places)).map(|place| place.number);
            for mut part in met {
                part.place = part.place_in(&places);
                // What is older than the records is older than a file that is recorded.
                let is_newer = before.is_none_or(|before| part.number().is_some_and(|number| number > before));
                if is_newer && found.iter().all(|other| other.identity != part.identity) {
                    found.push(part);
                }
            }
            found.sort_by_key(|part| part.number().unwrap_or(0));
            let numbers: Vec<u64> = before.into_iter().chain(found.iter().filter_map(Part::number)).collect();
            if numbers.windows(2).all(|pair| pair[1] == pair[0] + 1) {
                break;
            }
        }
        Ok(found.into())
    }

    /// Opens all files but those that are as old as `last`, or older; oldest first, as far as their names tell.
    fn look(&self, last: Option<&Part>) -> Result<Vec<Part>> {
        let mut met: Vec<Part> = Vec::new();
        for age in 0..self.most {
            let path = rotated_log(&self.files.path, age);
            // A number is unused for a moment while files are renamed.
            let Some((part, size)) = open(&path).map_err(|error| cannot_read(&path, &error))? else { continue };
            if last.is_some_and(|last| last.identity == part.identity) {
                break;
            }
            // The shim has begun it, and may not have recorded it yet.
            if size > 0 {
                met.push(part);
            }
        }
        Ok(where_last_met(met, |part| part.identity))
    }
}

/// Reverses the files from newest-first to oldest-first, and keeps each where it was met last: a file that moves
/// meanwhile is met again.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    More,
    /// There is nothing more now.
    End,
    /// Nobody reads what is printed.
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
        emit: &mut impl FnMut(Piece<'_>) -> Result<Reader>,
    ) -> std::result::Result<Step, Failed> {
        let begun = buffer.len();
        let from = self.read + begun as u64;
        let left = self.until.map_or(u64::MAX, |until| until.saturating_sub(from));
        buffer.resize(begun + usize::try_from(left).unwrap_or(BLOCK).min(BLOCK), 0);
        let length = read_at(&self.file, &mut buffer[begun..], from).map_err(Failed::Read)?;
        buffer.truncate(begun + length);
        if length == 0 {
            // Somebody may have truncated the file: new data then comes at its new end.
            self.read = self.read.min(self.size().map_err(Failed::Read)?);
            return Ok(Step::End);
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
            if emit(Piece::Text(piece)).map_err(Failed::Emit)? == Reader::Gone {
                return Ok(Step::Gone);
            }
        }
        self.read += done as u64;
        buffer.drain(..done);
        Ok(Step::More)
    }
}

/// Opens a file of the log; `None` where there is none, or one that another user has put there: the shim writes to none
/// of those. Also returns its size.
fn open(path: &Path) -> io::Result<Option<(Part, u64)>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let meta = file.metadata()?;
    let part = Part { file, identity: FileIdentity::of(&meta), place: None, read: 0, until: None };
    Ok((meta.is_file() && !is_planted(&meta, path)).then_some((part, meta.len())))
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
    use std::path::PathBuf;

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
            self.open(content, true)
        }

        fn open(&self, content: Content, follow: bool) -> Chain {
            let places = self.dir.path().join("places");
            Chain::open(&LogFile { path: self.path(), places }, 4, content, follow).unwrap()
        }
    }

    fn read(chain: &mut Chain) -> Vec<String> {
        let mut found = Vec::new();
        let mut emit = |piece: Piece<'_>| {
            found.push(match piece {
                Piece::Text(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
                Piece::Gap(bytes) => format!("{bytes} missing"),
            });
            Ok(Reader::There)
        };
        while chain.step(&mut emit).unwrap() == Step::More {}
        found
    }

    #[test]
    fn what_comes_later_is_not_read_without_follow() {
        for content in [Content::Lines, Content::Bytes] {
            let files = Files::new();
            files.append("1\n");
            files.rotate();
            files.append("2\n");
            let mut chain = files.open(content, false);
            files.append("3\n");
            files.rotate();
            files.append("4\n");
            assert_eq!(read(&mut chain), ["1\n", "2\n"]);
            files.append("5\n");
            assert!(read(&mut chain).is_empty());
            let mut chain = files.open(content, false);
            chain.skip_to_last(2, |_| true).unwrap();
            files.append("6\n");
            assert_eq!(read(&mut chain).concat(), "4\n5\n");
        }
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
