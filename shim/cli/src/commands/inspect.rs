//! `inspect`: everything that is known of a task, as JSON or as a template has it.

use bowline_executor::{Doing as _, Enforcement, Error, ExitReport, Health, Kind, Record, Result, StateDir};
use bowline_spec::Task;
use bowline_spec::id::TaskId;
use futures::stream::{self, StreamExt as _};
use jiff::Timestamp;
use serde::Serialize;

use crate::input::args::InspectArgs;
use crate::input::filter::NOT_ANSWERING;
use crate::input::named;
use crate::input::several::settle;
use crate::ui::template::Template;
use crate::{say, say_json};
use bowline_client::Presence;

/// How many tasks are looked at together: each takes a descriptor.
const AT_A_TIME: usize = 64;

/// Everything that is known of a task.
#[derive(Debug, Serialize)]
pub struct Inspection {
    pub id: TaskId,
    /// Where it is in its life, in one word.
    pub status: String,
    /// Init's pid, while it lives.
    pub pid: Option<i32>,
    /// The shim's.
    pub shim_pid: Option<i32>,
    /// The task's cgroup below every hierarchy.
    pub cgroup: Option<String>,
    /// The sandbox that it is a member of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<TaskId>,
    /// The slice that it was to be in, and whether it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Enforcement>,
    /// When its launch began.
    pub created_at: Option<Timestamp>,
    /// When its program was executed.
    pub started_at: Option<Timestamp>,
    /// What it is labelled with.
    pub labels: std::collections::BTreeMap<String, String>,
    /// Its description.
    pub task: Option<Task>,
    /// Whether it is well, where its description has a check for that.
    pub health: Option<Health>,
    /// How it ended.
    pub exit: Option<ExitReport>,
}

/// `bowline inspect`: one task as an object, several as a list.
pub async fn run(state: &StateDir, args: InspectArgs) -> Result<u8> {
    if let Some(address) = &args.address {
        say_json(&parsed(&bowline_client::facts_at(address).await?)?)?;
        return Ok(0);
    }
    if args.facts {
        return print_facts(state, &args).await;
    }
    let template = args.format.as_deref().map(Template::parse).transpose()?;
    let mut found = Vec::new();
    let mut code = None;
    let looks = stream::iter(named::resolve(state, &args.ids)).map(async |id| examine(state, &id?).await);
    for looked in looks.buffered(AT_A_TIME).collect::<Vec<_>>().await {
        settle(looked.map(|one| found.push(one)), &mut code);
    }
    match template {
        Some(template) => {
            for one in &found {
                say(&template.fill(one)?)?;
            }
        }
        None if args.ids.len() > 1 => say_json(&found)?,
        None => found.iter().try_for_each(say_json)?,
    }
    Ok(code.unwrap_or(0))
}

/// What the shim of each task knows. One after the other: who asks has a single one in mind.
async fn print_facts(state: &StateDir, args: &InspectArgs) -> Result<u8> {
    let mut found = Vec::new();
    let mut code = None;
    for id in named::resolve(state, &args.ids) {
        settle(facts(state, id).await.map(|facts| found.push(facts)), &mut code);
    }
    match found.as_slice() {
        [] => {}
        [one] if args.ids.len() == 1 => say_json(one)?,
        several => say_json(&several)?,
    }
    Ok(code.unwrap_or(0))
}

fn parsed(facts: &str) -> Result<serde_json::Value> {
    serde_json::from_str(facts).doing(Kind::Internal, || "what the shim knows is damaged")
}

async fn facts(state: &StateDir, id: Result<TaskId>) -> Result<serde_json::Value> {
    let id = id?;
    match bowline_client::find(&state.folder(&id), &id).await? {
        Presence::Live(shim) => parsed(&shim.facts().await?),
        Presence::Starting => Err(Error::new(Kind::WrongState, format!("task {id} is still being launched"))),
        Presence::Exited(_) | Presence::Dead => {
            let gone = Error::new(Kind::WrongState, format!("task {id} has no shim any more that knows anything"));
            Err(gone.hint(format!("`bowline inspect {id}` shows what it has left")))
        }
    }
}

