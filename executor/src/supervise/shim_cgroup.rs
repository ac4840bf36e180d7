//! Where the shim itself is charged: it leaves its manager's cgroups for the
//! root before a launch, enters its overhead cgroup after it, and leaves again
//! before that is removed.

use std::cell::RefCell;
use std::str::FromStr;

use crate::cgroup::{self, Cgroup, Layout};
use crate::error::{Error, Kind, Result};
use crate::host::CGROUP_PREFIX;

use super::Config;

/// Where the shim itself is charged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ShimCgroup {
    /// Where its manager is.
    Inherit,
    /// In the root cgroup of every hierarchy: to nobody.
    Root,
    /// In a cgroup beside its tasks, without limits.
    #[default]
    Overhead,
    /// In a cgroup that exists already.
    Path(String),
}

impl FromStr for ShimCgroup {
    type Err = Error;

    fn from_str(text: &str) -> Result<ShimCgroup> {
        match text {
            "inherit" => Ok(ShimCgroup::Inherit),
            "root" => Ok(ShimCgroup::Root),
            "overhead" => Ok(ShimCgroup::Overhead),
            path if path.starts_with('/') => cgroup::checked_path(path).map(|p| ShimCgroup::Path(p.to_owned())),
            other => Err(Error::new(
                Kind::Usage,
                format!("shim cgroup {other:?} is unknown: inherit, root, overhead, or a path that begins with /"),
            )),
        }
    }
}

impl std::fmt::Display for ShimCgroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ShimCgroup::Inherit => f.write_str("inherit"),
            ShimCgroup::Root => f.write_str("root"),
            ShimCgroup::Overhead => f.write_str("overhead"),
            ShimCgroup::Path(path) => f.write_str(path),
        }
    }
}

/// The shim's own place over its life.
pub struct Overhead {
    mode: ShimCgroup,
    path: String,
    entered: RefCell<Option<Cgroup>>,
}

impl Overhead {
    /// Leaves the manager's cgroups, as the mode says.
    pub fn begin(config: &Config, layout: &Layout) -> Result<Overhead> {
        match &config.shim_cgroup {
            ShimCgroup::Inherit => {}
            ShimCgroup::Root | ShimCgroup::Overhead => layout.enter("/")?,
            ShimCgroup::Path(path) => {
                layout.enter(path).map_err(|e| e.hint("the cgroup must exist in every hierarchy"))?
            }
        }
        Ok(Overhead { mode: config.shim_cgroup.clone(), path: path(config), entered: RefCell::default() })
    }

    /// Its path, in the mode that has one.
    pub fn path(&self) -> Option<&str> {
        (self.mode == ShimCgroup::Overhead).then_some(&self.path)
    }

    /// Enters the overhead cgroup, once a task runs.
    pub fn enter(&self, layout: &Layout) -> Result<()> {
        if self.mode != ShimCgroup::Overhead || self.entered.borrow().is_some() {
            return Ok(());
        }
        let cgroup = layout.create(&self.path)?;
        let joined = cgroup.entry().join();
        *self.entered.borrow_mut() = Some(cgroup);
        joined.map_err(|error| Error::new(Kind::Internal, format!("cannot join cgroup {}: {error}", self.path)))
    }

    /// Leaves it for the root, and removes it.
    pub fn leave(&self, layout: &Layout) {
        let Some(cgroup) = self.entered.borrow_mut().take() else {
            return;
        };
        let left = layout.enter("/").and_then(|()| layout.remove(cgroup));
        if let Err(error) = left {
            tracing::error!(%error, "the overhead cgroup stays behind");
        }
    }
}

/// Beside the tasks of the sandbox, which its folder is named after.
fn path(config: &Config) -> String {
    let sandbox = config.folder.path().file_name().unwrap_or_default().to_string_lossy();
    format!("{CGROUP_PREFIX}/{sandbox}/overhead")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_prints_as_it_is_written() {
        for text in ["inherit", "root", "overhead", "/system/shims"] {
            let mode: ShimCgroup = text.parse().expect("a mode");
            assert_eq!(mode.to_string(), text);
        }
        for bad in ["", "Root", "a/b", "/a/../b", "/"] {
            assert!(bad.parse::<ShimCgroup>().is_err(), "{bad:?}");
        }
    }
}
