//! Starts a new shim for a task whose shim died; for a member of a sandbox, that of the sandbox with all members.
//!
//! ```text
//!   dead ─► its lock is ours ─► shim that takes the task over ─► answers
//!      └──► somebody else has it: their shim is found
//! ```

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use bowline_executor::ShimCgroup;
use bowline_executor::internal::misplaced;
use bowline_model::folder::{EventCounts, Owner};
use bowline_model::folder::{Folder, Lock, StateDir};
use bowline_model::liveness::OTHER_CGROUPS;
use bowline_model::{Doing as _, Error, Kind, Result};
use bowline_protocol::wire::proto::bowline::Empty;
use bowline_spec::id::TaskId;
use rustix::thread::{CapabilitySet, capabilities};
use tokio::time::sleep;

use crate::children;
use crate::connection::{connect, patient};
use crate::errors::{dead, exited, starting};
use crate::patience::{Patience, kept_or_silent, silent};
use crate::presence::{Presence, find, pinned};
use crate::shim::Shim;
use crate::spawn::{Begin, Programs, spawn_from};

/// The time until what will be over at once is looked at again, and the time from which on patience is lost.
const FIRST_WAIT: Duration = Duration::from_micros(200);
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// How many new shims are started for a caller, where somebody kills each.
const MOST: usize = 20;

/// Who answers for the task in `folder`: a new shim, where its shim died and the task can be taken over.
///
/// # Errors
/// As [`find`]; `Damaged` for the record of a task whose shim died; why a new shim could not take the task over.
pub async fn find_or_adopt(folder: &Folder, id: &str, programs: &Programs) -> Result<Presence> {
    let seen = pinned(folder, id)?;
    for _ in 0..MOST {
        // It may be one that we have started.
        children::collect();
        match found(find(folder, id).await, &seen)? {
            Presence::Dead => match adopt(&seen, id, programs).await {
                Ok(true) => {}
                Ok(false) => return Ok(Presence::Dead),
                Err(error) => return found(Err(error), &seen),
            },
            found => return Ok(found),
        }
    }
    found(find(folder, id).await, &seen)
}

/// What was found of the task that was `seen`: its shim may have removed it since.
fn found(found: Result<Presence>, seen: &Folder) -> Result<Presence> {
    match found {
        Err(error) if error.kind() == Kind::NotFound && matches!(seen.exists(), Ok(false)) => {
            seen.removed_report().map(|report| Presence::Exited(Box::new(report))).ok_or(error)
        }
        found => found,
    }
}

/// Connects to the shim of the running task in `folder`; to a new one if that died.
///
/// # Errors
/// As [`find_or_adopt`]; `WrongState` when the task has ended, cannot be taken over, or is still being launched.
pub async fn live(folder: &Folder, id: &str, programs: &Programs) -> Result<Shim> {
    match find_or_adopt(folder, id, programs).await? {
        Presence::Live(shim) => Ok(shim),
        Presence::Exited(_) => Err(exited(id)),
        Presence::Dead => Err(dead(folder, id)),
        Presence::Starting => Err(starting(id)),
    }
}

/// Has a new shim take over the task or the sandbox in `folder`, whose shim died. Returns whether there may be one now,
/// from whomever: else it cannot be taken over.
///
/// # Errors
/// `Damaged` for records that cannot be read; `Internal` when the new shim fails, or would be no good from here: the task
/// runs on untouched then.
pub async fn adopt(folder: &Folder, id: &str, programs: &Programs) -> Result<bool> {
    let Some(Orphan { folder, shim_cgroup, events, is_named_elsewhere }) = orphan(folder)? else { return Ok(false) };
    if let Some(misplaced) = misplaced(&folder) {
        return Err(misplaced.error);
    }
    if !rustix::process::geteuid().is_root() {
        return Ok(false);
    }
    if is_named_elsewhere {
        return Err(refused(&folder, &Error::new(Kind::Unsupported, OTHER_CGROUPS)));
    }
    if lacks_rights() {
        let lacks = Error::new(Kind::Unsupported, "without CAP_SYS_ADMIN it could run no command in it");
        return Err(refused(&folder, &lacks.hint("run the command as root with all capabilities")));
    }
    let Some(lock) = lock_or_shim(&folder, id).await? else { return Ok(true) };
    if folder.exit()?.is_some() {
        // Somebody else has taken it over, and it has ended.
        return Ok(true);
    }
    let (ours, its) = UnixStream::pair().doing(Kind::Internal, || "cannot make a socket for a new shim")?;
    let child = spawn_from(&programs.shim()?, &folder, lock, &shim_cgroup, Begin::Adopting(events, its))?;
    match answers(&folder, child, ours).await {
        // It has ended the hooks that a launch was cut off in.
        Err(_) if folder.never_ran() => Ok(false),
        answered => answered.map(|()| true),
    }
}

