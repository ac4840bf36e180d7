//! Taking over the cgroup of a unit that systemd has started.

use bowline_error::{Error, Kind, Result};

use super::name::Unit;
use crate::cgroup::{Cgroup, Member};
use crate::hierarchy::{Hierarchy, Made};
use crate::layout::Layout;
use crate::path::checked_path;

impl Layout {
    /// Takes over the cgroup of a started unit, and makes it in the hierarchies where systemd does not.
    pub fn adopt(&self, unit: &Unit) -> Result<Cgroup> {
        let path = unit.path();
        let path = checked_path(&path)?;
        let mut cgroup = Cgroup::new(path);
        cgroup.unit = Some(unit.clone());
        for (index, hierarchy) in self.hierarchies().iter().enumerate() {
            match adopted(hierarchy, path) {
                Ok(made) => cgroup.members.push(Member::new(index, made)),
                Err(error) => {
                    let _ = self.remove(&mut cgroup);
                    return Err(error);
                }
            }
        }
        Ok(cgroup)
    }
}

fn adopted(hierarchy: &Hierarchy, path: &str) -> Result<Made> {
    if hierarchy.hands_down {
        // Hand down hugetlb too, which systemd does not know.
        if let Err(errno) = hierarchy.hand_down(path) {
            tracing::debug!(%errno, path, "controllers are not handed down to a unit");
        }
    }
    match hierarchy.open(path)? {
        Some(made) => Ok(made),
        None if hierarchy.hands_down => {
            let message = format!("systemd has made no cgroup {path} of {}", hierarchy.mount().display());
            Err(Error::new(Kind::Internal, message))
        }
        None => hierarchy.create(path),
    }
}
