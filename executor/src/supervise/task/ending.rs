//! The end of a task, from init's exit to the last byte of output and the removal of its cgroup; and the undoing of
//! a launch that failed.

use std::rc::Rc;
use std::time::Duration;

use bowline_error::{Error, Kind, Result};
use bowline_model::folder::{Folder, Record};
use bowline_model::report::{ExitReport, OomFacts, StoppedBy, signal_name};
use bowline_model::reserve::Put;
use bowline_model::stats;
use bowline_model::stats::enforcement;
use bowline_sys::Ended;

use super::Task;
use crate::facts::{Cgroups, TaskFacts};
use crate::hostside::task_units::remove_tasks_cgroup;
use crate::lifecycle::task::{Life, Trigger};
use crate::output::io::Tail;
use crate::process::spare_fd;
use crate::process::worker;
use crate::supervise::sandbox::connection;
use crate::supervise::supervisor::Supervisor;
use crate::view::mount_points;
use crate::waits;
use crate::waits::claim::End;

/// Undoes what a launch has made outside of the task's folder: its network, and mount points in its root.
pub(super) async fn give_up(folder: &Folder, record: &Record) {
    connection::give_up(folder.path(), &record.network()).await;
    mount_points::give_up(folder, record);
}

impl Task {
    /// Takes the task through its end, from init's exit to the last byte of output. Its `life` says how far it has
    /// come.
    pub async fn run_to_end(self: Rc<Self>, supervisor: Rc<Supervisor>) {
        loop {
            let (life, steps) = self.facts.read(|facts| (facts.life, facts.steps));
            match life {
                Life::Exited => self.make_report(&supervisor).await,
                Life::ReportMade => self.put_report(&supervisor).await,
                Life::ExitPublished => return self.clear_away(&supervisor).await,
                Life::Reaped(_) => self.exit(&supervisor).await,
                Life::Starting
                | Life::Created
                | Life::Running
                | Life::Paused
                | Life::Stopping(_)
                | Life::Killing(_) => {
                    let end = self.program_ended().await;
                    self.facts.update(|facts| facts.end = Some(end));
                    self.end_by(&supervisor, Trigger::Reaped);
                }
                Life::Undoing | Life::Undone | Life::Over | Life::Removing | Life::Removed => return,
            }
            if self.facts.read(|facts| facts.steps == steps) {
                return tracing::error!(id = %self.id, ?life, "a task's end does not go on");
            }
        }
    }

    /// Waits for the start or checkpoint of init that is under way.
    async fn exit(self: &Rc<Self>, supervisor: &Rc<Supervisor>) {
        drop(self.turns.starting.lock().await);
        // A checkpoint may have ended the task, whose end is then reported after it; else criu gives up the
        // checkpoint.
        drop(self.turns.checkpointing.lock().await);
        // systemd removes an empty scope, and with it the counts of its cgroup.
        if let Some(mut counted) = self.with_unit(|cgroup| stats::last(&supervisor.layout, cgroup)) {
            let by_slice = || self.kills_by_slice(&supervisor.layout);
            counted.figures.oom_kills = counted.figures.oom_kills.or_else(by_slice);
            self.facts.update(|facts| {
                let earlier = facts.counted.take().unwrap_or_default();
                facts.counted = Some(counted.or(earlier));
            });
        }
        self.end_by(supervisor, Trigger::Exited);
        self.handles.borrow_mut().init.take();
    }

    /// Makes the report, once all remaining processes are killed and all output is read.
    async fn make_report(self: &Rc<Self>, supervisor: &Rc<Supervisor>) {
        let pumps = self.handles.borrow().pumps.clone();
        if self.keeps_output()
            && let Some(pumps) = &pumps
        {
            // Before init is killed: with it goes what the shim, should it die now, has not read.
            pumps.finish().await;
        }
        self.kill_rest(&supervisor.layout).await;
        if let Some(pumps) = &pumps {
            pumps.finish().await;
        }
        supervisor.tell_execs(self).await;
        let report = self.report(supervisor);
        self.facts.update(|facts| facts.report = Some(report));
        self.end_by(supervisor, Trigger::ReportMade);
    }

