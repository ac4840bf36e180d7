//! An exec, from request to outcome.

use std::rc::Rc;
use std::time::Instant;

use bowline_cgroup::Cgroup;
use bowline_error::{Error, Kind, Result};
use bowline_model::clock::{Moment, SinceBoot};
use bowline_model::status::Status;
use bowline_spec::id::TaskId;
use bowline_sys::proc_stat::{self, ProcStat};
use bowline_sys::{self as sys, Ended};
use jiff::Timestamp;
use oci_spec::runtime::Process;

use crate::facts::{AskedBy, ExecEnd, ExecFacts, TaskFacts};
use crate::lifecycle::exec::{Life, Trigger};
use crate::output::io::{self, Attachment, Connections, Input, Logging, Owner, Pumps, Stdio, Tail, Target, Wiring};
use crate::output::manager_events::ManagerEvent;
use crate::request::{Exec, ExecOutcome, Launched};
use crate::supervise::exec::cloning::{before, gone};
use crate::supervise::handles::ExecHandles;
use crate::supervise::supervisor::Supervisor;
use crate::supervise::task::Task;
use crate::waits;
use crate::waits::claim::Claim;

/// An exec that a caller has started. Its outcome is kept until this is dropped.
pub struct BegunExec {
    task: Rc<Task>,
    number: u64,
}

impl BegunExec {
    /// The exec with this number, which the program before this one has begun.
    pub(crate) fn again(task: Rc<Task>, number: u64) -> BegunExec {
        BegunExec { task, number }
    }

    /// The number of the exec within its task.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Waits until the exec has ended and returns its outcome. A second call fails with `NotFound`.
    pub async fn outcome(&self) -> Result<ExecOutcome> {
        self.task.exec_outcome(self.number).await
    }
}

impl Drop for BegunExec {
    fn drop(&mut self) {
        self.task.exec_is_unwanted(self.number);
    }
}

impl Supervisor {
    /// Starts an exec that a caller asked for: it counts in the statistics and is an event of the task, whose end
    /// is reported after the exec's. When this returns, the program has been executed or the deadline has passed.
    pub async fn exec(self: &Rc<Self>, id: &TaskId, request: &Exec) -> Result<BegunExec> {
        let task = self.task(id)?;
        let number = self.begin_counted(&task, request, AskedBy::Caller(request.command.clone())).await?;
        self.run_exec_to_end(&task, number);
        Ok(BegunExec { task, number })
    }

    /// Starts an exec whose beginning and end are reported to the manager.
    pub async fn start_exec(self: &Rc<Self>, id: &TaskId, request: &Exec) -> Result<Launched> {
        let task = self.task(id)?;
        let number = self.begin_counted(&task, request, AskedBy::Manager).await?;
        let pid = task.facts.read(|facts| facts.execs.get(&number)?.pid).unwrap_or_default();
        let name = request.name.clone().unwrap_or_default();
        self.tell_of_exec(&task, ManagerEvent::ExecStarted { name, pid });
        self.run_exec_to_end(&task, number);
        Ok(Launched { pid, notes: Vec::new() })
    }

    /// Starts a health check, which reports only by its outcome.
    pub(crate) async fn exec_check(self: &Rc<Self>, task: &Rc<Task>, request: &Exec) -> Result<u64> {
        let number = self.begin_exec(task, request, AskedBy::Check).await?;
        self.run_exec_to_end(task, number);
        Ok(number)
    }

    /// Like `begin_exec`, but requested by a user, so it counts in the statistics.
    async fn begin_counted(self: &Rc<Self>, task: &Rc<Task>, request: &Exec, by: AskedBy) -> Result<u64> {
        let asked = Instant::now();
        let begun = self.begin_exec(task, request, by).await;
        let executed =
            |facts: &TaskFacts, number| facts.execs.get(number).is_some_and(|exec| exec.life == Life::Running);
        task.facts.update(|facts| match &begun {
            Ok(number) if executed(facts, number) => facts.exec_starts.count(asked.elapsed()),
            Ok(_) | Err(_) => facts.exec_starts.count_failed(),
        });
        begun
    }

