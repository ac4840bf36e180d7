//! The end of a task: waiting for it, bringing it about, and removing what is left.
//!
//! ```text
//!   remove ─► shim answers: [force] stop ─┐
//!          ─► ended ──────────────────────┼─► its lock is free ─► Removal ─► folder gone
//!          ─► shim died ──────────────────┤
//!          ─► shim silent: [force] killed ┘
//! ```
//!
//! Without force, a task that runs and whose shim died gets a new one, and is not removed. All of this is about the task
//! that is there at first: it is over once that task is removed, whoever has its name by then.

use std::time::Duration;

use bowline_executor::internal::{PastShim, kill_shim, misplaced, remove_unwritten, undo_rest, until_free};
use bowline_executor::{LeftAlone, undo};
use bowline_model::folder::{Folder, Lock, Owner};
use bowline_model::report::ExitReport;
use bowline_model::{Doing as _, Error, Kind, Result};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use tokio::time::sleep;

use crate::adopt::{find_or_adopt, lock_or_shim};
use crate::errors::{dead, end_not_known, launched_by, removed, starting, unless_removed};
use crate::left_behind::is_held;
use crate::patience::{BETWEEN_POLLS, POLLS, lock_after};
use crate::presence::{Presence, find, pinned};
use crate::shim::{Shim, unwritten};
use crate::spawn::Programs;

