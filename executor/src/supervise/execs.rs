//! An exec, from request to outcome.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bowline_spec::id::TaskId;
use bowline_spec::user::User;
use jiff::Timestamp;
use oci_spec::runtime::{Process, UserBuilder};
use tokio::sync::oneshot;

use super::Supervisor;
use super::handles::ExecHandles;
use super::launches::owner;
use super::task::{Task, all_ended};
use crate::bundle;
use crate::cgroup::{Cgroup, Entry, ExecGroup};
use crate::clock::Moment;
use crate::error::{Doing, Error, Kind, Result};
use crate::exec;
use crate::facts::ExecFacts;
use crate::identity::{self, Wanted};
use crate::io::{self, Attachment, Connections, Input, Lines, Logging, Owner, Pumps, Stdio, Tail, Target, Wiring};
use crate::launch::Report;
use crate::lifecycle::Status;
use crate::lifecycle::exec::Event;
use crate::request::{Exec, ExecEnd, ExecOutcome, Killed, Launched};
use crate::rootfs;
use crate::sys::{self, Ended};
use crate::told::Happening;

/// How long an answer waits for what was killed at a deadline to end.
const DYING: Duration = Duration::from_secs(1);

impl Supervisor {
    /// Runs a command that somebody asked for: it is counted, and an event of the task.
    pub(super) async fn exec(self: &Rc<Self>, id: &TaskId, request: Exec) -> Result<ExecOutcome> {
        let task = self.task(id)?;
        // The task's end is told after its, also if that comes while it begins.
        let _telling = task.turns.telling.read().await;
        let begun = self.begin_counted(&task, &request).await?;
        let number = begun.number;
        let outcome = self.finish_exec(&task, begun).await;
        self.tell_command(&task, &request.command, &outcome);
        task.exec_is_told(number);
        Ok(outcome)
    }

    /// Runs a health check: it tells by its outcome alone.
    pub(super) async fn exec_check(self: &Rc<Self>, task: &Rc<Task>, request: Exec) -> Result<ExecOutcome> {
        let begun = self.begin_exec(task, &request).await?;
        let number = begun.number;
        let outcome = self.finish_exec(task, begun).await;
        task.exec_is_told(number);
        Ok(outcome)
    }

    /// Starts an exec that somebody asked for, which is counted.
    async fn begin_counted(self: &Rc<Self>, task: &Rc<Task>, request: &Exec) -> Result<Begun> {
        let asked = Instant::now();
        let begun = self.begin_exec(task, request).await;
        task.facts.change(|facts| match &begun {
            Ok(begun) if facts.is_executed(begun.number) => facts.exec_starts.count(asked.elapsed()),
            Ok(_) | Err(_) => facts.exec_starts.count_failed(),
        });
        begun
    }

    /// Starts an exec whose end is told to the manager; `reply` has its pid once
    /// its program is executed.
    pub(super) async fn start_exec(
        self: &Rc<Self>,
        id: &TaskId,
        request: Exec,
        reply: oneshot::Sender<Result<Launched>>,
    ) {
        let task = match self.task(id) {
            Ok(task) => task,
            Err(error) => {
                let _ = reply.send(Err(error));
                return;
            }
        };
        // The task's end is told after ours, also if that comes while we begin.
        let _telling = task.turns.telling.read().await;
        let begun = match self.begin_counted(&task, &request).await {
            Ok(begun) => begun,
            Err(error) => {
                let _ = reply.send(Err(error));
                return;
            }
        };
        let (number, pid) = (begun.number, begun.pid);
        let name = request.name.unwrap_or_default();
        self.tell_of_exec(&task, Happening::ExecStarted { name: name.clone(), pid });
        // Nobody waits for the answer any more: it runs on.
        let _ = reply.send(Ok(Launched { pid }));
        let outcome = self.finish_exec(&task, begun).await;
        let code = code_of(outcome.end);
        self.tell_of_exec(&task, Happening::ExecExited { name, pid, code, at: outcome.exited_at });
        task.exec_is_told(number);
    }