    /// Starts an exec. When this returns, the program has been executed or the deadline has passed.
    async fn begin_exec(self: &Rc<Self>, task: &Rc<Task>, request: &Exec, by: AskedBy) -> Result<u64> {
        let id = &task.id;
        self.notice_thaw(task);
        let life = task.facts.read(|facts| facts.life);
        if life.is_reaped() {
            return Err(gone(task));
        }
        let status = life.status();
        if !matches!(status, Status::Created | Status::Running | Status::Stopping) {
            let message = format!("task {id} is {}: nothing can be run in it", status.as_str());
            return Err(Error::new(Kind::WrongState, message));
        }
        task.handles.borrow().entrance.check().map_err(|error| error.within(format_args!("task {id}")))?;
        let deadline = request.timeout.map(|timeout| Moment::now().after(timeout));
        let has_group = deadline.is_some() || request.ends_with_caller && !task.tells_execs_apart();
        let group = if has_group { self.exec_group(task, deadline) } else { None };
        let (oom_kills_before, unnamed_kills_before) = self.oom_kills_by_now(task);
        // Before anything is waited for: a signal, or the end of its caller, may come at once.
        let number = task.facts.update(|facts| {
            let group = group.as_ref().map(|group| group.number());
            facts.add_exec(ExecFacts {
                by,
                name: request.name.clone(),
                cloned_between: Some([SinceBoot::now(), SinceBoot::NOT_YET]),
                ends_with_caller: request.ends_with_caller,
                deadline,
                group,
                oom_kills_before,
                unnamed_kills_before,
                ..ExecFacts::default()
            })
        });
        task.handles.borrow_mut().execs.insert(number, ExecHandles { group, ..ExecHandles::default() });
        task.keep_exec(number);
        let begun = match task.exec_process(request).await {
            Ok(process) => self.run_exec(task, request, &process, number).await,
            Err(error) => Err(error),
        };
        if begun.is_err() {
            self.give_back(task, number);
            task.forget_exec(number);
        }
        begun.map(|()| number)
    }

    async fn run_exec(self: &Rc<Self>, task: &Rc<Task>, request: &Exec, process: &Process, number: u64) -> Result<()> {
        let logging = self.start_logger(request.logger.as_ref()).await?;
        let targets = logging.as_ref().map(Logging::targets);
        let (stdio, wiring, tails) = wire(request, targets, task.owner_of_streams(process))?;
        let expecting = self.children.expect();
        let (mut report, pid, in_group) = match self.clone_exec(task, process, &stdio, number).await {
            // The exec has no process that could be killed.
            Err(error) if error.kind() == Kind::Timeout && task.exec_is_late(number) => {
                task.exec_begins(number, Trigger::Deadline);
                return Ok(());
            }
            Err(error) if error.kind() == Kind::Timeout => return Err(gone(task)),
            cloned => cloned?,
        };
        // The output ends when the exec's own ends are closed.
        drop(stdio);
        let claim = expecting.claim(pid);
        drop(expecting);
        let deadline = task.exec_is_cloned(number, &claim, tails, in_group);
        if !task.is_live() {
            // The task's end may have looked for execs before this one existed.
            self.kill_exec(task, number).await;
            return Err(gone(task));
        }
        let mut pumps = match before(deadline, self.unless_frozen(task, report.executed())).await {
            Some(Ok(())) => match connect(wiring, request) {
                Ok(pumps) => Some(pumps),
                Err(error) => {
                    // The program runs by now, but the caller is told that it does not.
                    self.kill_exec(task, number).await;
                    return Err(error);
                }
            },
            Some(Err(error)) => {
                // The exec ends by itself, unless its report could not be understood.
                self.kill_exec(task, number).await;
                return Err(error);
            }
            // The program does not run yet: the exec is killed before it had a terminal.
            None => None,
        };
        if let (Some(logging), Some(pumps)) = (logging, &mut pumps) {
            pumps.logged_by(logging);
        }
        // Until the exec is reaped, its pid cannot be reused.
        let named = request.name.is_some() && claim.is_unreaped();
        let trigger = if pumps.is_some() { Trigger::Executed } else { Trigger::Deadline };
        if let Some(handles) = task.handles.borrow_mut().execs.get_mut(&number) {
            handles.pidfd = if named { sys::pidfd_open(pid).ok() } else { None };
            handles.pumps = pumps.map(Rc::new);
        }
        task.exec_begins(number, trigger);
        Ok(())
    }

