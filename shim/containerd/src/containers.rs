//! The state of containers and their execs: enough to answer State and Wait from memory at any time.
//!
//! Calls add and remove entries; events of the executor (`manager_events`) update them. Must not: wait, or ask the
//! executor.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline_model::json::handover::bytes;
use bowline_model::{Doing as _, Error, Kind, Result};
use containerd_shim_protos::types::mount::Mount;
use containerd_shim_protos::types::task::Status;
use jiff::Timestamp;
use protobuf::{Enum as _, Message as _};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::streams::{self, Ends, Io};

/// All containers of one shim.
#[derive(Default)]
pub struct Containers {
    all: Mutex<BTreeMap<String, Container>>,
}

/// One container: its init and its execs.
pub struct Container {
    /// The folder of its configuration.
    pub bundle: PathBuf,
    /// The mounts that make up its root file system.
    pub rootfs: Vec<Mount>,
    pub init: Process,
    /// The other processes, by the ids that the client chose.
    pub execs: BTreeMap<String, Process>,
}

/// A process that containerd asked for.
pub struct Process {
    /// Its streams, as the client named them.
    pub io: Io,
    /// The ends of its streams that the shim keeps open.
    pub ends: Ends,
    /// The pid in the shim's pid namespace; 0 while there is none.
    pub pid: u32,
    pub status: Status,
    /// How it ended; any number of callers can wait for it.
    pub exit: watch::Sender<Option<Exit>>,
    /// The OCI process of an exec that has not started yet.
    pub spec: Option<Box<oci_spec::runtime::Process>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Its exit code, or 128 plus the number of the signal that ended it.
    pub status: u32,
    pub at: Timestamp,
}

impl Process {
    /// Creates a process that does not run yet.
    pub fn new(io: Io, ends: Ends) -> Process {
        let exit = watch::Sender::new(None);
        Process { io, ends, pid: 0, status: Status::CREATED, exit, spec: None }
    }

    /// Records the end of the process. The kernel reports it to writers of its stdin; its output can still be read.
    pub fn end(&mut self, exit: Exit) {
        self.status = Status::STOPPED;
        self.ends.close_stdin();
        self.exit.send_replace(Some(exit));
    }

    /// How the process ended, if it has.
    pub fn exit(&self) -> Option<Exit> {
        *self.exit.borrow()
    }
}

/// All containers by their ids, as a shim hands them over.
pub type Handed = BTreeMap<String, HandedContainer>;

/// A container, as a shim hands it over.
#[derive(Serialize, Deserialize)]
pub struct HandedContainer {
    bundle: PathBuf,
    /// The mounts of the root filesystem, each encoded as protobuf.
    rootfs: Vec<HandedMount>,
    init: HandedProcess,
    execs: BTreeMap<String, HandedProcess>,
}

#[derive(Serialize, Deserialize)]
struct HandedMount(#[serde(with = "bytes")] Vec<u8>);

#[derive(Serialize, Deserialize)]
struct HandedProcess {
    io: Io,
    ends: streams::Handed,
    pid: u32,
    /// The status as containerd's protocol numbers it.
    status: i32,
    exit: Option<Exit>,
    spec: Option<Box<oci_spec::runtime::Process>>,
}

impl Process {
    fn hand_over(&self) -> HandedProcess {
        HandedProcess {
            io: self.io.clone(),
            ends: self.ends.hand_over(),
            pid: self.pid,
            status: self.status.value(),
            exit: self.exit(),
            spec: self.spec.clone(),
        }
    }
}

impl HandedProcess {
    fn take(self) -> Result<Process> {
        let HandedProcess { io, ends, pid, status, exit, spec } = self;
        let status = Status::from_i32(status);
        let status = status.ok_or_else(|| Error::new(Kind::Damaged, "the status of a process is unknown"))?;
        Ok(Process { io, ends: ends.take()?, pid, status, exit: watch::Sender::new(exit), spec })
    }
}

impl Container {
    fn hand_over(&self) -> Result<HandedContainer> {
        let mount = |mount: &Mount| mount.write_to_bytes().map(HandedMount);
        let rootfs = self.rootfs.iter().map(mount).collect::<protobuf::Result<_>>();
        Ok(HandedContainer {
            bundle: self.bundle.clone(),
            rootfs: rootfs.doing(Kind::Internal, || "cannot write the mounts of a container")?,
            init: self.init.hand_over(),
            execs: self.execs.iter().map(|(id, exec)| (id.clone(), exec.hand_over())).collect(),
        })
    }
}

impl HandedContainer {
    fn take(self) -> Result<Container> {
        let mount = |mount: HandedMount| Mount::parse_from_bytes(&mount.0);
        let rootfs = self.rootfs.into_iter().map(mount).collect::<protobuf::Result<_>>();
        Ok(Container {
            bundle: self.bundle,
            rootfs: rootfs.doing(Kind::Damaged, || "cannot read the mounts of a container")?,
            init: self.init.take()?,
            execs: self.execs.into_iter().map(|(id, exec)| Ok((id, exec.take()?))).collect::<Result<_>>()?,
        })
    }
}

/// What `inspect --facts` prints of all containers, by their ids.
pub type Outline = BTreeMap<String, ContainerOutline>;

/// What `inspect --facts` prints of a container.
#[derive(Debug, Serialize)]
pub struct ContainerOutline {
    bundle: PathBuf,
    init: ProcessOutline,
    execs: BTreeMap<String, ProcessOutline>,
}

/// What `inspect --facts` prints of a process.
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
    /// All containers, for the program that is executed in the shim's place.
    ///
    /// # Errors
    /// `Internal` when one cannot be written down.
    pub fn hand_over(&self) -> Result<Handed> {
        self.all().iter().map(|(id, container)| Ok((id.clone(), container.hand_over()?))).collect()
    }

    /// The containers that the program before this one has handed over.
    ///
    /// # Errors
    /// `Damaged` when something is missing.
    pub fn take(handed: Handed) -> Result<Containers> {
        let all = handed.into_iter().map(|(id, container)| Ok((id, container.take()?)));
        Ok(Containers { all: Mutex::new(all.collect::<Result<_>>()?) })
    }

    /// The state of all containers, for debugging.
    pub fn outline(&self) -> Outline {
        let outline = |container: &Container| ContainerOutline {
            bundle: container.bundle.clone(),
            init: container.init.outline(),
            execs: container.execs.iter().map(|(id, exec)| (id.clone(), exec.outline())).collect(),
        };
        self.all().iter().map(|(id, container)| (id.clone(), outline(container))).collect()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Container>> {
        // The shim has one thread: if it had panicked while holding the lock, it would be gone.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a container under an id that is still free.
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

    /// Removes a container; `None` if there is none.
    pub fn remove(&self, id: &str) -> Option<Container> {
        self.all().remove(id)
    }

    pub fn ids(&self) -> Vec<String> {
        self.all().keys().cloned().collect()
    }

    pub fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// Calls `look` with a container.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn with<T>(&self, id: &str, look: impl FnOnce(&mut Container) -> T) -> Result<T> {
        let mut all = self.all();
        let found = all.get_mut(id);
        found.map(look).ok_or_else(|| Error::new(Kind::NotFound, format!("container {id} is unknown")))
    }

    /// Calls `look` with a process: the exec, or init if `exec` is empty.
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

/// The error for an unknown exec.
pub fn unknown_exec(id: &str, exec: &str) -> Error {
    Error::new(Kind::NotFound, format!("exec {exec} of container {id} is unknown"))
}
