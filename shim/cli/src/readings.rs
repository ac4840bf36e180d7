//! Readings of tasks for `stats` and `top`, and the rates between two readings.
//!
//! A shim only counts; the caller turns counters into rates. Must not: print.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bowline_model::folder::StateDir;
use bowline_model::stats::Stats;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::id::TaskId;
use serde::Serialize;

use crate::input::task_names::{self, TaskRef};
use crate::reach;
use bowline_client::{Presence, Shim, look};

/// The time between the two readings of a single answer.
pub const APART: Duration = Duration::from_millis(250);

/// A reading of a task, with rates since the previous reading.
#[derive(Debug, Serialize)]
pub struct Reading {
    pub id: TaskId,
    /// CPU time between the readings, in percent of one CPU.
    pub cpu_percent: Option<f64>,
    /// CPU time of each process, in percent of one CPU; processes that started in between are left out.
    pub process_cpu_percent: BTreeMap<i32, f64>,
    /// The reading itself, as the shim sent it.
    #[serde(flatten)]
    pub stats: Stats,
}

/// Tasks that are read repeatedly, all at the same time.
pub struct Sampler {
    state: StateDir,
    /// The named tasks; `None` for all that run.
    only: Option<Vec<TaskId>>,
    known: BTreeMap<TaskId, Known>,
    /// Tasks whose shim does not answer: they are not asked again.
    silent: BTreeSet<TaskId>,
    /// Why named tasks that run on are not read any more.
    pub lost: Vec<Error>,
}

/// A task that is being read, and its last reading.
struct Known {
    shim: Shim,
    last: Option<Stats>,
}

impl Sampler {
    /// Samples the named tasks, or all that run. Also returns the errors of named tasks that cannot be read.
    pub async fn new(state: &StateDir, names: &[TaskRef]) -> Result<(Sampler, Vec<Error>)> {
        let state = state.clone();
        let (known, silent, lost) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        let mut sampler = Sampler { state, only: None, known, silent, lost };
        let mut errors = Vec::new();
        if names.is_empty() {
            sampler.find_new().await?;
            return Ok((sampler, errors));
        }
        let mut only = Vec::new();
        for id in task_names::resolve(&sampler.state, names) {
            let found = match id {
                Ok(id) => reach::live_to_read(&sampler.state, &id).await.map(|shim| (id, shim)),
                Err(error) => Err(error),
            };
            match found {
                Ok((id, shim)) => {
                    only.push(id.clone());
                    sampler.known.insert(id, Known { shim, last: None });
                }
                Err(error) => errors.push(error),
            }
        }
        sampler.only = Some(only);
        Ok((sampler, errors))
    }

    /// Whether no task is left to read, now or later.
    pub fn is_over(&self) -> bool {
        self.only.is_some() && self.known.is_empty()
    }

    /// Reads all tasks twice, [`APART`] apart, and returns one answer.
    pub async fn read_twice(&mut self) -> Result<Vec<(TaskId, Result<Reading>)>> {
        let first = self.read().await?;
        tokio::time::sleep(APART).await;
        let ended = first.into_iter().filter(|(_, reading)| reading.is_err());
        Ok(ended.chain(self.read().await?).collect())
    }

    /// Reads all tasks, ordered by id. A task that cannot be read is not read again: it has ended, or see
    /// [`Sampler::lose`].
    pub async fn read(&mut self) -> Result<Vec<(TaskId, Result<Reading>)>> {
        if self.only.is_none() {
            self.find_new().await?;
        }
        let read = |(id, known): (TaskId, Known)| (id.clone(), tokio::spawn(known.read(id)));
        let begun: Vec<_> = std::mem::take(&mut self.known).into_iter().map(read).collect();
        let mut readings = Vec::new();
        for (id, reading) in begun {
            let outcome = reading.await.doing(Kind::Internal, || format!("cannot read task {id}"))?;
            let outcome = outcome.map(|(known, reading)| {
                self.known.insert(id.clone(), known);
                reading
            });
            if let Err(error) = &outcome
                && error.kind() == Kind::Unavailable
            {
                self.silent.insert(id.clone());
            }
            readings.push((id, outcome));
        }
        Ok(readings)
    }

    /// Keeps the error of a named task that could not be read, unless the task has ended.
    pub async fn lose(&mut self, id: &TaskId, error: Error) {
        let runs_on = async || matches!(look(&self.state.folder(id), id).await, Ok(Presence::Dead));
        if self.only.is_some() && (error.kind() == Kind::Unavailable || runs_on().await) {
            self.lost.push(error);
        }
    }

    async fn find_new(&mut self) -> Result<()> {
        for id in self.state.ids()? {
            if self.known.contains_key(&id) || self.silent.contains(&id) {
                continue;
            }
            // Ignore tasks that have ended or were removed meanwhile.
            if let Ok(Presence::Live(shim)) = look(&self.state.folder(&id), &id).await {
                self.known.insert(id, Known { shim, last: None });
            }
        }
        Ok(())
    }
}

impl Known {
    async fn read(mut self, id: TaskId) -> Result<(Known, Reading)> {
        let stats = match self.shim.stats().await {
            // Its shim may have died: a new one goes on.
            Err(error) if error.kind() != Kind::Unavailable => {
                self.shim = reach::live_in_to_read(self.shim.folder(), &id).await?;
                self.shim.stats().await?
            }
            stats => stats?,
        };
        let stats: Stats =
            serde_json::from_str(&stats).doing(Kind::Internal, || "the shim's statistics are damaged")?;
        let reading = compare(id, self.last.as_ref(), stats.clone());
        self.last = Some(stats);
        Ok((self, reading))
    }
}

/// Reads what the members of a sandbox use together.
pub async fn of_sandbox(id: &TaskId, shim: &Shim) -> Result<Reading> {
    let first = shim.sandbox_stats().await?;
    tokio::time::sleep(APART).await;
    Ok(compare(id.clone(), Some(&first), shim.sandbox_stats().await?))
}

fn compare(id: TaskId, first: Option<&Stats>, stats: Stats) -> Reading {
    let Some(first) = first else {
        return Reading { id, cpu_percent: None, process_cpu_percent: BTreeMap::new(), stats };
    };
    let elapsed = stats.read_at.duration_since(first.read_at).as_secs_f64();
    let percent = |before: u64, after: u64| {
        let used = after.saturating_sub(before) as f64 / 1e6;
        // Round to a tenth: a reading is no more exact than that.
        (elapsed > 0.0).then(|| (used / elapsed * 1000.0).round() / 10.0)
    };
    let cpu_percent = match (first.cpu.usage_usec, stats.cpu.usage_usec) {
        (Some(before), Some(after)) => percent(before, after),
        _ => None,
    };
    let by_process = stats.processes.iter().filter_map(|after| {
        let before = first.processes.iter().find(|before| before.pid == after.pid)?;
        Some((after.pid, percent(before.user_usec + before.system_usec, after.user_usec + after.system_usec)?))
    });
    let process_cpu_percent = by_process.collect();
    Reading { id, cpu_percent, process_cpu_percent, stats }
}
