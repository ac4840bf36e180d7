//! Checkpoints of tasks, and tasks that are restored from one.
//!
//! criu is a child of the shim like any other program, so the loop goes on. The process that criu restores is a
//! child of the shim too, and is stopped until the task is started.

use std::fs::DirBuilder;
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bowline_cgroup::Cgroup;
use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::liveness::Live;
use bowline_model::status::Status;
use bowline_spec::id::TaskId;
use bowline_sys::proc_stat::{self, ProcStat};
use bowline_sys::{self as sys, Ended};

use super::Task;
use super::launch_plan::LaunchPlan;
use crate::hostside::task_units::remove_cgroup;
use crate::oci::bundle;
use crate::output::io::Stdio;
use crate::output::manager_events::ManagerEvent;
use crate::process::program::{Outcome, Program};
use crate::start::checkpoint::{self, Checkpoint, Outside};
use crate::start::hooks::{Container, Point};
use crate::supervise::supervisor::Supervisor;
use crate::view::rootfs;

/// How long `criu check` may take to say what this host lacks.
const CHECK: Duration = Duration::from_secs(30);

/// How long criu may take to finish once the task has ended: where asked to, criu ends the task itself, almost as
/// its last step.
const ENDING: Duration = Duration::from_secs(3);

impl Supervisor {
    /// Writes a checkpoint of a running task, or of a paused one, which stays paused: containerd's client pauses first.
    pub async fn checkpoint(self: &Rc<Self>, id: &TaskId, wanted: &Checkpoint) -> Result<()> {
        let task = self.task(id)?;
        self.notice_thaw(&task);
        // If the checkpoint ends the task, the end is reported afterwards.
        let _turn = task.turns.checkpointing.lock().await;
        let life = task.facts.read(|facts| facts.life);
        let status = if life.is_reaped() { Status::Exited } else { life.status() };
        let (Status::Running | Status::Paused, Some(pid)) = (status, task.pid()) else {
            let message = format!("task {id} is {}: only a running or paused one can be checkpointed", status.as_str());
            return Err(Error::new(Kind::WrongState, message));
        };
        // The task would be restored in what it has made, and its record says otherwise.
        task.handles.borrow().entrance.check_init(pid).map_err(|error| match has_ended(pid) {
            true => ended_meanwhile(id),
            false => error.within(format_args!("task {id}")),
        })?;
        let is_paused = matches!(status, Status::Paused);
        let frozen = if is_paused { task.with_cgroup(|cgroup| self.layout.freezer_folder(cgroup))? } else { None };
        let setting = task.facts.read(|facts| facts.particulars.criu.clone());
        let criu = setting.find()?;
        let outside = checkpoint::outside(pid, &task.spec, wanted).map_err(|error| match has_ended(pid) {
            // The kernel has not told us yet.
            true => ended_meanwhile(id),
            false => error.within(format_args!("task {id}")),
        })?;
        let work = wanted.work.as_deref().or(setting.work.as_deref()).unwrap_or(&wanted.images);
        make_folder(&wanted.images)?;
        make_folder(work)?;
        outside.keep(&wanted.images)?;
        let root = bundle::root(task.folder.path());
        let args = checkpoint::dump(pid, &root, work, wanted, &outside, frozen);
        let program = Program::new(&criu, args, environment())?;
        let over = async {
            task.facts.until_it(|facts| facts.life.is_reaped()).await;
            tokio::time::sleep(ENDING).await;
            ended_meanwhile(id)
        };
        self.run_criu(&criu, "dump", program, work, over).await?;
        self.tell_manager(&task, || ManagerEvent::Checkpointed { images: wanted.images.clone() });
        Ok(())
    }

