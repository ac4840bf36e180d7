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
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bowline_cgroup::{self as cgroup, Driver, Layout, Unit};
use bowline_error::{Doing, Error, Kind, Result};
use bowline_spec::budget::{Class, Joint};
use bowline_spec::id::TaskId;
use bowline_spec::place::SandboxPlace;
use bowline_spec::{Overhead, Sandbox, Update};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::folder::{Folder, Lock, StateDir};
use crate::network::{self, Connected};
use crate::rootfs::layers;
use crate::spared_memory;
use crate::systemd::Systemd;
use crate::undo::{LeftAlone, OVERHEAD, is_nobodys, left_alone, overheads_of, undo, undo_cgroup};

/// The parent of the cgroups of all sandboxes.
const PREFIX: &str = "bowline";

const RECORD: &str = "sandbox.json";
/// Where the members' `/dev/shm` is mounted, in the sandbox's folder.
const SHM: &str = "shm";

/// The record of a sandbox on disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxRecord {
    /// The description of the sandbox.
    pub sandbox: Sandbox,
    /// When the sandbox was requested.
    pub created_at: Timestamp,
    /// The shim's pid, once there is a shim.
    pub shim_pid: Option<i32>,
    /// The cgroup with the joint limits, below every hierarchy.
    pub cgroup: String,
    /// The systemd unit of that cgroup, where systemd makes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Unit>,
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
    /// The interfaces, as plugins have made them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Connected>,
    /// The limits that this host does not enforce, with the reason, where that was allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unenforced: Vec<String>,
    /// Whether the shim has taken the sandbox down: nothing is left to undo.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taken_down: bool,
}

impl SandboxRecord {
    /// The record of a requested sandbox `id`.
    ///
    /// # Errors
    /// `BadSpec` for an id that makes a unit's name too long.
    pub fn new(id: &TaskId, sandbox: Sandbox, driver: Driver) -> Result<SandboxRecord> {
        let place = SandboxPlace::new(PREFIX, id.as_str())?;
        let beside = SandboxPlace::new(OVERHEAD, id.as_str())?;
        let by_systemd = driver == Driver::Systemd;
        let unit = by_systemd.then(|| Unit::of_sandbox(&place)).transpose()?;
        let (overhead, overhead_unit) = match sandbox.overhead {
            Overhead::Beside => (Some(beside.cgroupfs()), by_systemd.then(|| Unit::of_sandboxs_shim(&beside))),
            Overhead::Inside => (Some(place.cgroupfs() + "/overhead"), by_systemd.then(|| Unit::of_shim(id.as_str()))),
            Overhead::Inherit | Overhead::Root => (None, None),
        };
        let overhead_unit = overhead_unit.transpose()?;
        Ok(SandboxRecord {
            sandbox,
            created_at: Timestamp::now(),
            shim_pid: None,
            cgroup: unit.as_ref().map_or_else(|| place.cgroupfs(), Unit::path),
            unit,
            overhead: overhead_unit.as_ref().map(Unit::path).or(overhead),
            overhead_unit,
            namespaces: BTreeMap::new(),
            pause_pid: None,
            interfaces: Vec::new(),
            unenforced: Vec::new(),
            taken_down: false,
        })
    }

    /// The cgroups of the record that are where bowline makes them for `id`, the sandbox's own and
    /// its shim's; and those that are left alone.
    pub(crate) fn cgroups(&self, id: &str) -> ([Option<&String>; 2], LeftAlone) {
        let place = SandboxPlace::new(PREFIX, id).ok();
        let places = place.iter().flat_map(|place| [Some(place.cgroupfs()), place.systemd().ok()]).flatten();
        let why = "bowline makes none of this sandbox's there";
        let mut alone = Vec::new();
        let mut keep = |path: &String, fits: bool| {
            if !fits {
                alone.push(left_alone(path, why));
            }
            fits
        };
        let own = Some(&self.cgroup).filter(|path| keep(path, places.into_iter().any(|place| place == **path)));
        let overhead = self.overhead.as_ref().filter(|path| keep(path, overheads_of(id).contains(path)));
        ([own, overhead], alone)
    }

    /// The name of a member's cgroup inside the sandbox's.
    pub(crate) fn folder_of(&self, id: &TaskId) -> String {
        let unit = self.unit_of(id).ok().flatten();
        unit.map_or_else(|| id.to_string(), |unit| unit.name)
    }

