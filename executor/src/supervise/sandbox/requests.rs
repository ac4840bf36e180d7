//! A shim's sandbox: created, joined by members, taken down.
//!
//! ```text
//!   create ─► joint cgroup ─► overhead cgroup ─► namespaces ─► networks
//!   member ─► fits the budget ─► launched into the cgroup and namespaces
//!   remove ─► members ended ─► networks ─► namespaces ─► cgroups, and the shim leaves
//! ```
//!
//! `bowline_model::sandbox` has the sandbox's files; `bowline_spec::budget` computes what its members may use together, and
//! `budgets` puts that into effect.

use std::collections::BTreeMap;
use std::rc::Rc;

use bowline_error::{Error, Kind, Result};
use bowline_model::sandbox::SandboxState;
use bowline_model::stats::{self, Stats};
use bowline_model::status::Status;
use bowline_model::watch::ProcessIdentity;
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use bowline_spec::{Enforcement, Task as Description};
use oci_spec::runtime::LinuxResources;

use super::Sandbox;
use crate::facts::SandboxFacts;
use crate::hostside::strangers;
use crate::hostside::task_units as units;
use crate::lifecycle::sandbox::{Life, Trigger};
use crate::lifecycle::shim;
use crate::process::worker;
use crate::supervise::supervisor::Supervisor;
use crate::supervise::task::Task;
use crate::supervise::task::nesting::{self, Claim};

impl Supervisor {
    /// The sandbox, if it exists.
    pub(crate) fn sandbox(&self) -> Option<Rc<Sandbox>> {
        self.sandbox.borrow().clone().filter(|sandbox| sandbox.facts.read(|facts| facts.life.is_there()))
    }

    /// The error for a launch into a requested sandbox that is not there yet, or no longer.
    pub fn removed_sandbox(&self) -> Option<Error> {
        let sandbox = self.sandbox.borrow();
        let sandbox = sandbox.as_ref()?;
        Some(match sandbox.life() {
            Life::Making => is_being_made(sandbox.id().as_str()),
            _ => sandbox.is_removed(),
        })
    }

    /// Whether a sandbox was requested, whatever became of it.
    pub(crate) fn has_sandbox(&self) -> bool {
        self.sandbox.borrow().is_some()
    }

    /// A member's description, completed with the sandbox's settings.
    ///
    /// # Errors
    /// `BadSpec` for a setting that a member cannot have itself.
    pub(crate) fn joined(&self, sandbox: &Sandbox, task: &Description, id: &TaskId) -> Result<Description> {
        let pids = if task.namespaces.pid.is_none() { self.pids_of(sandbox) } else { None };
        sandbox.joined(task, id, pids, self.memory_qos())
    }

    fn our_sandbox(&self) -> Result<Rc<Sandbox>> {
        self.sandbox().ok_or_else(|| Error::new(Kind::NotFound, "this shim has no sandbox"))
    }

    /// Creates the sandbox that is recorded in the shim's folder.
    pub async fn create_sandbox(self: &Rc<Self>) -> Result<()> {
        let made = self.make_sandbox().await;
        if made.is_err() {
            self.apply(shim::Trigger::Last);
        }
        made
    }

