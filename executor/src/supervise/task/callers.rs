//! Stops a task that ends with other processes: the client that ran it, and that one's parent.
//!
//! ```text
//!   registered ─► a pidfd of each ─► one of them ends ─► stop: signal, grace, SIGKILL
//! ```
//!
//! The record has their pids and starts: whoever goes on with the task opens them again, and one that is gone has ended. A
//! stopped process has not. Must not: decide how a task is stopped, which is the job of `lifecycle`.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::report::StoppedBy;
use bowline_sys as sys;
use tokio::io::Interest;

use super::Task;
use super::watching::until_end;
use crate::supervise::supervisor::Supervisor;

/// How long until a process is looked for again, where no descriptor is left for it.
const AGAIN: Duration = Duration::from_secs(1);

impl Supervisor {
    /// Begins to wait for the end of each process that the task ends with.
    pub(crate) fn end_with_callers(self: &Rc<Self>, task: &Rc<Task>) {
        for (pid, started) in task.facts.read(|facts| facts.record.ends_with.clone()) {
            let supervisor = self.clone();
            until_end(task, async move |task| {
                while let Err(error) = ends(pid, started).await {
                    tracing::warn!(%error, id = %task.id, "its end is not noticed");
                    tokio::time::sleep(AGAIN).await;
                }
                if let Err(error) = supervisor.shutdown(&task.id, None, None, StoppedBy::Caller) {
                    tracing::error!(%error, id = %task.id, "cannot stop a task whose caller has ended");
                }
            });
        }
    }
}

/// Checks that each of these processes lives.
///
/// # Errors
/// `WrongState` where one has ended, or is in another pid namespace.
pub(super) fn check_live(processes: &[(i32, u64)]) -> Result<()> {
    for (pid, started) in processes {
        if opened(*pid, *started)?.is_none() {
            let message = format!("process {pid}, which the task is to end with, has ended or is not seen by the shim");
            return Err(Error::new(Kind::WrongState, message));
        }
    }
    Ok(())
}

/// Returns once this process has ended.
async fn ends(pid: i32, started: u64) -> Result<()> {
    let Some(pidfd) = opened(pid, started)? else { return Ok(()) };
    let what = || format!("cannot watch process {pid}");
    let pidfd = sys::register_fd_for(pidfd, Interest::READABLE).doing(Kind::Internal, what)?;
    pidfd.readable().await.map(drop).doing(Kind::Internal, what)
}

fn opened(pid: i32, started: u64) -> Result<Option<OwnedFd>> {
    sys::open_process(pid, started).doing(Kind::Internal, || format!("cannot look at process {pid}"))
}
