//! One file of a log, and its older files: `log`, `log.1`, …
//!
//! Each append checks by one fstat what it writes to: a file that was removed is created again, a
//! file that was cut short is continued. A file never becomes larger than its limit. Files are
//! created and renamed by path, so that a folder that was away is found again. Must not: follow a
//! symlink in place of a file, or write to anything that is no file, or that another user has put there.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bowline_error::{Error, Kind, Result};
use jiff::Timestamp;

use super::batch::Batch;
use super::files::rotated_file;
use super::line::{self, Format};
use super::mark::At;
use crate::trust::{self, Planted};

#[derive(Debug)]
pub struct Rotated {
    path: PathBuf,
    /// The most bytes of a file.
    limit: u64,
    /// How many files there are at most.
    keep: u32,
    format: Format,
    /// The open file, if it could be written last time.
    file: Option<File>,
    /// How many of the task's bytes are missing and not noted yet.
    pub lost: u64,
    /// Where pieces may be already: a shim was killed while it wrote them.
    pub begun: Option<At>,
}

impl Rotated {
    /// The file at `path`, which the next write opens, and which may have content already.
    pub fn at(path: &Path, limit: u64, keep: u32, format: Format) -> Rotated {
        Rotated { path: path.to_owned(), limit, keep, format, file: None, lost: 0, begun: None }
    }

