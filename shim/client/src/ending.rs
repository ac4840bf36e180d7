//! The end of a task: waiting for it, bringing it about, and removing what is left.
//!
//! ```text
//!   remove ─► shim answers: [force] stop ─┐
//!          ─► ended ──────────────────────┼─► its lock is free ─► Removal ─► folder gone
//!          ─► shim died ──────────────────┤
//!          ─► shim silent: [force] killed ┘
//! ```
//!
//! Without force, a task that runs and whose shim died gets a new one, and is not removed.

use std::time::Duration;

use bowline_executor::{
    Doing as _, Error, ExitReport, Folder, Kind, LeftAlone, Lock, Owner, PastShim, Result, died_with_shim, kill_shim,
    remove_unwritten, undo, undo_rest, until_free,
};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;

use crate::adopt::find_or_adopt;
use crate::patience::lock_after;
use crate::shim::{Presence, Shim, dead, end_not_known, find, is_held, starting, unwritten};
use crate::spawn::Programs;

/// Waits for the end of the task in `folder`, also if that is past or nobody saw it. A task whose shim died, or dies
/// meanwhile, gets a new one.
///
/// # Errors
/// `NotFound` when there is no such task; `WrongState` while it is being launched.
pub async fn report(folder: &Folder, id: &TaskId, programs: &Programs) -> Result<ExitReport> {
    loop {
        match find_or_adopt(folder, id, programs).await? {
            Presence::Live(shim) => {
                if let Some(report) = shim.wait().await? {
                    return Ok(report);
                }
            }
            Presence::Exited(report) => return Ok(*report),
            Presence::Dead => return Ok(died_with_shim(folder.record()?.as_ref())),
            Presence::Starting => return Err(starting(id)),
        }
    }
}

