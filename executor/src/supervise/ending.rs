//! The end of a task: from init's exit to the last byte of output and the
//! removal of its cgroup; and that of a launch which fails.

use std::rc::Rc;
use std::time::{Duration, Instant};

use bowline_spec::signal::Signal;
use jiff::Timestamp;
use tokio::sync::oneshot;

use super::Supervisor;
use super::task::Task;
use super::units;
use crate::cgroup::{Cgroup, Layout};
use crate::error::{Error, Kind, Result};
use crate::io::{Pumps, Tail};
use crate::lifecycle::Event;
use crate::report::{ExitReport, OomFacts, StoppedBy};
use crate::reserve::Put;
use crate::shutdown::Plan;
use crate::spare;
use crate::stats::{self, Last};
use crate::sys::Ended;
use crate::systemd::Systemd;
use crate::worker;

/// How long a cgroup may stay busy after its last process has ended.
const BUSY: Duration = Duration::from_secs(5);

impl Task {
    /// Sees the task through its end: from init's exit to the last byte of output.
    pub async fn see_off(
        self: Rc<Self>,
        supervisor: Rc<Supervisor>,
        exited: oneshot::Receiver<Ended>,
        mut pumps: Pumps,
        tail: Tail,
    ) {
        // The sender lives until the child is reaped.
        let ended = exited.await.unwrap_or(Ended::Signaled(libc::SIGKILL));
        self.init_ended.send_replace(true);
        drop(self.starting.lock().await);
        let exited_at = Timestamp::now();
        // It may have ended it, which is told afterwards; else that gives it up.
        drop(self.checkpointing.lock().await);
        // systemd removes an empty scope, and with it what its cgroup has counted.
        let at_exit = self.with_unit(|cgroup| stats::last(&supervisor.layout, cgroup));
        if let Err(error) = self.happen(&supervisor, Event::Exited) {
            tracing::error!(%error, "an exit had no place");
        }
        let rest = self.kill_rest(&supervisor).await;
        pumps.finish().await;
        supervisor.tell_execs(&self).await;
        let mut report = self.report(&supervisor, (ended, exited_at), at_exit, rest, &pumps, &tail);
        match self.keep(&report).await {
            Ok(put) => supervisor.tell_written(&self, &report, put),
            Err(error) => {
                tracing::error!(%error, "the exit report is kept in memory, and tried again");
                report.unwritten = Some(error.to_string());
            }
        }
        supervisor.tell_exit(&self, &report);
        self.exited.send_replace(Some(report));
        // Whoever waits is told first.
        tokio::task::yield_now().await;
        let cgroup = self.cgroup.borrow_mut().take();
        if let Some(cgroup) = cgroup {
            remove_cgroup(&supervisor.layout, &supervisor.config.systemd, cgroup).await;
        }
        // The shim of a sandbox stays where it is for that one's life.
        if !supervisor.any_lives() && supervisor.sandbox().is_none() {
            supervisor.overhead.leave(&supervisor.layout).await;
        }
        pumps.flushed().await;
        drop(pumps);
        let logging = self.logging.borrow_mut().take();
        if let Some(logging) = logging {
            let _ = logging.await;
        }
        self.keep_at_last(&supervisor).await;
        supervisor.forget_member(&self).await;
        self.over.send_replace(true);
        supervisor.done();
    }

    /// Puts the report down, before anybody is told of the exit.
    async fn keep(&self, report: &ExitReport) -> Result<Put> {
        let put = {
            let mut reserve = self.reserve.borrow_mut();
            let Some(reserve) = reserve.as_mut() else { return Ok(Put::Unwanted) };
            // Once more with the descriptor in reserve: that may be what it lacks.
            let written = self.folder.write_exit(reserve, report);
            written.or_else(|_| spare::lend(|| self.folder.write_exit(reserve, report)))?
        };
        if put == Put::Placed && self.record.borrow().durable {
            self.sync().await?;
        }
        self.reserve.borrow_mut().take();
        Ok(put)
    }

    /// Makes what is on disk of a durable task survive a power loss.
    pub(super) async fn sync(&self) -> Result<()> {
        let sandbox = self.record.borrow().sandbox.clone();
        worker::run("the task's records", || self.folder.sync(sandbox.as_ref())).await
    }

