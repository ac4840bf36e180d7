//! Puts a sandbox's joint limits into effect, whenever a member joins, leaves or changes, and when the sandbox's
//! own limits change.
//!
//! Only changed values are written, each file once. While a member changes, each joint limit is the larger of the
//! values before and after: cgroup v1 holds a member's CPU quota, and its CPUs, to its parent's.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bowline_cgroup::Unit;
use bowline_error::{Error, Kind, Result};
use bowline_model::sandbox::{self, SandboxRecord};
use bowline_spec::budget::{self, Class, Joint, MemoryQos, Share};
use bowline_spec::id::TaskId;
use bowline_spec::{Budget, Enforcement, Task as Description, Update};
use oci_spec::runtime::{LinuxCpu, LinuxResources};

use super::Sandbox;
use crate::hostside::memory_min;
use crate::oci::host;
use crate::process::worker;
use crate::supervise::supervisor::Supervisor;
use crate::supervise::task::Task;

type Shares = BTreeMap<TaskId, Share>;

/// The kinds of limits that are written one at a time where the host may lack some of them.
const KINDS: [fn(&mut Joint, &Joint); 9] = [
    |to, from| to.shares = from.shares,
    |to, from| (to.quota_us, to.period_us) = (from.quota_us, from.period_us),
    |to, from| (to.rt_runtime_us, to.rt_period_us) = (from.rt_runtime_us, from.rt_period_us),
    |to, from| (to.cpus, to.mems) = (from.cpus.clone(), from.mems.clone()),
    |to, from| to.memory = from.memory,
    // Separate from memory, because this host may not count swap.
    |to, from| to.swap = from.swap,
    |to, from| to.memory_low = from.memory_low,
    |to, from| (to.memory_min, to.memory_high) = (from.memory_min, from.memory_high),
    |to, from| to.pids = from.pids,
];

impl Supervisor {
    /// Applies `change` to the members' shares, computes the joint limits and puts them into effect: all, or none.
    pub(crate) async fn budget(&self, sandbox: &Rc<Sandbox>, change: impl FnOnce(&mut Shares)) -> Result<()> {
        let _turn = sandbox.budgeting.lock().await;
        let mut shares = sandbox.facts.read(|facts| facts.shares.clone());
        change(&mut shares);
        let (class, joint) = sandbox.facts.read(|facts| self.joint(&facts.record, &shares))?;
        self.enforce(sandbox, &shares, joint).await?;
        sandbox.facts.update(|facts| (facts.class, facts.shares) = (class, shares));
        Ok(())
    }

    /// Adds a task that is about to be launched to the budget. `notes` say what was changed of its limits.
    ///
    /// # Errors
    /// `BadSpec` with both figures if the task does not fit.
    pub(crate) async fn join_budget(
        &self,
        sandbox: &Rc<Sandbox>,
        id: &TaskId,
        task: &Description,
        resources: Option<&LinuxResources>,
        notes: Vec<String>,
    ) -> Result<()> {
        check_counted(sandbox, resources)?;
        let share = Share { notes, ..share(id, task, resources)? };
        self.budget(sandbox, |shares| drop(shares.insert(id.clone(), share))).await
    }

    /// Adds the members of a sandbox that was taken over to its budget, all at once: the joint limits stay what they are.
    pub(crate) async fn budget_members(&self, sandbox: &Rc<Sandbox>) -> Result<()> {
        let tasks: Vec<Rc<Task>> = self.tasks.borrow().values().filter(|task| task.is_live()).cloned().collect();
        let member = |task: Rc<Task>| {
            let resources = task.spec.linux().as_ref().and_then(|linux| linux.resources().as_ref());
            let share = task.facts.read(|facts| share(&task.id, facts.record.description()?, resources))?;
            Ok((task.id.clone(), share))
        };
        let members = tasks.into_iter().map(member).collect::<Result<Shares>>()?;
        self.budget(sandbox, |shares| *shares = members).await
    }

