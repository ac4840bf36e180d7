//! The record of a task on disk, `task.json`, and the report of a task whose shim died first.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bowline_cgroup::{CgroupIdentity, Existed, Unit, checked_path};
use bowline_error::{Error, Kind, Result};
use bowline_spec::id::TaskId;
use bowline_spec::{Network, Task};
use bowline_sys::proc_stat::{self, ProcStat};
use jiff::Timestamp;
use oci_spec::runtime::{Hook, User};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::health::Health;
use crate::report::{ExitReport, SliceEnforcement, StoppedBy};
use crate::shutdown::StopPlan;
use crate::watch::{Finding, Watched};

/// The record of a task on disk.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Record {
    /// The description that the task was launched from; `None` for a manager's bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// The name of the task's folder: in any other, the record is of a copy, or the folder was moved. `None` for a manager's
    /// bundle, and in a record of an older bowline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// When its launch began, before init was cloned.
    pub created_at: Timestamp,
    /// When the user's program was executed.
    pub started_at: Option<Timestamp>,
    /// Init's pid, once there is one.
    pub pid: Option<i32>,
    /// When that process started, in clock ticks since the boot (proc_pid_stat(5)): any other
    /// process with this pid is not init. `None` in a record of an older bowline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_started: Option<u64>,
    /// Whether init is `bowline-init`, and the program its child.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub init: bool,
    /// The pid of that program, once it was executed and if the kernel tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_pid: Option<i32>,
    /// The pid of the task's shim; a shim that takes over writes its own.
    pub shim_pid: i32,
    /// The task's cgroup path below every hierarchy.
    pub cgroup: String,
    /// Identifies that cgroup; `None` in a record of an older bowline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<CgroupIdentity>,
    /// How much of that path existed before.
    #[serde(default, skip_serializing_if = "Existed::is_empty")]
    pub parents_made: Existed,
    /// The systemd unit of that cgroup, where systemd made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Unit>,
    /// The shim's own cgroup, where it has one.
    pub overhead: Option<String>,
    /// The sandbox that the task is a member of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<TaskId>,
    /// Whether the exit report is synced before anybody learns of it.
    #[serde(default)]
    pub durable: bool,
    /// Whether the task's shim removes the task once it has ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remove: bool,
    /// The processes that the task ends with, each by its pid and its start: the client that ran it, and that one's parent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ends_with: Vec<(i32, u64)>,
    /// The slice that the task was launched for, if there is one, and whether the task is in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<SliceEnforcement>,
    /// The interfaces of a network that was made for the task, as plugins have made them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Connected>,
    /// What was made in the root for as long as tasks use it, by its path inside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount_points: Vec<PathBuf>,
    /// The user and groups that the description named when the task was launched: by now, files inside may give the name
    /// to others. Absent for a bundle, and in a record of an older bowline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    /// The FIFOs of the client that has the task in its foreground, for stdout and stderr.
    #[serde(default, skip_serializing_if = "is_none")]
    pub foreground: [Option<PathBuf>; 2],
    /// Whether the task has secret variables, which are in no record: see `secrets`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub secret_variables: bool,
    /// The limits of its processes that neither the description nor `docs/reference.md` has, as its shim may not raise its
    /// own: a shim that takes over gives commands the same.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: RecordedLimits,
    /// What init was launched in, where it may leave that and commands must not follow it there: see `entrance`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub launched_in: Identities,
    /// The hooks to run as the task is removed; absent where there are none, for a manager's bundle, and once they have
    /// been run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poststop: Option<Box<Poststop>>,
    /// Whether its poststart hooks have begun and not ended: they end with the shim.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_poststart: bool,
    /// What a command of an OCI runtime knows of its container besides: see `one_call`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<Container>>,
    /// What has happened to the task, as it was when the record was written; absent while nothing has.
    #[serde(default, rename = "remembered", skip_serializing_if = "Option::is_none")]
    pub history: Option<Box<History>>,
}

/// What has happened to a task that a later shim cannot find out: it goes on from there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// How the task is being stopped; in the record alone, as the task's life has it too.
    pub stop: Option<StopPlan>,
    /// What has stopped the task, or is stopping it.
    pub stopped_by: Option<StoppedBy>,
    /// The finding for which its watch has stopped it.
    pub stopped_for: Option<Finding>,
    /// Signals that were sent to init, each once.
    pub sent: BTreeSet<i32>,
    /// The results of its health checks.
    pub health: Option<Health>,
    /// OOM kills that were reported.
    pub oom_kills: u64,
    /// How often its own limit was hit when the last of them was reported.
    pub limit_met: Option<u64>,
    /// What its watch has reported.
    pub watched: Watched,
}

