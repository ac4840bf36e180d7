//! What a shim holds open for its sandbox, its tasks and their execs. What the shim knows about each of these is in
//! `facts`.
//!
//! Must not: know anything that a new process could not find out from the facts and the descriptors.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use bowline_cgroup::{Cgroup, ExecGroup};
use bowline_model::clock::Moment;
use bowline_model::folder::Lock;
use bowline_model::liveness::Live;
use bowline_model::reserve::Reserve;
use bowline_model::stats::{Processes, Stats};
use bowline_model::watch::KernelLog;

use crate::output::io::{Lines, Pumps, Tail};
use crate::request::Launcher;
use crate::rights::claimed_uid::ClaimedUid;
use crate::start::entrance::Entrance;
use crate::start::init_program::InitWatch;
use crate::start::launch::Held;
use crate::supervise::exec::slots::ExecSlots;
use crate::view::rootfs::Null;
use crate::view::sandbox_namespaces::Shared;
use crate::waits::claim::Claim;

/// What a shim holds open for a task.
pub struct TaskHandles {
    /// Init, until its exit is known.
    pub init: Option<Live>,
    /// How execs get into the task.
    pub entrance: Entrance,
    /// Reports init's exit.
    pub claim: Claim,
    /// Where the shim learns of the workload's end, if `bowline-init` is above it.
    pub init_watch: Option<Rc<InitWatch>>,
    /// The task's cgroup; `None` once the exit has been reported.
    pub cgroup: Option<Cgroup>,
    /// The processes in the cgroup that were killed last, until they have ended.
    pub dying: Dying,
    /// Starts the program; `None` once it has started.
    pub held: Option<Held>,
    /// Init's streams, once it is set up.
    pub pumps: Option<Rc<Pumps>>,
    /// The last bytes of init's stdout, or of its terminal, and of its stderr.
    pub tails: [Tail; 2],
    /// The handles of the task's execs, by number, until each exec's end is reported.
    pub execs: BTreeMap<u64, ExecHandles>,
    /// What a later shim must know of them; `None` where no shim takes the task over.
    pub exec_slots: Option<ExecSlots>,
    /// The streams of execs that are forgotten: what an exec has left running may write more, and readers may be slow.
    pub lingering: Vec<Rc<Pumps>>,
    /// An empty cgroup for an exec with a deadline, between two execs.
    pub exec_group: Option<Rc<ExecGroup>>,
    /// The null device for execs' streams that lead nowhere; opened for the first exec that needs it.
    pub null: Option<Null>,
    /// What `stats` keeps open between two readings.
    pub processes: Processes,
    /// The last reading, once the task has ended, for a manager that asks for it until it removes the task.
    pub last_stats: Option<Box<Stats>>,
    /// The kernel log, from the time when the kernel's kills are watched.
    pub kernel_log: Option<KernelLog>,
    /// Space for the exit report, until that is written.
    pub reserve: Option<Reserve>,
    /// The lock of a sandbox member's folder, held until the task is over.
    pub lock: Option<Lock>,
    /// The client that launched the task, until it has gone; `None` where that is not known any more.
    pub launcher: Option<Launcher>,
    /// The task's own user, if it has one: no other task gets this user while this is held.
    pub claimed: Option<ClaimedUid>,
    /// The network that was made for the task, until that is undone.
    pub shared: Shared,
}

/// Processes that were sent SIGKILL.
#[derive(Clone)]
pub struct Dying {
    pub killed: Rc<[OwnedFd]>,
    pub since: Moment,
}

/// What a shim holds open for an exec.
#[derive(Default)]
pub struct ExecHandles {
    /// Reports the exec's end, once the exec is cloned.
    pub claim: Option<Claim>,
    /// The exec's pidfd, if it has a name.
    pub pidfd: Option<OwnedFd>,
    /// Its streams, once it is set up.
    pub pumps: Option<Rc<Pumps>>,
    /// The last bytes of stdout, or of both where they are kept together, and of stderr.
    pub tails: Vec<Tail>,
    /// The cgroup that was made for it.
    pub group: Option<Rc<ExecGroup>>,
}

impl ExecHandles {
    /// The exec's streams, for attaching a client.
    pub fn lines(&self) -> Option<&Lines> {
        self.pumps.as_deref().map(Pumps::lines)
    }
}

/// What a shim holds open for its sandbox.
#[derive(Default)]
pub struct SandboxHandles {
    /// The cgroup with the joint limits.
    pub cgroup: Option<Cgroup>,
    /// The namespaces that members share.
    pub shared: Shared,
    /// The pid namespace that members share.
    pub pids: Option<OwnedFd>,
}

impl TaskHandles {
    /// The handles of a task that has no streams yet. Of one that has ended, init and cgroup may be gone.
    pub fn new(init: Option<Live>, claim: Claim, tails: [Tail; 2], cgroup: Option<Cgroup>) -> TaskHandles {
        TaskHandles {
            init,
            entrance: Entrance::default(),
            claim,
            init_watch: None,
            cgroup,
            dying: Dying { killed: Rc::default(), since: Moment::now() },
            held: None,
            pumps: None,
            tails,
            execs: BTreeMap::new(),
            exec_slots: None,
            lingering: Vec::new(),
            exec_group: None,
            null: None,
            processes: Processes::default(),
            last_stats: None,
            kernel_log: None,
            reserve: None,
            lock: None,
            launcher: None,
            claimed: None,
            shared: Shared::default(),
        }
    }

    /// Init's streams, for attaching a client; `None` until init is set up.
    pub fn lines(&self) -> Option<&Lines> {
        self.pumps.as_deref().map(Pumps::lines)
    }
}
