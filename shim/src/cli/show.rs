//! Commands that only look: inspect, ps.

use bowline_executor::{Doing as _, ExitReport, Health, Kind, Record, Result, StateDir};
use bowline_spec::Task;
use bowline_spec::id::TaskId;
use jiff::Timestamp;
use serde::Serialize;

use super::{say, say_json};
use crate::client::{self, Presence};

/// Everything that is known of a task.
#[derive(Debug, Serialize)]
struct Inspection {
    id: TaskId,
    status: String,
    pid: Option<i32>,
    shim_pid: Option<i32>,
    cgroup: Option<String>,
    created_at: Option<Timestamp>,
    started_at: Option<Timestamp>,
    labels: std::collections::BTreeMap<String, String>,
    task: Option<Task>,
    health: Option<Health>,
    exit: Option<ExitReport>,
}

/// `bowline inspect`.
pub async fn inspect(state: &StateDir, id: &TaskId) -> Result<u8> {
    say_json(&examine(state, id).await?).map(|()| 0)
}

async fn examine(state: &StateDir, id: &TaskId) -> Result<Inspection> {
    let folder = state.folder(id);
    let mut health = None;
    let (status, pid, exit) = match client::find(&folder, id).await? {
        Presence::Live(shim) => {
            let state = shim.state().await;
            // The report is the fact: the shim may be on its way out by now.
            match (folder.exit()?, state) {
                (Some(report), _) => ("exited".to_owned(), None, Some(report)),
                (None, Ok(Some(state))) => {
                    health = read_health(&state.health)?;
                    (state.status, Some(state.pid).filter(|pid| *pid > 0), None)
                }
                (None, Ok(None)) => ("created".to_owned(), None, None),
                (None, Err(error)) => return Err(error),
            }
        }
        Presence::Exited(report) => ("exited".to_owned(), None, Some(*report)),
        Presence::Dead => ("dead".to_owned(), None, None),
        Presence::Starting => ("created".to_owned(), None, None),
    };
    let record: Option<Record> = folder.record()?;
    let gone = exit.is_some() || status == "dead";
    Ok(Inspection {
        id: id.clone(),
        status,
        pid,
        shim_pid: record.as_ref().map(|r| r.shim_pid).filter(|_| !gone),
        cgroup: record.as_ref().map(|r| r.cgroup.clone()),
        created_at: record.as_ref().map(|r| r.created_at),
        started_at: record.as_ref().and_then(|r| r.started_at),
        labels: record.as_ref().map(|r| r.task.labels.clone()).unwrap_or_default(),
        task: record.map(|r| r.task),
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

/// A line of `ps`.
#[derive(Debug, Serialize)]
struct Row {
    id: TaskId,
    status: String,
    pid: Option<i32>,
    shim_pid: Option<i32>,
    command: String,
    created_at: Option<Timestamp>,
}

/// `bowline ps`.
pub async fn ps(state: &StateDir, json: bool) -> Result<u8> {
    let mut rows = Vec::new();
    for id in state.ids()? {
        match examine(state, &id).await {
            Ok(found) => rows.push(row(found)),
            // Removed while we looked.
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    if json {
        return say_json(&rows).map(|()| 0);
    }
    let width = rows.iter().map(|row| row.id.as_str().len()).max().unwrap_or(0).max(2);
    say(&format!("{:<width$}  {:<8}  {:>8}  COMMAND", "ID", "STATUS", "PID"))?;
    for row in rows {
        let pid = row.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        // A script among the arguments may be of many lines; a row is of one.
        let command = row.command.split_whitespace().collect::<Vec<_>>().join(" ");
        let command: String = command.chars().filter(|c| !c.is_control()).collect();
        say(&format!("{:<width$}  {:<8}  {pid:>8}  {command}", row.id, row.status))?;
    }
    Ok(0)
}

fn row(found: Inspection) -> Row {
    let command = found.task.map(|task| {
        let words = std::iter::once(task.command).chain(task.args);
        words.collect::<Vec<_>>().join(" ")
    });
    Row {
        id: found.id,
        status: found.status,
        pid: found.pid,
        shim_pid: found.shim_pid,
        command: command.unwrap_or_default(),
        created_at: found.created_at,
    }
}
