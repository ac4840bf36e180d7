//! One task under supervision: its state, its resources, and the actions that
//! its lifecycle asks for.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bowline_spec::Stop;
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use oci_spec::runtime::Spec;
use tokio::sync::{Mutex, Notify, RwLock, watch};
use tokio::task::JoinHandle;

use super::Supervisor;
use super::launches::Plan;
use crate::cgroup::{Cgroup, ExecGroup, Layout};
use crate::claimed_uid::ClaimedUid;
use crate::error::{Doing, Error, Kind, Result};
use crate::figures::ExecStarts;
use crate::folder::{Folder, Lock, Record};
use crate::health::Health;
use crate::io::{Attachment, Lines, WindowSize};
use crate::launch::{Held, Live};
use crate::lifecycle::{Action, Event, State, Status};
use crate::namespaces::Namespaces;
use crate::report::{ExitReport, StoppedBy};
use crate::request::{Particulars, TaskState};
use crate::reserve::Reserve;
use crate::rootfs::Null;
use crate::seccomp::Filter;
use crate::stats::Processes;
use crate::watch::{Finding, KernelLog};
use crate::{proc_stat, sys, worker};

/// How long a freeze may take: a process in the kernel freezes when it returns.
const FREEZE: Duration = Duration::from_secs(10);

/// When those that were killed and have not ended are looked at first, and how
/// often at last: v1 tells nobody that a cgroup was frozen.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_secs(2);

/// What a shim that leaves gives a task whose manager said nothing of that: with
/// what follows, less than the five seconds that a manager gives the shim.
const GRACE_OF_A_BUNDLE: Duration = Duration::from_secs(3);

/// An exec that runs.
pub struct RunningExec {
    pub number: u64,
    pub name: Option<String>,
    /// Of one with a name.
    pub pidfd: Option<OwnedFd>,
}

/// One task.
pub struct Task {
    pub id: TaskId,
    pub spec: Spec,
    pub namespaces: Namespaces,
    pub filter: Option<Filter>,
    pub record: RefCell<Record>,
    pub particulars: Particulars,
    /// Where the record is kept.
    pub folder: Folder,
    /// Room for its exit report, until that is written.
    pub reserve: RefCell<Option<Reserve>>,
    /// Somebody removes the task, and has its report.
    pub fetched: Notify,
    /// Held until it is over, of a member of a sandbox.
    pub lock: RefCell<Option<Lock>>,
    /// Its user, if that is its own: nobody else's while this is held.
    pub claimed: Option<ClaimedUid>,
    /// Where its root is mounted, if that is ours to take down.
    pub mounted: RefCell<Option<PathBuf>>,
    /// By which its program is executed, until it is.
    pub held: RefCell<Option<Held>>,
    /// It is a checkpoint's, and stopped until it is started.
    pub restored: Cell<bool>,
    /// Its hooks after the end have been run.
    pub told_of_its_end: Cell<bool>,
    /// Held while it is started, or removed: what comes meanwhile is told afterwards.
    pub starting: Mutex<()>,
    /// Held while a checkpoint is written: one at a time, and the end afterwards.
    pub checkpointing: Mutex<()>,
    /// Init was reaped: its pid may be another's.
    pub init_ended: watch::Sender<bool>,
    /// What takes its output, until that has ended.
    pub logging: RefCell<Option<JoinHandle<()>>>,
    /// All is done that its end asks for.
    pub over: watch::Sender<bool>,
    pub state: RefCell<State<Live>>,
    /// The word for it, for whoever waits for another.
    pub status: watch::Sender<Status>,
    /// What its checks have come to, if it has any.
    pub health: RefCell<Option<Health>>,
    pub stopped_by: Cell<Option<StoppedBy>>,
    /// What its watch has stopped it for.
    pub stopped_for: RefCell<Option<Finding>>,
    /// Gone once the exit has been reported.
    pub cgroup: RefCell<Option<Cgroup>>,
    /// The execs that run, by pid.
    pub execs: RefCell<BTreeMap<i32, RunningExec>>,
    /// By which one joins init's streams, once it runs.
    lines: OnceCell<Lines>,
    /// The same of execs with a name.
    pub exec_lines: RefCell<BTreeMap<String, Lines>>,
    pub next_exec: Cell<u64>,
    /// How long those that somebody asked for took to start.
    pub exec_starts: RefCell<ExecStarts>,
    /// An empty cgroup for an exec with a deadline, between two execs.
    pub exec_group: RefCell<Option<ExecGroup>>,
    /// The numbers of those in which an exec has left somebody.
    pub left_groups: RefCell<VecDeque<u64>>,
    pub made_groups: Cell<u64>,
    /// For streams of execs that are nowhere, from the first of them on.
    pub null: OnceCell<Null>,
    /// What `stats` keeps open between two readings.
    pub processes: RefCell<Processes>,
    /// Held while limits change: one update after the other.
    pub updating: Mutex<()>,
    /// How many events it has had.
    pub events: Cell<u64>,
    /// Kills for want of memory that were told of.
    pub oom_kills: Cell<u64>,
    /// Whether its own limit was met when the last was told of, where what counts
    /// may go before its end is heard of.
    pub limit_met: Cell<Option<u64>>,
    /// The kernel's, from when its kills are watched.
    pub kernel_log: OnceCell<KernelLog>,
    /// Read-locked by each exec until it is told of.
    pub telling: RwLock<()>,
    /// The exit report is made: no event but the exit follows.
    pub reported: Cell<bool>,
    pub exited: watch::Sender<Option<ExitReport>>,
    /// Signals that we sent to init.
    pub sent: RefCell<BTreeSet<i32>>,
    /// A kill is under way: another would change nothing.
    killing: Cell<bool>,
    /// Processes beside init that our kill met.
    pub killed: Cell<Option<u64>>,
}