/// Whether a launch would fail too: it makes namespaces and mounts.
fn lacks_rights() -> bool {
    capabilities(None).is_ok_and(|own| !own.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// What a new shim is started for.
struct Orphan {
    folder: Folder,
    shim_cgroup: ShimCgroup,
    events: EventCounts,
    /// Whether its cgroup is named in another cgroup namespace than this process's.
    is_named_elsewhere: bool,
}

/// The task or the sandbox that is in `folder`, or that has it as a member; `None` where it cannot be taken over.
fn orphan(folder: &Folder) -> Result<Option<Orphan>> {
    let record = folder.record()?;
    if record.as_ref().is_some_and(|record| record.adoptable().is_err()) || folder.never_ran() {
        return Ok(None);
    }
    let (folder, overhead, is_named_elsewhere) = match record {
        Some(record) if record.sandbox.is_none() => {
            let is_named_elsewhere = record.is_of_another_namespace();
            (folder.clone(), record.overhead, is_named_elsewhere)
        }
        member => {
            let sandbox = member.and_then(|member| member.sandbox);
            let folder = sandbox.map_or(folder.clone(), |id| Folder::at(folder.path().with_file_name(id.as_str())));
            let record = folder.sandbox()?.filter(|record| record.adoptable().is_ok());
            let Some(record) = record else { return Ok(None) };
            let is_named_elsewhere = record.is_of_another_namespace();
            (folder, record.overhead, is_named_elsewhere)
        }
    };
    let shim_cgroup = if overhead.is_some() { ShimCgroup::Overhead } else { ShimCgroup::Root };
    Ok(Some(Orphan { events: events(&folder)?, folder, shim_cgroup, is_named_elsewhere }))
}

/// How many events there are of the task in `folder`, or of the members of the sandbox there.
fn events(folder: &Folder) -> Result<EventCounts> {
    let state = StateDir::new(folder.path().parent().unwrap_or(Path::new("/")));
    let id: TaskId = folder.name().parse().map_err(Error::from)?;
    let tasks = if folder.is_sandbox() { state.members(&id)? } else { vec![id] };
    Ok(tasks.into_iter().map(|id| (id.clone(), state.folder(&id).events())).collect())
}

/// Takes the lock of a dead shim; `None` when somebody else's new shim accepts connections.
///
/// # Errors
/// `Unavailable` when a shim keeps it and none answers, `WrongState` when another process does; `NotFound` when the folder
/// is removed.
pub(crate) async fn lock_or_shim(folder: &Folder, id: &str) -> Result<Option<Lock>> {
    let mut patience = Patience::with(folder);
    let mut wait = FIRST_WAIT;
    loop {
        if let Owner::Nobody(lock) = folder.owner()? {
            return Ok(Some(lock));
        }
        if connect(folder).await.is_ok() {
            return Ok(None);
        }
        // Whoever has the lock is about to listen, or the old shim is about to be gone.
        if wait < LONGEST_WAIT {
            sleep(wait).await;
            wait *= 2;
        } else if patience.is_over().await {
            return Err(kept_or_silent(folder, id));
        }
    }
}

/// Waits until the shim that takes over what is in `folder` answers; if it ends instead, it has `said` why.
async fn answers(folder: &Folder, mut shim: Child, mut said: UnixStream) -> Result<()> {
    let mut patience = Patience::with(folder);
    let mut wait = FIRST_WAIT;
    let (why, ended) = loop {
        let answer = match connect(folder).await {
            Ok(client) => client.version(patient(), &Empty::default()).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let Err(why) = answer else {
            children::keep(shim);
            return Ok(());
        };
        // It was the shim's end that cut the call off, unless it has no room for another caller.
        match shim.try_wait() {
            Ok(None) if wait < LONGEST_WAIT => {
                sleep(wait).await;
                wait *= 2;
            }
            Ok(None) if patience.is_over().await => {
                children::keep(shim);
                return Err(silent(&folder.name()));
            }
            Ok(None) => {}
            ended => break (why, ended),
        }
    };
    if ended.is_ok_and(|ended| ended.is_some_and(|status| status.success() || status.signal().is_some())) {
        // The task had ended, and has its report now; or the shim was killed too.
        return Ok(());
    }
    let mut text = Vec::new();
    // All of it is there. A child of the shim's may have the other end for a moment longer.
    let _ = said.set_nonblocking(true).and_then(|()| said.read_to_end(&mut text));
    Err(refused(folder, &serde_json::from_slice(&text).unwrap_or_else(|_| Error::new(Kind::Internal, why))))
}

/// The error for what gets no new shim from here.
fn refused(folder: &Folder, why: &Error) -> Error {
    let kind = match why.kind() {
        kind @ (Kind::WrongState | Kind::BadSpec | Kind::Unsupported | Kind::Damaged) => kind,
        // The others would be taken for what the caller's own request met.
        _ => Kind::Internal,
    };
    let what = if folder.is_sandbox() { "sandbox" } else { "task" };
    let name = folder.name();
    let otherwise = || {
        let log = folder.file("shim.log");
        let more = format!("{} may say more", log.display());
        match kind {
            // From here its processes may be out of reach.
            Kind::WrongState | Kind::Unsupported => format!("run the command where the {what} was started; {more}"),
            _ => format!("{more}; {}", folder.removal_hint()),
        }
    };
    let message = format!("no new shim can take over {what} {name}, whose shim died: {why}");
    Error::new(kind, message).hint(why.hint_text().map_or_else(otherwise, str::to_owned))
}
