//! One file of a log, and its older files: `log`, `log.1`, …
//!
//! Each append checks by one lstat what it writes to: a file that was removed or renamed is created
//! again, a file that was cut short is continued. A file never becomes larger than its limit. Files
//! are created and renamed by path, so that a folder that was away is found again; until then the
//! open file gets what still fits. Must not: follow a symlink in place of a file, or write to
//! anything that is no file, or that another user has put there.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bowline_error::{Error, Kind, Result};
use bowline_model::log_line::{self as line, Format};
use bowline_model::trust::{self, Planted};
use jiff::Timestamp;

use super::batch::Batch;
use super::files::{LogFile, rotated_file};
use super::mark::At;
use super::places::{Identity, Places};

#[derive(Debug)]
pub struct Rotated {
    path: PathBuf,
    /// The most bytes of a file.
    limit: u64,
    /// How many files there are at most.
    keep: u32,
    format: Format,
    /// The file that was opened last.
    current: Option<Current>,
    /// Whether the log was opened for a new task: then its first file follows no other.
    is_new: bool,
    places: Places,
    /// How many of the task's bytes are missing and not noted yet.
    pub lost: u64,
    /// The position in the log from which on pieces may be there already: a shim was killed while it wrote them.
    pub begun: Option<u64>,
}

/// The file that pieces go to.
#[derive(Debug)]
struct Current {
    file: File,
    identity: Identity,
    /// How many bytes of the log come before it.
    start: u64,
    /// Whether it can be written on: it was not renamed by us, and does not end in a torn line.
    is_sound: bool,
}

impl Rotated {
    /// The log in `file`, which the next write opens, and which may have content already.
    pub fn at(file: &LogFile, limit: u64, keep: u32, format: Format) -> Rotated {
        let places = Places::at(&file.places, keep);
        let path = file.path.clone();
        Rotated { path, limit, keep, format, current: None, is_new: false, places, lost: 0, begun: None }
    }

    /// Opens the log of a new task.
    pub fn open(&mut self) -> Result<()> {
        self.is_new = true;
        self.size().map(drop).map_err(|error| {
            let hint = match Planted::is(&error) {
                true => "choose a folder that no other user may write to",
                false => "the folder must exist and be writable, and nothing but a file may have that name",
            };
            Error::new(Kind::BadSpec, format!("cannot open {}: {error}", self.path.display()))
                .in_field("log")
                .hint(hint)
        })
    }

    /// Where the next pieces go; `None` if there is no file.
    pub fn end(&mut self) -> Option<At> {
        let size = self.size().ok()?;
        let start = self.current.as_ref()?.start;
        Some(At { start, size })
    }

    /// Appends the pieces of `batch`. Returns how many of the task's bytes were dropped.
    pub fn append(&mut self, batch: &Batch) -> u64 {
        let mut first = self.begun.take().and_then(|position| self.find(batch, position)).unwrap_or(0);
        // The note goes first: the missing bytes came before this batch.
        while first < batch.pieces() && self.note(Timestamp::now()) {
            let Ok(size) = self.size() else { break };
            let count = batch.fitting(first, self.limit.saturating_sub(size));
            let count = match count {
                0 if size > 0 => match self.rotate() {
                    Ok(()) => continue,
                    Err(_) => break,
                },
                // A piece larger than any file may be cannot happen, because pieces are small.
                0 => 1,
                _ => count,
            };
            let bytes = batch.bytes(first, count);
            let written = self.write(bytes);
            if written == bytes.len() {
                first += count;
                continue;
            }
            let (pieces, more) = self.settle(batch, first, size, written);
            let dropped = batch.payload(first + pieces) - more;
            self.lost += dropped;
            return dropped;
        }
        let dropped = batch.payload(first);
        self.lost += dropped;
        dropped
    }