    /// Starts an exec; its program is executed when this returns, or its
    /// deadline has come.
    async fn begin_exec(self: &Rc<Self>, task: &Rc<Task>, request: &Exec) -> Result<Begun> {
        let id = &task.id;
        let status = task.status();
        if !matches!(status, Status::Running | Status::Stopping) {
            let message = format!("task {id} is {}: a command can be run in a running task only", status.as_str());
            return Err(Error::new(Kind::WrongState, message));
        }
        let process = task.exec_process(request)?;
        let deadline = request.timeout.map(|timeout| Moment::now().after(timeout));
        let group = deadline.and_then(|_| self.exec_group(task));
        let number = task.facts.change(|facts| {
            let exec = ExecFacts {
                name: request.name.clone(),
                deadline,
                group: group.as_ref().map(ExecGroup::number),
                ..ExecFacts::default()
            };
            facts.begin_exec(exec)
        });
        let begun = self.run_exec(task, request, &process, number, group.as_ref()).await;
        match begun {
            Ok(begun) => Ok(Begun { group, ..begun }),
            Err(error) => {
                self.give_back(task, group);
                task.exec_is_told(number);
                Err(error)
            }
        }
    }

    /// A cgroup for an exec: the one that is kept empty, or a new one. A daemon
    /// that an exec left behind keeps its own. `None` where none can be had, as
    /// by a limit on how many there may be.
    fn exec_group(&self, task: &Task) -> Option<ExecGroup> {
        let free = task.handles.borrow_mut().exec_group.take();
        if free.is_some() {
            return free;
        }
        // The oldest that was left may be empty by now. One is tried for each that is made, so that there are never
        // many more than there are daemons.
        let oldest = task.facts.change(|facts| facts.exec_groups_left.pop_front());
        oldest.into_iter().for_each(|number| self.remove_group(task, number));
        let number = task.facts.change(|facts| {
            facts.exec_groups_made += 1;
            facts.exec_groups_made
        });
        let made = task.with_cgroup(|c| self.layout.create_exec_group(c, &group_name(number), number));
        let made = made.and_then(|made| made);
        made.inspect_err(|error| tracing::info!(%error, "an exec's deadline will kill its session")).ok()
    }

    /// Takes back the cgroup of an exec that has ended: an empty one is kept for the next. No descriptor is kept of one
    /// in which somebody is left, nor of a second.
    fn give_back(&self, task: &Task, group: Option<ExecGroup>) {
        let Some(group) = group else { return };
        if !group.is_empty() {
            task.facts.change(|facts| facts.exec_groups_left.push_back(group.number()));
            return;
        }
        let second = task.handles.borrow_mut().exec_group.replace(group);
        if let Some(second) = second {
            self.remove_group(task, second.number());
        }
    }

    fn remove_group(&self, task: &Task, number: u64) {
        // Without the task's cgroup it has gone.
        if !task.with_cgroup(|c| self.layout.remove_exec_group(c, &group_name(number))).unwrap_or(true) {
            task.facts.change(|facts| facts.exec_groups_left.push_back(number));
        }
    }

    async fn run_exec(
        self: &Rc<Self>,
        task: &Rc<Task>,
        request: &Exec,
        process: &Process,
        number: u64,
        group: Option<&ExecGroup>,
    ) -> Result<Begun> {
        let logging = self.start_logger(request.logger.as_ref()).await?;
        let targets = logging.as_ref().map(Logging::targets);
        let (stdio, mut capture) =
            Capture::begin(request, targets, owner(&task.spec, Some(process), &task.particulars))?;
        let expecting = self.children.expect();
        let (mut report, pid, in_group) = self.clone_exec(task, process, &stdio, group).await?;
        // The output ends when the exec's own ends are closed.
        drop(stdio);
        let exited = expecting.claim(pid);
        drop(expecting);
        if !task.is_live() {
            // The task's end may have looked before it was there.
            self.kill_exec(task, pid, exited, in_group).await;
            return Err(gone(task));
        }
        let deadline = task.facts.look(|facts| facts.execs.get(&number)?.deadline);
        let executed = match before(deadline, report.executed()).await {
            Some(Ok(())) => {
                if let Err(error) = capture.connect(request) {
                    // It runs by now, and whoever asked is told that it does not.
                    self.kill_exec(task, pid, exited, in_group).await;
                    return Err(error);
                }
                true
            }
            Some(Err(error)) => {
                let _ = exited.await;
                return Err(error);
            }
            // Nothing of it runs: it is killed before it had a terminal.
            None => false,
        };
        if let (Some(logging), Some(pumps)) = (logging, &capture.pumps) {
            logging.see_off(pumps.process_ended());
        }
        if request.name.is_some() {
            // While its end has not come, the pid is its own.
            let pidfd = if self.children.is_unreaped(pid) { sys::pidfd_open(pid).ok() } else { None };
            let lines = capture.lines().cloned();
            task.handles.borrow_mut().execs.insert(number, ExecHandles { pidfd, lines });
        }
        let started_at = Timestamp::now();
        task.facts.change(|facts| {
            let Some(exec) = facts.execs.get_mut(&number) else { return };
            if executed {
                exec.life.on(Event::Executed);
            }
            (exec.pid, exec.started_at, exec.in_group) = (Some(pid), Some(started_at), in_group.is_some());
        });
        Ok(Begun { number, pid, exited, capture, started_at, group: None })
    }

