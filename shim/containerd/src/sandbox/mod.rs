//! The state of a shim's sandbox, and what its members get from it.
//!
//! ```text
//!   Created ─start─► Starting ─► Ready ─stop, or its pause process ends─► Ended
//! ```
//!
//! Kept in memory like `containers`; `sandbox_calls` answers containerd. A shim has at most one sandbox, and never a
//! second. Must not: wait, ask the executor.

pub mod files;
mod wanted;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline_executor::Member;
use bowline_executor::internal::PauseNet;
use bowline_model::{Error, Kind, Result};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::containers::Exit;
pub use wanted::Wanted;

/// CRI's name for the state of a sandbox that can take new members.
pub const READY: &str = "SANDBOX_READY";
/// CRI's name for any other state.
pub const NOT_READY: &str = "SANDBOX_NOTREADY";

/// The state of the sandbox, if containerd has asked for one.
#[derive(Default)]
pub struct Sandbox {
    known: Mutex<Option<Known>>,
}

/// A sandbox that containerd has created.
struct Known {
    id: String,
    bundle: PathBuf,
    wanted: Wanted,
    created_at: Timestamp,
    state: State,
    /// The pid of its pause process; 0 if there was none.
    pid: u32,
    ended: watch::Sender<Option<Exit>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Created,
    Starting,
    Ready,
    Ended,
}

/// The status of a sandbox.
#[derive(Debug, Clone)]
pub struct SandboxStatus {
    /// Whether members can be created in it.
    pub ready: bool,
    /// The pid of its pause process; 0 before the start.
    pub pid: u32,
    /// When it was started, or before that, when it was created.
    pub created_at: Timestamp,
    pub exit: Option<Exit>,
    /// Where its network namespace is bound.
    pub network: Option<PathBuf>,
    /// The cgroup of its members.
    pub cgroup: Option<String>,
}

/// The sandbox, as a shim hands it over.
#[derive(Serialize, Deserialize)]
pub struct Handed {
    id: String,
    bundle: PathBuf,
    wanted: Wanted,
    created_at: Timestamp,
    state: State,
    pid: u32,
    exit: Option<Exit>,
}

/// What `inspect --facts` prints of the sandbox.
#[derive(Debug, Serialize)]
pub struct Outline {
    id: String,
    bundle: PathBuf,
    state: State,
    created_at: Timestamp,
    pause_pid: u32,
    exit: Option<Exit>,
}

fn wrong_state(message: String) -> Error {
    Error::new(Kind::WrongState, message)
}

impl Sandbox {
    fn known(&self) -> MutexGuard<'_, Option<Known>> {
        // The shim has one thread: if it had panicked while holding the lock, it would be gone.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox for the program that is executed in the shim's place.
    pub fn hand_over(&self) -> Option<Handed> {
        self.known().as_ref().map(|known| Handed {
            id: known.id.clone(),
            bundle: known.bundle.clone(),
            wanted: known.wanted.clone(),
            created_at: known.created_at,
            state: known.state,
            pid: known.pid,
            exit: *known.ended.borrow(),
        })
    }

    /// The sandbox that the program before this one has handed over.
    pub fn take(handed: Option<Handed>) -> Sandbox {
        let known = handed.map(|Handed { id, bundle, wanted, created_at, state, pid, exit }| Known {
            id,
            bundle,
            wanted,
            created_at,
            state,
            pid,
            ended: watch::Sender::new(exit),
        });
        Sandbox { known: Mutex::new(known) }
    }

    /// The id of a sandbox that has a pause process, whose end is not recorded.
    pub fn awaited(&self) -> Option<String> {
        let known = self.known();
        let known = known.as_ref().filter(|known| known.pid != 0 && known.ended.borrow().is_none());
        known.map(|known| known.id.clone())
    }

