//! What the shim has read of an output and not passed on yet, in a mapped file that the next shim reads.
//!
//! ```text
//!   pipe ─read─► chunk, in the file ─┬► log ────────────────► logged, and the beginning of a line that the log holds
//!                                    └► reader in the foreground ► so many bytes passed
//! ```
//!
//! Each step is stored as soon as it is done, without a system call, so that the next shim knows which steps remain:
//! nothing is lost when this shim is killed between two instructions. If the kernel has done a step and this shim is
//! killed before it stores that, the next one finds out: what was read, by the bytes that are no longer [`BLANK`]; what
//! was logged, by the log ([`Mark`]); what was passed on, by what the reader has counted ([`super::taken`]).
//!
//! Only tasks that can be taken over, with `bowline-init`, have such a file, from their first output on. Must not: fail
//! a stream, which goes on without it.

use std::cell::Cell;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use bowline_model::trust;
use bowline_sys::MappedFile;
use rustix::fs::{FallocateFlags, fallocate};

use crate::output::log::Mark;

/// The most bytes read at a time.
pub const CHUNK: usize = 16 * 1024;

/// What bytes that were not read yet have in their place, again and again. None of them is in any UTF-8, so that text
/// is known to its last byte; of what else is read, a last byte that is one of them by chance would be missed.
const BLANK: [u8; 8] = [0xc0, 0xf5, 0xff, 0xc1, 0xfe, 0xf8, 0xfa, 0xfd];

/// The file's first page: which layout it has, and which of two places its state is in; the two; then two
/// places for the beginning of a line.
const PAGE: usize = 4096;
const LAYOUT: usize = 0;
const THIS_LAYOUT: u32 = 2;
const WHICH: usize = 4;
const STATES: [usize; 2] = [64, 64 + 4 * WORDS];
const PLACES: [usize; 2] = [256, 256 + SHORT];
/// The longest beginning of a line that is kept there.
const SHORT: usize = 1900;
/// Where a longer one is, and where bytes are spilled to: beyond what is mapped.
const LONG: [u64; 2] = [1 << 20, 2 << 20];
const SPILLS: [u64; 2] = [4 << 20, 8 << 20];

/// How far what was read has come. It is replaced as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct State {
    /// How many bytes the stream had before those of which anything is kept, modulo 2³².
    before: u32,
    /// How many bytes before the chunk are in the file, and in which of [`SPILLS`].
    spilled: u32,
    spill: u32,
    /// How many bytes of the chunk's place are being read into; 0 while none are.
    reading: u32,
    /// How long the chunk is; 0 once all is done with it.
    length: u32,
    /// How many of what is spilled and of the chunk, together, the reader in the foreground has.
    passed: u32,
    /// How far the log is with the chunk.
    log: u32,
    /// The log before the chunk, once it is being written.
    mark: [u32; Mark::WORDS],
    /// How long the beginning of a line is that the log holds, and in which of [`PLACES`] or [`LONG`].
    held: u32,
    place: u32,
}

/// How far a log is.
const TO_DO: u32 = 0;
const BEGUN: u32 = 1;
const DONE: u32 = 2;

const WORDS: usize = 9 + Mark::WORDS;

impl State {
    fn words(self) -> [u32; WORDS] {
        let State { before, spilled, spill, reading, length, passed, log, mark: [a, b, c, d, e, f, g], held, place } =
            self;
        [before, spilled, spill, reading, length, passed, log, held, place, a, b, c, d, e, f, g]
    }

    fn of(words: [u32; WORDS]) -> State {
        let [before, spilled, spill, reading, length, passed, log, held, place, mark @ ..] = words;
        State { before, spilled, spill: spill & 1, reading, length, passed, log, mark, held, place: place & 1 }
    }

    /// How many bytes are kept.
    fn all(self) -> u32 {
        self.spilled.saturating_add(self.length)
    }
}

/// The rest of one output.
#[derive(Debug)]
pub struct Unread {
    path: PathBuf,
    map: Option<MappedFile>,
    /// Whether it could not be mapped, which is not tried again.
    failed: bool,
    /// A copy of the state that the file holds.
    state: Cell<State>,
    /// Which bytes of the chunk's place are known to be blank.
    blank: Range<usize>,
}