    async fn make_sandbox(self: &Rc<Self>) -> Result<()> {
        let folder = self.config.folder.clone();
        let name = folder.name();
        let id: TaskId = name.parse().map_err(|e: bowline_spec::Invalid| Error::from(e))?;
        let mut record = folder.sandbox()?.ok_or_else(|| {
            Error::new(Kind::NotFound, format!("{} is not the folder of a sandbox", folder.path().display()))
        })?;
        self.may_make(&id)?;
        if self.has_sandbox() {
            return Err(Error::new(Kind::AlreadyExists, format!("sandbox {id} exists already")));
        }
        record.shim_pid = Some(std::process::id().cast_signed());
        if let Some(path) = &record.overhead {
            self.overhead.be_sandboxs(&self.layout, path, record.overhead_unit.clone(), None);
        }
        let sandbox = Rc::new(Sandbox::new(id.clone(), folder, record));
        *self.sandbox.borrow_mut() = Some(sandbox.clone());
        let made = async {
            sandbox.keep_record()?;
            self.make_joint_cgroup(&sandbox).await?;
            self.overhead.enter(&self.layout, || true).await?;
            sandbox.share().await?;
            self.hold_pids(&sandbox).await?;
            sandbox.connect().await?;
            sandbox.set_adoptable(true)
        };
        let made = made.await.and_then(|()| self.may_make(&id));
        match made {
            Ok(()) => {
                sandbox.apply(Trigger::Made);
                Ok(())
            }
            Err(error) => {
                self.release_pids(&sandbox).await;
                let taken_down = sandbox.take_down(&self.overhead, &self.config.systemd, &self.layout).await;
                sandbox.apply(Trigger::Removed);
                Err(match taken_down {
                    Ok(_) => error,
                    Err(left) => error.hint(format!("besides, {left}")),
                })
            }
        }
    }

    fn may_make(&self, id: &TaskId) -> Result<()> {
        if self.facts.read(|facts| facts.life.is_leaving()) {
            let gone = format!("sandbox {id} was removed, or its shim told to leave, while it was being made");
            return Err(Error::new(Kind::WrongState, gone));
        }
        Ok(())
    }

    /// Creates the cgroup that the members are in, without members' limits yet.
    async fn make_joint_cgroup(&self, sandbox: &Rc<Sandbox>) -> Result<()> {
        let record = sandbox.facts.read(|facts| facts.record.clone());
        let (path, unit, description) = (&record.cgroup, &record.unit, &record.sandbox);
        if description.place.is_some() {
            let state = &self.config.state;
            nesting::check(state, &state.all_ids()?, sandbox.id().as_str(), "place", path)?;
        }
        let is_placed = description.place.is_some();
        let claim = Claim { layout: &self.layout, folder: &sandbox.folder, field: "place", minds_tasks: true };
        if is_placed {
            claim.check(path)?;
        }
        let cgroup = match unit {
            None if description.place.is_none() => self.layout.create(path)?,
            None => {
                sandbox.facts.update(|facts| facts.record.parents_made = self.layout.found(path));
                sandbox.keep_record()?;
                let mut cgroup = self.layout.create_or_use(path)?;
                cgroup.stay_if_found();
                claim.store_or_remove(&mut cgroup, path)?;
                cgroup
            }
            Some(slice) => {
                let (_, joint) = self.joint(&record, &BTreeMap::new())?;
                let off = description.cgroup == Enforcement::Off;
                let resources = if off { LinuxResources::default() } else { joint.to_oci() };
                let cgroup = units::create_slice(&self.layout, &self.config.systemd, slice, &resources).await?;
                if is_placed {
                    claim.store(&cgroup, path)?;
                }
                cgroup
            }
        };
        let is_ours_to_know = sandbox.facts.update(|SandboxFacts { record, .. }| {
            record.parents_made = self.layout.parents_made(&cgroup);
            record.identity.as_mut().map(|identity| identity.cgroups = self.layout.files_of(&cgroup)).is_some()
        });
        sandbox.handles.borrow_mut().cgroup = Some(cgroup);
        if is_ours_to_know {
            sandbox.keep_record()?;
        }
        self.budget(sandbox, |_| {}).await
    }

    /// Everything that is known about the sandbox.
    pub fn sandbox_state(&self) -> Result<SandboxState> {
        let sandbox = self.our_sandbox()?;
        Ok(sandbox.facts.read(|facts| SandboxState {
            record: facts.record.clone(),
            class: facts.class,
            budget: (&facts.joint).into(),
            notes: facts.joint.notes.clone(),
            members: facts.shares.keys().cloned().collect(),
        }))
    }

