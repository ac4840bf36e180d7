//! How much a client has read of the FIFO of an output, counted in a file beside it.
//!
//! A shim that is killed as its write to the FIFO returns has not stored how much that was. The next one knows by this:
//! what the client has read, and what waits in the FIFO, was written. Must not: wait for a client.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use bowline_model::trust;
use bowline_sys::MappedFile;
use rustix::fs::{FallocateFlags, fallocate};

/// Whether the client is reading, and how many bytes it has read, modulo 2³².
const READING: usize = 0;
const READ: usize = 4;
const SIZE: usize = 8;

/// How often a client is found reading before it is given up: it reads what is there, and no more.
const TRIES: u32 = 10_000;

/// The client's side, with which it counts what it reads.
#[derive(Debug)]
pub struct Counter(MappedFile);

impl Counter {
    /// Makes the file for the FIFO at this path. Without it, output may come twice where a shim is killed.
    ///
    /// # Errors
    /// That the file cannot be made, or that there is no room for it.
    pub fn make(fifo: &Path) -> io::Result<()> {
        let file = File::options().write(true).create_new(true).mode(0o600).open(beside(fifo))?;
        Ok(fallocate(&file, FallocateFlags::empty(), 0, SIZE as u64)?)
    }

    /// The counter of the FIFO at this path, if one was made.
    pub fn of(fifo: &Path) -> Option<Counter> {
        let file = trust::open(File::options().read(true).write(true), &beside(fifo)).ok()?;
        let is_whole = file.metadata().ok()?.len() >= SIZE as u64;
        is_whole.then(|| MappedFile::of(&file, SIZE).ok().map(Counter))?
    }

    /// Counts what `read` reads, which does not wait.
    ///
    /// # Errors
    /// Whatever error `read` returns.
    pub fn count(&self, read: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        self.0.store(READING, 1);
        let outcome = read();
        if let Ok(length) = outcome {
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            self.0.store(READ, self.0.load(READ).wrapping_add(length));
        }
        self.0.store(READING, 0);
        outcome
    }
}

/// How many bytes were written to the FIFO at this path, modulo 2³², while nobody writes to it; `waiting` is how many of
/// them it holds. `None` where the client does not count.
pub fn written(fifo: &Path, waiting: impl Fn() -> u32) -> Option<u32> {
    let Counter(counted) = Counter::of(fifo)?;
    let read = || (counted.load(READING) == 0).then(|| counted.load(READ));
    for _ in 0..TRIES {
        if let Some(before) = read() {
            let waiting = waiting();
            if read() == Some(before) {
                return Some(before.wrapping_add(waiting));
            }
        }
        std::thread::yield_now();
    }
    None
}

fn beside(fifo: &Path) -> PathBuf {
    fifo.with_extension("read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_what_was_read_and_what_waits() {
        let folder = tempfile::tempdir().expect("a folder");
        let fifo = folder.path().join("stdout");
        assert_eq!(written(&fifo, || 1), None);
        Counter::make(&fifo).expect("made");
        assert_eq!(written(&fifo, || 1), Some(1));
        let counter = Counter::of(&fifo).expect("mapped");
        counter.count(|| Ok(5)).expect("read");
        counter.count(|| Err(io::ErrorKind::WouldBlock.into())).expect_err("nothing there");
        assert_eq!(written(&fifo, || 3), Some(8));
        // Stopped in between.
        counter
            .count(|| {
                assert_eq!(written(&fifo, || 3), None);
                Ok(0)
            })
            .expect("read");
    }
}
