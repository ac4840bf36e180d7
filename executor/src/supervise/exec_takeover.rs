//! Execs of a shim that has died: those that run go on under their numbers and names, and each end that nobody has told is
//! told.
//!
//! ```text
//!   slot ─► its process lives ─► an exec like any other, without streams and without a caller
//!        │                     └► a health check ─► killed: the next one runs alone
//!        └► it has gone ─► its end is an event, unless the journal has that ─► the slot is free
//! ```
//!
//! Must not: signal a caller's exec, nor take a process for one that was not cloned when the slot says so.

use std::io;
use std::rc::Rc;

use bowline_error::Result;
use bowline_sys as sys;
use bowline_sys::proc_stat::{self, ProcStat};
use jiff::Timestamp;

use super::adoption::claim_by_pidfd;
use super::handles::ExecHandles;
use super::supervisor::Supervisor;
use super::task::Task;
use crate::clock::{Moment, SinceBoot};
use crate::cloning::Live;
use crate::exec_slots::KeptExec;
use crate::facts::{AskedBy, ExecEnd, ExecFacts};
use crate::lifecycle::exec::Life;

impl Supervisor {
    /// Takes over the execs of which the shim before has left slots.
    pub(super) fn take_over_execs(self: &Rc<Self>, task: &Rc<Task>) {
        let taken = task.handles.borrow_mut().exec_slots.as_mut().map(|slots| slots.take_over());
        let Some((begun, kept)) = taken else { return };
        task.facts.change(|facts| facts.execs_begun = begun);
        for exec in kept {
            let number = exec.number;
            let live = match live(&exec) {
                Ok(live) => live,
                Err(error) => {
                    // As where no descriptor is left. The slot stays: a later shim may find it.
                    tracing::warn!(%error, number, "whether an exec runs is not known");
                    continue;
                }
            };
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
///
/// # Errors
/// Where it may be, and cannot be looked at.
fn live(exec: &KeptExec) -> io::Result<Option<Live>> {
    let Some((pid, between)) = exec.pid.zip(exec.cloned_between) else { return Ok(None) };
    let stat = proc_stat::find(pid)?;
    let started = stat.as_deref().and_then(ProcStat::parse).and_then(|stat| stat.started());
    let Some(started) = started.filter(|started| SinceBoot::include(between, *started)) else { return Ok(None) };
    Ok(sys::open_process(pid, started)?.map(|pidfd| Live { pid, pidfd }))
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
        // Nobody has what a check would tell.
        deadline: if exec.by == AskedBy::Check { Some(Moment::now()) } else { exec.deadline },
        started_at: exec.started_at,
        oom_kills_before: exec.oom_kills_before,
        ..ExecFacts::default()
    }
}
