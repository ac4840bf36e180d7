//! Removing a folder, which ends a task's name: all of it disappears at once, and the journal of events hears of it.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use bowline_error::{Error, Kind, Result};
use bowline_spec::id::TaskId;
use jiff::Timestamp;
use rustix::mount::{UnmountFlags, unmount};

use super::lock::Found;
use super::{EVENTS, Folder, LOCK, Lock, Owner, ROOTFS, cannot};
use crate::events::{Entry, Event, Journal};
use crate::report::ExitReport;

impl Folder {
    /// Removes the folder of a task that has ended. Others see all of it disappear at once, so that
    /// nobody finds half a task, or locks a folder that is going.
    pub fn remove(&self, lock: Lock) -> Result<()> {
        self.remove_locked(&lock)
    }

    /// Like [`Folder::remove`], for a caller that keeps the lock until it has ended.
    pub fn remove_locked(&self, lock: &Lock) -> Result<()> {
        self.remove_saying(lock, Folder::last_events)
    }

    /// Like [`Folder::remove`], for what has no journal.
    pub fn remove_quietly(&self, lock: Lock) -> Result<()> {
        self.remove_saying(&lock, |_| Vec::new())
    }

    /// Removes the folder and writes the `last` events to the journal.
    fn remove_saying(&self, lock: &Lock, last: impl FnOnce(&Folder) -> Vec<Entry>) -> Result<()> {
        if !self.is_of(lock)? {
            return Ok(());
        }
        let mut last = last(self);
        let aside = self.aside();
        let renamed = fs::rename(&self.path, &aside).or_else(|error| match error.kind() {
            // Left by a process that was killed and had this pid.
            ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists => {
                fs::remove_dir_all(&aside).and_then(|()| fs::rename(&self.path, &aside))
            }
            _ => Err(error),
        });
        match renamed.and_then(|()| remove_tree(&aside)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(cannot("remove", &self.path, &error)),
            _ => {}
        }
        if !last.is_empty() {
            Journal::new(self.path.with_file_name(EVENTS)).append(&mut last);
        }
        Ok(())
    }

    /// Removes the folder of a task that has ended, whose shim cannot write this report and stays
    /// to try again; the shim sees that nobody wants the report any more. Blocks until the shim has
    /// left. `last` gets the folder before its files go, which nobody else finds by then; returns what it returns.
    ///
    /// # Errors
    /// What the disk refuses: the shim then keeps the report.
    pub fn remove_unwritten<T>(&self, report: &ExitReport, last: impl FnOnce(&Folder) -> T) -> Result<T> {
        let id: TaskId = self.name().parse().map_err(|e: bowline_spec::Invalid| Error::from(e))?;
        let lock = self.lock_file(|_| true)?;
        let aside = Folder::at(self.aside());
        let refused = |error: io::Error| cannot("remove", &self.path, &error);
        fs::rename(&self.path, &aside.path).map_err(refused)?;
        // The shim may have written it at last.
        let written = matches!(aside.exit(), Ok(Some(_)));
        let told = last(&aside);
        fs::remove_dir_all(&aside.path).map_err(refused)?;
        let entry = |seq, event| Entry { time: Timestamp::now(), id: id.clone(), seq, event, lost: 0 };
        let exited = (!written).then(|| entry(report.events, Event::of_exit(report)));
        let removed = entry(report.events.saturating_add(1), Event::Removed);
        let mut last: Vec<Entry> = exited.into_iter().chain([removed]).collect();
        Journal::new(self.path.with_file_name(EVENTS)).append(&mut last);
        // A lock that is lost tells nothing.
        if let Found::File(lock) = lock {
            lock.lock().map_err(|error| cannot("lock", &self.file(LOCK), &error))?;
        }
        Ok(told)
    }

    /// The name under which the folder is removed.
    fn aside(&self) -> PathBuf {
        self.path.with_file_name(format!(".removed-{}-{}", self.name(), std::process::id()))
    }