    /// Returns how many pieces of `batch` are there, from `position` on, and completes one of which a part is; `None`
    /// where something else is there.
    fn find(&mut self, batch: &Batch, position: u64) -> Option<usize> {
        let (file, meta) = begin(&self.path).ok()?;
        self.enter(file, &meta);
        let Current { file, start, .. } = self.current.as_ref()?;
        let (all, size) = (batch.bytes(0, batch.pieces()), meta.len());
        let there = usize::try_from(start.saturating_add(size).checked_sub(position)?).unwrap_or(usize::MAX);
        let there = there.min(all.len());
        // What is in older files is there: its size says so.
        let older = usize::try_from(start.saturating_sub(position)).unwrap_or(usize::MAX).min(there);
        let mut found = vec![0; there - older];
        file.read_exact_at(&mut found, position.saturating_sub(*start)).ok()?;
        if found != all[older..there] {
            // It may end in a part of a line.
            self.give_up();
            return None;
        }
        let first = batch.fitting(0, there as u64);
        let part = there - batch.bytes(0, first).len();
        if there == all.len() {
            // The next pieces may be there as well.
            self.begun = Some(position + there as u64);
        }
        // A piece that is torn in an older file is written again.
        if part == 0 || part > found.len() {
            return Some(first);
        }
        let rest = &batch.bytes(first, 1)[part..];
        if self.write(rest) < rest.len() {
            // What is torn is not gone on with.
            self.give_up();
            return Some(first);
        }
        Some(first + 1)
    }

    /// After a write of `written` bytes of the pieces from `first` on, behind `size` others:
    /// returns how many pieces are in the file, and how many bytes of the next.
    fn settle(&mut self, batch: &Batch, first: usize, size: u64, written: usize) -> (usize, u64) {
        let pieces = batch.fitting(first, written as u64);
        let whole = batch.bytes(first, pieces).len();
        match self.format {
            // Half a line would be no JSON. A file that cannot be cut is not continued: `size`
            // finds that its last line does not end.
            Format::Json => {
                self.cut(size + whole as u64);
                (pieces, 0)
            }
            Format::Raw => (pieces, (written - whole) as u64),
        }
    }

    /// Notes missing bytes in the file, if there are any; false if that fails.
    pub fn note(&mut self, time: Timestamp) -> bool {
        if self.lost == 0 || self.format == Format::Raw {
            return true;
        }
        let note = line::note(self.lost, time);
        let Ok(mut size) = self.size() else { return false };
        if size > 0 && size + note.len() as u64 > self.limit {
            if self.rotate().is_err() {
                return false;
            }
            let Ok(now) = self.size() else { return false };
            size = now;
        }
        if self.write(&note) < note.len() {
            self.cut(size);
            return false;
        }
        self.lost = 0;
        true
    }

    /// Writes as many of `bytes` as possible and returns how many.
    fn write(&mut self, bytes: &[u8]) -> usize {
        let Some(Current { file, .. }) = &mut self.current else { return 0 };
        let mut done = 0;
        while done < bytes.len() {
            match file.write(&bytes[done..]) {
                Ok(0) => return done,
                Ok(length) => done += length,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return done,
            }
        }
        done
    }

    /// Cuts the file to this size. One that cannot be cut is not continued.
    fn cut(&mut self, size: u64) {
        if self.current.as_ref().is_none_or(|current| current.file.set_len(size).is_err()) {
            self.give_up();
        }
    }

    /// The file is not continued: the next write opens what is there by then.
    fn give_up(&mut self) {
        self.current.iter_mut().for_each(|current| current.is_sound = false);
    }

    /// Returns the size of the file that the next piece goes to, which is open then.
    fn size(&mut self) -> io::Result<u64> {
        let sound = self.current.as_ref().filter(|current| current.is_sound);
        if let Some(current) = sound
            && let Ok(there) = fs::symlink_metadata(&self.path)
            && Identity::of(&there) == current.identity
        {
            return Ok(there.len());
        }
        let (file, meta) = match begin(&self.path) {
            Ok(opened) => opened,
            Err(error) => return sound.and_then(still_there).ok_or(error),
        };
        let size = meta.len();
        let is_torn = size > 0 && self.format == Format::Json && !ends_its_line(&file, size)?;
        self.enter(file, &meta);
        if !is_torn {
            return Ok(size);
        }
        // A shim or a machine died while writing the line.
        self.rotate()?;
        let (file, meta) = begin(&self.path)?;
        self.enter(file, &meta);
        Ok(meta.len())
    }

