//! The owner of a cgroup at a place that a description names: the folder of its task or sandbox, stored with the cgroup.
//!
//! Several state folders share the cgroups of a host. Processes in the cgroup cannot change what is stored: attributes in
//! `trusted` need CAP_SYS_ADMIN on the host (xattr(7)).

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{self, XattrFlags};
use rustix::io::Errno;

use crate::cgroup::Cgroup;
use crate::layout::Layout;
use crate::tree::open_dir;
use crate::v1::FREEZER;

/// The extended attribute with the folder.
const OWNER: &str = "trusted.bowline.folder";

/// The longest path that is stored and read.
const PATH_MAX: usize = 4096;

impl Layout {
    /// Stores the folder of a cgroup's owner with the cgroup; `in_place_of` the folder that is stored there. Returns the
    /// folder that is stored instead, because somebody else was quicker. A kernel that stores none leaves it at that.
    pub fn note_owner(&self, cgroup: &Cgroup, folder: &Path, in_place_of: Option<&Path>) -> Option<PathBuf> {
        let dir = self.freezer(cgroup)?;
        let noted = owner_of(dir);
        if noted.is_some() && noted.as_deref() != in_place_of {
            return noted;
        }
        let flags = if noted.is_some() { XattrFlags::REPLACE } else { XattrFlags::CREATE };
        match fs::fsetxattr(dir, OWNER, folder.as_os_str().as_bytes(), flags) {
            Err(Errno::EXIST) => owner_of(dir),
            _ => None,
        }
    }

    /// The folder that is stored with the cgroup at `path`.
    pub fn owner(&self, path: &str) -> Option<PathBuf> {
        let freezer = &self.hierarchies.get(self.index(FREEZER)?)?;
        owner_of(open_dir(freezer.top(), Path::new(path.get(1..)?)).ok()?)
    }

    /// The folders that are stored with the cgroups at `path`, above it and below it, each with the cgroup's path.
    pub fn owners_around(&self, path: &str) -> Vec<(String, PathBuf)> {
        let Some(freezer) = self.index(FREEZER).and_then(|index| self.hierarchies.get(index)) else {
            return Vec::new();
        };
        let mut paths: Vec<String> = Path::new(path).ancestors().map(|above| above.display().to_string()).collect();
        let mut below: Vec<String> = vec![path.to_owned()];
        while let Some(parent) = below.pop() {
            let children = freezer.children(&parent).into_iter().map(|name| format!("{parent}/{name}"));
            let children: Vec<String> = children.collect();
            paths.extend(children.iter().cloned());
            below.extend(children);
        }
        paths.into_iter().filter_map(|path| self.owner(&path).map(|owner| (path, owner))).collect()
    }
}

fn owner_of(dir: impl AsFd) -> Option<PathBuf> {
    let mut path = [0; PATH_MAX];
    let length = fs::fgetxattr(dir, OWNER, &mut path).ok()?;
    Some(OsStr::from_bytes(path.get(..length)?).into())
}
