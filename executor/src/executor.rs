//! The API of a running shim, for the services that speak to managers.
//!
//! A call that takes a while and changes something is work: it runs to its end even when its caller leaves. A call that
//! only waits can be made again at any time.
//!
//! Must not: know how a call is carried out.

mod removal;

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use bowline_error::{Error, Kind, Result};
use bowline_model::report::ExitReport;
use bowline_model::sandbox::SandboxState;
use bowline_model::stats::Stats;
use bowline_model::stats::figures::Figures;
use bowline_spec::Update;
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use bowline_sys as sys;
use oci_spec::runtime::LinuxResources;
use tokio::io::Interest;

use crate::facts::{Facts, WantedUpgrade};
use crate::output::io::{Attachment, WindowSize};
use crate::request::{Exec, Launch, Launched, PauseEnd, Process, TaskState};
use crate::start::checkpoint::Checkpoint;
use crate::start::pause_process::PauseProcess;
use crate::supervise::{BegunExec, Config, Handed, Supervisor};
use crate::upgrade::{self, Manager};
use crate::waits;
use crate::waits::watched_value::WatchedValue;

/// A handle to the loop. Cheap to clone.
#[derive(Clone)]
pub struct Executor {
    state: Rc<WatchedValue<Loop>>,
    manager: Rc<RefCell<Option<Rc<dyn Manager>>>>,
}

/// The state of the loop.
enum Loop {
    /// The loop is being prepared: there is no task yet.
    Begins,
    Turns(Rc<Supervisor>),
    /// The loop could not start. The error is for the first caller that wants to launch something.
    Failed(Error),
    /// The loop has ended. What it has held is freed with the last handle: a shim exits before that, and the kernel
    /// closes its descriptors faster than one by one.
    Gone(Option<Rc<Supervisor>>),
}

impl Loop {
    fn ended(&self) -> Loop {
        match self {
            Loop::Turns(supervisor) => Loop::Gone(Some(supervisor.clone())),
            Loop::Begins | Loop::Failed(_) | Loop::Gone(_) => Loop::Gone(None),
        }
    }
}

fn gone() -> Error {
    Error::new(Kind::NotFound, "the shim is leaving: its tasks have ended")
}

impl Executor {
    /// An executor whose loop [`Self::run`] prepares and runs: calls to it wait until then.
    pub(crate) fn new() -> Executor {
        Executor { state: Rc::new(WatchedValue::new(Loop::Begins)), manager: Rc::default() }
    }

    /// Runs the loop, with what the program before this one has handed over; returns when it has ended.
    pub(crate) async fn run(&self, config: Config, handed: Option<Box<Handed>>) -> Result<()> {
        // Every shim has this future for as long as it runs: what is over early is apart from it.
        let adopts = config.adopt.clone();
        // After an error another shim can adopt the tasks, once this one has gone.
        let begun = match handed {
            Some(handed) => Ok(Supervisor::take_over(config, *handed)?).inspect(Supervisor::go_on_waiting),
            None => Box::pin(Supervisor::begin(config)).await,
        };
        let ended = match begun {
            Ok(supervisor) => {
                if let Some(events) = &adopts {
                    Box::pin(supervisor.adopt(events)).await?;
                }
                self.state.update(|turns| *turns = Loop::Turns(supervisor.clone()));
                let ended = supervisor.run().await;
                // An upgrade that is under way goes with the loop.
                supervisor.end_upgrade(Err(gone()));
                ended
            }
            Err(error) if adopts.is_some() => Err(error),
            Err(error) => {
                tracing::error!(%error, "no task can be launched");
                self.state.update(|turns| *turns = Loop::Failed(error));
                self.closed().await;
                Ok(())
            }
        };
        self.state.update(|turns| *turns = turns.ended());
        ended
    }

    /// An executor whose loop has ended: it refuses every call.
    #[cfg(feature = "fuzzing")]
    pub fn gone() -> Executor {
        Executor { state: Rc::new(WatchedValue::new(Loop::Gone(None))), manager: Rc::default() }
    }