/// A container without a shim, besides what every record has.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Container {
    /// The folder that its configuration was read from.
    pub bundle: PathBuf,
    /// The path of its root on the host.
    pub rootfs: PathBuf,
    /// The version of its configuration.
    pub oci_version: String,
    /// The annotations of its configuration.
    pub annotations: BTreeMap<String, String>,
    /// The user who created it.
    pub owner: u32,
    /// Whether its processes stay in the session keyring of their starter.
    pub keeps_keyring: bool,
    /// Whether a service manager waits for its messages.
    pub notifies: bool,
    /// The process that creates it, until it is created: its pid, and when it started.
    pub creator: Option<(i32, u64)>,
}

/// The poststop hooks of a task, as they were at its launch, for whoever removes the task: its shim has left by then.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Poststop {
    /// The hooks, in their order.
    pub hooks: Vec<Hook>,
    /// The state that they read, as JSON.
    pub state: String,
    /// The folder of its configuration, where they run.
    pub bundle: PathBuf,
}

/// A soft and a hard limit, as a shim hands them over; `None` is no limit.
pub type HandedLimit = [Option<u64>; 2];

/// Limits by the name of their resource, as the record of a task has them.
pub type RecordedLimits = BTreeMap<String, HandedLimit>;

/// What a task was launched in, by device and inode: each kind of namespace by its name below `/proc/PID/ns`, and its root.
pub type Identities = BTreeMap<String, (u64, u64)>;

/// An interface that was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Connected {
    /// The interface's name inside the sandbox.
    pub interface: String,
    /// The name of the CNI network that the interface belongs to.
    pub network: String,
    /// The last plugin's result: interfaces, addresses, routes, DNS.
    pub result: Value,
}

fn is_none(paths: &[Option<PathBuf>; 2]) -> bool {
    paths.iter().all(Option::is_none)
}

impl Record {
    /// The bundle that the task's description names; a manager's bundle is the task's folder itself.
    pub fn bundle(&self) -> Option<&Path> {
        self.task.as_ref()?.bundle.as_deref()
    }

    /// The pid of the task's program.
    pub fn program_pid(&self) -> Option<i32> {
        self.workload_pid.or(self.pid)
    }

    /// Whether a shim may have to take the task over: it was launched from a description.
    pub fn outlives_shim(&self) -> bool {
        self.task.is_some()
    }

    /// Whether a shim can take the task over; of a member, together with its sandbox.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn adoptable(&self) -> std::result::Result<(), &'static str> {
        if self.task.is_none() {
            return Err("it was made from a bundle, whose manager cleans up");
        }
        self.check_plain()?;
        // Recorded before the program is started.
        if self.pid.is_none() {
            return Err("its record has no `pid`, as its launch was not complete");
        }
        if self.pid_started.is_none() {
            return Err("its record has no `pid_started`");
        }
        if self.user.is_none() {
            return Err("its record has no `user`");
        }
        match self.identity.as_ref().map(CgroupIdentity::is_of_this_boot) {
            Some(true) => Ok(()),
            Some(false) => Err("it is of an earlier boot of this host, by `identity` in its record"),
            None => Err("its record has no `identity` of its cgroup"),
        }
    }

    /// Checks that the cgroup and the pid can be those of a task.
    ///
    /// # Errors
    /// Which cannot.
    pub fn check_plain(&self) -> std::result::Result<(), &'static str> {
        match self.pid {
            _ if checked_path(&self.cgroup).is_err() => Err("`cgroup` in its record is no plain path below the top"),
            Some(..=1) => Err("`pid` in its record is no task's"),
            _ => Ok(()),
        }
    }

    /// Whether the record is of this boot, or does not say of which.
    pub fn is_of_this_boot(&self) -> bool {
        self.identity.as_ref().is_none_or(CgroupIdentity::is_of_this_boot)
    }

    /// Whether the init that the record names lives; one that cannot be looked at may live, and so may that of a start in
    /// this boot that is not named.
    pub fn runs(&self) -> bool {
        let Some((pid, started)) = self.pid.zip(self.pid_started) else {
            return self.started_at.is_some() && self.is_of_this_boot();
        };
        let Ok(stat) = proc_stat::find(pid) else { return true };
        let stat = stat.as_deref().and_then(ProcStat::parse);
        stat.is_some_and(|stat| stat.started() == Some(started) && !stat.ends())
    }

    /// The network that is made for the task alone.
    pub fn network(&self) -> Network {
        let own = self.task.as_ref().filter(|_| self.sandbox.is_none());
        own.map(|task| task.network.clone()).unwrap_or_default()
    }

    /// The description that the task was launched from.
    ///
    /// # Errors
    /// `WrongState` where there is none.
    pub fn description(&self) -> Result<&Task> {
        let none = || Error::new(Kind::WrongState, "the task was made from a bundle, and has no description");
        self.task.as_ref().ok_or_else(|| none().hint("ask the manager that made it"))
    }
}

/// The report of a task whose shim died before it.
pub fn died_with_shim(record: Option<&Record>) -> ExitReport {
    ExitReport {
        started_at: record.and_then(|r| r.started_at),
        exited_at: Timestamp::now(),
        enforcement: record.and_then(|r| r.enforcement.clone()),
        shim_died: true,
        ..ExitReport::default()
    }
}
