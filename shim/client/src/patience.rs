//! Decides how long a shim may be silent before it counts as not answering.
//!
//! ```text
//!   asked ─► [silent] ─► asked for its version too ─► answers: the first only takes long
//!                                                 └─► silent, and not at work: not answering
//! ```
//!
//! A shim has one thread, which never blocks: it answers a version call at once, whatever else it was asked for. Time
//! is counted in polls, so that a slow machine slows the client as much as the shim. A shim that waits for a processor,
//! a disk or a tracer counts as not answering only after `MOST` polls.

use std::time::Duration;

use bowline_executor::internal::proc_stat::{self, ProcStat};
use bowline_executor::internal::{holder, is_frozen, is_named_shim, kept};
use bowline_model::folder::Owner;
use bowline_model::folder::{Folder, Lock};
use bowline_model::{Error, Kind, Result};
use tokio::time::{sleep, timeout};

use crate::connection::{connect, is_there, patient};
use bowline_protocol::wire::proto::bowline::Empty;

/// How long a shim that is known by its address alone may take to answer.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// The time between two polls.
pub const BETWEEN_POLLS: Duration = Duration::from_millis(250);

/// After this many polls a silent shim counts as not answering: before two seconds have passed.
pub const POLLS: u32 = 7;

/// Like [`POLLS`], for a shim that is being upgraded: it answers nobody while it comes to rest, which takes a second at
/// most, and while the new program starts.
pub const POLLS_OF_AN_UPGRADE: u32 = 2 * POLLS;

/// After this many polls a slow shim is asked for its version, which wakes it.
pub const BEFORE_ASKING: u32 = 4;

/// After this many polls even a shim that is at work all the time counts as not answering, or one that no longer serves
/// anybody and does not end.
const MOST: u32 = 20 * POLLS;

/// Counts the polls of one shim since its last answer.
pub struct Patience<'f> {
    folder: &'f Folder,
    polls: u32,
    /// After this many polls the shim counts as not answering.
    enough: u32,
}

impl Patience<'_> {
    /// Starts counting for the shim of the task or sandbox in `folder`.
    pub fn with(folder: &Folder) -> Patience<'_> {
        Patience::of_polls(folder, POLLS)
    }

    /// Like [`Patience::with`], where the shim counts as not answering after `enough` polls.
    pub fn of_polls(folder: &Folder, enough: u32) -> Patience<'_> {
        Patience { folder, polls: 0, enough }
    }

    /// Starts again, because the shim has answered.
    pub fn renew(&mut self) {
        self.polls = 0;
    }

    /// Waits until the next poll; true once the shim counts as not answering.
    pub async fn is_over(&mut self) -> bool {
        self.next_poll().await;
        self.polls >= self.enough
            && (self.polls >= MOST || state_of(self.folder).is_some_and(|state| !state.is_at_work()))
    }

    /// Like [`Patience::is_over`], for a shim that no longer serves anybody: it may take long to finish, unless
    /// somebody has stopped it.
    async fn is_over_for_one_that_leaves(&mut self) -> bool {
        self.next_poll().await;
        self.polls >= self.enough
            && (self.polls >= MOST || state_of(self.folder).is_some_and(|state| state.is_stopped()))
    }

    /// Waits until the next poll.
    pub async fn next_poll(&mut self) {
        sleep(BETWEEN_POLLS).await;
        self.polls += 1;
    }
}

/// The pid of a living shim, or of whoever has its folder's lock until there is one, and the letter of its state
/// (proc_pid_stat(5)).
struct State {
    pid: i32,
    is_shim: bool,
    letter: String,
}

impl State {
    /// Whether it runs, or waits for a processor or a disk, or for a tracer: strace stops it at each of its calls.
    fn is_at_work(&self) -> bool {
        match &*self.letter {
            "R" | "t" => true,
            "D" => !is_frozen(self.pid),
            // Who has the lock may sleep until the new shim answers.
            _ => !self.is_shim && !self.is_stopped(),
        }
    }

    fn is_stopped(&self) -> bool {
        self.letter == "T"
    }

    fn of(pid: i32, is_shim: bool) -> Option<State> {
        let stat = proc_stat::read(pid)?;
        let stat = ProcStat::parse(&stat).filter(|stat| !stat.ends())?;
        Some(State { pid, is_shim, letter: stat.state().to_owned() })
    }
}