    /// Names what is handed over besides the tasks when the shim is upgraded. Without it no upgrade is possible.
    pub fn managed_by(&self, manager: Rc<dyn Manager>) {
        *self.manager.borrow_mut() = Some(manager);
    }

    /// Executes the programs of all upgrades that are asked for: returns never, as this program is then gone.
    pub(crate) async fn upgrade_when_asked(&self) -> std::convert::Infallible {
        loop {
            self.ready().await;
            let Ok(supervisor) = self.supervisor() else { return std::future::pending().await };
            let wanted = supervisor.upgrade_wanted().await;
            let manager = self.manager.borrow().clone();
            let outcome = match manager {
                Some(manager) => Box::pin(upgrade::execute(&supervisor, &*manager, &wanted)).await,
                None => Err(Error::new(Kind::Unsupported, "this shim cannot be upgraded")),
            };
            supervisor.end_upgrade(outcome);
        }
    }

    /// Begins to replace the shim's program by another, which goes on with its tasks. Returns the number to wait for.
    ///
    /// # Errors
    /// `NotFound` when the shim is leaving.
    #[doc(hidden)]
    pub fn begin_upgrade(&self, wanted: WantedUpgrade) -> Result<u64> {
        Ok(self.supervisor()?.begin_upgrade(wanted))
    }

    /// Waits for the end of an upgrade.
    ///
    /// # Errors
    /// Why the shim was not upgraded: nothing has changed then.
    #[doc(hidden)]
    pub async fn upgraded(&self, number: u64) -> Result<()> {
        self.begun().await?.upgraded(number).await
    }

    /// Says how the upgrade has ended by which this program runs: `refused` is why it runs again.
    #[doc(hidden)]
    pub fn end_upgrade(&self, refused: Option<String>) {
        if let Ok(supervisor) = self.supervisor() {
            supervisor.end_upgrade(refused.map_or(Ok(()), |why| Err(Error::new(Kind::NotExecutable, why))));
        }
    }

    /// The exec with this number of a task, which the program before this one has begun.
    ///
    /// # Errors
    /// `NotFound` when it is not known any more.
    #[doc(hidden)]
    pub fn begun_exec(&self, id: &TaskId, number: u64) -> Result<BegunExec> {
        self.supervisor()?.begun_exec(id, number)
    }

    fn supervisor(&self) -> Result<Rc<Supervisor>> {
        self.state.read(|turns| match turns {
            Loop::Begins => Err(Error::new(Kind::NotFound, "the shim is being started: it has no task yet")),
            Loop::Turns(supervisor) => Ok(supervisor.clone()),
            Loop::Failed(error) => Err(error.clone()),
            Loop::Gone(_) => Err(gone()),
        })
    }

    /// Returns once calls are answered; of a shim that takes a task over, once it has done that.
    pub async fn ready(&self) {
        self.state.until_it(|turns| !matches!(turns, Loop::Begins)).await;
    }

    /// The loop, once it is prepared.
    async fn begun(&self) -> Result<Rc<Supervisor>> {
        self.ready().await;
        self.supervisor()
    }

    /// The loop, for a call that launches something.
    async fn to_launch(&self) -> Result<Rc<Supervisor>> {
        let supervisor = self.begun().await.inspect_err(|_| self.give_up())?;
        if supervisor.is_over() { Err(gone()) } else { Ok(supervisor) }
    }

    /// The loop, for the launch of a task. Where the shim leaves with its sandbox, the error says so.
    async fn to_launch_task(&self) -> Result<Rc<Supervisor>> {
        self.to_launch().await.map_err(|error| {
            let removed = self.state.read(|turns| match turns {
                Loop::Turns(supervisor) | Loop::Gone(Some(supervisor)) => supervisor.removed_sandbox(),
                Loop::Begins | Loop::Failed(_) | Loop::Gone(None) => None,
            });
            removed.unwrap_or(error)
        })
    }

    /// Ends a loop that could not start, once a caller has its error or nobody is left to ask.
    fn give_up(&self) {
        self.state.update(|turns| {
            if let Loop::Failed(_) = turns {
                *turns = turns.ended();
            }
        });
    }