    /// Goes on in `file`, and records its place in the log before anything is written to it.
    fn enter(&mut self, file: File, meta: &Metadata) {
        let (identity, length) = (Identity::of(meta), meta.len());
        let before = match &self.current {
            Some(before) => {
                let end = before.file.metadata().map_or(0, |meta| meta.len());
                Some((before.identity, before.start, end))
            }
            None if self.is_new => None,
            // That of a shim before this one.
            None => self.left_by_another(),
        };
        let start = match before {
            None => 0,
            Some((before, start, _)) if before == identity => start,
            Some((before, _, end)) => self.places.follow((before, end), identity, length),
        };
        self.current = Some(Current { file, identity, start, is_sound: true });
    }

    /// The file that a shim before this one wrote to, where it begins in the log, and its length. One that was killed
    /// before the first record has left at most one older file.
    fn left_by_another(&mut self) -> Option<(Identity, u64, u64)> {
        if let Some(newest) = self.places.newest() {
            return Some((newest.file, newest.start, self.length_of(newest.file)));
        }
        let first = rotated_file(&self.path, 1).symlink_metadata().ok().filter(|_| self.keep > 1)?;
        Some((Identity::of(&first), 0, first.len()))
    }

    /// The length of an older file of the log; 0 if it is gone.
    fn length_of(&self, file: Identity) -> u64 {
        let mut older = (1..self.keep).filter_map(|age| rotated_file(&self.path, age).symlink_metadata().ok());
        older.find(|meta| Identity::of(meta) == file).map_or(0, |meta| meta.len())
    }

    /// Makes room for a new file; drops the oldest.
    fn rotate(&mut self) -> io::Result<()> {
        self.give_up();
        if self.keep == 1 {
            return self.replace();
        }
        let oldest = self.keep - 1;
        // Only up to the first number that is free, if there is one.
        let free = (1..oldest).find(|age| rotated_file(&self.path, *age).symlink_metadata().is_err());
        for age in (0..free.unwrap_or(oldest)).rev() {
            let rename = fs::rename(rotated_file(&self.path, age), rotated_file(&self.path, age + 1));
            gone_is_fine(rename)?;
        }
        Ok(())
    }

    /// Puts a new file in the place of the only one. It gets its record first: once the other has gone, nothing tells
    /// how long that was.
    fn replace(&mut self) -> io::Result<()> {
        let mut next = self.path.as_os_str().to_owned();
        next.push(".next");
        let next = PathBuf::from(next);
        let begun = begin(&next).and_then(|(file, _)| {
            file.set_len(0)?;
            let meta = file.metadata()?;
            Ok((file, meta))
        });
        // Without room for two.
        let Ok((file, meta)) = begun else { return gone_is_fine(fs::remove_file(&self.path)) };
        self.enter(file, &meta);
        fs::rename(&next, &self.path).inspect_err(|_| self.give_up())
    }
}

/// The size of an open file that has still a name.
fn still_there(current: &Current) -> Option<u64> {
    let meta = current.file.metadata().ok()?;
    (meta.nlink() > 0).then_some(meta.len())
}

/// Opens the file, or makes it.
fn begin(path: &Path) -> io::Result<(File, Metadata)> {
    let opened = File::options()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o640)
        // Do not wait for the other end of what is no file.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    let file = opened.map_err(|error| trust::planted_or(error, path))?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"));
    }
    trust::check_planted(&meta, path)?;
    Ok((file, meta))
}

fn ends_its_line(file: &File, size: u64) -> io::Result<bool> {
    let mut last = [0];
    file.read_exact_at(&mut last, size - 1)?;
    Ok(last == *b"\n")
}

