//! A sandbox on disk: its record, its members, and undoing a sandbox whose shim has died.
//!
//! ```text
//!   <state>/<sandbox>/  lock, shim.sock, shim.log   as a task has them
//!                       sandbox.json                what is needed to find and undo it
//!                       networks.json               what plugins have added: see `network`
//!                       shm/                        the members' /dev/shm
//!   <state>/<member>/   a task's folder; shim.sock leads to the sandbox's
//! ```
//!
//! Sandboxes and tasks share one space of ids. A member's launcher and the shim share the member's
//! lock, so that the lock is never free.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bowline_cgroup::{self as cgroup, CgroupIdentity, Driver, Existed, Layout, Unit, checked_path};
use bowline_error::{Doing, Error, Kind, Result};
use bowline_spec::budget::{Class, Joint};
use bowline_spec::id::TaskId;
use bowline_spec::place::{OURS, OVERHEAD, SandboxPlace};
use bowline_spec::{Overhead, Sandbox, Update};
use bowline_sys as sys;
use jiff::Timestamp;
use oci_spec::runtime::LinuxResources;
use serde::{Deserialize, Serialize};

use crate::folder::{Folder, Lock, SANDBOX_RECORD, StateDir};
use crate::record::Connected;

/// Where the members' `/dev/shm` is mounted, in the sandbox's folder.
const SHM: &str = "shm";

/// The inode of namespaces, by their names below `/proc/PID/ns`.
pub type Inodes = BTreeMap<String, u64>;

/// The record of a sandbox on disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxRecord {
    /// The description of the sandbox.
    pub sandbox: Sandbox,
    /// The name of the sandbox's folder: see the field of a task's record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// When the sandbox was requested.
    pub created_at: Timestamp,
    /// The shim's pid, once there is a shim.
    pub shim_pid: Option<i32>,
    /// The cgroup with the joint limits, below every hierarchy.
    pub cgroup: String,
    /// The systemd unit of that cgroup, where systemd makes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Unit>,
    /// The identity of the cgroup, where the description names its place: others may make cgroups there too. Before the
    /// cgroup is made, it says the boot alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<CgroupIdentity>,
    /// How much of the cgroup's path existed before.
    #[serde(default, skip_serializing_if = "Existed::is_empty")]
    pub parents_made: Existed,
    /// The cgroup that the shim and its helpers are charged to, where they have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead: Option<String>,
    /// The systemd unit of the overhead cgroup, where systemd makes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead_unit: Option<Unit>,
    /// The path of each shared namespace, valid while the shim lives.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub namespaces: BTreeMap<String, PathBuf>,
    /// The process that holds a shared pid namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_pid: Option<i32>,
    /// When that process started, in clock ticks since the boot (proc_pid_stat(5)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_started: Option<u64>,
    /// The interfaces, as plugins have made them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Connected>,
    /// What follows the ids of the sandbox and of its members in names on the host, since it was made: see `host_name`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mark: String,
    /// What another shim goes on from, should this one die; absent while the sandbox is being made or taken down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<Whole>,
    /// The limits that this host does not enforce, with the reason, where that was allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unenforced: Vec<String>,
    /// Whether the shim has taken the sandbox down: nothing is left to undo.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taken_down: bool,
}

/// What tells that a sandbox is whole, and which namespaces are its.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Whole {
    /// The id of the kernel's boot: inode numbers begin again with each boot.
    boot: String,
    /// The cgroup namespace in which its cgroup's path is; `None` in a record of an older bowline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cgroup_namespace: Option<u64>,
    /// The inode of each namespace that the members share, by its name below `/proc/PID/ns`.
    pub namespaces: Inodes,
}

impl Whole {
    /// A sandbox that shares these namespaces.
    pub fn with(namespaces: Inodes) -> Option<Whole> {
        Some(Whole { boot: cgroup::boot()?, cgroup_namespace: cgroup::namespace(), namespaces })
    }
}

