//! A further process in a container.

use std::os::fd::{AsFd as _, BorrowedFd};

use bowline_cgroup::{Cgroup, Entry};
use bowline_error::{Error, Kind, Result};
use bowline_model::liveness::Live;
use bowline_sys::{self as sys, SharedPid};
use oci_spec::runtime::{Process, Spec};

use super::{Begun, Container, Containers, Status, Streams, hand_terminal, streams};
use crate::oci::tolerance;
use crate::process::inheritance::{self, InheritedLimits};
use crate::rights::seccomp::Filter;
use crate::start::cloning::Report;
use crate::start::entrance::Entrance;
use crate::start::exec_launch;
use crate::view::namespaces::Namespaces;

/// What is asked for with a further process.
pub struct Exec {
    /// The process. What it leaves open, the container's own process says.
    pub process: Process,
    /// Cgroups below that of the container: `PATH` in all hierarchies, or `CONTROLLERS:PATH`.
    pub cgroups: Vec<String>,
    /// Whether it may be begun in a paused container: it then waits, frozen, until that goes on.
    pub ignores_pause: bool,
    /// Its streams.
    pub streams: Streams,
}

/// What an exec needs of its container.
struct Target<'a> {
    container: &'a Container,
    spec: &'a Spec,
    filter: Option<&'a Filter>,
    namespaces: &'a Namespaces,
    entrance: &'a Entrance,
    init: &'a Live,
    bundle: &'a std::path::Path,
}

