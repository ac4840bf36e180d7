//! All tasks of one shim: the loop that waits for child exits and deadlines, and the operations that every phase of
//! a task's life shares. The other files in this folder handle the individual phases.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bowline_cgroup::{self as cgroup, Cgroup, Layout};
use bowline_error::{Error, Kind, Result};
use bowline_model::clock::Moment;
use bowline_model::events::Journal;
use bowline_model::folder::{EventCounts, Folder, StateDir};
use bowline_model::report::{ExitReport, StoppedBy};
use bowline_model::shutdown::StopPlan;
use bowline_model::stats::{self, Stats};
use bowline_model::status::Status;
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use bowline_sys as sys;
use tokio::sync::{Mutex, Notify};

use crate::facts::{ShimFacts, WantedUpgrade};
use crate::hostside::systemd::Systemd;
use crate::lifecycle::shim;
use crate::lifecycle::task::{Life, Trigger};
use crate::oci::host;
use crate::output::manager_events::EventSink;
use crate::process::inheritance::InheritedLimits;
use crate::process::page_release;
use crate::request::Process;
use crate::view::rootfs::layers;
use crate::waits;
use crate::waits::watched_value::WatchedValue;

use crate::supervise::children::{Children, Signal as Incoming};
use crate::supervise::sandbox::Sandbox;
use crate::supervise::sandbox::pause_slot::PauseSlot;
use crate::supervise::shim_cgroup::{Overhead, SETTLED, ShimCgroup};
use crate::supervise::task::Task;

/// The settings that a shim starts with.
#[derive(Debug)]
pub struct Config {
    /// The folder of the task or sandbox that the shim is started for; the caller holds its lock.
    pub folder: Folder,
    /// The folder of all sandboxes.
    pub state: StateDir,
    /// The cgroup that the shim's own resource use is charged to.
    pub shim_cgroup: ShimCgroup,
    /// Creates systemd units, for tasks whose cgroups are units.
    pub systemd: Systemd,
    /// What makes the shim leave; the end of its last task by default.
    pub leave: Leave,
    /// Receives the events of the shim's tasks. `None` writes them to the journal in the state folder.
    pub tell: Option<EventSink>,
    /// The limits that tasks get where their description names none.
    pub limits: InheritedLimits,
    /// Where `bowline-init` is, which by default is above the command of a task with the host view. Without it such a
    /// task has no init, and a description that asks for one is refused.
    pub init: Option<PathBuf>,
    /// Set when the folder is that of a task or a sandbox whose shim died, which this one takes over.
    pub adopt: Option<EventCounts>,
    /// Whether the process is a shim and nothing besides, whose program may be let go of page by page.
    pub only_a_shim: bool,
    /// Sockets to listen at that the command of the first task gets (sd_listen_fds(3)): the descriptors from 3 on.
    pub sockets: RefCell<Vec<OwnedFd>>,
}

impl Config {
    /// What follows the ids of the shim's tasks in names on the host. A manager's bundles are in no state folder of ours.
    pub(super) fn mark(&self) -> String {
        let is_ours = self.folder.path().parent() == Some(self.state.path());
        if is_ours { self.state.mark() } else { String::new() }
    }

    /// The configuration of a shim that leaves with its last task and writes the journal.
    pub fn new(folder: Folder, state: StateDir, shim_cgroup: ShimCgroup, systemd: Systemd) -> Config {
        Config {
            folder,
            state,
            shim_cgroup,
            systemd,
            leave: Leave::default(),
            tell: None,
            limits: InheritedLimits::default(),
            init: None,
            adopt: None,
            only_a_shim: false,
            sockets: RefCell::default(),
        }
    }
}

/// What makes a shim leave, which ends its loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Leave {
    /// When its last task ends, or when its manager goes away before it has launched any: see
    /// `Executor::leave_with`.
    #[default]
    WithLastTask,
    /// When its manager says so: see `Executor::leave`.
    WhenTold,
}

/// All tasks of one shim.
pub(crate) struct Supervisor {
    pub(crate) config: Config,
    /// What follows the ids of its tasks in names on the host.
    pub(super) mark: String,
    pub(super) layout: Rc<Layout>,
    pub(super) tasks: RefCell<BTreeMap<TaskId, Rc<Task>>>,
    pub(crate) children: Children,
    pub(super) facts: WatchedValue<ShimFacts>,
    /// Wakes the loop, which then checks again what it waits for.
    pub(super) changed: Notify,
    pub(super) overhead: Overhead,
    /// The sandbox that the tasks are members of, if this is a sandbox's shim.
    pub(super) sandbox: RefCell<Option<Rc<Sandbox>>>,
    /// The event journal; `None` if an event sink receives the events instead.
    pub(super) journal: Option<RefCell<Journal>>,
    /// Huge page sizes, read at the first request for statistics.
    pub(super) page_sizes: OnceCell<Vec<String>>,
    pub(crate) pause_slot: PauseSlot,
    /// Whether the launch of its own task has asked for the removal of that.
    pub(super) removes_own_folder: Cell<bool>,
    /// Held while a pause process starts: there is at most one.
    pub(super) starting_pause_process: Mutex<()>,
}