impl SandboxRecord {
    /// The record of a requested sandbox `id`, in the state folder that has this `mark`.
    ///
    /// # Errors
    /// `BadSpec` for an id that makes a unit's name too long, and for a place that is another sandbox's, or a slice
    /// without systemd.
    pub fn new(id: &TaskId, sandbox: Sandbox, driver: Driver, mark: &str) -> Result<SandboxRecord> {
        let place = place_of(&sandbox, id, mark)?;
        let by_systemd = driver == Driver::Systemd;
        if let Some(chosen) = sandbox.place.as_ref().filter(|chosen| chosen.is_slice() && !by_systemd) {
            let path = place.cgroupfs();
            let message = format!("{chosen} is made by systemd, and the cgroup driver is cgroupfs");
            return Err(Error::new(Kind::BadSpec, message)
                .in_field("place")
                .hint(format!("write {path}, or --cgroup-driver systemd")));
        }
        let unit = by_systemd.then(|| Unit::of_sandbox(&place)).transpose()?;
        let (overhead, overhead_unit) = overhead_of(&sandbox, id, mark, by_systemd)?;
        let identity = sandbox.place.as_ref().and_then(|_| CgroupIdentity::to_come());
        Ok(SandboxRecord {
            sandbox,
            folder: Some(id.to_string()),
            created_at: Timestamp::now(),
            shim_pid: None,
            cgroup: unit.as_ref().map_or_else(|| place.cgroupfs(), Unit::path),
            unit,
            identity,
            parents_made: Existed::new(),
            overhead,
            overhead_unit,
            namespaces: BTreeMap::new(),
            pause_pid: None,
            pause_started: None,
            interfaces: Vec::new(),
            mark: mark.to_owned(),
            whole: None,
            unenforced: Vec::new(),
            taken_down: false,
        })
    }

    /// Whether a shim can take the sandbox over.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn adoptable(&self) -> std::result::Result<(), &'static str> {
        match &self.whole {
            _ if checked_path(&self.cgroup).is_err() => Err("`cgroup` in its record is no plain path below the top"),
            _ if self.taken_down => Err("it was taken down"),
            None => Err("it was being made or taken down, or its record is of an older bowline"),
            Some(whole) if Some(&whole.boot) != cgroup::boot().as_ref() => Err("it is of an earlier boot of this host"),
            Some(_) => Ok(()),
        }
    }

    /// Whether the path of its cgroup is of another cgroup namespace than this process's.
    pub fn is_of_another_namespace(&self) -> bool {
        self.whole.as_ref().is_some_and(|whole| cgroup::is_another_namespace(whole.cgroup_namespace))
    }

    /// The process that holds the shared pid namespace, if it lives.
    pub fn pause(&self) -> Result<Option<(i32, OwnedFd)>> {
        let Some((pid, started)) = self.pause_pid.zip(self.pause_started) else { return Ok(None) };
        let pidfd =
            sys::open_process(pid, started).doing(Kind::Internal, || format!("cannot look for process {pid}"))?;
        Ok(pidfd.map(|pidfd| (pid, pidfd)))
    }

    /// Whether the description names a place where the cgroup was not made yet, as far as the record says.
    pub fn is_not_made_yet(&self) -> bool {
        self.identity.as_ref().is_some_and(|identity| identity.is_of_this_boot() && identity.cgroups.is_empty())
    }

    /// Why the cgroup that is at the place of the record, if any, is not taken for the sandbox's.
    pub fn is_anothers(&self, layout: &Layout) -> Option<&'static str> {
        let identity = self.identity.as_ref()?;
        let cgroup = layout.open(&self.cgroup).ok().flatten()?;
        match () {
            () if !identity.is_of_this_boot() => Some("the sandbox was of an earlier boot of this host"),
            () if identity.is_of(layout, &cgroup) => None,
            () => Some("it is not the one that was made for the sandbox"),
        }
    }

    /// The name of a member's cgroup inside the sandbox's.
    pub fn folder_of(&self, id: &TaskId) -> String {
        let unit = self.unit_of(id).ok().flatten();
        unit.map_or_else(|| id.to_string(), |unit| unit.name)
    }

    /// The systemd unit of a member's cgroup, where systemd makes it.
    ///
    /// # Errors
    /// `BadSpec` for an id that makes a unit's name too long.
    pub fn unit_of(&self, id: &TaskId) -> Result<Option<Unit>> {
        self.unit.as_ref().map(|slice| Unit::of_member(slice, &self.name_of(id))).transpose()
    }

    /// The name on the host of the sandbox or of a member.
    pub fn name_of(&self, id: &TaskId) -> String {
        format!("{id}{}", self.mark)
    }

    /// The cgroup of a member, as its configuration names it.
    pub fn cgroup_of(&self, id: &TaskId) -> String {
        match &self.unit {
            Some(slice) => format!("{}:bowline:{}", slice.name, self.name_of(id)),
            None => format!("{}/{id}", self.cgroup),
        }
    }
}

