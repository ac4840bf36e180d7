//! Starts, awaits and ends the shim's pause process, which exists where the manager wants one or the members share
//! a pid namespace. There is one at a time; its end is kept until the next begins.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bowline_cgroup::{self as cgroup, Cgroup, Entry};
use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::liveness::Live;
use bowline_model::stats::{self, Stats};
use bowline_sys::proc_stat::{self, ProcStat};
use tokio::time::timeout;

use super::Sandbox;
use super::pause_slot::LivePauseProcess;
use crate::facts::SandboxFacts;
use crate::process::worker;
use crate::start::pause_process::{self, PauseProcess};
use crate::supervise::supervisor::Supervisor;
use crate::supervise::takeover::adoption::claim_by_pidfd;

impl Supervisor {
    /// Starts the pause process, in `entry` if that is given. Returns its pid once its namespaces are as wanted.
    pub async fn start_pause(&self, wanted: &PauseProcess, entry: Option<&Entry>) -> Result<i32> {
        let _turn = self.starting_pause_process.lock().await;
        if self.pause_slot.get().is_ok_and(|process| process.claim.is_unreaped()) {
            return Err(Error::new(Kind::AlreadyExists, "there is a pause process here already"));
        }
        let expecting = self.children.expect();
        let mut starting = pause_process::start(wanted, entry)?;
        let live = starting.live().await?;
        let pid = live.pid;
        let claim = expecting.claim(pid);
        drop(expecting);
        match starting.ready().await {
            Ok(()) => {
                *self.pause_slot.0.borrow_mut() = Some(Rc::new(LivePauseProcess { live, claim }));
                Ok(pid)
            }
            Err(error) => {
                // The process ends by itself, and no caller may find it.
                claim.ended().await;
                Err(error)
            }
        }
    }

    /// Starts the pause process of a sandbox whose members see each other's processes. When it ends, the kernel
    /// ends all processes in its namespace.
    pub(crate) async fn hold_pids(&self, sandbox: &Sandbox) -> Result<()> {
        if !sandbox.facts.read(|facts| facts.record.sandbox.share_pid) {
            return Ok(());
        }
        self.start_sandboxs_pause(sandbox).await?;
        self.record_pause(sandbox)
    }

    async fn start_sandboxs_pause(&self, sandbox: &Sandbox) -> Result<()> {
        let entry = self.overhead.entry().await;
        let pid = self.start_pause(&PauseProcess { pid: true, ..PauseProcess::default() }, entry.as_ref()).await?;
        if entry.is_none()
            && let Some(path) = self.overhead.path()
        {
            // The cgroup is systemd's, which knows processes by their cgroup alone.
            worker::run("helpers", || self.layout.place(&path, &[pid])).await?;
        }
        let namespace = pids_of_process(pid)?;
        sandbox.facts.update(|SandboxFacts { record, .. }| {
            (record.pause_pid, record.pause_started) = (Some(pid), proc_stat::started(pid));
        });
        sandbox.handles.borrow_mut().pids = Some(namespace);
        Ok(())
    }

    /// Writes the record that names the pause process, which outlives the shim from then on.
    fn record_pause(&self, sandbox: &Sandbox) -> Result<()> {
        sandbox.keep_record()?;
        self.pause_is_recorded();
        Ok(())
    }

    /// Lets the pause process, if there is one, outlive the shim: the sandbox's record on disk names it.
    pub(crate) fn pause_is_recorded(&self) {
        if let Ok(process) = self.pause_slot.get() {
            process.outlive_shim();
        }
    }

