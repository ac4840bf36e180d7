//! Hooks that the shim runs: some failures undo the launch, others are only logged.

use bowline_error::Result;

use super::supervisor::Supervisor;
use super::task::Task;
use crate::hooks::{Container, Point};

impl Task {
    fn container(&self) -> Container<'_> {
        Container { id: self.id.as_str(), bundle: self.folder.path(), spec: &self.spec }
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
            let expecting = self.children.expect();
            task.container().run(point, Some(pid), |child| expecting.claim(child)).await?;
        }
        Ok(())
    }

    /// Runs the hooks of `point`, poststart or poststop. A failure is only logged.
    pub(super) async fn run_late_hooks(&self, task: &Task, point: Point) {
        let pid = task.pid();
        let expecting = self.children.expect();
        if let Err(error) = task.container().run(point, pid, |child| expecting.claim(child)).await {
            tracing::warn!(%error, id = %task.id, "a hook failed");
        }
    }
}