    /// Writes the report, then reports the exit.
    async fn put_report(self: &Rc<Self>, supervisor: &Rc<Supervisor>) {
        let Some(mut report) = self.facts.read(|facts| facts.report.clone()) else { return };
        match self.keep(&report).await {
            Ok(put) => supervisor.tell_written(self, &report, put),
            Err(error) => {
                tracing::error!(%error, "the exit report is kept in memory, and tried again");
                report.unwritten = Some(error.to_string());
            }
        }
        supervisor.tell_exit(self, &report);
        self.facts.update(|facts| facts.report = Some(report));
        self.end_by(supervisor, Trigger::ExitPublished);
        // Waiting callers get their answer first.
        tokio::task::yield_now().await;
    }

    /// Removes what is left of the task, and waits until the rest of its output is written.
    async fn clear_away(self: &Rc<Self>, supervisor: &Rc<Supervisor>) {
        if self.facts.read(|facts| facts.cgroups == Cgroups::InUse) {
            self.keep_stats(supervisor);
            self.facts.update_silently(|facts| facts.cgroups = Cgroups::Removing);
            let removal = self.clone().remove_cgroups(supervisor.clone());
            waits::work("the removal of cgroups", Some(self.id.clone()), removal);
        }
        self.facts.until_it(|facts| facts.cgroups == Cgroups::Removed).await;
        let pumps = self.handles.borrow().pumps.clone();
        if let Some(pumps) = &pumps {
            pumps.flushed().await;
        }
        self.keep_at_last(supervisor).await;
        self.until_launcher_knows().await;
        let (task, supervisor) = (self.clone(), supervisor.clone());
        waits::work("the last of its end", Some(task.id.clone()), async move {
            supervisor.forget_member(&task).await;
            task.end_by(&supervisor, Trigger::Done);
            supervisor.release();
        });
    }

    /// Reads the statistics for the last time, for a manager: containerd learns from them whether memory ran out. Not
    /// before the exit is reported, which they would delay.
    fn keep_stats(&self, supervisor: &Supervisor) {
        if supervisor.config.tell.is_none() {
            return;
        }
        let Ok(mut stats) = supervisor.stats(&self.id) else { return };
        // systemd may have removed the cgroup, and the counts with it.
        let counted = self.facts.read(|facts| facts.counted.as_ref().and_then(|counted| counted.figures.oom_kills));
        stats.memory.oom_kills = stats.memory.oom_kills.max(counted);
        self.handles.borrow_mut().last_stats = Some(Box::new(stats));
    }

    /// Gives up the task's network and mount points, removes its cgroup and, after the last task, the shim's own.
    async fn remove_cgroups(self: Rc<Self>, supervisor: Rc<Supervisor>) {
        give_up(&self.folder, &self.facts.read(|facts| facts.record.clone())).await;
        drop(std::mem::take(&mut self.handles.borrow_mut().shared));
        let cgroup = self.handles.borrow_mut().cgroup.take();
        if let Some(cgroup) = cgroup {
            remove_tasks_cgroup(&supervisor.layout, &supervisor.config.systemd, cgroup).await;
        }
        // The shim of a sandbox stays where it is for the sandbox's life.
        if !supervisor.any_lives() && supervisor.sandbox().is_none() {
            drop(supervisor.overhead.leave(&supervisor.layout).await);
        }
        self.facts.update(|facts| facts.cgroups = Cgroups::Removed);
    }

    /// Applies a trigger of the task's end. A failure is only logged.
    fn end_by(self: &Rc<Self>, supervisor: &Rc<Supervisor>, step: Trigger) {
        if let Err(error) = self.apply(&supervisor.layout, step) {
            tracing::error!(%error, id = %self.id, "a step of a task's end has no place");
        }
    }

