//! `inspect`: prints everything that is known of a task, as JSON or with a template.

use bowline_executor::internal::housekeeping::{Cgroups, Difference};
use bowline_executor::internal::{is_our_cgroup, limits_of};
use bowline_model::folder::Record;
use bowline_model::folder::StateDir;
use bowline_model::health::Health;
use bowline_model::record::Connected;
use bowline_model::report::{ExitReport, SliceEnforcement};
use bowline_model::status::Shown;
use bowline_model::{Doing as _, Error, Kind, Result};
use bowline_spec::Task;
use bowline_spec::id::TaskId;
use futures::stream::{self, StreamExt as _};
use jiff::Timestamp;
use serde::Serialize;

use crate::input::args::InspectArgs;
use crate::input::each_task::settle;
use crate::input::task_names;
use crate::ui::json;
use crate::ui::print::say;
use crate::ui::template::Template;
use bowline_client::{Presence, spawn};

/// How many tasks are examined at once: each takes a file descriptor.
const AT_A_TIME: usize = 64;

/// Everything that is known of a task.
#[derive(Debug, Serialize)]
pub struct Inspection {
    pub id: TaskId,
    /// The task's status, in one word.
    pub status: Shown,
    /// Init's pid, while it lives.
    pub pid: Option<i32>,
    /// The shim's pid, until the task has ended or the shim has died.
    pub shim_pid: Option<i32>,
    /// The task's cgroup below every hierarchy.
    pub cgroup: Option<String>,
    /// The sandbox that the task is a member of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<TaskId>,
    /// The slice that was asked for, and whether the task is in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<SliceEnforcement>,
    /// The limits of which the cgroup's files say something else than was asked for: somebody else has changed them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differing_limits: Vec<Difference>,
    /// When the task's launch began.
    pub created_at: Option<Timestamp>,
    /// When the task's program was started.
    pub started_at: Option<Timestamp>,
    /// The interfaces of a network that was made for the task, as plugins have made them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Connected>,
    /// The labels from the description.
    pub labels: std::collections::BTreeMap<String, String>,
    pub task: Option<Task>,
    /// The task's health, if its description has a check.
    pub health: Option<Health>,
    pub exit: Option<ExitReport>,
}

/// Runs `bowline inspect`: prints one task as an object, several as a list.
pub async fn run(state: &StateDir, args: InspectArgs) -> Result<u8> {
    if let Some(address) = &args.address {
        json::print(&parsed(&bowline_client::facts_at(address).await?)?)?;
        return Ok(0);
    }
    if args.facts {
        return print_facts(state, &args).await;
    }
    let template = args.format.as_deref().map(Template::parse).transpose()?;
    let mut found = Vec::new();
    let mut code = None;
    let looks = stream::iter(task_names::resolve(state, &args.ids)).map(async |id| examine(state, &id?).await);
    for looked in looks.buffered(AT_A_TIME).collect::<Vec<_>>().await {
        settle(looked.map(|one| found.push(one.beside_the_kernel(state))), &mut code);
    }
    match template {
        Some(template) => {
            for one in &found {
                say(&template.fill(one)?)?;
            }
        }
        None if args.ids.len() > 1 => json::print_list(&found)?,
        None => found.iter().try_for_each(json::print)?,
    }
    Ok(code.unwrap_or(0))
}

impl Inspection {
    /// What is known of a task that lives, beside what the kernel says of its limits and those of its slice.
    pub fn beside_the_kernel(mut self, state: &StateDir) -> Inspection {
        if self.pid.is_none() {
            return self;
        }
        // Who cannot ask the kernel is shown what is recorded.
        if let Ok(cgroups) = spawn::systemd().and_then(Cgroups::of_host) {
            let now = |recorded| cgroups.enforcement(&recorded, self.cgroup.as_deref().unwrap_or_default());
            self.enforcement = self.enforcement.map(now);
            self.differing_limits = self.differences(state, &cgroups).unwrap_or_default();
        }
        self
    }

    /// The CPU shares of a sandbox's member are as its sandbox settles them, and a cgroup that is not ours keeps its limit of
    /// processes where the description says none.
    fn differences(&self, state: &StateDir, cgroups: &Cgroups) -> Result<Vec<Difference>> {
        let (Some(mut task), Some(cgroup)) = (self.task.clone(), &self.cgroup) else { return Ok(Vec::new()) };
        if self.sandbox.is_some() {
            task.cpu.shares = None;
        }
        let mut asked = limits_of(&task, &state.folder(&self.id))?;
        if task.pids.is_none() && !is_our_cgroup(cgroup) {
            asked.set_pids(None);
        }
        cgroups.differences(cgroup, &asked)
    }
}

/// Prints what the shim of each task knows. Asks one after the other, as the user usually names a single task.
async fn print_facts(state: &StateDir, args: &InspectArgs) -> Result<u8> {
    let mut found = Vec::new();
    let mut code = None;
    for id in task_names::resolve(state, &args.ids) {
        settle(facts(state, id).await.map(|facts| found.push(facts)), &mut code);
    }
    match found.as_slice() {
        [] => {}
        [one] if args.ids.len() == 1 => json::print(one)?,
        several => json::print_list(several)?,
    }
    Ok(code.unwrap_or(0))
}

