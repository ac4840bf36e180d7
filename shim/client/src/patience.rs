//! How long a shim may be silent before it is said not to be answering.
//!
//! ```text
//!   asked ─► [silent] ─► asked for its version too ─► answers: the first only takes long
//!                                                 └─► silent, and not at work: not answering
//! ```
//!
//! A shim has one thread, which never blocks: it tells its version at once,
//! whatever else it was asked for. Time is counted in our own looks, and none ends
//! it while the shim waits for a processor or a disk: a slow machine slows both
//! alike.

use std::time::Duration;

use bowline_executor::proc_stat::{self, ProcStat};
use bowline_executor::{Error, Folder, Kind, Lock, Owner, Result, is_frozen};
use tokio::time::{sleep, timeout};

use super::{connect, patient};
use bowline_protocol::wire::proto::bowline::Empty;

/// How far looks are apart.
const LOOK: Duration = Duration::from_millis(250);

/// After so many it is said: before two seconds have passed.
const LOOKS: u32 = 7;

/// After so many a shim that takes long is asked for its version: it wakes for that.
pub const BEFORE_ASKING: u32 = 4;

/// After so many also of a shim that is at work all the time, or that serves
/// nobody any more and does not end.
const MOST: u32 = 20 * LOOKS;

/// The looks at one shim since it has answered.
pub struct Patience<'f> {
    folder: &'f Folder,
    looks: u32,
}

impl Patience<'_> {
    /// With the shim of the task or sandbox in `folder`.
    pub fn with(folder: &Folder) -> Patience<'_> {
        Patience { folder, looks: 0 }
    }

    /// It has answered.
    pub fn renew(&mut self) {
        self.looks = 0;
    }

    /// Waits until the next look; true once the shim is said not to be answering.
    pub async fn is_over(&mut self) -> bool {
        self.look().await;
        self.looks >= LOOKS && (self.looks >= MOST || state_of(self.folder).is_some_and(|state| !state.is_at_work()))
    }

    /// As [`Patience::is_over`], for a shim that serves nobody any more: what it finishes may take it
    /// long, unless somebody has stopped it.
    async fn is_over_for_one_that_leaves(&mut self) -> bool {
        self.look().await;
        self.looks >= LOOKS && (self.looks >= MOST || state_of(self.folder).is_some_and(|state| state.is_stopped()))
    }

    /// Waits until the next look.
    pub async fn look(&mut self) {
        sleep(LOOK).await;
        self.looks += 1;
    }
}

/// What a shim does: its pid, and the letter of its state (proc_pid_stat(5)).
struct State(i32, String);

impl State {
    /// Whether it runs, or waits for a processor or a disk, and not for us.
    fn is_at_work(&self) -> bool {
        self.1 == "R" || self.1 == "D" && !is_frozen(self.0)
    }

    fn is_stopped(&self) -> bool {
        self.1 == "T"
    }
}

/// What the shim does. `None` where it has recorded no pid yet, or has ended.
fn state_of(folder: &Folder) -> Option<State> {
    let pid = match folder.record() {
        Ok(Some(record)) => record.shim_pid,
        _ => folder.sandbox().ok()??.shim_pid?,
    };
    let stat = proc_stat::read(pid)?;
    Some(State(pid, ProcStat::parse(&stat)?.state().to_owned()))
}

/// The shim of `id`, a task or a sandbox, is not answering.
pub fn silent(id: &str) -> Error {
    Error::new(Kind::Unavailable, format!("the shim of {id} is not answering"))
        .hint("somebody may have stopped or frozen it; `bowline stop`, `kill` and `rm -f` go past it")
}

/// Takes the lock of a folder as soon as its shim, which is leaving, has gone.
///
/// # Errors
/// `Unavailable` when it stays and is not answering; `NotFound` when the folder
/// is removed.
pub async fn lock_after(folder: &Folder) -> Result<Lock> {
    let mut patience = Patience::with(folder);
    let mut wait = Duration::from_micros(200);
    loop {
        if let Owner::Nobody(lock) = folder.owner()? {
            return Ok(lock);
        }
        // Mostly it goes at once.
        if wait < LOOK {
            sleep(wait).await;
            wait *= 2;
            continue;
        }
        // By a connection for this question alone: it would wait for us to close one.
        let over = match timeout(LOOK, version(folder)).await {
            Ok(true) => {
                sleep(LOOK).await;
                patience.renew();
                false
            }
            Ok(false) => patience.is_over_for_one_that_leaves().await,
            Err(_) => patience.is_over().await,
        };
        if over {
            return Err(silent(&folder.name()));
        }
    }
}

/// Whether the shim lets others in, and answers them.
pub async fn serves(folder: &Folder) -> bool {
    timeout(LOOK, version(folder)).await.unwrap_or(false)
}

/// Whether somebody serves the socket, and answers.
async fn version(folder: &Folder) -> bool {
    match connect(folder).await {
        Ok(client) => client.version(patient(), &Empty::default()).await.is_ok(),
        Err(_) => false,
    }
}
