//! All figures of all tasks in one answer, for monitoring many tasks; and everything that the shim knows, for
//! debugging it.
//!
//! Must not: wait for anything.

use std::borrow::Cow;
use std::rc::Rc;

use bowline_cgroup::{self as cgroup, Cgroup};
use bowline_model::stats::Stats;
use bowline_model::stats::figures::{self, Figures, HealthFigures, SandboxFigures, TaskFigures};
use bowline_sys::proc_stat;

use crate::facts::{Facts, Output, ShimFacts};
use crate::output::io::{Lines, Tail};
use crate::supervise::supervisor::Supervisor;
use crate::supervise::task::Task;
use crate::waits;

impl Supervisor {
    /// The figures of this shim, its sandbox and its tasks.
    pub fn figures(self: &Rc<Self>) -> Figures {
        self.notice_thaws();
        let sandbox = self.sandbox().map(|sandbox| SandboxFigures {
            id: sandbox.id().to_string(),
            members: sandbox.facts.read(|facts| facts.shares.len()) as u64,
            usage: sandbox.handles.borrow().cgroup.as_ref().map(|cgroup| self.usage(cgroup)),
        });
        Figures {
            version: Cow::Borrowed(env!("CARGO_PKG_VERSION")),
            pid: std::process::id(),
            events_lost: self.journal.as_ref().map_or(0, |journal| journal.borrow().lost_in_all()),
            sandbox,
            tasks: self.tasks.borrow().values().map(|task| self.task_figures(task)).collect(),
        }
    }

    /// Everything that this shim knows.
    pub fn facts(&self) -> Facts {
        let pid = std::process::id().cast_signed();
        let facts_of = |task: &Rc<Task>| {
            let mut facts = task.facts.read(Clone::clone);
            let handles = task.handles.borrow();
            facts.output = Some(output(handles.tails.iter(), handles.lines()));
            facts.end = facts.end.or_else(|| handles.claim.end());
            for (number, exec) in &mut facts.execs {
                // An exec with a pid is unreaped, so its pid cannot be reused.
                exec.pid_started = exec.pid.and_then(proc_stat::started);
                exec.output = handles.execs.get(number).map(|exec| output(exec.tails.iter(), exec.lines()));
            }
            (task.id.clone(), facts)
        };
        Facts {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid,
            pid_started: proc_stat::started(pid),
            boot_id: cgroup::boot(),
            shim: ShimFacts {
                charged_in: self.overhead.charged_in(),
                pause: self.pause_slot.facts(),
                ..self.facts.read(Clone::clone)
            },
            sandbox: self.sandbox.borrow().as_ref().map(|sandbox| sandbox.facts.read(Clone::clone)),
            work: waits::under_way(),
            unclaimed: self.children.unclaimed(),
            tasks: self.tasks.borrow().values().map(facts_of).collect(),
        }
    }

    fn task_figures(&self, task: &Task) -> TaskFigures {
        task.facts.read(|facts| TaskFigures {
            id: task.id.to_string(),
            status: Cow::Borrowed(facts.life.status().as_str()),
            started_at: facts.record.started_at,
            usage: task.with_cgroup(|cgroup| self.usage(cgroup)).ok(),
            health: facts
                .history
                .health
                .as_ref()
                .map(|h| HealthFigures { status: h.status, failing_streak: h.failing_streak }),
            exec_starts: facts.exec_starts.clone().filled(),
            output_dropped_bytes: task.output_dropped(),
        })
    }

    fn usage(&self, cgroup: &Cgroup) -> Stats {
        figures::usage(&self.layout, cgroup, self.page_sizes())
    }
}

fn output<'a>(tails: impl Iterator<Item = &'a Tail>, lines: Option<&Lines>) -> Output {
    let text = |tail: &Tail| String::from_utf8_lossy(&tail.borrow().to_vec()).into_owned();
    Output { tails: tails.map(text).collect(), streams: lines.map(Lines::progress).unwrap_or_default() }
}