impl Task {
    pub fn new(id: TaskId, plan: Plan, live: Live, cgroup: Cgroup) -> Task {
        let Plan { spec, namespaces, filter, mut record, particulars, folder, reserve, lock, claimed } = plan;
        record.pid = Some(live.pid);
        record.pid_started = proc_stat::started(live.pid);
        Task {
            id,
            spec,
            namespaces,
            filter,
            record: RefCell::new(record),
            particulars,
            folder,
            reserve: RefCell::new(reserve),
            fetched: Notify::new(),
            lock: RefCell::new(lock),
            claimed,
            mounted: RefCell::default(),
            held: RefCell::default(),
            restored: Cell::new(false),
            told_of_its_end: Cell::new(false),
            starting: Mutex::default(),
            checkpointing: Mutex::default(),
            init_ended: watch::Sender::new(false),
            logging: RefCell::default(),
            over: watch::Sender::new(false),
            state: RefCell::new(State::Created(live)),
            status: watch::Sender::new(Status::Created),
            health: RefCell::default(),
            stopped_by: Cell::new(None),
            stopped_for: RefCell::default(),
            cgroup: RefCell::new(Some(cgroup)),
            execs: RefCell::default(),
            lines: OnceCell::new(),
            exec_lines: RefCell::default(),
            next_exec: Cell::new(1),
            exec_starts: RefCell::default(),
            exec_group: RefCell::default(),
            left_groups: RefCell::default(),
            made_groups: Cell::new(1),
            null: OnceCell::new(),
            processes: RefCell::default(),
            updating: Mutex::default(),
            events: Cell::new(0),
            oom_kills: Cell::new(0),
            limit_met: Cell::new(None),
            kernel_log: OnceCell::new(),
            telling: RwLock::default(),
            reported: Cell::new(false),
            exited: watch::Sender::new(None),
            sent: RefCell::default(),
            killing: Cell::new(false),
            killed: Cell::new(None),
        }
    }

