//! All checks of a description that need no host.
//!
//! One function a part; each error names the field as the user wrote it.
//! What depends on the host's CPUs, devices, users or cgroup version is
//! `build`'s.

mod bundle;
mod cdi;
mod health;
mod isolation;
mod limits;
mod log;
mod mounts;
mod names;
mod network;
mod process;
mod profile;
mod rules;
mod sandbox;
mod users;
mod watch;

use crate::invalid::Invalid;
use crate::task::Task;

pub use limits::check_pids;
pub(crate) use limits::numbers;

impl Task {
    /// Whether the description makes sense, whatever the host.
    ///
    /// # Errors
    /// The first field that does not.
    pub fn validate(&self) -> Result<(), Invalid> {
        self.validate_member()?;
        limits::shares(self.cpu.shares)
    }

    /// Like [`Task::validate`], for a member of a sandbox: it may name any number of CPU shares, of which the sandbox's
    /// rule makes what the kernel takes.
    ///
    /// # Errors
    /// As [`Task::validate`].
    pub fn validate_member(&self) -> Result<(), Invalid> {
        bundle::check(self)?;
        self.validate_parts()
    }

    /// Like [`Task::validate`], after an update: limits beside a bundle are those that take the place of its own.
    ///
    /// # Errors
    /// As [`Task::validate`].
    pub(crate) fn validate_updated(&self) -> Result<(), Invalid> {
        self.validate_parts()?;
        limits::shares(self.cpu.shares)
    }

    fn validate_parts(&self) -> Result<(), Invalid> {
        process::check(self)?;
        health::check(self)?;
        users::check(self)?;
        mounts::check(self)?;
        isolation::check(self)?;
        network::check_task(self)?;
        names::check(self)?;
        limits::check(self)?;
        watch::check(self)?;
        profile::check(self)?;
        log::check(self)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod testing {
    use crate::invalid::Invalid;
    use crate::parse::{Format, parse};
    use crate::task::Task;

    /// A task with a command and these lines.
    pub fn task(toml: &str) -> Result<Task, Invalid> {
        parse(&format!("command = 'true'\n{toml}"), Format::Toml)
    }

    /// What is wrong with such a task, and where.
    #[track_caller]
    pub fn refused(toml: &str, field: &str, reason: &str) {
        let error = task(toml).expect_err(toml);
        assert_eq!(error.field, field, "{toml}: {error}");
        assert!(error.reason.contains(reason), "{toml}: {error}");
    }

    #[track_caller]
    pub fn accepted(toml: &str) {
        if let Err(error) = task(toml) {
            panic!("{toml}: {error}");
        }
    }
}
