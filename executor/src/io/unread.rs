//! What the shim has read of an output and not passed on yet: in a file that is mapped, for a shim to come.
//!
//! ```text
//!   pipe ─read─► chunk, in the file ─┬► log ────────────────► logged, and the beginning of a line that the log holds
//!                                    └► reader in the foreground ► so many bytes passed
//! ```
//!
//! Each step is stored as soon as it is done, without a system call, so that the next shim knows which ones are to do:
//! whoever kills this one between two instructions loses nothing. Only tasks that can be taken over, with
//! `bowline-init`, have such a file, from their first output on. Must not: fail a stream, which goes on without it.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use bowline_sys::MappedFile;
use rustix::fs::{FallocateFlags, fallocate};

use crate::trust;

/// Bytes read at a time.
pub const CHUNK: usize = 16 * 1024;

/// The file's first page: numbers, then two places for the beginning of a line.
const PAGE: usize = 4096;
/// How long the chunk is; 0 once all is done with it.
const LENGTH: usize = 0;
/// How many bytes before the chunk are in the file at [`SPILL`].
const SPILLED: usize = 4;
/// How many of those and of the chunk, together, the reader in the foreground has.
const PASSED: usize = 8;
/// Whether the log has the chunk, and which of the places is the beginning of a line in.
const LOG: usize = 12;
const LOGGED: u32 = 1;
const SECOND: u32 = 2;
/// How long the beginning of a line is in either place.
const HELD: [usize; 2] = [16, 20];
/// Where the places are, for what is not longer than [`SHORT`].
const PLACES: [usize; 2] = [64, 64 + SHORT];
const SHORT: usize = 2000;
/// Where they are else, and where bytes are spilled to: beyond what is mapped.
const LONG: [u64; 2] = [1 << 20, 2 << 20];
const SPILL: u64 = 3 << 20;

/// The rest of one output.
#[derive(Debug)]
pub struct Unread {
    path: PathBuf,
    map: Option<MappedFile>,
    /// Whether it could not be mapped, which is not tried again.
    failed: bool,
}

impl Unread {
    /// For the `index`th output of the task in `folder`, with what a shim before has left there.
    pub fn of(folder: &Path, index: u32) -> Unread {
        let path = folder.join(format!("unread.{index}"));
        let map = || {
            let file = trust::open(File::options().read(true).write(true), &path).ok()?;
            // Cut short, it could not be read without harm.
            let is_whole = file.metadata().ok()?.len() >= (PAGE + CHUNK) as u64;
            is_whole.then(|| MappedFile::of(&file, PAGE + CHUNK).ok())?
        };
        Unread { map: map(), path, failed: false }
    }

    /// For an output of a new task.
    pub fn of_new(folder: &Path, index: u32) -> Unread {
        Unread { path: folder.join(format!("unread.{index}")), map: None, failed: false }
    }

    /// Where the next chunk is read to; `pending` is what the reader in the foreground has not taken of those before.
    /// `None` where nothing can be kept.
    pub fn room(&mut self, pending: &[u8]) -> Option<&mut [u8]> {
        if self.map.is_none() && !self.failed {
            self.map = self.make();
            self.failed = self.map.is_none();
        }
        let map = self.map.as_ref()?;
        if map.load(LENGTH) > 0 {
            // Rare: more is read for the report although the reader is slow.
            let spilled = self.open().and_then(|file| file.write_all_at(pending, SPILL).ok());
            let length = spilled.map_or(0, |()| number(pending.len()));
            map.store(LENGTH, 0);
            map.store(SPILLED, length);
            map.store(PASSED, 0);
        }
        self.map.as_mut().map(|map| &mut map.bytes_mut()[PAGE..])
    }

    fn make(&self) -> Option<MappedFile> {
        let file = trust::open(File::options().read(true).write(true).create(true).truncate(true), &self.path).ok()?;
        // Where the disk is full, a store into memory that it has no room for would end the shim.
        fallocate(&file, FallocateFlags::empty(), 0, (PAGE + CHUNK) as u64).ok()?;
        MappedFile::of(&file, PAGE + CHUNK).ok()
    }

    fn open(&self) -> Option<File> {
        trust::open(File::options().read(true).write(true), &self.path).ok()
    }

    /// A chunk of this length was read, for the reader in the foreground and perhaps for a log.
    pub fn has_read(&self, length: usize, for_log: bool) {
        let Some(map) = &self.map else { return };
        if map.load(SPILLED) == 0 {
            map.store(PASSED, 0);
        }
        map.store(LOG, map.load(LOG) & SECOND | if for_log { 0 } else { LOGGED });
        map.store(LENGTH, number(length));
    }

    /// The chunk.
    pub fn chunk(&self) -> &[u8] {
        let Some(map) = &self.map else { return &[] };
        let length = (map.load(LENGTH) as usize).min(CHUNK);
        &map.bytes()[PAGE..PAGE + length]
    }

    /// Whether the log has the chunk.
    pub fn is_logged(&self) -> bool {
        self.map.as_ref().is_none_or(|map| map.load(LOG) & LOGGED != 0)
    }

    /// The log has the chunk, and holds this beginning of a line.
    pub fn logged(&self, held: &[u8]) {
        let Some(map) = &self.map else { return };
        let other = usize::from(map.load(LOG) & SECOND == 0);
        let is_there = if held.len() <= SHORT {
            map.write(PLACES[other], held);
            true
        } else {
            self.open().is_some_and(|file| file.write_all_at(held, LONG[other]).is_ok())
        };
        map.store(HELD[other], if is_there { number(held.len()) } else { 0 });
        map.store(LOG, LOGGED | if other == 1 { SECOND } else { 0 });
    }

