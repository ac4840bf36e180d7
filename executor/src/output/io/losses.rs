//! How much of an output is lost, because its file or its reader has not taken it. It is kept in a mapped file for the next
//! shim.
//!
//! Only tasks that another shim may take over have such a file, from the first loss on. Must not: fail a stream, which goes
//! on without it.

use std::fs::File;
use std::path::{Path, PathBuf};

use bowline_model::trust;
use bowline_sys::MappedFile;
use rustix::fs::{FallocateFlags, fallocate};

use super::outlet::Refused;

/// The words of the file: why a file has refused bytes, how many of them, and how many were lost in all; high halves first.
const WORDS: usize = 5;
const LENGTH: usize = 4 * WORDS;

/// What is lost of one output.
#[derive(Debug)]
pub struct Losses {
    path: PathBuf,
    /// The place of the output among the task's.
    pub index: usize,
    map: Option<MappedFile>,
    /// Whether it could not be mapped, which is not tried again.
    failed: bool,
}

impl Losses {
    /// For the `index`th output of the task in `folder`.
    pub fn of(folder: &Path, index: usize) -> Losses {
        Losses { path: folder.join(format!("lost.{index}")), index, map: None, failed: false }
    }

    /// What a shim before has noted.
    pub fn found(folder: &Path, index: usize) -> Option<(u64, Option<Refused>)> {
        let file = trust::open(File::options().read(true), &Losses::of(folder, index).path).ok()?;
        let bytes = bowline_sys::read_up_to(&file, LENGTH as u64 + 1).ok()?;
        let words: [[u8; 4]; WORDS] = bytes.as_chunks().0.try_into().ok()?;
        let [errno, refused_high, refused_low, high, low] = words.map(u32::from_ne_bytes);
        let number = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let refused = Refused { bytes: number(refused_high, refused_low), errno: errno.cast_signed() };
        let dropped = number(high, low);
        (dropped > 0).then_some((dropped, Some(refused).filter(|refused| refused.bytes > 0)))
    }

    /// So many bytes of the output are lost by now, of which its file has `refused` some. Stores, without a system call
    /// but for the first loss.
    pub fn note(&mut self, dropped: u64, refused: Option<Refused>) {
        if dropped == 0 {
            return;
        }
        if self.map.is_none() && !self.failed {
            self.map = self.make();
            self.failed = self.map.is_none();
        }
        let Some(map) = &self.map else { return };
        let (bytes, errno) = refused.map_or((0, 0), |refused| (refused.bytes, refused.errno));
        let high = |number: u64| (number >> 32) as u32;
        // What counts comes last: before, there is nothing. A shim that is killed between two stores leaves numbers of two
        // moments.
        let words = [errno.cast_unsigned(), high(bytes), bytes as u32, high(dropped), dropped as u32];
        (0..).zip(words).for_each(|(word, number)| map.store(4 * word, number));
    }

    fn make(&self) -> Option<MappedFile> {
        // With what a shim before has noted, which is less.
        let file = trust::open(File::options().read(true).write(true).create(true), &self.path).ok()?;
        // Where the disk is full, a store into memory that it has no room for would end the shim.
        fallocate(&file, FallocateFlags::empty(), 0, LENGTH as u64).ok()?;
        MappedFile::of(&file, LENGTH).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_shim_finds_what_is_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        let mut losses = Losses::of(path, 1);
        losses.note(0, None);
        assert_eq!(Losses::found(path, 1), None);
        assert!(!path.join("lost.1").exists(), "nothing is lost");
        losses.note(7, None);
        assert_eq!(Losses::found(path, 1), Some((7, None)));
        let refused = Refused { bytes: 1 << 33, errno: 28 };
        losses.note((1 << 33) + 7, Some(refused));
        assert_eq!(Losses::found(path, 1), Some(((1 << 33) + 7, Some(refused))));
        std::fs::write(path.join("lost.1"), "strange").expect("written");
        assert_eq!(Losses::found(path, 1), None);
    }
}
