//! Signals for a container, its pause, and its end.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use bowline_cgroup::{Cgroup, Freezing, Permit, Unit};
use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::folder::{Folder, Lock, Owner};
use bowline_model::liveness::{Live, is_in_use};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use bowline_sys as sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Container, Containers, Status, busy, said};
use crate::hostside::owners::is_holder;
use crate::hostside::strangers;
use crate::hostside::undo::{LeftAlone, is_nobodys, undo};
use crate::oci::bundle;
use crate::view::namespaces::Namespaces;

/// How long a process that was killed may take to end: it may be in a call of the kernel that nothing interrupts.
const DYING: Duration = Duration::from_secs(10);

/// The pause between two looks at a lock.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// How long what is in a pid namespace may take to end with its init.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// How long a cgroup of v1 may take to freeze while its processes fork.
const FREEZING: Duration = Duration::from_secs(10);

impl Containers {
    /// Sends a signal to init, or to `all` processes of the container. Without a signal, only checks
    /// that the container runs.
    ///
    /// # Errors
    /// `WrongState` where the container has ended, unless all are meant.
    pub fn kill(&self, id: &str, signal: Option<Signal>, all: bool) -> Result<()> {
        let container = self.to_act_on(id)?;
        let ended = || Error::new(Kind::WrongState, format!("container not running: {id}"));
        let (init, signal) = match (self.init(&container)?, signal) {
            (Some(init), Some(signal)) => (init, signal),
            (None, Some(signal)) if all => return self.signal_all(&container, signal),
            // What shares a pid namespace may have outlived init.
            (None, Some(Signal::KILL)) if self.has_survivors(&container)? => {
                return self.signal_all(&container, Signal::KILL);
            }
            (None, _) if !all => return Err(ended()),
            _ => return Ok(()),
        };
        let has_own_pids = Namespaces::of(&container.read()?.spec)?.is_new(libc::CLONE_NEWPID);
        // The kernel does not deliver what ends a process by default to the first process of a pid namespace, but for what
        // that handles: an init that waits handles these, and runc's all.
        let is_handled = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM].contains(&signal.number());
        let is_lost = || has_own_pids && signal.ends_by_default() && !is_handled;
        let is_held = is_lost() && self.status(&container)? == Status::Created;
        let signal = if is_held { Signal::KILL } else { signal };
        // What shares a pid namespace does not end with init.
        let to_all = all || signal == Signal::KILL && !has_own_pids;
        if to_all {
            self.signal_all(&container, signal)?;
        }
        if !to_all && let Err(error) = sys::pidfd_send_signal(init.pidfd.as_fd(), signal.number()) {
            if error.raw_os_error() == Some(libc::ESRCH) {
                return Err(ended());
            }
            return Err(error)
                .doing(Kind::Internal, || format!("cannot send signal {} to container {id}", signal.number()));
        }
        if signal == Signal::KILL {
            self.thaw(&container)?;
        }
        Ok(())
    }

    /// Whether processes of a container without a pid namespace of its own are there, whatever became of init.
    fn has_survivors(&self, container: &Container) -> Result<bool> {
        let layout = self.layout()?;
        let is_used = self.cgroup(container)?.is_some_and(|cgroup| is_in_use(layout, &cgroup));
        Ok(is_used && !Namespaces::of(&container.read()?.spec)?.is_new(libc::CLONE_NEWPID))
    }

    fn signal_all(&self, container: &Container, signal: Signal) -> Result<()> {
        let layout = self.layout()?;
        let Some(cgroup) = self.cgroup(container)? else { return Ok(()) };
        match signal {
            Signal::KILL => drop(layout.kill_everywhere(&cgroup)),
            signal => layout.signal(&cgroup, signal.number()),
        }
        Ok(())
    }

    /// A frozen process of cgroup v1 does not even die.
    fn thaw(&self, container: &Container) -> Result<()> {
        let Some(cgroup) = self.cgroup(container)? else { return Ok(()) };
        match self.layout()?.freeze(&cgroup, false) {
            // It has been removed since.
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            thawed => thawed,
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
        let container = self.to_act_on(id)?;
        let status = self.status(&container)?;
        let is_freezing = |cgroup: &Cgroup| self.layout().is_ok_and(|layout| layout.is_frozen_itself(cgroup));
        match (frozen, status) {
            // A pause was given up midway.
            (false, _) if self.cgroup(&container)?.as_ref().is_some_and(is_freezing) => {}
            (true, Status::Running | Status::Created) | (false, Status::Paused) => {}
            (true, _) => return Err(container.wrong_state(status, "only a running one can be paused")),
            (false, _) => return Err(container.wrong_state(status, "only a paused one can be resumed")),
        }
        let gone = || Error::new(Kind::WrongState, format!("cgroup {} has gone", container.record.cgroup));
        let (layout, cgroup) = (self.layout()?, self.cgroup(&container)?.ok_or_else(gone)?);
        if !frozen || layout.goes_without() {
            return layout.freeze(&cgroup, frozen);
        }
        let (begun, mut freezing) = (Instant::now(), Freezing::default());
        while let Some(wait) = freezing.look(layout, &cgroup) {
            if begun.elapsed() > FREEZING {
                layout.freeze(&cgroup, false)?;
                let message = format!("container {id} would not freeze within {FREEZING:?}; it runs on");
                return Err(Error::new(Kind::Timeout, message));
            }
            // v1 reports no end of a freeze.
            std::thread::sleep(wait);
        }
        let mut outside = layout.outside(&cgroup, &container.record.pid.into_iter().collect::<Vec<_>>());
        outside.retain(|pid| !strangers::may_enter(*pid));
        if !outside.is_empty() {
            // As with runc, it counts as paused.
            tracing::warn!("{} of container {id} runs on: somebody has moved it elsewhere", strangers::named(&outside));
        }
        Ok(())
    }

    /// Removes a container and all that was made for it; by `force` one that runs, and one that does not exist.
    ///
    /// # Errors
    /// `WrongState` for one that runs; what cannot be ended or removed.
    pub fn delete(&self, id: &str, force: bool) -> Result<LeftAlone> {
        let id = TaskId::of_container(id).map_err(|error| Error::new(Kind::Usage, format!("{error}")))?;
        let deleted = self.delete_found(&id, force);
        self.reap_workers(None);
        self.state.sweep();
        match deleted {
            // It was not there, or somebody else has deleted it meanwhile.
            Err(error) if error.kind() == Kind::NotFound && force => Ok(LeftAlone::new()),
            deleted => deleted,
        }
    }

    fn delete_found(&self, id: &TaskId, force: bool) -> Result<LeftAlone> {
        self.state.check()?;
        let folder = self.state.folder(id);
        if !folder.is_ours() && folder.path().is_dir() {
            // A state folder without a record: what runc removes too.
            std::fs::remove_dir(folder.path())
                .doing(Kind::WrongState, || format!("{} is no container's", folder.path().display()))?;
            return Ok(LeftAlone::new());
        }
        let folder = folder.pinned().map_err(|error| said(error, id))?;
        let lock = self.lock_to_delete(id, &folder, force)?;
        let record = match folder.record() {
            Err(error) if error.kind() == Kind::Damaged && force => {
                self.end_damaged(id, &folder)?;
                None
            }
            record => record.map_err(|error| said(error, id))?,
        };
        // Without a record nothing was made yet.
        if let Some(record) = record {
            let container = Container { id: id.clone(), record, folder: folder.clone() };
            let checked = container.check_form().and_then(|()| container.check_named());
            let found = checked.and_then(|()| Ok((self.status(&container)?, self.init(&container)?)));
            let init = match found {
                // `undo` ends what is known to belong to it.
                Err(error) if force && error.kind() == Kind::WrongState => None,
                found => match found? {
                    (Status::Stopped, _) if !force => self.check_ended(&container).map(|()| None)?,
                    (Status::Stopped | Status::Created | Status::Creating, init) => init,
                    (Status::Running | Status::Paused, init) if force => init,
                    (status, _) => {
                        let error = container.wrong_state(status, "it cannot be deleted");
                        return Err(error.hint("kill it first, or delete it by --force"));
                    }
                },
            };
            if let Some(init) = init {
                self.end_all(&container, &init)?;
            }
        }
        // Nothing of it is missing for the caller: it is not removed.
        let is_left = |error: Error| match error.kind() {
            Kind::NotFound => Error::new(Kind::Internal, error.message()),
            _ => error,
        };
        let left = undo(&folder, &self.systemd).map_err(is_left)?;
        folder.remove_quietly(lock).map_err(is_left)?;
        Ok(left)
    }

    /// Checks that a container whose init is not there by its record has no processes in a pid namespace of its own: these
    /// end a moment after init.
    ///
    /// # Errors
    /// `WrongState` where they live on, as the record does not name init then.
    fn check_ended(&self, container: &Container) -> Result<()> {
        let has_own_pids = || Namespaces::of(&container.read()?.spec).map(|all| all.is_new(libc::CLONE_NEWPID));
        let (layout, begun) = (self.layout()?, Instant::now());
        loop {
            let is_used = self.cgroup(container)?.is_some_and(|cgroup| is_in_use(layout, &cgroup));
            if !is_used || !has_own_pids().unwrap_or(false) {
                return Ok(());
            }
            if begun.elapsed() > ENDS_WITHIN {
                return Err(container.refused("`pid` and `pid_started` in its record name no process, and others live"));
            }
            // Nothing tells that the last process of a cgroup of v1 has ended.
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// Ends what is in the cgroup of a container whose record tells nothing: its configuration says which, unless another
    /// container names the same.
    fn end_damaged(&self, id: &TaskId, folder: &Folder) -> Result<()> {
        if folder.salvaged_record().is_some() {
            // It still says what `undo` needs.
            return Ok(());
        }
        let asked = bundle::cgroup_asked_for(folder.path());
        let unit = asked.as_deref().and_then(|path| Unit::parse(path).ok().flatten());
        let path = unit.as_ref().map_or_else(|| bundle::cgroup_path(asked.as_deref(), id), Unit::path);
        // Also one of a newer bowline; one that cannot be read may name it.
        let names_it = |other: &TaskId| match self.state.folder(other).record() {
            Ok(record) => record.is_some_and(|record| record.cgroup == path),
            Err(_) => other != id,
        };
        if !self.state.ids()?.iter().any(names_it) {
            let layout = self.layout()?;
            let permit: Permit<'_> = &|| is_nobodys(layout, folder, &path);
            layout.end(&path, Some(permit))?;
            layout.remove_unused(&path)?;
            unit.map_or(Ok(()), |unit| self.systemd.stop(&unit))?;
        }
        // What is left of the record names nothing that could be undone.
        folder.forget_launch();
        Ok(())
    }

    /// Locks the container; by `force`, ends the process that creates it, and an init that another call waits for.
    fn lock_to_delete(&self, id: &TaskId, folder: &Folder, force: bool) -> Result<Lock> {
        let begun = Instant::now();
        loop {
            if let Owner::Nobody(lock) = folder.owner().map_err(|error| said(error, id))? {
                return Ok(lock);
            }
            if !force || begun.elapsed() > DYING {
                return Err(busy(id));
            }
            if let Ok(Some(record)) = folder.record() {
                let container = Container { id: id.clone(), record, folder: folder.clone() };
                let recorded = container.record.container.as_ref().and_then(|container| container.creator);
                // An edited record may name anybody.
                if let Some(creator) = container.creator()?
                    && recorded.is_some_and(|(pid, _)| is_holder(pid, folder))
                {
                    // ESRCH: it has just ended.
                    let _ = sys::pidfd_send_signal(creator.as_fd(), libc::SIGKILL);
                    await_end(creator.as_fd())?;
                }
                // A `start` goes on once init has ended, whatever hook it waits for.
                if let Ok(Some(init)) = self.init(&container) {
                    self.end_all(&container, &init)?;
                }
            }
            // flock(2) has no timeout.
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }
}

/// Waits until a process that was killed has ended.
pub(super) fn await_end(pidfd: std::os::fd::BorrowedFd<'_>) -> Result<()> {
    let most = Timespec { tv_sec: DYING.as_secs().cast_signed(), tv_nsec: 0 };
    let ended = rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&most)));
    match ended.doing(Kind::Internal, || "cannot wait for a process")? {
        0 => Err(Error::new(Kind::Timeout, format!("a process that was killed has not ended within {DYING:?}"))),
        _ => Ok(()),
    }
}
