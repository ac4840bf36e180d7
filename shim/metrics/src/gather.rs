//! What all shims of the state folder tell, and what those that have gone have
//! left, at one moment.
//!
//! ```text
//!   folders ─► shims, each asked at the same time ─┐
//!           ─► exit reports ───────────────────────┼─► Scrape
//!   the same of what containerd has started ───────┤
//!   units that are tracked, by their cgroups ──────┘
//! ```
//!
//! Whoever asks while a scrape is under way gets the next, which is one for all:
//! however many ask, a shim is asked by one at a time. Must not: wait for a shim
//! longer than [`DEADLINE`].

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bowline_executor::figures::{Figures, SandboxFigures, TaskFigures};
use bowline_executor::housekeeping::Cgroups;
use bowline_executor::{Doing, Error, ExitReport, Folder, Kind, Result, StateDir, Stats, host_units};
use bowline_spec::id::TaskId;
use jiff::Timestamp;
use tokio::sync::Semaphore;

use bowline_client::scrape::{Heard, ask};
use bowline_client::spawn;

/// How long a shim has to answer.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// What was found.
#[derive(Debug, Default)]
pub struct Scrape {
    /// How long it took.
    pub took: Duration,
    /// How many shims gave no answer, and files could not be read.
    pub errors: u64,
    /// All shims that there should be.
    pub shims: Vec<Shim>,
    pub sandboxes: Vec<Sandbox>,
    pub tasks: Vec<Task>,
    /// All units that are tracked.
    pub units: Vec<Unit>,
}

#[derive(Debug)]
pub struct Shim {
    /// That of containerd that it is in; empty if it is not containerd's.
    pub namespace: String,
    /// The task or the sandbox that it is the shim of.
    pub id: String,
    /// What it says of itself.
    pub answer: Option<Answer>,
}

/// What a shim says of itself.
#[derive(Debug)]
pub struct Answer {
    pub version: String,
    /// Events that it could not write.
    pub events_lost: u64,
    /// Its memory, where one may look at it.
    pub memory: Option<ShimMemory>,
}

/// What a shim's process has, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShimMemory {
    pub rss_bytes: u64,
    /// What it shares divided by those who do.
    pub pss_bytes: u64,
}

#[derive(Debug)]
pub struct Sandbox {
    /// As of its shim.
    pub namespace: String,
    /// Its id, in this namespace.
    pub id: String,
    /// Whether its shim answers.
    pub up: bool,
    /// What the shim says about it.
    pub figures: Option<SandboxFigures>,
}

#[derive(Debug)]
pub struct Task {
    /// As of its shim.
    pub namespace: String,
    /// Its id, in this namespace.
    pub id: String,
    /// Whose shim is its own.
    pub shim: String,
    /// The sandbox that it is a member of.
    pub sandbox: Option<String>,
    /// Its cgroup below every hierarchy.
    pub cgroup: Option<String>,
    /// When its program was executed.
    pub started_at: Option<Timestamp>,
    /// Where it is in its life; not known of one whose shim does not answer.
    pub state: Option<&'static str>,
    /// Whether its shim answers for it; nothing of one that has ended, or is only
    /// being launched.
    pub up: Option<bool>,
    /// What its shim tells.
    pub figures: Option<TaskFigures>,
    /// How it ended.
    pub exit: Option<ExitReport>,
}

/// A unit of the host that is tracked.
#[derive(Debug)]
pub struct Unit {
    /// Its name.
    pub unit: String,
    pub cgroup: String,
    /// What is used there; nothing where there is no such cgroup.
    pub figures: Option<Stats>,
}

/// What the shims of a state folder tell; `room` is for how many may be asked at a time.
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
        // One that broke off as it went is as good as gone.
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
        // Removed while we looked.
        if up || state.folder(id).is_sandbox() {
            scrape.sandboxes.push(Sandbox { namespace: String::new(), id: id.to_string(), up, figures });
        }
    }
    for (id, heard) in heard {
        let answer = match heard {
            Heard::Figures(figures) => Some(Answer::of(&figures)),
            Heard::Starting => continue,
            // It went when its task ended: nothing that should be up.
            Heard::Gone if !state.folder(&id).is_sandbox() && has_ended(&state.folder(&id)) => continue,
            Heard::Gone | Heard::Silent(_) => None,
        };
        scrape.shims.push(Shim { namespace: String::new(), id: id.to_string(), answer });
    }
    Ok(scrape)
}