impl Unread {
    /// For the `index`th output of the task in `folder`, with what a shim before has left there.
    pub fn of(folder: &Path, index: u32) -> Unread {
        let mut unread = Unread::of_new(folder, index);
        let map = || {
            let file = trust::open(File::options().read(true).write(true), &unread.path).ok()?;
            // Cut short, it could not be read without harm.
            let is_whole = file.metadata().ok()?.len() >= (PAGE + CHUNK) as u64;
            let map = is_whole.then(|| MappedFile::of(&file, PAGE + CHUNK).ok())??;
            (map.load(LAYOUT) == THIS_LAYOUT).then_some(map)
        };
        let Some(map) = map() else { return unread };
        let at = STATES[map.load(WHICH) as usize & 1];
        let mut state = State::of(std::array::from_fn(|word| map.load(at + 4 * word)));
        if state.reading > 0 {
            state.length = number(came(&map.bytes()[PAGE..][..(state.reading as usize).min(CHUNK)]));
            state.reading = 0;
        }
        state.length = state.length.min(number(CHUNK));
        unread.map = Some(map);
        unread.set(state);
        unread
    }

    /// For an output of a new task.
    pub fn of_new(folder: &Path, index: u32) -> Unread {
        let path = folder.join(format!("unread.{index}"));
        Unread { path, map: None, failed: false, state: Cell::default(), blank: 0..0 }
    }

    /// Where the next chunk is read to; `pending` is what the reader in the foreground has not taken of those before.
    /// `None` where nothing can be kept.
    pub fn room(&mut self, pending: &[u8], for_log: bool) -> Option<&mut [u8]> {
        if self.map.is_none() && !self.failed {
            self.map = self.make();
            self.failed = self.map.is_none();
        }
        self.map.as_ref()?;
        if self.state.get().length > 0 {
            self.spill(pending);
        }
        let Unread { map: Some(map), blank, .. } = self else { return None };
        // Whoever writes much fills it, and gets more.
        let length = if blank.start >= PAGE { CHUNK } else { PAGE };
        let place = &mut map.bytes_mut()[PAGE..];
        fill(place, 0..blank.start);
        fill(place, blank.end..length.max(blank.end));
        *blank = 0..blank.end.max(length);
        let log = if for_log { TO_DO } else { DONE };
        self.set(State { reading: number(length), log, ..self.state.get() });
        self.map.as_mut().map(|map| &mut map.bytes_mut()[PAGE..][..length])
    }

    /// Keeps `pending` elsewhere, as the chunk's place is needed. Rare: more is read for the report although the reader
    /// is slow.
    fn spill(&self, pending: &[u8]) {
        let state = self.state.get();
        let spill = 1 - state.spill;
        let written = self.open().and_then(|file| file.write_all_at(pending, SPILLS[spill as usize]).ok());
        let spilled = written.map_or(0, |()| number(pending.len()));
        let before = state.before.wrapping_add(state.all()).wrapping_sub(spilled);
        self.set(State { before, spilled, spill, length: 0, passed: 0, ..state });
    }

    fn make(&self) -> Option<MappedFile> {
        let file = trust::open(File::options().read(true).write(true).create(true).truncate(true), &self.path).ok()?;
        // Where the disk is full, a store into memory that it has no room for would end the shim.
        fallocate(&file, FallocateFlags::empty(), 0, (PAGE + CHUNK) as u64).ok()?;
        let map = MappedFile::of(&file, PAGE + CHUNK).ok()?;
        map.store(LAYOUT, THIS_LAYOUT);
        Some(map)
    }

    fn open(&self) -> Option<File> {
        trust::open(File::options().read(true).write(true), &self.path).ok()
    }

    fn set(&self, state: State) {
        let is_stored = self.state.replace(state) == state;
        let Some(map) = self.map.as_ref().filter(|_| !is_stored) else { return };
        let which = 1 - (map.load(WHICH) & 1);
        let at = STATES[which as usize];
        (0..).zip(state.words()).for_each(|(word, number)| map.store(at + 4 * word, number));
        map.store(WHICH, which);
    }

