//! A launch, from description to running task; whatever fails is undone.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::rc::Rc;

use bowline_spec::id::TaskId;
use jiff::Timestamp;
use oci_spec::runtime::{Process, Spec};

use super::Supervisor;
use super::task::{Task, remove_cgroup};
use crate::cgroup::Cgroup;
use crate::error::{Doing, Error, Kind, Result};
use crate::host;
use crate::io::{self, Connections, Input, Owner, Stdio, Target};
use crate::launch::{Live, Prepared, Starting};
use crate::lifecycle::Event;
use crate::log::{self, LogFiles};
use crate::namespaces::{self, Namespaces};
use crate::recovery::Record;
use crate::request::{Launch, Launched};
use crate::seccomp::{self, Filter};

/// A launch before anything of it is on the host but its folder.
pub struct Plan {
    pub spec: Spec,
    pub namespaces: Namespaces,
    pub filter: Option<Filter>,
    pub record: Record,
}

impl Supervisor {
    pub(super) async fn launch(self: &Rc<Self>, launch: Launch) -> Result<Launched> {
        let id = launch.id;
        if self.tasks.borrow().contains_key(&id) {
            return Err(Error::new(Kind::AlreadyExists, format!("task {id} exists already")));
        }
        let expecting = self.children.expect();
        let Launch { stdin, stdout, stderr, size, attached, .. } = launch;
        let plan = self.plan(&id, launch.task, launch.durable).await?;
        // Before anything is made that a crash would leave behind.
        self.config.folder.write_record(&plan.record)?;
        let output = plan.record.task.output.clone();
        let tail = io::new_tail(io::TAIL);
        let files = LogFiles::of(&plan.record.task, &id, self.config.folder.path());
        let (stdio, wiring) = io::wire(Connections {
            input: if stdin == Input::Null && plan.record.task.stdin { &Input::Open } else { &stdin },
            stdout: &output.stdout.map_or(stdout, Target::Path),
            stderr: &output.stderr.map_or(stderr, Target::Path),
            owner: owner(&plan.spec, plan.spec.process().as_ref()),
            logs: log::open(&plan.record.task, &files)?,
            tails: [tail.clone(), tail.clone()],
            terminal: plan.record.task.terminal.then_some(size),
        })?;
        let (cgroup, starting, live) = self.clone_init(&plan, stdio).await?;
        let pid = live.pid;
        let exited = expecting.claim(pid);
        let task = Rc::new(Task::new(id.clone(), plan, live, cgroup));
        self.tasks.borrow_mut().insert(id.clone(), task.clone());

        let started = async {
            let held = starting.ready(pid, &task.spec, &task.namespaces).await?;
            let pumps = wiring.connect()?;
            attached.map_or(Ok(()), |attachment| pumps.lines().attach(&attachment))?;
            held.start().await.map(|()| pumps)
        };
        let pumps = match started.await {
            Ok(pumps) => pumps,
            Err(error) => {
                let error = task.undo(self, exited, error).await;
                self.tasks.borrow_mut().remove(&id);
                return Err(error);
            }
        };
        task.connect(pumps.lines().clone());
        task.record.borrow_mut().started_at = Some(Timestamp::now());
        task.happen(self, Event::Started)?;
        if let Err(error) = self.config.folder.write_record(&task.record.borrow()) {
            tracing::error!(%error, "the record lacks what became of the task");
        }
        self.tell_launched(&task);
        self.begin_checks(&task);
        self.busy.set(self.busy.get() + 1);
        tokio::task::spawn_local(task.see_off(self.clone(), exited, pumps, tail));
        Ok(Launched { pid })
    }

    /// Turns the description into all that the task is made from.
    async fn plan(&self, id: &TaskId, task: bowline_spec::Task, durable: bool) -> Result<Plan> {
        let spec = host::configure_unfiltered(&task, id.as_str())?;
        let namespaces = Namespaces::of(&spec)?;
        let profile = host::profile(&task)?;
        if task.rootfs.is_none() {
            self.make_root(&spec)?;
        }
        let filter = match profile {
            Some(profile) => Some(seccomp::filter(profile, &self.config.state.filter_cache()).await?),
            None => None,
        };
        let cgroup = spec.linux().as_ref().and_then(|l| l.cgroups_path().as_ref());
        let record = Record {
            created_at: Timestamp::now(),
            started_at: None,
            pid: None,
            shim_pid: std::process::id().cast_signed(),
            cgroup: cgroup.and_then(|path| path.to_str()).unwrap_or_default().to_owned(),
            overhead: self.overhead.path(),
            durable,
            task,
        };
        Ok(Plan { spec, namespaces, filter, record })
    }

    /// Makes the task's cgroup, its limits in effect, and clones init.
    async fn clone_init(&self, plan: &Plan, stdio: Stdio) -> Result<(Cgroup, Starting, Live)> {
        let Plan { spec, filter, .. } = plan;
        let cgroup = self.layout.create(&plan.record.cgroup)?;
        let resources = spec.linux().as_ref().and_then(|l| l.resources().as_ref());
        let limited = resources.map_or(Ok(()), |r| self.layout.apply(&cgroup, r));
        let prepared =
            Prepared { spec, bundle: self.config.folder.path(), cgroup: &cgroup, filter: filter.as_ref(), stdio };
        let cloned = match limited.and_then(|()| prepared.clone_init()) {
            Ok(mut starting) => starting.live().await.map(|live| (starting, live)),
            Err(error) => Err(error),
        };
        match cloned {
            Ok((starting, live)) => Ok((cgroup, starting, live)),
            Err(error) => {
                // Nothing was cloned.
                remove_cgroup(&self.layout, cgroup).await;
                Err(error)
            }
        }
    }

    /// The empty folder that the host view is mounted into. In a user
    /// namespace its root makes the mount points, so it is theirs.
    fn make_root(&self, spec: &Spec) -> Result<()> {
        let path = self.config.folder.file("rootfs");
        let what = || format!("cannot create {}", path.display());
        DirBuilder::new().mode(0o755).create(&path).doing(Kind::Internal, what)?;
        let (uid, gid) = namespaces::host_ids(spec, 0, 0);
        std::os::unix::fs::chown(&path, Some(uid), Some(gid)).doing(Kind::Internal, what)
    }
}

/// Who a process of this task is on the host.
pub fn owner(spec: &Spec, process: Option<&Process>) -> Owner {
    let user = process.map_or((0, 0), |p| (p.user().uid(), p.user().gid()));
    let (uid, gid) = namespaces::host_ids(spec, user.0, user.1);
    Owner { uid, gid }
}
