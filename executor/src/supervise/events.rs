//! Reports what happens to tasks: numbered events to the journal, and manager events to the manager.
//!
//! An event is written after it has happened, and before the caller that asked for it gets an answer. Health checks
//! do not appear as execs: they would drown everything else, and their outcome is reported instead.

use std::rc::Rc;
use std::time::Duration;

use bowline_cgroup::{Layout, OomWatch};
use bowline_model::clock::Moment;
use bowline_model::events::{Entry, shortened};
use bowline_model::report::ExitReport;
use bowline_model::reserve::Put;
use bowline_model::stats;
use bowline_model::watch::{Finding, KernelLog};
use bowline_spec::WatchAction;
use bowline_spec::unit::slice_path;
use jiff::Timestamp;

use crate::facts::{ExecFacts, TaskFacts};
use crate::output::manager_events::ManagerEvent;
use crate::supervise::supervisor::Supervisor;
use crate::supervise::task::Task;
use crate::supervise::task::watching::until_end;
pub use bowline_model::events::Event;

/// When kills are counted after memory has run out: cgroup v1 reports that before it kills, and v2 whenever a limit
/// is met, which may be a thousand times a second.
const COUNTED_AFTER: &[Duration] = &[Duration::ZERO, Duration::from_millis(10), Duration::from_millis(990)];

/// When kills are counted in a systemd unit. systemd removes an empty scope together with its
/// count, perhaps before the shim hears of the end, and the kernel reports a changed count at most
/// once in 10 ms: a report may come too late for the kill that follows.
const COUNTED_IN_UNIT_AFTER: &[Duration] = &[
    Duration::ZERO,
    Duration::from_millis(2),
    Duration::from_millis(2),
    Duration::from_millis(2),
    Duration::from_millis(2),
    Duration::from_millis(2),
];

/// How long a task's exit waits for execs that end with the task.
const STRAGGLING: Duration = Duration::from_secs(1);

impl Supervisor {
    /// Writes an event of a task to the journal, unless the task's end is reported already.
    pub(super) fn tell(&self, task: &Task, event: Event) {
        if task.facts.read(|facts| facts.life.is_report_made()) {
            return;
        }
        self.write_events(task, [(Timestamp::now(), event)]);
    }

    /// Writes events of a task to the journal at once, with the next numbers.
    fn write_events<const N: usize>(&self, task: &Task, events: [(Timestamp, Event); N]) {
        let Some(journal) = &self.journal else { return };
        let mut entries = events.map(|(time, event)| task.entry(time, event));
        journal.borrow_mut().append(&mut entries);
        if let Some(slots) = &task.handles.borrow().exec_slots {
            slots.keep_events(task.facts.read(|facts| facts.events));
        }
    }

    /// Reports an event to the manager, if one receives events, unless the task's end is reported already.
    pub(super) fn tell_manager(&self, task: &Task, what: impl FnOnce() -> ManagerEvent) {
        if let Some(sink) = self.config.tell.as_ref().filter(|_| !task.facts.read(|facts| facts.life.is_report_made()))
        {
            sink.tell(&task.id, what());
        }
    }

    /// Reports an exec to the manager, because a caller may wait for it. This comes after the task's end if the
    /// exec is so deep in the kernel that the end did not wait for it.
    pub(super) fn tell_of_exec(&self, task: &Task, what: ManagerEvent) {
        if let Some(sink) = &self.config.tell {
            sink.tell(&task.id, what);
        }
    }

    /// Reports that a task was launched, in one write. Nothing is written about a launch that failed.
    pub(super) fn tell_launched(&self, task: &Task) {
        let (created_at, started_at, pid) = task.facts.read(|facts| {
            let record = &facts.record;
            (record.created_at, record.started_at.unwrap_or(record.created_at), record.pid.unwrap_or_default())
        });
        let args = task.spec.process().as_ref().and_then(|process| process.args().as_ref());
        let command = shortened(args.into_iter().flatten());
        self.write_events(task, [(created_at, Event::created(command)), (started_at, Event::started(pid))]);
    }

    /// Reports that a command which a caller asked for was run.
    pub(super) fn tell_command(&self, task: &Task, command: &[String], exec: &ExecFacts) {
        let exit_code = exec.exit_code();
        let started_at = exec.started_at.unwrap_or_else(Timestamp::now);
        self.tell(task, Event::exec(shortened(command), exit_code, exec.end.is_none(), started_at));
    }

