//! Hooks that the shim runs: some failures undo the launch, one ends the container, others are only logged.

use std::path::PathBuf;
use std::rc::Rc;

use bowline_error::{Error, Kind, Result};
use bowline_spec::signal::Signal;
use tokio::sync::oneshot;

use super::Task;
use crate::lifecycle::task::Life;
use crate::start::hooks::{self, Container, Point};
use crate::supervise::supervisor::Supervisor;
use crate::waits;

impl Task {
    /// The folder of the task's configuration.
    pub(crate) fn bundle(&self) -> PathBuf {
        self.facts.read(|facts| facts.record.bundle().unwrap_or(self.folder.path()).to_owned())
    }

    fn has_hooks(&self, point: Point) -> bool {
        Container { id: self.id.as_str(), bundle: self.folder.path(), spec: &self.spec }.has(point)
    }

    async fn run_hooks(
        &self,
        point: Point,
        pid: Option<i32>,
        given_up: impl Future<Output = ()>,
        failed: impl Fn(Error) -> Result<()>,
    ) -> Result<()> {
        let bundle = self.bundle();
        let failed = |error| failed(self.naming_file(error));
        Container { id: self.id.as_str(), bundle: &bundle, spec: &self.spec }.run(point, pid, given_up, failed).await
    }

    /// Names the file of CDI whose hook `error` is about.
    pub(super) fn naming_file(&self, error: Error) -> Error {
        self.facts.read(|facts| hooks::naming_file(error, facts.record.task.as_ref()))
    }

    /// Runs the recorded poststop hooks of a task whose folder the shim removes, and goes on: they may outlive task and shim,
    /// and are waited for as long as the grace of the task. A failure is only logged.
    pub(crate) async fn run_last_hooks(&self) {
        let Some(poststop) = self.facts.update(|facts| facts.record.poststop.take()) else { return };
        self.keep_record();
        let patience = self.facts.read(|facts| facts.record.task.as_ref().map(|task| task.stop.grace()));
        let run = async { hooks::start_recorded(&poststop)?.answer().await };
        match tokio::time::timeout(patience.unwrap_or_default(), run).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = %self.naming_file(error), id = %self.id, "a hook failed"),
            Err(_) => tracing::warn!(id = %self.id, "the poststop hooks go on after the task"),
        }
    }

    /// Runs the hooks of a launch. If the task is ended meanwhile, they are killed with it.
    async fn run_launch_hooks(&self, point: Point, pid: Option<i32>) -> Result<()> {
        let ended = async {
            self.asked_to_end.until_it(Option::is_some).await;
            self.facts.until_it(|facts| matches!(facts.life, Life::Killing(_)) || facts.life.is_reaped()).await;
        };
        self.run_hooks(point, pid, ended, Err).await
    }
}

impl Supervisor {
    /// Runs the hooks of a container that is being created: its namespaces exist, and its root is not changed yet.
    /// `pid` is init's.
    ///
    /// # Errors
    /// Names the first hook that fails; the container must then not be created.
    pub(crate) async fn run_create_hooks(&self, task: &Task, pid: i32) -> Result<()> {
        for point in [Point::Prestart, Point::CreateRuntime] {
            task.run_launch_hooks(point, Some(pid)).await?;
        }
        Ok(())
    }

    /// Runs the hooks of a container whose program runs. If one fails, the container is killed, as the runtime
    /// specification has it since 1.3; this then returns once its init has ended.
    ///
    /// # Errors
    /// Names the first hook that fails.
    pub(crate) async fn run_poststart_hooks(&self, task: &Rc<Task>) -> Result<()> {
        if !task.has_hooks(Point::Poststart) {
            return Ok(());
        }
        let note = |begun: bool| {
            task.facts.update(|facts| facts.record.in_poststart = begun);
            task.keep_record();
        };
        note(true);
        let run = task.run_launch_hooks(Point::Poststart, task.pid()).await;
        note(false);
        let Err(error) = run else { return Ok(()) };
        match task.signal(&self.layout, Signal::KILL) {
            // It has ended by itself.
            Err(left) if left.kind() == Kind::NotFound => {}
            Err(left) => tracing::error!(error = %left, id = %task.id, "a container outlives the failure of its hook"),
            Ok(()) => task.facts.until_it(|facts| facts.life.is_reaped()).await,
        }
        Err(error)
    }

    /// Runs the hooks of a container that is gone: all of them. A failure is only logged. Whoever removes the task later
    /// does not run them again.
    pub(crate) async fn run_poststop_hooks(&self, task: &Task) {
        let failed = |error: Error| {
            tracing::warn!(%error, id = %task.id, "a hook failed");
            Ok(())
        };
        if let Err(error) = task.run_hooks(Point::Poststop, None, std::future::pending(), failed).await {
            tracing::warn!(%error, id = %task.id, "the poststop hooks were not run");
        }
        if task.facts.update(|facts| facts.record.poststop.take()).is_some() {
            task.keep_record();
        }
    }

    /// Like [`Supervisor::run_poststop_hooks`], for a launch that failed. Whoever asks for the end of the task does not wait
    /// for longer than its grace: the hooks are then finished after the task is forgotten.
    pub(crate) async fn begin_poststop_hooks(self: &Rc<Self>, task: &Rc<Task>) {
        if !task.has_hooks(Point::Poststop) {
            return;
        }
        let (ended, has_ended) = oneshot::channel();
        let (supervisor, of) = (self.clone(), task.clone());
        self.hold();
        waits::work("poststop hooks", Some(task.id.clone()), async move {
            supervisor.run_poststop_hooks(&of).await;
            // Nobody may wait any more.
            let _ = ended.send(());
            supervisor.release();
        });
        let patience_is_over = async {
            loop {
                let until = task.asked_to_end.until(|until| *until).await;
                tokio::select! {
                    () = crate::waits::sleep_until(until) => return,
                    () = task.asked_to_end.until_it(|now| now.is_some_and(|now| now < until)) => {}
                }
            }
        };
        tokio::select! {
            biased;
            _ = has_ended => {}
            () = patience_is_over => {
                tracing::warn!(id = %task.id, "the poststop hooks go on after the task");
                // The record goes with the folder, and may be of a later task when the hooks have ended.
                task.facts.update(|facts| facts.record.poststop = None);
                if task.folder.is_in_state_folder() {
                    task.folder.remove_held();
                }
            }
        }
    }
}