fn gone_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::output::log::log_places;

    fn batch(lines: &[&str]) -> Batch {
        let mut batch = Batch::new(Format::Json, bowline_model::log_line::LogStream::Stdout, Timestamp::UNIX_EPOCH);
        for line in lines {
            batch.push(&mut Vec::new(), line.as_bytes(), true);
        }
        batch
    }

    fn at(path: &Path, limit: u64, keep: u32) -> Rotated {
        let file = LogFile { path: path.to_owned(), places: path.with_file_name("places") };
        Rotated::at(&file, limit, keep, Format::Json)
    }

    fn lines(path: &Path) -> usize {
        fs::read_to_string(path).map_or(0, |text| text.lines().count())
    }

    #[test]
    fn files_stay_within_their_limit_and_their_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let one = batch(&["line"]);
        // Two lines fit.
        let mut log = at(&path, one.len() as u64 * 2 + 1, 3);
        for count in 1..=9 {
            assert_eq!(log.append(&batch(&["a", "b"][..1 + count % 2])), 0);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4, "three files, and their places");
        let all: usize = (0..3).map(|age| lines(&rotated_file(&path, age))).sum();
        assert!((5..=6).contains(&all), "{all}");
    }

    /// Also by another shim; each file has its place.
    #[test]
    fn a_file_that_is_removed_or_renamed_is_made_anew() {
        for go_on in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (path, places) = (dir.path().join("log"), dir.path().join("places"));
            let mut log = at(&path, 10_000, 2);
            log.open().unwrap();
            for name in ["first", "second", "third"] {
                assert_eq!(log.append(&batch(&[name])), 0);
                assert_eq!(lines(&path), 1);
                match name {
                    "first" => fs::remove_file(&path).unwrap(),
                    _ => fs::rename(&path, dir.path().join(name)).unwrap(),
                }
                if go_on && name != "first" {
                    log = at(&path, 10_000, 2);
                }
            }
            let starts: Vec<u64> = log_places(&places).iter().map(|place| place.start).collect();
            let [first, second] = ["first", "second"].map(|name| batch(&[name]).len() as u64);
            // Who renames a file while no shim is there takes it out of the log.
            let third = if go_on { first } else { first + second };
            assert_eq!(starts, [0, first, third], "{go_on}");
        }
    }

    #[test]
    fn a_renamed_file_is_written_on_where_no_other_can_be_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = at(&path, 10_000, 2);
        log.open().unwrap();
        assert_eq!(log.append(&batch(&["first"])), 0);
        fs::rename(&path, dir.path().join("x")).unwrap();
        std::os::unix::fs::symlink("nowhere", &path).unwrap();
        assert_eq!(log.append(&batch(&["second"])), 0);
        assert_eq!(lines(&dir.path().join("x")), 2);
        fs::remove_file(&path).unwrap();
        assert_eq!(log.append(&batch(&["third"])), 0);
        assert_eq!(lines(&path), 1);
        // Past its limit it is not written on.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let one = batch(&["line"]);
        let mut log = at(&path, one.len() as u64, 2);
        log.open().unwrap();
        assert_eq!(log.append(&one), 0);
        fs::create_dir(rotated_file(&path, 1)).unwrap();
        assert_eq!(log.append(&one), 5);
    }

    #[test]
    fn what_a_missing_folder_takes_is_counted_and_noted() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("logs");
        fs::create_dir(&folder).unwrap();
        let path = folder.join("log");
        let mut log = at(&path, 10_000, 2);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(log.append(&batch(&["123", "1234"])), 9);
        fs::create_dir(&folder).unwrap();
        assert_eq!(log.append(&batch(&["x"])), 0);
        let text = fs::read_to_string(&path).unwrap();
        let first = text.lines().next().unwrap();
        assert!(first.ends_with("\"dropped\":9}"), "{text}");
        assert_eq!(text.lines().count(), 2);
    }

    #[test]
    fn a_torn_line_is_not_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        fs::write(&path, "{\"time\":").unwrap();
        let mut log = at(&path, 10_000, 2);
        assert_eq!(log.append(&batch(&["x"])), 0);
        assert_eq!(lines(&path), 1);
        assert_eq!(fs::read_to_string(rotated_file(&path, 1)).unwrap(), "{\"time\":");
    }

    /// A shim is killed at any byte that it writes: the next one goes on with the same bytes.
    #[test]
    fn a_write_that_was_cut_off_is_gone_on_with() {
        let names = ["first", "second", "third", "fourth"];
        let all = batch(&names);
        // All in one file, and with a new file after two of them.
        for limit in [10_000, (batch(&["before"]).len() + all.bytes(0, 2).len()) as u64] {
            for written in 0..=all.len() {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("log");
                let new = || at(&path, limit, 3);
                let mut log = new();
                log.append(&batch(&["before"]));
                let at = log.end();
                let pieces = all.fitting(0, written as u64);
                log.append(&batch(&names[..pieces]));
                let part = &all.bytes(0, 4)[all.bytes(0, pieces).len()..written];
                if !part.is_empty() {
                    if limit < 10_000 && pieces == 2 {
                        log.rotate().unwrap();
                        assert_eq!(log.size().unwrap(), 0);
                    }
                    begin(&path).unwrap().0.write_all(part).unwrap();
                }
                let mut next = new();
                next.begun = at.map(At::position);
                // As many batches as a shim may make of it.
                next.append(&batch(&names[..1]));
                next.append(&batch(&names[1..]));
                next.append(&batch(&["after"]));
                let files = [rotated_file(&path, 1), path.clone()];
                let text: String = files.iter().map(|file| fs::read_to_string(file).unwrap_or_default()).collect();
                let expected = batch(&["before", "first", "second", "third", "fourth", "after"]);
                assert_eq!(text.as_bytes(), expected.bytes(0, 6), "{limit}, {written}");
            }
        }
    }

    /// A shim is killed before a new file has its record: the next one still knows what came before.
    #[test]
    fn where_a_file_begins_is_known_whatever_was_done_of_a_rotation() {
        for keep in [1, 3] {
            for done in 0..3 {
                let dir = tempfile::tempdir().unwrap();
                let (path, places) = (dir.path().join("log"), dir.path().join("places"));
                let one = batch(&["line"]);
                let mut log = at(&path, one.len() as u64, keep);
                log.open().unwrap();
                log.append(&one);
                match (keep, done) {
                    (_, 0) => {}
                    (1, 1) => drop(begin(&path.with_file_name("log.next")).unwrap()),
                    (1, _) => {
                        let (next, meta) = begin(&path.with_file_name("log.next")).unwrap();
                        log.enter(next, &meta);
                    }
                    _ => {
                        fs::rename(&path, rotated_file(&path, 1)).unwrap();
                        if done == 2 {
                            begin(&path).unwrap();
                        }
                    }
                }
                let mut next = at(&path, one.len() as u64, keep);
                next.append(&one);
                next.append(&one);
                let newest = log_places(&places).into_iter().max_by_key(|place| place.number).unwrap();
                assert_eq!(newest.file, Identity::of(&path.metadata().unwrap()), "{keep}, {done}");
                assert_eq!(newest.start, 2 * one.len() as u64, "{keep}, {done}");
            }
        }
    }

    /// What is torn was set aside meanwhile: no line is lost.
    #[test]
    fn a_write_that_was_cut_off_in_a_file_that_was_set_aside_is_gone_on_with() {
        let names = ["first", "second", "third"];
        let all = batch(&names);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = at(&path, 10_000, 3);
        let at = log.end();
        begin(&path).unwrap().0.write_all(&all.bytes(0, 3)[..all.bytes(0, 1).len() + 3]).unwrap();
        log.rotate().unwrap();
        log.begun = at.map(At::position);
        log.append(&all);
        let text = fs::read(&path).unwrap();
        assert_eq!(text, all.bytes(1, 2));
        assert!(fs::read(rotated_file(&path, 1)).unwrap().starts_with(all.bytes(0, 1)));
    }

    /// As many files were begun since as there are, and more: no line comes twice.
    #[test]
    fn a_write_that_was_cut_off_many_files_later_is_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let names: Vec<String> = (0..200).map(|name| name.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let all = batch(&names);
        let mut log = at(&path, batch(&["100", "101"]).len() as u64, 2);
        log.append(&batch(&["before"]));
        let begun = log.end();
        log.append(&batch(&names[..151]));
        let mut next = at(&path, 10_000, 2);
        next.begun = begun.map(At::position);
        next.append(&all);
        let text = fs::read_to_string(&path).unwrap();
        let first = batch(&["150"]);
        assert!(text.as_bytes().starts_with(first.bytes(0, 1)) && text.lines().count() == 50, "{text}");
    }

    #[test]
    fn what_is_not_what_a_shim_would_have_written_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = at(&path, 10_000, 3);
        let at = log.end();
        fs::write(&path, "somebody else's\n").unwrap();
        log.begun = at.map(At::position);
        log.append(&batch(&["line"]));
        assert_eq!(lines(&path), 2);
    }
}
