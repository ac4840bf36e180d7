//! Watches a task as its description asks.
//!
//! ```text
//!   memory.events, pressure ─(POLLPRI)─┐
//!   periodically: stat, /proc ─────────┼─► a rule of `watch` ─► found ─► tell, stop, lift
//!   out-of-memory kills ───────────────┘
//! ```
//!
//! Each policy has one local future: what is not watched costs nothing, and only what the kernel does not report by
//! itself is polled. A failure here never takes the task down. Must not: decide what is news, which is the job of
//! `watch`.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use bowline_cgroup::{OomWatch, PressureWatch};
use bowline_error::{Error, Kind, Result};
use bowline_model::clock::Moment;
use bowline_model::events::Event;
use bowline_model::folder::History;
use bowline_model::report::StoppedBy;
use bowline_model::stats;
use bowline_model::watch::{
    Family, Finding, Part, PressureExceeded, ProcessIdentity, Resource, Stray, Watched, unexpected,
};
use bowline_spec::{Update, WatchAction, WatchMemory, WatchPressure, WatchProcesses, WatchThrottled};

use super::Task;
use crate::facts::TaskFacts;
use crate::supervise::supervisor::Supervisor;
use crate::waits;

/// How long a policy stays silent after a finding, since the kernel may report a hundred of them a second.
const REST: Duration = Duration::from_secs(10);

/// The kernel's event files, opened before the program runs, so that what cannot be watched is refused.
#[derive(Default)]
pub struct Opened {
    high: Option<(Rc<OomWatch>, u64, WatchAction)>,
    pressures: Vec<(Rc<PressureWatch>, WatchPressure, Resource)>,
}

impl Supervisor {
    /// Opens the kernel's event files for the task's watch.
    ///
    /// # Errors
    /// `Unsupported` if the kernel does not report such events, or if the shim has no cgroup of its own to watch.
    pub(crate) fn open_watch(&self, task: &Task) -> Result<Opened> {
        let watch = task.facts.read(|facts| facts.record.task.as_ref().map(|task| task.watch.clone()));
        let Some(watch) = watch else { return Ok(Opened::default()) };
        let refused = |policy: &str, error: Error| error.within(format_args!("watch.{policy}"));
        if watch.unexpected_processes.is_some() && self.overhead.path().is_none() {
            let none = Error::new(Kind::Unsupported, "the shim is in no cgroup of its own that could be watched");
            let hint = "have it charged in one with `--shim-cgroup overhead`";
            return Err(refused("unexpected_processes", none.hint(hint)));
        }
        let mut opened = Opened::default();
        if let Some(high) = &watch.memory_high {
            let file = task.with_cgroup(|cgroup| self.layout.watch_oom(cgroup))?;
            let none = || Error::new(Kind::Unsupported, "nothing on this host counts its events");
            let file = file.ok_or_else(|| refused("memory_high", none()))?;
            opened.high = Some((Rc::new(file), high.above.unwrap_or_default(), high.action));
        }
        let pressures = [
            (Resource::Cpu, &watch.cpu_pressure),
            (Resource::Memory, &watch.memory_pressure),
            (Resource::Io, &watch.io_pressure),
        ];
        for (resource, watch) in pressures {
            let Some(watch) = watch else { continue };
            let (above, window) = (watch.above.unwrap_or_default().as_std(), watch.window());
            let (name, who) = (resource.as_str(), watch.who.as_str());
            let trigger = task.with_cgroup(|c| self.layout.watch_pressure(c, name, who, above, window))?;
            let trigger = trigger.map_err(|e| refused(&format!("{name}_pressure"), e))?;
            opened.pressures.push((Rc::new(trigger), watch.clone(), resource));
        }
        Ok(opened)
    }

    /// Watches the task until its end.
    pub(crate) fn begin_watch(self: &Rc<Self>, task: &Rc<Task>, opened: Opened) {
        let watch =
            task.facts.read(|facts| facts.record.task.as_ref().map(|task| task.watch.clone())).unwrap_or_default();
        if let Some((file, above, action)) = opened.high {
            let supervisor = self.clone();
            until_end(task, async move |task| supervisor.watch_high(task, &file, above, action).await);
        }
        for (trigger, watch, resource) in opened.pressures {
            let supervisor = self.clone();
            until_end(task, async move |task| supervisor.watch_pressure(task, &trigger, &watch, resource).await);
        }
        if let Some(watch) = watch.memory {
            let supervisor = self.clone();
            until_end(task, async move |task| supervisor.watch_memory(task, &watch).await);
        }
        if let Some(watch) = watch.throttled {
            let supervisor = self.clone();
            until_end(task, async move |task| supervisor.watch_throttled(task, &watch).await);
        }
        if let Some(watch) = watch.unexpected_processes {
            let supervisor = self.clone();
            until_end(task, async move |task| supervisor.watch_processes(task, &watch).await);
        }
    }