    /// Restores init from `images`, stopped, in its own cgroup.
    pub(crate) async fn restore_init(
        &self,
        id: &TaskId,
        plan: &LaunchPlan,
        images: &Path,
        stdio: Stdio,
    ) -> Result<(Cgroup, Live)> {
        let bundle = plan.folder.path();
        let container = Container { id: id.as_str(), bundle, spec: &plan.spec };
        if container.has(Point::Prestart) || container.has(Point::CreateRuntime) {
            let message = "a checkpoint cannot be restored with hooks of a container's creation";
            return Err(Error::new(Kind::Unsupported, message));
        }
        let criu = plan.particulars.criu.find()?;
        let work = plan.particulars.criu.work.as_deref().unwrap_or(bundle);
        let outside = Outside::of(images)?;
        let args = checkpoint::restore(images, work, [bundle, &bundle::root(bundle)], &plan.spec, &outside)?;
        make_folder(work)?;
        let (cgroup, placeholder) = self.make_cgroup(plan).await?;
        let restored = async {
            self.limit_new(&cgroup, plan)?;
            let entry = cgroup.entry().joined_late();
            let mut program = Program::new(&criu, args, environment())?;
            program = program.entering(&entry, plan.namespaces.is_new(libc::CLONE_NEWCGROUP));
            // The task has no root filesystem yet.
            let null = stdio.wants_null().then(|| rootfs::null_apart()?.open()).transpose()?;
            let streams = [&stdio.stdin, &stdio.stdout, &stdio.stderr].map(|end| end.fd().or(null.as_ref()));
            for (fd, number) in outside.inherited() {
                if let Some(stream) = usize::try_from(fd).ok().and_then(|fd| streams.get(fd).copied().flatten()) {
                    program = program.with_fd(stream.as_fd(), number);
                }
            }
            self.run_criu(&criu, "restore", program, work, std::future::pending()).await?;
            let pid = checkpoint::restored(bundle)?;
            // Init is stopped, so it only ends by accident.
            let pidfd = sys::pidfd_open(pid).doing(Kind::Internal, || format!("cannot open process {pid}"))?;
            Ok(Live { pid, pidfd })
        };
        let restored = restored.await;
        if let Some(placeholder) = placeholder {
            placeholder.leave().await;
        }
        match restored {
            Ok(live) => Ok((cgroup, live)),
            Err(error) => {
                // criu kills the processes that it could not restore completely.
                remove_cgroup(&self.layout, &self.config.systemd, cgroup).await;
                Err(error)
            }
        }
    }

    /// Sends SIGCONT to a restored task, which criu has left stopped.
    pub(crate) fn go_on(&self, task: &Task) -> Result<()> {
        task.with_cgroup(|cgroup| self.layout.signal(cgroup, libc::SIGCONT))
    }

    /// Runs criu to its end, or until `over` gives a reason to kill it.
    async fn run_criu(
        &self,
        criu: &Path,
        verb: &str,
        program: Program<'_>,
        work: &Path,
        over: impl Future<Output = Error>,
    ) -> Result<()> {
        let mut over = std::pin::pin!(over);
        let outcome = self.run_until(program, checkpoint::PATIENCE, &mut over).await?;
        if outcome.ended == Ended::Exited(0) {
            return Ok(());
        }
        let failure = checkpoint::failure(verb, work, &outcome.output);
        let check = Program::new(criu, ["criu", "check"], environment())?;
        match self.run_until(check, CHECK, &mut over).await {
            Ok(check) if check.ended == Ended::Exited(0) => Err(Error::new(Kind::Internal, failure)),
            Err(error) if error.kind() == Kind::WrongState => Err(error),
            _ => {
                let error = Error::new(Kind::Unsupported, failure);
                Err(error.hint("`criu check` fails on this host: it needs another criu"))
            }
        }
    }

    async fn run_until(
        &self,
        program: Program<'_>,
        patience: Duration,
        over: impl Future<Output = Error>,
    ) -> Result<Outcome> {
        let expecting = self.children.expect();
        let mut started = program.captured().start()?;
        let claim = expecting.claim(started.pid);
        let reason = tokio::select! {
            outcome = started.finish(&claim, patience) => return outcome,
            reason = over => reason,
        };
        started.kill();
        Err(reason)
    }
}

fn has_ended(pid: i32) -> bool {
    proc_stat::read(pid).is_none_or(|stat| ProcStat::parse(&stat).is_some_and(|stat| stat.ends()))
}

fn ended_meanwhile(id: &TaskId) -> Error {
    Error::new(Kind::WrongState, format!("task {id} has ended, and its checkpoint was not complete"))
}

fn make_folder(path: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.doing(Kind::BadSpec, || format!("cannot create {}", path.display()))
}

/// The PATH in which criu finds tar, ip and iptables.
fn environment() -> Vec<String> {
    std::env::var("PATH").map(|path| format!("PATH={path}")).into_iter().collect()
}