    /// Follows an exec in the background until it ends or its deadline kills it.
    pub(crate) fn run_exec_to_end(self: &Rc<Self>, task: &Rc<Task>, number: u64) {
        let (supervisor, task) = (self.clone(), task.clone());
        waits::begin(move || {
            let (supervisor, task) = (supervisor.clone(), task.clone());
            async move {
                while let Some(life) = task.facts.read(|facts| facts.execs.get(&number).map(|exec| exec.life)) {
                    match life {
                        Life::Running => {
                            tokio::select! {
                                biased;
                                () = supervisor.exec_runs(&task, number) => {}
                                () = task.caller_goes(number) => supervisor.hang_up(&task, number),
                            }
                        }
                        Life::Killing => {
                            let killed = supervisor.kill_exec(&task, number).await;
                            task.exec_has_ended(number, Some(ExecEnd::TimedOut(killed)), Timestamp::now());
                        }
                        Life::Ended => supervisor.end_exec(&task, number).await,
                        Life::Starting | Life::ExitPublished => return,
                    }
                }
            }
        });
    }

    /// Waits until an exec has ended, or its deadline has passed.
    async fn exec_runs(&self, task: &Task, number: u64) {
        let Some((claim, _)) = task.exec_claim(number) else {
            let unknown = ExecEnd::Exited(128 + libc::SIGKILL);
            return task.exec_has_ended(number, Some(unknown), Timestamp::now());
        };
        let deadline = task.facts.read(|facts| facts.execs.get(&number)?.deadline);
        match before(deadline, claim.ended()).await {
            Some(end) => {
                let signal = if let Ended::Signaled(signal) = end.ended { Some(signal) } else { None };
                let oom_killed = signal == Some(libc::SIGKILL) && self.is_oom_killed(task, number);
                task.facts.update_silently(|facts| {
                    let Some(exec) = facts.execs.get_mut(&number) else { return };
                    (exec.signal, exec.oom_killed) = (signal, oom_killed);
                });
                let known = Some(ExecEnd::Exited(end.ended.code())).filter(|_| end.ended != Ended::Unknown);
                task.exec_has_ended(number, known, end.at);
            }
            None => task.apply_to_exec(number, Trigger::Deadline),
        }
    }

    /// How many processes the kernel has killed for lack of memory: those that are reported, unless more are being counted,
    /// or nobody watches yet; and how many of them the kernel's log does not name.
    fn oom_kills_by_now(&self, task: &Task) -> (u64, u64) {
        let (reported, is_counting) = task
            .facts
            .read(|facts| (facts.history.oom_kills, facts.settles_at.is_some() || !facts.oom_looks.is_empty()));
        let count = |cgroup: &Cgroup| self.layout.oom_kills_now(cgroup);
        let counted = is_counting.then(|| task.with_cgroup(count).ok()).flatten().flatten();
        let kills = counted.unwrap_or_default().max(reported);
        if is_counting {
            task.read_kernel_log();
        }
        (kills, task.facts.read(|facts| facts.named_kills.unnamed(kills)))
    }

    /// Whether the kernel has killed an exec for lack of memory: SIGKILL has ended it, which neither the shim has sent nor
    /// the end of the task's init, and the kernel has counted a kill that its log does not say to be another's.
    fn is_oom_killed(&self, task: &Task, number: u64) -> bool {
        let by_shim = task.facts.read(|facts| {
            let killed = facts.execs.get(&number).is_none_or(|exec| exec.killed_at.or(exec.sent_kill).is_some());
            killed || !facts.life.runs()
        });
        let init_ends = || {
            let stat = task.pid().and_then(proc_stat::read);
            stat.is_none_or(|stat| ProcStat::parse(&stat).is_none_or(|stat| stat.ends()))
        };
        if by_shim || init_ends() {
            return false;
        }
        let kills = task.with_cgroup(|cgroup| self.layout.oom_kills_now(cgroup)).ok().flatten().unwrap_or_default();
        task.read_kernel_log();
        task.facts.read(|facts| {
            facts.execs.get(&number).is_some_and(|exec| {
                kills > exec.oom_kills_before && facts.named_kills.may_be(exec.pid, kills, exec.unnamed_kills_before)
            })
        })
    }