    async fn watch_high(self: &Rc<Self>, task: &Rc<Task>, file: &OomWatch, above: u64, action: WatchAction) {
        loop {
            task.rests(|watched| &mut watched.high.due).await;
            task.has_rested(|watched| &mut watched.high.due);
            let events = file.count("high").unwrap_or_default();
            if task.facts.update_silently(|facts| facts.history.watched.high.rule.exceeded(events, above)) {
                task.rest(|watched| &mut watched.high.due);
                self.found(task, Finding::memory_high(events, above), action);
                task.remember();
                continue;
            }
            if !file.changed().await {
                return;
            }
        }
    }

    async fn watch_pressure(
        self: &Rc<Self>,
        task: &Rc<Task>,
        trigger: &PressureWatch,
        watch: &WatchPressure,
        resource: Resource,
    ) {
        let due: Slot = match resource {
            Resource::Cpu => |watched| &mut watched.pressures[0].due,
            Resource::Memory => |watched| &mut watched.pressures[1].due,
            Resource::Io => |watched| &mut watched.pressures[2].due,
        };
        loop {
            if task.rests(due).await {
                // A stall that was noted meanwhile may be long over.
                trigger.forget().await;
                task.has_rested(due);
            }
            if !trigger.exceeded().await {
                return;
            }
            let above = usec(watch.above.unwrap_or_default().as_std());
            let total = trigger.total_usec(watch.who.as_str());
            let exceeded = PressureExceeded::new(watch.who, above, usec(watch.window()), total);
            task.rest(due);
            self.found(task, resource.waited_for(exceeded), watch.action);
            task.remember();
        }
    }

    async fn watch_memory(self: &Rc<Self>, task: &Rc<Task>, watch: &WatchMemory) {
        let wanted = [(Part::Total, watch.above), (Part::Anon, watch.anon_above), (Part::Cache, watch.cache_above)];
        while self.runs_for(task, watch.every(), |facts| Some(&mut facts.history.watched.memory.due)).await {
            let Ok(use_now) = task.with_cgroup(|cgroup| stats::memory_in_use(&self.layout, cgroup)) else { return };
            let before = task.facts.read(|facts| facts.history.watched.memory.rule);
            for (index, (part, above)) in wanted.iter().enumerate() {
                let bytes = match part {
                    Part::Total => use_now.total_bytes,
                    Part::Anon => use_now.anon_bytes,
                    Part::Cache => use_now.cache_bytes,
                };
                // An unknown figure leaves the rule as it was.
                let (Some(bytes), Some(above)) = (bytes, above) else { continue };
                let above_bytes = above.as_u64();
                if task
                    .facts
                    .update_silently(|facts| facts.history.watched.memory.rule[index].holds(bytes > above_bytes))
                {
                    self.found(task, Finding::memory(*part, bytes, above_bytes), watch.action);
                }
            }
            if task.facts.read(|facts| facts.history.watched.memory.rule != before) {
                task.remember();
            }
        }
    }

    async fn watch_throttled(self: &Rc<Self>, task: &Rc<Task>, watch: &WatchThrottled) {
        let (above_usec, every_usec) = (usec(watch.above.unwrap_or_default().as_std()), usec(watch.every()));
        while self.runs_for(task, watch.every(), |facts| Some(&mut facts.history.watched.throttled.due)).await {
            let now = task.with_cgroup(|cgroup| stats::throttled_usec(&self.layout, cgroup));
            let Ok(now) = now else { return };
            let Some(now) = now else { continue };
            let (usec, news, changed) =
                task.facts.update_silently(|TaskFacts { history: History { watched, .. }, .. }| {
                    let usec = now.saturating_sub(std::mem::replace(&mut watched.throttled_usec, now));
                    let before = watched.throttled.rule;
                    (usec, watched.throttled.rule.holds(usec > above_usec), watched.throttled.rule != before)
                });
            if news {
                self.found(task, Finding::throttled(usec, above_usec, every_usec), watch.action);
            }
            if changed {
                task.remember();
            }
        }
    }

    /// Lets the time for which a task was held back before now count for nothing: another shim has judged it.
    pub(crate) fn forget_throttling(&self, task: &Task) {
        let is_watched =
            |facts: &TaskFacts| facts.record.task.as_ref().is_some_and(|task| task.watch.throttled.is_some());
        if !task.facts.read(is_watched) {
            return;
        }
        if let Ok(Some(usec)) = task.with_cgroup(|cgroup| stats::throttled_usec(&self.layout, cgroup)) {
            task.facts.update_silently(|facts| facts.history.watched.throttled_usec = usec);
        }
    }

