//! Execs of a shim that has died: those that run go on under their numbers and names, and each end that nobody has told is
//! told.
//!
//! ```text
//!   slot ─► its process lives, in the task's cgroup ─► an exec like any other, without streams and without a caller
//!        └► it has gone ─► its end is an event, unless the journal has that ─► the slot is free
//! ```
//!
//! Must not: signal an exec, nor take a process for one that was not cloned when the slot says so.

use std::rc::Rc;

use bowline_error::Result;
use bowline_sys as sys;
use bowline_sys::proc_stat;
use jiff::Timestamp;

use super::adoption::claim_by_pidfd;
use super::handles::ExecHandles;
use super::supervisor::Supervisor;
use super::task::Task;
use crate::clock::SinceBoot;
use crate::cloning::Live;
use crate::exec_slots::KeptExec;
use crate::facts::{ExecEnd, ExecFacts};
use crate::lifecycle::exec::Life;

impl Supervisor {
    /// Takes over the execs of which the shim before has left slots.
    pub(super) fn take_over_execs(self: &Rc<Self>, task: &Rc<Task>) {
        let taken = task.handles.borrow_mut().exec_slots.as_mut().map(|slots| slots.take_over());
        let Some((begun, kept)) = taken else { return };
        task.facts.change(|facts| facts.execs_begun = begun);
        let pids = task.with_cgroup(|cgroup| self.layout.processes(cgroup)).unwrap_or_default();
        for exec in kept {
            let number = exec.number;
            let live = exec.pid.filter(|pid| pids.contains(pid)).and_then(|_| live(&exec));
            let is_told = exec.told_as.is_some_and(|event| event <= task.facts.look(|facts| facts.events));
            // One that was not executed yet may never be.
            let ends = live.is_none() && exec.started_at.is_some() && !is_told;
            let taken = match live {
                Some(live) => self.take_over_exec(task, exec, live),
                None if ends => {
                    task.facts.change(|facts| facts.execs.insert(number, ended(exec)));
                    Ok(())
                }
                None => {
                    task.let_go_of_exec(number);
                    continue;
                }
            };
            match taken {
                Ok(()) => self.see_exec_off(task, number),
                Err(error) => tracing::warn!(%error, number, "an exec that runs has no number any more"),
            }
        }
    }

    fn take_over_exec(&self, task: &Task, exec: KeptExec, live: Live) -> Result<()> {
        let claim = claim_by_pidfd(&live)?;
        let mut handles = task.handles.borrow_mut();
        let group = exec.group.and_then(|number| self.open_group(&handles, number));
        let facts = ExecFacts {
            pid: Some(live.pid),
            started_at: exec.started_at.or_else(|| Some(Timestamp::now())),
            group: group.as_ref().map(|group| group.number()),
            in_group: group.is_some(),
            ..of(&exec, Life::Running)
        };
        let of = ExecHandles { claim: Some(claim), pidfd: Some(live.pidfd), group, ..ExecHandles::default() };
        handles.execs.insert(exec.number, of);
        drop(handles);
        task.facts.change(|known| known.execs.insert(exec.number, facts));
        Ok(())
    }
}

/// The process of an exec, if it is still there.
fn live(exec: &KeptExec) -> Option<Live> {
    let (pid, between) = exec.pid.zip(exec.cloned_between)?;
    let started = proc_stat::started(pid).filter(|started| SinceBoot::include(between, *started))?;
    let pidfd = sys::open_process(pid, started).ok()??;
    Some(Live { pid, pidfd })
}

/// The facts of an exec that has ended without a shim.
fn ended(exec: KeptExec) -> ExecFacts {
    ExecFacts { end: exec.code.map(ExecEnd::Exited), exited_at: Some(Timestamp::now()), ..of(&exec, Life::Ended) }
}

fn of(exec: &KeptExec, life: Life) -> ExecFacts {
    ExecFacts {
        life,
        by: exec.by.clone(),
        // Whoever has asked for it has lost its connection.
        unwanted: true,
        name: exec.name.clone(),
        cloned_between: exec.cloned_between,
        deadline: exec.deadline,
        started_at: exec.started_at,
        oom_kills_before: exec.oom_kills_before,
        ..ExecFacts::default()
    }
}