    /// The systemd unit of a member's cgroup, where systemd makes it.
    ///
    /// # Errors
    /// `BadSpec` for an id that makes a unit's name too long.
    pub(crate) fn unit_of(&self, id: &TaskId) -> Result<Option<Unit>> {
        self.unit.as_ref().map(|slice| Unit::of_member(slice, id.as_str())).transpose()
    }

    /// The cgroup of a member, as its configuration names it.
    pub(crate) fn cgroup_of(&self, id: &TaskId) -> String {
        match &self.unit {
            Some(slice) => format!("{}:bowline:{id}", slice.name),
            None => format!("{}/{id}", self.cgroup),
        }
    }
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
    pub budget: Budget,
    /// What was changed in the request, a sentence each.
    pub notes: Vec<String>,
    /// The members that have not ended.
    pub members: Vec<TaskId>,
}

/// Joint limits; an absent value is no limit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // as `Joint` has them, with their units
pub struct Budget {
    pub cpu_shares: Option<u64>,
    pub cpu_quota_usec: Option<u64>,
    pub cpu_period_usec: Option<u64>,
    pub cpus: Option<String>,
    pub mems: Option<String>,
    pub memory_bytes: Option<u64>,
    pub swap_bytes: Option<u64>,
    pub memory_low_bytes: Option<u64>,
    pub memory_min_bytes: Option<u64>,
    pub memory_high_bytes: Option<u64>,
    pub pids: Option<u64>,
    pub hugepages_bytes: BTreeMap<u64, u64>,
}