    /// When the lifecycle wants to hear of the time; not while a kill is under way.
    pub fn deadline(&self) -> Option<Instant> {
        if self.killing.get() { None } else { self.state.borrow().deadline() }
    }

    pub fn state(&self) -> TaskState {
        let state = self.state.borrow();
        let lines = self.lines.get();
        TaskState {
            id: self.id.clone(),
            status: state.status(),
            pid: state.live().map(|l| l.pid),
            terminal: lines.is_some_and(Lines::has_terminal),
            takes_input: lines.is_some_and(Lines::take_input),
            health: None,
            unwritten: None,
        }
    }

    pub fn state_with_health(&self) -> TaskState {
        let report = self.exited.borrow().clone().filter(|report| report.unwritten.is_some());
        TaskState { health: self.health.borrow().clone(), unwritten: report.map(Box::new), ..self.state() }
    }

    /// Keeps by what others join its streams.
    pub fn connect(&self, lines: Lines) {
        // It is started once.
        let _ = self.lines.set(lines);
    }

    /// Connects somebody to init's streams.
    pub fn attach(&self, attachment: &Attachment) -> Result<()> {
        self.lines_of(None)?.attach(attachment).map_err(|e| e.within(format_args!("task {}", self.id)))
    }

    /// Makes the terminal of init, or of the exec of that name, this large.
    pub fn resize(&self, exec: Option<&str>, size: WindowSize) -> Result<()> {
        self.lines_of(exec)?.resize(size).map_err(|e| e.within(format_args!("task {}", self.id)))
    }

    /// Bytes of its output that went nowhere so far.
    pub fn output_dropped(&self) -> u64 {
        self.lines.get().map_or(0, Lines::dropped)
    }

    fn lines_of(&self, exec: Option<&str>) -> Result<Lines> {
        if self.state.borrow().live().is_none() {
            return Err(Error::new(Kind::WrongState, format!("task {} has exited", self.id)));
        }
        let found = match exec {
            None => self.lines.get().cloned(),
            Some(name) => self.exec_lines.borrow().get(name).cloned(),
        };
        found.ok_or_else(|| match exec {
            None => Error::new(Kind::WrongState, format!("task {} is still being launched", self.id)),
            Some(name) => Error::new(Kind::NotFound, format!("task {} runs no command named {name}", self.id)),
        })
    }

    /// Tells whoever waits for another status.
    fn tell_status(&self) {
        let now = self.state.borrow().status();
        self.status.send_if_modified(|status| std::mem::replace(status, now) != now);
    }

    /// Waits until the task has run for `span` without a pause; false once it
    /// is to end.
    pub async fn runs_for(&self, span: Duration) -> bool {
        let mut status = self.status.subscribe();
        loop {
            let now = *status.borrow_and_update();
            match now {
                Status::Running => match tokio::time::timeout(span, status.changed()).await {
                    Err(_) => return true,
                    Ok(changed) if changed.is_ok() => {}
                    Ok(_) => return false,
                },
                Status::Created | Status::Paused if status.changed().await.is_ok() => {}
                Status::Created | Status::Paused | Status::Stopping | Status::Exited => return false,
            }
        }
    }

    /// What a stop does that says nothing else.
    pub fn stop_defaults(&self) -> (Signal, Duration) {
        let record = self.record.borrow();
        match &record.task {
            Some(task) => (task.stop.signal(), task.stop.grace()),
            None => (Stop::default().signal(), GRACE_OF_A_BUNDLE),
        }
    }

    pub fn with_cgroup<T>(&self, read: impl FnOnce(&Cgroup) -> T) -> Result<T> {
        let cgroup = self.cgroup.borrow();
        let cgroup = cgroup.as_ref().ok_or_else(|| self.has_exited())?;
        Ok(read(cgroup))
    }

