//! Takes over the execs of an earlier shim: those that run keep their numbers and names, and each end that nobody has told
//! becomes an event.
//!
//! ```text
//!   slot ─► its process lives ─► an exec like any other, without streams and without a caller
//!        │                     └► a health check ─► killed: the next one runs alone
//!        ├► it has gone ─► its end is an event, unless the journal has that ─► the slot is free
//!        └► it is no exec of the task's ─► said in the log, and the slot is free
//! ```
//!
//! Whoever may write to the file may name any process there, and this shim would end it at the deadline. Must not: signal a
//! caller's exec before its deadline, nor take a process for one that was not cloned when the slot says so, or is not
//! in the task's cgroup.

use std::io;

use bowline_error::Result;
use bowline_model::clock::{Moment, SinceBoot};
use bowline_model::liveness::Live;
use bowline_sys as sys;
use bowline_sys::proc_stat::{self, ProcStat};
use jiff::Timestamp;

use super::adoption::claim_by_pidfd;
use crate::facts::{AskedBy, ExecEnd, ExecFacts, Killed, TaskFacts};
use crate::lifecycle::exec::Life;
use crate::supervise::exec::slots::{KeptExec, Left};
use crate::supervise::handles::ExecHandles;
use crate::supervise::supervisor::Supervisor;
use crate::supervise::task::Task;

impl Supervisor {
    /// Takes over the execs that slots tell of, and that are not known otherwise.
    pub(crate) fn take_over_execs(&self, task: &Task) {
        let taken = task.handles.borrow_mut().exec_slots.as_mut().map(|slots| slots.take_over());
        let Some(Left { begun, events, execs: kept }) = taken else { return };
        task.facts.update_silently(|facts| {
            facts.execs_begun = facts.execs_begun.max(begun);
            // The journal may have lost its lines.
            facts.events = facts.events.max(events);
        });
        // A program of before there were slots has kept none of those that are known.
        let known: Vec<u64> = task.facts.read(|facts| facts.execs.keys().copied().collect());
        known.iter().for_each(|number| task.keep_exec(*number));
        for exec in kept.into_iter().filter(|exec| !known.contains(&exec.number)) {
            let number = exec.number;
            let live = match self.process_of(task, &exec) {
                Ok(ExecProcess::Lives(live)) => Some(live),
                Ok(ExecProcess::Gone) => None,
                Ok(ExecProcess::NotAnExec(why)) => {
                    tracing::warn!(number, pid = exec.pid, "an exec is not known any more: its slot names {why}");
                    task.let_go_of_exec(number);
                    continue;
                }
                Err(error) => {
                    // As where no descriptor is left. The slot stays: a later shim may find it.
                    tracing::warn!(%error, number, "whether an exec runs is not known");
                    continue;
                }
            };
            let is_told = exec.told_as.is_some_and(|event| event <= task.facts.read(|facts| facts.events));
            let has_begun = exec.pid.is_some() || exec.started_at.is_some() || exec.ended_at.is_some();
            let ends = live.is_none() && has_begun && !is_told;
            match live {
                Some(live) => match self.take_over_exec(task, exec, live) {
                    Ok(()) => task.keep_exec(number),
                    Err(error) => tracing::warn!(%error, number, "an exec that runs has no number any more"),
                },
                None if ends => {
                    self.take_over_end(task, exec);
                    task.keep_exec(number);
                }
                None => task.let_go_of_exec(number),
            }
        }
    }