    /// Removes a member that has gone from the budget.
    pub(crate) async fn leave_budget(&self, sandbox: &Rc<Sandbox>, id: &TaskId) {
        let left = self.budget(sandbox, |shares| drop(shares.remove(id))).await;
        if let Err(error) = left {
            tracing::error!(%error, "the joint limits still count a member that has gone");
            sandbox.facts.update(|facts| {
                facts.shares.remove(id);
                facts.joint.notes.push(format!("the joint limits still count {id}, which has gone: {error}"));
            });
        }
    }

    /// Changes a member's limits with `act`, and the joint limits to match. `notes` say what was changed of the
    /// request; without them, those from before stay. Returns the notes that there were not before.
    pub(crate) async fn change_member(
        &self,
        sandbox: &Rc<Sandbox>,
        task: &Description,
        (id, notes): (&TaskId, Option<Vec<String>>),
        resources: &LinuxResources,
        act: impl AsyncFnOnce() -> Result<()>,
    ) -> Result<Vec<String>> {
        let mut share = share(id, task, Some(resources))?;
        let _turn = sandbox.budgeting.lock().await;
        let (mut shares, before) = sandbox.facts.read(|facts| (facts.shares.clone(), facts.joint.clone()));
        share.notes = notes.or(shares.get(id).map(|share| share.notes.clone())).unwrap_or_default();
        shares.insert(id.clone(), share);
        let (class, after) = sandbox.facts.read(|facts| self.joint(&facts.record, &shares))?;
        self.enforce(sandbox, &shares, before.with_room_for(&after)).await?;
        let said = new_notes(&before, &after);
        let changed = act().await;
        let as_before = || (sandbox.facts.read(|facts| facts.shares.clone()), before);
        let (shares, joint) = if changed.is_ok() { (shares, after) } else { as_before() };
        let settled = self.enforce(sandbox, &shares, joint).await;
        if changed.is_ok() {
            sandbox.facts.update(|facts| (facts.class, facts.shares) = (class, shares));
        }
        changed.and(settled).map(|()| said)
    }

