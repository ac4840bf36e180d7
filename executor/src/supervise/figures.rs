//! All figures of all tasks, in one answer, for whoever watches many.
//!
//! Must not: wait for anything, or look at processes.

use std::borrow::Cow;

use super::Supervisor;
use super::task::Task;
use crate::cgroup::Cgroup;
use crate::figures::{self, Figures, HealthFigures, SandboxFigures, TaskFigures};
use crate::stats::Stats;

impl Supervisor {
    /// What this shim tells of all that it has.
    pub(super) fn figures(&self) -> Figures {
        let sandbox = self.sandbox().map(|sandbox| SandboxFigures {
            id: sandbox.id().to_string(),
            members: sandbox.shares.borrow().len() as u64,
            usage: sandbox.cgroup.borrow().as_ref().map(|cgroup| self.usage(cgroup)),
        });
        Figures {
            version: Cow::Borrowed(env!("CARGO_PKG_VERSION")),
            pid: std::process::id(),
            events_lost: self.journal.as_ref().map_or(0, |journal| journal.borrow().lost_in_all()),
            sandbox,
            tasks: self.tasks.borrow().values().map(|task| self.task_figures(task)).collect(),
        }
    }

    fn task_figures(&self, task: &Task) -> TaskFigures {
        let health = task.health.borrow();
        TaskFigures {
            id: task.id.to_string(),
            status: Cow::Borrowed(task.state().status.as_str()),
            started_at: task.record.borrow().started_at,
            usage: task.with_cgroup(|cgroup| self.usage(cgroup)).ok(),
            health: health.as_ref().map(|h| HealthFigures { status: h.status, failing_streak: h.failing_streak }),
            exec_starts: task.exec_starts.borrow().clone().filled(),
            output_dropped_bytes: task.output_dropped(),
        }
    }

    fn usage(&self, cgroup: &Cgroup) -> Stats {
        figures::usage(&self.layout, cgroup, self.page_sizes())
    }
}
