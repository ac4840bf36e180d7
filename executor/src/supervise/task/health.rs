//! Health checks: one after the other for as long as the task runs.
//!
//! ```text
//!   wait ─► exec in the task ─► learn ─► tell a change ─► perhaps stop ─┐
//!    └──────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Each checked task has one local future, so its checks cannot overlap, and a task without checks costs nothing. A
//! check that a pause, a stop or the task's own end cuts short does not count. Must not: decide what a check means,
//! which is the job of `health`.
//!
//! Whether a task is ending is read from the kernel, not guessed from timing: the init of a pid namespace exits
//! first, then the kernel kills all other processes there, and init has ended when the last of them is reaped,
//! however long that takes. A check that dies of this is reaped while the kernel already reports init as exiting.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bowline_model::clock::Moment;
use bowline_model::events::Event;
use bowline_model::health::{Check, HealthStatus, OUTPUT};
use bowline_model::report::StoppedBy;
use bowline_spec::{Healthcheck, OnUnhealthy};
use bowline_sys::proc_stat::{self, ProcStat};
use jiff::Timestamp;

use super::Task;
use super::timeout::has_run;
use crate::facts::{Checks, ExecEnd, TaskFacts, UnderWay};
use crate::process::page_release;
use crate::request::{Exec, ExecOutcome};
use crate::supervise::supervisor::Supervisor;
use crate::waits;

impl Supervisor {
    /// Starts a task's health checks, if its description has any.
    pub(crate) fn begin_checks(self: &Rc<Self>, task: &Rc<Task>) {
        task.note_checks();
        self.go_on_checking(task);
    }

    /// Checks a task from where its facts are.
    pub(crate) fn go_on_checking(self: &Rc<Self>, task: &Rc<Task>) {
        let rules = task.facts.read(|facts| facts.record.task.as_ref().and_then(|task| task.healthcheck.clone()));
        let Some(rules) = rules else { return };
        let (supervisor, task, rules) = (self.clone(), task.clone(), Rc::new(rules));
        waits::begin(move || {
            let (supervisor, task, rules) = (supervisor.clone(), task.clone(), rules.clone());
            async move { supervisor.check(&task, &rules).await }
        });
    }

    async fn check(self: &Rc<Self>, task: &Rc<Task>, rules: &Healthcheck) {
        loop {
            let checks = task.facts.read(|facts| facts.checks.clone());
            let Some(Checks { begun, under_way, .. }) = checks else { return };
            if under_way.is_some() {
                let (check, under_way) = task.checked().await;
                self.checked(task, check, &under_way, rules);
                continue;
            }
            let in_start_period = || Moment::now() < begun.after(rules.start_period());
            let slow = task.health_status() != HealthStatus::Starting || !in_start_period();
            let wait = if slow { rules.interval() } else { rules.start_interval() };
            if !self.runs_for(task, wait, |facts| facts.checks.as_mut().map(|checks| &mut checks.due)).await {
                return;
            }
            if self.is_held(task) {
                continue;
            }
            self.begin_check(task, rules, in_start_period());
        }
    }

    /// Counts a check, unless the task was stopped, paused or frozen by somebody else meanwhile.
    fn checked(self: &Rc<Self>, task: &Rc<Task>, check: Check, under_way: &UnderWay, rules: &Healthcheck) {
        page_release::left();
        let steps = task.facts.read(|facts| facts.steps);
        let runs_on = task.status() == bowline_model::status::Status::Running && steps == under_way.steps;
        if runs_on && (check.succeeded() || !(task.init_ends() || self.is_held(task))) {
            self.learn(task, check, rules, under_way.in_start_period);
        }
    }

    /// Starts a check and notes it as under way.
    fn begin_check(self: &Rc<Self>, task: &Rc<Task>, rules: &Healthcheck, in_start_period: bool) {
        task.facts.update(|facts| {
            let steps = facts.steps;
            let under_way = UnderWay { started_at: Timestamp::now(), steps, in_start_period, exec: None, failed: None };
            if let Some(checks) = &mut facts.checks {
                checks.under_way = Some(under_way);
            }
        });
        let exec = Exec {
            command: rules.exec.clone(),
            timeout: Some(rules.timeout()),
            tail_bytes: Some(OUTPUT),
            ..Exec::default()
        };
        let (supervisor, task) = (self.clone(), task.clone());
        waits::work("the beginning of a health check", Some(task.id.clone()), async move {
            let begun = supervisor.exec_check(&task, &exec).await;
            task.facts.update(|facts| {
                let under_way = facts.checks.as_mut().and_then(|checks| checks.under_way.as_mut());
                if let Some(under_way) = under_way {
                    match begun {
                        Ok(number) => under_way.exec = Some(number),
                        Err(error) => under_way.failed = Some(error.message().to_owned()),
                    }
                }
            });
        });
    }

