//! One task under supervision: its state, its resources, and the actions that
//! its lifecycle asks for.

pub(crate) mod callers;
pub(crate) mod checkpoints;
pub(crate) mod ending;
pub(crate) mod executing;
pub(crate) mod health;
pub(crate) mod hooks;
pub(crate) mod launch_plan;
pub(crate) mod launches;
pub(crate) mod nesting;
pub(crate) mod pausing;
pub(crate) mod planning;
mod removal;
pub(crate) mod timeout;
pub(crate) mod updates;
pub(crate) mod watching;
pub(crate) mod workload;

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::rc::Rc;
use std::time::Duration;

use bowline_cgroup::{Cgroup, Layout};
use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::clock::Moment;
use bowline_model::folder::Folder;
use bowline_model::liveness::Live;
use bowline_model::log_line::LogStream;
use bowline_model::report::{ExitReport, UnwrittenOutput};
use bowline_model::status::Status;
use bowline_spec::Stop;
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use bowline_sys::{self as sys, proc_stat};
use oci_spec::runtime::Spec;
use tokio::sync::Mutex;

use crate::facts::TaskFacts;
use crate::lifecycle::task::{Action, Life, Trigger};
use crate::output::io::{Attachment, Lines, Tail, WindowSize};
use crate::process::worker;
use crate::request::TaskState;
use crate::rights::seccomp::Filter;
use crate::start::entrance::Entrance;
use crate::supervise::exec::slots::ExecSlots;
use crate::supervise::handles::{Dying, TaskHandles};
use crate::view::namespaces::Namespaces;
use crate::waits;
use crate::waits::claim::Claim;
use crate::waits::watched_value::WatchedValue;
use launch_plan::LaunchPlan;

/// When processes that were killed and have not ended are checked first, and the longest interval between checks:
/// cgroup v1 does not report that a cgroup was frozen.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_secs(2);

/// The grace period that a leaving shim gives a task whose manager set none. Together with what follows, it is less
/// than the five seconds that a manager gives the shim.
const GRACE_OF_A_BUNDLE: Duration = Duration::from_secs(3);

pub struct Task {
    pub id: TaskId,
    pub spec: Box<Spec>,
    pub namespaces: Namespaces,
    pub filter: Option<Filter>,
    /// Where the record is kept.
    pub folder: Folder,
    /// Whether the executor has made the folder, and removes it with the task.
    pub owns_folder: bool,
    pub facts: WatchedValue<TaskFacts>,
    /// Until when whoever has asked for its end waits for that, the most impatient.
    pub asked_to_end: WatchedValue<Option<Moment>>,
    /// Whether a caller was told how it has ended.
    pub end_told: WatchedValue<bool>,
    pub handles: RefCell<TaskHandles>,
    pub turns: Turns,
    /// Whether init was ordered to execute the program, and runs no hooks before that.
    pub executes: Cell<bool>,
}

/// Locks for operations that change the same task, in the order in which they are taken.
#[derive(Default)]
pub struct Turns {
    /// Held while the task is started or removed: what happens meanwhile is reported afterwards.
    pub starting: Mutex<()>,
    /// Held while a checkpoint is written: one at a time, and the task's end comes afterwards.
    pub checkpointing: Mutex<()>,
    /// Held while a freeze is not complete.
    pub pausing: Mutex<()>,
    /// Held while limits change: one update after the other.
    pub updating: Mutex<()>,
    /// Held until all killed processes have ended: a process that is moved to where it can die is in no list any
    /// more.
    pub clearing: Mutex<()>,
}

impl Task {
    /// Checks that the task's folder has this inode.
    ///
    /// # Errors
    /// `NotFound` when it has not: then another task of this name is meant.
    pub fn check_folder(&self, inode: u64) -> Result<()> {
        match std::fs::symlink_metadata(self.folder.path()) {
            Ok(folder) if folder.ino() == inode => Ok(()),
            _ => Err(Error::new(
                Kind::NotFound,
                format!("there is no such task here, but another one named {}", self.id),
            )),
        }
    }

