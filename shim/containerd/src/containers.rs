//! What is known of containers and their execs: enough to answer State and
//! Wait from memory, whatever else is going on.
//!
//! Changed by calls (what is reserved and forgotten) and by what the executor
//! tells (`happenings`). Must not: wait, or ask the executor.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline_executor::{Error, Kind, Result};
use containerd_shim_protos::types::mount::Mount;
use containerd_shim_protos::types::task::Status;
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::watch;

use super::streams::{Ends, Io};

/// All containers of one shim.
#[derive(Default)]
pub struct Containers {
    all: Mutex<BTreeMap<String, Container>>,
}

/// One container: its init and its execs.
pub struct Container {
    /// Where its configuration is.
    pub bundle: PathBuf,
    /// The mounts that its root filesystem was made of.
    pub rootfs: Vec<Mount>,
    /// Its first process.
    pub init: Process,
    /// The others, by the ids that their client has chosen.
    pub execs: BTreeMap<String, Process>,
}

/// A process that was asked for.
pub struct Process {
    /// What its streams are connected to, as its client said it.
    pub io: Io,
    /// What is kept open for them.
    pub ends: Ends,
    /// In the shim's pid namespace; 0 while there is none.
    pub pid: u32,
    /// Where it is in its life.
    pub status: Status,
    /// How it has ended, for any number of waiters.
    pub exit: watch::Sender<Option<Exit>>,
    /// What an exec is to be.
    pub spec: Option<Box<oci_spec::runtime::Process>>,
}

/// How a process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Exit {
    /// Its exit code, or 128 and the number of the signal that ended it.
    pub status: u32,
    /// When.
    pub at: Timestamp,
}

impl Process {
    /// A process that does not run yet.
    pub fn new(io: Io, ends: Ends) -> Process {
        let exit = watch::Sender::new(None);
        Process { io, ends, pid: 0, status: Status::CREATED, exit, spec: None }
    }

    /// Puts down that it has ended. Whoever writes to its stdin is told by the
    /// kernel; what it wrote can still be read.
    pub fn end(&mut self, exit: Exit) {
        self.status = Status::STOPPED;
        self.ends.close_stdin();
        self.exit.send_replace(Some(exit));
    }

    /// How it has ended, if it has.
    pub fn exit(&self) -> Option<Exit> {
        *self.exit.borrow()
    }
}

/// What `inspect --facts` prints of all containers, by their ids.
pub type Outline = BTreeMap<String, ContainerOutline>;

/// What it prints of a container.
#[derive(Debug, Serialize)]
pub struct ContainerOutline {
    bundle: PathBuf,
    init: ProcessOutline,
    execs: BTreeMap<String, ProcessOutline>,
}

/// What it prints of a process.
#[derive(Debug, Serialize)]
pub struct ProcessOutline {
    pid: u32,
    status: String,
    exit: Option<Exit>,
}

impl Process {
    fn outline(&self) -> ProcessOutline {
        let status = format!("{:?}", self.status).to_lowercase();
        ProcessOutline { pid: self.pid, status, exit: self.exit() }
    }
}

impl Containers {
    /// All that is known of them, for whoever looks for an error.
    pub fn outline(&self) -> Outline {
        let outline = |container: &Container| ContainerOutline {
            bundle: container.bundle.clone(),
            init: container.init.outline(),
            execs: container.execs.iter().map(|(id, exec)| (id.clone(), exec.outline())).collect(),
        };
        self.all().iter().map(|(id, container)| (id.clone(), outline(container))).collect()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Container>> {
        // One thread: nobody can have panicked while holding it and live.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves an id.
    ///
    /// # Errors
    /// `AlreadyExists`.
    pub fn add(&self, id: &str, container: Container) -> Result<()> {
        let mut all = self.all();
        if all.contains_key(id) {
            return Err(Error::new(Kind::AlreadyExists, format!("container {id} exists already")));
        }
        all.insert(id.to_owned(), container);
        Ok(())
    }

    /// Forgets a container; `None` if there is none.
    pub fn remove(&self, id: &str) -> Option<Container> {
        self.all().remove(id)
    }

    pub fn ids(&self) -> Vec<String> {
        self.all().keys().cloned().collect()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// What `look` makes of a container.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn with<T>(&self, id: &str, look: impl FnOnce(&mut Container) -> T) -> Result<T> {
        let mut all = self.all();
        let found = all.get_mut(id);
        found.map(look).ok_or_else(|| Error::new(Kind::NotFound, format!("container {id} is unknown")))
    }

    /// What `look` makes of a process: of init where `exec` is empty.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn process<T>(&self, id: &str, exec: &str, look: impl FnOnce(&mut Process) -> T) -> Result<T> {
        self.with(id, |container| {
            let process = if exec.is_empty() { Some(&mut container.init) } else { container.execs.get_mut(exec) };
            process.map(look).ok_or_else(|| unknown_exec(id, exec))
        })?
    }
}

/// That there is no such exec.
pub fn unknown_exec(id: &str, exec: &str) -> Error {
    Error::new(Kind::NotFound, format!("exec {exec} of container {id} is unknown"))
}