    /// What `read` makes of its cgroup, if that is a unit's and still there.
    pub fn with_unit<T>(&self, read: impl FnOnce(&Cgroup) -> T) -> Option<T> {
        self.cgroup.borrow().as_ref().filter(|cgroup| cgroup.unit().is_some()).map(read)
    }

    pub fn has_exited(&self) -> Error {
        Error::new(Kind::NotFound, format!("task {} has exited", self.id))
    }

    /// The exit report, as soon as there is one.
    ///
    /// # Errors
    /// `NotFound` of a task whose launch has failed.
    pub async fn exit_report(&self) -> Result<ExitReport> {
        let (mut exited, mut over) = (self.exited.subscribe(), self.over.subscribe());
        tokio::select! {
            biased;
            report = exited.wait_for(Option::is_some) => {
                let report = report.doing(Kind::Internal, || "the task's exit was never reported")?;
                report.clone().ok_or_else(|| self.has_exited())
            }
            // Its launch has failed: there is none.
            _ = over.wait_for(|over| *over) => Err(self.has_exited()),
        }
    }

    /// Changes the state, and does what that asks for.
    pub fn happen(self: &Rc<Self>, supervisor: &Rc<Supervisor>, event: Event) -> Result<()> {
        let action = self.state.borrow_mut().on(event).map_err(|e| e.within(format_args!("task {}", self.id)))?;
        self.tell_status();
        match action {
            Action::Nothing | Action::Report => Ok(()),
            Action::Freeze => self.with_cgroup(|c| supervisor.layout.freeze(c, true))?.inspect_err(|_| {
                // As it was: what was not frozen runs.
                let _ = self.state.borrow_mut().on(Event::Resume);
                self.tell_status();
            }),
            Action::Thaw => self.with_cgroup(|c| supervisor.layout.freeze(c, false))?,
            Action::Signal(plan) => {
                // Somebody else may have frozen it: then it would hear nothing.
                if let Err(error) = self.with_cgroup(|c| supervisor.layout.freeze(c, false))? {
                    tracing::warn!(%error, "a stop may not be heard");
                }
                self.send(plan.signal.number())
            }
            Action::ThawAndSignal(plan) => {
                self.with_cgroup(|c| supervisor.layout.freeze(c, false))??;
                self.send(plan.signal.number())
            }
            Action::Kill => self.kill(supervisor),
        }
    }