    /// The resource use of all members together.
    pub fn sandbox_stats(&self) -> Result<Stats> {
        let sandbox = self.our_sandbox()?;
        let handles = sandbox.handles.borrow();
        let cgroup =
            handles.cgroup.as_ref().ok_or_else(|| Error::new(Kind::WrongState, "the sandbox is being removed"))?;
        Ok(stats::read(&self.layout, cgroup, self.page_sizes()))
    }

    /// The path of the sandbox's cgroup, if its members have met the joint memory limit.
    pub(crate) fn joint_limit_met(&self) -> Option<String> {
        let sandbox = self.sandbox()?;
        let handles = sandbox.handles.borrow();
        let met = stats::last(&self.layout, handles.cgroup.as_ref()?).own_limit_met? > 0;
        met.then(|| sandbox.facts.read(|facts| facts.record.cgroup.clone()))
    }

    /// Charges the sandbox's helper processes beside it. Returns the pids that no longer exist.
    ///
    /// # Errors
    /// `NotFound` if none exists.
    pub async fn charge_helpers(&self, pids: Vec<i32>) -> Result<Vec<i32>> {
        let sandbox = self.our_sandbox()?;
        let path = sandbox.facts.read(|facts| facts.record.overhead.clone()).ok_or_else(|| {
            let none =
                format!("sandbox {} has no cgroup for helpers, as its overhead is not charged apart", sandbox.id);
            Error::new(Kind::WrongState, none)
        })?;
        let gone = worker::run("helpers", || self.layout.place(&path, &pids)).await?;
        if gone.len() == pids.len() {
            let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
            let what = match pids.len() {
                0 => "no process is named".to_owned(),
                1 => format!("{} is not a process", pids[0]),
                _ => format!("none of {} is a process", pids.join(", ")),
            };
            return Err(Error::new(Kind::NotFound, format!("nothing is charged to sandbox {}: {what}", sandbox.id)));
        }
        self.facts.update(|facts| facts.helpers.extend(pids.iter().filter_map(|pid| ProcessIdentity::of(*pid))));
        Ok(gone)
    }

    /// Takes the sandbox down; the shim leaves afterwards. Returns the helpers that were moved to the root cgroup.
    ///
    /// # Errors
    /// `WrongState` while members run, or somebody else's processes are in the sandbox's cgroup, unless `force` is set; the
    /// errors of plugins that cannot undo what they added. The removal can then be tried again.
    pub async fn remove_sandbox(self: &Rc<Self>, force: bool) -> Result<Vec<i32>> {
        let Some(sandbox) = self.sandbox() else { return self.remove_unmade(force).await.map(|()| Vec::new()) };
        if !sandbox.apply(Trigger::Remove { by_force: force }) {
            return Err(sandbox.is_removed());
        }
        let gone = self.end_sandbox(&sandbox, force).await;
        sandbox.apply(if gone.is_ok() { Trigger::Removed } else { Trigger::Kept });
        if gone.is_ok() {
            self.apply(shim::Trigger::Last);
        }
        gone
    }

    /// Removes a sandbox that does not exist, or not yet. `force` breaks off its making.
    async fn remove_unmade(&self, force: bool) -> Result<()> {
        if !self.config.folder.is_sandbox() {
            self.our_sandbox()?;
        }
        let sandbox = self.sandbox.borrow().clone();
        let is_made = |sandbox: &Rc<Sandbox>| sandbox.facts.read(|facts| facts.life != Life::Making);
        if !sandbox.as_ref().is_some_and(is_made) && !force {
            let message = format!("sandbox {} is still being made", self.config.folder.name());
            return Err(Error::new(Kind::WrongState, message).hint("try again in a moment"));
        }
        self.apply(shim::Trigger::Leave);
        if let Some(sandbox) = sandbox {
            sandbox.facts.until_it(|facts| facts.life != Life::Making).await;
        }
        Ok(())
    }

