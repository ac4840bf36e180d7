//! Signals a task whose shim is alive but does not answer.
//!
//! ```text
//!   record ─► cgroup, by its identity ─► init, by a pidfd of a member that started then ─► signal, [grace], kill
//!   record ─► shim, by a pidfd of a process that has the folder's lock ─► kill
//! ```
//!
//! The shim stays the parent: it reports an exit that it has not reaped when it goes on. Blocks.
//! Must not: signal a process that only the record names.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bowline_cgroup::{self as cgroup, Cgroup, Layout, has_ended};
use bowline_error::{Doing as _, Error, Kind, Result};
use bowline_model::folder::{Folder, Lock, Owner, Record};
use bowline_spec::signal::Signal;
use bowline_sys::{self as sys, proc_stat};

use crate::hostside::owners::{holder, is_holder, kept};
use crate::hostside::undo::{cgroups_of, overheads_of};
use crate::hostside::undo_sandbox;

/// How long a killed shim may take to end: what it waits for in the kernel, such as a slow disk, comes first.
const ENDED: Duration = Duration::from_secs(10);

/// A task, reached through its cgroup.
pub struct PastShim {
    layout: Layout,
    record: Record,
    /// `None` once the cgroup was removed: nothing of the task lives.
    cgroup: Option<Cgroup>,
}

impl PastShim {
    /// The task in `folder`.
    ///
    /// # Errors
    /// `WrongState` while the task is being launched, where the cgroup of its record is not known to be its own, and where
    /// its processes cannot be seen from here.
    pub fn reach(folder: &Folder) -> Result<PastShim> {
        let id = folder.name();
        let launching = || Error::new(Kind::WrongState, format!("task {id} is still being launched"));
        let record = folder.record()?.ok_or_else(launching)?;
        let what = || format!("cannot reach task {id} past its shim");
        record.check_namespace(what)?;
        let layout = cgroup::detect()?;
        record.check_seen(&layout, what)?;
        let (own, alone) = cgroups_of(&layout, folder, &record);
        if !own.contains(&record.cgroup) {
            let why = alone.join("; ");
            return Err(Error::new(Kind::WrongState, format!("{}: {why}", what())));
        }
        let cgroup = layout.open(&record.cgroup)?;
        Ok(PastShim { layout, record, cgroup })
    }

    /// Sends `signal` to init; SIGKILL goes to the whole task, as its shim would send it. `None` only checks that init
    /// lives.
    ///
    /// # Errors
    /// `WrongState` when init has ended, or the process that the record names is
    /// not in the task's cgroup; `Internal` naming the processes that live on.
    pub fn signal(&self, signal: Option<Signal>) -> Result<()> {
        let ended = || Error::new(Kind::WrongState, "no process of the task's cgroup is its init: that has ended");
        let init = self.init().ok_or_else(ended)?;
        let Some(signal) = signal else { return Ok(()) };
        sys::pidfd_send_signal(init.as_fd(), signal.number()).doing(Kind::WrongState, || "cannot signal init")?;
        match &self.cgroup {
            // Even SIGKILL has no effect on a frozen process.
            Some(cgroup) if signal == Signal::KILL => self.layout.kill_all(cgroup, None),
            _ => Ok(()),
        }
    }

    /// Stops the task: sends `signal` to init, and after `grace` SIGKILL to all that is left.
    /// Absent values come from the description.
    ///
    /// # Errors
    /// `Internal` naming the processes that live on.
    pub fn stop(&self, signal: Option<Signal>, grace: Option<Duration>) -> Result<()> {
        let described = self.record.task.as_ref().map(|task| &task.stop);
        let signal = signal.or(described.map(|stop| stop.signal())).unwrap_or(Signal::TERM);
        let grace = grace.or(described.map(|stop| stop.grace())).unwrap_or_default();
        let Some(cgroup) = &self.cgroup else { return Ok(()) };
        if let Some(init) = self.init().filter(|_| !grace.is_zero()) {
            // The task may be paused. ESRCH: it has just ended.
            let _ = self.layout.freeze(cgroup, false);
            let _ = sys::pidfd_send_signal(init.as_fd(), signal.number());
            has_ended(&init, grace);
        }
        self.layout.kill_all(cgroup, None)
    }

    fn init(&self) -> Option<OwnedFd> {
        let pid = self.record.pid?;
        let init = self.layout.member(self.cgroup.as_ref()?, pid)?;
        // Checked after the pidfd was opened: a process that has both the pid and the start time now had them then.
        let is_init = self.record.pid_started.is_none_or(|started| proc_stat::started(pid) == Some(started));
        is_init.then_some(init)
    }
}