    /// Sees an exec to its end or its deadline.
    async fn finish_exec(&self, task: &Rc<Task>, begun: Begun) -> ExecOutcome {
        let Begun { number, pid, mut exited, mut capture, started_at, group } = begun;
        let (deadline, in_group) = task
            .facts
            .look(|facts| facts.execs.get(&number).map_or((None, false), |exec| (exec.deadline, exec.in_group)));
        let own = group.as_ref().filter(|_| in_group);
        let end = match before(deadline, &mut exited).await {
            // The sender lives until the child is reaped.
            Some(ended) => ExecEnd::Exited(ended.map_or(128 + libc::SIGKILL, Ended::code)),
            None => {
                task.exec_comes_to(number, Event::Deadline);
                ExecEnd::TimedOut(self.kill_exec(task, pid, exited, own).await)
            }
        };
        let exited_at = Timestamp::now();
        task.exec_has_ended(number, code_of(end), exited_at);
        let (stdout, stderr) = capture.end().await;
        self.give_back(task, group);
        ExecOutcome { end, stdout, stderr, started_at, exited_at }
    }

    /// Clones the exec into the first cgroup that takes it: its own group, the
    /// task's cgroup, or the one below it where the task's init is. Returns its
    /// pid, and the group if it is in that.
    async fn clone_exec<'g>(
        &self,
        task: &Task,
        process: &Process,
        stdio: &Stdio,
        group: Option<&'g ExecGroup>,
    ) -> Result<(Report, i32, Option<&'g ExecGroup>)> {
        if let Some(group) = group {
            let entry = task.with_cgroup(|c| group.entry(c))?;
            if let Some((report, pid)) = clone_into(task, process, stdio, entry).await? {
                return Ok((report, pid, Some(group)));
            }
            tracing::info!("an exec has no cgroup of its own; its deadline will kill its session");
        }
        let entry = task.with_cgroup(Cgroup::entry)?;
        if let Some((report, pid)) = clone_into(task, process, stdio, entry).await? {
            return Ok((report, pid, None));
        }
        // The task has moved its processes down, and controllers with them:
        // its own cgroup takes none any more (cgroup-v2, "no internal processes").
        let init = task.pid().ok_or_else(|| gone(task))?;
        let below = task.with_cgroup(|c| self.layout.below_of(c, init))??;
        let entry = task.with_cgroup(|c| below.entry(c))?;
        let cloned = clone_into(task, process, stdio, entry).await?;
        let (report, pid) = cloned.ok_or_else(|| {
            let message = format!("neither the cgroup of task {} nor that of its init takes a process", task.id);
            Error::new(Kind::WrongState, message).hint("it changes its cgroups just now, or has made them threaded")
        })?;
        Ok((report, pid, None))
    }

    /// Ends an exec at its deadline, with all it started as far as that can be
    /// found. `exited` has not come, so the pid is the exec's.
    async fn kill_exec(
        &self,
        task: &Task,
        pid: i32,
        exited: oneshot::Receiver<Ended>,
        group: Option<&ExecGroup>,
    ) -> Killed {
        // It may not have come as far as its cgroup or its session.
        // One that was reaped just now is no more, and its pid may be a stranger's.
        let lives = self.children.is_unreaped(pid);
        let own: Vec<OwnedFd> = lives.then(|| sys::pidfd_open(pid).ok()).flatten().into_iter().collect();
        // An error means that it has ended.
        own.iter().for_each(|own| drop(sys::pidfd_send_signal(own.as_fd(), libc::SIGKILL)));
        let kill = || match group {
            Some(group) => group.kill(),
            None if lives => task.with_cgroup(|c| self.layout.kill_session(c, pid)).unwrap_or_default(),
            None => Vec::new(),
        };
        let dead = async {
            loop {
                let killed = kill();
                if killed.is_empty() {
                    break;
                }
                all_ended(&self.layout, &killed).await;
            }
            all_ended(&self.layout, &own).await;
            let _ = exited.await;
        };
        // One that is deep in the kernel runs no instruction more, but ends when
        // it is let go.
        let _ = tokio::time::timeout(DYING, dead).await;
        if group.is_some() { Killed::Cgroup } else { Killed::Session }
    }
}

