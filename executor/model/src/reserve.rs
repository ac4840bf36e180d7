//! Room for a task's exit report, taken when the task is launched: an open file and a page of the disk.
//!
//! ```text
//!   launch: exit.json.new, open, a page behind it
//!   start:  a byte in it, by init, after its last hooks
//!   end:    the report into it ─► exit.json
//! ```
//!
//! So the end of the task needs no space, inode or descriptor. If a report is longer than the page
//! and the disk has no other, it is written without what makes it long. Must not: wait, or try
//! again by itself.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};
use serde::{Deserialize, Serialize};

use crate::json::handover::Fd;
use crate::json::record;
use crate::report::ExitReport;
use crate::trust;

/// How many bytes are reserved: the least that a file takes on nearly every file system.
const PAGE: u64 = 4096;

/// An open file with room for one report.
#[derive(Debug)]
pub struct Reserve {
    file: File,
    stage: Stage,
}

/// How far the report has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stage {
    Empty,
    /// The whole report is in the file, which has the name of the reserve.
    Filled,
    /// The file has the name of the report.
    Placed,
}

/// Where init tells that it is about to execute the program: this outlives a shim that dies meanwhile.
///
/// The file has a length from then on. It costs one call, as the shim has the file open.
#[derive(Debug, Clone, Copy)]
pub struct StartMark<'a>(BorrowedFd<'a>);

impl StartMark<'_> {
    /// The descriptor that init needs for this.
    pub fn fd(self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Tells that the program is executed from here on, whatever becomes of the shim.
    pub fn set(self) -> io::Result<()> {
        // Not pwrite(2), which a filter for hooks may deny.
        rustix::io::write(self.0, b"s").map(drop).map_err(io::Error::from)
    }

    /// Takes that back, as init fails.
    pub fn unset(self) {
        // On an error the program may have run, which is said then.
        let _ = rustix::fs::ftruncate(self.0, 0);
    }
}

/// Whether an init has told, in the reserve at `temporary`, that it executes the program; `None` where that is not known.
pub fn is_marked(temporary: &Path) -> Option<bool> {
    fs::symlink_metadata(temporary).ok().map(|file| file.len() > 0)
}

/// The result of writing a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Put {
    /// The report is in its place.
    Placed,
    /// The folder was removed: nobody wants the report.
    Unwanted,
}

/// A reserve, as a shim hands it over.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    file: Fd,
    stage: Stage,
}

impl Handed {
    pub fn take(self) -> bowline_error::Result<Reserve> {
        Ok(Reserve { file: File::from(self.file.take()?), stage: self.stage })
    }
}

impl Reserve {
    /// The reserve for the program that is executed in the shim's place.
    pub fn hand_over(&self) -> Handed {
        Handed { file: Fd::of(&self.file), stage: self.stage }
    }

    /// Reserves room for a report in a new file at `temporary`.
    pub fn take(temporary: &Path) -> io::Result<Reserve> {
        let file = trust::create(temporary)?;
        match take_room(&file) {
            Err(errno) => {
                let _ = fs::remove_file(temporary);
                Err(errno.into())
            }
            Ok(()) => Ok(Reserve { file, stage: Stage::Empty }),
        }
    }

    /// Takes over the reserve that an earlier shim has left at `temporary`, with its room. Without room, on a full disk,
    /// writing the report may have to be tried again.
    pub fn take_over(temporary: &Path) -> io::Result<Reserve> {
        let file = match trust::open(File::options().write(true), temporary) {
            Ok(file) => file,
            // Somebody has removed it, or has put something else in its place.
            Err(_) => trust::create(temporary)?,
        };
        if file.metadata()?.len() > 1 {
            // That shim has died while it wrote the report. The mark of the start stays.
            file.set_len(1)?;
        }
        if let Err(error) = take_room(&file) {
            tracing::warn!(%error, "there is no room for the exit report yet");
        }
        Ok(Reserve { file, stage: Stage::Empty })
    }

    /// Where init tells that it executes the program.
    pub fn start_mark(&self) -> StartMark<'_> {
        StartMark(self.file.as_fd())
    }

    /// Writes the report to `path`, whole or not at all; after an error the caller may try again.
    pub fn put(&mut self, report: &ExitReport, temporary: &Path, path: &Path) -> io::Result<Put> {
        if self.stage == Stage::Empty {
            self.fill(report)?;
            self.stage = Stage::Filled;
        }
        if self.stage == Stage::Filled {
            match fs::rename(temporary, path) {
                Ok(()) if !self.was_removed() => {}
                Err(_) if path.parent().is_some_and(|folder| !folder.exists()) => return Ok(Put::Unwanted),
                // Somebody has moved it there before. Nobody else makes the report of a task that has a shim.
                Err(_) if self.is_at(path) => {}
                Err(error) if !self.was_removed() => return Err(error),
                // Somebody has removed the file, which looked unneeded, or has put another in its place.
                _ => trust::write(path, temporary, &record::text(report)?)?,
            }
            self.stage = Stage::Placed;
        }
        Ok(Put::Placed)
    }

    fn fill(&self, report: &ExitReport) -> io::Result<()> {
        let text = record::text(report)?;
        match self.file.write_all_at(&text, 0) {
            Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                let text = record::text(&report.shortened())?;
                self.file.write_all_at(&text, 0)?;
                // Never less than the reserved size: truncating the file gives the room back.
                self.file.set_len(text.len() as u64)
            }
            done => done,
        }
    }

    fn was_removed(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| meta.nlink() == 0)
    }

    /// Whether the file has this name.
    fn is_at(&self, path: &Path) -> bool {
        let identity = |meta: fs::Metadata| (meta.dev(), meta.ino());
        let there = fs::symlink_metadata(path).map(identity);
        there.is_ok_and(|there| self.file.metadata().is_ok_and(|meta| identity(meta) == there))
    }
}

/// Takes the room for a report, unless the file has it already.
///
/// # Errors
/// The disk is full. A file system that reserves nothing is no error: writing the report may have to be tried again.
fn take_room(file: &File) -> Result<(), Errno> {
    // A signal, such as that of a child that ends, may interrupt this.
    match retry_on_intr(|| fallocate(file, FallocateFlags::KEEP_SIZE, 0, PAGE)) {
        Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => Err(errno),
        _ => Ok(()),
    }
}