    /// A task as `plan` has it, whose init is `live`.
    pub fn new(id: TaskId, mut plan: LaunchPlan, live: Live, claim: Claim, tails: [Tail; 2], cgroup: Cgroup) -> Task {
        plan.record.pid = Some(live.pid);
        plan.record.pid_started = proc_stat::started(live.pid);
        Task::with(id, plan, TaskHandles::new(Some(live), claim, tails, Some(cgroup)))
    }

    /// A task as `plan` has it, whose record says which process is its init.
    pub fn with(id: TaskId, plan: LaunchPlan, handles: TaskHandles) -> Task {
        let LaunchPlan { spec, namespaces, filter, record, particulars, folder, owns_folder, .. } = plan;
        let LaunchPlan { reserve, exec_slots, lock, claimed, shared, .. } = plan;
        let exec_slots = exec_slots.or_else(|| record.outlives_shim().then(|| ExecSlots::of(&folder)));
        let handles = TaskHandles { exec_slots, reserve, lock, claimed, shared, ..handles };
        Task {
            id,
            spec,
            namespaces,
            filter,
            folder,
            owns_folder,
            facts: WatchedValue::new(TaskFacts::new(record, particulars)),
            asked_to_end: WatchedValue::default(),
            end_told: WatchedValue::default(),
            handles: RefCell::new(handles),
            turns: Turns::default(),
            executes: Cell::default(),
        }
    }

    /// Holds what an init with this pid was launched in, where it may leave that. Called before its program is executed.
    pub(super) fn hold_entrance(&self, pid: i32) -> Result<()> {
        let (is_bowline_init, is_recorded) = self.facts.read(|facts| (facts.record.init, facts.record.outlives_shim()));
        let entrance = Entrance::of_new(pid, &self.namespaces, self.filter.as_ref(), is_bowline_init)?;
        if is_recorded {
            let launched_in = entrance.identities(pid)?;
            self.facts.update_silently(|facts| facts.record.launched_in = launched_in);
        }
        self.handles.borrow_mut().entrance = entrance;
        Ok(())
    }

    /// When the lifecycle needs the next [`Trigger::Tick`].
    pub fn deadline(&self) -> Option<Moment> {
        self.facts.read(|facts| facts.life.deadline())
    }

    /// The word for the task's state.
    pub fn status(&self) -> Status {
        self.facts.read(|facts| facts.life.status())
    }

    /// Whether init can be signalled, or could a moment ago.
    pub fn is_live(&self) -> bool {
        self.facts.read(|facts| facts.life.is_live())
    }

    /// Init's pid, until its exit is known; init may have been reaped a moment before that.
    pub fn pid(&self) -> Option<i32> {
        self.facts.read(|facts| facts.record.pid.filter(|_| facts.life.is_live()))
    }

    pub fn state(&self) -> TaskState {
        let handles = self.handles.borrow();
        TaskState {
            id: self.id.clone(),
            status: self.status(),
            pid: self.pid(),
            terminal: handles.lines().is_some_and(Lines::has_terminal),
            takes_input: handles.lines().is_some_and(Lines::take_input),
            health: self.facts.read(|facts| facts.history.health.clone()),
            unwritten: self.unwritten().map(Box::new),
        }
    }

    /// The exit report, while it cannot be written.
    pub fn unwritten(&self) -> Option<ExitReport> {
        self.facts.read(|facts| facts.report.as_ref().filter(|report| report.unwritten.is_some()).cloned())
    }

    /// Attaches a client to init's streams.
    pub fn attach(&self, attachment: &Attachment) -> Result<()> {
        self.lines_of(None)?.attach(attachment).map_err(|e| e.within(format_args!("task {}", self.id)))
    }

    /// Resizes the terminal of init, or of the exec with that name.
    pub fn resize(&self, exec: Option<&str>, size: WindowSize) -> Result<()> {
        self.lines_of(exec)?.resize(size).map_err(|e| e.within(format_args!("task {}", self.id)))
    }

    /// Bytes of the task's output that were dropped so far.
    pub fn output_dropped(&self) -> u64 {
        self.handles.borrow().lines().map_or(0, Lines::dropped)
    }

