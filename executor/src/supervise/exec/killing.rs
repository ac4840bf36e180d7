//! Killing an exec at its deadline, or when its client has gone, with everything that it has started.

use std::cell::RefCell;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use bowline_cgroup::{Cgroup, ExecGroup};
use bowline_error::Result;
use bowline_model::clock::Moment;
use bowline_spec::id::TaskId;
use bowline_sys as sys;

use crate::facts::Killed;
use crate::supervise::supervisor::Supervisor;
use crate::supervise::task::{Task, all_ended};
use crate::waits;
use crate::waits::claim::Claim;

/// How long an answer waits until what was killed at a deadline has ended.
const DYING: Duration = Duration::from_secs(1);

/// How long the shim makes sure that killed processes end, where another process keeps them frozen.
const KILLED_ON: Duration = Duration::from_secs(60);

impl Supervisor {
    /// Kills the exec with that name, as [`Self::kill_exec`].
    pub async fn kill_exec_named(self: &Rc<Self>, id: &TaskId, name: &str) -> Result<()> {
        let task = self.task(id)?;
        let number = task.facts.read(|facts| facts.exec_named(name)).ok_or_else(|| task.exec_has_exited(name))?;
        self.kill_exec(&task, number).await;
        Ok(())
    }

    /// Kills an exec and whatever it started, as far as that can be found. Returns when they have ended, or after
    /// [`DYING`]: a process that is deep in the kernel runs no more instructions, but ends only when the kernel
    /// lets it go.
    pub(crate) async fn kill_exec(self: &Rc<Self>, task: &Rc<Task>, number: u64) -> Killed {
        // An exec without a process has started nothing.
        let Some((claim, in_group)) = task.exec_claim(number) else { return Killed::Cgroup };
        let killed_at = task.facts.read(|facts| facts.execs.get(&number).and_then(|exec| exec.killed_at));
        let since = killed_at.unwrap_or_else(|| self.begin_killing(task, number, claim, in_group));
        let dead = task.facts.until_it(|facts| facts.execs.get(&number).is_none_or(|exec| exec.all_dead));
        let _ = tokio::time::timeout(since.after(DYING).to_come(), dead).await;
        if in_group { Killed::Cgroup } else { Killed::Session }
    }

    /// Starts killing an exec and whatever it started, until nothing is left. Returns the time when that began.
    fn begin_killing(self: &Rc<Self>, task: &Rc<Task>, number: u64, claim: Claim, in_group: bool) -> Moment {
        let since = Moment::now();
        task.facts.update(|facts| facts.execs.get_mut(&number).map(|exec| exec.killed_at = Some(since)));
        task.keep_exec(number);
        let group = task.handles.borrow().execs.get(&number).and_then(|exec| exec.group.clone());
        if let Some(group) = group.filter(|_| in_group && task.facts.read(|facts| facts.record.outlives_shim()))
            && let Err(error) = group.note(Some(since.number()))
        {
            tracing::warn!(%error, "what an exec has started outlives it if this shim dies now");
        }
        self.kill_on(task, number, claim, in_group, since);
        since
    }

    /// Goes on with what [`Self::begin_killing`] has begun.
    pub(crate) fn kill_on(self: &Rc<Self>, task: &Rc<Task>, number: u64, claim: Claim, in_group: bool, since: Moment) {
        let group = task.handles.borrow().execs.get(&number).and_then(|exec| exec.group.clone());
        let held = task.handles.borrow().execs.get(&number).and_then(|exec| exec.pidfd.as_ref()?.try_clone().ok());
        let killing = Rc::new(Killing::begin(claim, held, group.filter(|_| in_group), since));
        let (supervisor, task) = (self.clone(), task.clone());
        waits::begin(move || {
            let (supervisor, task, killing) = (supervisor.clone(), task.clone(), killing.clone());
            async move {
                let dead = killing.to_the_last(&supervisor, &task);
                if tokio::time::timeout(since.after(KILLED_ON).to_come(), dead).await.is_ok() {
                    task.facts.update(|facts| facts.execs.get_mut(&number).map(|exec| exec.all_dead = true));
                }
            }
        });
    }
}

impl Supervisor {
    /// Kills all that is in the cgroup of an exec, which another shim has begun, at its deadline.
    pub(crate) fn kill_group_at(self: &Rc<Self>, task: &Rc<Task>, group: Rc<ExecGroup>, deadline: Moment) {
        let (supervisor, task) = (self.clone(), task.clone());
        waits::begin(move || {
            let (supervisor, task, group) = (supervisor.clone(), task.clone(), group.clone());
            async move {
                let over = task.facts.until_it(|facts| facts.life.is_reaped());
                if tokio::time::timeout(deadline.to_come(), over).await.is_ok() {
                    return;
                }
                loop {
                    let killed = group.kill();
                    if killed.is_empty() {
                        break;
                    }
                    all_ended(&supervisor.layout, &killed, deadline).await;
                }
                supervisor.remove_group(&task, group.number());
            }
        });
    }
}

/// An exec that is being killed.
struct Killing {
    claim: Claim,
    /// The exec's own cgroup, if it is in one.
    group: Option<Rc<ExecGroup>>,
    since: Moment,
    /// Whether the exec was unreaped when this began. Its pid then names its session for as long as a process is in
    /// that session.
    lived: bool,
    /// The processes that were killed last, until they have ended.
    dying: RefCell<Rc<[OwnedFd]>>,
}

impl Killing {
    fn begin(claim: Claim, held: Option<OwnedFd>, group: Option<Rc<ExecGroup>>, since: Moment) -> Killing {
        // Kill it by pidfd: it may not have reached its cgroup or its session yet. An exec that has just been
        // reaped is gone, and its pid may belong to another process.
        let lived = claim.is_unreaped();
        let pidfd = lived.then(|| held.or_else(|| sys::pidfd_open(claim.pid).ok())).flatten();
        let own: Vec<OwnedFd> = pidfd.into_iter().collect();
        // An error means that it has ended.
        own.iter().for_each(|own| drop(sys::pidfd_send_signal(own.as_fd(), libc::SIGKILL)));
        Killing { claim, group, since, lived, dying: RefCell::new(own.into()) }
    }

    async fn to_the_last(&self, supervisor: &Supervisor, task: &Task) {
        loop {
            let mut killed = match &self.group {
                Some(group) => group.kill(),
                None if self.lived => {
                    let kill = |cgroup: &Cgroup| supervisor.layout.kill_session(cgroup, self.claim.pid);
                    task.with_cgroup(kill).unwrap_or_default()
                }
                None => Vec::new(),
            };
            let none = killed.is_empty();
            // A process that is moved to where it can die is in no list any more.
            killed.extend(self.dying.borrow().iter().filter_map(|pidfd| pidfd.try_clone().ok()));
            let dying: Rc<[OwnedFd]> = killed.into();
            *self.dying.borrow_mut() = dying.clone();
            all_ended(&supervisor.layout, &dying, self.since).await;
            *self.dying.borrow_mut() = Rc::default();
            if none {
                break;
            }
        }
        self.claim.ended().await;
    }
}