    /// A chunk of this length was read.
    pub fn has_read(&mut self, length: usize) {
        self.blank.start = length;
        self.set(State { reading: 0, length: number(length), ..self.state.get() });
    }

    /// The bytes of the chunk that was read last.
    pub fn chunk(&self) -> &[u8] {
        let length = self.state.get().length as usize;
        self.map.as_ref().map_or(&[], |map| &map.bytes()[PAGE..PAGE + length])
    }

    /// Whether the log has the chunk.
    pub fn is_logged(&self) -> bool {
        self.map.is_none() || self.state.get().log == DONE
    }

    /// The log, which is like this, is about to get the chunk.
    pub fn begins_log(&self, mark: Mark) {
        self.set(State { log: BEGUN, mark: mark.words(), ..self.state.get() });
    }

    /// The log before the chunk, of which it may have some since.
    pub fn mark(&self) -> Option<Mark> {
        let State { log, mark, .. } = self.state.get();
        (log == BEGUN).then(|| Mark::of(mark))?
    }

    /// The log has the chunk, and holds this beginning of a line.
    pub fn logged(&self, held: &[u8]) {
        let Some(map) = &self.map else { return };
        let state = self.state.get();
        let place = 1 - state.place;
        let is_there = if held.len() <= SHORT {
            map.write(PLACES[place as usize], held);
            true
        } else {
            self.open().is_some_and(|file| file.write_all_at(held, LONG[place as usize]).is_ok())
        };
        self.set(State { log: DONE, held: if is_there { number(held.len()) } else { 0 }, place, ..state });
    }

    /// The beginning of a line that the log holds.
    pub fn held(&self) -> Vec<u8> {
        let Some(map) = &self.map else { return Vec::new() };
        let State { held, place, .. } = self.state.get();
        let (length, place) = (held as usize, place as usize);
        match length <= SHORT {
            true => map.bytes()[PLACES[place]..][..length].to_vec(),
            false => self.beyond(LONG[place], length),
        }
    }

    /// The reader in the foreground lacks this many bytes still, the last ones.
    pub fn set_remaining(&self, bytes: usize) {
        let state = self.state.get();
        let all = state.all();
        if all == 0 {
            return;
        }
        self.set(match bytes == 0 && (state.length == 0 || state.log == DONE) {
            true => State { before: state.before.wrapping_add(all), spilled: 0, length: 0, passed: 0, ..state },
            false => State { passed: all.saturating_sub(number(bytes)), ..state },
        });
    }

    /// The reader in the foreground has counted so many bytes of the stream, modulo 2³²: those among them that were
    /// passed on as the shim before was killed.
    pub fn has_counted(&self, counted: u32) {
        let state = self.state.get();
        let more = counted.wrapping_sub(state.before.wrapping_add(state.passed));
        match state.all().saturating_sub(state.passed).checked_sub(more) {
            Some(lacking) => self.set_remaining(lacking as usize),
            // Nothing was kept for a while.
            None => self.set(State { before: counted.wrapping_sub(state.passed), ..state }),
        }
    }

    /// What the reader in the foreground lacks.
    pub fn pending(&self) -> Vec<u8> {
        let State { spilled, spill, passed, .. } = self.state.get();
        let mut all = self.beyond(SPILLS[spill as usize], spilled as usize);
        all.extend(self.chunk());
        let passed = (passed as usize).min(all.len());
        all.split_off(passed)
    }