/// Stops the task in `folder` and waits for its end; an absent value is the description's.
///
/// # Errors
/// `Unavailable` when its shim does not answer; `WrongState` when nobody knows how it ended, as its shim died.
pub async fn stop(
    folder: &Folder,
    id: &TaskId,
    signal: Option<Signal>,
    grace: Option<Duration>,
    programs: &Programs,
) -> Result<ExitReport> {
    let grace = grace.map(|grace| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
    loop {
        let mut shim = match find_or_adopt(folder, id, programs).await? {
            Presence::Live(shim) => shim,
            // The task has already ended.
            Presence::Exited(report) if report.shim_died => return Err(end_not_known(id, &report)),
            Presence::Exited(report) => return Ok(*report),
            Presence::Dead => return Err(dead(id)),
            Presence::Starting => return Err(starting(id)),
        };
        let asked = shim.stop(signal.map(Signal::number), grace).await;
        if let Err(error) = &asked
            && error.kind() == Kind::Unavailable
        {
            return Err(error.clone());
        }
        // The task may have ended by itself, and its shim with it, before the request.
        match (shim.wait_answering().await?, asked) {
            // The next shim is asked too, as this one may not have heard of it; so is one that turned us away.
            (None, _) => {}
            (Some(_), Err(error)) if error.kind() == Kind::Usage => return Err(error),
            (Some(report), _) if report.shim_died => return Err(end_not_known(id, &report)),
            (Some(report), _) => return Ok(report),
        }
    }
}

/// The rest of a removal, once no shim is needed for it any more.
pub struct Removal {
    folder: Folder,
    programs: Programs,
    how: How,
}

enum How {
    /// The task has ended and nobody has its folder.
    Ended(Lock),
    /// The task has ended, and its shim cannot write this report.
    Unwritten(Box<ExitReport>),
    /// Its shim died; the flag says whether damaged records are removed too.
    Dead(bool),
    /// Its shim lives and does not answer.
    Silent,
}

/// What a removal has to tell.
#[derive(Debug, Default)]
pub struct Removed {
    /// What the record of the task names and was not known to be the task's: it is still there. So may be what a poststop
    /// hook that failed should have undone. A sentence each.
    pub left_alone: LeftAlone,
    /// The shim did not answer, and was killed with the task.
    pub past_shim: bool,
}

/// Prepares the removal of the task in `folder`. With `force`, a task that runs is killed, a shim that does not answer
/// too, and damaged records are no obstacle.
///
/// # Errors
/// `NotFound` when there is no such task; `WrongState` for one that has not ended, without `force`; why a new shim could
/// not take over one that runs.
pub async fn remove(folder: Folder, id: &TaskId, force: bool, programs: &Programs) -> Result<Removal> {
    let how = match ended(&folder, id, force, programs).await {
        Err(error) if force && error.kind() == Kind::Unavailable => How::Silent,
        how => how?,
    };
    Ok(Removal { folder, programs: programs.clone(), how })
}

async fn ended(folder: &Folder, id: &TaskId, force: bool, programs: &Programs) -> Result<How> {
    loop {
        let found = match find(folder, id).await {
            // No shim answers, and its records cannot be read.
            Err(error) if force && error.kind() == Kind::Damaged => Presence::Dead,
            Ok(Presence::Dead) if !force && runs(folder) => find_or_adopt(folder, id, programs).await?,
            found => found?,
        };
        match found {
            // A task whose folder is not held has ended, as its report is written before anybody hears of its end. Or it
            // is a member whose starter was killed: the sandbox's shim knows nothing of it.
            Presence::Live(shim) if is_held(folder)? => match end(shim, folder, id, force).await? {
                Some(report) if report.unwritten.is_some() => return Ok(How::Unwritten(Box::new(report))),
                Some(_) => break,
                // Whoever has the task now is asked.
                None => {}
            },
            Presence::Live(_) | Presence::Exited(_) => break,
            Presence::Dead => return Ok(How::Dead(force)),
            Presence::Starting => return Err(starting(id)),
        }
    }
    // Wait until the shim is done with output and cgroups.
    let lock = lock_after(folder).await?;
    match folder.exit() {
        Ok(Some(_)) => Ok(How::Ended(lock)),
        Err(error) if !force || error.kind() != Kind::Damaged => Err(error),
        Ok(None) | Err(_) => Ok(How::Dead(force)),
    }
}

/// Whether the init that the record in `folder` names lives.
pub fn runs(folder: &Folder) -> bool {
    matches!(folder.record(), Ok(Some(record)) if record.runs())
}

/// Ends a running task if `force` allows it. Returns its report; `None` where the shim has none, as it died or the task's
/// launch was given up.
async fn end(mut shim: Shim, folder: &Folder, id: &TaskId, force: bool) -> Result<Option<ExitReport>> {
    if !force {
        if let Ok(Some(state)) = shim.state().await
            && let Some(report) = unwritten(&state)?
        {
            return Ok(Some(report));
        }
        return Err(Error::new(Kind::WrongState, format!("task {id} has not ended"))
            .hint(format!("stop it with `bowline stop {id}`, or kill and remove it with `bowline rm -f {id}`")));
    }
    match shim.stop(Some(Signal::KILL.number()), Some(0)).await {
        // The shim runs before it is asked to launch the task. While somebody holds the folder, that request is still
        // to come; otherwise the process that would have sent it was killed.
        Err(error) if error.kind() == Kind::NotFound && folder.exit()?.is_none() => {
            if is_held(folder)? {
                Err(starting(id))
            } else {
                Ok(None)
            }
        }
        Err(error) if error.kind() == Kind::Unavailable => Err(error),
        // The task may end before the shim gets the request.
        Ok(()) | Err(_) => shim.wait_answering().await,
    }
}

impl Removal {
    /// Like [`Removal::carry_out`], in a thread for work that blocks: the event loop goes on meanwhile.
    pub async fn carry_out_aside(self) -> Result<Removed> {
        let removed = tokio::task::spawn_blocking(move || self.carry_out()).await;
        removed.doing(Kind::Internal, || "cannot remove the task")?
    }

    /// Ends what is left, and removes the folder. Blocks until it is gone.
    ///
    /// # Errors
    /// What cannot be ended or removed.
    pub fn carry_out(self) -> Result<Removed> {
        let Removal { folder, programs, how } = self;
        let left_alone = match how {
            How::Ended(lock) => remove_ended(&folder, lock, &programs)?,
            How::Unwritten(report) => remove_unwritten(&folder, &report)?,
            How::Dead(force) => clean_up(&folder, unheld(&folder)?, force, &programs)?,
            How::Silent => {
                kill_shim(&folder)?;
                // Whoever waits for the task has a new shim take it over, which leaves once the task has ended.
                if let Ok(task) = PastShim::reach(&folder) {
                    let _ = task.stop(Some(Signal::KILL), Some(Duration::ZERO));
                }
                let left_alone = clean_up(&folder, until_free(&folder)?, true, &programs)?;
                return Ok(Removed { left_alone, past_shim: true });
            }
        };
        Ok(Removed { left_alone, past_shim: false })
    }
}

/// Removes a task whose report is written, and what its shim left if that died afterwards. Blocks.
///
/// # Errors
/// What cannot be ended or removed.
pub fn remove_ended(folder: &Folder, lock: Lock, programs: &Programs) -> Result<LeftAlone> {
    let alone = undo_rest(folder, || programs.systemd())?;
    folder.remove(lock)?;
    Ok(alone)
}

/// Removes what a dead shim has left. If its records are damaged, `force` is needed.
fn clean_up(folder: &Folder, lock: Lock, force: bool, programs: &Programs) -> Result<LeftAlone> {
    if !force {
        folder.record()?;
        folder.exit()?;
    }
    let alone = undo(folder, &programs.systemd()?)?;
    folder.remove(lock)?;
    Ok(alone)
}

/// The lock of a folder that nobody holds.
fn unheld(folder: &Folder) -> Result<Lock> {
    match folder.owner()? {
        Owner::Nobody(lock) => Ok(lock),
        Owner::Shim => Err(Error::new(Kind::WrongState, format!("{} is in use", folder.path().display()))
            .hint("somebody else is launching or removing this task; try again in a moment")),
    }
}