    /// Tries again to put down a report that could not be, until it is written or nobody wants it: the one wait of a shim
    /// that nothing bounds. A disk tells nobody that it takes something again.
    async fn keep_at_last(&self, supervisor: &Supervisor) {
        let report = self.exited.borrow().clone().filter(|report| report.unwritten.is_some());
        let Some(report) = report.map(|report| ExitReport { unwritten: None, ..report }) else { return };
        let mut wait = Duration::from_millis(20);
        loop {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.fetched.notified() => return,
            }
            if let Ok(put) = self.keep(&report).await {
                supervisor.tell_written(self, &report, put);
                self.exited.send_replace(Some(report));
                return;
            }
            wait = (wait * 2).min(Duration::from_secs(1));
        }
    }

    /// Waits until all is done that its end asks for.
    ///
    /// # Errors
    /// `Internal` while its exit report cannot be written.
    pub async fn seen_off(&self) -> Result<()> {
        let (mut over, mut exited) = (self.over.subscribe(), self.exited.subscribe());
        let why = |report: &Option<ExitReport>| report.as_ref().and_then(|report| report.unwritten.clone());
        tokio::select! {
            biased;
            _ = over.wait_for(|over| *over) => Ok(()),
            Ok(report) = exited.wait_for(|report| why(report).is_some()) => {
                let what = format!("the exit report of {} is not written yet: {}", self.id, why(&report).unwrap_or_default());
                Err(Error::new(Kind::Internal, what).hint("its shim tries again until the disk takes it"))
            }
        }
    }

    fn report(
        &self,
        supervisor: &Supervisor,
        (ended, exited_at): (Ended, Timestamp),
        at_exit: Option<Last>,
        rest: u64,
        pumps: &Pumps,
        tail: &Tail,
    ) -> ExitReport {
        let layout = &supervisor.layout;
        let last = self.with_cgroup(|c| stats::last(layout, c)).unwrap_or_default();
        let mut last = last.or(at_exit.unwrap_or_default());
        // What was told of has happened, also where nobody counts it any more.
        last.oom_kills = last.oom_kills.max(Some(self.oom_kills.get()).filter(|kills| *kills > 0));
        last.own_limit_met = last.own_limit_met.or(self.limit_met.get());
        supervisor.tell_oom(self, last.oom_kills);
        self.reported.set(true);
        let by_shim = |signal| self.sent.borrow().contains(&signal);
        let signal = match ended {
            Ended::Signaled(signal) => Some(signal),
            Ended::Exited(_) => None,
        };
        let oom = OomFacts {
            kills: last.oom_kills,
            own_limit_met: last.own_limit_met,
            joint_limit_met: last.oom_kills.filter(|kills| *kills > 0).and_then(|_| supervisor.joint_limit_met()),
            ended,
            killed_by_shim: by_shim(libc::SIGKILL),
        };
        let record = self.record.borrow();
        // A pid namespace that ends with its init takes all with it, uncounted.
        let by_kernel = self.namespaces.is_new(libc::CLONE_NEWPID);
        let processes_killed = self.killed.get().or((!by_kernel).then_some(rest));
        let kept = tail.borrow().to_vec();
        ExitReport {
            exit_code: Some(ended.code()),
            signal: signal.map(signal_name),
            signal_sent_by_shim: signal.is_some_and(by_shim),
            stopped_by: self.stopped_by.get(),
            stopped_for: self.stopped_for.borrow().clone().filter(|_| self.stopped_by.get() == Some(StoppedBy::Watch)),
            oom_killed: oom.any(),
            oom_killed_init: oom.init(),
            oom_cgroup: oom.cgroup(&record.cgroup),
            started_at: record.started_at,
            exited_at,
            cpu_usec: last.cpu_usec,
            memory_peak_bytes: last.memory_peak_bytes,
            memory_limit_bytes: last.memory_limit_bytes,
            memory_limit_hits: last.memory_limit_hits,
            memory_high_hits: last.memory_high_hits,
            oom_kills: last.oom_kills,
            cpu_periods: last.cpu_periods,
            throttled_periods: last.throttled_periods,
            throttled_usec: last.throttled_usec,
            pids_limit: last.pids_limit,
            pids_limit_hits: last.pids_limit_hits,
            processes_killed,
            output_tail: Some(String::from_utf8_lossy(&kept).into_owned()),
            output_dropped_bytes: pumps.dropped(),
            health: self.health.borrow().clone(),
            events: self.events.get() + 1,
            enforcement: record.enforcement.clone(),
            shim_died: false,
            unwritten: None,
        }
    }

    /// Undoes a launch that failed after the clone; the error says why.
    pub async fn undo(
        self: &Rc<Self>,
        supervisor: &Rc<Supervisor>,
        exited: oneshot::Receiver<Ended>,
        error: Error,
    ) -> Error {
        let now = Instant::now();
        // Thawed too: what is frozen does not die.
        if let Err(error) = self.happen(supervisor, Event::Stop(Plan::new(Signal::KILL, Duration::ZERO, now), now)) {
            tracing::error!(%error, "a launch that failed is hard to end");
        }
        let _ = exited.await;
        self.init_ended.send_replace(true);
        if let Err(error) = self.happen(supervisor, Event::Exited) {
            tracing::error!(%error, "an exit had no place");
        }
        self.kill_rest(supervisor).await;
        let cgroup = self.cgroup.borrow_mut().take();
        let Some(cgroup) = cgroup else { return error };
        let oom_kills = stats::oom_kills(&supervisor.layout, &cgroup);
        remove_cgroup(&supervisor.layout, &supervisor.config.systemd, cgroup).await;
        if oom_kills > 0 {
            return Error::new(
                Kind::BadSpec,
                "memory.limit: too small: the kernel killed the task while it was starting",
            )
            .hint("raise the memory limit");
        }
        error
    }
}

fn signal_name(number: i32) -> String {
    Signal::from_number(number).map_or_else(|| number.to_string(), |signal| format!("SIG{}", signal.name()))
}

/// Removes a cgroup whose processes have ended; v1 tells nobody when the last
/// one has left it. One that is a unit's goes with that.
pub async fn remove_cgroup(layout: &Layout, systemd: &Systemd, mut cgroup: Cgroup) {
    if let Some(unit) = cgroup.unit() {
        units::stop(systemd, unit).await;
    }
    let give_up = Instant::now() + BUSY;
    let mut wait = Duration::from_micros(100);
    while let Err(error) = layout.remove(&mut cgroup) {
        if Instant::now() > give_up {
            tracing::error!(%error, "cgroup left behind");
            return;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_millis(20));
    }
}
