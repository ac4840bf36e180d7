//! An additional process in a live task.
//!
//! ```text
//!   shim ─fork─► worker ─setns(task)─clone3(CLONE_PARENT | CLONE_VM)─► exec ─► cgroup ─► confine ─► execve
//! ```
//!
//! An exec has init's credentials, filter, capabilities, namespaces and cgroup unless the request
//! says otherwise, and is the shim's child like init. This is the hot path of health checks: no
//! path is resolved here but the program's own. Must not: change the task's state, wait for the
//! exec to end.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use bowline_cgroup::Entry;
use bowline_error::{Doing, Kind, Result};
use bowline_model::liveness::Live;
use bowline_sys::SharedPid;
use oci_spec::runtime::{Process, Spec};
use rustix::fs::{self, Mode, OFlags};

use crate::oci::unsupported;
use crate::output::io::{self, Stdio};
use crate::rights::lsm::Labels;
use crate::rights::notify;
use crate::rights::seccomp::Filter;
use crate::start::child::{self, ChildFds, Payload};
use crate::start::cloning::{self, Report};
use crate::start::entrance::Entrance;
use crate::start::hooks::{Container, Point};
use crate::view::namespaces::Namespaces;
use crate::view::rootfs;

/// Everything needed to start an exec.
pub struct Exec<'a> {
    pub process: &'a Process,
    pub id: &'a str,
    /// The folder for relative paths of the configuration.
    pub bundle: &'a Path,
    pub spec: &'a Spec,
    pub filter: Option<&'a Filter>,
    pub stdio: &'a Stdio,
    /// The null device, for those of its streams that use it; the exec's worker makes one if there is none.
    pub null: Option<BorrowedFd<'a>>,
    /// The cgroups that the exec joins.
    pub entry: Entry,
    pub namespaces: &'a Namespaces,
    pub entrance: &'a Entrance,
    /// The task's init, which is not reaped yet: its pid is still its own.
    pub init: &'a Live,
    /// Whether it has a cgroup namespace of its own, by which all that it starts is told apart.
    pub is_apart: bool,
    /// Whether the exec stays in the session keyring instead of beginning one.
    pub keeps_keyring: bool,
    /// How many of this process's descriptors, from 3 on, the program gets.
    pub preserved: u32,
}

impl Exec<'_> {
    /// Starts the exec. The report brings its pid, which the kernel stores in `pid`, an error, or that its cgroup takes no
    /// process.
    pub fn clone_exec(self, pid: std::io::Result<SharedPid>) -> Result<Report> {
        unsupported::check_process(self.process)?;
        let (report, tell) = io::pipe()?;
        let init = self.init.pidfd.as_fd();
        let listener = self.filter.and_then(|filter| filter.listener.as_deref());
        let container = Container { id: self.id, bundle: self.bundle, spec: self.spec };
        let state = || container.state(Point::Poststart, Some(self.init.pid));
        let notify = listener.map(|listener| notify::prepare(listener, &state()?)).transpose()?;
        let (notify, theirs) = notify.unzip();
        let last_words = self.filter.map(Filter::last_words).transpose()?.flatten();
        let enter = || {
            let makes_null = self.stdio.wants_null() && self.null.is_none();
            let null = makes_null.then(rootfs::open_null_in_worker).transpose()?;
            // Use the host's /proc, before the task's comes into sight.
            child::oom_score_adj("self", self.process)?;
            child::first_affinity(self.process)?;
            self.entrance.enter(self.init, self.namespaces)?;
            Ok(null)
        };
        let labels = Labels::of(self.process)?;
        let own_cgroup = self.namespaces.own_cgroup_namespace();
        // Inside its user namespace, nobody may look into an init that is not dumpable, which setns asks of a pidfd.
        let is_closed = own_cgroup && self.namespaces.in_user_namespace() && self.entrance.cgroup().is_none();
        let cgroup = is_closed.then(|| open_cgroup_namespace(self.init)).transpose()?;
        let cgroup = own_cgroup.then(|| self.entrance.cgroup().or(cgroup.as_ref().map(OwnedFd::as_fd)).unwrap_or(init));
        let become_exec = |entry: &Entry| {
            let payload = Payload {
                process: self.process,
                spec: self.spec,
                filter: self.filter.map(|f| (&*f.program, f.flags)),
                notify: theirs.as_ref().map(OwnedFd::as_fd),
                last_words: last_words.as_ref(),
                stdio: self.stdio,
                entry,
                keeps_keyring: self.keeps_keyring,
                labels: labels.as_ref(),
                init: None,
                start_mark: None,
                preserved: self.preserved,
                service: &[],
            };
            child::run_exec(&payload, self.namespaces, cgroup, self.is_apart, tell.as_raw_fd())
        };
        let mut keep: Vec<RawFd> = theirs.iter().map(|fd| fd.as_raw_fd()).collect();
        keep.extend(labels.as_ref().map(Labels::fd));
        keep.extend(cgroup.map(|cgroup| cgroup.as_raw_fd()));
        keep.extend(child::preserved(self.preserved));
        let child_fds = ChildFds::new(tell.as_fd(), keep).with_streams(self.stdio, self.null);
        // Its worker has changed its score and entered its time namespace.
        let shared = libc::CLONE_VM as u64;
        let worker = cloning::clone_through_worker(shared, &self.entry, &child_fds, pid, enter, become_exec)?;
        drop(tell);
        Report::new(report, Some(worker), notify, last_words)
    }
}

/// Opens the cgroup namespace of init, which is unreaped.
fn open_cgroup_namespace(init: &Live) -> Result<OwnedFd> {
    let path = format!("/proc/{}/ns/cgroup", init.pid);
    fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .doing(Kind::WrongState, || format!("cannot open {path}"))
}
