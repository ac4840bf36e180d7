//! What a program asks for when it runs a command in a task, and what it gets.

use std::time::Duration;

use bowline_executor::{ExecEnd, ExecOutcome, Killed};
use bowline_model::{Doing, Kind, Result};
use bowline_protocol::wire::proto::bowline::{ExecRequest, ExecResponse};
use jiff::Timestamp;

/// A command to run in a task, with the task's own environment, folder and user unless it says otherwise.
#[derive(Debug, Clone, Default)]
pub struct Exec {
    request: ExecRequest,
    pub(crate) timeout: Option<Duration>,
}

impl Exec {
    /// Runs `command`: the program, in the task's root filesystem and its `PATH`, and its arguments. No shell is between.
    pub fn new<I: IntoIterator<Item: Into<String>>>(command: I) -> Exec {
        let command = command.into_iter().map(Into::into).collect();
        Exec { request: ExecRequest { command, separate: true, ..ExecRequest::default() }, timeout: None }
    }

    /// Sets a variable, besides those of the task.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Exec {
        self.request.env.push(format!("{key}={value}"));
        self
    }

    /// Runs it in this folder of the task's root filesystem.
    #[must_use]
    pub fn workdir(mut self, path: impl Into<String>) -> Exec {
        self.request.workdir = path.into();
        self
    }

    /// Runs it as `user` or `user:group`, by name or number.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Exec {
        self.request.user = user.into();
        self
    }

    /// Kills it, and all that it has started, when this has passed since the request.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Exec {
        self.request.timeout_ms = Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        self.timeout = Some(timeout);
        self
    }

    /// Keeps this many bytes of the end of each stream; 4096 by default.
    #[must_use]
    pub fn tail_bytes(mut self, bytes: u32) -> Exec {
        self.request.tail_bytes = Some(bytes);
        self
    }

    /// Keeps the output of both streams together, in the order in which it comes: it is the outcome's `stdout`.
    #[must_use]
    pub fn merged(mut self) -> Exec {
        self.request.separate = false;
        self
    }

    pub(crate) fn request(self) -> ExecRequest {
        self.request
    }
}

/// The outcome that a shim has told.
pub(crate) fn outcome(told: ExecResponse) -> Result<ExecOutcome> {
    let time = |ns: i64| Timestamp::from_nanosecond(i128::from(ns)).doing(Kind::Internal, || "the shim's clock is off");
    let end = match (told.exit_code, told.killed.as_str()) {
        (Some(code), _) => ExecEnd::Exited(code),
        (None, "session") => ExecEnd::TimedOut(Killed::Session),
        (None, _) => ExecEnd::TimedOut(Killed::Cgroup),
    };
    let mut outcome = ExecOutcome::new(end, time(told.started_at_ns)?, time(told.exited_at_ns)?);
    (outcome.signal, outcome.oom_killed) = (told.signal, told.killed == "oom");
    (outcome.stdout, outcome.stderr) = (told.stdout, told.stderr);
    Ok(outcome)
}
