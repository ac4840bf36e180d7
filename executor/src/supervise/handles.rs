//! What a shim holds open for its sandbox, its tasks and their execs, by what it is for. What it
//! knows of them is in `facts`, to which each of these belongs.
//!
//! Must not: know anything that a new process could not find out from the facts and
//! the descriptors.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use bowline_cgroup::{Cgroup, ExecGroup};

use crate::claim::Claim;
use crate::claimed_uid::ClaimedUid;
use crate::clock::Moment;
use crate::folder::Lock;
use crate::io::{Gone, Lines, Pumps, Tail};
use crate::launch::{Held, Live};
use crate::reserve::Reserve;
use crate::rootfs::Null;
use crate::sandbox_namespaces::Shared;
use crate::stats::Processes;
use crate::watch::KernelLog;

/// What a shim holds open for a task.
pub struct TaskHandles {
    /// Init, until its exit is known.
    pub init: Option<Live>,
    /// By which its exit becomes known.
    pub claim: Claim,
    /// Gone once the exit has been reported.
    pub cgroup: Option<Cgroup>,
    /// Those that were killed last of what is in it, until they have ended.
    pub dying: Dying,
    /// By which its program is executed, until it is.
    pub held: Option<Held>,
    /// Init's streams, once it is set up.
    pub pumps: Option<Rc<Pumps>>,
    /// Their last bytes.
    pub tail: Tail,
    /// Of the logger that takes its output, if one does.
    pub logging: Option<Gone>,
    /// Of its execs, by number, until the end of each was told.
    pub execs: BTreeMap<u64, ExecHandles>,
    /// An empty cgroup for an exec with a deadline, between two execs.
    pub exec_group: Option<Rc<ExecGroup>>,
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

/// Processes that were killed.
#[derive(Clone)]
pub struct Dying {
    /// Theirs.
    pub killed: Rc<[OwnedFd]>,
    /// When.
    pub since: Moment,
}

/// What a shim holds open for an exec.
#[derive(Default)]
pub struct ExecHandles {
    /// By which its end becomes known, once it is cloned.
    pub claim: Option<Claim>,
    /// Of one with a name.
    pub pidfd: Option<OwnedFd>,
    /// Its streams, once it is set up.
    pub pumps: Option<Rc<Pumps>>,
    /// The last bytes of stdout, or of both where they are kept together, and of stderr.
    pub tails: Vec<Tail>,
    /// The cgroup that was made for it.
    pub group: Option<Rc<ExecGroup>>,
}

impl ExecHandles {
    /// By which one joins its streams.
    pub fn lines(&self) -> Option<&Lines> {
        self.pumps.as_deref().map(Pumps::lines)
    }
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
    pub fn new(init: Live, claim: Claim, tail: Tail, cgroup: Cgroup) -> TaskHandles {
        TaskHandles {
            init: Some(init),
            claim,
            cgroup: Some(cgroup),
            dying: Dying { killed: Rc::default(), since: Moment::now() },
            held: None,
            pumps: None,
            tail,
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

    /// By which one joins init's streams, once it is set up.
    pub fn lines(&self) -> Option<&Lines> {
        self.pumps.as_deref().map(Pumps::lines)
    }
}