    /// The state of the sandbox, for debugging.
    pub fn outline(&self) -> Option<Outline> {
        self.known().as_ref().map(|known| Outline {
            id: known.id.clone(),
            bundle: known.bundle.clone(),
            state: known.state,
            created_at: known.created_at,
            pause_pid: known.pid,
            exit: *known.ended.borrow(),
        })
    }

    fn with<T>(&self, id: &str, look: impl FnOnce(&mut Known) -> T) -> Result<T> {
        let mut known = self.known();
        let found = known.as_mut().filter(|known| known.id == id);
        found.map(look).ok_or_else(|| Error::new(Kind::NotFound, format!("sandbox {id} is unknown")))
    }

    /// Records what containerd asked for.
    ///
    /// # Errors
    /// `AlreadyExists`.
    pub fn create(&self, id: &str, bundle: PathBuf, wanted: Wanted) -> Result<()> {
        let mut known = self.known();
        if let Some(other) = &*known {
            let message = format!("sandbox {} exists already in this shim, which has one only", other.id);
            return Err(Error::new(Kind::AlreadyExists, message));
        }
        *known = Some(Known {
            id: id.to_owned(),
            bundle,
            wanted,
            created_at: Timestamp::now(),
            state: State::Created,
            pid: 0,
            ended: watch::Sender::new(None),
        });
        Ok(())
    }

    /// Begins to start the sandbox. Returns what it should have, and its bundle.
    ///
    /// # Errors
    /// `WrongState` unless it is created and not started yet; `NotFound` if the shim has another sandbox.
    pub fn begin(&self, id: &str) -> Result<(Wanted, PathBuf)> {
        if self.known().is_none() {
            return Err(wrong_state(format!("sandbox {id} is not created: it cannot be started")));
        }
        self.with(id, |known| match known.state {
            State::Created => {
                known.state = State::Starting;
                Ok((known.wanted.clone(), known.bundle.clone()))
            }
            State::Starting | State::Ready => Err(wrong_state(format!("sandbox {id} was started already"))),
            State::Ended => Err(wrong_state(format!("sandbox {id} has ended: it cannot be started"))),
        })?
    }

    /// Records that the sandbox has started; an error if it was stopped meanwhile.
    pub fn began(&self, id: &str, pid: u32) -> Result<Timestamp> {
        self.with(id, |known| {
            known.pid = pid;
            if known.state == State::Ended {
                return Err(wrong_state(format!("sandbox {id} was stopped while it was being started")));
            }
            known.state = State::Ready;
            known.created_at = Timestamp::now();
            Ok(known.created_at)
        })?
    }

    /// Records that the start failed.
    pub fn not_begun(&self, id: &str) {
        let _ = self.with(id, |known| {
            if known.state == State::Starting {
                known.state = State::Created;
            }
        });
    }

    /// Stops the sandbox from taking new members. Returns whether it has a pause process.
    pub fn stop(&self, id: &str) -> Result<bool> {
        self.with(id, |known| {
            known.state = State::Ended;
            known.pid != 0
        })
    }

    /// Records how the sandbox ended; only the first report counts.
    pub fn end(&self, id: &str, exit: Exit) {
        let _ = self.with(id, |known| {
            known.state = State::Ended;
            known.ended.send_if_modified(|ended| {
                let first = ended.is_none();
                ended.get_or_insert(exit);
                first
            });
        });
    }