/// Where the cgroup of the sandbox `id` is; a place that the description names has no mark.
pub fn place_of(sandbox: &Sandbox, id: &TaskId, mark: &str) -> Result<SandboxPlace> {
    Ok(match &sandbox.place {
        Some(place) => place.of(id)?,
        None => SandboxPlace::marked(OURS, id.as_str(), mark)?,
    })
}

/// Where the shim of the sandbox `id` is charged, if it has a cgroup of its own, and as which unit of systemd's.
pub fn overhead_of(
    sandbox: &Sandbox,
    id: &TaskId,
    mark: &str,
    by_systemd: bool,
) -> Result<(Option<String>, Option<Unit>)> {
    let prefix = sandbox.overhead_prefix.as_deref().unwrap_or_default();
    let place = match sandbox.overhead {
        Overhead::Beside => SandboxPlace::marked(OVERHEAD, id.as_str(), mark)?,
        Overhead::Inside => place_of(sandbox, id, mark)?,
        Overhead::Inherit | Overhead::Root => return Ok((None, None)),
    };
    if by_systemd {
        let unit = Unit::of_sandboxs_shim(&place, &format!("{id}{mark}"), prefix)?;
        return Ok((Some(unit.path()), Some(unit)));
    }
    let path = match sandbox.overhead {
        Overhead::Inside => format!("{}/{prefix}overhead", place.cgroupfs()),
        _ => SandboxPlace::marked(OVERHEAD, &format!("{prefix}{id}"), mark)?.cgroupfs(),
    };
    Ok((Some(path), None))
}

/// A sandbox as it is now.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxState {
    /// The record of the sandbox.
    #[serde(flatten)]
    pub record: SandboxRecord,
    /// The class of service: the one in the description, or the one that its members add up to.
    pub class: Class,
    /// The joint limits in effect.
    pub budget: JointLimits,
    /// What was changed in the request, a sentence each.
    pub notes: Vec<String>,
    /// The members that have not ended.
    pub members: Vec<TaskId>,
}

/// Joint limits; an absent value is no limit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JointLimits {
    /// CPU shares, 2 to 262144.
    pub cpu_shares: Option<u64>,
    /// CPU time in each period, in µs.
    pub cpu_quota_usec: Option<u64>,
    /// How often the quota is renewed, in µs.
    pub cpu_period_usec: Option<u64>,
    /// CPU time for realtime scheduling in each realtime period, in µs; v1 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_realtime_usec: Option<u64>,
    /// How often the realtime quota is renewed, in µs; v1 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_realtime_period_usec: Option<u64>,
    /// The CPUs that the sandbox may run on, as a list such as `0-2,5`.
    pub cpus: Option<String>,
    /// The NUMA nodes that the sandbox's memory may come from, as a list such as `0,1`.
    pub mems: Option<String>,
    /// The most memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// The most swap on top of the memory, in bytes.
    pub swap_bytes: Option<u64>,
    /// Up to this much memory, in bytes, the kernel spares the sandbox when memory is short.
    pub memory_low_bytes: Option<u64>,
    /// Memory that is never reclaimed, in bytes; v2 only.
    pub memory_min_bytes: Option<u64>,
    /// Beyond this much memory, in bytes, the sandbox is slowed down; v2 only.
    pub memory_high_bytes: Option<u64>,
    /// The most processes and threads.
    pub pids: Option<u64>,
    /// The most memory in huge pages, in bytes, by the page's size in bytes.
    pub hugepages_bytes: BTreeMap<u64, u64>,
}

impl From<&Joint> for JointLimits {
    fn from(joint: &Joint) -> JointLimits {
        JointLimits {
            cpu_shares: joint.shares,
            cpu_quota_usec: joint.quota_us,
            cpu_period_usec: joint.period_us,
            cpu_realtime_usec: joint.rt_runtime_us,
            cpu_realtime_period_usec: joint.rt_period_us,
            cpus: joint.cpus.as_ref().map(ToString::to_string),
            mems: joint.mems.as_ref().map(ToString::to_string),
            memory_bytes: joint.memory,
            swap_bytes: joint.swap,
            memory_low_bytes: joint.memory_low,
            memory_min_bytes: joint.memory_min,
            memory_high_bytes: joint.memory_high,
            pids: joint.pids,
            hugepages_bytes: joint.hugepages.clone(),
        }
    }
}