impl Containers {
    /// Starts a process in the container; returns once its program is executed. `known` is called with its pidfd and pid
    /// before that.
    ///
    /// # Errors
    /// `WrongState` where the container has ended, or is paused; `BadSpec` for a process with less protection than the
    /// container's own.
    pub async fn exec(
        &self,
        id: &str,
        wanted: Exec,
        known: impl FnOnce(BorrowedFd<'_>, i32) -> Result<()>,
    ) -> Result<Begun> {
        inheritance::leave_behind(InheritedLimits::Managers)?;
        let container = self.to_act_on(id)?;
        match self.status(&container)? {
            Status::Created | Status::Running => {}
            Status::Paused if wanted.ignores_pause => {}
            Status::Paused => {
                let message = format!("cannot exec in a paused container: {id}");
                return Err(Error::new(Kind::WrongState, message).hint("resume it first, or give --ignore-paused"));
            }
            status => return Err(container.wrong_state(status, "nothing can be executed in it")),
        }
        let stopped = || container.wrong_state(Status::Stopped, "nothing can be executed in it");
        let init = self.init(&container)?.ok_or_else(stopped)?;
        let mut configuration = container.configuration()?;
        let spec = &configuration.spec;
        let mut process = wanted.process;
        protect(&mut process, spec)?;
        let namespaces = Namespaces::of(spec)?;
        if !namespaces.in_user_namespace() {
            tolerance::grant(&mut process).inspect(|note| tracing::warn!("{note}"));
        }
        let filter = self.filter(&mut configuration).await?;
        let recorded = &container.record.launched_in;
        let entrance = Entrance::again(init.pid, &namespaces, filter.as_ref(), false, recorded)?;
        entrance.check_without_shim().map_err(|error| error.within(format_args!("container {id}")))?;
        let cgroup = self.cgroup(&container)?.ok_or_else(|| {
            Error::new(Kind::WrongState, format!("cgroup {} of container {id} has gone", container.record.cgroup))
        })?;
        let layout = self.layout()?;
        let (spec, bundle) = (&configuration.spec, container.bundle());
        let (stdio, terminal) = streams(spec, &process, &wanted.streams)?;
        let of = Target {
            container: &container,
            spec,
            filter: filter.as_ref(),
            namespaces: &namespaces,
            entrance: &entrance,
            init: &init,
            bundle: &bundle,
        };
        let below = self.below(&container, &cgroup, &wanted.cgroups)?;
        let entry = below.as_ref().unwrap_or(&cgroup).entry();
        let clone = async |entry| of.clone(&process, &stdio, entry, wanted.streams.preserved).await;
        let cloned = async {
            // Its processes may be a level down: see cgroup-v2, "no internal processes".
            let Some(cloned) = clone(entry).await? else {
                let below = layout.below_of(&cgroup, init.pid)?;
                let none = || Error::new(Kind::WrongState, format!("no cgroup of container {id} takes a process"));
                return clone(below.entry(&cgroup)).await?.ok_or_else(none);
            };
            Ok(cloned)
        };
        let (mut report, live) = cloned.await.inspect_err(|_| self.reap_workers(None))?;
        drop(stdio);
        let settled = async {
            known(live.pidfd.as_fd(), live.pid)?;
            report.executed().await?;
            hand_terminal(terminal, wanted.streams.console.as_ref())
        };
        let settled = settled.await;
        if settled.is_err() {
            // Nobody would know of it. ESRCH: it has ended.
            let _ = sys::pidfd_send_signal(live.pidfd.as_fd(), libc::SIGKILL);
        }
        self.reap_workers(settled.is_ok().then_some(live.pid));
        Ok(Begun { terminal: settled?, live })
    }

    /// The cgroup at the `asked` paths below that of the container, each for all hierarchies or, as `CONTROLLERS:PATH`, for
    /// some; `None` where none is asked for.
    ///
    /// # Errors
    /// `NotFound` where one of these hierarchies has none there: the process would not have the limits of that.
    fn below(&self, container: &Container, own: &Cgroup, asked: &[String]) -> Result<Option<Cgroup>> {
        let (layout, mut all) = (self.layout()?, None);
        for one in asked.iter().filter(|one| !one.trim_matches('/').is_empty()) {
            let (controllers, path) = one.split_once(':').map_or((None, &**one), |(names, path)| (Some(names), path));
            let whole = format!("{}/{}", container.record.cgroup, path.trim_matches('/'));
            let whole =
                format!("/{}", bowline_cgroup::checked_path(whole.trim_end_matches('/'))?.trim_start_matches('/'));
            let below = layout.open(&whole)?;
            let Some(controllers) = controllers else {
                let is_whole = |below: &Cgroup| layout.files_of(below).len() == layout.files_of(own).len();
                let none = || Error::new(Kind::NotFound, format!("cgroup {whole} does not exist in all hierarchies"));
                all = Some(below.filter(is_whole).ok_or_else(none)?);
                continue;
            };
            let gone = || Error::new(Kind::WrongState, format!("cgroup {} has gone", container.record.cgroup));
            let base =
                all.map_or_else(|| layout.open(&container.record.cgroup), |all| Ok(Some(all)))?.ok_or_else(gone)?;
            let mixed = layout.mixed(base, below, controllers);
            all = Some(mixed.map_err(|error| error.within(format_args!("--cgroup {one}")))?);
        }
        Ok(all)
    }
}

impl Target<'_> {
    /// Clones the process into a cgroup; `None` where that takes no process.
    async fn clone(
        &self,
        process: &Process,
        stdio: &crate::output::io::Stdio,
        entry: Entry,
        preserved: u32,
    ) -> Result<Option<(Report, Live)>> {
        let keeps_keyring = self.container.record.container.as_ref().is_some_and(|container| container.keeps_keyring);
        let exec = exec_launch::Exec {
            process,
            id: self.container.id.as_str(),
            bundle: self.bundle,
            spec: self.spec,
            filter: self.filter,
            stdio,
            null: None,
            entry,
            namespaces: self.namespaces,
            entrance: self.entrance,
            init: self.init,
            is_apart: false,
            keeps_keyring,
            preserved,
        };
        let mut report = exec.clone_exec(SharedPid::new())?;
        let Some(pid) = report.cloned(std::future::pending()).await? else { return Ok(None) };
        let live = report.open(pid).await?;
        Ok(Some((report, live)))
    }
}

/// Gives a process the protection of the container's own, where it does not say.
///
/// # Errors
/// `BadSpec` where it asks for less.
fn protect(process: &mut Process, spec: &Spec) -> Result<()> {
    let Some(own) = spec.process() else { return Ok(()) };
    if process.capabilities().is_none() {
        process.set_capabilities(own.capabilities().clone());
    }
    if process.apparmor_profile().as_ref().is_none_or(String::is_empty) {
        process.set_apparmor_profile(own.apparmor_profile().clone());
    }
    if process.selinux_label().as_ref().is_none_or(String::is_empty) {
        process.set_selinux_label(own.selinux_label().clone());
    }
    match (own.no_new_privileges(), process.no_new_privileges()) {
        (Some(true), Some(false)) => {
            let message = "process.noNewPrivileges: the container sets it; an exec cannot clear it";
            return Err(Error::new(Kind::BadSpec, message).hint("leave it out"));
        }
        (own, None) => {
            process.set_no_new_privileges(own);
        }
        _ => {}
    }
    if process.rlimits().is_none() {
        process.set_rlimits(own.rlimits().clone());
    }
    if process.oom_score_adj().is_none() {
        process.set_oom_score_adj(own.oom_score_adj());
    }
    Ok(())
}