    /// Goes on with the pause process that a shim before this one has started, or starts another: with that one all
    /// processes in its namespace have ended.
    pub(crate) async fn hold_pids_again(&self, sandbox: &Sandbox) -> Result<()> {
        if !sandbox.facts.read(|facts| facts.record.sandbox.share_pid) {
            return Ok(());
        }
        let recorded = sandbox.facts.read(|facts| facts.record.pause())?;
        let live = match recorded.map(|(pid, pidfd)| Live { pid, pidfd }) {
            Some(live) if !ends(&live)? => live,
            _ => return self.start_another_pause(sandbox).await,
        };
        sandbox.handles.borrow_mut().pids = Some(pids_of_process(live.pid)?);
        let claim = claim_by_pidfd(&live)?;
        *self.pause_slot.0.borrow_mut() = Some(Rc::new(LivePauseProcess { live, claim }));
        Ok(())
    }

    async fn start_another_pause(&self, sandbox: &Sandbox) -> Result<()> {
        self.start_sandboxs_pause(sandbox).await?;
        if let Err(error) = self.record_pause(sandbox) {
            // As on a full disk.
            tracing::warn!(%error, "the pause process is not recorded, and ends with this shim");
        }
        Ok(())
    }

    /// Starts another pause process for a new member, where the one before was killed: the kernel has ended all processes
    /// in its namespace, and lets none join.
    ///
    /// # Errors
    /// `Timeout` when the one before does not end.
    pub(crate) async fn renew_pids(&self, sandbox: &Sandbox) -> Result<()> {
        if sandbox.handles.borrow().pids.is_none() {
            return Ok(());
        }
        let _turn = sandbox.renewing_pids.lock().await;
        let process = self.pause_slot.get()?;
        if process.claim.is_unreaped() && !ends(&process.live)? {
            return Ok(());
        }
        let id = sandbox.id();
        // It ends after all others in its namespace.
        let renewed = match timeout(ENDS_WITHIN, process.claim.ended()).await {
            Ok(_) => self.start_another_pause(sandbox).await,
            Err(_) => Err(Error::new(Kind::Timeout, "what was killed with the one before does not end")),
        };
        renewed.map_err(|error| {
            error
                .within(format_args!("no other process can hold the pid namespace of sandbox {id}"))
                .hint(format!("`bowline sandbox rm -f {id}` ends the members and removes it"))
        })
    }

    /// Ends the pause process, if there is one. The other processes in its namespace have ended.
    pub(crate) async fn release_pids(&self, sandbox: &Sandbox) {
        sandbox.handles.borrow_mut().pids.take();
        sandbox.facts.update(|SandboxFacts { record, .. }| (record.pause_pid, record.pause_started) = (None, None));
        // Without one there is nothing to end.
        let _ = self.pause_slot.end().await;
    }

    /// The path through which members join the pid namespace, if they share one.
    pub(crate) fn pids_of(&self, sandbox: &Sandbox) -> Option<PathBuf> {
        let namespace = sandbox.handles.borrow().pids.as_ref().map(AsRawFd::as_raw_fd)?;
        Some(format!("/proc/{}/fd/{namespace}", std::process::id()).into())
    }

    /// The resource use of a cgroup that another process created, and of all cgroups below it.
    pub fn cgroup_stats(&self, path: &str) -> Result<Stats> {
        let none = || Error::new(Kind::NotFound, format!("there is no cgroup {path}"));
        let cgroup: Cgroup = self.layout.open(path)?.ok_or_else(none)?;
        Ok(stats::read(&self.layout, &cgroup, self.page_sizes()))
    }
}

/// How long a pause process that was killed may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Whether the process has ended or begins to: its namespace then takes no process, long before somebody reaps it.
fn ends(Live { pid, pidfd }: &Live) -> Result<bool> {
    let stat = proc_stat::find(*pid).doing(Kind::Internal, || format!("cannot look at process {pid}"))?;
    let lives = stat.as_deref().and_then(ProcStat::parse).is_some_and(|stat| !stat.ends());
    Ok(!lives || cgroup::has_ended(pidfd, Duration::ZERO))
}

/// The pid namespace of a process that lives.
fn pids_of_process(pid: i32) -> Result<OwnedFd> {
    let at = format!("/proc/{pid}/ns/pid");
    File::open(&at).map(OwnedFd::from).doing(Kind::Internal, || format!("cannot open {at}"))
}
