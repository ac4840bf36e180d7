//! What a sandbox's members may use together, put into effect: whenever one
//! comes, goes or changes, and when the sandbox's own limits do.
//!
//! Only what is different is written, each file once. A limit that grows is
//! written before a member gets more, one that shrinks after it has less: v1
//! holds a member's CPU quota to its parent's.

use std::collections::BTreeMap;
use std::rc::Rc;

use bowline_spec::budget::{self, Class, Joint, Share};
use bowline_spec::id::TaskId;
use bowline_spec::{Enforcement, Task as Description, Update};
use oci_spec::runtime::LinuxResources;

use super::Supervisor;
use super::sandboxes::Sandbox;
use crate::cgroup::Unit;
use crate::error::{Error, Kind, Result};
use crate::{sandbox, worker};

type Shares = BTreeMap<TaskId, Share>;

impl Supervisor {
    /// Works out the joint limits with what `change` makes of the members, and
    /// puts them into effect: all, or none.
    pub(super) async fn budget(&self, sandbox: &Rc<Sandbox>, change: impl FnOnce(&mut Shares)) -> Result<()> {
        let _turn = sandbox.budgeting.lock().await;
        let mut shares = sandbox.shares.borrow().clone();
        change(&mut shares);
        let (class, joint) = joint(sandbox, &shares)?;
        self.enforce(sandbox, class, joint).await?;
        *sandbox.shares.borrow_mut() = shares;
        Ok(())
    }

    /// Has a task that is about to be launched fit into the budget.
    ///
    /// # Errors
    /// `BadSpec` with both figures where it does not.
    pub(super) async fn join_budget(
        &self,
        sandbox: &Rc<Sandbox>,
        id: &TaskId,
        task: &Description,
        resources: Option<&LinuxResources>,
    ) -> Result<()> {
        let share = share(id, task, resources)?;
        self.budget(sandbox, |shares| drop(shares.insert(id.clone(), share))).await
    }

    /// A member is no more.
    pub(super) async fn leave_budget(&self, sandbox: &Rc<Sandbox>, id: &TaskId) {
        let left = self.budget(sandbox, |shares| drop(shares.remove(id))).await;
        if let Err(error) = left {
            tracing::error!(%error, "the joint limits still count a member that has gone");
            sandbox.shares.borrow_mut().remove(id);
        }
    }

    /// Changes a member's limits by `act`, and the joint ones with it.
    pub(super) async fn change_member(
        &self,
        id: &TaskId,
        task: &Description,
        resources: &LinuxResources,
        act: impl AsyncFnOnce() -> Result<()>,
    ) -> Result<()> {
        let Some(sandbox) = self.sandbox() else { return act().await };
        let share = share(id, task, Some(resources))?;
        let before = sandbox.shares.borrow().get(id).cloned();
        let mut shares = sandbox.shares.borrow().clone();
        shares.insert(id.clone(), share.clone());
        let (_, after) = joint(&sandbox, &shares)?;
        let grows = cpus(&after) >= cpus(&sandbox.joint.borrow());
        if !grows {
            act().await?;
            return self.budget(&sandbox, |shares| drop(shares.insert(id.clone(), share))).await;
        }
        self.budget(&sandbox, |shares| drop(shares.insert(id.clone(), share))).await?;
        let changed = act().await;
        if let (Err(_), Some(before)) = (&changed, before) {
            self.budget(&sandbox, |shares| drop(shares.insert(id.clone(), before))).await?;
        }
        changed
    }

    /// Changes the limits of the sandbox itself.
    pub(super) async fn update_sandbox(&self, update: &Update) -> Result<()> {
        let sandbox = self.sandbox().ok_or_else(|| Error::new(Kind::NotFound, "this shim has no sandbox"))?;
        let before = sandbox.record.borrow().clone();
        let after = sandbox::changed(&before, update)?;
        *sandbox.record.borrow_mut() = after;
        let done = self.budget(&sandbox, |_| {}).await;
        if done.is_err() {
            *sandbox.record.borrow_mut() = before;
        }
        done?;
        sandbox.keep_record()
    }

    /// Writes what of `joint` is not in effect yet.
    async fn enforce(&self, sandbox: &Rc<Sandbox>, class: Class, joint: Joint) -> Result<()> {
        let changes = joint.changes_from(&sandbox.joint.borrow());
        let mode = sandbox.record.borrow().sandbox.cgroup;
        if mode != Enforcement::Off && changes != LinuxResources::default() {
            let done = self.write(sandbox, &changes).await;
            match done {
                Err(error) if mode == Enforcement::BestEffort && error.kind() == Kind::Unsupported => {
                    self.write_apart(sandbox, &changes).await?;
                }
                done => done?,
            }
        }
        sandbox.class.set(class);
        *sandbox.joint.borrow_mut() = joint;
        Ok(())
    }