/// Clones the exec into a cgroup; its pid, or `None` if that takes no process.
async fn clone_into(task: &Task, process: &Process, stdio: &Stdio, entry: Entry) -> Result<Option<(Report, i32)>> {
    let null = if stdio.wants_null() { task.null()? } else { None };
    let null = null.as_ref().map(AsFd::as_fd);
    let mut report = {
        let handles = task.handles.borrow();
        let init = handles.init.as_ref().ok_or_else(|| gone(task))?;
        let filter = task.filter.as_ref();
        let Task { id, folder, spec, namespaces, .. } = task;
        let (id, bundle, keeps_keyring) = (id.as_str(), folder.path(), task.particulars.keeps_keyring);
        exec::Exec { process, id, bundle, spec, filter, stdio, null, entry, namespaces, init, keeps_keyring }
            .clone_exec()?
    };
    Ok(report.cloned().await?.map(|pid| (report, pid)))
}

/// An exec's end as one number.
fn code_of(end: ExecEnd) -> i32 {
    match end {
        ExecEnd::Exited(code) => code,
        ExecEnd::TimedOut(_) => 128 + libc::SIGKILL,
    }
}

fn gone(task: &Task) -> Error {
    Error::new(Kind::WrongState, format!("task {} has exited", task.id))
}

/// What `future` comes to before the deadline, if there is one.
async fn before<T>(deadline: Option<Moment>, future: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout(deadline.to_come(), future).await.ok(),
        None => Some(future.await),
    }
}

/// An exec that runs.
struct Begun {
    number: u64,
    pid: i32,
    exited: oneshot::Receiver<Ended>,
    capture: Capture,
    started_at: Timestamp,
    /// What was made for it, to be had by the next.
    group: Option<ExecGroup>,
}

/// What is captured of an exec's output.
struct Capture {
    /// Until the exec has been set up.
    wiring: Option<Wiring>,
    pumps: Option<Pumps>,
    tails: [Tail; 2],
    separate: bool,
}

impl Capture {
    fn begin(request: &Exec, targets: Option<[Target; 2]>, owner: Owner) -> Result<(Stdio, Capture)> {
        let bytes = request.tail_bytes.unwrap_or(io::TAIL);
        let stdout = io::new_tail(bytes);
        let stderr = if request.separate { io::new_tail(bytes) } else { stdout.clone() };
        let tails = [stdout, stderr];
        let Exec { stdin: input, terminal, .. } = request;
        let [stdout, stderr] = &targets.unwrap_or_else(|| [request.stdout.clone(), request.stderr.clone()]);
        let (logs, direct) = ([None, None], request.direct);
        // A program that it leaves behind may write to its file as long as it lives.
        let follow = direct;
        let (tails_of_it, terminal) = (tails.clone(), *terminal);
        let wanted = Connections { input, stdout, stderr, owner, logs, tails: tails_of_it, terminal, direct, follow };
        let (stdio, wiring) = io::wire(wanted)?;
        Ok((stdio, Capture { wiring: Some(wiring), pumps: None, tails, separate: request.separate }))
    }

    /// Has what it writes to its terminal come, now that it is set up.
    fn connect(&mut self, request: &Exec) -> Result<()> {
        self.pumps = self.wiring.take().map(Wiring::connect).transpose()?;
        match (self.lines(), &request.stdin, request.terminal) {
            (Some(lines), Input::Path(stdin), Some(_)) => {
                lines.attach(&Attachment { stdin: Some(stdin.clone()), ..Attachment::default() })
            }
            _ => Ok(()),
        }
    }

    fn lines(&self) -> Option<&Lines> {
        self.pumps.as_ref().map(Pumps::lines)
    }

    /// Everything that the exec itself wrote; what it left running may write on.
    async fn end(&mut self) -> (Vec<u8>, Vec<u8>) {
        if let Some(pumps) = &mut self.pumps {
            pumps.finish().await;
        }
        let [stdout, stderr] = &self.tails;
        let stdout = stdout.borrow().to_vec();
        let stderr = if self.separate { stderr.borrow().to_vec() } else { Vec::new() };
        (stdout, stderr)
    }
}

/// What the cgroup of an exec is called.
fn group_name(number: u64) -> String {
    format!("exec-{number}")
}

