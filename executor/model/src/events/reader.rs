//! Reading the journal: first what there is, then what comes.
//!
//! A reader keeps its files open: a file that is rotated meanwhile is read to its end before the
//! new one. Must not: write.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Kind, Result};

use super::entry::Entry;
use super::journal::{BEFORE, CURRENT, is_at};
use crate::trust;

/// How every line begins. No text within a line can contain this: JSON escapes quotes.
const BEGIN: &[u8] = b"{\"time\":";

/// A reader of the journal.
#[derive(Debug)]
pub struct Reader {
    folder: PathBuf,
    /// Oldest first.
    files: Vec<Part>,
    damaged: u64,
}

/// A file of the journal, and the bytes of a line that is not complete yet.
#[derive(Debug)]
struct Part {
    file: File,
    rest: Vec<u8>,
}

impl Reader {
    /// Opens the journal in `folder`, from the oldest event on. A journal that does not exist has no events yet.
    ///
    /// # Errors
    /// `Internal` when it cannot be opened.
    pub fn open(folder: PathBuf) -> Result<Reader> {
        let mut reader = Reader { folder, files: Vec::new(), damaged: 0 };
        reader.renew()?;
        Ok(reader)
    }

    /// The events written since the last call, oldest first.
    ///
    /// # Errors
    /// `Internal` when it cannot be read.
    pub fn read(&mut self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        // Read again if the journal was rotated meanwhile.
        loop {
            for part in &mut self.files {
                let damaged = part.read(&mut entries);
                self.damaged += damaged.doing(Kind::Internal, || format!("cannot read {}", self.folder.display()))?;
            }
            let path = self.folder.join(CURRENT);
            let current = self.files.last().is_some_and(|part| is_at(&part.file, &path));
            if current || !path.exists() {
                return Ok(entries);
            }
            self.renew()?;
        }
    }

    /// How many lines so far were no events, or not complete: left by a crash, a full disk or another writer.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Opens the files that exist and are not open yet. A rotated file stays open until the next
    /// rotation: a line may still come there.
    fn renew(&mut self) -> Result<()> {
        let (before, current) = (self.folder.join(BEFORE), self.folder.join(CURRENT));
        loop {
            let newest = self.opened(&current)?;
            let older = self.opened(&before)?;
            // Otherwise the journal was rotated between the two.
            if newest.as_ref().map_or(!current.exists(), |newest| is_at(newest, &current)) {
                let known = |file: &File| self.files.iter().any(|part| is_same(&part.file, file));
                let missing: Vec<File> = older.into_iter().chain(newest).filter(|file| !known(file)).collect();
                self.files.extend(missing.into_iter().map(|file| Part { file, rest: Vec::new() }));
                let superfluous = self.files.len().saturating_sub(2);
                self.files.drain(..superfluous);
                return Ok(());
            }
        }
    }

    fn opened(&self, path: &Path) -> Result<Option<File>> {
        match trust::open(File::options().read(true), path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).doing(Kind::Internal, || format!("cannot read {}", path.display())),
        }
    }
}

fn is_same(a: &File, b: &File) -> bool {
    let (Ok(a), Ok(b)) = (a.metadata(), b.metadata()) else { return false };
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

impl Part {
    /// Adds the events that have come; returns how many lines were no events.
    fn read(&mut self, entries: &mut Vec<Entry>) -> io::Result<u64> {
        self.file.read_to_end(&mut self.rest)?;
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        Ok(parse(&lines, entries))
    }
}

/// Adds the events in complete lines; returns how many lines were no events.
pub fn parse(lines: &[u8], entries: &mut Vec<Entry>) -> u64 {
    let mut damaged = 0;
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        damaged += u64::from(!line.starts_with(BEGIN));
        match entry(line) {
            Some(entry) => entries.push(entry),
            None => damaged += u64::from(line.starts_with(BEGIN)),
        }
    }
    damaged
}