impl From<&Joint> for Budget {
    fn from(joint: &Joint) -> Budget {
        Budget {
            cpu_shares: joint.shares,
            cpu_quota_usec: joint.quota_us,
            cpu_period_usec: joint.period_us,
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

impl StateDir {
    /// Makes the folder of a new sandbox and locks it. Others see a complete sandbox from the first moment on.
    ///
    /// # Errors
    /// `AlreadyExists` when a sandbox or task has this id.
    pub fn create_sandbox(&self, id: &TaskId, record: &SandboxRecord) -> Result<(Folder, Lock)> {
        self.create_with(id, "sandbox", |folder| {
            folder.write_sandbox(record)?;
            folder.lock()
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
            folder.lock_shared()
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
        self.file(RECORD).exists()
    }

    /// The record of the sandbox; `None` if the folder is a task's.
    ///
    /// # Errors
    /// `Damaged` when the record cannot be read.
    pub fn sandbox(&self) -> Result<Option<SandboxRecord>> {
        self.read(RECORD).map_err(|error| self.hinted(error, "sandbox rm"))
    }

    /// Writes the record of the sandbox.
    pub fn write_sandbox(&self, record: &SandboxRecord) -> Result<()> {
        self.write(RECORD, record)
    }

    /// Where the members' `/dev/shm` is.
    pub(crate) fn shm(&self) -> PathBuf {
        self.file(SHM)
    }
}

/// The record after a change of the sandbox.
///
/// # Errors
/// As [`Update::applied_to_sandbox`].
pub(crate) fn changed(record: &SandboxRecord, update: &Update) -> Result<SandboxRecord> {
    let sandbox = update.applied_to_sandbox(&record.sandbox)?;
    Ok(SandboxRecord { sandbox, ..record.clone() })
}

/// The cgroups of a sandbox that may be ended.
#[derive(Debug, Default)]
struct Places {
    own: Vec<String>,
    overheads: Vec<String>,
    units: Vec<Unit>,
}

impl Places {
    /// The cgroups that the record names.
    fn of_record(record: &SandboxRecord, id: &TaskId) -> (Places, LeftAlone) {
        let ([own, overhead], alone) = record.cgroups(id.as_str());
        let units = [(&record.overhead_unit, overhead), (&record.unit, own)].into_iter();
        let units = units.filter_map(|(unit, path)| unit.as_ref().filter(|unit| Some(&unit.path()) == path));
        let units = units.cloned().collect();
        let list = |path: Option<&String>| path.into_iter().cloned().collect();
        (Places { own: list(own), overheads: list(overhead), units }, alone)
    }

    /// The cgroups in all places where bowline makes them, for a damaged record; not those with
    /// which a living shim, of another state folder, has to do.
    fn of_id(layout: &Layout, folder: &Folder, id: &TaskId) -> (Places, LeftAlone) {
        let place = SandboxPlace::new(PREFIX, id.as_str()).ok();
        let slice = place.as_ref().and_then(|place| Unit::of_sandbox(place).ok());
        let own = place.iter().map(SandboxPlace::cgroupfs).chain(slice.as_ref().map(Unit::path));
        let mut places =
            Places { own: own.collect(), overheads: overheads_of(id.as_str()), units: slice.into_iter().collect() };
        let mut alone = Vec::new();
        for paths in [&mut places.own, &mut places.overheads] {
            paths.retain(|path| {
                let there = matches!(layout.open(path), Ok(Some(_)));
                let nobodys = there && is_nobodys(layout, folder, path);
                if there && !nobodys {
                    alone.push(left_alone(path, "a sandbox that lives has the same name"));
                }
                nobodys
            });
        }
        places.units.retain(|unit| places.own.contains(&unit.path()));
        (places, alone)
    }
}

/// Undoes what a sandbox whose shim died has left: its members, its networks, its cgroups. Blocks;
/// the caller removes the folders. Does nothing for a sandbox that was taken down. If the record is
/// damaged, looks for the cgroups where bowline makes them.
///
/// # Errors
/// The first error; everything is tried. `Damaged` if the record of what plugins must undo cannot be read.
pub fn undo_sandbox(state: &StateDir, id: &TaskId, systemd: &Systemd) -> Result<LeftAlone> {
    let folder = state.folder(id);
    let record = match folder.sandbox() {
        Err(error) if error.kind() == Kind::Damaged => None,
        record => Some(record?.ok_or_else(|| Error::new(Kind::NotFound, format!("there is no sandbox named {id}")))?),
    };
    if record.as_ref().is_some_and(|record| record.taken_down) {
        return Ok(Vec::new());
    }
    let mut first = None;
    let mut keep = |done: Result<()>| {
        if let Err(error) = done {
            first.get_or_insert(error);
        }
    };
    let layout = cgroup::detect()?;
    let found = record.as_ref().map(|record| Places::of_record(record, id));
    let (places, mut alone) = found.unwrap_or_else(|| Places::of_id(&layout, &folder, id));
    for path in &places.own {
        if let Ok(Some(cgroup)) = layout.open(path) {
            // The whole sandbox may be frozen, and on v1 a frozen process does not die.
            let _ = layout.freeze(&cgroup, false);
        }
    }
    for member in state.members(id)? {
        keep(undo(&state.folder(&member), systemd).map(|more| alone.extend(more)));
    }
    let sandbox = record.map(|record| record.sandbox).unwrap_or_default();
    let networks = network::del(folder.path(), sandbox.network.plugin_timeout());
    keep(networks.map_err(|error| folder.hinted(error, "sandbox rm")));
    keep(layers::unmount_blocking(&folder.shm()));
    for path in &places.overheads {
        keep(let_go(&layout, path));
    }
    for path in places.overheads.iter().chain(&places.own) {
        keep(undo_cgroup(&layout, &folder, path, None));
    }
    for unit in &places.units {
        keep(systemd.stop(unit));
    }
    for path in &places.own {
        spared_memory::settle(&layout, systemd, path);
    }
    first.map_or(Ok(alone), Err)
}

/// Gives up what plugins should undo for the sandbox, if the record of that is damaged; returns a sentence about it.
///
/// # Errors
/// `Internal` if the damaged record cannot be removed.
pub fn give_up_damaged_networks(folder: &Folder) -> Result<Option<String>> {
    let Some(damage) = network::give_up_damaged(folder.path())? else { return Ok(None) };
    Ok(Some(format!(
        "{damage}: what plugins have kept for {}, such as its addresses, is not given back",
        folder.name()
    )))
}

/// Moves helpers that were charged to the overhead cgroup to the root: it is not for us to kill
/// them, and the shim's own processes have ended with it.
fn let_go(layout: &Layout, overhead: &str) -> Result<()> {
    let Some(cgroup) = layout.open(overhead)? else { return Ok(()) };
    layout.place("/", &layout.processes(&cgroup)).map(drop)
}