    /// Waits until a freeze is complete. v1 tells nobody: it has to be asked.
    pub async fn frozen(self: &Rc<Self>, supervisor: &Rc<Supervisor>) -> Result<()> {
        let give_up = Instant::now() + FREEZE;
        let mut wait = Duration::from_micros(200);
        while !self.with_cgroup(|c| supervisor.layout.is_frozen(c))? {
            if Instant::now() > give_up {
                self.happen(supervisor, Event::Resume)?;
                let message = format!("task {} would not freeze within {FREEZE:?}; it runs on", self.id);
                return Err(Error::new(Kind::Timeout, message));
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Sends init a signal.
    pub fn signal(self: &Rc<Self>, supervisor: &Rc<Supervisor>, signal: Signal) -> Result<()> {
        if self.state.borrow().live().is_none() {
            return Err(self.has_exited());
        }
        if signal.number() == libc::SIGKILL {
            // A frozen process does not even die; and nothing may be left.
            return self.kill(supervisor);
        }
        self.send(signal.number())
    }

    /// Sends all processes a signal.
    pub fn signal_all(self: &Rc<Self>, supervisor: &Rc<Supervisor>, signal: Signal) -> Result<()> {
        if signal.number() == libc::SIGKILL {
            return self.signal(supervisor, signal);
        }
        self.with_cgroup(|c| supervisor.layout.signal(c, signal.number()))?;
        Ok(())
    }

    fn send(&self, signal: i32) -> Result<()> {
        let state = self.state.borrow();
        let live = state.live().ok_or_else(|| self.has_exited())?;
        match sys::pidfd_send_signal(live.pidfd.as_fd(), signal) {
            // Ended already, and not yet reaped.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            outcome => {
                // Each once, however often they are sent.
                self.sent.borrow_mut().insert(signal);
                outcome.doing(Kind::Internal, || format!("cannot signal task {}", self.id))
            }
        }
    }

    /// Kills everything in the task's cgroup, again and again until it is empty.
    fn kill(self: &Rc<Self>, supervisor: &Rc<Supervisor>) -> Result<()> {
        if self.killing.replace(true) {
            return Ok(());
        }
        let processes = self.with_cgroup(|c| supervisor.layout.processes(c).len())?;
        self.killed.set(Some(processes.saturating_sub(1) as u64));
        self.send(libc::SIGKILL)?;
        // The kernel kills all of a pid namespace with its init, which only has
        // to be thawed to die, unless somebody freezes it again, or a parent.
        let with_init = self.namespaces.is_new(libc::CLONE_NEWPID);
        let thawed = if with_init { self.with_cgroup(|c| supervisor.layout.freeze(c, false)) } else { Ok(Ok(())) };
        let (task, supervisor) = (self.clone(), supervisor.clone());
        tokio::task::spawn_local(async move {
            let mut ended = task.init_ended.subscribe();
            let ended = tokio::time::timeout(FIRST_LOOK, ended.wait_for(|ended| *ended));
            if !with_init || ended.await.is_err() {
                task.kill_rest(&supervisor).await;
            }
        });
        thawed?
    }

    /// Kills what is in the cgroup until nothing is; returns how many there were.
    pub async fn kill_rest(&self, supervisor: &Supervisor) -> u64 {
        let mut count = 0;
        loop {
            let killed = self.with_cgroup(|c| supervisor.layout.kill(c)).unwrap_or_default();
            if killed.is_empty() {
                return count;
            }
            count += killed.len() as u64;
            all_ended(&supervisor.layout, &killed).await;
        }
    }

    /// Sends the exec of that name a signal.
    pub fn signal_exec(&self, supervisor: &Rc<Supervisor>, name: &str, signal: Signal) -> Result<()> {
        let gone = || Error::new(Kind::NotFound, format!("exec {name} of task {} has exited", self.id));
        let execs = self.execs.borrow();
        let exec = execs.values().find(|exec| exec.name.as_deref() == Some(name)).ok_or_else(gone)?;
        let pidfd = exec.pidfd.as_ref().ok_or_else(gone)?;
        match sys::pidfd_send_signal(pidfd.as_fd(), signal.number()) {
            // Ended already, and not yet reaped.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            outcome => outcome.doing(Kind::Internal, || format!("cannot signal exec {name} of task {}", self.id))?,
        }
        if signal == Signal::KILL
            && let Ok(pidfd) = pidfd.try_clone()
        {
            let supervisor = supervisor.clone();
            tokio::task::spawn_local(async move { all_ended(&supervisor.layout, &[pidfd]).await });
        }
        Ok(())
    }
}

/// Waits until all that were sent SIGKILL have ended, also where somebody has
/// frozen their cgroup or a parent, or does so meanwhile.
pub async fn all_ended(layout: &Layout, killed: &[OwnedFd]) {
    let ended = async {
        for pidfd in killed.iter().filter_map(|pidfd| pidfd.try_clone().ok()) {
            worker::ended(pidfd).await;
        }
    };
    if !layout.holds_frozen() {
        return ended.await;
    }
    tokio::pin!(ended);
    let mut look = FIRST_LOOK;
    while tokio::time::timeout(look, &mut ended).await.is_err() {
        look = (look * 2).min(LOOK);
        if !killed.iter().any(|pidfd| layout.is_held(pidfd.as_fd())) {
            continue;
        }
        let free = || {
            layout.free(killed);
            Ok(())
        };
        if let Err(error) = worker::run("those that are frozen", free).await {
            tracing::warn!(%error, "processes that were killed stay frozen");
        }
    }
}
