//! What a shim holds open for its sandbox, its tasks and their execs, by what it is for. What it
//! knows of them is in `facts`, to which each of these belongs.
//!
//! Must not: know anything that a new process could not find out from the facts and
//! the descriptors.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use tokio::task::JoinHandle;

use crate::cgroup::{Cgroup, ExecGroup};
use crate::claimed_uid::ClaimedUid;
use crate::folder::Lock;
use crate::io::Lines;
use crate::launch::{Held, Live};
use crate::reserve::Reserve;
use crate::rootfs::Null;
use crate::shared::Shared;
use crate::stats::Processes;
use crate::watch::KernelLog;

/// What a shim holds open for a task.
pub struct TaskHandles {
    /// Init, until its exit is known.
    pub init: Option<Live>,
    /// Gone once the exit has been reported.
    pub cgroup: Option<Cgroup>,
    /// By which its program is executed, until it is.
    pub held: Option<Held>,
    /// By which one joins init's streams, once it runs.
    pub lines: Option<Lines>,
    /// What takes its output, until that has ended.
    pub logging: Option<JoinHandle<()>>,
    /// Of the execs that run, by number.
    pub execs: BTreeMap<u64, ExecHandles>,
    /// An empty cgroup for an exec with a deadline, between two execs.
    pub exec_group: Option<ExecGroup>,
    /// For streams of execs that are nowhere, from the first of them on.
    pub null: Option<Null>,
    /// What `stats` keeps open between two readings.
    pub processes: Processes,
    /// The kernel's, from when its kills are watched.
    pub kernel_log: Option<KernelLog>,
    /// Room for its exit report, until that is written.
    pub reserve: Option<Reserve>,
    /// Held until it is over, of a member of a sandbox.
    pub lock: Option<Lock>,
    /// Its user, if that is its own: nobody else's while this is held.
    pub claimed: Option<ClaimedUid>,
}

/// What a shim holds open for an exec.
#[derive(Default)]
pub struct ExecHandles {
    /// Of one with a name.
    pub pidfd: Option<OwnedFd>,
    /// By which one joins its streams, of one with a name.
    pub lines: Option<Lines>,
}

/// What a shim holds open for its sandbox.
#[derive(Default)]
pub struct SandboxHandles {
    /// With the joint limits.
    pub cgroup: Option<Cgroup>,
    /// The namespaces that members share.
    pub shared: Shared,
    /// The pid namespace that they share.
    pub pids: Option<OwnedFd>,
}

impl TaskHandles {
    /// Of a task whose init was cloned.
    pub fn new(init: Live, cgroup: Cgroup) -> TaskHandles {
        TaskHandles {
            init: Some(init),
            cgroup: Some(cgroup),
            held: None,
            lines: None,
            logging: None,
            execs: BTreeMap::new(),
            exec_group: None,
            null: None,
            processes: Processes::default(),
            kernel_log: None,
            reserve: None,
            lock: None,
            claimed: None,
        }
    }
}
