//! Writing the journal: whole lines, by any number of writers at once.
//!
//! A file is rotated only when it has [`BOUND`] bytes, so a file that has fewer, and still has its
//! name, is where the next line belongs: one fstat before each write tells. A writer that meets a
//! full file takes its lock, checks that it still is the journal, and renames it. A line that went
//! into a file just rotated is in `journal.1`, where readers look too.
//!
//! Must not: wait for a lock, fail its caller, or recreate the state folder.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::entry::Entry;
use crate::trust;

/// The size at which a journal is rotated, in bytes; at most twice that is kept.
pub const BOUND: u64 = 1 << 20;

/// The file that is being written.
pub const CURRENT: &str = "journal";
/// The file before it, which was rotated.
pub const BEFORE: &str = "journal.1";

/// A journal to write to; one for each process.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    bound: u64,
    file: Option<File>,
    /// Events that could not be written and are not reported yet.
    lost: u64,
    /// All events that could not be written.
    lost_in_all: u64,
}

/// What a journal lacks, as a shim hands it over.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Handed {
    lost: u64,
    lost_in_all: u64,
}

impl Journal {
    /// What the journal lacks, for the program that is executed in the shim's place.
    pub fn hand_over(&self) -> Handed {
        Handed { lost: self.lost, lost_in_all: self.lost_in_all }
    }

    /// Goes on from what the program before this one has lost.
    pub fn go_on(&mut self, handed: Handed) {
        (self.lost, self.lost_in_all) = (handed.lost, handed.lost_in_all);
    }

    /// The journal in `folder`, created with the first event.
    pub fn new(folder: PathBuf) -> Journal {
        Journal { folder, bound: BOUND, file: None, lost: 0, lost_in_all: 0 }
    }

    /// How many events could not be written so far.
    pub fn lost_in_all(&self) -> u64 {
        self.lost_in_all
    }

    /// Writes events in one write. Events that cannot be written are counted; the next one that can
    /// be written carries the count.
    pub fn append(&mut self, entries: &mut [Entry]) {
        if let Some(first) = entries.first_mut() {
            first.lost = self.lost;
        }
        match self.write(entries) {
            Ok(()) => self.lost = 0,
            Err(error) => {
                self.lost += entries.len() as u64;
                self.lost_in_all += entries.len() as u64;
                self.file = None;
                tracing::info!(%error, "an event could not be written");
            }
        }
    }

    fn write(&mut self, entries: &[Entry]) -> io::Result<()> {
        let lines: Vec<u8> = entries.iter().map(Entry::line).collect::<serde_json::Result<Vec<_>>>()?.concat();
        let mut file = self.file()?;
        // One call: lines of another process come before or after.
        match file.write(&lines)? {
            length if length == lines.len() => Ok(()),
            // The disk is full. End the line here, so that the next line stays whole; readers cope
            // with a line that cannot even be ended.
            _ => {
                let _ = file.write(b"\n");
                Err(ErrorKind::StorageFull.into())
            }
        }
    }

    /// The file that the next line belongs to.
    fn file(&mut self) -> io::Result<&File> {
        let current =
            self.file.take().filter(|file| file.metadata().is_ok_and(|m| m.len() < self.bound && m.nlink() > 0));
        let file = match current {
            Some(file) => file,
            None => self.find()?,
        };
        Ok(self.file.insert(file))
    }

    /// Opens the journal, and begins a new one if it is full.
    fn find(&self) -> io::Result<File> {
        let file = self.open()?;
        if file.metadata()?.len() < self.bound {
            return Ok(file);
        }
        // Another process is rotating it: the line is found there too.
        if file.try_lock().is_err() {
            return Ok(file);
        }
        let path = self.folder.join(CURRENT);
        if is_at(&file, &path) {
            fs::rename(&path, self.folder.join(BEFORE))?;
        }
        self.open()
    }

    fn open(&self) -> io::Result<File> {
        let open = || trust::open(File::options().append(true).create(true).mode(0o600), &self.folder.join(CURRENT));
        match open() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                match fs::DirBuilder::new().mode(0o700).create(&self.folder) {
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
                    _ => open(),
                }
            }
            opened => opened,
        }
    }
}