    /// What the files have not taken that `description` names for output.
    pub fn output_unwritten(&self, description: &bowline_spec::Task) -> Vec<UnwrittenOutput> {
        let output = &description.output;
        let said = [(LogStream::Stdout, &output.stdout), (LogStream::Stderr, &output.stderr)];
        let progress = self.handles.borrow().lines().map(Lines::progress).unwrap_or_default();
        let own = said.into_iter().zip(progress).filter(|((_, path), _)| path.is_some());
        let lost = own.filter_map(|((stream, _), progress)| Some((stream, progress.refused?)));
        let all = lost.map(|(stream, refused)| {
            UnwrittenOutput::new(stream, refused.bytes, &std::io::Error::from_raw_os_error(refused.errno))
        });
        all.collect()
    }

    /// Waits until the exec with this name has been executed, could not be, or is not known: a name is known from the
    /// request on.
    pub async fn until_exec_begins(&self, name: &str) {
        self.facts.until_it(|facts| !facts.starts_exec(name)).await;
    }

    fn lines_of(&self, exec: Option<&str>) -> Result<Lines> {
        if !self.is_live() {
            return Err(Error::new(Kind::WrongState, format!("task {} has exited", self.id)));
        }
        let handles = self.handles.borrow();
        match exec {
            None => handles
                .lines()
                .cloned()
                .ok_or_else(|| Error::new(Kind::WrongState, format!("task {} is still being launched", self.id))),
            Some(name) => {
                let number = self.facts.read(|facts| facts.exec_named(name));
                let lines = number.and_then(|number| handles.execs.get(&number)?.lines().cloned());
                lines
                    .ok_or_else(|| Error::new(Kind::NotFound, format!("task {} runs no command named {name}", self.id)))
            }
        }
    }

    /// The signal and grace period of a stop that names none.
    pub fn stop_defaults(&self) -> (Signal, Duration) {
        self.facts.read(|facts| match &facts.record.task {
            Some(task) => (task.stop.signal(), task.stop.grace()),
            None => (Stop::default().signal(), GRACE_OF_A_BUNDLE),
        })
    }

    pub fn with_cgroup<T>(&self, read: impl FnOnce(&Cgroup) -> T) -> Result<T> {
        let handles = self.handles.borrow();
        let cgroup = handles.cgroup.as_ref().ok_or_else(|| self.has_exited())?;
        Ok(read(cgroup))
    }

    /// Calls `read` with the task's cgroup, if that is a unit's and still there.
    pub fn with_unit<T>(&self, read: impl FnOnce(&Cgroup) -> T) -> Option<T> {
        self.with_cgroup(|cgroup| cgroup.unit().is_some().then(|| read(cgroup))).ok().flatten()
    }

    pub fn has_exited(&self) -> Error {
        Error::new(Kind::NotFound, format!("task {} has exited", self.id))
    }

    /// Waits for the exit report.
    ///
    /// # Errors
    /// `NotFound` for a task whose launch has failed.
    pub async fn exit_report(&self) -> Result<ExitReport> {
        let report = self.facts.until(|facts| facts.life.is_exit_published().then(|| facts.report.clone()));
        // A failed launch has no report.
        report.await.ok_or_else(|| self.has_exited())
    }

    /// Applies a trigger to the task's life, and performs the action that follows.
    pub fn apply(self: &Rc<Self>, layout: &Rc<Layout>, trigger: Trigger) -> Result<()> {
        let until = match trigger {
            Trigger::Stop(plan, _) => Some(plan.kill_at),
            Trigger::Kill => Some(Moment::now()),
            _ => None,
        };
        if let Some(until) = until {
            self.asked_to_end.update(|at| *at = Some(at.map_or(until, |at| at.min(until))));
        }
        let action = self.facts.update(|facts| {
            let before = facts.life;
            let action = facts.life.apply(trigger);
            if facts.life != before {
                facts.steps += 1;
                facts.step_due = None;
            }
            action
        });
        match action.map_err(|e| e.within(format_args!("task {}", self.id)))? {
            Action::Nothing => Ok(()),
            Action::Freeze => self.with_cgroup(|c| layout.freeze(c, true))?.inspect_err(|_| {
                // Back to the old state: processes that were frozen run again.
                let _ = self.facts.update(|facts| facts.life.apply(Trigger::Resume));
                let _ = self.with_cgroup(|c| layout.freeze(c, false));
            }),
            Action::Thaw => self.with_cgroup(|c| layout.freeze(c, false))?.inspect_err(|_| {
                // The resume can be tried again.
                let _ = self.facts.update(|facts| facts.life.apply(Trigger::Pause));
            }),
            Action::Signal(signal) => self.send_to_end(layout, signal),
            Action::ThawAndSignal(signal) => {
                self.with_cgroup(|c| layout.freeze(c, false))??;
                self.send(signal.number())?;
                self.be_heard(layout);
                Ok(())
            }
            Action::Kill => self.kill(layout),
        }
    }