    fn learn(self: &Rc<Self>, task: &Task, check: Check, rules: &Healthcheck, in_start_period: bool) {
        let learn = |facts: &mut TaskFacts| {
            let health = facts.history.health.get_or_insert_default();
            let before = (health.status, health.failing_streak);
            health.learn(check, rules.retries(), in_start_period);
            (before, health.status, health.failing_streak)
        };
        let ((before, streak_before), now, failing_streak) = task.facts.update(learn);
        if now != before {
            self.tell(task, Event::health(now, failing_streak));
        }
        // Not after each check: one that succeeds again changes nothing that counts.
        if (now, failing_streak) != (before, streak_before) {
            task.remember();
        }
        if now == before {
            return;
        }
        if now == HealthStatus::Unhealthy && rules.on_unhealthy == OnUnhealthy::Stop {
            let stopped = self.shutdown(&task.id, None, None, StoppedBy::Health);
            if let Err(error) = stopped {
                tracing::error!(%error, id = %task.id, "cannot stop a task that is unhealthy");
            }
        }
    }
}

/// Whether all threads of an unreaped child are ending: the first thread may have ended alone. Threads come and go
/// while they are listed, so the answer may be wrong for a child that executes another program at this moment.
fn all_threads_end(pid: i32) -> bool {
    let process = PathBuf::from(format!("/proc/{pid}"));
    if thread_ends(&process) != Some(true) {
        return false;
    }
    // A thread that is gone has ended.
    let end = |threads: fs::ReadDir| threads.flatten().all(|thread| thread_ends(&thread.path()).unwrap_or(true));
    fs::read_dir(process.join("task")).is_ok_and(end)
}

/// Whether a thread is ending; `None` if there is no such thread.
fn thread_ends(folder: &Path) -> Option<bool> {
    ProcStat::parse(&proc_stat::read_in(folder)?).map(|stat| stat.ends())
}

impl Task {
    /// Notes that its checks begin, if its description has any. A task that an earlier shim has launched keeps what its
    /// checks have found, and its start period is counted from its start.
    pub(crate) fn note_checks(&self) {
        self.facts.update(|facts| {
            if facts.record.task.as_ref().is_some_and(|task| task.healthcheck.is_some()) {
                facts.history.health.get_or_insert_default();
                let begun = Moment::now().before(has_run(facts));
                facts.checks = Some(Checks { begun, due: None, under_way: None });
            }
        });
    }

    fn health_status(&self) -> HealthStatus {
        self.facts.read(|facts| facts.history.health.as_ref().map(|health| health.status)).unwrap_or_default()
    }

    /// Whether init is ending: it exits, was killed, or has just been reaped.
    fn init_ends(&self) -> bool {
        // An unreaped process keeps its pid.
        let claim = self.handles.borrow().claim.clone();
        !claim.is_unreaped() || all_threads_end(claim.pid) || self.workload_ended().is_some()
    }

    /// Waits for the result of the check that is under way.
    async fn checked(&self) -> (Check, UnderWay) {
        let begun = |facts: &TaskFacts| {
            let under_way = facts.checks.as_ref()?.under_way.as_ref()?;
            (under_way.exec.is_some() || under_way.failed.is_some()).then(|| under_way.clone())
        };
        let under_way = self.facts.until(begun).await;
        let outcome = match under_way.exec {
            Some(number) => self.exec_outcome(number).await.map_err(|error| error.message().to_owned()),
            None => Err(under_way.failed.clone().unwrap_or_default()),
        };
        self.facts.update(|facts| facts.checks.as_mut().map(|checks| checks.under_way = None));
        (check_of(outcome, under_way.started_at), under_way)
    }
}

fn check_of(outcome: Result<ExecOutcome, String>, started_at: Timestamp) -> Check {
    match outcome {
        Ok(outcome) => {
            let exit_code = match outcome.end {
                ExecEnd::Exited(code) => Some(code),
                ExecEnd::TimedOut(_) => None,
            };
            let output = String::from_utf8_lossy(&outcome.stdout).into_owned();
            Check::ended(started_at, outcome.exited_at, exit_code, output)
        }
        Err(error) => Check::failed(started_at, error),
    }
}