    /// Reports the end of an exec once all of its own output is read. Processes that it left running may write
    /// more.
    async fn end_exec(&self, task: &Task, number: u64) {
        let pumps = task.handles.borrow().execs.get(&number).and_then(|exec| exec.pumps.clone());
        if let Some(pumps) = pumps {
            pumps.finish().await;
        }
        self.give_back(task, number);
        let Some(exec) = task.facts.read(|facts| facts.execs.get(&number).cloned()) else { return };
        task.apply_to_exec(number, Trigger::ExitPublished);
        match &exec.by {
            // That of an earlier shim counts no more.
            AskedBy::Check if exec.unwanted => task.forget_exec(number),
            AskedBy::Check => {}
            AskedBy::Caller(command) => {
                task.exec_is_told(number);
                self.tell_command(task, command, &exec);
                task.let_go_of_exec(number);
                if exec.unwanted {
                    task.forget_exec(number);
                }
            }
            AskedBy::Manager => {
                let pid = task.exec_claim(number).map(|(claim, _)| claim.pid).unwrap_or_default();
                self.tell_exec_exit(task, pid, &exec);
                task.forget_exec(number);
            }
        }
    }
}

/// Creates the streams of an exec: the exec's ends, the shim's ends, and the buffers that keep the last bytes of
/// output.
fn wire(request: &Exec, targets: Option<[Target; 2]>, owner: Owner) -> Result<(Stdio, Wiring, Vec<Tail>)> {
    let bytes = if request.direct { 0 } else { request.tail_bytes.unwrap_or(io::TAIL) };
    let stdout = io::new_tail(bytes);
    let stderr = if request.separate { io::new_tail(bytes) } else { stdout.clone() };
    let kept = if request.separate { vec![stdout.clone(), stderr.clone()] } else { vec![stdout.clone()] };
    let tails = [stdout, stderr];
    let Exec { stdin: input, terminal, .. } = request;
    let [stdout, stderr] = &targets.unwrap_or_else(|| [request.stdout.clone(), request.stderr.clone()]);
    let wanted = request.process.as_deref();
    let terminal = terminal.map(|size| wanted.map_or(size, |process| size.or_of(process)));
    let (logs, direct, released) = ([None, None], request.direct, request.released.clone());
    // A program that the exec leaves behind may write to the exec's file as long as it lives.
    let follow = direct;
    let (stdio, wiring) = io::wire(Connections {
        input,
        stdout,
        stderr,
        owner,
        logs,
        tails,
        terminal,
        direct,
        released,
        follow,
        kept: false,
        folder: None,
    })?;
    Ok((stdio, wiring, kept))
}

/// Connects the streams and the terminal of an exec that is set up.
fn connect(wiring: Wiring, request: &Exec) -> Result<Pumps> {
    let pumps = wiring.connect()?;
    if let (Input::Path(stdin), Some(_)) = (&request.stdin, request.terminal) {
        pumps.lines().attach(&Attachment { stdin: Some(stdin.clone()), ..Attachment::default() })?;
    }
    Ok(pumps)
}

impl Task {
    /// Whether the exec's deadline has passed.
    fn exec_is_late(&self, number: u64) -> bool {
        let deadline = self.facts.read(|facts| facts.execs.get(&number)?.deadline);
        deadline.is_some_and(|deadline| deadline <= Moment::now())
    }

    /// Records that the exec's program was executed, or that its deadline passed before.
    fn exec_begins(&self, number: u64, trigger: Trigger) {
        self.facts.update(|facts| {
            if let Some(exec) = facts.execs.get_mut(&number) {
                exec.life.apply(trigger);
                exec.started_at = Some(Timestamp::now());
            }
        });
        self.keep_exec(number);
    }

    fn apply_to_exec(&self, number: u64, trigger: Trigger) {
        self.facts.update(|facts| facts.execs.get_mut(&number).map(|exec| exec.life.apply(trigger)));
    }

    /// Records that an exec was cloned, and keeps the claim that reports its end. Returns its deadline.
    fn exec_is_cloned(&self, number: u64, claim: &Claim, tails: Vec<Tail>, in_group: bool) -> Option<Moment> {
        if let Some(handles) = self.handles.borrow_mut().execs.get_mut(&number) {
            (handles.claim, handles.tails) = (Some(claim.clone()), tails);
        }
        let deadline = self.facts.update(|facts| {
            let exec = facts.execs.get_mut(&number)?;
            (exec.pid, exec.in_group) = (Some(claim.pid), in_group);
            exec.cloned_between = exec.cloned_between.map(|[from, _]| [from, SinceBoot::now()]);
            exec.deadline
        });
        self.keep_exec(number);
        deadline
    }