    /// Takes over an exec that has ended without a shim, with its cgroup: what it has left there has no deadline, unless it
    /// was being killed too.
    fn take_over_end(&self, task: &Task, exec: KeptExec) {
        let mut handles = task.handles.borrow_mut();
        let in_time =
            |exec: &KeptExec| exec.killed_at.is_none() && exec.deadline.is_none_or(|deadline| Moment::now() < deadline);
        let group = exec.group.filter(|_| in_time(&exec)).and_then(|number| self.open_group(&handles, number));
        let group_number = group.as_ref().map(|group| group.number());
        handles.execs.insert(exec.number, ExecHandles { group, ..ExecHandles::default() });
        drop(handles);
        let facts = ExecFacts { group: group_number, in_group: group_number.is_some(), ..facts_of_ended(&exec) };
        task.facts.update_silently(|known| known.execs.insert(exec.number, facts));
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
            ..facts_of(&exec, Life::Running)
        };
        let of = ExecHandles { claim: Some(claim), pidfd: Some(live.pidfd), group, ..ExecHandles::default() };
        handles.execs.insert(exec.number, of);
        drop(handles);
        task.facts.update_silently(|known| known.execs.insert(exec.number, facts));
        Ok(())
    }

    /// The process that the slot of an exec names.
    ///
    /// # Errors
    /// Where it may be there, and cannot be looked at.
    fn process_of(&self, task: &Task, exec: &KeptExec) -> io::Result<ExecProcess> {
        let Some((pid, between)) = exec.pid.zip(exec.cloned_between) else { return Ok(ExecProcess::Gone) };
        let stat = proc_stat::find(pid)?;
        let stat = stat.as_deref().and_then(ProcStat::parse);
        let started = stat.as_ref().and_then(ProcStat::started).filter(|at| SinceBoot::include(between, *at));
        let Some((stat, started)) = stat.zip(started) else { return Ok(ExecProcess::Gone) };
        let Some(pidfd) = sys::open_process(pid, started)? else { return Ok(ExecProcess::Gone) };
        // By when an exec had begun of which its shim had not heard is not known: its number may be another's by now.
        let is_identified = between[1] != SinceBoot::NOT_YET;
        let is_in_task = |pid| task.with_cgroup(|cgroup| self.layout.member(cgroup, pid).is_some()).unwrap_or_default();
        let is_execs = |facts: &TaskFacts| facts.execs.values().any(|exec| exec.pid == Some(pid));
        let why = if !is_in_task(pid) {
            let now = proc_stat::read(pid);
            match now.as_deref().and_then(ProcStat::parse).filter(|stat| stat.may_run()) {
                // It ends, or only its first thread does.
                Some(stat) if stat.ends() => return Ok(ExecProcess::Gone),
                // What has ended is in no cgroup. No signal reaches it, and its code may be known.
                None if is_identified => None,
                _ => Some("a process that is not in the task's cgroup"),
            }
        } else if task.pid() == Some(pid) || stat.parent().is_some_and(is_in_task) {
            // An exec was a child of the shim, so that nothing in the task is its parent.
            Some("a process that is no exec")
        } else {
            task.facts.read(is_execs).then_some("the process of another exec")
        };
        match why {
            Some(_) if !is_identified => Ok(ExecProcess::Gone),
            Some(why) => Ok(ExecProcess::NotAnExec(why)),
            None => Ok(ExecProcess::Lives(Live { pid, pidfd })),
        }
    }
}

/// What the slot of an exec names.
enum ExecProcess {
    /// The exec, which may have ended since.
    Lives(Live),
    Gone,
    /// A process that is none of the task's execs, and which one it is.
    NotAnExec(&'static str),
}

/// The facts of an exec whose end nobody has told.
fn facts_of_ended(exec: &KeptExec) -> ExecFacts {
    let at = Some(exec.ended_at.unwrap_or_else(Timestamp::now));
    // A shim that knew of an end without a code has killed it at its deadline.
    let killed = exec.ended_at.map(|_| if exec.group.is_some() { Killed::Cgroup } else { Killed::Session });
    let end = exec.code.map(ExecEnd::Exited).or(killed.map(ExecEnd::TimedOut));
    ExecFacts { end, started_at: exec.started_at.or(at), exited_at: at, ..facts_of(exec, Life::Ended) }
}

fn facts_of(exec: &KeptExec, life: Life) -> ExecFacts {
    ExecFacts {
        life,
        by: exec.by.clone(),
        // Whoever has asked for it has lost its connection.
        unwanted: true,
        name: exec.name.clone(),
        cloned_between: exec.cloned_between,
        // Nobody has what a check would tell.
        deadline: if exec.by == AskedBy::Check { Some(Moment::now()) } else { exec.deadline },
        killed_at: exec.killed_at,
        sent_kill: exec.sent_kill,
        oom_kills_before: exec.oom_kills_before,
        ..ExecFacts::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_end_that_the_shim_before_knew_is_told_as_it_was() {
        let end = |more: Value| {
            let mut kept = json!({ "number": 1, "by": { "caller": ["true"] }, "pid": 7 });
            kept.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
            let facts = facts_of_ended(&serde_json::from_value(kept).expect("the form of a slot"));
            (facts.end, facts.exited_at)
        };
        let at: Timestamp = "2026-01-02T03:04:05Z".parse().expect("a time");
        assert_eq!(end(json!({ "ended_at": at, "code": 3 })), (Some(ExecEnd::Exited(3)), Some(at)));
        let killed = |how| (Some(ExecEnd::TimedOut(how)), Some(at));
        assert_eq!(end(json!({ "ended_at": at, "group": 1 })), killed(Killed::Cgroup));
        assert_eq!(end(json!({ "ended_at": at })), killed(Killed::Session));
        assert_eq!(end(json!({})).0, None, "nobody has seen it");
    }
}