/// Asks all shims at the same time, as far as there is room; whose each is, and how.
pub async fn ask_all<K: Ord>(
    room: &Arc<Semaphore>,
    shims: Vec<(K, impl Future<Output = Heard> + Send + 'static)>,
) -> Result<BTreeMap<K, Heard>> {
    let begun = shims.into_iter().map(|(whose, question)| {
        let room = room.clone();
        let asked = tokio::spawn(async move {
            // It is never closed.
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
    /// What is in its figures of the shim itself.
    pub fn of(figures: &Figures) -> Answer {
        Answer {
            version: figures.version.clone().into_owned(),
            events_lost: figures.events_lost,
            memory: memory_of(figures.pid),
        }
    }
}

/// A task by its folder.
struct Found {
    id: TaskId,
    sandbox: Option<TaskId>,
    cgroup: Option<String>,
    started_at: Option<Timestamp>,
    exit: Option<ExitReport>,
}

impl Found {
    /// Looks at its files; what is damaged counts, and is taken for missing.
    fn look(state: &StateDir, id: TaskId, errors: &mut u64) -> Found {
        let folder = state.folder(&id);
        let mut checked = |error: Error| {
            tracing::warn!(%error, %id, "a task is reported in part");
            *errors += 1;
        };
        let record = folder.record().unwrap_or_else(|error| {
            checked(error);
            None
        });
        let exit = folder.exit().unwrap_or_else(|error| {
            checked(error);
            None
        });
        Found {
            sandbox: record.as_ref().map_or_else(|| folder.sandbox_by_socket(), |record| record.sandbox.clone()),
            started_at: record.as_ref().and_then(|record| record.started_at),
            cgroup: record.map(|record| record.cgroup),
            exit,
            id,
        }
    }

    fn shim(&self) -> &TaskId {
        self.sandbox.as_ref().unwrap_or(&self.id)
    }

    /// Whether it is; if nobody answers for it any more, with how it ended.
    fn is_still_there(&mut self, state: &StateDir, heard: &mut BTreeMap<TaskId, Heard>, errors: &mut u64) -> bool {
        let answered = match heard.get(self.shim()) {
            Some(Heard::Figures(figures)) => {
                figures.tasks.iter().any(|task| task.id == self.id.as_str() && task.status != "exited")
            }
            _ => false,
        };
        if answered || self.exit.is_some() {
            return true;
        }
        *self = Found::look(state, self.id.clone(), errors);
        state.folder(&self.id).exists().unwrap_or(true)
    }

    /// It with what its shim tells.
    fn told(self, heard: &mut BTreeMap<TaskId, Heard>) -> Task {
        let shim = self.shim().clone();
        let mut figures = match heard.get_mut(&shim) {
            Some(Heard::Figures(all)) => take(all, &self.id),
            _ => None,
        };
        let (state, up) = match (&self.exit, heard.get(&shim)) {
            (Some(_), _) => {
                figures = None;
                (Some("exited"), None)
            }
            (None, Some(Heard::Figures(_))) => match &figures {
                Some(task) => (state_named(&task.status), Some(true)),
                // It is only being launched.
                None => (Some("created"), None),
            },
            (None, Some(Heard::Starting)) => (Some("created"), None),
            (None, Some(Heard::Silent(_))) => (None, Some(false)),
            (None, Some(Heard::Gone) | None) => (Some("dead"), Some(false)),
        };
        let Found { id, sandbox, cgroup, started_at, exit } = self;
        let told_at = figures.as_ref().and_then(|task| task.started_at);
        let ended_at = exit.as_ref().and_then(|exit| exit.started_at);
        let started_at = told_at.or(ended_at).or(started_at);
        let (id, shim, sandbox) = (id.to_string(), shim.to_string(), sandbox.map(|id| id.to_string()));
        Task { namespace: String::new(), id, shim, sandbox, cgroup, started_at, state, up, figures, exit }
    }
}

/// What is reported of the task of this id, if anything.
pub fn take(figures: &mut Figures, id: &str) -> Option<TaskFigures> {
    let at = figures.tasks.iter().position(|task| task.id == id);
    at.map(|at| figures.tasks.swap_remove(at))
}

/// The word that a shim has used, if it is one that we know.
pub fn state_named(word: &str) -> Option<&'static str> {
    ["created", "running", "paused", "stopping", "exited"].into_iter().find(|known| *known == word)
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

/// Has block devices called by their names, as every other exporter calls them.
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

/// The units that are tracked. What cannot be read of them counts.
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
        let figures = match cgroups.figures(&unit.cgroup) {
            Ok(mut figures) => {
                name_devices(&mut figures);
                Some(figures)
            }
            // It does not run.
            Err(error) if error.kind() == Kind::NotFound => None,
            Err(error) => {
                failed(&error);
                None
            }
        };
        scrape.units.push(Unit { unit: unit.unit.to_string(), cgroup: unit.cgroup, figures });
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