    /// The last events of a task without a shim: its removal, and its end if the shim did not live
    /// to write it. None for a launch that failed.
    pub fn last_events(&self) -> Vec<Entry> {
        let Ok(id) = self.name().parse::<TaskId>() else { return Vec::new() };
        let entry = |seq, event| Entry { time: Timestamp::now(), id: id.clone(), seq, event, lost: 0 };
        if let Ok(Some(report)) = self.exit() {
            return vec![entry(report.events.saturating_add(1), Event::Removed)];
        }
        let record = self.record();
        if matches!(&record, Ok(None)) || matches!(&record, Ok(Some(record)) if record.started_at.is_none()) {
            return Vec::new();
        }
        let written = self.written_events();
        let last = written.last().map_or(0, |entry| entry.seq);
        // The exit may have been announced although its report is damaged.
        if written.iter().any(|entry| matches!(entry.event, Event::Exited { .. })) {
            return vec![entry(last.saturating_add(1), Event::Removed)];
        }
        let record = record.ok().flatten();
        if record.is_none() && !written.iter().any(|entry| matches!(entry.event, Event::Started { .. })) {
            return Vec::new();
        }
        let exited = Event::of_exit(&self.report_after_death(record.as_ref()));
        vec![entry(last.saturating_add(1), exited), entry(last.saturating_add(2), Event::Removed)]
    }

    /// How the task of this folder has ended, as far as the journal knows: the folder is gone, and its report with it. Where
    /// the folder is not pinned, it is the last task that had the name.
    pub fn removed_report(&self) -> Option<ExitReport> {
        let lives = self.written_lives();
        // A task of the name that was removed before the folder was there is another one.
        let is_ours = |at: Timestamp, life: &[Entry]| {
            life.iter()
                .rev()
                .find(|entry| matches!(entry.event, Event::Removed))
                .is_none_or(|removed| removed.time >= at)
        };
        let life = match self.pinned_at() {
            Some(at) => lives.into_iter().find(|life| is_ours(at, life)),
            None => lives.into_iter().next_back(),
        };
        let mut report = ExitReport::default();
        let mut has_ended = false;
        for entry in life? {
            match entry.event {
                Event::Started { .. } => report.started_at = Some(entry.time),
                Event::Exited { exit_code, signal, oom_killed, stopped_by, shim_died, init_lost } => {
                    (report.exit_code, report.signal, report.oom_killed) = (exit_code, signal, oom_killed);
                    (report.stopped_by, report.shim_died, report.init_lost) = (stopped_by, shim_died, init_lost);
                    (report.exited_at, report.events) = (entry.time, entry.seq);
                    has_ended = true;
                }
                _ => {}
            }
        }
        has_ended.then_some(report)
    }

    /// Removes the folder of a task that was made here, unless a command holds it by now; what cannot be removed is
    /// logged. `events` is how many a task that has ended had, its end included; a launch that failed has none.
    pub fn remove_unheld(&self, events: Option<u64>) {
        let last = |folder: &Folder| {
            let (id, events) = (folder.name().parse().ok(), events.map(|events| events.saturating_add(1)));
            let removed = |(id, seq)| Entry { time: Timestamp::now(), id, seq, event: Event::Removed, lost: 0 };
            id.zip(events).map(removed).into_iter().collect()
        };
        let removed = match self.owner() {
            Ok(Owner::Nobody(lock)) => self.remove_saying(&lock, last),
            Ok(Owner::Shim) => return,
            Err(error) => Err(error),
        };
        match removed {
            // Somebody else removed it first.
            Err(error) if error.kind() != Kind::NotFound => {
                tracing::error!(%error, path = %self.path.display(), "a folder is left behind");
            }
            _ => {}
        }
    }

    /// Removes the folder of a launch that failed, whose lock this process holds: its name is free then. What cannot be
    /// removed is logged.
    pub fn remove_held(&self) {
        let aside = self.aside();
        if let Err(error) = fs::rename(&self.path, &aside).and_then(|()| remove_tree(&aside)) {
            tracing::error!(%error, path = %self.path.display(), "a folder is left behind");
        }
    }

    /// Removes a folder whose making failed; what cannot be removed is logged.
    pub(super) fn discard(&self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "folder left behind");
        }
    }
}

/// Removes a folder and what is in it. The places of mounts in a task's root are empty folders: to try that first is one
/// call for each where `remove_dir_all` has eight.
fn remove_tree(path: &Path) -> io::Result<()> {
    for folder in [path.join(ROOTFS), path.to_owned()] {
        if !fs::symlink_metadata(&folder).is_ok_and(|meta| meta.is_dir()) {
            continue;
        }
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                // One that is not empty is left to what follows.
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
    match fs::remove_dir_all(path) {
        // The mounts of a sandbox whose record is gone.
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                let _ = unmount(entry.path(), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
            }
            fs::remove_dir_all(path)
        }
        removed => removed,
    }
}
