//! Starting a task's init: prepared, held, running.
//!
//! ```text
//!   Prepared ─clone─► Starting ─ready─► Held ─start─► Running
//! ```
//!
//! Each step consumes the last. The shim clones and writes the user
//! namespace's maps; everything else happens in `child`, and what it reports
//! is awaited, never slept for. Must not: wait for exits, decide a task's fate.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bowline_cgroup::{Cgroup, Entry};
use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::json::handover::Fd;
use bowline_model::liveness::Live;
use bowline_model::reserve::StartMark;
use bowline_sys::{self as sys, SharedPid};
use oci_spec::runtime::Spec;
use serde::{Deserialize, Serialize};

use crate::oci::unsupported;
use crate::output::io::{self, Stdio};
use crate::rights::lsm::Labels;
use crate::rights::notify;
use crate::rights::seccomp::Filter;
use crate::start::child::{self, ChildFds, Init, Payload};
use crate::start::cloning::{Report, Word, clone_child, clone_through_worker};
use crate::start::hooks::{Container, Point};
use crate::start::init_program::InitProgram;
use crate::view::idmap;
use crate::view::namespaces::{self, Namespaces};
use crate::view::network;
use crate::view::rootfs::{self, Additions, Binds};

/// The name of an init that is not started, where other tasks see it.
const INIT: &CStr = c"init";

/// Everything needed to start a task.
pub struct Prepared<'a> {
    pub id: &'a str,
    pub spec: &'a Spec,
    /// The folder for relative paths of the configuration.
    pub bundle: &'a Path,
    /// The cgroup of the task's processes, with its limits in effect.
    pub cgroup: &'a Cgroup,
    /// The compiled seccomp filter, if the spec has a profile.
    pub filter: Option<&'a Filter>,
    pub stdio: Stdio,
    /// Whether init stays in the session keyring instead of beginning one.
    pub keeps_keyring: bool,
    /// The folders in which a command without a `/` is looked for before PATH.
    pub command_folders: &'a [PathBuf],
    /// The program that stays above the workload as its init, if there is one.
    pub init: Option<InitProgram>,
    /// What the root has beyond the configuration.
    pub additions: &'a Additions,
    /// Where init tells that it executes the program, if another shim may ask.
    pub start_mark: Option<StartMark<'a>>,
    /// For a creator that leaves: where init's order to start comes from, and where it reports then.
    pub successors: Option<[BorrowedFd<'a>; 2]>,
    /// How many of this process's descriptors, from 3 on, the program gets.
    pub preserved: u32,
}

/// Init is cloned and sets itself up.
pub struct Starting {
    orders: OwnedFd,
    report: Report,
    live: Option<Live>,
}

/// Init is set up; the program is not executed yet.
pub struct Held {
    orders: OwnedFd,
    report: Report,
    /// Whether it runs hooks of the container's first, and tells when it has.
    has_hooks: bool,
}

