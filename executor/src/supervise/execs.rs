//! An exec, from request to outcome.

use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use bowline_spec::id::TaskId;
use bowline_spec::user::User;
use jiff::Timestamp;
use oci_spec::runtime::{Process, UserBuilder};
use tokio::sync::oneshot;

use super::Supervisor;
use super::launches::owner;
use super::task::{Task, all_ended};
use crate::cgroup::ExecGroup;
use crate::error::{Doing, Error, Kind, Result};
use crate::exec;
use crate::identity::{self, Wanted};
use crate::io::{self, Owner, Pumps, Stdio, Tail};
use crate::lifecycle::Status;
use crate::request::{Exec, ExecEnd, ExecOutcome};
use crate::sys::Ended;

impl Supervisor {
    pub(super) async fn exec(self: &Rc<Self>, id: &TaskId, request: Exec) -> Result<ExecOutcome> {
        let task = self.task(id)?;
        let status = task.state().status;
        if !matches!(status, Status::Running | Status::Stopping) {
            let message = format!("task {id} is {}: a command can be run in a running task only", status.as_str());
            return Err(Error::new(Kind::WrongState, message));
        }
        let process = task.exec_process(&request)?;
        let number = task.next_exec.replace(task.next_exec.get() + 1);
        let group = request.timeout.map(|_| self.exec_group(&task)).transpose()?;
        let outcome = self.run_exec(&task, &request, &process, number, group.as_ref()).await;
        task.exec_groups.borrow_mut().extend(group);
        outcome
    }

    /// A cgroup for an exec: one that an earlier exec has left empty, or a new
    /// one. A daemon that an exec left behind keeps its own.
    fn exec_group(&self, task: &Task) -> Result<ExecGroup> {
        let mut groups = task.exec_groups.borrow_mut();
        if let Some(free) = groups.iter().position(ExecGroup::is_empty) {
            return Ok(groups.swap_remove(free));
        }
        let number = task.made_groups.replace(task.made_groups.get() + 1);
        task.with_cgroup(|c| self.layout.create_exec_group(c, &format!("exec-{number}")))?
    }

    async fn run_exec(
        self: &Rc<Self>,
        task: &Rc<Task>,
        request: &Exec,
        process: &Process,
        number: u64,
        group: Option<&ExecGroup>,
    ) -> Result<ExecOutcome> {
        let (stdio, mut capture) = Capture::begin(request, owner(&task.spec, Some(process)))?;
        let expecting = self.children.expect();
        let mut report = {
            let state = task.state.borrow();
            let gone = || Error::new(Kind::WrongState, format!("task {} has exited", task.id));
            let init = state.live().ok_or_else(gone)?;
            let entry = task.with_cgroup(|c| group.map_or_else(|| c.entry(), |g| g.entry(c)))?;
            let exec =
                exec::Exec { process, filter: task.filter.as_ref(), stdio, entry, namespaces: &task.namespaces, init };
            exec.clone_exec()?
        };
        let pid = report.pid().await?;
        let exited = expecting.claim(pid);
        drop(expecting);
        if let Err(error) = report.executed().await {
            let _ = exited.await;
            return Err(error);
        }
        let started_at = Timestamp::now();
        task.execs.borrow_mut().insert(pid, number);
        let end = ended(exited, request.timeout, group).await;
        task.execs.borrow_mut().remove(&pid);
        let exited_at = Timestamp::now();
        let (stdout, stderr) = capture.end().await;
        Ok(ExecOutcome { end, stdout, stderr, started_at, exited_at })
    }
}

/// Waits for the exec's end, or ends it at its deadline with all it started.
async fn ended(mut exited: oneshot::Receiver<Ended>, timeout: Option<Duration>, group: Option<&ExecGroup>) -> ExecEnd {
    let code = |ended: std::result::Result<Ended, _>| ended.map_or(128 + libc::SIGKILL, Ended::code);
    let (Some(timeout), Some(group)) = (timeout, group) else {
        return ExecEnd::Exited(code(exited.await));
    };
    if let Ok(ended) = tokio::time::timeout(timeout, &mut exited).await {
        return ExecEnd::Exited(code(ended));
    }
    loop {
        let killed = group.kill();
        if killed.is_empty() {
            break;
        }
        all_ended(killed).await;
    }
    let _ = exited.await;
    ExecEnd::TimedOut
}

/// What is captured of an exec's output.
struct Capture {
    pumps: Option<Pumps>,
    tails: [Tail; 2],
    separate: bool,
}

impl Capture {
    fn begin(request: &Exec, owner: Owner) -> Result<(Stdio, Capture)> {
        let bytes = request.tail_bytes.unwrap_or(io::TAIL);
        let stdout = io::new_tail(bytes);
        let stderr = if request.separate { io::new_tail(bytes) } else { stdout.clone() };
        let tails = [stdout, stderr];
        let (stdio, pumps) = if request.direct {
            (io::direct(&request.stdout, &request.stderr, owner)?, None)
        } else {
            let (stdio, pumps) = io::piped(&request.stdout, &request.stderr, owner, tails.clone())?;
            (stdio, Some(pumps))
        };
        Ok((stdio, Capture { pumps, tails, separate: request.separate }))
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

impl Task {
    /// Init's process with what the request changes.
    fn exec_process(&self, request: &Exec) -> Result<Process> {
        if request.command.first().is_none_or(String::is_empty) {
            return Err(Error::new(Kind::Usage, "the command to run is empty"));
        }
        let init = self.spec.process().as_ref();
        let mut process = init.cloned().ok_or_else(|| Error::new(Kind::Internal, "the task has no process"))?;
        process.set_args(Some(request.command.clone()));
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
            self.become_user(&mut process, user)?;
        }
        Ok(process)
    }

    fn become_user(&self, process: &mut Process, user: &str) -> Result<()> {
        let user: User = user.parse()?;
        let pid = self.state().pid.unwrap_or_default();
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
