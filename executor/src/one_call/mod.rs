//! Containers that no shim stays beside: each call takes its container over from the record, does one thing, and leaves.
//! The command of an OCI runtime works like this.
//!
//! ```text
//!   create ─► record ─► init ─► recorded ─► held; its creator leaves
//!   start  ─► record ─ orders ─► init ─ report ─► the program runs        (FIFOs of the container's folder)
//!   exec, kill, pause ─► record ─► init by pid and start, cgroup by its identity ─► done
//!   delete ─► ended ─► cgroup, poststop hooks ─► folder
//! ```
//!
//! Whoever changes the state holds the lock of the folder: create, start and delete. `state` and `list` only read. Init and
//! execs are children of the process that makes the call, and so of its parent once it has left. Must not: keep anything
//! in memory that the next call needs.

mod create;
mod end;
mod exec;
mod start;

use std::cell::OnceCell;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use bowline_cgroup::{self as cgroup, Cgroup, Layout};
use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::folder::{Folder, Record, StateDir};
use bowline_model::liveness::Live;
use bowline_spec::id::TaskId;
use oci_spec::runtime::{Process, Spec};
use rustix::fs::{Mode, OFlags};
use tokio::task::LocalSet;

pub use create::Create;
pub use exec::Exec;

use crate::hostside::systemd::Systemd;
use crate::hostside::undo::is_anothers_place;
use crate::oci::bundle::{self, Configuration};
use crate::output::io::{self, Awaited, End, Owner, Stdio, WindowSize};
use crate::process::fd_passing;
use crate::rights::seccomp::{self, Filter, Profile};

/// The FIFO that init reads its order to start from, and the one that it reports to then.
const ORDERS: &str = "orders";
const REPORT: &str = "report";

/// The folder that the container has at [`NOTIFY_PLACE`], and the socket in it: where runc has them.
const NOTIFY: &str = "notify";
const NOTIFY_SOCKET: &str = "notify.sock";
const NOTIFY_PLACE: &str = "/run/notify";

/// The containers of one state folder.
pub struct Containers {
    state: StateDir,
    systemd: Systemd,
    layout: OnceCell<Layout>,
    /// Children that this process had before: whoever executed it may have begun some.
    inherited: Vec<i32>,
}

/// The state of a container (OCI runtime specification, "State").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Its `create` has not ended.
    Creating,
    /// Init waits for its start.
    Created,
    /// The program runs.
    Running,
    /// All processes are frozen.
    Paused,
    /// Init has ended.
    Stopped,
}

impl Status {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Creating => "creating",
            Status::Created => "created",
            Status::Running => "running",
            Status::Paused => "paused",
            Status::Stopped => "stopped",
        }
    }
}

/// One container, as its record says.
pub struct Container {
    /// The id of the container.
    pub id: TaskId,
    /// What is recorded.
    pub record: Record,
    folder: Folder,
}

/// Where a process of a container has its streams.
#[derive(Debug, Default)]
pub struct Streams {
    /// The socket that gets the terminal of a process that has one. Without it, [`Begun::terminal`] is the caller's.
    pub console: Option<OwnedFd>,
    /// How many of the caller's descriptors, from 3 on, the process gets.
    pub preserved: u32,
    /// How many of these are sockets that LISTEN_FDS announces to init (sd_listen_fds(3)).
    pub listening: u32,
    /// The size of its terminal, if its configuration names none.
    pub size: WindowSize,
    /// Whether its terminal leaves the ends of lines as they are: nobody looks at them by a terminal.
    pub keeps_lines: bool,
    /// Whether the caller takes [`Begun::terminal`].
    pub attached: bool,
}

impl Streams {
    /// Checks that a terminal has a taker, and a taker a terminal.
    ///
    /// # Errors
    /// `Usage` where one lacks the other.
    fn fit(&self, process: &Process) -> Result<()> {
        match (process.terminal() == Some(true), self.console.is_some()) {
            (true, false) if !self.attached => {
                let message = "the process has a terminal, and nobody takes it: give --console-socket";
                Err(Error::new(Kind::Usage, message))
            }
            (false, true) => Err(Error::new(Kind::Usage, "there is a console socket, and the process has no terminal")),
            _ => Ok(()),
        }
    }

