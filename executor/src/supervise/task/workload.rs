//! A task's program where `bowline-init` is above it: which process it is, and how it has ended.

use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};

use bowline_sys::{self as sys, Ended, proc_stat};

use super::Task;
use crate::waits::claim::End;

impl Task {
    /// Waits until the task's program has ended: with init, unless that keeps its output.
    pub(crate) async fn program_ended(&self) -> End {
        if let Some(end) = self.facts.read(|facts| facts.end) {
            return end;
        }
        let (claim, init_watch) = {
            let handles = self.handles.borrow();
            (handles.claim.clone(), handles.init_watch.clone())
        };
        if let Some(init_watch) = init_watch {
            tokio::select! {
                biased;
                _ = claim.ended() => {}
                () = init_watch.changed() => {}
            }
            if let Some(ended) = self.workload_ended() {
                return claim.end().map_or_else(|| End::now(ended), |end| End { ended, ..end });
            }
        }
        let end = claim.ended().await;
        self.facts.read(|facts| match end.ended {
            // Whoever has killed both at once knows how they ended, also where the kernel does not tell.
            Ended::Unknown if facts.record.init && facts.history.sent.contains(&libc::SIGKILL) => {
                End { ended: Ended::Signaled(libc::SIGKILL), ..end }
            }
            _ => end,
        })
    }

    /// How the program below `bowline-init` has ended, if it has.
    pub(crate) fn workload_ended(&self) -> Option<Ended> {
        self.handles.borrow().init_watch.as_ref()?.workload_ended()
    }

    /// Whether the program has ended and its init lives on, for output that was not read.
    pub(crate) fn keeps_output(&self) -> bool {
        self.handles.borrow().init_watch.is_some() && self.handles.borrow().claim.is_unreaped()
    }

    /// Lets init, which runs by now, close the pipes that nobody reads any more.
    pub(crate) fn may_close_pipes(&self) {
        let handles = self.handles.borrow();
        let (Some(_), Some(init), Some(pumps)) = (&handles.init_watch, &handles.init, &handles.pumps) else { return };
        match init.pidfd.try_clone() {
            Ok(init) => pumps.kept_by(init),
            Err(error) => tracing::warn!(%error, "a task's init keeps pipes open that nobody reads"),
        }
    }

    /// The pid of the program below `bowline-init`, its first child; `None` where it has ended or the kernel tells no
    /// children.
    pub(crate) fn find_workload(&self) -> Option<i32> {
        let pid = self.facts.read(|facts| facts.record.pid.filter(|_| facts.record.init))?;
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }

    /// The program below `bowline-init`, if it lives.
    pub(crate) fn open_workload(&self) -> Option<OwnedFd> {
        let (init, workload) = self.facts.read(|facts| facts.record.pid.zip(facts.record.workload_pid))?;
        let pidfd = sys::pidfd_open(workload).ok()?;
        // By now the pid may be another process's: the parent tells, as the pidfd is open.
        let parent = proc_stat::parent(workload)?;
        (parent == init && sys::pidfd_send_signal(pidfd.as_fd(), 0).is_ok()).then_some(pidfd)
    }
}