impl Prepared<'_> {
    /// Clones init. From here on the caller must reap it.
    pub fn clone_init(self) -> Result<Starting> {
        let Prepared {
            id,
            spec,
            bundle,
            cgroup,
            filter,
            stdio,
            keeps_keyring,
            command_folders,
            init,
            additions,
            start_mark,
            successors,
            preserved,
        } = self;
        let process = spec.process().as_ref().ok_or_else(|| Error::new(Kind::BadSpec, "process: missing"))?;
        unsupported::check(spec)?;
        let namespaces = Namespaces::of(spec)?;
        let joined = namespaces.open_joined()?;
        // Inside a user namespace the host's paths may be closed to the child, and the child has no
        // helper for the maps of idmapped mounts.
        let beforehand = namespaces.in_user_namespace() || rootfs::are_idmapped(spec)?;
        if beforehand && namespaces.joins(libc::CLONE_NEWNS) {
            let message = "namespaces.mount: a joined one with a user namespace or idmapped mounts is not supported";
            return Err(Error::new(Kind::Unsupported, message));
        }
        // Opened here, as the child is cloned into another.
        let mounts = namespaces.shares_mounts().then(namespaces::open_shared_mounts).transpose()?;
        let stages = namespaces.in_user_namespace() && !sys::has_mount_fds();
        // The shim makes it: a helper of init would count among the task's processes.
        let nobody = rootfs::hide_owners(spec).then(idmap::nobodys).flatten();
        let is_mapped = namespaces.in_user_namespace() || !sys::in_first_user_namespace();
        let binds = Binds { exact: additions.exact_binds, in_user_namespace: is_mapped };
        let sources = || rootfs::open_sources(spec, bundle, binds, nobody.as_ref().map(OwnedFd::as_fd));
        let sources = (beforehand && sys::has_mount_fds()).then(sources).transpose()?;
        let (report, tell) = io::pipe()?;
        let (hear, orders) = io::pipe()?;
        let listener = filter.and_then(|filter| filter.listener.as_deref());
        let state = || Container { id, bundle, spec }.state(Point::CreateRuntime, None);
        let notify = listener.map(|listener| notify::prepare(listener, &state()?)).transpose()?;
        let (notify, theirs) = notify.unzip();
        let last_words = filter.map(Filter::last_words).transpose()?.flatten();
        let entry = cgroup.entry();
        let labels = Labels::of(process)?;
        let flags = namespaces.clone_flags();
        let mut keep = vec![hear.as_raw_fd()];
        keep.extend([&theirs, &nobody, &mounts].into_iter().flatten().map(|fd| fd.as_raw_fd()));
        keep.extend(labels.as_ref().map(Labels::fd));
        keep.extend(init.iter().flat_map(InitProgram::fds));
        // With a listener the filter is loaded before the start, and may deny this.
        let start_mark = start_mark.filter(|_| notify.is_none());
        keep.extend(start_mark.map(StartMark::fd));
        let successors = successors.map(|both| both.map(|fd| fd.as_raw_fd()));
        keep.extend(successors.into_iter().flatten().chain(child::preserved(preserved)));
        if let Some(sources) = &sources {
            sources.push_fds(&mut keep);
        }
        let child_fds = ChildFds::new(tell.as_fd(), keep).with_streams(&stdio, None);
        let become_init = |entry: &Entry| {
            let payload = Payload {
                process,
                spec,
                filter: filter.map(|f| (&*f.program, f.flags)),
                notify: theirs.as_ref().map(OwnedFd::as_fd),
                last_words: last_words.as_ref(),
                stdio: &stdio,
                entry,
                keeps_keyring,
                labels: labels.as_ref(),
                init: init.as_ref(),
                start_mark,
                preserved,
                service: &additions.service,
            };
            let nobody = nobody.as_ref().map(OwnedFd::as_fd);
            let (mounts, orders) = (mounts.as_ref().map(OwnedFd::as_fd), hear.as_raw_fd());
            let namespaces = &namespaces;
            let itself = Init {
                spec,
                id,
                bundle,
                namespaces,
                sources,
                nobody,
                mounts,
                command_folders,
                additions,
                orders,
                successors,
            };
            child::run_init(&payload, itself, tell.as_raw_fd())
        };
        let enter = || {
            if namespaces.joins(libc::CLONE_NEWPID) {
                // Others see init before its program is executed, and are not to see the shim's arguments.
                let _ = rustix::thread::set_name(INIT);
                let _ = sys::overwrite_command_line(INIT.to_bytes());
            }
            if stages {
                sys::unshare(libc::CLONE_NEWNS).doing(Kind::Internal, || "cannot make a mount namespace")?;
                rootfs::stage_sources(spec, bundle, binds)?;
            }
            if namespaces.in_user_namespace() && !namespaces.is_new(libc::CLONE_NEWUSER) {
                child::oom_score_adj("self", process)?;
            }
            namespaces::join(&joined).map(|()| None)
        };
        let (live, worker) = if joined.is_empty() && !stages {
            (Some(clone_child(flags, &entry, &child_fds, become_init)?), None)
        } else {
            (None, Some(clone_through_worker(flags, &entry, &child_fds, SharedPid::new(), enter, become_init)?))
        };
        drop(tell);
        Ok(Starting { orders, report: Report::new(report, worker, notify, last_words)?, live })
    }
}

