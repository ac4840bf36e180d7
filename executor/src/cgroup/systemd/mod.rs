//! Cgroups that systemd makes: a scope for a task, in a slice.
//!
//! ```text
//!   name ─► start, with a process in it ─► its cgroup adopted ─► init cloned into it
//!        ─► change: files, then properties ─► stop, once all have ended
//! ```
//!
//! systemd owns the cgroup's folder, we what is in it and below (`Delegate=`).
//! A unit has a property for each limit that systemd knows, so that it puts
//! back the same at `daemon-reload`; every limit is written to its file as well.
//! Where v1's hierarchies are, those that systemd does not manage have the same
//! path, made by us.
//!
//! Says what systemd is to be told; `crate::systemd` has it told.

mod name;
mod properties;

use std::fmt;
use std::str::FromStr;

use oci_spec::runtime::LinuxResources;

pub use name::Unit;
pub use properties::{Property, Value, kept};

use super::hierarchy::Hierarchy;
use super::limit::Limit;
use super::{Cgroup, Layout, Member, Version, checked_path};
use crate::error::{Error, Kind, Result};

/// Who makes the cgroups of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Driver {
    /// systemd where the cgroup's path is `slice:prefix:name`, else we.
    #[default]
    Auto,
    /// We, as folders of the cgroup file systems.
    Cgroupfs,
    /// systemd, as scopes.
    Systemd,
}

impl FromStr for Driver {
    type Err = Error;

    fn from_str(text: &str) -> Result<Driver> {
        match text {
            "auto" => Ok(Driver::Auto),
            "cgroupfs" => Ok(Driver::Cgroupfs),
            "systemd" => Ok(Driver::Systemd),
            other => {
                Err(Error::new(Kind::Usage, format!("cgroup driver {other:?} is unknown: auto, cgroupfs or systemd")))
            }
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Driver::Auto => "auto",
            Driver::Cgroupfs => "cgroupfs",
            Driver::Systemd => "systemd",
        })
    }
}

impl Driver {
    /// The unit of the task `id` of a sandbox; `None` when its cgroup is no
    /// unit's. `asked` is the path that it was given, if it was given one.
    ///
    /// # Errors
    /// `BadSpec` when driver and path do not go together.
    pub fn unit_of(self, asked: Option<&str>, sandbox: &str, id: &str) -> Result<Option<Unit>> {
        let unit = asked.map_or(Ok(None), Unit::parse)?;
        match (self, unit, asked) {
            (Driver::Auto, unit, _) => Ok(unit),
            (Driver::Systemd, Some(unit), _) => Ok(Some(unit)),
            (Driver::Cgroupfs, None, _) => Ok(None),
            (Driver::Systemd, None, None) => Unit::of_task(sandbox, id).map(Some),
            (Driver::Systemd, None, Some(path)) => {
                let message = format!(
                    "cgroup path {path:?} is not of the form slice:prefix:name, and the cgroup driver is systemd"
                );
                Err(Error::new(Kind::BadSpec, message).hint("name a unit, or leave it away"))
            }
            (Driver::Cgroupfs, Some(unit), _) => {
                let message = format!("cgroup path of {} is a unit's, and the cgroup driver is cgroupfs", unit.name);
                Err(Error::new(Kind::BadSpec, message).hint("write it as /parent/name, or choose the driver systemd"))
            }
        }
    }
}

impl Layout {
    /// What a unit with these limits is started with.
    pub fn properties(&self, resources: Option<&LinuxResources>) -> Result<Vec<Property>> {
        let limits = resources.map_or(Ok(Vec::new()), |resources| self.limits(resources))?;
        Ok(of_limits(&kept(limits), self.version()))
    }

    /// Takes over the cgroup of a unit that was started, and makes it where
    /// systemd does not.
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

fn adopted(hierarchy: &Hierarchy, path: &str) -> Result<super::hierarchy::Made> {
    if hierarchy.hands_down {
        // Those that systemd does not know: huge pages.
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

/// The properties that say what `limits` do.
pub fn of_limits(limits: &[Limit], version: Version) -> Vec<Property> {
    let known = std::cell::OnceCell::new();
    properties::properties(limits, version, |kind, major| {
        let known: &String = known.get_or_init(|| std::fs::read_to_string("/proc/devices").unwrap_or_default());
        driver_of(known, kind, major)
    })
}

/// From `/proc/devices`, proc(5): two lists, each with its heading.
fn driver_of(known: &str, kind: char, major: u64) -> Option<String> {
    let heading = if kind == 'b' { "Block devices:" } else { "Character devices:" };
    let list = known.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.is_empty());
    let mut entries = list.filter_map(|line| line.trim().split_once(' '));
    entries.find(|(number, _)| number.parse() == Ok(major)).map(|(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_prints_as_it_is_written() {
        for text in ["auto", "cgroupfs", "systemd"] {
            assert_eq!(text.parse::<Driver>().expect("a driver").to_string(), text);
        }
        assert_eq!("Systemd".parse::<Driver>().expect_err("another case").kind(), Kind::Usage);
    }

    #[test]
    fn who_makes_a_cgroup_is_said_by_driver_and_path() {
        let name = |driver: Driver, asked| {
            driver.unit_of(asked, "web", "web").map(|unit| unit.map(|unit| unit.name)).map_err(|e| e.kind())
        };
        let (none, path, unit) = (None, Some("/a/b"), Some(":a:b"));
        let (task, scope) = (Some("bowline-web.scope".to_owned()), Some("a-b.scope".to_owned()));
        assert_eq!([none, path, unit].map(|p| name(Driver::Auto, p)), [Ok(None), Ok(None), Ok(scope.clone())]);
        assert_eq!([none, path, unit].map(|p| name(Driver::Cgroupfs, p)), [Ok(None), Ok(None), Err(Kind::BadSpec)]);
        assert_eq!([none, path, unit].map(|p| name(Driver::Systemd, p)), [Ok(task), Err(Kind::BadSpec), Ok(scope)]);
    }

    #[test]
    fn drivers_are_found_by_their_major_number() {
        let known = "Character devices:\n  1 mem\n136 pts\n\nBlock devices:\n  8 sd\n 65 sd\n";
        assert_eq!(driver_of(known, 'c', 136).as_deref(), Some("pts"));
        assert_eq!(driver_of(known, 'b', 8).as_deref(), Some("sd"));
        assert_eq!((driver_of(known, 'b', 1), driver_of(known, 'c', 8)), (None, None));
    }
}
