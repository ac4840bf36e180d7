//! Commands that change tasks: stop, kill, pause, resume; and wait.

use std::time::Duration as Elapsed;

use bowline_executor::{Doing as _, ExitReport, Folder, Kind, PastShim, Result, StateDir, died_with_shim};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use bowline_spec::units::Duration;
use serde::Serialize;

use super::named::TaskRef;
use super::several::each;
use super::{complain, dead, exited, progress, say, say_json, starting};
use bowline_client::{Presence, Shim};

/// `bowline stop`: returns when the tasks have ended.
pub async fn stop(state: &StateDir, names: &[TaskRef], signal: Option<Signal>, grace: Option<Duration>) -> Result<u8> {
    let act = |id: TaskId| {
        let folder = state.folder(&id);
        async move { stop_one(&folder, &id, signal, grace).await }
    };
    let doing = |left: &[&TaskId], elapsed: Elapsed| {
        let mut line = format!("stopping {}: {} s", progress::names(left), elapsed.as_secs());
        // The description's is looked up only here: mostly a task ends at once.
        if let [id] = left
            && let Some(grace) = grace.map(Duration::as_std).or_else(|| grace_of(&state.folder(id)))
        {
            line += &format!(" of {} s grace", grace.as_secs());
        }
        line
    };
    each(state, names, act).with_progress(doing).await
}

/// How long a task has to end, as its description says.
fn grace_of(folder: &Folder) -> Option<Elapsed> {
    Some(folder.record().ok()??.task?.stop.grace())
}

async fn stop_one(folder: &Folder, id: &TaskId, signal: Option<Signal>, grace: Option<Duration>) -> Result<()> {
    match stop_by_shim(folder, id, signal, grace).await {
        Err(error) if error.kind() == Kind::Unavailable => {
            past_shim(folder, id, move |task| task.stop(signal, grace.map(Duration::as_std))).await
        }
        done => done,
    }
}

/// What of it comes later.
const UNTIL_IT_GOES_ON: &str = "the exit report is written when the shim goes on; `bowline rm -f` ends the shim";

/// Does `act` to a task whose shim is not answering, and says so.
pub async fn past_shim(
    folder: &Folder,
    id: &TaskId,
    act: impl FnOnce(&PastShim) -> Result<()> + Send + 'static,
) -> Result<()> {
    let folder = folder.clone();
    let done = tokio::task::spawn_blocking(move || act(&PastShim::reach(&folder)?));
    let done = done.await.doing(Kind::Internal, || "cannot go past the shim")?;
    done.map_err(|error| error.within(format_args!("task {id}")))?;
    complain(&format!("the shim of task {id} is not answering: it was gone past"), Some(UNTIL_IT_GOES_ON));
    Ok(())
}

async fn stop_by_shim(folder: &Folder, id: &TaskId, signal: Option<Signal>, grace: Option<Duration>) -> Result<()> {
    let shim = match bowline_client::find(folder, id).await? {
        Presence::Live(shim) => shim,
        // What was wanted.
        Presence::Exited(_) => return Ok(()),
        Presence::Dead => return Err(dead(id)),
        Presence::Starting => return Err(starting(id)),
    };
    let grace = grace.map(|grace| u64::try_from(grace.as_std().as_millis()).unwrap_or(u64::MAX));
    let asked = shim.stop(signal.map(Signal::number), grace).await;
    if let Err(error) = &asked
        && error.kind() == Kind::Unavailable
    {
        return asked;
    }
    // It may have ended by itself, and its shim with it, before it was asked.
    let report = shim.wait_answering().await?;
    if report.shim_died {
        return Err(dead(id));
    }
    match asked {
        Err(error) if error.kind() == Kind::Usage => Err(error),
        _ => Ok(()),
    }
}

/// `bowline kill`.
pub async fn kill(state: &StateDir, names: &[TaskRef], signal: Signal) -> Result<u8> {
    let act = |id: TaskId| {
        let state = state.clone();
        async move { kill_one(&state, &id, signal).await }
    };
    each(state, names, act).with_progress(waiting).await
}

async fn kill_one(state: &StateDir, id: &TaskId, signal: Signal) -> Result<()> {
    let killed = match live(state, id).await {
        Ok(shim) => shim.signal(signal.number()).await,
        Err(error) => Err(error),
    };
    match killed {
        Err(error) if error.kind() == Kind::Unavailable => {
            past_shim(&state.folder(id), id, move |task| task.signal(signal)).await
        }
        done => done,
    }
}

/// `bowline pause`.
pub async fn pause(state: &StateDir, names: &[TaskRef]) -> Result<u8> {
    let act = |id: TaskId| {
        let state = state.clone();
        async move { live(&state, &id).await?.pause().await }
    };
    each(state, names, act).with_progress(waiting).await
}

/// `bowline resume`.
pub async fn resume(state: &StateDir, names: &[TaskRef]) -> Result<u8> {
    let act = |id: TaskId| {
        let state = state.clone();
        async move { live(&state, &id).await?.resume().await }
    };
    each(state, names, act).with_progress(waiting).await
}

/// What is said while a shim takes long to answer.
fn waiting(left: &[&TaskId], elapsed: Elapsed) -> String {
    format!("waiting for {}: {} s", progress::names(left), elapsed.as_secs())
}

/// The shim of a task that runs.
pub async fn live(state: &StateDir, id: &TaskId) -> Result<Shim> {
    match bowline_client::find(&state.folder(id), id).await? {
        Presence::Live(shim) => Ok(shim),
        Presence::Exited(_) => Err(exited(id)),
        Presence::Dead => Err(dead(id)),
        Presence::Starting => Err(starting(id)),
    }
}

/// A report among those of other tasks.
#[derive(Debug, Serialize)]
struct Named {
    id: TaskId,
    #[serde(flatten)]
    report: ExitReport,
}

/// `bowline wait`: codes in the order given, each as soon as those before it
/// are known; of several tasks' reports a list.
pub async fn wait(state: &StateDir, names: &[TaskRef], json: bool) -> Result<u8> {
    let act = |id: TaskId| {
        let folder = state.folder(&id);
        async move { report(&folder, &id).await }
    };
    let mut reports = Vec::new();
    let code = each(state, names, act)
        .in_order(|id, report| match report.exit_code {
            _ if json => {
                reports.push(Named { id, report });
                Ok(())
            }
            Some(code) => say(&code.to_string()),
            None => Err(dead(&id)),
        })
        .await?;
    match (names, json) {
        (_, false) => {}
        ([_], true) => reports.iter().try_for_each(|one| say_json(&one.report))?,
        (_, true) => say_json(&reports)?,
    }
    Ok(code)
}

async fn report(folder: &Folder, id: &TaskId) -> Result<ExitReport> {
    match bowline_client::find(folder, id).await? {
        Presence::Live(shim) => shim.wait().await,
        Presence::Exited(report) => Ok(*report),
        Presence::Dead => Ok(died_with_shim(folder.record()?.as_ref())),
        Presence::Starting => Err(starting(id)),
    }
}