impl Starting {
    /// Returns init, as soon as its pid is known.
    ///
    /// # Errors
    /// `Timeout` when there was no init before `give_up`.
    pub async fn live(&mut self, give_up: impl Future<Output = ()>) -> Result<Live> {
        match self.live.take() {
            Some(live) => {
                self.report.notify_of(live.pid);
                Ok(live)
            }
            None => {
                let pid = self.report.cloned(give_up).await?;
                let closed = || Error::new(Kind::WrongState, "the task's cgroup takes no process");
                let pid = pid.ok_or_else(closed)?;
                self.report.open(pid).await
            }
        }
    }

    /// Maps a new user namespace, then waits until the root filesystem is set up and the command
    /// found. `pid` is init's. `hooks` runs when init asks for hooks, which it does if the spec has
    /// any of the runtime's.
    pub async fn ready(
        mut self,
        pid: i32,
        spec: &Spec,
        namespaces: &Namespaces,
        hooks: impl AsyncFnOnce() -> Result<()>,
    ) -> Result<Held> {
        network::devices::give(spec, pid).await?;
        if namespaces.is_new(libc::CLONE_NEWUSER) {
            namespaces::write_id_maps(pid, spec)?;
            if let Some(process) = spec.process() {
                // Init's own file belongs to root on the host, because init is not dumpable.
                child::oom_score_adj(pid, process)?;
            }
        }
        if child::awaits_mapped(spec, namespaces) {
            order(&self.orders, child::MAPPED)?;
        }
        let mut word = self.report.after_pid().await?;
        if matches!(word, Word::Hooks) {
            hooks().await?;
            order(&self.orders, child::HOOKED)?;
            word = self.report.next().await?;
        }
        match word {
            Word::Ready => {
                self.report.handed_over().await?;
                let container = Container { id: "", bundle: Path::new("/"), spec };
                let has_hooks = container.has(Point::StartContainer);
                Ok(Held { orders: self.orders, report: self.report, has_hooks })
            }
            Word::Failed(error) => Err(error),
            Word::Pid(_) | Word::Closed | Word::Hooks | Word::Executes | Word::End => {
                Err(Error::new(Kind::Internal, "init died while it was being set up"))
            }
        }
    }
}

/// A [`Held`], as a shim hands it over.
#[derive(Debug, Serialize, Deserialize)]
pub struct HandedInit {
    orders: Fd,
    report: Fd,
    #[serde(default)]
    has_hooks: bool,
}

impl HandedInit {
    /// # Errors
    /// `Damaged` when a descriptor is missing; `Internal` when one cannot be watched.
    pub fn take(self) -> Result<Held> {
        Held::again(self.orders.take()?, self.report.take()?, self.has_hooks)
    }
}

impl Held {
    /// The init for the program that is executed in the shim's place; `None` for one that may have to say in shared
    /// memory why it failed.
    pub fn hand_over(&self) -> Option<HandedInit> {
        let has_hooks = self.has_hooks;
        Some(HandedInit { orders: Fd::of(&self.orders), report: self.report.hand_over()?, has_hooks })
    }

    /// The init that its creator has left, by its [`Prepared::successors`].
    pub fn again(orders: OwnedFd, report: OwnedFd, has_hooks: bool) -> Result<Held> {
        Ok(Held { orders, report: Report::new(report, None, None, None)?, has_hooks })
    }

    /// Leaves init to its successors, once it is recorded.
    pub fn leave(self) -> Result<()> {
        order(&self.orders, child::LEFT)
    }

    /// Lets init execute the program; returns once it does. Calls `begins` when no hooks are left to run before.
    pub async fn start(mut self, begins: impl FnOnce()) -> Result<()> {
        order(&self.orders, child::START)?;
        if self.has_hooks {
            self.report.hooked().await?;
        }
        begins();
        self.report.executed().await
    }
}

fn order(orders: &OwnedFd, byte: u8) -> Result<()> {
    // A child that has died says why on the other pipe.
    match rustix::io::write(orders, &[byte]) {
        Ok(_) | Err(rustix::io::Errno::PIPE) => Ok(()),
        Err(errno) => Err(errno).doing(Kind::Internal, || "cannot give init its orders"),
    }
}