    /// Stores the report before any caller learns of the exit.
    async fn keep(&self, report: &ExitReport) -> Result<Put> {
        let put = {
            let mut handles = self.handles.borrow_mut();
            let Some(reserve) = handles.reserve.as_mut() else { return Ok(Put::Unwanted) };
            // Try again with the descriptor in reserve: the lack of one may be the cause.
            let written = self.folder.write_exit(reserve, report);
            written.or_else(|_| spare_fd::lend(|| self.folder.write_exit(reserve, report)))?
        };
        if put == Put::Placed && self.facts.read(|facts| facts.record.durable) {
            self.sync().await?;
        }
        self.handles.borrow_mut().reserve.take();
        Ok(put)
    }

    /// Makes the records of a durable task survive a power loss.
    pub(crate) async fn sync(&self) -> Result<()> {
        let sandbox = self.facts.read(|facts| facts.record.sandbox.clone());
        worker::run("the task's records", || self.folder.sync(sandbox.as_ref())).await
    }

    /// Retries a report that could not be written, until it is written or no caller wants it. Nothing bounds this
    /// wait: a disk does not report when it accepts writes again.
    async fn keep_at_last(&self, supervisor: &Supervisor) {
        let Some(mut report) = self.unwritten() else { return };
        report.unwritten = None;
        let mut wait = Duration::from_millis(20);
        loop {
            self.facts.update_silently(|facts| facts.step_due = None);
            tokio::select! {
                () = crate::waits::sleep_until(self.step_due(wait)) => {}
                () = self.facts.until_it(|facts| facts.fetched) => return,
            }
            if let Ok(put) = self.keep(&report).await {
                supervisor.tell_written(self, &report, put);
                self.facts.update(|facts| facts.report = Some(report));
                return;
            }
            wait = (wait * 2).min(Duration::from_secs(1));
        }
    }

    /// Waits until everything that the task's end requires is done.
    ///
    /// # Errors
    /// `Internal` while its exit report cannot be written.
    pub async fn ended(&self) -> Result<()> {
        let why = |facts: &TaskFacts| facts.report.as_ref().and_then(|report| report.unwritten.clone());
        let is_over = |facts: &TaskFacts| match (facts.life.is_over(), why(facts)) {
            (true, _) => Some(Ok(())),
            (false, Some(why)) => Some(Err(why)),
            (false, None) => None,
        };
        self.facts.until(is_over).await.map_err(|why| {
            let what = format!("the exit report of {} is not written yet: {why}", self.id);
            Error::new(Kind::Internal, what).hint("its shim tries again until the disk takes it")
        })
    }

    /// Whether init got a SIGKILL that the shim has not sent.
    fn is_killed_by_others(&self) -> bool {
        self.facts.read(|facts| {
            let killed = facts.end.is_some_and(|end| end.ended == Ended::Signaled(libc::SIGKILL));
            killed && !facts.history.sent.contains(&libc::SIGKILL)
        })
    }