fn parsed(facts: &str) -> Result<serde_json::Value> {
    serde_json::from_str(facts).doing(Kind::Internal, || "what the shim knows is damaged")
}

async fn facts(state: &StateDir, id: Result<TaskId>) -> Result<serde_json::Value> {
    let id = id?;
    match bowline_client::look(&state.folder(&id), &id).await? {
        Presence::Live(shim) => parsed(&shim.facts().await?),
        Presence::Starting => Err(Error::new(Kind::WrongState, format!("task {id} is still being launched"))),
        Presence::Exited(_) | Presence::Dead => {
            let gone = Error::new(Kind::WrongState, format!("task {id} has no shim any more that knows anything"));
            Err(gone.hint(format!("`bowline inspect {id}` shows what it has left")))
        }
    }
}

/// Examines several tasks and returns them in order. Asks many at once, as a shim that does not answer takes seconds.
pub async fn examine_all(state: &StateDir, ids: &[TaskId]) -> Vec<Result<Inspection>> {
    let looks = stream::iter(ids).map(|id| examine(state, id));
    looks.buffered(AT_A_TIME).collect().await
}

/// Collects everything that is known of one task.
///
/// # Errors
/// `NotFound` if no task has this id.
pub async fn examine(state: &StateDir, id: &TaskId) -> Result<Inspection> {
    match look(state, id).await {
        // A shim that exits closes the connection, or says that its task has ended. The second look finds what the shim
        // left, or that the task was removed.
        Err(error) if matches!(error.kind(), Kind::Internal | Kind::WrongState) => look(state, id).await,
        found => found,
    }
}

/// The status that a shim says.
fn shown(said: &str) -> Result<Shown> {
    said.parse()
        .map_err(|wrong| Error::new(Kind::Unsupported, format!("its shim says more than is known here: {wrong}")))
}

async fn look(state: &StateDir, id: &TaskId) -> Result<Inspection> {
    let folder = state.folder(id);
    let mut health = None;
    let not_answering = || (Shown::NotAnswering, None, None);
    let (status, pid, exit) = match bowline_client::look(&folder, id).await {
        Ok(Presence::Live(shim)) => {
            let state = shim.state().await;
            // Trust the report: the shim may be about to exit.
            match (folder.exit()?, state) {
                (Some(report), _) => (Shown::Exited, None, Some(report)),
                (None, Ok(Some(state))) if !state.unwritten.is_empty() => {
                    (Shown::Exited, None, bowline_client::unwritten(&state)?)
                }
                (None, Ok(Some(state))) => {
                    health = read_health(&state.health)?;
                    (shown(&state.status)?, Some(state.pid).filter(|pid| *pid > 0), None)
                }
                (None, Ok(None)) if bowline_client::is_held(&folder)? => (Shown::Created, None, None),
                // The member's starter was killed before it asked the sandbox's shim.
                (None, Ok(None)) => (Shown::Dead, None, None),
                (None, Err(error)) if error.kind() == Kind::Unavailable => not_answering(),
                (None, Err(error)) => return Err(error),
            }
        }
        Ok(Presence::Exited(report)) => (Shown::Exited, None, Some(*report)),
        Ok(Presence::Dead) => (Shown::Dead, None, None),
        Ok(Presence::Starting) => (Shown::Created, None, None),
        Err(error) if error.kind() == Kind::Unavailable => not_answering(),
        Err(error) => return Err(error),
    };
    let record: Option<Record> = folder.record()?;
    // The shim cannot be asked, but it recorded the pid when it launched the task.
    let pid = pid.or(record.as_ref().filter(|_| status == Shown::NotAnswering).and_then(|r| r.pid));
    let gone = exit.is_some() || status == Shown::Dead;
    let enforcement = record.as_ref().and_then(|r| r.enforcement.clone());
    Ok(Inspection {
        id: id.clone(),
        status,
        pid,
        shim_pid: record.as_ref().map(|r| r.shim_pid).filter(|_| !gone),
        cgroup: record.as_ref().map(|r| r.cgroup.clone()),
        sandbox: record.as_ref().and_then(|r| r.sandbox.clone()),
        // As it was at the end.
        enforcement: exit.as_ref().map_or(enforcement, |report| report.enforcement.clone()),
        differing_limits: Vec::new(),
        created_at: record.as_ref().map(|r| r.created_at),
        started_at: record.as_ref().and_then(|r| r.started_at),
        interfaces: record.as_ref().filter(|_| !gone).map(|r| r.interfaces.clone()).unwrap_or_default(),
        labels: record.as_ref().and_then(|r| r.task.as_ref()).map(|task| task.labels.clone()).unwrap_or_default(),
        task: record.and_then(|r| r.task),
        health: exit.as_ref().map_or(health, |report| report.health.clone()),
        exit,
    })
}

/// Parses the health that a shim reports; `None` if the task has no checks.
fn read_health(text: &str) -> Result<Option<Health>> {
    if text.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(text).map(Some).doing(Kind::Internal, || "the shim's word on the task's health is damaged")
}
