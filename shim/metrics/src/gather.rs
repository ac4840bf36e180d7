//! Gathers what all shims of the state folder report, and what ended shims have left, at one moment.
//!
//! ```text
//!   folders ─► shims, each asked at the same time ─┐
//!           ─► exit reports ───────────────────────┼─► Scrape
//!   the same for tasks of containerd ──────────────┤
//!   units that are tracked, by their cgroups ──────┘
//! ```
//!
//! A client that asks during a scrape gets the result of the next one, which all such clients share: a shim gets only
//! one question at a time. Must not: wait for a shim longer than [`DEADLINE`].

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bowline_executor::internal::host_units;
use bowline_executor::internal::housekeeping::Cgroups;
use bowline_model::folder::{Folder, StateDir};
use bowline_model::report::ExitReport;
use bowline_model::stats::Stats;
use bowline_model::stats::figures::{Figures, SandboxFigures, TaskFigures};
use bowline_model::status::Shown;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::id::TaskId;
use jiff::Timestamp;
use tokio::sync::Semaphore;

use bowline_client::scrape::{Heard, ask};
use bowline_client::{nomad_labels, spawn};

/// Timeout for a shim's answer.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// The result of a scrape.
#[derive(Debug, Default)]
pub struct Scrape {
    /// How long the scrape took.
    pub took: Duration,
    /// How many shims did not answer, plus how many files could not be read.
    pub errors: u64,
    /// All shims that should exist.
    pub shims: Vec<Shim>,
    pub sandboxes: Vec<Sandbox>,
    pub tasks: Vec<Task>,
    pub units: Vec<TrackedUnit>,
}

#[derive(Debug)]
pub struct Shim {
    /// The containerd namespace of the shim; empty if the shim is not containerd's.
    pub namespace: String,
    /// The id of the shim's task or sandbox.
    pub id: String,
    /// What the shim reports about itself, if it answered.
    pub answer: Option<Answer>,
}

/// What a shim reports about itself.
#[derive(Debug)]
pub struct Answer {
    pub version: String,
    /// How many events the shim could not write.
    pub events_lost: u64,
    /// The shim's memory, if we are allowed to read it.
    pub memory: Option<ShimMemory>,
}

/// The memory of a shim's process, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShimMemory {
    pub rss_bytes: u64,
    /// Shared memory is divided by the number of processes that share it.
    pub pss_bytes: u64,
}

#[derive(Debug)]
pub struct Sandbox {
    /// The containerd namespace of its shim.
    pub namespace: String,
    /// The id, unique in the namespace.
    pub id: String,
    /// Whether its shim answered this scrape.
    pub up: bool,
    /// What the shim reports about the sandbox.
    pub figures: Option<SandboxFigures>,
}

#[derive(Debug)]
pub struct Task {
    /// The containerd namespace of its shim.
    pub namespace: String,
    /// The id, unique in the namespace.
    pub id: String,
    /// The id of the task's shim.
    pub shim: String,
    /// The sandbox that the task is a member of.
    pub sandbox: Option<String>,
    /// What Nomad calls it, if it is one of Nomad's.
    pub nomad: Option<Nomad>,
    /// The path of its cgroup below every hierarchy.
    pub cgroup: Option<String>,
    /// When its program was executed.
    pub started_at: Option<Timestamp>,
    /// The task's state; unknown if the shim does not answer.
    pub state: Option<Shown>,
    /// Whether the shim answers for the task; `None` for a task that has ended or is still being launched.
    pub up: Option<bool>,
    /// What the shim reports about the task.
    pub figures: Option<TaskFigures>,
    pub exit: Option<ExitReport>,
}

/// A task of Nomad's, by Nomad's names.
#[derive(Debug)]
pub struct Nomad {
    pub namespace: String,
    pub job: String,
    pub group: String,
    pub task: String,
    pub allocation: String,
}

impl Nomad {
    fn of(labels: &BTreeMap<String, String>) -> Option<Nomad> {
        let value = |name: &str| labels.get(name).cloned().unwrap_or_default();
        labels.contains_key(nomad_labels::ID).then(|| Nomad {
            namespace: value(nomad_labels::NAMESPACE),
            job: value(nomad_labels::JOB),
            group: value(nomad_labels::GROUP),
            task: value(nomad_labels::TASK),
            allocation: value(nomad_labels::ALLOCATION),
        })
    }
}

/// A tracked unit of the host.
#[derive(Debug)]
pub struct TrackedUnit {
    pub unit: String,
    pub cgroup: String,
    /// The usage of the cgroup; `None` if there is no such cgroup.
    pub figures: Option<Stats>,
}

