//! The process that holds a pid namespace which members share.
//!
//! When it ends, which nobody here asks it to before, the kernel ends all that
//! is in the namespace with it.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Supervisor;
use super::sandboxes::Sandbox;
use crate::error::{Doing, Error, Kind, Result};
use crate::pause::{self, Pause};
use crate::{sys, worker};

/// It, while it lives.
pub struct Pausing {
    pidfd: OwnedFd,
    /// What it holds, which its pid may be another's before.
    namespace: Option<OwnedFd>,
}

impl Pausing {
    /// By which path its namespace is joined.
    ///
    /// # Errors
    /// `WrongState` when it has ended: the kernel takes nobody in any more.
    pub fn path(&self) -> Result<PathBuf> {
        let mut ended = [PollFd::new(&self.pidfd, PollFlags::IN)];
        if poll(&mut ended, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            let message = "the process that holds the members' pid namespace was killed by somebody else";
            return Err(Error::new(Kind::WrongState, message).hint("remove the sandbox"));
        }
        let fd = self.namespace.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        Ok(format!("/proc/{}/fd/{fd}", std::process::id()).into())
    }
}

impl Supervisor {
    /// Starts it where the sandbox's members are to see each other's processes.
    pub(super) async fn begin_pause(self: &Rc<Self>, sandbox: &Rc<Sandbox>) -> Result<()> {
        if !sandbox.record.borrow().sandbox.share_pid {
            return Ok(());
        }
        let wanted = Pause { pid: true, ..Pause::default() };
        let entry = self.overhead.entry().await;
        let live = pause::start(&wanted, entry.as_ref())?.ready().await?;
        if entry.is_none()
            && let Some(path) = self.overhead.path()
        {
            // systemd's: it knows of processes by their cgroup alone.
            worker::run("helpers", || self.layout.place(&path, &[live.pid])).await?;
        }
        sandbox.record.borrow_mut().pause_pid = Some(live.pid);
        let at = format!("/proc/{}/ns/pid", live.pid);
        let namespace = File::open(&at).doing(Kind::Internal, || format!("cannot open {at}"));
        let (namespace, failed) = namespace.map_or_else(|error| (None, Err(error)), |file| (Some(file.into()), Ok(())));
        // Also where that failed: it is ended with the rest.
        *sandbox.pause.borrow_mut() = Some(Pausing { pidfd: live.pidfd, namespace });
        failed
    }

    /// Ends it; what is in its namespace has ended.
    pub(super) async fn end_pause(&self, sandbox: &Sandbox) {
        let Some(Pausing { pidfd, .. }) = sandbox.pause.borrow_mut().take() else { return };
        // ESRCH: somebody else was first.
        let _ = sys::pidfd_send_signal(pidfd.as_fd(), libc::SIGKILL);
        worker::ended(pidfd).await;
        sandbox.record.borrow_mut().pause_pid = None;
    }
}
