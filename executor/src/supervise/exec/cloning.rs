//! Where an exec is cloned into, and how what it starts is told apart from what others do.
//!
//! ```text
//!   it has a deadline ─► a cgroup of its own ─► none can be had ─► the task's ─► that takes no process ─► init's
//!   its caller's end ends it ─► the task's, with a cgroup namespace of its own ─► a cgroup of its own ─┘
//! ```

use std::os::fd::{AsFd, OwnedFd};

use bowline_cgroup::{Cgroup, Entry};
use bowline_error::{Error, Kind, Result};
use bowline_model::clock::Moment;
use bowline_spec::capability::Capability;
use bowline_spec::{Seccomp, Task as Description};
use bowline_sys::{self as sys, SharedPid};
use oci_spec::runtime::{Capability as Right, Process};

use crate::output::io::Stdio;
use crate::start::cloning::Report;
use crate::start::exec_launch;
use crate::supervise::supervisor::Supervisor;
use crate::supervise::task::Task;
use crate::view::rootfs;

impl Supervisor {
    /// Clones the exec into the first cgroup that accepts it: its own group, the task's cgroup, or the cgroup below
    /// that holds the task's init. Returns its pid, and whether it is in its own group.
    pub(super) async fn clone_exec(
        &self,
        task: &Task,
        process: &Process,
        stdio: &Stdio,
        number: u64,
    ) -> Result<(Report, i32, bool)> {
        let (has_group, ends_with_caller) = task.facts.read(|facts| {
            facts.execs.get(&number).map_or((false, false), |exec| (exec.group.is_some(), exec.ends_with_caller))
        });
        if has_group && let Some((report, pid)) = clone_into_group(task, process, stdio, number).await? {
            return Ok((report, pid, true));
        }
        let entry = task.with_cgroup(Cgroup::entry)?;
        let is_apart = ends_with_caller && task.tells_execs_apart();
        if let Some((report, pid)) = clone_into(task, process, stdio, entry, number, is_apart).await? {
            return Ok((report, pid, false));
        }
        // The task has moved its processes down a level, and controllers with them, so its own cgroup accepts no
        // process any more (cgroup-v2, "no internal processes"). A cgroup namespace made there has another root.
        if is_apart
            && !has_group
            && self.give_group(task, number)
            && let Some((report, pid)) = clone_into_group(task, process, stdio, number).await?
        {
            return Ok((report, pid, true));
        }
        let init = task.pid().ok_or_else(|| gone(task))?;
        let below = task.with_cgroup(|c| self.layout.below_of(c, init))??;
        let entry = task.with_cgroup(|c| below.entry(c))?;
        let cloned = clone_into(task, process, stdio, entry, number, false).await?;
        let (report, pid) = cloned.ok_or_else(|| {
            let message = format!("neither the cgroup of task {} nor that of its init takes a process", task.id);
            Error::new(Kind::WrongState, message).hint("it changes its cgroups just now, or has made them threaded")
        })?;
        Ok((report, pid, false))
    }

    /// Gives an exec without a deadline a cgroup; returns whether it has one now.
    fn give_group(&self, task: &Task, number: u64) -> bool {
        let Some(group) = self.exec_group(task, None) else { return false };
        task.facts.update(|facts| facts.execs.get_mut(&number).map(|exec| exec.group = Some(group.number())));
        task.handles.borrow_mut().execs.get_mut(&number).map(|exec| exec.group = Some(group)).is_some()
    }
}

/// Like [`clone_into`], into the exec's own group.
async fn clone_into_group(task: &Task, process: &Process, stdio: &Stdio, number: u64) -> Result<Option<(Report, i32)>> {
    let entry = {
        let handles = task.handles.borrow();
        let group = handles.execs.get(&number).and_then(|exec| exec.group.as_ref());
        group.map(|group| task.with_cgroup(|c| group.entry(c))).transpose()?
    };
    let Some(entry) = entry else { return Ok(None) };
    let cloned = clone_into(task, process, stdio, entry, number, false).await?;
    if cloned.is_none() {
        tracing::info!("an exec has no cgroup of its own; what kills it kills its session");
    }
    Ok(cloned)
}

impl Task {
    /// Whether an exec can have a cgroup namespace of its own that shows what the task's does, and that it cannot leave: the
    /// default filter refuses new ones to whoever lacks CAP_SYS_ADMIN.
    pub(super) fn tells_execs_apart(&self) -> bool {
        let stays = |task: &Description| {
            let is_filtered = matches!(task.seccomp(), Seccomp::Default | Seccomp::Native) && task.bundle.is_none();
            is_filtered && !task.capabilities.allowed().contains(&Capability::of_oci(&Right::SysAdmin))
        };
        let stays = || self.facts.read(|facts| facts.record.description().is_ok_and(stays));
        self.namespaces.is_new(libc::CLONE_NEWCGROUP) && stays()
    }

    /// Opens the null device for an exec's streams that lead nowhere. Each exec gets a new one from a tree that the
    /// shim keeps, because the task may have replaced its own. `None` if the exec's worker has to make it.
    fn null(&self) -> Result<Option<OwnedFd>> {
        let null = &mut self.handles.borrow_mut().null;
        if null.is_none() && sys::has_mount_fds() {
            *null = Some(rootfs::null_apart()?);
        }
        null.as_ref().map(rootfs::Null::open).transpose()
    }
}

/// Clones the exec into a cgroup, where it `is_apart` with a cgroup namespace of its own. Returns its pid, or `None` if the
/// cgroup accepts no process.
async fn clone_into(
    task: &Task,
    process: &Process,
    stdio: &Stdio,
    entry: Entry,
    number: u64,
    is_apart: bool,
) -> Result<Option<(Report, i32)>> {
    let null = if stdio.wants_null() { task.null()? } else { None };
    let null = null.as_ref().map(AsFd::as_fd);
    let mut report = {
        let handles = task.handles.borrow();
        let init = handles.init.as_ref().ok_or_else(|| gone(task))?;
        let filter = task.filter.as_ref();
        let Task { id, spec, namespaces, .. } = task;
        let (id, bundle) = (id.as_str(), &*task.bundle());
        let keeps_keyring = task.facts.read(|facts| facts.particulars.keeps_keyring);
        let exec = exec_launch::Exec {
            process,
            id,
            bundle,
            spec,
            filter,
            stdio,
            null,
            entry,
            namespaces,
            entrance: &handles.entrance,
            init,
            is_apart,
            keeps_keyring,
            preserved: 0,
        };
        let slots = handles.exec_slots.as_ref();
        exec.clone_exec(slots.map_or_else(SharedPid::new, |slots| slots.pid_of(number)))?
    };
    let deadline = task.facts.read(|facts| facts.execs.get(&number)?.deadline);
    let give_up = async {
        // Without a deadline, wait until the task has ended.
        before(deadline, task.facts.until_it(|facts| facts.life.is_reaped())).await;
    };
    Ok(report.cloned(give_up).await?.map(|pid| (report, pid)))
}

/// The error for a task whose init has ended.
pub(crate) fn gone(task: &Task) -> Error {
    Error::new(Kind::WrongState, format!("task {} has exited", task.id))
}

/// The output of `future`, or `None` if there is a deadline and it passes first.
pub(super) async fn before<T>(deadline: Option<Moment>, future: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout(deadline.to_come(), future).await.ok(),
        None => Some(future.await),
    }
}