/// Waits for a deadline, if there is one.
async fn sleep_until(deadline: Option<Moment>) {
    if let Some(deadline) = deadline {
        crate::waits::sleep_until(deadline).await;
    }
}

/// The error of every launch after the shim was told to leave.
pub(super) fn leaving_now() -> Error {
    Error::new(Kind::WrongState, "the shim was told to leave")
}

impl Supervisor {
    /// Creates a supervisor without tasks, and moves the shim out of its manager's cgroup as the configuration
    /// says.
    ///
    /// # Errors
    /// Fails where the host lacks something that the shim needs.
    pub async fn begin(config: Config) -> Result<Rc<Supervisor>> {
        let layout = Rc::new(cgroup::detect()?);
        let mark = config.mark();
        let sandbox = cgroup::of_sandbox(&(config.folder.name() + &mark));
        let overhead = Overhead::begin(&config.shim_cgroup, &sandbox, &config.systemd, &layout).await?;
        // Prepared here while no caller waits, so that a launch has one level less to create. A manager that
        // receives events, or that charges the shim elsewhere, chooses its tasks' cgroups itself. Where a task is taken
        // over it is there, or whoever launched the task in vain has just removed it.
        if config.tell.is_none() && config.adopt.is_none() && config.shim_cgroup == ShimCgroup::Overhead {
            layout.prepare(&sandbox)?;
        }
        Ok(Rc::new(Supervisor::with(config, mark, layout, overhead)))
    }

    /// The name of a task on the host.
    pub(super) fn named(&self, id: &TaskId) -> String {
        format!("{id}{}", self.mark)
    }

    pub(super) fn with(config: Config, mark: String, layout: Rc<Layout>, overhead: Overhead) -> Supervisor {
        let journal = config.tell.is_none().then(|| RefCell::new(Journal::new(config.state.events())));
        Supervisor {
            config,
            mark,
            layout,
            tasks: RefCell::default(),
            children: Children::default(),
            facts: WatchedValue::default(),
            changed: Notify::new(),
            overhead,
            sandbox: RefCell::default(),
            journal,
            page_sizes: OnceCell::new(),
            pause_slot: PauseSlot::default(),
            removes_own_folder: Cell::default(),
            starting_pause_process: Mutex::default(),
        }
    }

    /// Runs the loop until the last task has ended and all of its output is written, or until the manager goes away
    /// without having launched any. Needs a `LocalSet`.
    pub async fn run(self: &Rc<Self>) -> Result<()> {
        let served = self.serve().await;
        self.pause_slot.leave(&self.children).await;
        self.overhead.end(&self.layout);
        served
    }

    async fn serve(self: &Rc<Self>) -> Result<()> {
        let mut child_ended = Incoming::new(&[libc::SIGCHLD])?;
        let mut leave = Incoming::new(&[libc::SIGTERM, libc::SIGINT])?;
        if self.facts.read(|facts| facts.upgrades.begun > 0) {
            // What came while one program was executed in the other's place is handled now.
            sys::block_signals(&[]);
            self.children.sweep();
        }
        loop {
            if self.is_over() {
                return Ok(());
            }
            let deadline = self.next_deadline();
            tokio::select! {
                () = child_ended.received() => self.children.sweep(),
                () = leave.received() => self.stop_all(),
                () = self.changed.notified() => {}
                () = sleep_until(deadline), if deadline.is_some() => self.tick(),
            }
        }
    }

    /// Whether nothing keeps the shim alive any more.
    pub fn is_over(&self) -> bool {
        self.facts.read(|facts| facts.life.is_over())
    }

    /// Whether the shim was told to leave.
    pub fn is_leaving(&self) -> bool {
        self.facts.read(|facts| facts.life.is_leaving())
    }

    /// Asks for an upgrade, unless one is under way; returns the number of that.
    pub fn begin_upgrade(&self, wanted: WantedUpgrade) -> u64 {
        self.facts.update(|facts| {
            let upgrades = &mut facts.upgrades;
            if upgrades.wanted.is_none() {
                upgrades.begun += 1;
                (upgrades.wanted, upgrades.outcome) = (Some(wanted), None);
            }
            upgrades.begun
        })
    }

