//! What makes the cgroups of tasks: bowline or systemd.

use std::fmt;
use std::str::FromStr;

use bowline_error::{Error, Kind, Result};

use super::name::Unit;

/// What makes the cgroups of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Driver {
    /// systemd, if the cgroup's path is `slice:prefix:name`; otherwise bowline.
    #[default]
    Auto,
    /// Bowline, as folders of the cgroup file systems.
    Cgroupfs,
    /// systemd, which makes a scope for each task.
    Systemd,
    /// Bowline, whatever form the path has: `slice:prefix:name` is then the name of a folder.
    Literal,
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
            Driver::Literal => "literal",
        })
    }
}

impl Driver {
    /// The unit of the task `id` of a sandbox; `None` when its cgroup belongs to no unit. `asked`
    /// is the requested path, if there is one.
    ///
    /// # Errors
    /// `BadSpec` when driver and path do not match.
    pub fn unit_of(self, asked: Option<&str>, sandbox: &str, id: &str) -> Result<Option<Unit>> {
        let unit = match self {
            Driver::Literal => None,
            Driver::Auto | Driver::Cgroupfs | Driver::Systemd => asked.map_or(Ok(None), Unit::parse)?,
        };
        match (self, unit, asked) {
            (Driver::Auto, unit, _) => Ok(unit),
            (Driver::Systemd, Some(unit), _) => Ok(Some(unit)),
            (Driver::Literal, _, _) | (Driver::Cgroupfs, None, _) => Ok(None),
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
        assert_eq!([none, path, unit].map(|p| name(Driver::Literal, p)), [Ok(None), Ok(None), Ok(None)]);
    }
}