/// Waits for the end of the task in `folder`, also if that is past or nobody saw it. A task whose shim died, or dies
/// meanwhile, gets a new one.
///
/// # Errors
/// `NotFound` when there is no such task; `WrongState` while it is being launched.
pub async fn report(folder: &Folder, id: &TaskId, programs: &Programs) -> Result<ExitReport> {
    let folder = &pinned(folder, id).map_err(|error| match error.kind() {
        Kind::NotFound => removed(folder, id),
        _ => error,
    })?;
    loop {
        match find_or_adopt(folder, id, programs).await.map_err(|error| unless_removed(folder, id, error))? {
            Presence::Live(shim) => {
                if let Some(report) = shim.wait().await? {
                    return Ok(report);
                }
            }
            Presence::Exited(report) => return Ok(*report),
            Presence::Dead if may_run(folder) || folder.never_ran() => return Err(dead(folder, id)),
            Presence::Dead => return Ok(folder.report_after_death(folder.record()?.as_ref())),
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
    let folder = &pinned(folder, id)?;
    let stopped = stop_this(folder, id, signal.map(Signal::number), grace, programs).await;
    // Somebody else may remove it at any moment.
    stopped.map_err(|error| unless_removed(folder, id, error))
}

/// Stops the task that is in `folder`, which is pinned; `grace` is in milliseconds.
async fn stop_this(
    folder: &Folder,
    id: &TaskId,
    signal: Option<i32>,
    grace: Option<u64>,
    programs: &Programs,
) -> Result<ExitReport> {
    // Whether it was being launched when it was asked to end: that is what its record cannot tell once it is removed.
    let (mut was_asked, mut until_launched) = (None, 0..4 * POLLS);
    loop {
        let found = match find_or_adopt(folder, id, programs).await {
            // Its launch was given up for this, and has been undone.
            Err(error) if was_asked == Some(true) && error.kind() == Kind::NotFound => return Err(given_up(id)),
            found => found?,
        };
        let mut shim = match found {
            Presence::Live(shim) => shim,
            // The task has already ended.
            Presence::Exited(report) if report.shim_died => return Err(end_not_known(id, &report)),
            Presence::Exited(report) => return Ok(*report),
            Presence::Dead | Presence::Starting if was_asked == Some(true) && never_started(folder) => {
                return Err(given_up(id));
            }
            Presence::Dead => return Err(dead(folder, id)),
            Presence::Starting => return Err(launched_by(folder, id)),
        };
        let in_launch = never_started(folder);
        let asked = shim.stop(signal, grace).await;
        if let Err(error) = &asked
            && error.kind() == Kind::Unavailable
        {
            return Err(error.clone());
        }
        // The shim was not asked to launch the task yet: waiting now would be for the end of a task that nobody has stopped.
        let held = || match is_held(folder) {
            // Its shim has removed it; the journal tells how it ended.
            Err(error) if error.kind() == Kind::NotFound => Ok(false),
            held => held,
        };
        if matches!(&asked, Err(error) if error.kind() == Kind::NotFound) && held()? {
            if until_launched.next().is_none() {
                return Err(launched_by(folder, id));
            }
            sleep(BETWEEN_POLLS).await;
            continue;
        }
        was_asked = was_asked.or(asked.is_ok().then_some(in_launch));
        let waited = shim.wait_answering().await;
        if waited.is_err() && was_asked == Some(true) && never_started(folder) {
            return Err(given_up(id));
        }
        // The task may have ended by itself, and its shim with it, before the request.
        match (waited?, asked) {
            // The next shim is asked too, as this one may not have heard of it; so is one that turned us away.
            (None, _) => {}
            (Some(_), Err(error)) if error.kind() == Kind::Usage => return Err(error),
            (Some(report), _) if report.shim_died => return Err(end_not_known(id, &report)),
            (Some(report), _) => return Ok(report),
        }
    }
}

/// Whether the task's command was not run so far.
fn never_started(folder: &Folder) -> bool {
    matches!(folder.record(), Ok(record) if record.as_ref().is_none_or(|record| record.started_at.is_none()))
}

/// The error of a stop that a launch was given up for.
fn given_up(id: &TaskId) -> Error {
    Error::new(Kind::WrongState, format!("task {id} was stopped while it was being launched"))
        .hint("its command was not run, and there is no exit report")
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
    /// Its shim died, and nobody has its folder; the flag says whether damaged records are removed too.
    Dead(Lock, bool),
    /// Its shim lives and does not answer.
    Silent,
    /// Somebody else has removed it meanwhile.
    Gone,
}

/// What a removal has to tell.
#[derive(Debug, Default)]
pub struct Removed {
    /// What the record of the task names and was not known to be the task's: it is still there. So may be what a poststop
    /// hook that failed should have undone. A sentence each.
    pub left_alone: LeftAlone,
    /// The shim did not answer, and was killed with the task.
    pub past_shim: bool,
    /// Somebody else has removed the task meanwhile.
    pub was_gone: bool,
}

/// Prepares the removal of the task in `folder`. With `force`, a task that runs is killed, a shim that does not answer
/// too, and damaged records are no obstacle.
///
/// # Errors
/// `NotFound` when there is no such task; `WrongState` for one that has not ended, without `force`; why a new shim could
/// not take over one that runs.
pub async fn remove(folder: Folder, id: &TaskId, force: bool, programs: &Programs) -> Result<Removal> {
    let folder = pinned(&folder, id)?;
    if folder.is_sandbox() {
        return Err(Error::new(Kind::WrongState, format!("{id} is a sandbox, and no task"))
            .hint(format!("`bowline sandbox rm {id}` removes it, with -f also while members run")));
    }
    let how = match ended(&folder, id, force, programs).await {
        Err(error) if force && error.kind() == Kind::Unavailable => How::Silent,
        Err(error) if is_gone(&folder, &error) => How::Gone,
        how => how?,
    };
    Ok(Removal { folder, programs: programs.clone(), how })
}

async fn ended(folder: &Folder, id: &TaskId, force: bool, programs: &Programs) -> Result<How> {
    if let Some(misplaced) = misplaced(folder) {
        return match folder.owner()? {
            Owner::Nobody(lock) if force && misplaced.is_copy => Ok(How::Dead(lock, force)),
            _ => Err(misplaced.error),
        };
    }
    let mut until_launched = 0..4 * POLLS;
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
                Ending::Reported(report) if report.unwritten.is_some() => return Ok(How::Unwritten(report)),
                Ending::Reported(_) => break,
                // Whoever has the task now is asked.
                Ending::ShimGone => continue,
                Ending::NotLaunched => {}
            },
            Presence::Live(_) | Presence::Exited(_) => break,
            Presence::Dead => match lock_or_shim(folder, id).await? {
                Some(lock) => return dead_one(folder, id, lock, force),
                // Somebody else has had a new shim take it over.
                None => continue,
            },
            Presence::Starting => {}
        }
        // Whoever starts it asks its shim in a moment.
        if !force || until_launched.next().is_none() {
            return Err(launched_by(folder, id));
        }
        sleep(BETWEEN_POLLS).await;
    }
    // Wait until the shim is done with output and cgroups.
    let lock = lock_after(folder).await?;
    match folder.exit() {
        Ok(Some(_)) => Ok(How::Ended(lock)),
        Err(error) if !force || error.kind() != Kind::Damaged => Err(error),
        Ok(None) | Err(_) => dead_one(folder, id, lock, force),
    }
}