    /// Tells init of the sockets that it gets: it has the pid 1 in the container.
    fn announce(&self, process: &mut Process) {
        if self.listening > 0 {
            let mut env = process.env().clone().unwrap_or_default();
            env.retain(|variable| !variable.starts_with("LISTEN_FDS=") && !variable.starts_with("LISTEN_PID="));
            env.extend([format!("LISTEN_FDS={}", self.listening), "LISTEN_PID=1".to_owned()]);
            process.set_env(Some(env));
        }
    }
}

/// A process that was begun.
pub struct Begun {
    /// The process.
    pub live: Live,
    /// The terminal that nobody has got yet.
    pub terminal: Option<OwnedFd>,
}

/// Runs one call in the calling thread, which must be the only one.
///
/// # Errors
/// What `call` returns.
pub fn run<T>(call: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.doing(Kind::Internal, || "cannot start the event loop")?;
    LocalSet::new().block_on(&runtime, call())
}

impl Containers {
    /// The containers in the folder at `state`, which need not exist.
    pub fn new(state: impl Into<PathBuf>, systemd: Systemd) -> Containers {
        Containers { state: StateDir::new(state), systemd, layout: OnceCell::new(), inherited: children() }
    }

    /// The container `id`.
    ///
    /// # Errors
    /// `NotFound` where there is none; `Damaged` where its record cannot be read; `WrongState` for that of a newer bowline.
    pub fn find(&self, id: &str) -> Result<Container> {
        let id = TaskId::of_container(id).map_err(|_| missing(id))?;
        self.state.check()?;
        let folder = self.state.folder(&id).pinned().map_err(|error| said(error, &id))?;
        let record = folder.record().map_err(|error| said(error, &id))?.ok_or_else(|| missing(&id))?;
        let container = Container { id, record, folder };
        container.check_form().map(|()| container)
    }

    /// Like [`Containers::find`], for a call that acts on the container: its record can be trusted.
    ///
    /// # Errors
    /// As [`Containers::find`] and [`Container::check_named`].
    fn to_act_on(&self, id: &str) -> Result<Container> {
        let container = self.find(id)?;
        container.check_named().map(|()| container)
    }

    /// Init, if it has not ended: a zombie has.
    ///
    /// # Errors
    /// `WrongState` where the record names another process.
    fn init(&self, container: &Container) -> Result<Option<Live>> {
        let (true, record) = (container.runs(), &container.record) else { return Ok(None) };
        record.check_plain().map_err(|why| container.refused(why))?;
        let Some(init) = record.live_init()? else { return Ok(None) };
        let cgroup = self.cgroup(container)?;
        let gone = || container.refused("its cgroup is gone, by `cgroup` and `identity` in its record");
        let why = record.misnames_init(self.layout()?, &cgroup.ok_or_else(gone)?, Some(&init));
        why.map_or(Ok(Some(init)), |why| Err(container.refused(&why)))
    }

    /// Reaps the workers of this process, which have ended or are about to; its child `but` goes to the caller. Left to the
    /// caller, each would be a zombie there.
    fn reap_workers(&self, but: Option<i32>) {
        let ours = children().into_iter().filter(|pid| Some(*pid) != but && !self.inherited.contains(pid));
        for pid in ours {
            if let Ok(pidfd) = bowline_sys::pidfd_open(pid) {
                // A frozen one does not end.
                let _ = end::await_end(pidfd.as_fd());
            }
            let pid = rustix::process::Pid::from_raw(pid);
            let _ = rustix::process::waitpid(pid, rustix::process::WaitOptions::NOHANG);
        }
    }

    /// The compiled filter of a configuration, which loses its profile.
    async fn filter(&self, configuration: &mut Configuration) -> Result<Option<Filter>> {
        let Some(profile) = configuration.seccomp.take() else { return Ok(None) };
        let profile = Profile::Given(Box::new(profile));
        seccomp::filter(profile, &self.state.filter_cache()).await.map(Some)
    }

    /// All containers that there are, in the order of their ids. One whose record cannot be read comes with the error.
    ///
    /// # Errors
    /// `Internal` where the folder cannot be read.
    pub fn all(&self) -> Result<Vec<(TaskId, Result<Container>)>> {
        let ids = self.state.ids()?.into_iter();
        let all = ids.map(|id| (id.clone(), self.find(id.as_str())));
        // Skips containers that were deleted meanwhile.
        Ok(all.filter(|(_, found)| !found.as_ref().is_err_and(is_gone)).collect())
    }

    fn layout(&self) -> Result<&Layout> {
        match self.layout.get() {
            Some(layout) => Ok(layout),
            None => cgroup::detect().map(|layout| self.layout.get_or_init(|| layout)),
        }
    }