    fn report(self: &Rc<Self>, supervisor: &Rc<Supervisor>) -> ExitReport {
        let layout = &supervisor.layout;
        let last = self.with_cgroup(|c| stats::last(layout, c)).unwrap_or_default();
        let last = last.or(self.facts.read(|facts| facts.counted.clone()).unwrap_or_default());
        let mut figures = last.figures;
        // Kills that were reported have happened, even where nothing counts them any more.
        let (told, limit_met) = self.facts.read(|facts| (facts.history.oom_kills, facts.history.limit_met));
        figures.oom_kills = figures.oom_kills.max(Some(told).filter(|kills| *kills > 0));
        let own_limit_met = last.own_limit_met.or(limit_met);
        // A cgroup that had run out of memory has gone before its kill was counted.
        if figures.oom_kills.is_none() && own_limit_met > Some(0) && self.is_killed_by_others() {
            figures.oom_kills = Some(1);
        }
        let oom_kills = figures.oom_kills;
        supervisor.tell_oom(self, oom_kills);
        let text = |tail: &Tail| String::from_utf8_lossy(&tail.borrow().to_vec()).into_owned();
        let [stdout_tail, stderr_tail] = self.handles.borrow().tails.each_ref().map(text);
        let output_dropped_bytes = self.output_dropped();
        // Where the cgroup has gone before its processes: what init has waited for.
        let reaped = self.handles.borrow().claim.end();
        figures.cpu_usec = figures.cpu_usec.or(reaped.and_then(|end| end.cpu_usec));
        self.facts.read(|facts| {
            // Init was reaped, perhaps before the shim learned that its program was executed.
            let End { ended, at, .. } = facts.end.unwrap_or_else(|| End::now(Ended::Signaled(libc::SIGKILL)));
            let exited_at = facts.record.started_at.map_or(at, |started_at| at.max(started_at));
            let by_shim = |signal| facts.history.sent.contains(&signal);
            let signal = match ended {
                Ended::Signaled(signal) => Some(signal),
                Ended::Exited(_) | Ended::Unknown => None,
            };
            let oom = OomFacts {
                kills: oom_kills,
                own_limit_met,
                joint_limit_met: oom_kills.filter(|kills| *kills > 0).and_then(|_| supervisor.joint_limit_met()),
                ended,
                killed_by_shim: by_shim(libc::SIGKILL),
                may_be_init: facts.named_kills.may_be(facts.record.program_pid(), oom_kills.unwrap_or(0), 0),
            };
            let record = &facts.record;
            // A pid namespace ends with its init, and takes all its processes with it, uncounted.
            let by_kernel = self.namespaces.is_new(libc::CLONE_NEWPID);
            let processes_killed = facts.killed.or((!by_kernel).then_some(facts.rest_killed));
            let mut report = ExitReport::default();
            report.exit_code = (ended != Ended::Unknown).then(|| ended.code());
            report.signal = signal.map(signal_name);
            report.signal_sent_by_shim = signal.is_some_and(by_shim);
            report.stopped_by = facts.history.stopped_by;
            report.stopped_for =
                facts.history.stopped_for.clone().filter(|_| facts.history.stopped_by == Some(StoppedBy::Watch));
            report.oom_killed = oom.any();
            report.oom_killed_init = oom.init();
            report.oom_cgroup = oom.cgroup(&record.cgroup);
            report.started_at = record.started_at;
            report.exited_at = exited_at;
            report.figures = figures;
            report.processes_killed = processes_killed;
            report.stdout_tail = Some(stdout_tail);
            report.stderr_tail = Some(stderr_tail);
            report.output_dropped_bytes = output_dropped_bytes;
            report.output_unwritten = record.task.as_ref().map(|task| self.output_unwritten(task)).unwrap_or_default();
            report.health = facts.history.health.clone();
            report.events = facts.events + 1;
            let now = |recorded| enforcement::now(layout, recorded, &record.cgroup);
            report.enforcement = record.enforcement.as_ref().map(now);
            // Its shim did, and nobody has kept how it ended.
            report.shim_died = ended == Ended::Unknown;
            report.init_lost = facts.init_lost.clone().filter(|_| ended == Ended::Unknown);
            report
        })
    }

    /// Undoes a launch that failed after the clone. Returns the error that says why.
    pub async fn undo(self: &Rc<Self>, supervisor: &Rc<Supervisor>, error: Error) -> Error {
        // This also thaws the task: a frozen process does not die.
        self.end_by(supervisor, Trigger::Failed);
        let claim = self.handles.borrow().claim.clone();
        claim.ended().await;
        self.end_by(supervisor, Trigger::Reaped);
        self.handles.borrow_mut().init.take();
        self.kill_rest(&supervisor.layout).await;
        let cgroup = self.handles.borrow_mut().cgroup.take();
        let error = self.naming_file(error);
        let Some(cgroup) = cgroup else { return error };
        let oom_kills = stats::oom_kills(&supervisor.layout, &cgroup);
        remove_tasks_cgroup(&supervisor.layout, &supervisor.config.systemd, cgroup).await;
        if oom_kills > 0 {
            return Error::new(Kind::BadSpec, "too small: the kernel killed the task while it was starting")
                .in_field("memory.limit")
                .hint("raise the memory limit");
        }
        error
    }
}