/// How a task is removed that nobody has. Its init may run all the same: no shim can take it over, or its shim lives, and
/// somebody has replaced its lock.
fn dead_one(folder: &Folder, id: &TaskId, lock: Lock, force: bool) -> Result<How> {
    if !force && may_run(folder) {
        return Err(has_not_ended(id));
    }
    Ok(How::Dead(lock, force))
}

fn has_not_ended(id: &TaskId) -> Error {
    Error::new(Kind::WrongState, format!("task {id} has not ended"))
        .hint(format!("stop it with `bowline stop {id}`, or kill and remove it with `bowline rm -f {id}`"))
}

/// Whether this error is that of a task that somebody has removed.
fn is_gone(folder: &Folder, error: &Error) -> bool {
    error.kind() == Kind::NotFound && matches!(folder.exists(), Ok(false))
}

/// Whether a task that its shim should have removed has ended, no shim holds it, and its folder is still there: the next
/// command that cleans up removes it.
pub fn is_overdue(folder: &Folder) -> bool {
    let Ok(Some(record)) = folder.record() else { return false };
    record.remove
        && matches!(folder.owner(), Ok(Owner::Nobody(_)))
        && match folder.exit() {
            Ok(report) => report.is_some() || !record.runs(),
            Err(_) => false,
        }
}

/// Whether something of the task in `folder` may live: see `Record::may_run`.
fn may_run(folder: &Folder) -> bool {
    matches!(folder.record(), Ok(Some(record)) if record.may_run())
}

/// Whether the init that the record in `folder` names lives.
pub fn runs(folder: &Folder) -> bool {
    matches!(folder.record(), Ok(Some(record)) if record.runs())
}

/// What came of ending a task that a shim has.
enum Ending {
    Reported(Box<ExitReport>),
    /// The shim has no report: it died, or the launch was given up.
    ShimGone,
    /// The shim was not asked to launch the task yet, or has given the launch up.
    NotLaunched,
}

/// Ends a running task if `force` allows it.
async fn end(mut shim: Shim, folder: &Folder, id: &TaskId, force: bool) -> Result<Ending> {
    if !force {
        if let Ok(Some(state)) = shim.state().await
            && let Some(report) = unwritten(&state)?
        {
            return Ok(Ending::Reported(Box::new(report)));
        }
        return Err(has_not_ended(id));
    }
    match shim.stop(Some(Signal::KILL.number()), Some(0)).await {
        // The shim runs before it is asked to launch the task. While somebody holds the folder, that request is still
        // to come; otherwise the process that would have sent it was killed.
        Err(error) if error.kind() == Kind::NotFound && folder.exit()?.is_none() => {
            Ok(if is_held(folder)? { Ending::NotLaunched } else { Ending::ShimGone })
        }
        Err(error) if error.kind() == Kind::Unavailable => Err(error),
        // The task may end before the shim gets the request.
        Ok(()) | Err(_) => match shim.wait_answering().await {
            // Its launch was given up: whoever has begun that removes the folder in a moment.
            Err(error) if error.kind() == Kind::WrongState => Ok(Ending::NotLaunched),
            report => Ok(report?.map_or(Ending::ShimGone, |report| Ending::Reported(Box::new(report)))),
        },
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
        let folder = self.folder.clone();
        match self.end() {
            // Somebody else was quicker.
            Err(error) if is_gone(&folder, &error) => Ok(Removed { was_gone: true, ..Removed::default() }),
            removed => removed,
        }
    }

    fn end(self) -> Result<Removed> {
        let Removal { folder, programs, how } = self;
        let left_alone = match how {
            How::Gone => return Ok(Removed { was_gone: true, ..Removed::default() }),
            How::Ended(lock) => remove_ended(&folder, lock, &programs)?,
            How::Unwritten(report) => remove_unwritten(&folder, &report)?,
            How::Dead(lock, force) => clean_up(&folder, lock, force, &programs)?,
            How::Silent => {
                kill_shim(&folder)?;
                // Whoever waits for the task has a new shim take it over, which leaves once the task has ended.
                if let Ok(task) = PastShim::reach(&folder) {
                    let _ = task.stop(Some(Signal::KILL), Some(Duration::ZERO));
                }
                let left_alone = clean_up(&folder, until_free(&folder)?, true, &programs)?;
                return Ok(Removed { left_alone, past_shim: true, was_gone: false });
            }
        };
        Ok(Removed { left_alone, ..Removed::default() })
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