    /// Returns when no more requests will be answered.
    pub async fn closed(&self) {
        self.state.until_it(|turns| matches!(turns, Loop::Gone(_))).await;
    }

    /// Makes the sandbox that the shim's folder describes. From then on a launched task becomes a
    /// member of the sandbox, and the shim stays until the sandbox is removed.
    ///
    /// # Errors
    /// `BadSpec`, `Unsupported`, or an error from a plugin: nothing of the sandbox is then left.
    pub async fn create_sandbox(&self) -> Result<()> {
        let supervisor = self.to_launch().await.map_err(|error| match error.kind() {
            // Who leaves at once was asked to remove its sandbox.
            Kind::NotFound => Error::new(Kind::WrongState, "it was removed while it was being made"),
            _ => error,
        })?;
        supervisor.work_held("the making of the sandbox", async |it| it.create_sandbox().await).await
    }

    /// The state of the sandbox.
    ///
    /// # Errors
    /// `NotFound` if the shim has no sandbox.
    pub fn sandbox_state(&self) -> Result<SandboxState> {
        self.supervisor()?.sandbox_state()
    }

    /// What all members of the sandbox use together.
    pub fn sandbox_stats(&self) -> Result<Stats> {
        self.supervisor()?.sandbox_stats()
    }

    /// Changes the sandbox's limits: all that `update` names, or none.
    ///
    /// # Errors
    /// As for [`Executor::update`]; also `BadSpec` if a member would not fit.
    pub async fn update_sandbox(&self, update: Update) -> Result<()> {
        self.begun().await?.work("a change of the sandbox", async move |it| it.update_sandbox(&update).await).await
    }

    /// Charges processes that help the sandbox to a cgroup beside it, as the shim is. Returns the
    /// pids that are no processes.
    ///
    /// # Errors
    /// `NotFound` if none of them is a process.
    pub async fn charge_helpers(&self, pids: Vec<i32>) -> Result<Vec<i32>> {
        self.begun().await?.work("a move of helpers", async |it| it.charge_helpers(pids).await).await
    }

    /// Removes the sandbox; then the shim leaves. With `force`, its members are killed first. Returns the
    /// helpers that were moved to the root cgroup, as theirs is gone.
    ///
    /// # Errors
    /// `WrongState` while members run; the error of a plugin that cannot undo what it has added:
    /// the caller may try again.
    pub async fn remove_sandbox(&self, force: bool) -> Result<Vec<i32>> {
        self.to_launch()
            .await?
            .work_held("the removal of the sandbox", async move |it| it.remove_sandbox(force).await)
            .await
    }

    /// Launches a task; returns once its program is executed.
    ///
    /// A task from a description whose id is the name of the executor's own folder has that folder. For any other the
    /// executor makes one in the state folder, and holds its lock until the task has ended.
    ///
    /// # Errors
    /// `AlreadyExists`, `BadSpec`, `CommandNotFound`, `NotExecutable`,
    /// `Unsupported`: nothing of the task is then left.
    pub async fn launch(&self, launch: Launch) -> Result<Launched> {
        self.to_launch_task().await?.launching(launch, async |it, launch| it.launch(launch).await).await
    }

    /// The first half of [`Executor::launch`]: when this returns, everything is done except the
    /// program's execution. The task can be killed meanwhile.
    ///
    /// # Errors
    /// As for a launch.
    pub async fn create(&self, launch: Launch) -> Result<Launched> {
        self.to_launch_task().await?.launching(launch, async |it, launch| it.create(launch).await).await
    }

    /// The second half: returns once the program is executed. The program may have ended by then.
    ///
    /// # Errors
    /// `WrongState` when the task was started already or has ended; what the program lacks: then the task ends.
    pub async fn start(&self, id: &TaskId) -> Result<()> {
        self.begun().await?.work_on(id, "a start", async |it, id| it.start(id).await).await
    }

