//! Cgroups that are systemd units: created for a launch, and stopped.
//!
//! ```text
//!   placeholder ─► the unit, with it inside ─► init cloned in ─► placeholder ends
//! ```
//!
//! systemd starts a scope with a process in it, and ends the scope when no process is left. Init is cloned into the
//! scope's cgroup, which has to exist by then: the placeholder keeps it. A worker asks systemd: a bus that hangs
//! holds up one launch, never the loop.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use bowline_cgroup::systemd::annotated;
use bowline_cgroup::{Cgroup, Driver, Layout, Unit};
use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::clock::Moment;
use bowline_sys::{self as sys, Cloned};
use oci_spec::runtime::{LinuxResources, Spec};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::hostside::systemd::Systemd;
use crate::process::worker;

/// How long a cgroup may stay busy after its last process has ended.
const BUSY: Duration = Duration::from_secs(5);

/// The longest pause between two tries to remove a cgroup in which nothing is left.
const SETTLED: Duration = Duration::from_millis(2);

/// A process that does nothing but keep a new scope occupied.
pub struct Placeholder {
    pid: i32,
    pidfd: Option<OwnedFd>,
}

impl Placeholder {
    fn start() -> Result<Placeholder> {
        match sys::clone3(0, None).doing(Kind::Internal, || "cannot start a placeholder for a scope")? {
            Cloned::Child => {
                // The placeholder holds none of the shim's descriptors, and does not outlive the shim.
                let _ = set_parent_process_death_signal(Some(Signal::KILL));
                sys::close_all_but(&mut []);
                sys::default_signals(1..=64);
                loop {
                    rustix::event::pause();
                }
            }
            Cloned::Parent { pid, pidfd } => Ok(Placeholder { pid, pidfd: Some(pidfd) }),
        }
    }

    /// Kills the placeholder and waits until it has left the scope.
    pub async fn leave(mut self) {
        if let Some(pidfd) = self.pidfd.take() {
            let _ = sys::pidfd_send_signal(pidfd.as_fd(), libc::SIGKILL);
            worker::ended(pidfd).await;
        }
    }
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        if let Some(pidfd) = &self.pidfd {
            // ESRCH: the placeholder has ended already.
            let _ = sys::pidfd_send_signal(pidfd.as_fd(), libc::SIGKILL);
        }
    }
}

/// Asks systemd to create the cgroup of `unit` with the limits that a configuration names and, where that is `given` as it
/// is, with the properties. The cgroup exists for as long as the placeholder, or another process, is in it.
pub async fn create(
    layout: &Layout,
    systemd: &Systemd,
    unit: &Unit,
    spec: &Spec,
    given: bool,
) -> Result<(Cgroup, Placeholder)> {
    let resources = spec.linux().as_ref().and_then(|linux| linux.resources().as_ref());
    // In one that comes of a description, annotations are labels, which have no effect.
    let annotations = spec.annotations().as_ref().filter(|_| given);
    let annotated = annotations.map_or(Ok(Vec::new()), annotated)?;
    let placeholder = Placeholder::start()?;
    let pid = placeholder.pid.unsigned_abs();
    // As with runc, what is annotated comes last.
    let start = || systemd.start(unit, pid, [layout.properties(unit, resources)?, annotated.clone()].concat());
    if let Err(error) = worker::run("systemd", start).await {
        placeholder.leave().await;
        return Err(error);
    }
    match layout.adopt(unit) {
        Ok(cgroup) => Ok((cgroup, placeholder)),
        Err(error) => {
            placeholder.leave().await;
            stop(systemd, unit).await;
            Err(error)
        }
    }
}

/// Asks systemd to create the cgroup of a slice, with those of the limits that systemd knows: it enables the
/// controllers that its units ask for, and disables others.
pub async fn create_slice(
    layout: &Layout,
    systemd: &Systemd,
    slice: &Unit,
    resources: &LinuxResources,
) -> Result<Cgroup> {
    // The code that applies the limits reports what is wrong with them.
    let properties = layout.properties(slice, Some(resources)).unwrap_or_default();
    worker::run("systemd", || systemd.start(slice, 0, properties)).await?;
    match layout.adopt(slice) {
        Ok(cgroup) => Ok(cgroup),
        Err(error) => {
            stop(systemd, slice).await;
            Err(error)
        }
    }
}

/// Stops a unit whose processes have ended. If that fails, the failure is logged, and the unit goes away by itself
/// when it is empty.
pub async fn stop(systemd: &Systemd, unit: &Unit) {
    if let Err(error) = worker::run("systemd", || systemd.stop(unit)).await {
        tracing::error!(%error, unit.name, "a unit may be left behind");
    }
}

/// The unit of a task that the caller wants in a slice; `name` is its name on the host.
///
/// # Errors
/// `Usage` if `slice` is not a slice, or if the task asks for another cgroup or cgroup driver.
pub fn in_slice(slice: &str, asked: Option<&str>, driver: Driver, name: &str) -> Result<Unit> {
    if let Some(path) = asked {
        let message = format!("the task is to be in {slice}, and its description has the cgroup {path:?}");
        return Err(Error::new(Kind::Usage, message).hint("leave one of them away"));
    }
    if driver == Driver::Cgroupfs {
        let message = format!("the task is to be in {slice}, and the cgroup driver is cgroupfs");
        return Err(Error::new(Kind::Usage, message).hint("slices are systemd's: leave the driver away"));
    }
    Unit::in_slice(slice, name)
}

/// Asks systemd to move the shim into `unit`, which has no limits.
pub async fn enter(systemd: &Systemd, unit: &Unit) -> Result<()> {
    let pid = std::process::id();
    worker::run("systemd", || systemd.start(unit, pid, Vec::new())).await
}

/// Removes a cgroup whose processes have ended, and stops its unit if it has one. Retries, because cgroup v1 does
/// not report when the last process has left.
pub async fn remove_cgroup(layout: &Layout, systemd: &Systemd, cgroup: Cgroup) {
    remove(layout, systemd, cgroup, Duration::MAX).await;
}

/// Removes the cgroup of a task or a sandbox, like [`remove_cgroup`]. What is still in it after a moment is killed: what was
/// moved in one hierarchy is in the others all the same.
pub async fn remove_tasks_cgroup(layout: &Layout, systemd: &Systemd, cgroup: Cgroup) {
    remove(layout, systemd, cgroup, SETTLED).await;
}

/// Kills what is in the cgroup once the pause before another try is longer than `patience`.
async fn remove(layout: &Layout, systemd: &Systemd, mut cgroup: Cgroup, patience: Duration) {
    if let Some(unit) = cgroup.unit() {
        stop(systemd, unit).await;
    }
    let give_up = Moment::now().after(BUSY);
    let mut wait = Duration::from_micros(100);
    while let Err(error) = layout.remove(&mut cgroup) {
        if Moment::now() > give_up {
            tracing::error!(%error, "cgroup left behind");
            return;
        }
        if wait > patience {
            let kill = || {
                layout.kill_left(&cgroup);
                Ok(())
            };
            if let Err(error) = worker::run("what is left in a cgroup", kill).await {
                tracing::error!(%error, "cannot kill what is left in a cgroup");
            }
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_millis(20));
    }
}