    /// The status of the sandbox.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn status(&self, id: &str) -> Result<SandboxStatus> {
        self.with(id, |known| SandboxStatus {
            ready: known.state == State::Ready,
            pid: known.pid,
            created_at: known.created_at,
            exit: *known.ended.borrow(),
            network: match &known.wanted.pause.net {
                PauseNet::Path(path) => Some(path.clone()),
                PauseNet::Host | PauseNet::New => None,
            },
            cgroup: known.wanted.cgroup.clone(),
        })
    }

    /// The id of the sandbox, and the cgroup of its members if known.
    pub fn place(&self) -> Option<(String, Option<String>)> {
        self.known().as_ref().map(|known| (known.id.clone(), known.wanted.cgroup.clone()))
    }

    /// The pid of its pause process; 0 if there was none, or if `id` is not this sandbox.
    pub fn pid(&self, id: &str) -> u32 {
        self.with(id, |known| known.pid).unwrap_or_default()
    }

    /// A receiver to wait for the end of the sandbox.
    pub fn ended(&self, id: &str) -> Result<watch::Receiver<Option<Exit>>> {
        self.with(id, |known| known.ended.subscribe())
    }

    /// What a container gets from the sandbox; `None` without a sandbox.
    ///
    /// # Errors
    /// `WrongState` unless the sandbox is ready.
    pub fn member(&self) -> Result<Option<Member>> {
        let known = self.known();
        let Some(known) = &*known else { return Ok(None) };
        if known.state != State::Ready {
            let state = if known.state == State::Ended { "has ended" } else { "is not started" };
            let message = format!("sandbox {} {state}: nothing can be created in it", known.id);
            return Err(wrong_state(message));
        }
        let pause = &known.wanted.pause;
        let of = |wanted: bool, kind: &str| wanted.then(|| PathBuf::from(format!("/proc/{}/ns/{kind}", known.pid)));
        let files = known.wanted.files.keys().map(|inside| (PathBuf::from(inside), files::path(&known.bundle, inside)));
        Ok(Some(Member {
            net: of(pause.net != PauseNet::Host, "net"),
            ipc: of(pause.ipc, "ipc"),
            uts: of(pause.uts, "uts"),
            pid: of(pause.pid, "pid"),
            shm: pause.ipc.then(|| files::shm(&known.bundle)),
            files: files.collect(),
        }))
    }

    /// The folder that records the members' bundles, for cleanup after the shim has died.
    fn members_folder(&self) -> Option<PathBuf> {
        self.known().as_ref().map(|known| files::members(&known.bundle))
    }

    /// Whether containerd has asked for a sandbox.
    pub fn is_there(&self) -> bool {
        self.known().is_some()
    }

    /// Whether there was a sandbox that has ended with all its members.
    pub fn has_ended(&self) -> bool {
        self.known().as_ref().is_some_and(|known| known.ended.borrow().is_some())
    }

    /// Unmounts what is mounted for the sandbox, before its shim leaves.
    pub async fn unmake(&self) {
        let bundle = self.known().as_ref().map(|known| known.bundle.clone());
        if let Some(bundle) = bundle
            && let Err(error) = files::unmake(&bundle).await
        {
            tracing::error!(%error, "a mount is left behind");
        }
    }

    /// Records a container that is about to be created in the sandbox.
    ///
    /// # Errors
    /// `Internal` when the record cannot be written.
    pub fn remember(&self, id: &str, bundle: &Path) -> Result<()> {
        self.members_folder().map_or(Ok(()), |members| files::remember(&members, id, bundle))
    }

    /// Keeps a copy of the record of a container that has been created.
    ///
    /// # Errors
    /// As [`Sandbox::remember`].
    pub fn keep_record(&self, id: &str, bundle: &Path) -> Result<()> {
        self.members_folder().map_or(Ok(()), |members| files::keep_record(&members, id, bundle))
    }

    /// Removes the record of a container that is gone.
    pub fn forget(&self, id: &str) {
        if let Some(members) = self.members_folder() {
            files::forget(&members, id);
        }
    }
}

/// More information about a sandbox, under containerd's own names.
pub fn info(status: &SandboxStatus) -> BTreeMap<&'static str, String> {
    let state = if status.ready { READY } else { NOT_READY };
    let mut info = BTreeMap::from([("pid", status.pid.to_string()), ("state", state.to_owned())]);
    if let Some(network) = &status.network {
        info.insert("networkSandboxPath", network.display().to_string());
    }
    if let Some(cgroup) = &status.cgroup {
        info.insert("cgroup", cgroup.clone());
    }
    info
}