    pub fn open(&mut self) -> Result<()> {
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

    /// Which file the next pieces go to, unless it has no room, and its size; `None` if there is none.
    pub fn end(&mut self) -> Option<At> {
        let size = self.size().ok()?;
        let file = self.file.as_ref()?.metadata().ok()?.ino();
        Some(At { file, size })
    }

    /// Appends the pieces of `batch`. Returns how many of the task's bytes were dropped.
    pub fn append(&mut self, batch: &Batch) -> u64 {
        let mut first = self.begun.take().and_then(|at| self.find(batch, at)).unwrap_or(0);
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

    /// Returns how many pieces of `batch` are there, from `at` on, and completes one of which a part is; `None` where
    /// something else is there.
    fn find(&mut self, batch: &Batch, mut at: At) -> Option<usize> {
        let (file, meta) = begin(&self.path).ok()?;
        let mut first = 0;
        if meta.ino() != at.file {
            // The rest of what is there is in the file before, which is gone where only one is kept.
            let older = rotated_file(&self.path, 1).symlink_metadata().ok().filter(|older| older.ino() == at.file);
            let room = match older {
                Some(older) => older.len(),
                None if self.keep == 1 => self.limit,
                None => return None,
            };
            first = batch.fitting(0, room.saturating_sub(at.size));
            if first == batch.pieces() {
                self.begun = Some(At { size: at.size.saturating_add(batch.len() as u64), ..at });
                return Some(first);
            }
            at = At { file: meta.ino(), size: 0 };
        }
        let all = batch.bytes(first, batch.pieces() - first);
        let there = usize::try_from(meta.len().checked_sub(at.size)?).unwrap_or(usize::MAX).min(all.len());
        let mut found = vec![0; there];
        file.read_exact_at(&mut found, at.size).ok()?;
        if found != all[..there] {
            return None;
        }
        let whole = batch.fitting(first, there as u64);
        let part = there - batch.bytes(first, whole).len();
        first += whole;
        self.file = Some(file);
        if part > 0 {
            let rest = &batch.bytes(first, 1)[part..];
            if self.write(rest) < rest.len() {
                // What is torn is not gone on with.
                self.file = None;
                return Some(first);
            }
            first += 1;
        } else if there == all.len() {
            // The next pieces may be there as well.
            self.begun = Some(At { size: at.size + there as u64, ..at });
        }
        Some(first)
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
                let cut = self.file.as_ref().is_some_and(|file| file.set_len(size + whole as u64).is_ok());
                if !cut {
                    self.file = None;
                }
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
            let cut = self.file.as_ref().is_some_and(|file| file.set_len(size).is_ok());
            if !cut {
                self.file = None;
            }
            return false;
        }
        self.lost = 0;
        true
    }

    /// Writes as many of `bytes` as possible and returns how many.
    fn write(&mut self, bytes: &[u8]) -> usize {
        let Some(file) = &mut self.file else { return 0 };
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

    /// Returns the size of the file, which is open then.
    fn size(&mut self) -> io::Result<u64> {
        if let Some(file) = &self.file {
            let meta = file.metadata()?;
            if meta.nlink() > 0 {
                return Ok(meta.len());
            }
            self.file = None;
        }
        let (file, meta) = begin(&self.path)?;
        let size = meta.len();
        if size > 0 && self.format == Format::Json && !ends_its_line(&file, size)? {
            // A shim or a machine died while writing the line.
            self.rotate()?;
            self.file = Some(begin(&self.path)?.0);
            return Ok(0);
        }
        self.file = Some(file);
        Ok(size)
    }

    /// Makes room for a new file; drops the oldest.
    fn rotate(&mut self) -> io::Result<()> {
        self.file = None;
        if self.keep == 1 {
            return gone_is_fine(fs::remove_file(&self.path));
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

    fn batch(lines: &[&str]) -> Batch {
        let mut batch = Batch::new(Format::Json, crate::log::LogStream::Stdout, Timestamp::UNIX_EPOCH);
        for line in lines {
            batch.push(&mut Vec::new(), line.as_bytes(), true);
        }
        batch
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
        let mut log = Rotated::at(&path, one.len() as u64 * 2 + 1, 3, Format::Json);
        for count in 1..=9 {
            assert_eq!(log.append(&batch(&["a", "b"][..1 + count % 2])), 0);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        let all: usize = (0..3).map(|age| lines(&rotated_file(&path, age))).sum();
        assert!((5..=6).contains(&all), "{all}");
    }

    #[test]
    fn a_file_that_is_removed_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = Rotated::at(&path, 10_000, 2, Format::Json);
        assert_eq!(log.append(&batch(&["first"])), 0);
        fs::remove_file(&path).unwrap();
        assert_eq!(log.append(&batch(&["second"])), 0);
        assert_eq!(lines(&path), 1);
    }

    #[test]
    fn what_a_missing_folder_takes_is_counted_and_noted() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("logs");
        fs::create_dir(&folder).unwrap();
        let path = folder.join("log");
        let mut log = Rotated::at(&path, 10_000, 2, Format::Json);
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
        let mut log = Rotated::at(&path, 10_000, 2, Format::Json);
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
                let new = || Rotated::at(&path, limit, 3, Format::Json);
                let mut log = new();
                log.append(&batch(&["before"]));
                let at = log.end();
                let pieces = all.fitting(0, written as u64);
                log.append(&batch(&names[..pieces]));
                let part = &all.bytes(0, 4)[all.bytes(0, pieces).len()..written];
                if !part.is_empty() {
                    if limit < 10_000 && pieces == 2 {
                        log.rotate().unwrap();
                    }
                    begin(&path).unwrap().0.write_all(part).unwrap();
                }
                let mut next = new();
                next.begun = at;
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

    /// What is torn was set aside meanwhile: no line is lost.
    #[test]
    fn a_write_that_was_cut_off_in_a_file_that_was_set_aside_is_gone_on_with() {
        let names = ["first", "second", "third"];
        let all = batch(&names);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = Rotated::at(&path, 10_000, 3, Format::Json);
        let at = log.end();
        begin(&path).unwrap().0.write_all(&all.bytes(0, 3)[..all.bytes(0, 1).len() + 3]).unwrap();
        log.rotate().unwrap();
        log.begun = at;
        log.append(&all);
        let text = fs::read(&path).unwrap();
        assert_eq!(text, all.bytes(1, 2));
        assert!(fs::read(rotated_file(&path, 1)).unwrap().starts_with(all.bytes(0, 1)));
    }

    #[test]
    fn what_is_not_what_a_shim_would_have_written_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = Rotated::at(&path, 10_000, 3, Format::Json);
        let at = log.end();
        fs::write(&path, "somebody else's\n").unwrap();
        log.begun = at;
        log.append(&batch(&["line"]));
        assert_eq!(lines(&path), 2);
    }
}