    /// Reports to the manager that its exec with this pid has ended.
    pub(super) fn tell_exec_exit(&self, task: &Task, pid: i32, exec: &ExecFacts) {
        let code = exec.exit_code().unwrap_or(128 + libc::SIGKILL);
        let (name, at) = (exec.name.clone().unwrap_or_default(), exec.exited_at.unwrap_or_else(Timestamp::now));
        self.tell_of_exec(task, ManagerEvent::ExecExited { name, pid, code, at });
    }

    /// Waits until the ends of all execs that end with their task are reported. Gives up on an exec that does not
    /// end because it is deep in the kernel.
    pub(super) async fn tell_execs(&self, task: &Task) {
        let told = task.facts.until_it(|facts| facts.execs.values().all(ExecFacts::is_exit_published));
        let _ = tokio::time::timeout(task.step_due(STRAGGLING).to_come(), told).await;
    }

    /// Writes the task's end, its last event, to the journal, with the number that the report gives. This is done
    /// once the report is written, so that neither contradicts the other. If no caller wants the report any more,
    /// the caller that removed the task has reported the end.
    pub(super) fn tell_written(&self, task: &Task, report: &ExitReport, put: Put) {
        if let Put::Placed = put {
            self.write_events(task, [(Timestamp::now(), Event::of_exit(report))]);
        }
    }

    /// Reports the task's end to the manager.
    pub(super) fn tell_exit(&self, task: &Task, report: &ExitReport) {
        if let Some(sink) = &self.config.tell {
            let pid = task.facts.read(|facts| facts.record.pid).unwrap_or_default();
            sink.tell(&task.id, ManagerEvent::Exited { pid, report: Box::new(report.clone()) });
        }
    }

    /// Reports that the kernel has killed processes for lack of memory since the last call. `None` if it has not;
    /// else whether init was the last that it killed.
    pub(super) fn tell_oom(&self, task: &Task, kills: Option<u64>) -> Option<bool> {
        let kills = kills.filter(|kills| *kills > task.facts.read(|facts| facts.history.oom_kills))?;
        let met = task.with_unit(|cgroup| stats::last(&self.layout, cgroup).own_limit_met).flatten();
        task.facts.update(|facts| {
            facts.history.oom_kills = kills;
            facts.history.limit_met = met.or(facts.history.limit_met);
        });
        task.read_kernel_log();
        let (last, init) = task.facts.update_silently(|TaskFacts { record, named_kills, .. }| {
            let last = named_kills.take_last();
            let init = last.as_ref().map(|last| Some(last.pid) == record.program_pid());
            (last, init)
        });
        self.tell(task, Event::oom(kills, last, init));
        task.remember();
        self.tell_manager(task, || ManagerEvent::OutOfMemory);
        if let Some(action) = task.oom_action() {
            self.tell(task, Event::watch(Finding::oom(kills), action, None));
        }
        Some(init.unwrap_or(false))
    }

    /// Reports kills for lack of memory as they happen. Kills that are not noticed in time are reported with the
    /// task's end.
    pub(super) fn watch_oom(self: &Rc<Self>, task: &Rc<Task>) {
        let Ok(Some(watch)) = task.with_cgroup(|cgroup| self.layout.watch_oom(cgroup)) else { return };
        let kernel_log = task.handles.borrow_mut().kernel_log.take();
        task.handles.borrow_mut().kernel_log = kernel_log.or_else(KernelLog::from_now);
        let (supervisor, watch) = (self.clone(), Rc::new(watch));
        until_end(task, async move |task| supervisor.hear_of_oom(task, &watch).await);
    }

    /// Begins that at once for a task in a systemd unit: when the task has ended, systemd may have removed the cgroup that
    /// counts its kills. For others it begins when the shim settles.
    pub(super) fn watch_oom_of_unit(self: &Rc<Self>, task: &Rc<Task>) {
        if task.facts.read(|facts| facts.record.unit.is_some()) {
            self.note_kills_before(task);
            self.watch_oom(task);
        }
    }

