//! Cgroups that are units of systemd's: made for a launch, and ended.
//!
//! ```text
//!   placeholder ─► the unit, with it inside ─► init cloned in ─► placeholder ends
//! ```
//!
//! A scope is started with a process in it, and ends when none is. Init is
//! cloned into its cgroup, which has to be there by then. A worker has systemd
//! asked: a bus that hangs holds up one launch, never the loop.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use bowline_cgroup::{Cgroup, Driver, Layout, Unit};
use bowline_error::{Doing, Error, Kind, Result};
use bowline_spec::id::TaskId;
use bowline_sys::{self as sys, Cloned};
use oci_spec::runtime::LinuxResources;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::clock::Moment;
use crate::systemd::Systemd;
use crate::worker;

/// How long a cgroup may stay busy after its last process has ended.
const BUSY: Duration = Duration::from_secs(5);

/// A process that does nothing but be in a new scope.
pub struct Placeholder {
    pid: i32,
    pidfd: Option<OwnedFd>,
}

impl Placeholder {
    fn start() -> Result<Placeholder> {
        match sys::clone3(0, None).doing(Kind::Internal, || "cannot start a placeholder for a scope")? {
            Cloned::Child => {
                // It holds nothing that the shim has, and does not outlive it.
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

    /// Has it leave the scope; returns when it has.
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
            // ESRCH: somebody else was first.
            let _ = sys::pidfd_send_signal(pidfd.as_fd(), libc::SIGKILL);
        }
    }
}

/// Has systemd make the cgroup of `unit`, with these limits. It is there for
/// as long as the placeholder, or another process, is in it.
pub async fn create(
    layout: &Layout,
    systemd: &Systemd,
    unit: &Unit,
    resources: Option<&LinuxResources>,
) -> Result<(Cgroup, Placeholder)> {
    let placeholder = Placeholder::start()?;
    let pid = placeholder.pid.unsigned_abs();
    let start = || systemd.start(unit, pid, layout.properties(resources)?);
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

/// Has systemd make the cgroup of a slice, with what it knows of these limits:
/// it hands down the controllers that its units ask for, and takes others away.
pub async fn create_slice(
    layout: &Layout,
    systemd: &Systemd,
    slice: &Unit,
    resources: &LinuxResources,
) -> Result<Cgroup> {
    // Whoever puts the limits into effect says what is wrong with them.
    let properties = layout.properties(Some(resources)).unwrap_or_default();
    worker::run("systemd", || systemd.start(slice, 0, properties)).await?;
    match layout.adopt(slice) {
        Ok(cgroup) => Ok(cgroup),
        Err(error) => {
            stop(systemd, slice).await;
            Err(error)
        }
    }
}

/// Ends a unit whose processes have ended. What cannot be ended goes by itself
/// when it is empty; that is said in the log.
pub async fn stop(systemd: &Systemd, unit: &Unit) {
    if let Err(error) = worker::run("systemd", || systemd.stop(unit)).await {
        tracing::error!(%error, unit.name, "a unit may be left behind");
    }
}

/// The unit of a task that is to be in a slice.
///
/// # Errors
/// `Usage` for what is no slice, or where the task's cgroup is another.
pub fn in_slice(slice: &str, asked: Option<&str>, driver: Driver, id: &TaskId) -> Result<Unit> {
    if let Some(path) = asked {
        let message = format!("the task is to be in {slice}, and its description has the cgroup {path:?}");
        return Err(Error::new(Kind::Usage, message).hint("leave one of them away"));
    }
    if driver == Driver::Cgroupfs {
        let message = format!("the task is to be in {slice}, and the cgroup driver is cgroupfs");
        return Err(Error::new(Kind::Usage, message).hint("slices are systemd's: leave the driver away"));
    }
    Unit::in_slice(slice, id.as_str())
}

/// Has systemd put the shim into `unit`, for which there is no limit.
pub async fn enter(systemd: &Systemd, unit: &Unit) -> Result<()> {
    let pid = std::process::id();
    worker::run("systemd", || systemd.start(unit, pid, Vec::new())).await
}

/// Removes a cgroup whose processes have ended; v1 tells nobody when the last
/// one has left it. One that is a unit's goes with that.
pub async fn remove_cgroup(layout: &Layout, systemd: &Systemd, mut cgroup: Cgroup) {
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
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_millis(20));
    }
}