    /// The cgroup of the container, if it is there.
    fn cgroup(&self, container: &Container) -> Result<Option<Cgroup>> {
        let (layout, record) = (self.layout()?, &container.record);
        let found = layout.open(&record.cgroup)?;
        let is_its = |cgroup: &Cgroup| record.identity.as_ref().is_some_and(|of| of.is_of(layout, cgroup));
        match (found.filter(is_its), &record.unit) {
            // systemd removes a scope's once its last process has ended, at any time.
            (Some(_), Some(unit)) => match layout.adopt(unit) {
                Err(_) if layout.open(&record.cgroup)?.is_none() => Ok(None),
                adopted => adopted.map(Some),
            },
            (found, _) => Ok(found),
        }
    }

    /// The state of the container.
    ///
    /// # Errors
    /// `Internal` where the kernel does not tell.
    pub fn status(&self, container: &Container) -> Result<Status> {
        if container.creator()?.is_some() {
            return Ok(Status::Creating);
        }
        if self.init(container)?.is_none() {
            return Ok(Status::Stopped);
        }
        let cgroup = self.cgroup(container)?;
        let layout = self.layout()?;
        Ok(match cgroup.is_some_and(|cgroup| layout.is_frozen(&cgroup)) {
            true => Status::Paused,
            false if container.orders()?.is_some() => Status::Created,
            false => Status::Running,
        })
    }

    /// The pids of the container's processes on the host.
    ///
    /// # Errors
    /// `Internal` where the cgroup cannot be read.
    pub fn processes(&self, container: &Container) -> Result<Vec<i32>> {
        let cgroup = self.cgroup(container)?;
        let layout = self.layout()?;
        if layout.goes_without() {
            return Err(Error::new(Kind::Unsupported, "containers have no cgroups here, by which processes are found"));
        }
        Ok(cgroup.map(|cgroup| layout.processes(&cgroup)).unwrap_or_default())
    }
}

/// The error for a container that is not there, in the words that callers look for.
fn missing(id: impl std::fmt::Display) -> Error {
    Error::new(Kind::NotFound, format!("container does not exist: {id}"))
}

/// The error for a container that another call is about.
fn busy(id: &TaskId) -> Error {
    let message = format!("container {id} is being created, started or deleted by another process");
    Error::new(Kind::WrongState, message)
}

/// What its folder answered, said of a container.
fn said(error: Error, id: &TaskId) -> Error {
    match error.kind() {
        Kind::NotFound => missing(id),
        Kind::Damaged => {
            Error::new(Kind::Damaged, error.message()).hint(format!("`delete --force {id}` removes what is left"))
        }
        _ => error,
    }
}