    async fn end_sandbox(self: &Rc<Self>, sandbox: &Rc<Sandbox>, force: bool) -> Result<Vec<i32>> {
        if force {
            // In this order, so that a member that was frozen while it was launched ends before it runs anything.
            self.kill_members();
            sandbox.thaw(&self.layout);
        }
        let _all = match sandbox.launching.try_write() {
            Ok(all) => all,
            // The launches that hold the lock have just been told to end.
            Err(_) if force => sandbox.launching.write().await,
            Err(_) => {
                let launched =
                    self.facts.read(|facts| facts.launching.iter().map(ToString::to_string).collect::<Vec<_>>());
                let launched = launched.join(", ");
                let message = format!("sandbox {} has members that are being launched: {launched}", sandbox.id);
                return Err(Error::new(Kind::WrongState, message).hint("try again in a moment"));
            }
        };
        let tasks: Vec<Rc<Task>> = self.tasks.borrow().values().cloned().collect();
        let runs = |task: &&Rc<Task>| task.status() != Status::Exited;
        let running: Vec<&str> = tasks.iter().filter(runs).map(|task| task.id.as_str()).collect();
        if !running.is_empty() && !force {
            let message = format!("sandbox {} has members that run: {}", sandbox.id, running.join(", "));
            let hint = format!("stop them, or kill them and remove it with `bowline sandbox rm -f {}`", sandbox.id);
            return Err(Error::new(Kind::WrongState, message).hint(hint));
        }
        self.kill_members();
        for task in &tasks {
            task.ended().await?;
        }
        if !force {
            let overhead = self.overhead.path();
            let check = |cgroup| strangers::check_none(&self.layout, cgroup, overhead.as_deref(), &sandbox.id);
            sandbox.handles.borrow().cgroup.as_ref().map_or(Ok(()), check)?;
        }
        sandbox.apply(Trigger::Dismantle);
        if let Err(error) = sandbox.set_adoptable(false) {
            tracing::warn!(%error, "should this shim die now, another may take over what is left of the sandbox");
        }
        self.release_pids(sandbox).await;
        sandbox.take_down(&self.overhead, &self.config.systemd, &self.layout).await
    }

    fn kill_members(self: &Rc<Self>) {
        let tasks: Vec<Rc<Task>> = self.tasks.borrow().values().cloned().collect();
        for task in tasks {
            // The task may end before the signal arrives.
            let _ = task.signal(&self.layout, Signal::KILL);
        }
    }

    /// Waits until everything that the members' ends require is done.
    pub(crate) async fn members_are_over(&self) {
        let members: Vec<Rc<Task>> = self.tasks.borrow().values().cloned().collect();
        for member in members {
            member.facts.until_it(|facts| facts.life.is_over()).await;
        }
    }

    /// Removes the sandbox of a shim that was told to leave, after its tasks have ended.
    pub(crate) async fn leave_sandbox(self: &Rc<Self>, sandbox: &Rc<Sandbox>) {
        if sandbox.life().is_going() {
            return;
        }
        if let Err(error) = self.remove_sandbox(true).await {
            tracing::error!(%error, "a sandbox is left behind");
        }
    }

    /// Forgets a member that has ended, once everything that its end requires is done.
    pub(crate) async fn forget_member(self: &Rc<Self>, task: &Rc<Task>) {
        // The shim's own folder goes last of all, after its hooks.
        if task.is_removed_at_end() && task.handles.borrow().lock.is_some() {
            task.run_last_hooks().await;
        }
        let Some(sandbox) = self.sandbox() else {
            // The folder of a further task may be removed by others now.
            return self.give_up_folder(task);
        };
        self.tasks.borrow_mut().remove(&task.id);
        // The member's socket leads to the sandbox's shim, which no longer knows the member.
        if let Err(error) = std::fs::remove_file(task.folder.socket()) {
            tracing::warn!(%error, id = %task.id, "a member's socket is left behind");
        }
        self.give_up_folder(task);
        self.leave_budget(&sandbox, &task.id).await;
    }
}

/// The error for a sandbox that has no members yet.
pub(crate) fn is_being_made(id: &str) -> Error {
    Error::new(Kind::WrongState, format!("sandbox {id} is still being made")).hint("try again in a moment")
}