    /// Keeps what is known of an exec for a shim that comes after this one's death.
    pub(crate) fn keep_exec(&self, number: u64) {
        if let Some(slots) = &mut self.handles.borrow_mut().exec_slots {
            self.facts.read(|facts| facts.execs.get(&number).map(|exec| slots.keep(number, exec)));
        }
    }

    /// Lets a later shim know nothing of an exec any more: its end is told.
    pub(crate) fn let_go_of_exec(&self, number: u64) {
        if let Some(slots) = &mut self.handles.borrow_mut().exec_slots {
            slots.forget(number);
        }
    }

    /// The claim that reports an exec's end, and whether the exec is in its own cgroup.
    pub(crate) fn exec_claim(&self, number: u64) -> Option<(Claim, bool)> {
        let claim = self.handles.borrow().execs.get(&number)?.claim.clone()?;
        self.facts.read(|facts| Some((claim, facts.execs.get(&number)?.in_group)))
    }

    /// Records that an exec was reaped or is no longer waited for: it takes no more signals and no more
    /// attachments.
    fn exec_has_ended(&self, number: u64, end: Option<ExecEnd>, exited_at: Timestamp) {
        self.facts.update(|facts| {
            let Some(exec) = facts.execs.get_mut(&number) else { return };
            exec.life.apply(Trigger::Ended);
            // An exec may be reaped before the shim learns that its program was executed.
            let exited_at = exec.started_at.map_or(exited_at, |started_at| exited_at.max(started_at));
            (exec.pid, exec.end, exec.exited_at) = (None, end, Some(exited_at));
        });
        self.keep_exec(number);
    }

    /// Keeps by which event the end of an exec is told next: whoever finds that event does not tell it again.
    fn exec_is_told(&self, number: u64) {
        self.facts.update_silently(|facts| {
            let next = facts.events + 1;
            facts.execs.get_mut(&number).map(|exec| exec.told_as = Some(next))
        });
        self.keep_exec(number);
    }

    /// Waits until an exec's end is reported and its output passed on, returns the outcome and forgets the exec.
    ///
    /// # Errors
    /// `NotFound` if the exec was forgotten before.
    pub(crate) async fn exec_outcome(&self, number: u64) -> Result<ExecOutcome> {
        let told = |facts: &TaskFacts| match facts.execs.get(&number) {
            None => Some(None),
            Some(exec) => (exec.life == Life::ExitPublished).then(|| Some(exec.clone())),
        };
        let exec = self.facts.until(told).await;
        let pumps = self.handles.borrow().execs.get(&number).and_then(|exec| exec.pumps.clone());
        if let Some(pumps) = pumps {
            // The caller leaves with what its FIFOs hold.
            pumps.passed_on().await;
        }
        let tails = self.handles.borrow().execs.get(&number).map(|exec| exec.tails.clone()).unwrap_or_default();
        self.forget_exec(number);
        let gone = || Error::new(Kind::NotFound, format!("exec {number} of task {} is not known any more", self.id));
        let exec = exec.ok_or_else(gone)?;
        let mut tails = tails.iter().map(|tail| tail.borrow().to_vec());
        Ok(ExecOutcome {
            end: exec.end.ok_or_else(gone)?,
            signal: exec.signal,
            oom_killed: exec.oom_killed,
            stdout: tails.next().unwrap_or_default(),
            stderr: tails.next().unwrap_or_default(),
            started_at: exec.started_at.ok_or_else(gone)?,
            exited_at: exec.exited_at.ok_or_else(gone)?,
        })
    }

    /// Notes that the caller of an exec no longer waits for its end.
    fn exec_is_unwanted(&self, number: u64) {
        let told = self.facts.update(|facts| {
            let exec = facts.execs.get_mut(&number)?;
            exec.unwanted = true;
            Some(exec.life == Life::ExitPublished)
        });
        if told == Some(true) {
            self.forget_exec(number);
        }
    }

    /// Forgets an exec whose caller knows that it ended, or that it could not be started.
    fn forget_exec(&self, number: u64) {
        let mut handles = self.handles.borrow_mut();
        let pumps = handles.execs.remove(&number).and_then(|exec| exec.pumps);
        handles.lingering.retain(|pumps| !pumps.are_flushed());
        handles.lingering.extend(pumps.filter(|pumps| !pumps.are_flushed()));
        drop(handles);
        self.let_go_of_exec(number);
        self.facts.update(|facts| facts.execs.remove(&number));
    }
}