    /// Forgets a task that has ended, once all of its output is written or given up; its id is then
    /// free. A task whose program does not run yet is killed. A folder that the executor has made
    /// for the task is removed.
    ///
    /// # Errors
    /// `WrongState` while the task runs.
    pub async fn remove(&self, id: &TaskId) -> Result<()> {
        self.begun().await?.work_on(id, "a removal", async |it, id| it.remove(id).await).await
    }

    /// Makes the executor leave, above all one that waits for this call: see [`crate::Leave`]. Ends what still runs.
    pub fn leave(&self) {
        let executor = self.clone();
        waits::begin(move || {
            let executor = executor.clone();
            async move {
                match executor.begun().await {
                    Ok(supervisor) => supervisor.stop_all(),
                    Err(_) => executor.give_up(),
                }
            }
        });
    }

    /// Makes the executor leave when its starter goes, as long as nothing was launched: `manager`
    /// is the read end of a pipe, which ends with the starter. If `manager` is no pipe, such as
    /// `/dev/null`, this has no effect. Call it within a `LocalSet`.
    pub fn leave_with(&self, manager: OwnedFd) {
        let Ok(manager) = sys::register_fd_for(manager, Interest::READABLE) else { return };
        let (executor, manager) = (self.clone(), Rc::new(manager));
        waits::begin(move || {
            let (executor, manager) = (executor.clone(), manager.clone());
            async move {
                if manager.readable().await.is_err() {
                    return;
                }
                match executor.begun().await {
                    Ok(supervisor) => supervisor.manager_gone(),
                    Err(_) => executor.give_up(),
                }
            }
        });
    }

    /// Waits for a task to end. Any number of callers may wait, also after the end.
    pub async fn wait(&self, id: &TaskId) -> Result<ExitReport> {
        self.begun().await?.wait(id).await
    }

    /// Like [`Self::wait`], for the task whose folder has this inode, where that is given: see [`Self::check_folder`].
    ///
    /// # Errors
    /// `NotFound` also when the task is another one.
    #[doc(hidden)]
    pub async fn wait_in(&self, id: &TaskId, inode: Option<u64>) -> Result<ExitReport> {
        if inode.is_some() {
            self.begun().await?.launched(id).await;
            self.check_folder(id, inode).await?;
        }
        self.wait(id).await
    }

    /// Checks that the folder of the task has this inode, where one is given: a later task of the same name has another.
    /// Which task it is shows once its launch has made it, or has failed.
    ///
    /// # Errors
    /// `NotFound` when there is no such task, or it is another one.
    #[doc(hidden)]
    pub async fn check_folder(&self, id: &TaskId, inode: Option<u64>) -> Result<()> {
        let Some(inode) = inode else { return Ok(()) };
        let supervisor = self.begun().await?;
        if supervisor.task(id).is_err() {
            supervisor.launched(id).await;
        }
        supervisor.task(id)?.check_folder(inode)
    }

    /// Like [`check_folder`](Self::check_folder), of a task that was launched; no error where none has this name.
    pub fn check_known(&self, id: &TaskId, inode: Option<u64>) -> Result<()> {
        inode.map_or(Ok(()), |inode| self.supervisor()?.task(id).map_or(Ok(()), |task| task.check_folder(inode)))
    }

    /// Sends a signal to a task's init, or to all its processes.
    ///
    /// # Errors
    /// `NotFound` when the task has ended.
    pub fn signal(&self, id: &TaskId, signal: Signal, all: bool) -> Result<()> {
        self.supervisor()?.signal(id, signal, all)
    }

    /// Checks that a task's init lives, or the exec `exec` of it.
    ///
    /// # Errors
    /// `NotFound` when it has ended.
    pub fn check_lives(&self, id: &TaskId, exec: Option<&str>) -> Result<()> {
        self.supervisor()?.task(id)?.check_lives(exec)
    }

    /// Brings a task down: sends `signal` now, and SIGKILL to all that is left after `grace`. An
    /// absent value comes from the task's description, whose defaults are SIGTERM and ten seconds.
    /// Returns at once; a second call can only shorten the wait.
    pub async fn shutdown(&self, id: &TaskId, signal: Option<Signal>, grace: Option<Duration>) -> Result<()> {
        self.begun().await?.work_on(id, "a stop", async move |it, id| it.stop(id, signal, grace).await).await
    }

