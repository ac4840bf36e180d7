//! `sandbox rm`: removes the members, then the sandbox, then their records.

use bowline_executor::internal::{
    Undone, check_none_in_sandbox, give_up_damaged_networks, kill_shim, misplaced, remove_folder, undo_sandbox,
    until_free,
};
use bowline_model::folder::{Folder, Lock, Owner, StateDir};
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::id::TaskId;

use crate::commands::rm::say_left_alone;
use crate::input::each_task::settle;
use crate::ui::print::complain;
use bowline_client::patience::{BETWEEN_POLLS, POLLS, lock_after};
use bowline_client::spawn::{self, Programs};
use bowline_client::{Presence, find_or_adopt, runs};

/// Runs `bowline sandbox rm`. With `force`, a sandbox that does not exist is no error.
pub async fn run(state: &StateDir, ids: &[TaskId], force: bool) -> Result<u8> {
    let mut code = None;
    for id in ids {
        match remove(state, id, force).await {
            Err(error) if force && error.kind() == Kind::NotFound => {}
            done => settle(done, &mut code),
        }
    }
    Ok(code.unwrap_or(0))
}

/// Removes the sandbox that a new one of its name replaces.
///
/// # Errors
/// `Usage` without a name.
pub async fn replaced(state: &StateDir, id: Option<&TaskId>) -> Result<()> {
    let id = id.ok_or_else(|| {
        Error::new(Kind::Usage, "--replace: the sandbox has no name").hint("name it by --name, or in its description")
    })?;
    match remove(state, id, true).await {
        Err(error) if error.kind() == Kind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes one sandbox; with `force`, kills its members first.
pub async fn remove(state: &StateDir, id: &TaskId, force: bool) -> Result<()> {
    let folder = bowline_client::sandbox::folder(state, id)?;
    let folder = folder.pinned().map_err(|_| bowline_client::sandbox::unknown(id))?;
    remove_in(state, &folder, id, force).await
}

/// Removes the sandbox that is in this folder, which is pinned; nothing where somebody else has.
pub async fn remove_in(state: &StateDir, folder: &Folder, id: &TaskId, force: bool) -> Result<()> {
    match remove_this(state, folder, id, force).await {
        // Somebody else was quicker.
        Err(error) if error.kind() == Kind::NotFound && matches!(folder.exists(), Ok(false)) => Ok(()),
        removed => removed,
    }
}

/// Removes the sandbox that is in this folder, which is pinned: a later one of the same name is left alone.
async fn remove_this(state: &StateDir, folder: &Folder, id: &TaskId, force: bool) -> Result<()> {
    // A shim that has the folder itself would remove the sandbox of the other name.
    if let Some(misplaced) = misplaced(folder)
        && !(force && misplaced.is_copy && matches!(folder.owner()?, Owner::Nobody(_)))
    {
        return Err(misplaced.error);
    }
    let moved = match remove_by_shim(state, folder, id, force).await {
        Err(error) if force && error.kind() == Kind::Unavailable => {
            let of = folder.clone();
            let killed = tokio::task::spawn_blocking(move || kill_shim(&of)).await;
            killed.doing(Kind::Internal, || "cannot end the shim")??;
            complain(&format!("the shim of sandbox {id} was not answering: it was killed with the members"), None);
            // Whoever waits for a member may have had a new shim take the sandbox over.
            remove_by_shim(state, folder, id, force).await?
        }
        done => done?,
    };
    tell_moved(id, &moved);
    let lock = lock_after(folder).await?;
    let (state, id, folder) = (state.clone(), id.clone(), folder.clone());
    let done = tokio::task::spawn_blocking(move || forget(&state, &id, &folder, lock, force));
    done.await.doing(Kind::Internal, || "cannot remove the sandbox")?
}

/// Reports on stderr which helpers of the sandbox live on.
fn tell_moved(id: &TaskId, pids: &[i32]) {
    for pid in pids {
        complain(&format!("process {pid}, which was charged to sandbox {id}, is in the root cgroup now"), None);
    }
}

/// Asks the sandbox's shim to take the sandbox down, if the shim lives; without force, a sandbox whose members run gets a
/// new one. Returns the helpers that live on.
async fn remove_by_shim(state: &StateDir, folder: &Folder, id: &TaskId, force: bool) -> Result<Vec<i32>> {
    let (mut until_made, mut until_removed) = (0..POLLS, 0..20 * POLLS);
    loop {
        let found = match bowline_client::find(folder, id).await {
            Err(error) if force && error.kind() == Kind::Damaged => Presence::Dead,
            Ok(Presence::Dead) if !force && state.members(id)?.iter().any(|member| runs(&state.folder(member))) => {
                find_or_adopt(folder, id, &Programs::default()).await?
            }
            found => found?,
        };
        match found {
            Presence::Live(mut shim) => {
                match shim.remove_sandbox(force).await {
                    // Somebody else removes it already.
                    Err(error) if force && error.kind() == Kind::WrongState && until_removed.next().is_some() => {
                        tokio::time::sleep(BETWEEN_POLLS).await;
                    }
                    removed => {
                        if let Some(moved) = removed? {
                            return Ok(moved);
                        }
                    }
                }
            }
            // Its shim listens in a moment.
            Presence::Starting if force && until_made.next().is_some() => tokio::time::sleep(BETWEEN_POLLS).await,
            Presence::Starting => return Err(bowline_client::sandbox::starting(id)),
            Presence::Dead | Presence::Exited(_) => return Ok(Vec::new()),
        }
    }
}

/// Checks that a member of a sandbox without a shim has ended, as far as its record tells.
fn check_ended(folder: &Folder, sandbox: &TaskId, member: &TaskId) -> Result<()> {
    match folder.record() {
        Ok(Some(record)) if record.runs() => {
            Err(Error::new(Kind::WrongState, format!("member {member} of sandbox {sandbox} has not ended"))
                .hint(format!("`bowline sandbox rm -f {sandbox}` ends and removes all members")))
        }
        record => record.map(drop),
    }
}

/// Removes the records of the sandbox and its members once the shim is gone, and what a dead shim has left.
fn forget(state: &StateDir, id: &TaskId, folder: &Folder, lock: Lock, force: bool) -> Result<()> {
    if force {
        if let Some(given_up) = give_up_damaged_networks(folder)? {
            complain(
                &given_up,
                Some("look for its id where they keep that: host-local has it below /var/lib/cni/networks"),
            );
        }
    } else {
        folder.sandbox()?;
        state.members(id)?.iter().try_for_each(|member| check_ended(&state.folder(member), id, member))?;
        check_none_in_sandbox(folder, id)?;
    }
    let Undone { moved, mut alone } = undo_sandbox(state, id, &spawn::systemd()?)?;
    tell_moved(id, &moved);
    for member in state.members(id)? {
        let folder = state.folder(&member).pinned();
        // Without the sandbox's shim, any process that launches or removes a member is about to exit.
        match folder.and_then(|folder| Ok((until_free(&folder)?, folder))) {
            Ok((lock, folder)) => alone.extend(remove_folder(&folder, &lock)?),
            // Somebody else removed it first.
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => return Err(error.within(format_args!("member {member}"))),
        }
    }
    folder.remove(lock)?;
    say_left_alone(&alone);
    Ok(())
}
