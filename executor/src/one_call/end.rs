//! Signals for a container, its pause, and its end.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use bowline_cgroup::Freezing;
use bowline_error::{Doing, Error, Kind, Result};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use bowline_sys as sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Container, Containers, Status};
use crate::disk::folder::{Lock, Owner};
use crate::hostside::undo::{LeftAlone, undo};
use crate::start::cloning::Live;
use crate::view::namespaces::Namespaces;

/// How long a process that was killed may take to end: it may be in a call of the kernel that nothing interrupts.
const DYING: Duration = Duration::from_secs(10);

/// How long a cgroup of v1 may take to freeze while its processes fork.
const FREEZING: Duration = Duration::from_secs(10);

impl Containers {
    /// Sends a signal to init, or to `all` processes of the container.
    ///
    /// # Errors
    /// `WrongState` where the container has ended, unless all are meant.
    pub fn kill(&self, id: &str, signal: Signal, all: bool) -> Result<()> {
        let container = self.find(id)?;
        let Some(init) = container.init()? else {
            if all {
                return self.signal_all(&container, signal);
            }
            return Err(Error::new(Kind::WrongState, format!("container not running: {id}")));
        };
        // What shares a pid namespace does not end with init.
        let shares_pids =
            || -> Result<bool> { Ok(!Namespaces::of(&container.configuration()?.spec)?.is_new(libc::CLONE_NEWPID)) };
        if all || signal == Signal::KILL && shares_pids()? {
            self.signal_all(&container, signal)?;
        }
        if !all {
            sys::pidfd_send_signal(init.pidfd.as_fd(), signal.number())
                .doing(Kind::Internal, || format!("cannot send signal {} to container {id}", signal.number()))?;
        }
        if signal == Signal::KILL {
            self.thaw(&container)?;
        }
        Ok(())
    }

    fn signal_all(&self, container: &Container, signal: Signal) -> Result<()> {
        let layout = self.layout()?;
        let Some(cgroup) = self.cgroup(container)? else { return Ok(()) };
        match signal {
            Signal::KILL => drop(layout.kill(&cgroup)),
            signal => layout.signal(&cgroup, signal.number()),
        }
        Ok(())
    }

    /// A frozen process of cgroup v1 does not even die.
    fn thaw(&self, container: &Container) -> Result<()> {
        match self.cgroup(container)? {
            Some(cgroup) => self.layout()?.freeze(&cgroup, false),
            None => Ok(()),
        }
    }

    /// Kills all processes of a container whose init lives.
    pub(super) fn end_all(&self, container: &Container, init: &Live) -> Result<()> {
        // One that has ended already needs no signal.
        let _ = sys::pidfd_send_signal(init.pidfd.as_fd(), libc::SIGKILL);
        self.signal_all(container, Signal::KILL)?;
        self.thaw(container)?;
        await_end(init.pidfd.as_fd()).map_err(|error| error.within(format_args!("container {}", container.id)))
    }

    /// Freezes all processes of the container, or thaws them.
    ///
    /// # Errors
    /// `WrongState` where it is not in the state for that; `Timeout` where its processes do not freeze.
    pub fn pause(&self, id: &str, frozen: bool) -> Result<()> {
        let container = self.find(id)?;
        let status = self.status(&container)?;
        match (frozen, status) {
            (true, Status::Running | Status::Created) | (false, Status::Paused) => {}
            (true, _) => return Err(container.is_in(status, "only a running one can be paused")),
            (false, _) => return Err(container.is_in(status, "only a paused one can be resumed")),
        }
        let gone = || Error::new(Kind::WrongState, format!("cgroup {} has gone", container.record.cgroup));
        let (layout, cgroup) = (self.layout()?, self.cgroup(&container)?.ok_or_else(gone)?);
        if !frozen {
            return layout.freeze(&cgroup, false);
        }
        let (begun, mut freezing) = (Instant::now(), Freezing::default());
        while let Some(wait) = freezing.look(layout, &cgroup) {
            if begun.elapsed() > FREEZING {
                layout.freeze(&cgroup, false)?;
                let message = format!("container {id} would not freeze within {FREEZING:?}; it runs on");
                return Err(Error::new(Kind::Timeout, message));
            }
            std::thread::sleep(wait);
        }
        Ok(())
    }

    /// Removes a container and all that was made for it; by `force` one that runs, and one that does not exist.
    ///
    /// # Errors
    /// `WrongState` for one that runs; what cannot be ended or removed.
    pub fn delete(&self, id: &str, force: bool) -> Result<LeftAlone> {
        let container = match self.find(id) {
            Err(error) if error.kind() == Kind::NotFound => return self.delete_unrecorded(id, force, error),
            found => found?,
        };
        let lock = self.lock_to_delete(&container, force)?;
        let container = match self.find(id) {
            // Somebody else has deleted it meanwhile.
            Err(error) if error.kind() == Kind::NotFound && force => return Ok(LeftAlone::new()),
            found => found?,
        };
        match self.status(&container)? {
            Status::Stopped | Status::Created | Status::Creating => {}
            Status::Running | Status::Paused if force => {}
            status => {
                return Err(container
                    .is_in(status, "it cannot be deleted")
                    .hint("kill it first, or delete it by --force"));
            }
        }
        if let Some(init) = container.init()? {
            self.end_all(&container, &init)?;
        }
        let left = undo(&container.folder, &self.systemd)?;
        container.folder.remove_quietly(lock)?;
        Ok(left)
    }

    /// Removes the folder of a creation that was killed before it had written a record.
    fn delete_unrecorded(&self, id: &str, force: bool, none: Error) -> Result<LeftAlone> {
        let folder =
            TaskId::of_container(id).ok().map(|id| self.state.folder(&id)).filter(|folder| folder.path().is_dir());
        match folder.map(|folder| folder.owner().map(|owner| (folder, owner))).transpose()? {
            Some((folder, Owner::Nobody(lock))) => folder.remove_quietly(lock).map(|()| LeftAlone::new()),
            _ if force => Ok(LeftAlone::new()),
            _ => Err(none),
        }
    }

    /// Locks the container; by `force`, ends the process that creates it.
    fn lock_to_delete(&self, container: &Container, force: bool) -> Result<Lock> {
        if let Owner::Nobody(lock) = container.folder.owner()? {
            return Ok(lock);
        }
        let busy = || {
            let message = format!("container {} is being created, started or deleted by another process", container.id);
            Error::new(Kind::WrongState, message)
        };
        let creator = container.creator()?.filter(|_| force).ok_or_else(busy)?;
        // ESRCH: it has just ended.
        let _ = sys::pidfd_send_signal(creator.as_fd(), libc::SIGKILL);
        await_end(creator.as_fd())?;
        match container.folder.owner()? {
            Owner::Nobody(lock) => Ok(lock),
            Owner::Shim => Err(busy()),
        }
    }
}

/// Waits until a process that was killed has ended.
fn await_end(pidfd: std::os::fd::BorrowedFd<'_>) -> Result<()> {
    let most = Timespec { tv_sec: DYING.as_secs().cast_signed(), tv_nsec: 0 };
    let ended = rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&most)));
    match ended.doing(Kind::Internal, || "cannot wait for a process")? {
        0 => Err(Error::new(Kind::Timeout, format!("a process that was killed has not ended within {DYING:?}"))),
        _ => Ok(()),
    }
}