    async fn write(&self, sandbox: &Rc<Sandbox>, changes: &LinuxResources) -> Result<()> {
        let tell = |unit: &Unit, properties| self.config.systemd.change(unit, properties);
        let worker = {
            let cgroup = sandbox.cgroup.borrow();
            let gone = || Error::new(Kind::WrongState, format!("sandbox {} is being removed", sandbox.id()));
            let cgroup = cgroup.as_ref().ok_or_else(gone)?;
            worker::start("the joint limits", || self.layout.change(cgroup, changes, tell))?
        };
        worker.answer().await.map_err(|error| error.within(format_args!("sandbox {}", sandbox.id())))
    }

    /// Writes each kind of limit by itself, and says which this host has not.
    async fn write_apart(&self, sandbox: &Rc<Sandbox>, changes: &LinuxResources) -> Result<()> {
        let mut unenforced = Vec::new();
        for part in apart(changes) {
            match self.write(sandbox, &part).await {
                Err(error) if error.kind() == Kind::Unsupported => unenforced.push(error.message().to_owned()),
                done => done?,
            }
        }
        sandbox.record.borrow_mut().unenforced = unenforced;
        sandbox.keep_record()
    }
}

/// The joint limits of these members, with the class.
fn joint(sandbox: &Sandbox, shares: &Shares) -> Result<(Class, Joint)> {
    let shares: Vec<Share> = shares.values().cloned().collect();
    Ok(budget::joint(&sandbox.record.borrow().sandbox, &shares)?)
}

fn share(id: &TaskId, task: &Description, resources: Option<&LinuxResources>) -> Result<Share> {
    let none = LinuxResources::default();
    Ok(Share::of(id.as_str(), task, resources.unwrap_or(&none))?)
}

/// CPU time as a part of the period; nothing limits it at infinity.
fn cpus(joint: &Joint) -> f64 {
    let period = joint.period_us.unwrap_or(budget::DEFAULT_PERIOD_US);
    joint.quota_us.map_or(f64::INFINITY, |quota| quota as f64 / period as f64)
}

/// Each kind of limit by itself.
fn apart(changes: &LinuxResources) -> Vec<LinuxResources> {
    let mut parts = Vec::new();
    let mut part = |set: &dyn Fn(&mut LinuxResources)| {
        let mut one = LinuxResources::default();
        set(&mut one);
        if one != LinuxResources::default() {
            parts.push(one);
        }
    };
    let (cpu, memory) = (changes.cpu().clone().unwrap_or_default(), changes.memory().unwrap_or_default());
    part(&|one| {
        if cpu.shares().is_some() {
            let mut shares = oci_spec::runtime::LinuxCpu::default();
            shares.set_shares(cpu.shares());
            one.set_cpu(Some(shares));
        }
    });
    part(&|one| {
        let mut time = cpu.clone();
        time.set_shares(None).set_cpus(None).set_mems(None);
        one.set_cpu((time != oci_spec::runtime::LinuxCpu::default()).then_some(time));
    });
    part(&|one| {
        let mut sets = oci_spec::runtime::LinuxCpu::default();
        sets.set_cpus(cpu.cpus().clone()).set_mems(cpu.mems().clone());
        one.set_cpu((sets != oci_spec::runtime::LinuxCpu::default()).then_some(sets));
    });
    part(&|one| {
        // Swap may be what this host does not count.
        let mut limit = memory;
        limit.set_swap(None).set_reservation(None);
        one.set_memory((limit != oci_spec::runtime::LinuxMemory::default()).then_some(limit));
    });
    part(&|one| {
        one.set_memory(memory.swap().is_some().then_some({
            let mut swap = memory;
            swap.set_reservation(None);
            swap
        }));
    });
    part(&|one| {
        let mut low = oci_spec::runtime::LinuxMemory::default();
        low.set_reservation(memory.reservation());
        one.set_memory((low != oci_spec::runtime::LinuxMemory::default()).then_some(low));
    });
    part(&|one| {
        one.set_pids(*changes.pids());
    });
    for page in changes.hugepage_limits().iter().flatten() {
        part(&|one| {
            one.set_hugepage_limits(Some(vec![page.clone()]));
        });
    }
    for (file, value) in changes.unified().iter().flatten() {
        part(&|one| {
            one.set_unified(Some([(file.clone(), value.clone())].into()));
        });
    }
    parts
}