    /// Freezes all processes of a task; returns once they have stopped.
    pub async fn pause(&self, id: &TaskId) -> Result<()> {
        self.begun().await?.work_on(id, "a pause", async |it, id| it.pause(id).await).await
    }

    /// Thaws a task that [`Self::pause`] has frozen.
    pub fn resume(&self, id: &TaskId) -> Result<()> {
        self.supervisor()?.resume(id)
    }

    /// Begins a command in a task. The returned value waits for the command's end or its deadline.
    ///
    /// # Errors
    /// `WrongState` if the task does not run; `CommandNotFound`, `NotExecutable`, `BadSpec`.
    pub async fn exec(&self, id: &TaskId, exec: Exec) -> Result<BegunExec> {
        self.begun().await?.work_on(id, "the beginning of an exec", async move |it, id| it.exec(id, &exec).await).await
    }

    /// Starts a command in a task; returns once its program is executed. The manager learns of its
    /// end: see [`crate::ManagerEvent::ExecExited`].
    ///
    /// # Errors
    /// As for [`Executor::exec`].
    pub async fn start_exec(&self, id: &TaskId, exec: Exec) -> Result<Launched> {
        self.begun()
            .await?
            .work_on(id, "the beginning of an exec", async move |it, id| it.start_exec(id, &exec).await)
            .await
    }

    /// Sends a signal to the exec named `exec`.
    ///
    /// # Errors
    /// `NotFound` when there is none, because it has ended.
    pub fn signal_exec(&self, id: &TaskId, exec: &str, signal: Signal) -> Result<()> {
        self.supervisor()?.signal_exec(id, exec, signal)
    }

    /// Kills the exec named `exec`, and what it has started: what is in its session, or in its cgroup where it has one.
    /// Returns once that has ended, or after a second.
    ///
    /// # Errors
    /// `NotFound` when there is none, because it has ended.
    pub async fn kill_exec(&self, id: &TaskId, exec: &str) -> Result<()> {
        self.supervisor()?.kill_exec_named(id, exec).await
    }

    /// Sends a signal to the process group of the exec named `exec`, once its program is executed.
    ///
    /// # Errors
    /// `NotFound` when there is none, because it has ended.
    pub async fn signal_exec_group(&self, id: &TaskId, exec: String, signal: Signal) -> Result<()> {
        let act = async move |it: &Rc<Supervisor>, id: &TaskId| it.signal_exec_group(id, &exec, signal).await;
        self.begun().await?.work_on(id, "a signal to an exec", act).await
    }

    /// Lets the exec named `exec` run on when its caller goes, also if the call for it has only just come.
    ///
    /// # Errors
    /// `NotFound` when there is none, because it has ended.
    pub async fn detach_exec(&self, id: &TaskId, exec: String) -> Result<()> {
        // As work, which begins after that of a call for the exec that came before.
        let act = async move |it: &Rc<Supervisor>, id: &TaskId| it.task(id)?.detach_exec(&exec);
        self.begun().await?.work_on(id, "the detaching of an exec", act).await
    }

    /// Connects a client to a task's streams, until either leaves. Returns once the FIFOs are open;
    /// they are closed when the task has ended.
    ///
    /// # Errors
    /// `WrongState` when the task has ended, or for input that it does not take.
    pub fn attach(&self, id: &TaskId, attachment: Attachment) -> Result<()> {
        self.supervisor()?.task(id)?.attach(&attachment)
    }

    /// Waits until the exec named `exec` has begun: it takes a size and signals then. Returns at once for one that has
    /// begun or is not known.
    ///
    /// # Errors
    /// `NotFound` when there is no such task.
    #[doc(hidden)]
    pub async fn exec_begins(&self, id: &TaskId, exec: &str) -> Result<()> {
        self.supervisor()?.task(id)?.until_exec_begins(exec).await;
        Ok(())
    }