    /// The upgrade that was asked for.
    pub async fn upgrade_wanted(&self) -> WantedUpgrade {
        self.facts.until(|facts| facts.upgrades.wanted.clone()).await
    }

    /// Says how the upgrade that was asked for has ended.
    pub fn end_upgrade(&self, outcome: Result<()>) {
        self.facts.update(|facts| (facts.upgrades.wanted, facts.upgrades.outcome) = (None, Some(outcome)));
    }

    /// Waits for the end of the upgrade with this number.
    pub async fn upgraded(&self, number: u64) -> Result<()> {
        let ended = |facts: &ShimFacts| match &facts.upgrades {
            // A later one was begun after its end.
            upgrades if upgrades.begun > number => Some(Ok(())),
            upgrades => upgrades.outcome.clone(),
        };
        self.facts.until(ended).await
    }

    /// Runs `act` to completion, even if its caller goes away.
    pub async fn work<T: 'static>(
        self: &Rc<Self>,
        what: &'static str,
        act: impl AsyncFnOnce(&Rc<Self>) -> Result<T> + 'static,
    ) -> Result<T> {
        let supervisor = self.clone();
        waits::finish(what, None, Box::pin(async move { act(&supervisor).await })).await
    }

    /// Like [`Self::work`], and keeps the shim alive from this call until `act` is done.
    pub async fn work_held<T: 'static>(
        self: &Rc<Self>,
        what: &'static str,
        act: impl AsyncFnOnce(&Rc<Self>) -> Result<T> + 'static,
    ) -> Result<T> {
        self.hold();
        let act = async move |it: &Rc<Self>| {
            let done = act(it).await;
            it.release();
            done
        };
        self.work(what, act).await
    }

    /// Like [`Self::work`], for one task.
    pub async fn work_on<T: 'static>(
        self: &Rc<Self>,
        id: &TaskId,
        what: &'static str,
        act: impl AsyncFnOnce(&Rc<Self>, &TaskId) -> Result<T> + 'static,
    ) -> Result<T> {
        let (supervisor, task) = (self.clone(), id.clone());
        waits::finish(what, Some(id.clone()), Box::pin(async move { act(&supervisor, &task).await })).await
    }

    /// Handles the loss of the manager: the shim leaves if the manager launched nothing, because no other caller
    /// would.
    pub fn manager_gone(&self) {
        if self.config.leave == Leave::WithLastTask {
            self.apply(shim::Trigger::ManagerGone);
            if self.facts.read(|facts| facts.life.is_leaving()) {
                tracing::info!("nobody launched a task; leaving");
            }
        }
    }

    /// Applies a trigger to the shim's life and wakes the loop.
    pub(super) fn apply(&self, trigger: shim::Trigger) {
        self.facts.update(|facts| facts.life.apply(trigger));
        self.changed.notify_one();
    }

    fn next_deadline(&self) -> Option<Moment> {
        self.tasks.borrow().values().filter_map(|task| task.deadline()).min()
    }

    fn tick(self: &Rc<Self>) {
        let now = Moment::now();
        let due: Vec<Rc<Task>> = {
            let tasks = self.tasks.borrow();
            tasks.values().filter(|t| t.deadline().is_some_and(|d| d <= now)).cloned().collect()
        };
        for task in due {
            if let Err(error) = task.apply(&self.layout, Trigger::Tick(now)) {
                tracing::error!(%error, "a deadline could not be kept");
            }
        }
    }

    /// Stops every task, because the host shuts down or the shim is asked to leave. Each task is stopped as if by a
    /// request of its own, so that its exit is recorded.
    pub fn stop_all(self: &Rc<Self>) {
        tracing::info!("asked to leave");
        let again = self.facts.read(|facts| facts.life.is_leaving());
        self.apply(shim::Trigger::Leave);
        if let Some(sandbox) = self.sandbox() {
            // In this order, so that a task that was frozen while it was launched ends before it runs anything.
            self.stop_tasks();
            sandbox.thaw(&self.layout);
            if again {
                return;
            }
            self.hold();
            self.leave_after_members(sandbox);
            return;
        }
        self.stop_tasks();
    }

    /// Removes the sandbox once its members are over. Whoever calls this holds the shim until then.
    pub(super) fn leave_after_members(self: &Rc<Self>, sandbox: Rc<Sandbox>) {
        let supervisor = self.clone();
        waits::begin(move || {
            let (supervisor, sandbox) = (supervisor.clone(), sandbox.clone());
            async move {
                supervisor.members_are_over().await;
                waits::work("the removal of the sandbox", None, async move {
                    supervisor.leave_sandbox(&sandbox).await;
                    supervisor.release();
                });
            }
        });
    }

    fn stop_tasks(self: &Rc<Self>) {
        let ids: Vec<TaskId> = self.tasks.borrow().keys().cloned().collect();
        for id in ids {
            if let Err(error) = self.shutdown(&id, None, None, StoppedBy::Request) {
                tracing::error!(%error, %id, "cannot stop a task");
            }
        }
    }

    /// Moves the shim to the cgroup that it is charged to, once a task has run for a moment.
    pub(super) fn settle(self: &Rc<Self>, id: TaskId) {
        let Ok(task) = self.task(&id) else { return };
        task.note_settling();
        self.settle_in_time(&task);
    }

    /// Does so when that is due.
    pub(super) fn settle_in_time(self: &Rc<Self>, task: &Rc<Task>) {
        let (supervisor, task) = (self.clone(), task.clone());
        waits::begin(move || {
            let (supervisor, task) = (supervisor.clone(), task.clone());
            async move {
                let Some(then) = task.facts.read(|facts| facts.settles_at) else { return };
                crate::waits::sleep_until(then).await;
                task.facts.update_silently(|facts| facts.settles_at = None);
                waits::work("a move of the shim", Some(task.id.clone()), supervisor.settle_now(task));
            }
        });
    }

    async fn settle_now(self: Rc<Self>, task: Rc<Task>) {
        // A task in a systemd unit is watched already.
        if task.facts.read(|facts| facts.record.unit.is_none() && facts.life != Life::Removed) {
            self.watch_oom(&task);
        }
        if let Err(error) = self.overhead.enter(&self.layout, || self.any_lives()).await {
            // Failing to charge the shim must never affect a task.
            tracing::error!(%error, "the shim is charged to the root cgroup");
        }
        self.may_be_idle();
    }

    /// Gives back memory that a launch or a takeover has needed: the shim may be idle for days.
    pub(super) fn may_be_idle(&self) {
        page_release::left();
        if self.config.only_a_shim {
            page_release::let_go_of_code();
        }
    }

    /// Checks that a launch may go on. Checked again once the launched task can be stopped, because an earlier stop
    /// found no task to stop.
    ///
    /// # Errors
    /// `WrongState` when the shim is leaving, or its sandbox is being removed by force.
    pub(super) fn may_launch(&self) -> Result<()> {
        if self.facts.read(|facts| facts.life.is_leaving()) {
            return Err(leaving_now());
        }
        self.sandbox().map_or(Ok(()), |sandbox| sandbox.may_launch())
    }

    /// Waits for `act`, which depends on another process, unless the shim is told to leave first.
    ///
    /// # Errors
    /// `WrongState` when the shim is told to leave; else the error of `act`.
    pub(super) async fn until_leaving<T>(&self, act: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            done = act => done,
            () = self.facts.until_it(|facts| facts.life.is_leaving()) => Err(leaving_now()),
        }
    }

    pub(super) fn any_lives(&self) -> bool {
        self.tasks.borrow().values().any(|task| task.is_live())
    }

    pub fn task(&self, id: &TaskId) -> Result<Rc<Task>> {
        let tasks = self.tasks.borrow();
        let found = tasks.get(id).cloned();
        found.ok_or_else(|| Error::new(Kind::NotFound, format!("there is no task named {id} here")))
    }

    pub fn signal(self: &Rc<Self>, id: &TaskId, signal: Signal, all: bool) -> Result<()> {
        self.signal_executed(&self.task(id)?, signal, all)
    }

    pub fn signal_exec(&self, id: &TaskId, exec: &str, signal: Signal) -> Result<()> {
        self.task(id)?.signal_exec(&self.layout, exec, signal)
    }

    /// Waits until no task with this id is being launched.
    pub async fn launched(&self, id: &TaskId) {
        self.facts.until_it(|facts| !facts.launching.contains(id)).await;
    }

    /// Stops a task. If its launch is under way, waits for that first.
    pub async fn stop(self: &Rc<Self>, id: &TaskId, signal: Option<Signal>, grace: Option<Duration>) -> Result<()> {
        if self.task(id).is_err() {
            self.launched(id).await;
        }
        self.shutdown(id, signal, grace, StoppedBy::Request)
    }

    pub(super) fn shutdown(
        self: &Rc<Self>,
        id: &TaskId,
        signal: Option<Signal>,
        grace: Option<Duration>,
        by: StoppedBy,
    ) -> Result<()> {
        let task = self.task(id)?;
        if task.is_live() {
            // The first reason counts.
            task.facts.update(|facts| facts.history.stopped_by.get_or_insert(by).to_owned());
        }
        let (default_signal, default_grace) = task.stop_defaults();
        let now = Moment::now();
        let plan = StopPlan::new(signal.unwrap_or(default_signal), grace.unwrap_or(default_grace), now);
        let done = self.stop_executed(&task, plan, now);
        task.remember();
        self.changed.notify_one();
        done
    }

    pub fn processes(&self, id: &TaskId) -> Result<Vec<Process>> {
        let task = self.task(id)?;
        let pids = task.with_cgroup(|cgroup| self.layout.processes(cgroup))?;
        Ok(task.facts.read(|facts| {
            let execs = facts.execs_by_pid();
            let process = |pid| {
                let exec = execs.get(&pid);
                Process { pid, exec: exec.map(|(number, _)| *number), name: exec.and_then(|(_, e)| e.name.clone()) }
            };
            pids.into_iter().map(process).collect()
        }))
    }

    pub(super) fn page_sizes(&self) -> &[String] {
        self.page_sizes.get_or_init(|| host::hugepage_sizes().into_iter().collect())
    }

    pub fn stats(&self, id: &TaskId) -> Result<Stats> {
        let task = self.task(id)?;
        if let Some(last) = task.handles.borrow().last_stats.as_deref() {
            return Ok(last.clone());
        }
        let read = |cgroup: &Cgroup| stats::read(&self.layout, cgroup, self.page_sizes());
        // Those that somebody has moved in some hierarchies alone cost a look at all of them: too much for each reading.
        let (mut stats, pids) = task.with_cgroup(|cgroup| (read(cgroup), self.layout.freezable(cgroup)))?;
        stats.processes = task.facts.read(|facts| {
            let execs = facts.execs_by_pid();
            let number = |pid| execs.get(&pid).map(|(number, _)| *number);
            task.handles.borrow_mut().processes.read(&pids, number)
        });
        Ok(stats)
    }

    /// Waits until a task has ended and returns its exit report.
    pub async fn wait(&self, id: &TaskId) -> Result<ExitReport> {
        // A launch that fails leaves no report.
        self.launched(id).await;
        let task = self.task(id)?;
        let report = task.exit_report().await?;
        task.end_told.update(|told| *told = true);
        Ok(report)
    }

    /// Forgets a task that has ended.
    pub async fn remove(self: &Rc<Self>, id: &TaskId) -> Result<()> {
        let task = self.task(id)?;
        let status = task.status();
        match status {
            Status::Exited => {}
            // Its program does not run yet.
            Status::Created => task.signal(&self.layout, Signal::KILL)?,
            Status::Running | Status::Paused | Status::Stopping => {
                let message = format!("task {id} is {} and cannot be removed", status.as_str());
                return Err(Error::new(Kind::WrongState, message).hint("stop it first"));
            }
        }
        // The caller that removes a task knows how it ended.
        task.facts.update(|facts| facts.fetched = true);
        task.facts.until_it(|facts| facts.life.is_over()).await;
        // Removals of the same task take turns.
        let _turn = task.turns.starting.lock().await;
        if self.task(id).is_err() {
            return Ok(());
        }
        let first = task.facts.read(|facts| facts.life == Life::Over);
        task.apply(&self.layout, Trigger::Remove)?;
        if first {
            self.run_poststop_hooks(&task).await;
        }
        let mounted = task.facts.read(|facts| facts.mounted.clone());
        if let Some(root) = mounted {
            layers::unmount(&root).await?;
        }
        if task.facts.read(|facts| facts.record.task.is_none()) {
            // The record says what to undo, and nothing is left to undo.
            task.folder.forget_record();
        }
        task.apply(&self.layout, Trigger::Removed)?;
        self.tasks.borrow_mut().remove(id);
        if task.owns_folder {
            task.folder.remove_unheld(task.facts.read(|facts| facts.report.as_ref().map(|report| report.events)));
        }
        Ok(())
    }

    /// Keeps the shim from leaving until [`Self::release`]: for a launch, a task, or the making or removal of a
    /// sandbox.
    pub(super) fn hold(&self) {
        self.apply(shim::Trigger::Begun);
    }

    /// Ends one [`Self::hold`].
    pub(super) fn release(&self) {
        self.apply(shim::Trigger::Done);
    }
}

impl Task {
    /// Notes that the shim moves to its own cgroup in a moment.
    pub(super) fn note_settling(&self) {
        self.facts.update_silently(|facts| facts.settles_at = Some(Moment::now().after(SETTLED)));
    }
}
