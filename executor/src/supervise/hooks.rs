//! Hooks that the shim runs: some failures undo the launch, one ends the container, others are only logged.

use std::path::PathBuf;
use std::rc::Rc;

use bowline_error::{Error, Kind, Result};
use bowline_spec::signal::Signal;

use super::supervisor::Supervisor;
use super::task::Task;
use crate::hooks::{Container, Point};

impl Task {
    /// The folder of the task's configuration.
    pub(super) fn bundle(&self) -> PathBuf {
        self.facts.look(|facts| facts.record.bundle().unwrap_or(self.folder.path()).to_owned())
    }

    async fn run_hooks(&self, point: Point, pid: Option<i32>, failed: impl Fn(Error) -> Result<()>) -> Result<()> {
        let bundle = self.bundle();
        Container { id: self.id.as_str(), bundle: &bundle, spec: &self.spec }.run(point, pid, failed).await
    }
}

impl Supervisor {
    /// Runs the hooks of a container that is being created: its namespaces exist, and its root is not changed yet.
    /// `pid` is init's.
    ///
    /// # Errors
    /// Names the first hook that fails; the container must then not be created.
    pub(super) async fn run_create_hooks(&self, task: &Task, pid: i32) -> Result<()> {
        for point in [Point::Prestart, Point::CreateRuntime] {
            task.run_hooks(point, Some(pid), Err).await?;
        }
        Ok(())
    }

    /// Runs the hooks of a container whose program runs. If one fails, the container is killed, as the runtime
    /// specification has it since 1.3; this then returns once its init has ended.
    ///
    /// # Errors
    /// Names the first hook that fails.
    pub(super) async fn run_poststart_hooks(&self, task: &Rc<Task>) -> Result<()> {
        let run = task.run_hooks(Point::Poststart, task.pid(), Err).await;
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
    pub(super) async fn run_poststop_hooks(&self, task: &Task) {
        let failed = |error: Error| {
            tracing::warn!(%error, id = %task.id, "a hook failed");
            Ok(())
        };
        if let Err(error) = task.run_hooks(Point::Poststop, None, failed).await {
            tracing::warn!(%error, id = %task.id, "the poststop hooks were not run");
        }
        if task.facts.change(|facts| facts.record.poststop.take()).is_some() {
            self.keep_record(task);
        }
    }
}