    /// The beginning of a line that the log holds.
    pub fn held(&self) -> Vec<u8> {
        let Some(map) = &self.map else { return Vec::new() };
        let which = usize::from(map.load(LOG) & SECOND != 0);
        let length = map.load(HELD[which]) as usize;
        match length <= SHORT {
            true => map.bytes()[PLACES[which]..][..length].to_vec(),
            false => self.beyond(LONG[which], length),
        }
    }

    /// The reader in the foreground lacks this many bytes still, the last ones.
    pub fn lacks(&self, bytes: usize) {
        let Some(map) = &self.map else { return };
        if map.load(LENGTH) == 0 && map.load(SPILLED) == 0 {
            return;
        }
        let all = map.load(SPILLED).saturating_add(map.load(LENGTH));
        map.store(PASSED, all.saturating_sub(number(bytes)));
        if bytes == 0 && map.load(LOG) & LOGGED != 0 {
            map.store(LENGTH, 0);
            map.store(SPILLED, 0);
        }
    }

    /// What the reader in the foreground lacks.
    pub fn pending(&self) -> Vec<u8> {
        let Some(map) = &self.map else { return Vec::new() };
        let mut all = self.beyond(SPILL, map.load(SPILLED) as usize);
        all.extend(self.chunk());
        let passed = (map.load(PASSED) as usize).min(all.len());
        all.split_off(passed)
    }

    /// Bytes of the file beyond what is mapped.
    fn beyond(&self, at: u64, length: usize) -> Vec<u8> {
        // More than this was never there.
        let mut bytes = vec![0; length.min(1 << 20)];
        let read = self.open().and_then(|file| file.read_exact_at(&mut bytes, at).ok());
        read.map_or_else(Vec::new, |()| bytes)
    }

    /// Whether something is left to pass on.
    pub fn has_left(&self) -> bool {
        !self.chunk().is_empty() || !self.pending().is_empty() || !self.held().is_empty()
    }

    /// Removes the file: all is passed on, or given up.
    pub fn end(self) {
        if self.map.is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(unread: &mut Unread, pending: &[u8], bytes: &[u8]) {
        unread.room(pending).expect("a file")[..bytes.len()].copy_from_slice(bytes);
        unread.has_read(bytes.len(), true);
    }

    /// What the next shim finds: what is to be logged, the beginning of a line, what is to be passed on.
    fn found(folder: &Path) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        let next = Unread::of(folder, 0);
        let chunk = if next.is_logged() { Vec::new() } else { next.chunk().to_vec() };
        (chunk, next.held(), next.pending())
    }

    #[track_caller]
    fn assert_finds(folder: &Path, chunk: &[u8], held: &[u8], pending: &[u8]) {
        assert_eq!(found(folder), (chunk.to_vec(), held.to_vec(), pending.to_vec()));
    }

    #[test]
    fn the_next_shim_finds_which_steps_are_to_do() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        let mut unread = Unread::of_new(path, 0);
        assert!(!unread.path.exists(), "not before there is output");
        read(&mut unread, b"", b"one\ntw");
        assert_finds(path, b"one\ntw", b"", b"one\ntw");
        unread.logged(b"tw");
        assert_finds(path, b"", b"tw", b"one\ntw");
        unread.lacks(3);
        assert_finds(path, b"", b"tw", b"\ntw");
        unread.lacks(0);
        assert_finds(path, b"", b"tw", b"");
        read(&mut unread, b"", b"o\n");
        assert_finds(path, b"o\n", b"tw", b"o\n");
        // The reader first, then the log.
        unread.lacks(0);
        assert_finds(path, b"o\n", b"tw", b"");
        unread.logged(b"");
        unread.lacks(0);
        assert_finds(path, b"", b"", b"");
        assert!(!Unread::of(path, 0).has_left());
        unread.end();
        assert!(!path.join("unread.0").exists());
    }

    #[test]
    fn a_slow_reader_and_a_long_line_are_kept_beyond_the_chunk() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        let mut unread = Unread::of_new(path, 0);
        let line = vec![b'x'; 3 * SHORT];
        for (chunk, pending) in [(b"ab", &b""[..]), (b"cd", b"ab"), (b"ef", b"abcd")] {
            read(&mut unread, pending, chunk);
            unread.logged(&line);
            unread.lacks(pending.len() + 2);
        }
        assert_finds(path, b"", &line, b"abcdef");
        unread.lacks(3);
        assert_finds(path, b"", &line, b"def");
        // Another shim goes on.
        let mut next = Unread::of(path, 0);
        read(&mut next, b"def", b"gh");
        next.lacks(5);
        next.logged(b"");
        assert_finds(path, b"", b"", b"defgh");
        next.lacks(0);
        assert!(!Unread::of(path, 0).has_left());
    }

    #[test]
    fn a_file_that_is_cut_short_or_strange_is_no_harm() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("unread.0");
        std::fs::write(&path, b"short").expect("written");
        assert!(!Unread::of(folder.path(), 0).has_left());
        std::fs::write(&path, vec![0xff; PAGE + CHUNK]).expect("written");
        let strange = Unread::of(folder.path(), 0);
        assert!(strange.chunk().len() == CHUNK && strange.held().is_empty() && strange.pending().is_empty());
    }
}
