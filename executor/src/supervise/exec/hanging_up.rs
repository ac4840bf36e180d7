//! Hanging up on what belongs to a client that has died: SIGHUP at once, SIGKILL for what is left after the grace.
//!
//! ```text
//!   caller gone ─► all that the exec has started goes into one cgroup ─► SIGHUP to its session
//!                       └► the kernel has none for it: only the session  ─► [grace over] ─► SIGKILL
//! ```
//!
//! An exec without a deadline has no cgroup of its own, which would take calls, and on v2 hide the task's limits from
//! programs that look for them in their own cgroup. It has a cgroup namespace of its own, with the task's cgroup as its
//! root: that takes no call more than to join the task's, and whatever the exec starts is in it. The cgroup comes here:
//! its deadline is stored with it, so that the next program or shim keeps it.

use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;

use bowline_cgroup::ExecGroup;
use bowline_error::{Error, Kind, Result};
use bowline_model::clock::Moment;
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use bowline_sys as sys;

use crate::facts::TaskFacts;
use crate::supervise::supervisor::Supervisor;
use crate::supervise::task::Task;
use crate::waits;
use crate::waits::claim::Claim;

impl Supervisor {
    /// Sends a signal to the process group of the exec with that name, as its terminal would. Waits until the exec's
    /// program is executed, which is in a group of its own then.
    pub async fn signal_exec_group(&self, id: &TaskId, name: &str, signal: Signal) -> Result<()> {
        let task = self.task(id)?;
        task.until_exec_begins(name).await;
        let number = task.facts.read(|facts| facts.exec_named(name)).ok_or_else(|| task.exec_has_exited(name))?;
        // Of one that an earlier shim has started, somebody else reaps the end.
        let held = |pid: &i32| match task.handles.borrow().execs.get(&number).and_then(|exec| exec.pidfd.as_ref()) {
            Some(pidfd) => sys::pid_of(pidfd.as_fd()) == Some(*pid),
            None => true,
        };
        let claim = task.exec_claim(number).map(|(claim, _)| claim);
        let claim = claim.filter(|claim| claim.is_unreaped() && held(&claim.pid));
        if claim.is_some() {
            task.will_send_exec(number, signal);
        }
        // No other group has its number while it is unreaped.
        match claim.map(|claim| sys::signal_group(claim.pid, signal.number())) {
            None => Err(task.exec_has_exited(name)),
            Some(Err(error)) if error.raw_os_error() != Some(libc::ESRCH) => {
                let message = format!("cannot signal exec {name} of task {id}: {error}");
                Err(Error::new(Kind::Internal, message))
            }
            // Those that are in it have ended, and are not reaped, or were sent it.
            Some(_) => {
                task.end_exec_sent_kill(&self.layout, number);
                Ok(())
            }
        }
    }

    /// Hangs up on an exec whose caller has died.
    pub(crate) fn hang_up(self: &Rc<Self>, task: &Rc<Task>, number: u64) {
        task.facts.update(|facts| facts.execs.get_mut(&number).map(|exec| exec.ends_with_caller = false));
        let Some((claim, in_group)) = task.exec_claim(number) else { return };
        let (_, grace) = task.stop_defaults();
        let due = task.facts.read(|facts| facts.execs.get(&number)?.deadline);
        let due = due.into_iter().chain([Moment::now().after(grace)]).min();
        let group = match in_group {
            true => task.handles.borrow_mut().execs.get_mut(&number).and_then(|exec| exec.group.take()),
            false => self.gather(task, &claim),
        };
        let gathered = group.is_some();
        task.facts.update(|facts| {
            let Some(exec) = facts.execs.get_mut(&number) else { return };
            if gathered {
                // The cgroup is killed then, whether the exec has ended by itself or not.
                (exec.deadline, exec.group, exec.in_group) = (None, None, false);
            } else {
                exec.deadline = due;
            }
        });
        task.keep_exec(number);
        let hang_up = |cgroup: &_| self.layout.signal_session(cgroup, claim.pid, libc::SIGHUP);
        if claim.is_unreaped() {
            drop(task.with_cgroup(hang_up));
        }
        if let (Some(group), Some(due)) = (group, due) {
            self.kill_left_at(task, group, claim, due);
        }
    }

    /// Moves all that an exec has started, as far as it can be found, into a cgroup of its own. `None` if the kernel
    /// refuses.
    fn gather(&self, task: &Task, exec: &Claim) -> Option<Rc<ExecGroup>> {
        let group = self.free_exec_group(task)?;
        let own = {
            let handles = task.handles.borrow();
            let init = handles.init.as_ref().filter(|_| exec.is_unreaped());
            init.and_then(|init| handles.entrance.own_cgroup_namespace(init, exec.pid))
        };
        let own = own.as_ref().map(OwnedFd::as_fd);
        let gathered = task.with_cgroup(|cgroup| self.layout.gather(cgroup, &group, exec.pid, own));
        match gathered.and_then(|gathered| gathered) {
            Ok(()) => Some(group),
            Err(error) => {
                tracing::info!(%error, "only the session of an exec whose caller has died is killed");
                self.give_back_group(task, group);
                None
            }
        }
    }

    /// Kills what is left in the cgroup of an exec at that time.
    fn kill_left_at(self: &Rc<Self>, task: &Rc<Task>, group: Rc<ExecGroup>, exec: Claim, due: Moment) {
        if let Err(error) = group.note(Some(due.number())) {
            tracing::warn!(%error, "what the end of a caller has left runs on if this shim dies or is upgraded");
        }
        let (supervisor, task) = (self.clone(), task.clone());
        waits::begin(move || {
            let (supervisor, task, group, exec) = (supervisor.clone(), task.clone(), group.clone(), exec.clone());
            async move {
                // Usually SIGHUP ends it all.
                let _ = tokio::time::timeout(due.to_come(), exec.ended()).await;
                match group.is_empty() {
                    true => supervisor.remove_group(&task, group.number()),
                    false => supervisor.kill_group_at(&task, group, due),
                }
            }
        });
    }
}

impl Task {
    /// Lets the exec with that name run on when its caller goes.
    pub fn detach_exec(&self, name: &str) -> Result<()> {
        let number = self.facts.read(|facts| facts.exec_named(name)).ok_or_else(|| self.exec_has_exited(name))?;
        self.facts.update(|facts| facts.execs.get_mut(&number).map(|exec| exec.ends_with_caller = false));
        Ok(())
    }

    /// Waits until the caller of an exec that ends with it has gone.
    pub(crate) async fn caller_goes(&self, number: u64) {
        let gone =
            |facts: &TaskFacts| facts.execs.get(&number).is_some_and(|exec| exec.ends_with_caller && exec.unwanted);
        self.facts.until_it(gone).await;
    }
}