/// Asks the shims of a state folder; `room` limits how many at a time.
pub async fn gather(state: &StateDir, room: &Arc<Semaphore>) -> Result<Scrape> {
    let mut scrape = Scrape::default();
    let sandboxes = state.sandboxes()?;
    let mut found: Vec<Found> = state.ids()?.into_iter().map(|id| Found::look(state, id, &mut scrape.errors)).collect();
    let alone = found.iter().filter(|task| task.exit.is_none() && task.sandbox.is_none()).map(|task| task.id.clone());
    let asked = sandboxes.iter().cloned().chain(alone).map(|id| {
        let folder = state.folder(&id);
        (id, async move { ask(&folder, DEADLINE).await })
    });
    let mut heard = ask_all(room, asked.collect()).await?;
    for (id, heard) in &mut heard {
        // A shim whose connection broke while it was leaving counts as gone.
        if matches!(heard, Heard::Silent(_)) && has_ended(&state.folder(id)) {
            *heard = Heard::Gone;
        }
        match heard {
            Heard::Figures(figures) => named(figures),
            Heard::Silent(error) => {
                tracing::warn!(%error, "a shim gave no answer");
                scrape.errors += 1;
            }
            Heard::Starting | Heard::Gone => {}
        }
    }
    found.retain_mut(|task| task.is_still_there(state, &mut heard, &mut scrape.errors));
    scrape.tasks = found.into_iter().map(|task| task.told(&mut heard)).collect();
    for id in &sandboxes {
        let figures = match heard.get_mut(id) {
            Some(Heard::Figures(figures)) => figures.sandbox.take(),
            _ => None,
        };
        let up = matches!(heard.get(id), Some(Heard::Figures(_)));
        // Skip a sandbox that was removed while we looked.
        if up || state.folder(id).is_sandbox() {
            scrape.sandboxes.push(Sandbox { namespace: String::new(), id: id.to_string(), up, figures });
        }
    }
    for (id, heard) in heard {
        let answer = match heard {
            Heard::Figures(figures) => Some(Answer::of(&figures)),
            Heard::Starting => continue,
            // The shim ended with its task: nothing here should be up.
            Heard::Gone if !state.folder(&id).is_sandbox() && has_ended(&state.folder(&id)) => continue,
            Heard::Gone | Heard::Silent(_) => None,
        };
        scrape.shims.push(Shim { namespace: String::new(), id: id.to_string(), answer });
    }
    Ok(scrape)
}

