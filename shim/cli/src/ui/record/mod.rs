//! `stats --record`: records a task's readings and events in one file.
//!
//! ```text
//!   each interval: shim ─► reading ─┐
//!                journal ─► events ─┼─► one JSON line each, written at once
//!   the end: report ────────────────┘
//! ```
//!
//! A written line stays, whatever fails afterwards. Must not: write to a file that already existed.

pub mod file;

use std::path::Path;
use std::time::Duration;

use bowline_model::events::{Entry, Reader};
use bowline_model::folder::StateDir;
use bowline_model::folder::died_with_shim;
use bowline_model::report::ExitReport;
use bowline_model::stats::Stats;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::id::TaskId;
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::input::args::StatsArgs;
use crate::reach;
use crate::ui::plot;
use crate::ui::print::say;
use crate::ui::signals::{ENDING, Signals};
use bowline_client::{Presence, Shim, dead};
use file::{Because, Header, Writer};

/// The default time between two readings.
const INTERVAL: Duration = Duration::from_secs(1);

/// The recording ends after this many failed readings in a row.
const MOST_FAILURES: u32 = 3;

/// Runs `bowline stats --record`, and with `--plot` draws the picture.
pub async fn run(state: &StateDir, path: &Path, args: &StatsArgs) -> Result<u8> {
    let [name] = &args.ids[..] else {
        return Err(Error::new(Kind::Usage, "--record is of one task").hint("name the task that is to be recorded"));
    };
    let id = name.resolve(state)?;
    if let Some(picture) = &args.plot {
        if picture == path {
            return Err(Error::new(Kind::Usage, "--record and --plot name the same file"));
        }
        plot::writable(picture)?;
    }
    let mut recorder = Recorder::begin(state, &id, path, args).await?;
    let signals = Signals::watch(&ENDING)?;
    let outcome = recorder.record(signals, args.length.map(|length| length.as_std())).await;
    // Draw what was recorded, even if it is incomplete.
    let drawn = args.plot.as_ref().map_or(Ok(()), |picture| plot::draw(path, picture));
    let because = outcome?;
    drawn?;
    let (readings, events) = (recorder.readings, recorder.events);
    say(&format!("{}: {readings} readings, {events} events", path.display()))?;
    if because == Because::ShimDied { Err(dead(&state.folder(&id), &id)) } else { Ok(0) }
}

/// A recording that is being made.
struct Recorder {
    id: TaskId,
    shim: Shim,
    journal: Reader,
    writer: Writer,
    interval: Duration,
    readings: u64,
    events: u64,
}

impl Recorder {
    async fn begin(state: &StateDir, id: &TaskId, path: &Path, args: &StatsArgs) -> Result<Recorder> {
        let shim = reach::live_to_read(state, id).await?;
        let record = shim.folder().record()?;
        let interval = args.interval.map_or(INTERVAL, |interval| interval.as_std());
        let begun_at = Timestamp::now();
        let mut journal = Reader::open(state.events())?;
        let past = journal.read()?;
        let header = Header::new(id, begun_at, interval, record.as_ref());
        let writer = Writer::create(path, &header)?;
        let mut recorder = Recorder { id: id.clone(), shim, journal, writer, interval, readings: 0, events: 0 };
        // Include what has just happened, usually the start of the task.
        let since = begun_at.checked_sub(SignedDuration::try_from(interval.max(INTERVAL)).unwrap_or_default());
        recorder.keep(past.into_iter().filter(|entry| since.as_ref().is_ok_and(|since| entry.time >= *since)))?;
        Ok(recorder)
    }

    /// Writes the events of this task.
    fn keep(&mut self, entries: impl IntoIterator<Item = Entry>) -> Result<()> {
        for entry in entries.into_iter().filter(|entry| entry.id == self.id) {
            self.writer.event(&entry)?;
            self.events += 1;
        }
        Ok(())
    }

    /// Records until the task ends, somebody stops the recording, or `length` has passed.
    async fn record(&mut self, signals: Signals, length: Option<Duration>) -> Result<Because> {
        let end = self.follow(signals, length).await;
        let entries = self.journal.read()?;
        self.keep(entries)?;
        let because = match &end {
            Ok(End::Exited(report)) if report.shim_died => Because::ShimDied,
            Ok(End::Exited(report)) => {
                self.writer.exit(report)?;
                Because::Exited
            }
            Ok(End::Asked) => Because::Asked,
            Ok(End::TimeOver) => Because::TimeOver,
            Err(_) => Because::Unreadable,
        };
        self.writer.end(because)?;
        end.map(|_| because)
    }

    async fn follow(&mut self, mut signals: Signals, length: Option<Duration>) -> Result<End> {
        let begun = Instant::now();
        let over = async {
            match length {
                Some(length) => tokio::time::sleep_until(begun + length).await,
                None => std::future::pending().await,
            }
        };
        let Recorder { id, shim, journal, writer, .. } = self;
        let mut end = reach::until_end(id, shim);
        tokio::pin!(over);
        let (mut due, mut failures) = (begun, 0);
        loop {
            let read = async {
                tokio::time::sleep_until(due).await;
                shim.stats().await
            };
            let stats = tokio::select! {
                now = &mut end => match now? {
                    Presence::Exited(report) => return Ok(End::Exited(report)),
                    Presence::Live(new) => {
                        end = reach::until_end(id, &new);
                        *shim = new;
                        (due, failures) = (Instant::now(), 0);
                        continue;
                    }
                    Presence::Dead | Presence::Starting => return Ok(End::Exited(Box::new(died_with_shim(None)))),
                },
                _ = signals.next() => return Ok(End::Asked),
                () = &mut over => return Ok(End::TimeOver),
                stats = read => stats,
            };
            let stats = stats.and_then(|stats| {
                serde_json::from_str::<Stats>(&stats).doing(Kind::Internal, || "the shim's statistics are damaged")
            });
            match stats {
                Ok(stats) => {
                    writer.reading(stats)?;
                    self.readings += 1;
                    failures = 0;
                }
                // The task may be about to end; the end is then reported.
                Err(error) if error.kind() == Kind::Unavailable || shim.version().await.is_ok() => {
                    failures += 1;
                    if failures == MOST_FAILURES {
                        return Err(error);
                    }
                }
                // The shim is gone: `end` tells what comes next.
                Err(_) => {}
            }
            for entry in journal.read()?.iter().filter(|entry| entry.id == *id) {
                writer.event(entry)?;
                self.events += 1;
            }
            // After a pause, such as the machine's sleep, missed readings are not made up for.
            due = (due + self.interval).max(Instant::now());
        }
    }
}

/// Why there are no more readings.
enum End {
    Exited(Box<ExitReport>),
    Asked,
    TimeOver,
}