/// Looks at several tasks, in their order. Many at a time: each whose shim is not
/// answering takes seconds.
pub async fn examine_all(state: &StateDir, ids: &[TaskId]) -> Vec<Result<Inspection>> {
    let looks = stream::iter(ids).map(|id| examine(state, id));
    looks.buffered(AT_A_TIME).collect().await
}

/// Looks at one task.
///
/// # Errors
/// `NotFound` when there is none of this id.
pub async fn examine(state: &StateDir, id: &TaskId) -> Result<Inspection> {
    match look(state, id).await {
        // A shim that leaves breaks off, or says that its task has ended; what
        // it has left is found then, or that it was removed by now.
        Err(error) if matches!(error.kind(), Kind::Internal | Kind::WrongState) => look(state, id).await,
        found => found,
    }
}

async fn look(state: &StateDir, id: &TaskId) -> Result<Inspection> {
    let folder = state.folder(id);
    let mut health = None;
    let not_answering = || (NOT_ANSWERING.to_owned(), None, None);
    let (status, pid, exit) = match bowline_client::find(&folder, id).await {
        Ok(Presence::Live(shim)) => {
            let state = shim.state().await;
            // The report is the fact: the shim may be on its way out by now.
            match (folder.exit()?, state) {
                (Some(report), _) => ("exited".to_owned(), None, Some(report)),
                (None, Ok(Some(state))) if !state.unwritten.is_empty() => {
                    ("exited".to_owned(), None, bowline_client::unwritten(&state)?)
                }
                (None, Ok(Some(state))) => {
                    health = read_health(&state.health)?;
                    (state.status, Some(state.pid).filter(|pid| *pid > 0), None)
                }
                (None, Ok(None)) if bowline_client::is_held(&folder)? => ("created".to_owned(), None, None),
                // A member's starter was killed before it has asked the sandbox's shim.
                (None, Ok(None)) => ("dead".to_owned(), None, None),
                (None, Err(error)) if error.kind() == Kind::Unavailable => not_answering(),
                (None, Err(error)) => return Err(error),
            }
        }
        Ok(Presence::Exited(report)) => ("exited".to_owned(), None, Some(*report)),
        Ok(Presence::Dead) => ("dead".to_owned(), None, None),
        Ok(Presence::Starting) => ("created".to_owned(), None, None),
        Err(error) if error.kind() == Kind::Unavailable => not_answering(),
        Err(error) => return Err(error),
    };
    let record: Option<Record> = folder.record()?;
    // Its shim cannot be asked; when it launched the task it wrote that down.
    let pid = pid.or(record.as_ref().filter(|_| status == NOT_ANSWERING).and_then(|r| r.pid));
    let gone = exit.is_some() || status == "dead";
    Ok(Inspection {
        id: id.clone(),
        status,
        pid,
        shim_pid: record.as_ref().map(|r| r.shim_pid).filter(|_| !gone),
        cgroup: record.as_ref().map(|r| r.cgroup.clone()),
        sandbox: record.as_ref().and_then(|r| r.sandbox.clone()),
        enforcement: record.as_ref().and_then(|r| r.enforcement.clone()),
        created_at: record.as_ref().map(|r| r.created_at),
        started_at: record.as_ref().and_then(|r| r.started_at),
        labels: record.as_ref().and_then(|r| r.task.as_ref()).map(|task| task.labels.clone()).unwrap_or_default(),
        task: record.and_then(|r| r.task),
        health: exit.as_ref().map_or(health, |report| report.health.clone()),
        exit,
    })
}

/// What a shim says of its task's health; nothing where it has no checks.
fn read_health(text: &str) -> Result<Option<Health>> {
    if text.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(text).map(Some).doing(Kind::Internal, || "the shim's word on the task's health is damaged")
}