    /// Takes the task's processes back into its cgroup if they do not end for a stop or a kill because somebody has moved
    /// them into a cgroup that is frozen.
    fn be_heard(self: &Rc<Self>, layout: &Rc<Layout>) {
        let (task, layout, first_look) = (self.clone(), layout.clone(), Moment::now().after(FIRST_LOOK));
        if !layout.holds_frozen() {
            return;
        }
        waits::begin(move || {
            let (task, layout) = (task.clone(), layout.clone());
            async move {
                let ended = task.facts.until_it(|facts| facts.life.is_reaped());
                if tokio::time::timeout(first_look.to_come(), ended).await.is_ok() {
                    return;
                }
                let take_back =
                    |cgroup: &Cgroup| worker::start("those that are frozen", || layout.take_back_frozen(cgroup));
                // Without a cgroup it has ended.
                let Ok(Ok(worker)) = task.with_cgroup(take_back) else { return };
                if let Err(error) = worker.answer().await {
                    tracing::warn!(%error, "processes that are to end stay frozen");
                }
            }
        });
    }

    /// Sends a signal to init.
    pub fn signal(self: &Rc<Self>, layout: &Rc<Layout>, signal: Signal) -> Result<()> {
        if !self.is_live() {
            return Err(self.has_exited());
        }
        if signal == Signal::KILL || self.is_held_from(signal) {
            // A frozen process does not even die, and no process may be left.
            return self.apply(layout, Trigger::Kill);
        }
        self.send(signal.number())
    }

    /// Whether the kernel would not deliver `signal`, although it ends a process: an init that waits for its start is
    /// the first of its pid namespace, and handles nothing. It dies all the same, as it does with runc.
    fn is_held_from(&self, signal: Signal) -> bool {
        signal.ends_by_default() && self.status() == Status::Created && self.namespaces.is_new(libc::CLONE_NEWPID)
    }

    /// Sends a signal to all processes of the task.
    pub fn signal_all(self: &Rc<Self>, layout: &Rc<Layout>, signal: Signal) -> Result<()> {
        if signal == Signal::KILL || self.is_held_from(signal) {
            return self.signal(layout, signal);
        }
        self.will_send(signal.number());
        self.with_cgroup(|c| layout.signal(c, signal.number()))?;
        self.keep_sent(signal.number(), true);
        Ok(())
    }

    fn send_to_end(self: &Rc<Self>, layout: &Rc<Layout>, signal: Signal) -> Result<()> {
        // Another process may have frozen the task, which would then not handle the signal.
        if let Err(error) = self.with_cgroup(|c| layout.freeze(c, false))? {
            tracing::warn!(%error, "a stop may not be heard");
        }
        self.send(signal.number())?;
        self.be_heard(layout);
        Ok(())
    }

    /// Sends the signal of a stop that the shim before has recorded, and has not come to send.
    pub(super) fn go_on_stopping(self: &Rc<Self>, layout: &Rc<Layout>) -> Result<()> {
        let Life::Stopping(plan) = self.facts.read(|facts| facts.life) else { return Ok(()) };
        let signal = plan.signal;
        let was_sent = self.handles.borrow().exec_slots.as_ref().is_some_and(|slots| slots.was_sent(signal.number()));
        if was_sent { Ok(()) } else { self.send_to_end(layout, signal) }
    }