impl Task {
    /// Init's process with what the request changes.
    fn exec_process(&self, request: &Exec) -> Result<Process> {
        if let Some(process) = &request.process {
            return self.completed(process);
        }
        if request.command.first().is_none_or(String::is_empty) {
            return Err(Error::new(Kind::Usage, "the command to run is empty"));
        }
        let init = self.spec.process().as_ref();
        let mut process = init.cloned().ok_or_else(|| Error::new(Kind::Internal, "the task has no process"))?;
        process.set_args(Some(request.command.clone()));
        process.set_terminal(Some(request.terminal.is_some()));
        if !request.env.is_empty() {
            process.set_env(Some(merged(process.env().as_deref().unwrap_or_default(), &request.env)?));
        }
        if let Some(workdir) = &request.workdir {
            if !workdir.is_absolute() {
                let message = format!("workdir: {} is not absolute", workdir.display());
                return Err(Error::new(Kind::BadSpec, message));
            }
            process.set_cwd(workdir.clone());
        }
        if let Some(user) = &request.user {
            if self.handles.borrow().claimed.is_some() {
                let message = format!("user {user}: a task of the profile untrusted has but one user, its own");
                return Err(Error::new(Kind::BadSpec, message).hint("leave --user out"));
            }
            self.become_user(&mut process, user)?;
        }
        Ok(process)
    }

    /// A process that its manager describes, with init's for what it leaves
    /// out, so that it has no less protection.
    fn completed(&self, wanted: &Process) -> Result<Process> {
        bundle::check_process(wanted)?;
        let mut process = wanted.clone();
        let Some(init) = self.spec.process() else { return Ok(process) };
        if process.capabilities().is_none() {
            process.set_capabilities(init.capabilities().clone());
        }
        if process.rlimits().is_none() {
            process.set_rlimits(init.rlimits().clone());
        }
        if process.apparmor_profile().as_deref().is_none_or(str::is_empty) {
            process.set_apparmor_profile(init.apparmor_profile().clone());
        }
        if process.selinux_label().as_deref().is_none_or(str::is_empty) {
            process.set_selinux_label(init.selinux_label().clone());
        }
        if process.oom_score_adj().is_none() {
            process.set_oom_score_adj(init.oom_score_adj());
        }
        Ok(process)
    }

    fn exec_comes_to(&self, number: u64, event: Event) {
        self.facts.change(|facts| facts.execs.get_mut(&number).map(|exec| exec.life.on(event)));
    }

    /// An exec was reaped: nobody signals it any more, nor joins its streams.
    fn exec_has_ended(&self, number: u64, code: i32, exited_at: Timestamp) {
        self.handles.borrow_mut().execs.remove(&number);
        self.exec_comes_to(number, Event::Ended);
        self.facts.change(|facts| {
            let Some(exec) = facts.execs.get_mut(&number) else { return };
            (exec.pid, exec.code, exec.exited_at) = (None, Some(code), Some(exited_at));
        });
    }

    /// Whoever asked for an exec knows its end, or that it could not be started: it is forgotten.
    fn exec_is_told(&self, number: u64) {
        self.handles.borrow_mut().execs.remove(&number);
        self.facts.change(|facts| facts.execs.remove(&number));
    }

    /// What an exec has where its streams are nowhere: opened anew for each, by a
    /// tree that is kept, as the task may have put anything into the place of
    /// its own. `None` where the exec's worker has to make it.
    fn null(&self) -> Result<Option<OwnedFd>> {
        let null = &mut self.handles.borrow_mut().null;
        if null.is_none() && sys::has_mount_fds() {
            *null = Some(rootfs::null_apart()?);
        }
        null.as_ref().map(rootfs::Null::open).transpose()
    }

    fn become_user(&self, process: &mut Process, user: &str) -> Result<()> {
        let user: User = user.parse()?;
        let pid = self.pid().unwrap_or_default();
        // Init is unreaped, so the pid is its own; its root is the task's.
        let root = std::fs::File::open(format!("/proc/{pid}/root"));
        let root = root.doing(Kind::Internal, || "cannot open the task's root filesystem")?;
        let wanted = Wanted { user: Some(&user.user), group: user.group.as_ref(), groups: &[] };
        let ids = identity::resolve(root.as_fd(), wanted)?;
        // Capabilities stay as init's: execve takes them from all but root.
        let user = UserBuilder::default().uid(ids.uid).gid(ids.gid).additional_gids(ids.groups);
        process.set_user(user.build().doing(Kind::Internal, || "cannot describe a user")?);
        Ok(())
    }
}

/// `base` with the variables of `more` put in or replaced.
fn merged(base: &[String], more: &[String]) -> Result<Vec<String>> {
    let mut all = base.to_vec();
    for variable in more {
        let key = match variable.split_once('=') {
            Some((key, _)) if !key.is_empty() => format!("{key}="),
            _ => return Err(Error::new(Kind::Usage, format!("{variable:?} is not KEY=value"))),
        };
        all.retain(|v| !v.starts_with(&key));
        all.push(variable.clone());
    }
    Ok(all)
}