/// Kills the shim that owns this folder, and waits until it has ended.
///
/// # Errors
/// `WrongState` where the shim is a sandbox's, or the process of the record is not known to be the
/// shim; `Internal` when the shim does not end.
pub fn kill_shim(folder: &Folder) -> Result<()> {
    let id = folder.name();
    let what = || format!("cannot kill the shim of {id}");
    // Without its record nothing tells whether it is the shim that has the lock.
    let kept = |error: Error| match holder(folder, None).filter(|_| error.kind() == Kind::Damaged) {
        Some(pid) => kept(&format!("{}: {} is in use", error.message(), folder.path().display()), pid),
        None => error,
    };
    let sandbox = folder.sandbox().map_err(kept)?;
    let task = folder.record().map_err(kept)?;
    let overhead = task.as_ref().and_then(|task| task.overhead.clone());
    let pid = match (&sandbox, task) {
        (Some(record), _) => record.shim_pid,
        (None, Some(Record { sandbox: Some(sandbox), .. })) => {
            let refused = |why: &str| {
                Error::new(Kind::WrongState, format!("task {id} is a member of sandbox {sandbox}, whose {why}"))
            };
            let is_there = folder.path().with_file_name(sandbox.as_str()).exists();
            return Err(match is_there {
                true => refused("shim is not answering")
                    .hint(format!("`bowline sandbox rm -f {sandbox}` ends the sandbox with all its members")),
                false => refused("folder is gone or has another name")
                    .hint("`bowline sandbox ls` may list it: rename it back while it runs"),
            });
        }
        (None, record) => record.map(|record| record.shim_pid),
    };
    let unknown = |why: &str| {
        Error::new(Kind::WrongState, format!("{}: {why}", what()))
            .hint("look for it with `pgrep -af bowline-shim`, and kill it yourself")
    };
    let pid = pid.ok_or_else(|| unknown("nothing is recorded of it"))?;
    let Ok(pidfd) = sys::pidfd_open(pid) else { return Ok(()) };
    if !is_holder(pid, folder) {
        return Err(unknown(&format!(
            "process {pid} of its record does not have the lock of {}",
            folder.path().display()
        )));
    }
    // ESRCH: the shim has just ended.
    let _ = sys::pidfd_send_signal(pidfd.as_fd(), libc::SIGKILL);
    // On v1 a frozen process does not die.
    let layout = cgroup::detect()?;
    let above = sandbox.as_ref().and_then(|record| undo_sandbox::cgroups(record, &layout, folder).0[0].cloned());
    let mark = folder.mark();
    let own = overheads_of(&id, &mark).into_iter().chain([cgroup::of_sandbox(&format!("{id}{mark}"))]);
    for path in own.chain(overhead).chain(above) {
        if let Ok(Some(cgroup)) = layout.open(&path) {
            let _ = layout.freeze(&cgroup, false);
        }
    }
    let pidfd = [pidfd];
    layout.free(&pidfd);
    if has_ended(&pidfd[0], ENDED) {
        return Ok(());
    }
    Err(Error::new(Kind::Internal, format!("{}: process {pid} did not end within {ENDED:?}", what()))
        .hint("a process ends when what it waits for in the kernel is done, or a frozen cgroup is thawed"))
}

/// What keeps the init of this record frozen, if anything does.
pub fn frozen_by(record: &Record) -> Option<PathBuf> {
    let (pid, _) = record.pid.zip(record.pid_started).filter(|(pid, at)| proc_stat::started(*pid) == Some(*at))?;
    cgroup::detect().ok()?.frozen_by(pid)
}

/// Whether the process is frozen with its cgroup on v1, where a frozen process looks like one that waits for a disk.
pub fn is_frozen(pid: i32) -> bool {
    cgroup::detect().is_ok_and(|layout| layout.freezes(pid))
}

/// Waits until nobody holds the folder; workers of a killed shim hold it for a moment longer.
pub fn until_free(folder: &Folder) -> Result<Lock> {
    let begun = Instant::now();
    let mut wait = Duration::from_millis(1);
    loop {
        if let Owner::Nobody(lock) = folder.owner()? {
            return Ok(lock);
        }
        if begun.elapsed() > ENDED {
            let what = format!("{} is in use", folder.path().display());
            let unknown = || {
                Error::new(Kind::WrongState, &*what)
                    .hint("somebody else is launching or removing this task; try again in a moment")
            };
            return Err(holder(folder, None).map_or_else(unknown, |pid| kept(&what, pid)));
        }
        std::thread::sleep(wait);
        wait = (wait * 2).min(Duration::from_millis(50));
    }
}
