//! What was begun and is in nobody's hands: the plugin was killed while a task started.
//!
//! ```text
//!   the same id again ─► being launched: waited for
//!                     ─► runs, or ended before Nomad knew of it ─► taken over: its command is not run twice
//!                     ─► ended otherwise, failed, of another request ─► removed, and started anew
//!   another id of the same task, or the allocation's folder is gone ─► removed
//! ```

use std::path::Path;
use std::time::Duration;

use bowline_client::{Client, Presence, Status, find_or_adopt, is_held, nomad_labels};
use bowline_model::folder::Record;
use bowline_model::folder::{Folder, StateDir};
use bowline_model::report::ExitReport;
use bowline_model::{Error, Kind, Result};
use bowline_spec::Task as Description;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use crate::proto::driver::TaskConfig;
use crate::settings::Settings;
use crate::task_id;
use crate::tasks::{Known, Tasks};

/// The file in a task's folder that says that Nomad has the task's handle.
const HANDED_OUT: &str = "handed-out";

/// The longest time until a launch is looked at again: one that fails has no event.
const AGAIN: Duration = Duration::from_millis(200);

/// How much of its hash tells a request from others.
const HASH: usize = 8;

/// What tells this start from any other, and at its end what Nomad has asked for. Not what that has come to: another
/// version of the driver, or other files in the task's folder, which the task may write, would make that another request.
pub fn nonce(start: &str, asked: &TaskConfig) -> String {
    let request = Sha256::digest(asked.encode_to_vec());
    let request: String = request[..HASH].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{start}-{request}")
}

/// Notes that Nomad has the task's handle, as it asks about the task: another start of its id is a new one, once it has
/// ended. The answer to a start tells nothing, as the plugin may be killed before it is sent.
pub fn mark_handed_out(known: &Known) {
    if !is_handed_out(known)
        && let Err(error) = std::fs::write(known.folder().path().join(HANDED_OUT), "")
    {
        tracing::warn!(id = %known.id, %error, "cannot note that the task was handed out");
    }
}

/// Whether Nomad has the task's handle.
fn is_handed_out(known: &Known) -> bool {
    known.folder().path().join(HANDED_OUT).exists()
}

enum Found {
    Launching,
    /// What is asked for, with its nonce.
    Same(String),
    Other,
}

/// The nonce of the task that was started for the same request as `nonce`, waiting for one that is being launched.
/// Anything else of this id is removed.
///
/// # Errors
/// `AlreadyExists` for a task that is not Nomad's; what keeps it from being removed.
pub async fn found(known: &Known, nonce: &str, settings: &Settings) -> Result<Option<String>> {
    let mut journal = known.client().events()?;
    journal.past()?;
    loop {
        match look(known, nonce, settings).await {
            Ok(Found::Launching) => drop(timeout(AGAIN, journal.next()).await),
            Ok(Found::Same(nonce)) => return Ok(Some(nonce)),
            Ok(Found::Other) => {
                removed(known).await?;
                return Ok(None);
            }
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

async fn removed(known: &Known) -> Result<()> {
    match known.task()?.remove(true).await {
        Err(error) if error.kind() != Kind::NotFound => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

async fn look(known: &Known, nonce: &str, settings: &Settings) -> Result<Found> {
    let folder = known.folder();
    // Before there is a record, the id says enough.
    if folder.record().is_ok_and(|record| record.is_some()) && !known.is_nomads()? {
        return Err(Error::new(Kind::AlreadyExists, format!("another task has its name, {}", known.id)));
    }
    let report = match find_or_adopt(&folder, &known.id, &settings.programs()).await {
        Ok(Presence::Live(_)) => {
            let state = known.task()?.state().await?;
            match (state.status, state.report) {
                (Status::Exited, Some(report)) => report,
                (Status::Created | Status::Exited, _) => return Ok(Found::Launching),
                (Status::Running | Status::Paused | Status::Stopping, _) => return Ok(same(known, nonce)),
            }
        }
        Ok(Presence::Exited(report)) => report,
        Ok(Presence::Starting) => return Ok(Found::Launching),
        Ok(Presence::Dead) => return Ok(Found::Other),
        Err(error) if error.kind() == Kind::Damaged => return Ok(Found::Other),
        Err(error) => return Err(error),
    };
    let is_news = has_run(&report) && !is_handed_out(known);
    Ok(if is_news { same(known, nonce) } else { Found::Other })
}

fn has_run(report: &ExitReport) -> bool {
    report.started_at.is_some() && !report.shim_died
}

fn same(known: &Known, nonce: &str) -> Found {
    let request = |nonce: &str| nonce.rsplit_once('-').map(|(_, request)| request.to_owned());
    match known.nonce() {
        Ok(Some(its)) if request(&its) == request(nonce) => Found::Same(its),
        Ok(_) | Err(_) => Found::Other,
    }
}

/// Removes earlier tasks of the same name in the same allocation that nobody knows: Nomad runs one at a time.
pub async fn remove_others(known: &Known, tasks: &Tasks) {
    let of = |record: &Record, label: &str| record.task.as_ref().and_then(|task| task.labels.get(label).cloned());
    let is_other = |record: &Record| {
        of(record, nomad_labels::ALLOCATION).as_ref() == Some(&known.allocation)
            && of(record, nomad_labels::TASK).as_ref() == Some(&known.name)
    };
    let state = StateDir::new(known.state_dir());
    remove_those(known.client(), &state, tasks, |_, id, record| {
        *id != *known.id && task_id::are_of_one_task(id, &known.id) && record.is_some_and(is_other)
    })
    .await;
}

/// Removes tasks that nobody knows and whose allocation Nomad has removed.
pub async fn remove_forgotten(tasks: &Tasks, settings: &Settings) {
    let is_gone = |path: &Path| {
        let mut above = path.ancestors().skip(1);
        let (allocation, all) = (above.next(), above.next());
        // Not where the disk is not mounted.
        !path.exists() && allocation.is_some_and(|it| !it.exists()) && all.is_some_and(Path::is_dir)
    };
    let is_forgotten = |folder: &Folder, record: Option<&Record>| {
        // Its shim left before the launch.
        let Some(record) = record else { return is_held(folder).is_ok_and(|held| !held) };
        let task = record.task.as_ref().filter(|task| task.labels.contains_key(nomad_labels::ID));
        let local = |task: &Description| {
            task.mounts.iter().find(|mount| mount.destination == Path::new("/local"))?.source.clone()
        };
        task.and_then(local).and_then(|local| local.parent().map(is_gone)).unwrap_or(false)
    };
    if let Ok(client) = settings.client() {
        remove_those(&client, &settings.state(), tasks, |folder, _, record| is_forgotten(folder, record)).await;
    }
}

async fn remove_those(
    client: &Client,
    state: &StateDir,
    tasks: &Tasks,
    those: impl Fn(&Folder, &str, Option<&Record>) -> bool,
) {
    let all = client.tasks().unwrap_or_default();
    for task in all.into_iter().filter(|task| task_id::is_one(task.id()) && tasks.of_id(task.id()).is_none()) {
        let folder = state.folder(task.id());
        let Ok(record) = folder.record() else { continue };
        // By then, its start may be known, or its record written.
        if !those(&folder, task.id(), record.as_ref()) || tasks.of_id(task.id()).is_some() {
            continue;
        }
        match task.remove(true).await {
            Ok(_) => tracing::info!(id = %task.id(), "removed a task that the agent does not know any more"),
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => tracing::warn!(id = %task.id(), %error, "cannot remove a task that the agent does not know"),
        }
    }
}
