//! One task, as a program sees it.
//!
//! Every call connects to the task's shim and leaves it again, so a handle costs nothing while it is kept, and works as
//! well after the program, or the shim, was restarted.

use std::time::Duration;

use bowline_executor::ExecOutcome;
use bowline_model::folder::{Folder, StateDir};
use bowline_model::health::Health;
use bowline_model::report::ExitReport;
use bowline_model::stats::Stats;
use bowline_model::status::Status;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use bowline_spec::{Format, Update};

use crate::adopt;
use crate::children;
use crate::ending::{self, Removal, Removed};
use crate::errors::dead;
use crate::events::Events;
use crate::exec_request::{Exec, outcome};
use crate::kept_connection::Kept;
use crate::left_behind::is_held;
use crate::presence::{Presence, look};
use crate::shim::{self, Shim};
use crate::spawn::Programs;

/// A handle to a task: cheap to clone, and no task ends because one is dropped.
///
/// Errors that every call may return, besides its own:
///
/// - `NotFound`: the task was removed.
/// - `WrongState`: the task has ended, its shim has died, or it is still being launched.
/// - `Unavailable`: the shim lives and has not answered for two seconds, or has too many files open to take a call; or none
///   answers, and another process holds the task.
/// - `Unsupported`: the shim is of an older bowline, which lacks a call that this library needs.
#[derive(Debug, Clone)]
pub struct Task {
    id: TaskId,
    folder: Folder,
    state: StateDir,
    programs: Programs,
    kept: Option<Kept>,
}

/// Where a task is in its life.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct State {
    /// The name that commands and descriptions use.
    pub status: Status,
    /// The pid of the task's init on the host, while init lives.
    pub pid: Option<i32>,
    /// The results of its health checks, if it has any and runs.
    pub health: Option<Health>,
    /// How it has ended, once it has.
    pub report: Option<Box<ExitReport>>,
}

impl Task {
    pub(crate) fn new(state: &StateDir, id: TaskId, programs: &Programs) -> Task {
        Task { folder: state.folder(&id), id, state: state.clone(), programs: programs.clone(), kept: None }
    }

    /// Like this handle, whose calls go over the connection in `kept` where that is still open.
    #[doc(hidden)]
    pub fn keeping(self, kept: &Kept) -> Task {
        Task { kept: Some(kept.clone()), ..self }
    }

    /// The task's id, unique in the state folder: the `name` in its description, or a generated one, such as
    /// `task-0123456789ab`.
    pub fn id(&self) -> &TaskId {
        &self.id
    }

    /// The shim of the running task, which serves what this library needs.
    async fn live(&self) -> Result<Shim> {
        if let Some(shim) = self.kept.as_ref().and_then(Kept::open) {
            return Ok(shim);
        }
        let shim = adopt::live(&self.folder, &self.id, &self.programs).await?;
        shim.check_revision().await?;
        if let Some(kept) = &self.kept {
            kept.keep(&shim);
        }
        Ok(shim)
    }

    /// Where the task is in its life.
    pub async fn state(&self) -> Result<State> {
        let plain = |status, report| State { status, pid: None, health: None, report };
        let shim = match look(&self.folder, &self.id).await? {
            Presence::Live(shim) => shim,
            Presence::Exited(report) => return Ok(plain(Status::Exited, Some(report))),
            Presence::Dead => {
                let report = self.folder.report_after_death(self.folder.record()?.as_ref());
                return Ok(plain(Status::Exited, Some(Box::new(report))));
            }
            Presence::Starting => return Ok(plain(Status::Created, None)),
        };
        let asked = async {
            shim.check_revision().await?;
            shim.state().await
        };
        let told = match asked.await {
            Ok(Some(told)) => told,
            Ok(None) if is_held(&self.folder)? => return Ok(plain(Status::Created, None)),
            // It ended as we asked.
            Ok(None) => return ended(self.folder.exit()?, &self.folder, &self.id),
            Err(error) if error.kind() == Kind::WrongState => {
                return ended(self.folder.exit()?, &self.folder, &self.id);
            }
            Err(error) => return Err(error),
        };
        let damaged = || "the shim's word on its task is damaged";
        let status = serde_json::from_value(told.status.clone().into()).doing(Kind::Internal, damaged)?;
        let health = Some(&told.health).filter(|text| !text.is_empty()).map(|text| serde_json::from_str(text));
        let health = health.transpose().doing(Kind::Internal, damaged)?;
        let report = shim::unwritten(&told)?.or(self.folder.exit()?).map(Box::new);
        Ok(State { status, pid: Some(told.pid).filter(|pid| *pid > 0), health, report })
    }

    /// Waits for the task's end, and returns how it has ended. Any number of callers may wait, also after the end, and
    /// each may stop to wait. A task whose shim died gets a new one. Where nobody knows how the task has ended, the
    /// report has `shim_died`, and no exit code.
    ///
    /// # Errors
    /// `WrongState` only while the task is being launched.
    pub async fn wait(&self) -> Result<ExitReport> {
        let report = ending::report(&self.folder, &self.id, &self.programs).await;
        children::collect();
        report
    }

