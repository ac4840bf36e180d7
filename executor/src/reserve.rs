//! Room for a task's exit report, taken when the task is launched: an open file and a page of the disk.
//!
//! ```text
//!   launch: exit.json.new, open, a page behind it
//!   end:    the report into it ─► exit.json
//! ```
//!
//! So the end asks for no space, inode or descriptor. A report that is longer than the page, on a disk that has no other,
//! is put down without what makes it long. Must not: wait, or try again by itself.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};
use serde::{Deserialize, Serialize};

use crate::report::ExitReport;
use crate::{record, trust};

/// How many bytes are reserved: what a file takes at least, on nearly every file system.
const PAGE: u64 = 4096;

/// See the module.
#[derive(Debug)]
pub struct Reserve {
    file: File,
    stage: Stage,
}

/// How far the report has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Empty,
    /// All of it is in the file, which has the name of the reserve.
    Filled,
    /// The file has the report's name.
    Placed,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Put {
    /// It is in its place.
    Placed,
    /// Its folder was removed: nobody wants it.
    Unwanted,
}

impl Reserve {
    /// Takes room for a report in a new file at `temporary`.
    pub fn take(temporary: &Path) -> io::Result<Reserve> {
        let file = trust::create(temporary)?;
        // A signal, as of a child that ends, may interrupt it.
        match retry_on_intr(|| fallocate(&file, FallocateFlags::KEEP_SIZE, 0, PAGE)) {
            Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => {
                let _ = fs::remove_file(temporary);
                Err(errno.into())
            }
            // A file system that reserves nothing: there the report may have to be tried again.
            _ => Ok(Reserve { file, stage: Stage::Empty }),
        }
    }

    /// Puts the report down at `path`, whole or not at all; after an error it may be tried again.
    pub fn put(&mut self, report: &ExitReport, temporary: &Path, path: &Path) -> io::Result<Put> {
        if self.stage == Stage::Empty {
            self.fill(report)?;
            self.stage = Stage::Filled;
        }
        if self.stage == Stage::Filled {
            match fs::rename(temporary, path) {
                renamed if !self.was_removed() => renamed?,
                Err(_) if path.parent().is_some_and(|folder| !folder.exists()) => return Ok(Put::Unwanted),
                // Somebody has cleaned up a file that nobody seems to need, or has put another in its place.
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
                // Never less than what is reserved: to truncate gives it back.
                self.file.set_len(text.len() as u64)
            }
            done => done,
        }
    }

    fn was_removed(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| meta.nlink() == 0)
    }
}