/// Whether `path` leads to `file`.
pub fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(there)) = (file.metadata(), fs::metadata(path)) else { return false };
    (ours.dev(), ours.ino()) == (there.dev(), there.ino())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;

    use super::super::{Event, Reader};
    use super::*;

    fn entry(id: &str, seq: u64) -> Entry {
        Entry { time: Timestamp::UNIX_EPOCH, id: id.parse().expect("an id"), seq, event: Event::Paused, lost: 0 }
    }

    fn journal(folder: &Path, bound: u64) -> Journal {
        Journal { bound, ..Journal::new(folder.join(".events")) }
    }

    fn read(folder: &Path) -> Vec<Entry> {
        Reader::open(folder.join(".events")).expect("readable").read().expect("readable")
    }

    #[test]
    fn events_are_read_in_the_order_in_which_they_were_written() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut journal = journal(dir.path(), BOUND);
        journal.append(&mut [entry("a", 1), entry("a", 2)]);
        journal.append(&mut [entry("b", 1)]);
        assert_eq!(read(dir.path()), [entry("a", 1), entry("a", 2), entry("b", 1)]);
    }

    #[test]
    fn a_full_journal_is_put_aside_and_the_oldest_is_forgotten() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut journal = journal(dir.path(), 1000);
        for seq in 1..=1000 {
            journal.append(&mut [entry("a", seq)]);
        }
        let numbers: Vec<u64> = read(dir.path()).iter().map(|entry| entry.seq).collect();
        assert_eq!(numbers.last(), Some(&1000));
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
        for name in [CURRENT, BEFORE] {
            let size = fs::metadata(dir.path().join(".events").join(name)).expect("it is there").len();
            assert!(size < 1200, "{name} has {size} bytes");
        }
    }

    #[test]
    fn writers_that_meet_a_full_journal_at_once_lose_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let bound = 16 * 1024;
        // Fewer than fit into two files, so that none is dropped.
        let each = 100;
        let mut numbers: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        std::thread::scope(|scope| {
            for name in ["a", "b", "c", "d"] {
                let mut journal = journal(dir.path(), bound);
                scope.spawn(move || (1..=each).for_each(|seq| journal.append(&mut [entry(name, seq)])));
            }
        });
        assert!(dir.path().join(".events").join(BEFORE).exists(), "it was never full");
        for entry in read(dir.path()) {
            assert_eq!(entry.lost, 0);
            numbers.entry(entry.id.to_string()).or_default().push(entry.seq);
        }
        let all: Vec<u64> = (1..=each).collect();
        assert!(numbers.len() == 4 && numbers.values().all(|seen| *seen == all), "{numbers:?}");
    }

    #[test]
    fn a_writer_that_slept_through_two_rotations_goes_on_in_the_journal() {
        let dir = tempfile::tempdir().expect("a folder");
        let (mut idle, mut busy) = (journal(dir.path(), 1000), journal(dir.path(), 1000));
        idle.append(&mut [entry("idle", 1)]);
        (1..=100).for_each(|seq| busy.append(&mut [entry("busy", seq)]));
        idle.append(&mut [entry("idle", 2)]);
        assert_eq!(read(dir.path()).last(), Some(&entry("idle", 2)));
    }

    #[test]
    fn a_journal_that_was_deleted_is_made_anew() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut journal = journal(dir.path(), BOUND);
        journal.append(&mut [entry("a", 1)]);
        fs::remove_dir_all(dir.path().join(".events")).expect("ours");
        journal.append(&mut [entry("a", 2)]);
        assert_eq!(read(dir.path()), [entry("a", 2)]);
    }

    #[test]
    fn what_could_not_be_written_is_counted() {
        let dir = tempfile::tempdir().expect("a folder");
        let state = dir.path().join("state");
        let mut journal = journal(&state, BOUND);
        // The folder does not exist, and the journal must not create it.
        journal.append(&mut [entry("a", 1), entry("a", 2)]);
        journal.append(&mut [entry("a", 3)]);
        assert!(!state.exists());
        fs::create_dir(&state).expect("a folder");
        journal.append(&mut [entry("a", 4)]);
        journal.append(&mut [entry("a", 5)]);
        assert_eq!(read(&state), [Entry { lost: 3, ..entry("a", 4) }, entry("a", 5)]);
        assert_eq!(journal.lost_in_all(), 3, "also after somebody was told");
    }
}
