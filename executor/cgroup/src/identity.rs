//! By what a cgroup is known again, whoever has written its path down.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rustix::fs;
use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroup;
use crate::layout::Layout;

/// The file that processes join a cgroup by, in one hierarchy: device and inode.
pub type File = (u64, u64);

/// Which cgroup it is. One that is made later at the same path is another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupIdentity {
    /// The kernel's boot: inodes are counted anew with each.
    pub boot: String,
    /// The cgroup in each hierarchy, by where that is mounted; none before it is
    /// made.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cgroups: BTreeMap<PathBuf, File>,
}

impl CgroupIdentity {
    /// That of a cgroup which is still to be made.
    pub fn to_come() -> Option<CgroupIdentity> {
        Some(CgroupIdentity { boot: boot()?, cgroups: BTreeMap::new() })
    }

    /// Whether it is of this boot.
    pub fn is_of_this_boot(&self) -> bool {
        boot().is_some_and(|boot| boot == self.boot)
    }

    /// Whether a cgroup that is open is this one, wherever it is.
    pub fn is_of(&self, layout: &Layout, cgroup: &Cgroup) -> bool {
        layout.files_of(cgroup).iter().all(|(mount, file)| self.cgroups.get(mount) == Some(file))
    }
}

/// Which boot this is: random(4).
pub fn boot() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim_end().to_owned())
}

impl Layout {
    /// The files of a cgroup that is open, as they are kept in its [`CgroupIdentity`].
    pub fn files_of(&self, cgroup: &Cgroup) -> BTreeMap<PathBuf, File> {
        let file = |member: &crate::cgroup::Member| {
            let stat = fs::fstat(&member.made.tasks).ok()?;
            Some((self.hierarchies[member.hierarchy].mount().to_owned(), (stat.st_dev, stat.st_ino)))
        };
        cgroup.members.iter().filter_map(file).collect()
    }
}