    /// Notes what a task's slice has counted that its cgroup has not.
    pub(super) fn note_kills_before(&self, task: &Task) {
        if task.facts.read(|facts| facts.record.unit.is_some()) {
            let own = task.with_cgroup(|cgroup| self.layout.oom_kills_now(cgroup)).ok().flatten();
            let all = task.kills_in_slice(&self.layout);
            task.facts
                .update_silently(|facts| facts.kills_before = all.zip(own).map(|(all, own)| all.saturating_sub(own)));
        }
    }

    async fn hear_of_oom(self: &Rc<Self>, task: &Rc<Task>, watch: &OomWatch) {
        // Report what was killed before the watch began.
        self.oom_found(task, watch);
        loop {
            while let Some(look) = task.facts.read(|facts| facts.oom_looks.front().copied()) {
                crate::waits::sleep_until(look).await;
                task.facts.update_silently(|facts| facts.oom_looks.pop_front());
                if !task.is_live() || self.oom_found(task, watch) {
                    task.facts.update_silently(|facts| facts.oom_looks.clear());
                }
            }
            if !watch.changed().await {
                return;
            }
            let after = |moment: &mut Moment, wait: &Duration| {
                *moment = moment.after(*wait);
                Some(*moment)
            };
            task.facts.update_silently(|facts| {
                let in_unit = facts.record.unit.is_some();
                let waits = if in_unit { COUNTED_IN_UNIT_AFTER } else { COUNTED_AFTER };
                facts.oom_looks = waits.iter().scan(Moment::now(), after).collect();
            });
        }
    }

    /// Reports new kills and performs the action of the task's watch, unless init was killed. Returns whether there
    /// were any kills.
    fn oom_found(self: &Rc<Self>, task: &Rc<Task>, watch: &OomWatch) -> bool {
        self.count_in_unit(task);
        let Some(init) = self.tell_oom(task, watch.kills()) else { return false };
        if let Some(action) = task.oom_action().filter(|_| !init) {
            let kills = task.facts.read(|facts| facts.history.oom_kills);
            self.act(task, Finding::oom(kills), action);
        }
        true
    }

    /// Notes the limits and the memory of a task in a unit, whose cgroup systemd may remove before they are read for its
    /// report.
    pub(super) fn count_in_unit(&self, task: &Task) {
        if let Some(now) = task.with_unit(|cgroup| stats::last(&self.layout, cgroup)) {
            task.facts.update_silently(|facts| {
                let earlier = facts.counted.take().unwrap_or_default();
                facts.counted = Some(now.so_far(earlier));
            });
        }
    }
}

impl Task {
    /// The action that the task's watch asks for when processes were killed for lack of memory.
    fn oom_action(&self) -> Option<WatchAction> {
        self.facts.read(|facts| facts.record.task.as_ref()?.watch.oom.as_ref().map(|oom| oom.action))
    }

    /// Reads which processes the kernel has killed for lack of memory.
    pub(super) fn read_kernel_log(&self) {
        if let Some(log) = &self.handles.borrow().kernel_log {
            self.facts
                .update_silently(|TaskFacts { record, named_kills, .. }| log.read_into(named_kills, &record.cgroup));
        }
    }

    /// The OOM kills in the slice that was made for the task's sandbox: it outlives the scopes in it, and counts what
    /// they had. `None` for a slice of others, and of a sandbox with several members.
    fn kills_in_slice(&self, layout: &Layout) -> Option<u64> {
        let slice = self.facts.read(|facts| {
            let unit = facts.record.unit.as_ref().filter(|unit| unit.own_slice && facts.record.sandbox.is_none())?;
            Some(slice_path(&unit.slice))
        })?;
        layout.oom_kills_now(&layout.open(&slice).ok()??)
    }

    /// The task's OOM kills, where its own cgroup has gone with its counts.
    pub(super) fn kills_by_slice(&self, layout: &Layout) -> Option<u64> {
        let before = self.facts.read(|facts| facts.kills_before)?;
        self.kills_in_slice(layout)?.checked_sub(before)
    }

    /// Makes the task's next journal entry, with the next number.
    fn entry(&self, time: Timestamp, event: Event) -> Entry {
        let seq = self.facts.update(|facts| {
            facts.events += 1;
            facts.events
        });
        Entry::new(time, self.id.clone(), seq, event)
    }
}