    async fn watch_processes(self: &Rc<Self>, task: &Rc<Task>, watch: &WatchProcesses) {
        let Some(path) = self.overhead.path() else { return };
        while self.runs_for(task, watch.every(), |facts| Some(&mut facts.history.watched.processes.due)).await {
            let strays = self.strays(&path);
            if let Some((processes, others)) =
                task.facts.update_silently(|facts| facts.history.watched.processes.rule.twice(strays))
            {
                self.found(task, Finding::unexpected_processes(processes, others), watch.action);
                task.remember();
            }
        }
    }

    /// The processes in the cgroup at `path` that do not belong to the shim. Empty before the cgroup exists.
    fn strays(&self, path: &str) -> Vec<(ProcessIdentity, Stray)> {
        let name = self.config.folder.name();
        let family = Family {
            shim: rustix::process::getpid().as_raw_nonzero().get(),
            parent: rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get()),
            tasks: &self.task_pids(),
            helpers: &self.facts.read(|facts| facts.helpers.clone()),
            mark: name.as_str(),
        };
        unexpected(&self.layout.processes_at(path), &family)
    }

    /// The first processes of all tasks and of their execs.
    fn task_pids(&self) -> BTreeSet<i32> {
        let tasks = self.tasks.borrow();
        let pids = |task: &Rc<Task>| {
            let execs: Vec<i32> = task.facts.read(|facts| facts.execs_by_pid().into_keys().collect());
            task.pid().into_iter().chain(execs)
        };
        tasks.values().flat_map(pids).collect()
    }

    /// Reports what a policy has found, and performs the policy's action.
    fn found(self: &Rc<Self>, task: &Rc<Task>, finding: Finding, action: WatchAction) {
        self.tell(task, Event::watch(finding.clone(), action, None));
        self.act(task, finding, action);
    }

    /// Performs a policy's action, apart from the report.
    pub(crate) fn act(self: &Rc<Self>, task: &Rc<Task>, finding: Finding, action: WatchAction) {
        match action {
            WatchAction::Report => {}
            WatchAction::Stop => {
                task.facts
                    .update(|facts| facts.history.stopped_for = facts.history.stopped_for.take().or(Some(finding)));
                if let Err(error) = self.shutdown(&task.id, None, None, StoppedBy::Watch) {
                    tracing::error!(%error, id = %task.id, "cannot stop a task that its watch asks to stop");
                }
            }
            WatchAction::Lift => {
                let (supervisor, task) = (self.clone(), task.clone());
                waits::work("limits lifted", Some(task.id.clone()), async move {
                    if let Err(error) = supervisor.lift(&task).await {
                        tracing::error!(%error, id = %task.id, "cannot lift the limits of a task");
                        supervisor.tell(&task, Event::watch(finding, action, Some(error.to_string())));
                    }
                });
            }
        }
    }

    /// Lifts the limits that hold a task back, if it has any of its own.
    async fn lift(self: &Rc<Self>, task: &Task) -> Result<()> {
        let update = task.facts.read(|facts| facts.record.task.as_ref().and_then(Update::lifting));
        match update {
            Some(update) => self.update(&task.id, &update).await.map(drop),
            None => Ok(()),
        }
    }
}

fn usec(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Selects the time at which a policy looks again.
type Slot = fn(&mut Watched) -> &mut Option<Moment>;

impl Task {
    /// Keeps a policy silent for [`REST`].
    fn rest(&self, due: Slot) {
        self.facts.update_silently(|facts| *due(&mut facts.history.watched) = Some(Moment::now().after(REST)));
    }

    /// Waits until a policy's silence is over. Returns whether it was silent.
    async fn rests(&self, due: Slot) -> bool {
        let Some(until) = self.facts.update_silently(|facts| *due(&mut facts.history.watched)) else { return false };
        crate::waits::sleep_until(until).await;
        true
    }

    fn has_rested(&self, due: Slot) {
        self.facts.update_silently(|facts| *due(&mut facts.history.watched) = None);
    }
}

/// Runs `watch` until it returns, or until the task's exit is reported.
pub fn until_end(task: &Rc<Task>, watch: impl AsyncFn(&Rc<Task>) + 'static) {
    let (task, watch) = (task.clone(), Rc::new(watch));
    waits::begin(move || {
        let (task, watch) = (task.clone(), watch.clone());
        async move {
            tokio::select! {
                () = watch(&task) => {}
                _ = task.exit_report() => {}
            }
        }
    });
}