/// The event in a line, which may begin with a line that a full disk cut short.
fn entry(line: &[u8]) -> Option<Entry> {
    let begin = line.windows(BEGIN.len()).rposition(|window| window == BEGIN)?;
    serde_json::from_slice(&line[begin..]).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::super::Event;
    use super::*;

    fn line(seq: u64) -> String {
        format!("{{\"time\":\"2026-05-01T12:00:00Z\",\"id\":\"a\",\"seq\":{seq},\"event\":\"paused\"}}\n")
    }

    fn numbers(entries: &[Entry]) -> Vec<u64> {
        entries.iter().map(|entry| entry.seq).collect()
    }

    #[test]
    fn a_line_that_was_cut_short_takes_no_other_with_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let text = format!("{}{}{}{}", line(1), &line(2)[..30], line(3), line(4));
        fs::write(dir.path().join(CURRENT), text).expect("written");
        let mut reader = Reader::open(dir.path().to_owned()).expect("readable");
        assert_eq!(numbers(&reader.read().expect("readable")), [1, 3, 4]);
        assert_eq!(reader.damaged(), 0, "it is not told from a whole one: the next event says what was lost");
    }

    #[test]
    fn lines_that_are_no_events_are_counted() {
        let dir = tempfile::tempdir().expect("a folder");
        let unknown = line(7).replace("paused", "vanished");
        let text =
            [b"\0\0\xff\n".to_vec(), line(1).into(), b"{}\n\n".to_vec(), unknown.into(), line(2).into()].concat();
        fs::write(dir.path().join(CURRENT), text).expect("written");
        let mut reader = Reader::open(dir.path().to_owned()).expect("readable");
        assert_eq!((numbers(&reader.read().expect("readable")), reader.damaged()), (vec![1, 2], 3));
    }

    #[test]
    fn a_line_is_given_once_it_is_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut file = File::create(dir.path().join(CURRENT)).expect("a file");
        let mut reader = Reader::open(dir.path().to_owned()).expect("readable");
        file.write_all(&line(1).as_bytes()[..20]).expect("written");
        assert_eq!(reader.read().expect("readable"), []);
        file.write_all(&line(1).as_bytes()[20..]).expect("written");
        assert_eq!(numbers(&reader.read().expect("readable")), [1]);
        assert_eq!(reader.read().expect("readable"), []);
    }

    #[test]
    fn a_reader_follows_through_files_that_are_put_aside() {
        let dir = tempfile::tempdir().expect("a folder");
        let (current, before) = (dir.path().join(CURRENT), dir.path().join(BEFORE));
        let mut reader = Reader::open(dir.path().to_owned()).expect("nothing yet");
        assert_eq!(reader.read().expect("nothing yet"), []);
        let mut first = File::create(&current).expect("a file");
        first.write_all(line(1).as_bytes()).expect("written");
        assert_eq!(numbers(&reader.read().expect("readable")), [1]);
        fs::rename(&current, &before).expect("renamed");
        // Written by a process that had opened the file before.
        first.write_all(line(2).as_bytes()).expect("written");
        fs::write(&current, line(3)).expect("written");
        assert_eq!(numbers(&reader.read().expect("readable")), [2, 3]);
        // Rotated twice between two reads.
        fs::rename(&current, &before).expect("renamed");
        fs::write(&current, line(4)).expect("written");
        fs::rename(&current, &before).expect("renamed");
        fs::write(&current, line(5)).expect("written");
        assert_eq!(numbers(&reader.read().expect("readable")), [4, 5]);
    }

    #[test]
    fn limits_of_a_later_version_are_read_as_far_as_they_are_known() {
        let of = |limits: &str| {
            let text = line(1).replace("\"paused\"", &format!("\"updated\",\"limits\":{limits}"));
            let mut entries = Vec::new();
            assert_eq!(parse(text.as_bytes(), &mut entries), 0, "{limits}");
            let Event::Updated { limits, .. } = entries.remove(0).event else { panic!("{text}") };
            limits.is_some()
        };
        assert!(of(r#"{"memory":{"news":1},"news":{}}"#));
        assert!(!of("7"), "what fits nothing is no limit");
    }

    #[test]
    fn what_a_later_version_says_is_left_out() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join(CURRENT), format!("{}{}", line(1).replace("paused", "teleported"), line(2)))
            .expect("written");
        let mut reader = Reader::open(dir.path().to_owned()).expect("readable");
        let entries = reader.read().expect("readable");
        assert_eq!((numbers(&entries), &entries[0].event), (vec![2], &Event::Paused));
    }
}