impl JointLimits {
    /// These limits as OCI resources.
    pub fn to_oci(&self) -> LinuxResources {
        let set = |list: &Option<String>| list.as_ref().and_then(|list| list.parse().ok());
        let joint = Joint {
            shares: self.cpu_shares,
            quota_us: self.cpu_quota_usec,
            period_us: self.cpu_period_usec,
            rt_runtime_us: self.cpu_realtime_usec,
            rt_period_us: self.cpu_realtime_period_usec,
            cpus: set(&self.cpus),
            mems: set(&self.mems),
            memory: self.memory_bytes,
            swap: self.swap_bytes,
            memory_low: self.memory_low_bytes,
            memory_min: self.memory_min_bytes,
            memory_high: self.memory_high_bytes,
            pids: self.pids,
            hugepages: self.hugepages_bytes.clone(),
            notes: Vec::new(),
        };
        joint.to_oci()
    }
}

impl StateDir {
    /// Makes the folder of a new sandbox and locks it. Others see a complete sandbox from the first moment on.
    ///
    /// # Errors
    /// `AlreadyExists` when a sandbox or task has this id.
    pub fn create_sandbox(&self, id: &TaskId, record: &SandboxRecord) -> Result<(Folder, Lock)> {
        self.create_with(id, "sandbox", |folder| {
            folder.write_sandbox(record)?;
            folder.first_lock(File::lock)
        })
    }

    /// Makes the folder of a new member of `sandbox`, for which the sandbox's shim answers.
    ///
    /// # Errors
    /// `AlreadyExists` when the id is taken.
    pub fn create_member(&self, id: &TaskId, sandbox: &TaskId) -> Result<(Folder, Lock)> {
        self.create_with(id, "task", |folder| {
            let socket = Path::new("..").join(sandbox.as_str()).join("shim.sock");
            symlink(&socket, folder.socket())
                .doing(Kind::Internal, || format!("cannot create {}", folder.socket().display()))?;
            folder.first_lock(File::lock_shared)
        })
    }

    /// The ids of all sandboxes, sorted.
    pub fn sandboxes(&self) -> Result<Vec<TaskId>> {
        Ok(self.all_ids()?.into_iter().filter(|id| self.folder(id).is_sandbox()).collect())
    }

    /// The tasks that are, or were, members of `sandbox`.
    pub fn members(&self, sandbox: &TaskId) -> Result<Vec<TaskId>> {
        let socket = Path::new("..").join(sandbox.as_str()).join("shim.sock");
        let of_it = |id: &TaskId| {
            let folder = self.folder(id);
            // Before there is a record, the member's socket tells.
            fs::read_link(folder.socket()).is_ok_and(|to| to == socket)
                || matches!(folder.record(), Ok(Some(record)) if record.sandbox.as_ref() == Some(sandbox))
        };
        Ok(self.ids()?.into_iter().filter(of_it).collect())
    }
}

impl Folder {
    /// Whether the folder is a sandbox's.
    pub fn is_sandbox(&self) -> bool {
        self.file(SANDBOX_RECORD).exists()
    }

    /// The record of the sandbox; `None` if the folder is a task's.
    ///
    /// # Errors
    /// `Damaged` when the record cannot be read.
    pub fn sandbox(&self) -> Result<Option<SandboxRecord>> {
        let read = self.read(SANDBOX_RECORD).and_then(|found: Option<SandboxRecord>| {
            let of = found.as_ref().and_then(|record| record.folder.as_deref());
            self.check_name(of).map(|()| found)
        });
        read.map_err(|error| self.hinted(error, "sandbox rm"))
    }

    /// Writes the record of the sandbox.
    pub fn write_sandbox(&self, record: &SandboxRecord) -> Result<()> {
        self.write(SANDBOX_RECORD, record)
    }

    /// Where the members' `/dev/shm` is.
    pub fn shm(&self) -> PathBuf {
        self.file(SHM)
    }
}

/// The record after a change of the sandbox.
///
/// # Errors
/// As [`Update::applied_to_sandbox`].
pub fn changed(record: &SandboxRecord, update: &Update) -> Result<SandboxRecord> {
    let sandbox = update.applied_to_sandbox(&record.sandbox)?;
    Ok(SandboxRecord { sandbox, ..record.clone() })
}
