//! Identifies a cgroup by boot id and inode, so that a recorded path cannot name another one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::fs;
use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroup;
use crate::layout::Layout;

/// Device and inode of the file through which processes join a cgroup, in one hierarchy.
pub type File = (u64, u64);

/// The identity of a cgroup. A cgroup that is made later at the same path has another identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupIdentity {
    /// The id of the kernel's boot: inode numbers begin again with each boot.
    pub boot: String,
    /// The [`namespace`] in which its paths are; `None` in a record of an older bowline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<u64>,
    /// The cgroup in each hierarchy, by where the hierarchy is mounted; empty before the cgroup is made.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cgroups: BTreeMap<PathBuf, File>,
}

impl CgroupIdentity {
    /// The identity of a cgroup that is not made yet.
    pub fn to_come() -> Option<CgroupIdentity> {
        Some(CgroupIdentity { boot: boot()?, namespace: namespace(), cgroups: BTreeMap::new() })
    }

    /// Whether the identity is of this boot.
    pub fn is_of_this_boot(&self) -> bool {
        boot().is_some_and(|boot| boot == self.boot)
    }

    /// Whether an open cgroup has this identity, wherever it is.
    pub fn is_of(&self, layout: &Layout, cgroup: &Cgroup) -> bool {
        layout.files_of(cgroup).iter().all(|(mount, file)| self.cgroups.get(mount) == Some(file))
    }
}

/// The inode of this process's cgroup namespace: from another one, paths of cgroups lead elsewhere or nowhere.
pub fn namespace() -> Option<u64> {
    // No process changes its own.
    static NAMESPACE: OnceLock<Option<u64>> = OnceLock::new();
    *NAMESPACE.get_or_init(|| fs::stat("/proc/self/ns/cgroup").ok().map(|stat| stat.st_ino))
}

/// Whether a recorded [`namespace`] is not that of this process.
pub fn is_another_namespace(recorded: Option<u64>) -> bool {
    recorded.zip(namespace()).is_some_and(|(recorded, own)| recorded != own)
}

/// The id of this boot: random(4).
pub fn boot() -> Option<String> {
    // It stays what it is, and later there may be no descriptor to read it by.
    static BOOT: OnceLock<String> = OnceLock::new();
    if let Some(boot) = BOOT.get() {
        return Some(boot.clone());
    }
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(BOOT.get_or_init(|| text.trim_end().to_owned()).clone())
}

impl Layout {
    /// The files of an open cgroup, as its [`CgroupIdentity`] keeps them.
    pub fn files_of(&self, cgroup: &Cgroup) -> BTreeMap<PathBuf, File> {
        let file = |member: &crate::cgroup::Member| {
            let stat = fs::fstat(&member.made.tasks).ok()?;
            Some((self.hierarchies[member.hierarchy].mount().to_owned(), (stat.st_dev, stat.st_ino)))
        };
        cgroup.members.iter().filter_map(file).collect()
    }
}
