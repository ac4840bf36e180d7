//! How a task without a shim has ended, as far as its `bowline-init` has kept that.
//!
//! ```text
//!   bowline-init ─► status ─┐
//!                           ├─► the report ─► exit.json, and the journal of events
//!           record, history ┘
//! ```
//!
//! Must not: say of an end that nobody has kept more than that.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;

use bowline_error::{Doing as _, Error, Kind, Result};
use bowline_sys::Ended;
use jiff::Timestamp;

use super::{EVENTS, Folder};
use crate::events::{Entry, Event, Journal};
use crate::record::{Record, died_with_shim};
use crate::report::{ExitReport, signal_name};
use crate::trust;

impl Folder {
    /// Where `bowline-init` stores how the workload has ended: see `init_program`.
    pub fn status(&self) -> PathBuf {
        self.path.join("status")
    }

    /// Opens that file.
    ///
    /// # Errors
    /// `Internal` where it cannot be read.
    pub fn open_status(&self) -> Result<File> {
        let path = self.status();
        let opened = trust::open(File::options().read(true), &path);
        opened.doing(Kind::Internal, || format!("cannot read {}", path.display()))
    }

    /// How the workload of the task with this record has ended, if its init has stored that.
    pub fn kept_end(&self, record: &Record) -> Option<Ended> {
        stored_end(&self.open_status().ok().filter(|_| record.init)?)
    }

    /// When init has stored it: its one write to the file since the launch.
    fn kept_at(&self) -> Option<Timestamp> {
        self.open_status().ok()?.metadata().ok()?.modified().ok()?.try_into().ok()
    }

    /// The report of the task with this record, whose shim died before it: how it ended is known only if its init has kept
    /// that.
    pub fn report_after_death(&self, record: Option<&Record>) -> ExitReport {
        let unknown = died_with_shim(record);
        let Some((record, ended)) = record.and_then(|record| Some((record, self.kept_end(record)?))) else {
            return unknown;
        };
        let history = record.history.as_deref().cloned().unwrap_or_default();
        let signal = match ended {
            Ended::Signaled(signal) => Some(signal),
            Ended::Exited(_) | Ended::Unknown => None,
        };
        ExitReport {
            exit_code: Some(ended.code()),
            signal: signal.map(signal_name),
            signal_sent_by_shim: signal.is_some_and(|signal| history.sent.contains(&signal)),
            stopped_by: history.stopped_by,
            stopped_for: history.stopped_for,
            exited_at: self.kept_at().unwrap_or(unknown.exited_at).max(record.started_at.unwrap_or_default()),
            shim_died: false,
            ..unknown
        }
    }

    /// Writes the report of a task whose shim died, and tells its end, if its init has kept that. The caller holds the lock
    /// of the folder, or of its sandbox.
    ///
    /// # Errors
    /// What the disk refuses.
    pub fn write_kept_exit(&self) -> Result<()> {
        // `rm` reports what is damaged.
        let (Ok(None), Ok(Some(record))) = (self.exit(), self.record()) else { return Ok(()) };
        let mut report = self.report_after_death(Some(&record));
        if record.started_at.is_none() || report.shim_died {
            return Ok(());
        }
        let id = self.name().parse().map_err(|invalid: bowline_spec::Invalid| Error::from(invalid))?;
        let written = self.written_events();
        let told = written.iter().find(|entry| matches!(entry.event, Event::Exited { .. }));
        let last = written.last().map_or(0, |entry| entry.seq);
        report.events = told.map_or(last.saturating_add(1), |entry| entry.seq);
        self.write_exit(&mut self.reserve_exit_again()?, &report)?;
        if told.is_none() {
            let event = Event::of_exit(&report);
            let exited = Entry { time: Timestamp::now(), id, seq: report.events, event, lost: 0 };
            Journal::new(self.path.with_file_name(EVENTS)).append(&mut [exited]);
        }
        Ok(())
    }
}

/// What a `bowline-init` has stored in its status file, which it has mapped.
pub fn stored_end(status: &File) -> Option<Ended> {
    let mut stored = [0; bowline_init::PAGE];
    status.read_exact_at(&mut stored, 0).ok()?;
    let status = ExitStatus::from_raw(bowline_init::status(u64::from_ne_bytes(stored))?);
    Some(match status.signal() {
        Some(signal) => Ended::Signaled(signal),
        None => Ended::Exited(status.code().unwrap_or_default()),
    })
}