/// The children of this process.
fn children() -> Vec<i32> {
    let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn is_gone(error: &Error) -> bool {
    error.kind() == Kind::NotFound
}

impl Container {
    /// Checks that the record can be read as it was meant.
    ///
    /// # Errors
    /// `WrongState` for that of a newer bowline.
    fn check_form(&self) -> Result<()> {
        let id = &self.id;
        self.folder.check_form().map_err(|newer| {
            let message = format!("container {id} is left alone: {}", newer.message());
            Error::new(Kind::WrongState, message).hint("the newer program reads it")
        })
    }

    /// Checks that the record can be trusted by a call that acts on the container.
    ///
    /// # Errors
    /// `WrongState` for one that names what is not the container's.
    fn check_named(&self) -> Result<()> {
        self.record.check_plain().map_err(|why| self.refused(why))?;
        if is_anothers_place(&self.folder, &self.record) {
            return Err(self.refused("`cgroup` in its record is not what its configuration asks for"));
        }
        Ok(())
    }

    /// The error for a record that cannot be trusted.
    fn refused(&self, why: &str) -> Error {
        let id = &self.id;
        Error::new(Kind::WrongState, format!("container {id} is left alone: {why}"))
            .hint(format!("`delete --force {id}` ends and removes what is known to belong to it"))
    }

    fn runs(&self) -> bool {
        self.record.is_of_this_boot() && self.record.runs()
    }

    /// The pid of init, 0 once that has ended.
    pub fn pid(&self) -> i32 {
        self.record.pid.filter(|_| self.runs()).unwrap_or_default()
    }

    /// Where a service manager's socket is to be, if one was there as it was created.
    pub fn notify_socket(&self) -> Option<PathBuf> {
        let notifies = self.record.container.as_ref().is_some_and(|container| container.notifies);
        notifies.then(|| self.folder.file(NOTIFY).join(NOTIFY_SOCKET))
    }

    /// The process that creates the container, if it still does.
    fn creator(&self) -> Result<Option<OwnedFd>> {
        let creator = self.record.container.as_ref().and_then(|container| container.creator);
        let Some((pid, started)) = creator.filter(|_| self.record.is_of_this_boot()) else { return Ok(None) };
        bowline_sys::open_process(pid, started).doing(Kind::Internal, || format!("cannot look for process {pid}"))
    }

    /// The FIFO of init's orders, for as long as init waits for them.
    fn orders(&self) -> Result<Option<OwnedFd>> {
        let path = self.folder.file(ORDERS);
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(orders) => Ok(Some(orders)),
            Err(rustix::io::Errno::NXIO | rustix::io::Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno).doing(Kind::Internal, || format!("cannot open {}", path.display())),
        }
    }

    /// The configuration that the container was created with, and what the user namespace that it joined maps.
    fn configuration(&self) -> Result<Configuration> {
        let mut configuration = self.read()?;
        crate::view::joined_users::complete(&mut configuration.spec)?;
        Ok(configuration)
    }

    /// The configuration that the container was created with.
    fn read(&self) -> Result<Configuration> {
        bundle::read_once(&self.bundle(), &self.folder)
    }

    /// The configuration as it was written.
    ///
    /// # Errors
    /// `Damaged` where it cannot be read.
    pub fn config(&self) -> Result<serde_json::Value> {
        let path = self.folder.file("config.json");
        let what = || format!("cannot read {}", path.display());
        let text = bowline_model::trust::read(&path).doing(Kind::Damaged, what)?;
        serde_json::from_slice(&text).doing(Kind::Damaged, what)
    }

    fn bundle(&self) -> PathBuf {
        self.record.container.as_ref().map(|container| container.bundle.clone()).unwrap_or_default()
    }

    fn wrong_state(&self, status: Status, why: &str) -> Error {
        Error::new(Kind::WrongState, format!("container {} is {}: {why}", self.id, status.as_str()))
    }
}

/// The streams of the calling process, for a process of the container; or a terminal, which it makes itself.
///
/// # Errors
/// As [`Streams::fit`].
fn streams(spec: &Spec, process: &Process, asked: &Streams) -> Result<(Stdio, Option<Awaited>)> {
    asked.fit(process)?;
    if process.terminal() == Some(true) {
        let (mut wish, awaited) = io::wish(asked.size.or_of(process))?;
        wish.keeps_lines = asked.keeps_lines;
        let stdio =
            Stdio { stdin: End::Null, stdout: End::Null, stderr: End::Null, terminal: Some(wish), kept: Vec::new() };
        return Ok((stdio, Some(awaited)));
    }
    let owner = Owner::of(spec, Some(process), None);
    let end = |fd: std::io::Result<OwnedFd>| -> Result<End> {
        let fd = fd.doing(Kind::Internal, || "cannot pass on a standard stream")?;
        inherited(fd, owner)
    };
    let stdin = end(std::io::stdin().as_fd().try_clone_to_owned())?;
    let stdout = end(std::io::stdout().as_fd().try_clone_to_owned())?;
    let stderr = end(std::io::stderr().as_fd().try_clone_to_owned())?;
    Ok((Stdio { stdin, stdout, stderr, terminal: None, kept: Vec::new() }, None))
}

/// A stream of the caller's. The process owns it, where that can be: it may open `/dev/stdout` again. It gets its own
/// null device in the place of the host's.
fn inherited(fd: OwnedFd, owner: Owner) -> Result<End> {
    let file = std::fs::File::from(fd);
    if io::is_null(&file)? {
        return Ok(End::Null);
    }
    let fd = OwnedFd::from(file);
    // Files of some file systems, and of other users, cannot be given away: so with runc.
    let _ = owner.take(&fd);
    Ok(End::Fd(fd))
}

/// Hands the terminal that a process has made to the caller's socket, or to the caller.
fn hand_terminal(awaited: Option<Awaited>, console: Option<&OwnedFd>) -> Result<Option<OwnedFd>> {
    let Some(master) = awaited.map(Awaited::master).transpose()? else { return Ok(None) };
    let Some(console) = console else { return Ok(Some(master)) };
    fd_passing::send(console.as_fd(), b"/dev/ptmx", master.as_fd())
        .doing(Kind::Internal, || "cannot send the terminal to the console socket")?;
    Ok(None)
}