    /// Bytes of the file beyond what is mapped.
    fn beyond(&self, at: u64, length: usize) -> Vec<u8> {
        // More than this was never there.
        let mut bytes = vec![0; length.min(2 << 20)];
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

/// Makes these bytes of a chunk's place blank.
fn fill(place: &mut [u8], which: Range<usize>) {
    let begin = which.start / BLANK.len() * BLANK.len();
    place[begin..which.end.max(begin)]
        .chunks_mut(BLANK.len())
        .for_each(|some| some.copy_from_slice(&BLANK[..some.len()]));
}

/// How many bytes were read into a place that was blank.
fn came(place: &[u8]) -> usize {
    (0..place.len()).rfind(|at| place[*at] != BLANK[at % BLANK.len()]).map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(unread: &mut Unread, pending: &[u8], bytes: &[u8]) {
        unread.room(pending, true).expect("a file")[..bytes.len()].copy_from_slice(bytes);
        unread.has_read(bytes.len());
    }

    /// What the next shim finds: what remains to be logged, the beginning of a line, what remains to be passed on.
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
        unread.set_remaining(3);
        assert_finds(path, b"", b"tw", b"\ntw");
        unread.set_remaining(0);
        assert_finds(path, b"", b"tw", b"");
        read(&mut unread, b"", b"o\n");
        assert_finds(path, b"o\n", b"tw", b"o\n");
        // The reader first, then the log.
        unread.set_remaining(0);
        assert_finds(path, b"o\n", b"tw", b"");
        unread.logged(b"");
        unread.set_remaining(0);
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
            unread.set_remaining(pending.len() + 2);
        }
        assert_finds(path, b"", &line, b"abcdef");
        unread.set_remaining(3);
        assert_finds(path, b"", &line, b"def");
        // Another shim goes on.
        let mut next = Unread::of(path, 0);
        read(&mut next, b"def", b"gh");
        next.set_remaining(5);
        next.logged(b"");
        assert_finds(path, b"", b"", b"defgh");
        next.set_remaining(0);
        assert!(!Unread::of(path, 0).has_left());
    }

    /// Killed as the kernel returned from a read: nothing but the bytes says how much it was.
    #[test]
    fn what_was_read_is_found_without_its_length() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        let mut unread = Unread::of_new(path, 0);
        unread.room(b"", true).expect("a file");
        assert!(!Unread::of(path, 0).has_left());
        for length in [1, 7, 8, PAGE - 1, PAGE, 3, PAGE, 5000, CHUNK, 2] {
            let text: Vec<u8> = (0..length).map(|at| b'a' + (at % 26) as u8).collect();
            let room = unread.room(b"", true).expect("a file");
            assert!(room.len() >= length, "{length}: what was filled last time gets more");
            room[..length].copy_from_slice(&text);
            assert_finds(path, &text, b"", &text);
            unread.has_read(length);
            unread.logged(b"");
            unread.set_remaining(0);
            assert_finds(path, b"", b"", b"");
        }
    }

    /// Killed as the kernel returned from a write: only the reader knows.
    #[test]
    fn what_the_reader_has_counted_is_not_passed_on_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        let mut unread = Unread::of_new(path, 0);
        let counted_then = |counted: u32| {
            let next = Unread::of(path, 0);
            next.has_counted(counted);
            next.pending()
        };
        read(&mut unread, b"", b"before");
        unread.logged(b"");
        unread.set_remaining(0);
        read(&mut unread, b"", b"abcd");
        assert_eq!(counted_then(6), b"abcd");
        assert_eq!(counted_then(8), b"cd");
        assert_eq!(counted_then(10), b"");
        // Nothing was kept for a while: it counts from there on.
        assert_eq!(counted_then(103), b"");
        let mut next = Unread::of(path, 0);
        next.logged(b"");
        next.set_remaining(0);
        read(&mut next, b"", b"efgh");
        assert_eq!(counted_then(105), b"gh");
    }

    #[test]
    fn a_file_that_is_cut_short_or_strange_is_no_harm() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("unread.0");
        std::fs::write(&path, b"short").expect("written");
        assert!(!Unread::of(folder.path(), 0).has_left());
        let mut strange = vec![0xff; PAGE + CHUNK];
        std::fs::write(&path, &strange).expect("written");
        assert!(!Unread::of(folder.path(), 0).has_left(), "another layout");
        strange[LAYOUT..LAYOUT + 4].copy_from_slice(&THIS_LAYOUT.to_ne_bytes());
        std::fs::write(&path, &strange).expect("written");
        let strange = Unread::of(folder.path(), 0);
        assert!(strange.chunk().len() <= CHUNK && strange.held().is_empty() && strange.mark().is_none());
        strange.pending();
    }
}
