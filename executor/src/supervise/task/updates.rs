//! Changes limits while a task runs: all of them, or none.

use std::rc::Rc;

use bowline_cgroup::{Cgroup, Unit};
use bowline_error::Result;
use bowline_model::events::{Event, Throttled};
use bowline_model::stats;
use bowline_spec::Update;
use bowline_spec::budget::{own_memory, settled_shares};
use bowline_spec::id::TaskId;
use oci_spec::runtime::LinuxResources;

use super::Task;
use crate::oci::bundle;
use crate::oci::host;
use crate::oci::unsupported;
use crate::process::worker;
use crate::supervise::sandbox::budgets::check_counted;
use crate::supervise::supervisor::Supervisor;

impl Supervisor {
    /// Changes a task's limits, and its sandbox's with them. Returns what that changes for the task besides, a sentence
    /// each.
    pub async fn update(self: &Rc<Self>, id: &TaskId, update: &Update) -> Result<Vec<String>> {
        let task = self.task(id)?;
        let _turn = task.turns.updating.lock().await;
        let (update, notes) = self.settled(id, update);
        let update = &update;
        let (merged, mut changes) = task.facts.read(|facts| host::change(facts.record.description()?, update))?;
        let earlier = task.facts.read(|facts| facts.record.description().map(|task| task.cpu.limit))?;
        let joined = match self.sandbox() {
            None => None,
            Some(sandbox) => {
                check_counted(&sandbox, Some(&changes))?;
                let joined = self.joined(&sandbox, &merged, id)?;
                if let Some(cpu) = changes.cpu_mut() {
                    // A pod's rule makes them of the limit.
                    cpu.set_shares(joined.cpu.shares);
                }
                let by_rule = sandbox.facts.read(|f| own_memory(&f.record.sandbox, &merged, self.memory_qos()));
                let files = changes.unified().iter().flatten().any(|(file, _)| by_rule.contains_key(file));
                if files || changes.memory().is_some() && !by_rule.is_empty() {
                    changes.unified_mut().get_or_insert_default().extend(by_rule);
                }
                let spec = host::configure_unfiltered(&joined, id.as_str(), None)?;
                let resources = spec.linux().as_ref().and_then(|l| l.resources().clone()).unwrap_or_default();
                Some((sandbox, resources))
            }
        };
        // First: what is in effect is also on a full disk.
        task.write_record_as(&merged)?;
        let keep = || bundle::keep_limits(&task.folder, &changes);
        let kept = if merged.bundle.is_some() { keep() } else { Ok(None) };
        let earlier_copy = kept.inspect_err(|_| task.keep_record())?;
        let act = async || self.change(&task, &changes).await;
        let changed = match joined {
            None => act().await.map(|()| Vec::new()),
            Some((sandbox, resources)) => self.change_member(&sandbox, &merged, (id, notes), &resources, act).await,
        };
        let said = match changed {
            Ok(said) => said,
            Err(error) => {
                if task.is_live() {
                    task.keep_record();
                    earlier_copy.iter().for_each(|copy| bundle::put_back(&task.folder, copy));
                }
                return Err(error);
            }
        };
        let throttled = match merged.cpu.limit == earlier {
            true => None,
            false => task
                .with_cgroup(|cgroup| Throttled::of(earlier, &stats::last(&self.layout, cgroup).figures))
                .ok()
                .flatten(),
        };
        task.facts.update(|facts| facts.record.task = Some(merged));
        // Another change may have written the earlier description meanwhile.
        task.keep_record();
        self.tell(&task, Event::updated(update, throttled));
        Ok(said)
    }

    /// `update` with CPU shares that the kernel takes, for a member of a sandbox; and notes if it names shares.
    fn settled(&self, id: &TaskId, update: &Update) -> (Update, Option<Vec<String>>) {
        let mut update = update.clone();
        let Some(sandbox) = self.sandbox().filter(|_| update.cpu.shares.is_some()) else { return (update, None) };
        let asked = update.cpu.shares;
        let (shares, notes) = sandbox.facts.read(|facts| settled_shares(&facts.record.sandbox, id.as_str(), asked));
        update.cpu.shares = shares;
        (update, Some(notes))
    }

    /// Changes the limits of a task whose manager computes them.
    pub async fn limit(self: &Rc<Self>, id: &TaskId, changes: &LinuxResources) -> Result<()> {
        let task = self.task(id)?;
        let _turn = task.turns.updating.lock().await;
        unsupported::check_resources(changes)?;
        let mut changes = bundle::limits(changes.clone());
        // Managers send the rules of the configuration along, without the devices that every container has. Like
        // runc, leave those in effect alone.
        if changes.devices().as_ref().is_some_and(|rules| !rules.is_empty()) {
            tracing::info!(task = %id, "linux.resources.devices has no effect in an update: the rules stay as they are");
        }
        changes.set_devices(None);
        self.change(&task, &changes).await
    }

    async fn change(&self, task: &Task, changes: &LinuxResources) -> Result<()> {
        // The kernel may have to reclaim memory first; the loop goes on meanwhile.
        let tell = |unit: &Unit, properties| self.config.systemd.change(unit, properties);
        let before =
            task.facts.read(|facts| facts.record.task.as_ref().map(|of| host::raw_limits_of(of, &task.folder)));
        let before = before.unwrap_or_default();
        let change = |cgroup: &Cgroup| self.layout.change(cgroup, changes, &before, tell);
        let worker = task.with_cgroup(|cgroup| worker::start("the update", || change(cgroup)))??;
        let changed = worker.answer().await;
        if !task.is_live() {
            return Err(task.has_exited());
        }
        self.count_in_unit(task);
        changed
    }
}
