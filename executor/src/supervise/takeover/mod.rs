//! Takes over a task from the process that had it before, and goes on with all that it waited for.
//!
//! ```text
//!   execve ─► `handover`: facts as they were, handles by their numbers ────┐
//!                                                                          ├─► a task ─► waits, from its facts
//!   death  ─► `adoption`: facts from the record, handles by pid and inode ─┘
//! ```
//!
//! A handle that cannot be found is `None`, and an unknown fact has its default, whichever way the task came. Must not: know
//! which way that was.

pub(crate) mod adoption;
pub(crate) mod execs;
pub(crate) mod handover;
pub(crate) mod record;

use std::rc::Rc;

use bowline_spec::id::TaskId;

use crate::facts::{ExecFacts, TaskFacts};
use crate::lifecycle::task::Life;
use crate::supervise::handles::TaskHandles;
use crate::supervise::supervisor::Supervisor;
use crate::supervise::task::Task;
use crate::supervise::task::launch_plan::LaunchPlan;

/// What is known of a task, and what was found of it.
pub(super) struct Found {
    /// With its record.
    pub plan: LaunchPlan,
    /// All but the record and the particulars, which are in the plan.
    pub facts: TaskFacts,
    pub handles: TaskHandles,
}

impl Supervisor {
    /// Adds a task to those of the shim, with the execs that its slots tell of.
    pub(super) fn take_over_task(&self, id: TaskId, found: Found) -> Rc<Task> {
        let task = Rc::new(Task::with(id.clone(), found.plan, found.handles));
        task.facts.update_silently(|facts| {
            let TaskFacts { record, particulars, .. } = std::mem::take(facts);
            *facts = TaskFacts { record, particulars, ..found.facts };
        });
        self.take_over_execs(&task);
        self.tasks.borrow_mut().insert(id, task.clone());
        task
    }

    /// Waits for everything that whoever had the task before has waited for.
    pub(super) fn go_on_with(self: &Rc<Self>, task: &Rc<Task>) {
        self.follow(task);
        self.go_on_with_execs(task);
        let (life, settles, times_out, checked) = task.facts.read(|facts| {
            (facts.life, facts.settles_at.is_some(), facts.times_out_at.is_some(), facts.checks.is_some())
        });
        if settles {
            self.settle_in_time(task);
        }
        if !life.is_reaped() && task.facts.read(|facts| facts.record.outlives_shim()) {
            task.record_at_last();
        }
        let in_unit = task.with_unit(|_| ()).is_some();
        let is_there = |handles: &TaskHandles| handles.init.is_some() && handles.cgroup.is_some();
        if life.is_reaped() || !is_there(&task.handles.borrow()) {
            return;
        }
        if let Life::Killing(_) = life {
            task.kill_to_the_last(&self.layout);
        }
        // Else that begins when the shim settles, after the start.
        if in_unit || life != Life::Created && !settles {
            self.watch_oom(task);
        }
        if times_out {
            self.time_out_on_time(task);
        }
        self.end_with_callers(task);
        if checked {
            self.go_on_checking(task);
        }
        match self.open_watch(task) {
            Ok(watch) => self.begin_watch(task, watch),
            Err(error) => tracing::error!(%error, id = %task.id, "a task is not watched any more"),
        }
    }

    fn go_on_with_execs(self: &Rc<Self>, task: &Rc<Task>) {
        let execs: Vec<(u64, ExecFacts)> = task.facts.read(|facts| facts.execs.clone().into_iter().collect());
        for (number, exec) in execs {
            self.run_exec_to_end(task, number);
            if !exec.life.has_ended() {
                task.go_on_with_kill_of_exec(&self.layout, number);
            }
            if let (Some(since), false, Some((claim, in_group))) =
                (exec.killed_at, exec.all_dead, task.exec_claim(number))
            {
                self.kill_on(task, number, claim, in_group, since);
            }
        }
        // Those of execs that a shim had begun before the last one died.
        self.go_on_with_exec_groups(task);
    }
}