    /// Sets the size of the terminal of a task, or of the exec named `exec`.
    ///
    /// # Errors
    /// `WrongState` when there is no terminal.
    pub fn resize(&self, id: &TaskId, exec: Option<String>, size: WindowSize) -> Result<()> {
        self.supervisor()?.task(id)?.resize(exec.as_deref(), size)
    }

    /// Writes a checkpoint of a running task, by criu.
    ///
    /// # Errors
    /// `WrongState` when the task does not run; `Unsupported` without a criu that works here, or
    /// for a task that cannot be dumped; `Internal` with criu's message: the task then runs on.
    pub async fn checkpoint(&self, id: &TaskId, checkpoint: Checkpoint) -> Result<()> {
        self.begun().await?.work_on(id, "a checkpoint", async move |it, id| it.checkpoint(id, &checkpoint).await).await
    }

    /// Changes limits of a running task: all that `update` names, or none. Returns what is different from the request,
    /// as that a member of a sandbox is still held to the others' limits: a sentence each.
    ///
    /// # Errors
    /// `BadSpec` when the changed description makes no sense or the kernel
    /// refuses a value; `Unsupported` when this host has no such limit;
    /// `NotFound` when the task has ended.
    pub async fn update(&self, id: &TaskId, update: Update) -> Result<Vec<String>> {
        self.begun().await?.work_on(id, "a change of limits", async move |it, id| it.update(id, &update).await).await
    }

    /// Changes limits of a task, as a manager has worked them out.
    ///
    /// # Errors
    /// As for [`Executor::update`].
    pub async fn limit(&self, id: &TaskId, resources: LinuxResources) -> Result<()> {
        self.begun().await?.work_on(id, "a change of limits", async move |it, id| it.limit(id, &resources).await).await
    }

    /// All processes of a task.
    pub fn processes(&self, id: &TaskId) -> Result<Vec<Process>> {
        self.supervisor()?.processes(id)
    }

    /// What a task uses now.
    pub fn stats(&self, id: &TaskId) -> Result<Stats> {
        self.supervisor()?.stats(id)
    }

    /// Starts a process that does nothing, in namespaces of its own, and returns its pid. It dies with the shim.
    ///
    /// # Errors
    /// `AlreadyExists` while there is one; `BadSpec` for a setting that would change the host's, or
    /// a namespace that cannot be joined; `Unsupported` where the kernel lacks something.
    #[doc(hidden)]
    pub async fn start_pause(&self, pause: PauseProcess) -> Result<i32> {
        self.begun().await?.work("a pause process", async move |it| it.start_pause(&pause, None).await).await
    }

    /// Waits for the pause process to end. Any number of callers may wait, also after the end.
    ///
    /// # Errors
    /// `NotFound` when there never was a pause process.
    #[doc(hidden)]
    pub async fn pause_ended(&self) -> Result<PauseEnd> {
        self.begun().await?.pause_slot.ended().await
    }

    /// Ends the pause process; returns once it has ended.
    ///
    /// # Errors
    /// As [`Executor::pause_ended`].
    #[doc(hidden)]
    pub async fn end_pause(&self) -> Result<PauseEnd> {
        self.begun().await?.work("the end of the pause process", async |it| it.pause_slot.end().await).await
    }

    /// What is used in a cgroup that is not ours, and below it.
    ///
    /// # Errors
    /// `NotFound` when there is no such cgroup.
    #[doc(hidden)]
    pub fn cgroup_stats(&self, path: &str) -> Result<Stats> {
        self.supervisor()?.cgroup_stats(path)
    }

    /// All figures of all tasks.
    #[doc(hidden)]
    pub async fn figures(&self) -> Result<Figures> {
        Ok(self.begun().await?.figures())
    }

    /// Everything that the shim knows, for debugging it.
    #[doc(hidden)]
    pub async fn facts(&self) -> Result<Box<Facts>> {
        Ok(Box::new(self.begun().await?.facts()))
    }

    /// The state of a task.
    pub fn state(&self, id: &TaskId) -> Result<TaskState> {
        self.supervisor()?.state(id)
    }

    /// The state of each task.
    pub fn states(&self) -> Result<Vec<TaskState>> {
        Ok(self.supervisor()?.states())
    }
}