    /// Runs a command in the task, and returns its exit code and the end of its output.
    ///
    /// # Errors
    /// `CommandNotFound`, `NotExecutable`; `BadSpec` for a user or a folder that the task does not have. A deadline that
    /// passes is an outcome, and an error of kind `Timeout` only when the shim does not answer after it.
    pub async fn exec(&self, exec: Exec) -> Result<ExecOutcome> {
        let shim = self.live().await?;
        let timeout = exec.timeout;
        // The shim enforces the timeout, unless it does not answer.
        let silence = async {
            let Some(timeout) = timeout else { return shim.silence_at_first().await };
            tokio::time::sleep(timeout).await;
            let silent = shim.silence().await;
            Error::new(Kind::Timeout, format!("the command did not end within {timeout:?}, and {silent}"))
                .hint("when the shim goes on, it kills the command with all that this had started")
        };
        tokio::select! {
            biased;
            told = shim.exec(exec.request()) => outcome(told?),
            error = silence => Err(error),
        }
    }

    /// What the task uses now. The figures are counters: for a rate, read twice.
    pub async fn stats(&self) -> Result<Stats> {
        let stats = self.live().await?.stats().await?;
        serde_json::from_str(&stats).doing(Kind::Internal, || "the shim's statistics are damaged")
    }

    /// The events of this task, from the oldest that is known.
    ///
    /// # Errors
    /// `Internal` when the journal cannot be read or watched.
    pub fn events(&self) -> Result<Events> {
        Events::open(self.state.events(), Some(self.id.clone()))
    }

    /// Stops the task as its description says: by default SIGTERM, and SIGKILL to all that is left after ten seconds.
    /// Returns once it has ended, also if it had ended before.
    pub async fn stop(&self) -> Result<ExitReport> {
        self.stop_with(None, None).await
    }

    /// Like [`Task::stop`], with this signal and this time until SIGKILL; `None` is the description's.
    pub async fn stop_with(&self, signal: Option<Signal>, grace: Option<Duration>) -> Result<ExitReport> {
        let report = ending::stop(&self.folder, &self.id, signal, grace, &self.programs).await;
        children::collect();
        report
    }

    /// Sends a signal to the task's init.
    pub async fn signal(&self, signal: Signal) -> Result<()> {
        self.live().await?.signal(signal.number()).await
    }

    /// Freezes all processes of the task; returns once they have stopped.
    pub async fn pause(&self) -> Result<()> {
        self.live().await?.pause().await
    }

    /// Lets a paused task go on.
    pub async fn resume(&self) -> Result<()> {
        self.live().await?.resume().await
    }

    /// Changes limits: all that `update` names, or none. Returns what is different from the request, a sentence each,
    /// such as shares that the kernel does not take.
    ///
    /// # Errors
    /// `BadSpec` for limits that make no sense together or that the kernel refuses, `Unsupported` for one that this host
    /// does not have.
    pub async fn update(&self, update: &Update) -> Result<Vec<String>> {
        let update = serde_json::to_string(update).doing(Kind::Internal, || "cannot write the update as JSON")?;
        self.live().await?.update(update).await
    }

    /// Like [`Task::update`], with the limits as TOML, in the form of a description: `memory.limit = '64M'`.
    ///
    /// # Errors
    /// As [`Task::update`]; `BadSpec` with the field, the line and the column.
    pub async fn update_toml(&self, limits: &str) -> Result<Vec<String>> {
        self.update(&bowline_spec::parse_update(limits, Format::Toml)?).await
    }

    /// Removes a task that has ended: its folder, and what a shim that died has left. Its id is free then.
    ///
    /// With `force`, a task that runs is killed first, a shim that does not answer with it, and damaged records are no
    /// obstacle.
    ///
    /// # Errors
    /// `WrongState` for a task that has not ended, without `force`: if its shim died, it gets a new one. `Damaged` for
    /// records that cannot be read.
    pub async fn remove(&self, force: bool) -> Result<Removed> {
        let removed = self.removal(force).await?.carry_out_aside().await;
        children::collect();
        removed
    }

    /// The part of [`Task::remove`] that waits for others.
    pub(crate) async fn removal(&self, force: bool) -> Result<Removal> {
        ending::remove(self.folder.clone(), &self.id, force, &self.programs).await
    }
}

fn ended(report: Option<ExitReport>, folder: &Folder, id: &TaskId) -> Result<State> {
    let report = report.ok_or_else(|| dead(folder, id))?;
    Ok(State { status: Status::Exited, pid: None, health: None, report: Some(Box::new(report)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a runtime with several threads asks for; compiled, not run.
    #[allow(dead_code)]
    fn every_call_may_be_made_in_any_thread(task: Task, events: &mut Events, update: &Update) {
        fn sends<T: Send>(_: T) {}
        sends(task.state());
        sends(task.wait());
        sends(task.exec(Exec::default()));
        sends(task.stats());
        sends(task.stop());
        sends(task.signal(Signal::KILL));
        sends(task.pause());
        sends(task.resume());
        sends(task.update(update));
        sends(task.remove(false));
        sends(events.next());
        sends(task);
    }
}