/// The process state of the shim that holds the folder's lock, or else of whoever does, such as a command that starts
/// another shim, or one that has launched a member. Where nobody is seen to hold it, that of the shim of the record;
/// `None` where neither is known: one that takes the task over may be about to answer.
fn state_of(folder: &Folder) -> Option<State> {
    let shim = shim_of(folder);
    match holder(folder, shim) {
        Some(pid) => State::of(pid, Some(pid) == shim),
        None => State::of(shim?, true),
    }
}

/// The shim that the record in `folder` names: for a member, its sandbox's.
fn shim_of(folder: &Folder) -> Option<i32> {
    match folder.record() {
        Ok(Some(record)) => Some(record.shim_pid),
        _ => folder.sandbox().ok().flatten().and_then(|record| record.shim_pid),
    }
}

/// The error for a folder whose lock stays held, and where no shim answers. The shim of what has ended, which does not hold
/// the lock, has nothing to do with it: for a member that is its sandbox's.
pub(crate) fn kept_or_silent(folder: &Folder, id: &str) -> Error {
    let shim = shim_of(folder);
    // A damaged record names none.
    let is_other = |pid: &i32| shim != Some(*pid) && !is_named_shim(*pid);
    let has_ended = matches!(folder.exit(), Ok(Some(_))) || shim.is_none_or(|shim| proc_stat::started(shim).is_none());
    let other = holder(folder, shim).filter(|pid| is_other(pid) && has_ended);
    let what = || format!("{} is in use", folder.path().display());
    other.map_or_else(|| silent(id), |pid| kept(&what(), pid))
}

/// The error for a task or sandbox `id` whose shim is not answering.
pub fn silent(id: &str) -> Error {
    Error::new(Kind::Unavailable, format!("the shim of {id} is not answering"))
        .hint("somebody may have stopped or frozen it; `bowline stop`, `kill` and `rm -f` go past it")
}

/// The error for a shim that lives and closes a connection without an answer.
pub fn turned_away(id: &str) -> Error {
    Error::new(
        Kind::Unavailable,
        format!("the shim of {id} has turned this call away: it may have as many files open as it may"),
    )
    .hint("try again once others have left it; `bowline stop`, `kill` and `rm -f` go past it")
}

/// Takes the lock of a folder as soon as its leaving shim is gone.
///
/// # Errors
/// `Unavailable` when the shim stays and is not answering; `WrongState` when another process keeps the lock; `NotFound`
/// when the folder is removed.
pub async fn lock_after(folder: &Folder) -> Result<Lock> {
    let mut patience = Patience::with(folder);
    let mut wait = Duration::from_micros(200);
    loop {
        if let Owner::Nobody(lock) = folder.owner()? {
            return Ok(lock);
        }
        // Usually the shim ends at once.
        if wait < BETWEEN_POLLS {
            sleep(wait).await;
            wait *= 2;
            continue;
        }
        // Ask over a separate connection: the shim would wait for us to close a lasting one.
        let over = match timeout(BETWEEN_POLLS, version(folder)).await {
            Ok(true) => {
                sleep(BETWEEN_POLLS).await;
                patience.renew();
                false
            }
            Ok(false) => patience.is_over_for_one_that_leaves().await,
            Err(_) => patience.is_over().await,
        };
        if over {
            return Err(kept_or_silent(folder, &folder.name()));
        }
    }
}

/// Whether the shim accepts connections and answers.
pub async fn serves(folder: &Folder) -> bool {
    timeout(BETWEEN_POLLS, version(folder)).await.unwrap_or(false)
}

/// Whether the shim that has closed a connection accepts others. One that leaves takes none: it closes what waits as it
/// ends.
pub async fn lives_on(folder: &Folder) -> bool {
    timeout(ANSWERS_WITHIN, version(folder)).await == Ok(true) || is_there(folder).await
}

/// Whether the shim answers a version call.
async fn version(folder: &Folder) -> bool {
    match connect(folder).await {
        Ok(client) => client.version(patient(), &Empty::default()).await.is_ok(),
        Err(_) => false,
    }
}