    fn send(&self, signal: i32) -> Result<()> {
        // What has ended by others' signals is not ended by ours.
        if self.handles.borrow().init.is_none() {
            return Err(self.has_exited());
        }
        let is_first = self.will_send(signal);
        let sent = {
            let handles = self.handles.borrow();
            let init = handles.init.as_ref().ok_or_else(|| self.has_exited())?;
            // Init forwards what it can wait for. Nothing waits for a stop.
            let workload = if signal == libc::SIGSTOP { self.open_workload() } else { None };
            sys::pidfd_send_signal(workload.as_ref().unwrap_or(&init.pidfd).as_fd(), signal)
        };
        match sent {
            // Ended already, and not yet reaped.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                self.facts.update(|facts| is_first && facts.history.sent.remove(&signal));
                Ok(())
            }
            outcome => {
                self.keep_sent(signal, true);
                outcome.doing(Kind::Internal, || format!("cannot signal task {}", self.id))
            }
        }
    }

    fn keep_sent(&self, signal: i32, was_sent: bool) {
        if let Some(slots) = &self.handles.borrow().exec_slots {
            slots.keep_sent(signal, was_sent);
        }
    }

    /// Notes that init is sent `signal`, for a later shim too: should this one die in between, it was this one's. Returns
    /// whether it is the first such signal.
    fn will_send(&self, signal: i32) -> bool {
        self.keep_sent(signal, false);
        let is_first = self.facts.update(|facts| facts.history.sent.insert(signal));
        self.remember();
        is_first
    }

    /// Kills everything in the task's cgroup repeatedly, until it is empty.
    fn kill(self: &Rc<Self>, layout: &Rc<Layout>) -> Result<()> {
        let with_init = self.namespaces.is_new(libc::CLONE_NEWPID);
        // What ends with init does so wherever it was moved: a look at all hierarchies is for the others.
        let processes = |c: &Cgroup| if with_init { layout.freezable(c) } else { layout.processes(c) };
        let processes = self.with_cgroup(|c| processes(c).len())?;
        self.facts.update(|facts| {
            // Besides the program, and besides an init of ours.
            let program = 1 + usize::from(facts.record.init);
            facts.killed.get_or_insert(processes.saturating_sub(program) as u64).to_owned()
        });
        self.send(libc::SIGKILL)?;
        // The kernel kills a pid namespace's processes with its init, which only has to be thawed to die, unless
        // another process freezes its cgroup or a parent again.
        let thawed = if with_init { self.with_cgroup(|c| layout.freeze(c, false)) } else { Ok(Ok(())) };
        self.kill_to_the_last(layout);
        thawed?
    }

    /// Goes on with a kill, until the cgroup is empty.
    pub(super) fn kill_to_the_last(self: &Rc<Self>, layout: &Rc<Layout>) {
        self.be_heard(layout);
        let with_init = self.namespaces.is_new(libc::CLONE_NEWPID);
        let (task, layout, first_look) = (self.clone(), layout.clone(), Moment::now().after(FIRST_LOOK));
        waits::begin(move || {
            let (task, layout) = (task.clone(), layout.clone());
            async move {
                let ended = task.facts.until_it(|facts| facts.life.is_reaped());
                let ended = tokio::time::timeout(first_look.to_come(), ended);
                if !with_init || ended.await.is_err() {
                    task.kill_rest(&layout).await;
                }
            }
        });
    }

    /// Kills the processes in the cgroup until none is left. Counts those that outlive init.
    pub async fn kill_rest(&self, layout: &Layout) {
        let _turn = self.turns.clearing.lock().await;
        loop {
            let Dying { killed, since } = self.handles.borrow().dying.clone();
            all_ended(layout, &killed, since).await;
            let keeper = usize::from(self.keeps_output());
            let with_init = self.namespaces.is_new(libc::CLONE_NEWPID);
            let kill = |c: &Cgroup| if with_init { layout.kill(c) } else { layout.kill_everywhere(c) };
            let killed = self.with_cgroup(kill).unwrap_or_default();
            let count = killed.len() as u64;
            self.handles.borrow_mut().dying = Dying { killed: Rc::from(killed), since: Moment::now() };
            if count == 0 {
                return;
            }
            self.facts.update(|facts| {
                if facts.life == Life::Exited {
                    // An init that has kept output is not among the rest.
                    facts.rest_killed += count.saturating_sub(keeper as u64);
                }
            });
        }
    }

    /// The time when the current step of the task's end has taken `span`.
    pub fn step_due(&self, span: Duration) -> Moment {
        self.facts.update_silently(|facts| *facts.step_due.get_or_insert_with(|| Moment::now().after(span)))
    }

    /// Checks that init lives, or the exec with that name.
    pub fn check_lives(&self, exec: Option<&str>) -> Result<()> {
        match exec {
            None if self.is_live() => Ok(()),
            None => Err(self.has_exited()),
            Some(name) => {
                let number = self.facts.read(|facts| facts.exec_named(name));
                number.map(drop).ok_or_else(|| self.exec_has_exited(name))
            }
        }
    }

    pub(super) fn exec_has_exited(&self, name: &str) -> Error {
        Error::new(Kind::NotFound, format!("exec {name} of task {} has exited", self.id))
    }

    /// Sends a signal to the exec with that name.
    pub fn signal_exec(&self, layout: &Rc<Layout>, name: &str, signal: Signal) -> Result<()> {
        let gone = || self.exec_has_exited(name);
        let number = self.facts.read(|facts| facts.exec_named(name)).ok_or_else(gone)?;
        let pidfd = self.exec_pidfd(number).ok_or_else(gone)?;
        self.will_send_exec(number, signal);
        match sys::pidfd_send_signal(pidfd.as_fd(), signal.number()) {
            // Ended already, and not yet reaped.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            outcome => outcome.doing(Kind::Internal, || format!("cannot signal exec {name} of task {}", self.id))?,
        }
        self.end_exec_sent_kill(layout, number);
        Ok(())
    }

    /// Notes that an exec is sent a signal, for a later shim too, as far as that has to go on with it.
    pub(super) fn will_send_exec(&self, number: u64, signal: Signal) {
        if signal == Signal::KILL {
            let since = Moment::now();
            self.facts.update(|facts| facts.execs.get_mut(&number).map(|exec| *exec.sent_kill.get_or_insert(since)));
            self.keep_exec(number);
        }
    }

    /// Has the process of an exec that was sent SIGKILL end, if it was, though another process has frozen it.
    pub(super) fn end_exec_sent_kill(&self, layout: &Rc<Layout>, number: u64) {
        let sent = self.facts.read(|facts| facts.execs.get(&number).and_then(|exec| exec.sent_kill));
        let Some((since, pidfd)) = sent.zip(self.exec_pidfd(number)) else { return };
        let (layout, killed) = (layout.clone(), Rc::new([pidfd]));
        waits::begin(move || {
            let (layout, killed) = (layout.clone(), killed.clone());
            async move { all_ended(&layout, &*killed, since).await }
        });
    }

    /// Goes on with a SIGKILL to an exec that another shim has noted, and may not have come to send.
    pub(super) fn go_on_with_kill_of_exec(&self, layout: &Rc<Layout>, number: u64) {
        if self.facts.read(|facts| facts.execs.get(&number).is_some_and(|exec| exec.sent_kill.is_some()))
            && let Some(pidfd) = self.exec_pidfd(number)
        {
            // An error means that it has ended.
            drop(sys::pidfd_send_signal(pidfd.as_fd(), libc::SIGKILL));
            self.end_exec_sent_kill(layout, number);
        }
    }

    /// A descriptor of the process of an exec that can be signalled.
    fn exec_pidfd(&self, number: u64) -> Option<OwnedFd> {
        self.handles.borrow().execs.get(&number)?.pidfd.as_ref()?.try_clone().ok()
    }
}

/// Waits until all of `killed` have ended, which were sent SIGKILL at `since`. Handles that another process has
/// frozen their cgroup or a parent, or does so meanwhile.
pub async fn all_ended(layout: &Layout, killed: &[OwnedFd], since: Moment) {
    let ended = async {
        for pidfd in killed.iter().filter_map(|pidfd| pidfd.try_clone().ok()) {
            worker::ended(pidfd).await;
        }
    };
    if !layout.holds_frozen() {
        return ended.await;
    }
    tokio::pin!(ended);
    let (mut look, mut at) = (FIRST_LOOK, since.after(FIRST_LOOK));
    while tokio::time::timeout(at.to_come(), &mut ended).await.is_err() {
        look = (look * 2).min(LOOK);
        at = Moment::now().after(look);
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
