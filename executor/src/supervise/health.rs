//! Health checks: one after the other for as long as the task runs.
//!
//! ```text
//!   wait ─► exec in the task ─► learn ─► tell a change ─► perhaps stop ─┐
//!    └──────────────────────────────────────────────────────────────────┘
//! ```
//!
//! One local future for each task that is checked: two checks of it cannot
//! overlap, and a task that is not checked costs nothing. What was cut short by
//! a pause, a stop or the task's own end is no check. Must not: decide what a
//! check means, which is `health`'s.
//!
//! A task's own end is the kernel's word, not a matter of time: the init of a pid
//! namespace exits first, then the kernel kills all others there, and init has
//! ended when the last of them is reaped, however long that takes. A check that
//! died of it is reaped while init says that it exits.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use bowline_spec::{Healthcheck, OnUnhealthy};
use jiff::Timestamp;

use super::Supervisor;
use super::task::Task;
use crate::error::Result;
use crate::events::Event;
use crate::facts::TaskFacts;
use crate::health::{Check, Health, OUTPUT, Status};
use crate::lifecycle;
use crate::pages;
use crate::proc_stat::{self, ProcStat};
use crate::report::StoppedBy;
use crate::request::{Exec, ExecEnd, ExecOutcome};

impl Supervisor {
    /// Begins to check a task's health, if its description says how.
    pub(super) fn begin_checks(self: &Rc<Self>, task: &Rc<Task>) {
        let rules = task.facts.look(|facts| facts.record.task.as_ref().and_then(|task| task.healthcheck.clone()));
        if let Some(rules) = rules {
            task.facts.change(|facts| facts.health = Some(Health::default()));
            tokio::task::spawn_local(self.clone().check(task.clone(), rules));
        }
    }

    async fn check(self: Rc<Self>, task: Rc<Task>, rules: Healthcheck) {
        let begun = Instant::now();
        let in_start_period = || begun.elapsed() < rules.start_period();
        loop {
            let slow = task.health_status() != Status::Starting || !in_start_period();
            let wait = if slow { rules.interval() } else { rules.start_interval() };
            if !task.runs_for(wait).await {
                return;
            }
            let steps = task.facts.look(|facts| facts.steps);
            let counts = in_start_period();
            let check = self.check_once(&task, &rules).await;
            let runs_on = task.status() == lifecycle::Status::Running && task.facts.look(|facts| facts.steps == steps);
            if !runs_on || (!check.succeeded() && self.init_ends(&task)) {
                continue;
            }
            self.learn(&task, check, &rules, counts);
        }
    }

    /// Whether a task's init will not run on: it exits, was killed, or was reaped just now.
    fn init_ends(&self, task: &Task) -> bool {
        // While it is not reaped, the pid is its own.
        let pid = task.pid().filter(|pid| self.children.is_unreaped(*pid));
        pid.is_none_or(all_threads_end)
    }

    async fn check_once(self: &Rc<Self>, task: &Rc<Task>, rules: &Healthcheck) -> Check {
        let started_at = Timestamp::now();
        let exec = Exec {
            command: rules.exec.clone(),
            timeout: Some(rules.timeout()),
            tail_bytes: Some(OUTPUT),
            ..Exec::default()
        };
        let outcome = self.exec_check(task, exec).await;
        pages::left();
        check_of(outcome, started_at)
    }

    fn learn(self: &Rc<Self>, task: &Task, check: Check, rules: &Healthcheck, in_start_period: bool) {
        let (before, now, failing_streak) = {
            let learn = |facts: &mut TaskFacts| {
                let health = facts.health.get_or_insert_default();
                let before = health.status;
                health.learn(check, rules.retries(), in_start_period);
                (before, health.status, health.failing_streak)
            };
            task.facts.change(learn)
        };
        if now == before {
            return;
        }
        self.tell(task, Event::Health { status: now, failing_streak });
        if now == Status::Unhealthy && rules.on_unhealthy == OnUnhealthy::Stop {
            let stopped = self.shutdown(&task.id, None, None, StoppedBy::Health);
            if let Err(error) = stopped {
                tracing::error!(%error, id = %task.id, "cannot stop a task that is unhealthy");
            }
        }
    }
}

/// Whether a child that is not reaped ends with all of its threads: the first may have ended alone. Others come and go
/// while they are listed, so the answer may be wrong for one that executes another program at this moment.
fn all_threads_end(pid: i32) -> bool {
    let process = PathBuf::from(format!("/proc/{pid}"));
    if thread_ends(&process) != Some(true) {
        return false;
    }
    // One that is gone has ended.
    let end = |threads: fs::ReadDir| threads.flatten().all(|thread| thread_ends(&thread.path()).unwrap_or(true));
    fs::read_dir(process.join("task")).is_ok_and(end)
}

/// Whether a thread ends, if there is such a one.
fn thread_ends(folder: &Path) -> Option<bool> {
    ProcStat::parse(&proc_stat::read_in(folder)?).map(|stat| stat.ends())
}

fn check_of(outcome: Result<ExecOutcome>, started_at: Timestamp) -> Check {
    match outcome {
        Ok(outcome) => {
            let (exit_code, timed_out) = match outcome.end {
                ExecEnd::Exited(code) => (Some(code), false),
                ExecEnd::TimedOut(_) => (None, true),
            };
            let output = String::from_utf8_lossy(&outcome.stdout).into_owned();
            Check { started_at, ended_at: outcome.exited_at, exit_code, timed_out, output, error: None }
        }
        Err(error) => Check {
            started_at,
            ended_at: Timestamp::now(),
            exit_code: None,
            timed_out: false,
            output: String::new(),
            error: Some(error.message().to_owned()),
        },
    }
}

impl Task {
    fn health_status(&self) -> Status {
        self.facts.look(|facts| facts.health.as_ref().map(|health| health.status)).unwrap_or_default()
    }
}