/// Asks all shims at the same time, as far as there is room; returns each answer under the shim's key.
pub async fn ask_all<K: Ord>(
    room: &Arc<Semaphore>,
    shims: Vec<(K, impl Future<Output = Heard> + Send + 'static)>,
) -> Result<BTreeMap<K, Heard>> {
    let begun = shims.into_iter().map(|(whose, question)| {
        let room = room.clone();
        let asked = tokio::spawn(async move {
            // The semaphore is never closed.
            let _turn = room.acquire().await;
            question.await
        });
        (whose, asked)
    });
    let begun: Vec<_> = begun.collect();
    let mut heard = BTreeMap::new();
    for (whose, asked) in begun {
        heard.insert(whose, asked.await.doing(Kind::Internal, || "cannot ask a shim")?);
    }
    Ok(heard)
}

impl Answer {
    /// Extracts what the shim reports about itself.
    pub fn of(figures: &Figures) -> Answer {
        Answer {
            version: figures.version.clone().into_owned(),
            events_lost: figures.events_lost,
            memory: memory_of(figures.pid),
        }
    }
}

/// A task, as its folder describes it.
struct Found {
    id: TaskId,
    /// Whether its record cannot be read, or is that of another folder.
    is_damaged: bool,
    sandbox: Option<TaskId>,
    nomad: Option<Nomad>,
    cgroup: Option<String>,
    started_at: Option<Timestamp>,
    exit: Option<ExitReport>,
}

impl Found {
    /// Reads the task's files; a damaged file counts as an error and as missing.
    fn look(state: &StateDir, id: TaskId, errors: &mut u64) -> Found {
        let folder = state.folder(&id);
        let mut checked = |error: Error| {
            tracing::warn!(%error, %id, "a task is reported in part");
            *errors += 1;
        };
        let record = folder.record();
        let is_damaged = record.is_err();
        let record = record.unwrap_or_else(|error| {
            checked(error);
            None
        });
        let exit = folder.exit().unwrap_or_else(|error| {
            checked(error);
            None
        });
        Found {
            is_damaged,
            sandbox: record.as_ref().map_or_else(|| folder.sandbox_by_socket(), |record| record.sandbox.clone()),
            started_at: record.as_ref().and_then(|record| record.started_at),
            nomad: record.as_ref().and_then(|record| Nomad::of(&record.task.as_ref()?.labels)),
            cgroup: record.map(|record| record.cgroup),
            exit,
            id,
        }
    }

    fn shim(&self) -> &TaskId {
        self.sandbox.as_ref().unwrap_or(&self.id)
    }

    /// Whether the task still exists. If no shim answers for it any more, reads again how it ended.
    fn is_still_there(&mut self, state: &StateDir, heard: &mut BTreeMap<TaskId, Heard>, errors: &mut u64) -> bool {
        let answered = match heard.get(self.shim()) {
            Some(Heard::Figures(figures)) => {
                figures.tasks.iter().any(|task| task.id == self.id.as_str() && task.status != Shown::Exited.as_str())
            }
            _ => false,
        };
        if answered || self.exit.is_some() {
            return true;
        }
        *self = Found::look(state, self.id.clone(), errors);
        state.folder(&self.id).exists().unwrap_or(true)
    }

    /// Combines the task with what its shim reports.
    fn told(self, heard: &mut BTreeMap<TaskId, Heard>) -> Task {
        let shim = self.shim().clone();
        let mut figures = match heard.get_mut(&shim) {
            Some(Heard::Figures(all)) => take(all, &self.id),
            _ => None,
        };
        let (state, up) = match (&self.exit, heard.get(&shim)) {
            (Some(_), _) => {
                figures = None;
                (Some(Shown::Exited), None)
            }
            (None, Some(Heard::Figures(_))) => match &figures {
                Some(task) => (task.status.parse().ok(), Some(true)),
                // The task is still being launched, or its folder was moved.
                None => ((!self.is_damaged).then_some(Shown::Created), None),
            },
            (None, Some(Heard::Starting)) => (Some(Shown::Created), None),
            (None, Some(Heard::Silent(_))) => (None, Some(false)),
            (None, Some(Heard::Gone) | None) => (Some(Shown::Dead), Some(false)),
        };
        let Found { id, sandbox, nomad, cgroup, started_at, exit, .. } = self;
        let told_at = figures.as_ref().and_then(|task| task.started_at);
        let ended_at = exit.as_ref().and_then(|exit| exit.started_at);
        let started_at = told_at.or(ended_at).or(started_at);
        let (id, shim, sandbox) = (id.to_string(), shim.to_string(), sandbox.map(|id| id.to_string()));
        Task { namespace: String::new(), id, shim, sandbox, nomad, cgroup, started_at, state, up, figures, exit }
    }
}

/// Takes out the figures of the task `id`, if there are any.
pub fn take(figures: &mut Figures, id: &str) -> Option<TaskFigures> {
    let at = figures.tasks.iter().position(|task| task.id == id);
    at.map(|at| figures.tasks.swap_remove(at))
}

fn has_ended(folder: &Folder) -> bool {
    !folder.exists().unwrap_or(true) || matches!(folder.exit(), Ok(Some(_)))
}

/// The memory of a process, from its smaps_rollup (proc(5)).
fn memory_of(pid: u32) -> Option<ShimMemory> {
    parse_memory(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?)
}

fn parse_memory(rollup: &str) -> Option<ShimMemory> {
    let bytes = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(ShimMemory { rss_bytes: bytes("Rss")?, pss_bytes: bytes("Pss")? })
}

/// Replaces device numbers by the names of block devices, as other exporters do.
pub fn named(figures: &mut Figures) {
    let of_tasks = figures.tasks.iter_mut().filter_map(|task| task.usage.as_mut());
    let of_sandbox = figures.sandbox.iter_mut().filter_map(|sandbox| sandbox.usage.as_mut());
    of_tasks.chain(of_sandbox).for_each(name_devices);
}

pub fn name_devices(usage: &mut Stats) {
    for device in usage.io.devices.iter_mut().flatten() {
        let link = fs::read_link(format!("/sys/dev/block/{}", device.device));
        let name = link.ok().and_then(|path| path.file_name()?.to_str().map(str::to_owned));
        device.device = name.unwrap_or_else(|| std::mem::take(&mut device.device));
    }
}

/// Adds the tracked units. Everything that cannot be read counts as an error.
pub fn gather_units(state: &StateDir, scrape: &mut Scrape) {
    let mut failed = |error: &Error| {
        tracing::warn!(%error, "units are reported in part");
        scrape.errors += 1;
    };
    let units = match host_units::read(state) {
        Ok(units) if units.is_empty() => return,
        Ok(units) => units,
        Err(error) => return failed(&error),
    };
    let cgroups = match spawn::systemd().and_then(Cgroups::of_host) {
        Ok(cgroups) => cgroups,
        Err(error) => return failed(&error),
    };
    for unit in units {
        // A unit moves with its slice; one that does not run is told where it was.
        let cgroup = cgroups.of_unit(unit.unit.as_str(), &unit.cgroup).unwrap_or(unit.cgroup);
        let figures = match cgroups.figures(&cgroup) {
            Ok(mut figures) => {
                name_devices(&mut figures);
                Some(figures)
            }
            // The unit does not run.
            Err(error) if error.kind() == Kind::NotFound => None,
            Err(error) => {
                failed(&error);
                None
            }
        };
        scrape.units.push(TrackedUnit { unit: unit.unit.to_string(), cgroup, figures });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_memory_is_that_of_its_rollup() {
        let rollup = "5600-7ffe ---p 00000000 00:00 0    [rollup]\nRss:            1024 kB\nPss:             512 kB\n\
                      Pss_Dirty:        12 kB\n";
        assert_eq!(parse_memory(rollup), Some(ShimMemory { rss_bytes: 1 << 20, pss_bytes: 1 << 19 }));
        assert_eq!(parse_memory("Rss: 1 kB\n"), None);
        assert_eq!(parse_memory("Rss: x kB\nPss: 1 kB\n"), None);
    }
}
