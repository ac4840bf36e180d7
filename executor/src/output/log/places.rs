//! Where each file of a log begins, counted in bytes of the log: with it a reader knows the order of the files that it
//! holds, and how many bytes rotation has removed between two of them.
//!
//! A ring of records in the task's folder. Each file gets its record before its first byte, so who finds a file that is
//! not empty finds its record too. A file of the log that is open keeps its inode number, which names its record.
//! Most logs stay in their first file and have no records. Must not: open a file of the log.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use bowline_model::trust;
use rustix::fs::{FallocateFlags, fallocate};

/// A file, by its device and inode numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity(pub u64, pub u64);

impl Identity {
    /// The identity of the file that has this metadata.
    pub fn of(meta: &Metadata) -> Identity {
        Identity(meta.dev(), meta.ino())
    }
}

/// A file's place in its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPlace {
    /// The number of the file: each is higher by one than that of the file before.
    pub number: u64,
    /// Which file it is.
    pub file: Identity,
    /// How many bytes of the log come before the file's first byte.
    pub start: u64,
}

/// The length of a record.
const RECORD: usize = 40;

impl LogPlace {
    fn record(self) -> [u8; RECORD] {
        let LogPlace { number, file: Identity(device, inode), start } = self;
        let mut record = [0; RECORD];
        let words = [number, device, inode, start, check([number, device, inode, start])];
        record.chunks_exact_mut(8).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
        record
    }

    /// `None` for one that is blank, or only partly written.
    fn of(record: &[u8]) -> Option<LogPlace> {
        let mut words = record.chunks_exact(8).filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
        let [number, device, inode, start, sum] = std::array::from_fn(|_| words.next().unwrap_or(0));
        let is_whole = number > 0 && sum == check([number, device, inode, start]);
        is_whole.then_some(LogPlace { number, file: Identity(device, inode), start })
    }
}

/// A sum in which each word counts (FNV-1a, by words).
fn check(words: [u64; 4]) -> u64 {
    words.iter().fold(0xcbf2_9ce4_8422_2325, |sum, word| (sum ^ word).wrapping_mul(0x0100_0000_01b3))
}

/// Reads the places of the log whose records are at `path`; none where there are no records.
pub fn log_places(path: &Path) -> Vec<LogPlace> {
    trust::read(path).map(|all| all.chunks_exact(RECORD).filter_map(LogPlace::of).collect()).unwrap_or_default()
}

/// The records, as the shim writes them.
#[derive(Debug)]
pub struct Places {
    path: PathBuf,
    /// How many records there are at most.
    most: u64,
    /// The newest file's place, once it is known.
    last: Option<LogPlace>,
}

impl Places {
    /// The records at `path`, for a log of at most `keep` files.
    pub fn at(path: &Path, keep: u32) -> Places {
        // A reader that has opened all files may be slow to read the records.
        Places { path: path.to_owned(), most: 2 * u64::from(keep) + 64, last: None }
    }

    /// The newest file that has a record.
    pub fn newest(&mut self) -> Option<LogPlace> {
        self.last = self.last.or_else(|| log_places(&self.path).into_iter().max_by_key(|place| place.number));
        self.last
    }

    /// Records that `file` follows `before`, whose last byte is at `end`. `file` may have `length` bytes already. Returns
    /// where in the log it begins.
    pub fn follow(&mut self, (before, end): (Identity, u64), file: Identity, length: u64) -> u64 {
        let newest = self.newest();
        let is_first = newest.is_none();
        let before = newest.unwrap_or(LogPlace { number: 1, file: before, start: 0 });
        let start = before.start.saturating_add(end).saturating_sub(length);
        let place = LogPlace { number: before.number + 1, file, start };
        self.last = Some(place);
        let written = if is_first { self.make().and_then(|()| self.write(before)) } else { Ok(()) };
        if let Err(error) = written.and_then(|()| self.write(place)) {
            tracing::warn!(%error, path = %self.path.display(), "cannot record a file of the log: `logs` may not say what rotation removed");
        }
        start
    }

    /// Makes the file, with room for all records.
    fn make(&self) -> io::Result<()> {
        let file = trust::create(&self.path)?;
        // Where the filesystem cannot, a full disk may refuse a record later.
        let _ = fallocate(&file, FallocateFlags::empty(), 0, self.most * RECORD as u64);
        Ok(())
    }

    fn write(&self, place: LogPlace) -> io::Result<()> {
        let file = trust::open(File::options().write(true), &self.path)?;
        file.write_all_at(&place.record(), place.number % self.most * RECORD as u64)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_file_begins_where_the_one_before_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("places");
        let mut places = Places::at(&path, 2);
        assert_eq!(places.newest(), None);
        let id = |inode| Identity(1, inode);
        places.follow((id(10), 100), id(11), 0);
        places.follow((id(11), 50), id(12), 0);
        // Another shim goes on, with a file that somebody has put there.
        let mut places = Places::at(&path, 2);
        places.follow((id(12), 7), id(13), 5);
        let all = log_places(&path);
        let found: Vec<_> = all.iter().map(|place| (place.number, place.file, place.start)).collect();
        assert_eq!(found, [(1, id(10), 0), (2, id(11), 100), (3, id(12), 150), (4, id(13), 152)]);
        for inode in 14..1000 {
            places.follow((id(inode - 1), 1), id(inode), 0);
        }
        let all = log_places(&path);
        assert_eq!((all.len(), all.iter().map(|place| place.number).max()), (68, Some(990)));
    }

    #[test]
    fn a_record_that_is_partly_written_is_none() {
        let place = LogPlace { number: 7, file: Identity(1, 2), start: 3 };
        assert_eq!(LogPlace::of(&place.record()), Some(place));
        for at in 0..RECORD {
            let mut torn = place.record();
            torn[at] ^= 1;
            assert_eq!(LogPlace::of(&torn), None, "{at}");
        }
        assert_eq!(LogPlace::of(&[0; RECORD]), None);
    }
}