    /// Changes the limits of the sandbox itself.
    pub async fn update_sandbox(&self, update: &Update) -> Result<()> {
        let sandbox = self.sandbox().ok_or_else(|| Error::new(Kind::NotFound, "this shim has no sandbox"))?;
        let _turn = sandbox.budgeting.lock().await;
        let shares = sandbox.facts.read(|facts| facts.shares.clone());
        let changed = sandbox.facts.read(|facts| sandbox::changed(&facts.record, update))?;
        let (class, joint) = self.joint(&changed, &shares)?;
        // First: what is in effect is also in the record, on a full disk too.
        sandbox.folder.write_sandbox(&changed)?;
        if let Err(error) = self.enforce(&sandbox, &shares, joint).await {
            // There was room for the other one.
            let _ = sandbox.keep_record();
            return Err(error);
        }
        let is_written = sandbox.facts.read(|facts| facts.record.unenforced == changed.unenforced);
        sandbox.facts.update(|facts| (facts.class, facts.record.sandbox) = (class, changed.sandbox));
        match sandbox.keep_record() {
            Err(error) if !is_written => Err(error),
            Err(error) => {
                tracing::warn!(%error, "the record is not written again");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// The class and the joint limits of these members.
    pub(crate) fn joint(&self, record: &SandboxRecord, shares: &Shares) -> Result<(Class, Joint)> {
        let (sandbox, shares) = (&record.sandbox, shares.values().cloned().collect::<Vec<Share>>());
        let (class, mut joint) = budget::joint(sandbox, &shares, self.memory_qos())?;
        if sandbox.budget == Budget::Given && sandbox.cpu.shares.is_none() && place_existed(record) {
            joint.shares = None;
        }
        let is_held = !self.layout.is_unified("cpu");
        Ok((class, if is_held { budget::held_by_parent(sandbox, joint, &shares) } else { joint }))
    }

    /// How memory is spared and slowed down: by cgroup v2 alone.
    pub(crate) fn memory_qos(&self) -> Option<MemoryQos> {
        self.layout.is_unified("memory").then(host::memory_qos)
    }

    /// Writes those limits of `joint` that are not in effect yet: all of them, or none.
    async fn enforce(&self, sandbox: &Rc<Sandbox>, shares: &Shares, joint: Joint) -> Result<()> {
        let mode = sandbox.facts.read(|facts| facts.record.sandbox.cgroup);
        let (joint, unenforced) = match mode {
            Enforcement::Off => (joint, Vec::new()),
            Enforcement::Required => {
                self.write(sandbox, shares, &joint).await?;
                (joint, Vec::new())
            }
            Enforcement::BestEffort => match self.write(sandbox, shares, &joint).await {
                Ok(()) => (joint, Vec::new()),
                Err(error) if error.kind() == Kind::Unsupported => self.write_apart(sandbox, shares, joint).await?,
                Err(error) => return Err(error),
            },
        };
        let other = sandbox.facts.update(|facts| {
            for note in new_notes(&facts.joint, &joint) {
                tracing::warn!("{note}");
            }
            facts.joint = joint;
            std::mem::replace(&mut facts.record.unenforced, unenforced.clone()) != unenforced
        });
        if other {
            sandbox.keep_record()?;
        }
        Ok(())
    }

    /// Writes each kind of limit separately. Returns the limits that are then in effect, and a message for each
    /// that this host does not support.
    async fn write_apart(&self, sandbox: &Rc<Sandbox>, shares: &Shares, joint: Joint) -> Result<(Joint, Vec<String>)> {
        let before = sandbox.facts.read(|facts| facts.joint.clone());
        let pages = before.hugepages.keys().chain(joint.hugepages.keys()).copied().collect::<Vec<u64>>();
        let with_page = |now: &Joint, size: u64| {
            let mut with = now.clone();
            with.hugepages.remove(&size);
            with.hugepages.extend(joint.hugepages.get_key_value(&size));
            with
        };
        let with_kind = |now: &Joint, kind: fn(&mut Joint, &Joint)| {
            let mut with = now.clone();
            kind(&mut with, &joint);
            with
        };
        let kinds = KINDS.into_iter().map(|kind| Box::new(move |now: &Joint| with_kind(now, kind)) as Step<'_>);
        let pages = pages.into_iter().map(|size| Box::new(move |now: &Joint| with_page(now, size)) as Step<'_>);
        let mut unenforced = Vec::new();
        for step in kinds.chain(pages).collect::<Vec<_>>() {
            let with = sandbox.facts.read(|facts| step(&facts.joint));
            match self.write(sandbox, shares, &with).await {
                Ok(()) => sandbox.facts.update(|facts| facts.joint = with),
                Err(error) if error.kind() == Kind::Unsupported => unenforced.push(error.message().to_owned()),
                Err(error) => {
                    if let Err(left) = self.write(sandbox, shares, &before).await {
                        tracing::error!(error = %left, "joint limits could not be put back");
                    }
                    sandbox.facts.update(|facts| facts.joint = before);
                    return Err(error);
                }
            }
        }
        let now = sandbox.facts.read(|facts| facts.joint.clone());
        Ok((Joint { notes: joint.notes, ..now }, unenforced))
    }

    /// Writes the limits of `joint` that differ from those in effect.
    async fn write(&self, sandbox: &Rc<Sandbox>, shares: &Shares, joint: &Joint) -> Result<()> {
        let worker = {
            let (facts, handles) = (sandbox.facts.read(Clone::clone), sandbox.handles.borrow());
            let gone = || Error::new(Kind::WrongState, format!("sandbox {} is being removed", sandbox.id()));
            let cgroup = handles.cgroup.as_ref().ok_or_else(gone)?;
            let before = &facts.joint;
            let mut changes = joint.changes_from(before);
            let lifted = (before.cpus.is_some() && joint.cpus.is_none(), before.mems.is_some() && joint.mems.is_none());
            if lifted != (false, false) {
                // No value means "all", so the lifted sets become those of the parent cgroup.
                let mut cpu = changes.cpu().clone().unwrap_or_default();
                let (cpus, mems) = self.layout.parents_sets(cgroup);
                lifted.0.then(|| cpu.set_cpus(cpus));
                lifted.1.then(|| cpu.set_mems(mems));
                changes.set_cpu((cpu != LinuxCpu::default()).then_some(cpu));
            }
            let released = before.rt_runtime_us.is_some() && joint.rt_runtime_us.is_none();
            if changes == LinuxResources::default() && !released {
                return Ok(());
            }
            let record = &facts.record;
            let has_own = |file: &str, share: &Share| match file {
                "cpuset.cpus" => share.member.cpus.is_some(),
                _ => share.member.mems.is_some(),
            };
            let follows = |file: &str, child: &str| {
                !shares.iter().any(|(id, share)| has_own(file, share) && record.folder_of(id) == child)
            };
            let tell = |unit: &Unit, properties| self.config.systemd.change(unit, properties);
            let spares_other = joint.memory_min != before.memory_min;
            let change = || {
                self.layout.change_whole(cgroup, &changes, follows, tell)?;
                if released { self.layout.release_realtime(cgroup) } else { Ok(()) }
            };
            let lowered = joint.has_less_time_than(before);
            worker::start("the joint limits", || {
                if lowered { patiently(change) } else { change() }?;
                if spares_other {
                    memory_min::settle(&self.layout, &self.config.systemd, &record.cgroup);
                }
                Ok(())
            })?
        };
        worker.answer().await.map_err(|error| error.within(format_args!("sandbox {}", sandbox.id())))
    }
}

/// How long a member that has gone may keep its CPU time and its time for realtime scheduling: the kernel of v1 gives
/// those back up to some grace periods of RCU later, refuses less for the sandbox until then, and reports it to nobody.
/// After a kill for lack of memory that is two seconds more, as long as its reaper of memory waits (`OOM_REAPER_DELAY`).
const GIVEN_BACK: Duration = Duration::from_secs(4);

/// Repeats a change that takes away what a member that has just gone had. Blocks: for workers.
fn patiently(change: impl Fn() -> Result<()>) -> Result<()> {
    let (begun, mut wait) = (Instant::now(), Duration::from_millis(1));
    loop {
        match change() {
            Err(_) if begun.elapsed() < GIVEN_BACK => std::thread::sleep(wait),
            done => return done,
        }
        wait = (2 * wait).min(Duration::from_millis(100));
    }
}

type Step<'a> = Box<dyn Fn(&Joint) -> Joint + 'a>;

/// Whether the sandbox's cgroup was there before it: a value that its description does not set stays as it was.
fn place_existed(record: &SandboxRecord) -> bool {
    let parts = record.cgroup.split('/').count() - 1;
    record.parents_made.values().any(|existed| *existed == parts)
}

/// What the notes of `after` say that those of `before` do not.
fn new_notes(before: &Joint, after: &Joint) -> Vec<String> {
    after.notes.iter().filter(|note| !before.notes.contains(note)).cloned().collect()
}

/// Whether a budget is computed from the limit in a raw file of its members; if so, the field by which it is counted.
fn counted_by(budget: Budget, file: &str) -> Option<&'static str> {
    match (budget, file) {
        (Budget::Members | Budget::Pod, "cpu.max") => Some("cpu.limit"),
        (Budget::Pod, "memory.max") => Some("memory.limit"),
        _ => None,
    }
}

/// Checks that the limits which a member is to have are counted by its sandbox's budget.
///
/// # Errors
/// `BadSpec` for a raw limit, where the budget is computed from its members' limits.
pub(crate) fn check_counted(sandbox: &Sandbox, resources: Option<&LinuxResources>) -> Result<()> {
    let budget = sandbox.facts.read(|facts| facts.record.sandbox.budget);
    for (file, _) in resources.and_then(|resources| resources.unified().as_ref()).into_iter().flatten() {
        if let Some(field) = counted_by(budget, file) {
            let message = format!("unified.{file}: the sandbox's budget is computed from its members' {field}");
            return Err(Error::new(Kind::BadSpec, message).hint(format!("set {field} instead")));
        }
    }
    Ok(())
}

fn share(id: &TaskId, task: &Description, resources: Option<&LinuxResources>) -> Result<Share> {
    let none = LinuxResources::default();
    Ok(Share::of(id.as_str(), task, resources.unwrap_or(&none))?)
}
