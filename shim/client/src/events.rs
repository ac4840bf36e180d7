//! What has happened to tasks: the journal, read and followed.
//!
//! No shim is asked: the journal outlives them. Must not: wake up while nothing is written.

use std::collections::VecDeque;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use bowline_executor::internal::register_fd_for;
use bowline_model::events::{Entry, Reader};
use bowline_model::{Doing, Kind, Result};
use bowline_spec::id::TaskId;
use rustix::fs::inotify::{CreateFlags, WatchFlags};
use tokio::io::Interest;

use crate::inotify;

/// The events of all tasks, or of one, oldest first.
///
/// The journal keeps the last one to two megabytes of events of all tasks. A follower that is slower than that misses
/// some: [`Entry::seq`] counts the events of each task.
pub struct Events {
    reader: Reader,
    /// Set up before the first read, so that nothing is missed in between.
    changes: Changes,
    ready: VecDeque<Entry>,
    only: Option<TaskId>,
}

impl Events {
    /// Those in `folder`, of the task `only` if one is named.
    pub(crate) fn open(folder: PathBuf, only: Option<TaskId>) -> Result<Events> {
        let changes = Changes::of(&folder)?;
        Ok(Events { reader: Reader::open(folder)?, changes, ready: VecDeque::new(), only })
    }

    /// All events that are in the journal and that were not returned yet. Does not wait.
    ///
    /// # Errors
    /// `Internal` when the journal cannot be read.
    pub fn past(&mut self) -> Result<Vec<Entry>> {
        self.read()?;
        Ok(self.ready.drain(..).collect())
    }

    /// The next event; waits for it. Dropping the future loses no event.
    ///
    /// # Errors
    /// `Internal` when the journal cannot be read or watched.
    pub async fn next(&mut self) -> Result<Entry> {
        loop {
            // Before the read, so that a write in between is still announced.
            self.changes.discard();
            self.read()?;
            if let Some(entry) = self.ready.pop_front() {
                return Ok(entry);
            }
            self.changes.come().await?;
        }
    }

    /// How many lines of the journal so far were damaged, by a crash or a full disk, and left out.
    pub fn damaged(&self) -> u64 {
        self.reader.damaged()
    }

    fn read(&mut self) -> Result<()> {
        let new = self.reader.read()?;
        let only = self.only.clone();
        self.ready.extend(new.into_iter().filter(|entry| only.as_ref().is_none_or(|only| *only == entry.id)));
        Ok(())
    }
}

/// Watches a folder for writes.
pub struct Changes(OwnedFd);

impl Changes {
    /// Watches `folder`, and creates it if necessary: there may be no task yet.
    ///
    /// # Errors
    /// `Internal` when it cannot be watched.
    pub fn of(folder: &Path) -> Result<Changes> {
        let what = || format!("cannot watch {}", folder.display());
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700).recursive(true).create(folder).doing(Kind::Internal, what)?;
        let events = inotify::begin(CreateFlags::NONBLOCK, what)?;
        inotify::add(&events, folder, WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO, what)?;
        Ok(Changes(events))
    }

    /// Discards the notifications so far: the journal is read again anyway.
    pub fn discard(&self) {
        let mut buffer = [0u8; 4096];
        while rustix::io::read(&self.0, &mut buffer).is_ok_and(|length| length > 0) {}
    }

    /// Returns once something has changed since [`Changes::discard`].
    async fn come(&self) -> Result<()> {
        let what = || "cannot wait for events";
        // Registered for this wait alone: the next one may be in another runtime.
        let changes =
            self.0.try_clone().and_then(|fd| register_fd_for(fd, Interest::READABLE)).doing(Kind::Internal, what)?;
        changes.readable().await.doing(Kind::Internal, what).map(drop)
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
