//! What the state folder records of the host's units: which are tracked, and which limits were applied.
//!
//! ```text
//!   <state>/.limits/  lock          held for as long as somebody changes either
//!                     tracked.json  units whose figures are among the metrics
//!                     applied.json  what `limits apply` has set, for its undoing
//! ```
//!
//! Files are written whole, by rename. Must not: ask systemd.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;

use bowline_error::{Doing, Kind, Result};
use bowline_spec::host_limits::{Manifest, UnitName};
use serde::{Deserialize, Serialize};

use crate::folder::{Folder, Lock, StateDir};

/// The folder, beside the tasks'. Ids never begin with a dot.
const FOLDER: &str = ".limits";
const TRACKED: &str = "tracked.json";
const APPLIED: &str = "applied.json";

/// A unit whose figures are among the metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracked {
    /// The name of the unit.
    pub unit: UnitName,
    /// The unit's cgroup below every hierarchy that systemd manages, while the unit is active.
    pub cgroup: String,
}

/// The limits that were applied.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Applied {
    /// The slices and services, with the limits that they were given.
    pub manifest: Manifest,
    /// The slices that were made for these limits.
    pub made: Vec<UnitName>,
}

/// The tracked units, sorted by name.
///
/// # Errors
/// `Internal` when the record cannot be read.
pub fn read(state: &StateDir) -> Result<Vec<Tracked>> {
    Ok(folder(state).read(TRACKED)?.unwrap_or_default())
}

/// The records of the host's units, locked against other changes.
#[derive(Debug)]
pub struct Held {
    folder: Folder,
    _lock: Lock,
}

impl Held {
    /// Takes the lock; waits for its holder. Blocks.
    ///
    /// # Errors
    /// `Internal` where the state folder cannot be written to.
    pub fn take(state: &StateDir) -> Result<Held> {
        let folder = folder(state);
        let what = || format!("cannot create {}", folder.path().display());
        DirBuilder::new().mode(0o700).recursive(true).create(folder.path()).doing(Kind::Internal, what)?;
        let lock = folder.lock()?;
        Ok(Held { folder, _lock: lock })
    }

    /// The units that are tracked.
    pub fn tracked(&self) -> Result<Vec<Tracked>> {
        Ok(self.folder.read(TRACKED)?.unwrap_or_default())
    }

    /// Records which units are tracked from now on.
    pub fn track(&self, mut units: Vec<Tracked>) -> Result<()> {
        units.sort_by(|one, other| one.unit.cmp(&other.unit));
        self.folder.write(TRACKED, &units)
    }

    /// Records the applied limits.
    pub fn apply(&self, applied: &Applied) -> Result<()> {
        self.folder.write(APPLIED, applied)
    }

    /// The limits that were applied.
    pub fn applied(&self) -> Result<Applied> {
        Ok(self.folder.read(APPLIED)?.unwrap_or_default())
    }
}

/// The limits that are applied now.
///
/// # Errors
/// As [`read`].
pub fn applied(state: &StateDir) -> Result<Applied> {
    Ok(folder(state).read(APPLIED)?.unwrap_or_default())
}

fn folder(state: &StateDir) -> Folder {
    Folder::at(state.path().join(FOLDER))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(name: &str) -> Tracked {
        Tracked { unit: name.parse().expect("a unit"), cgroup: format!("/system.slice/{name}") }
    }

    #[test]
    fn what_is_tracked_is_read_by_anybody_and_sorted() {
        let dir = tempfile::tempdir().expect("a folder");
        let state = StateDir::new(dir.path().join("state"));
        assert_eq!(read(&state), Ok(Vec::new()));
        let held = Held::take(&state).expect("free");
        held.track(vec![unit("b.service"), unit("a.service")]).expect("writable");
        assert_eq!(read(&state), Ok(vec![unit("a.service"), unit("b.service")]));
        assert_eq!(held.tracked(), read(&state));
        assert_eq!((held.applied(), applied(&state)), (Ok(Applied::default()), Ok(Applied::default())));
        assert_eq!(state.ids(), Ok(Vec::new()), "it is no task");
    }

    #[test]
    fn two_who_change_it_wait_for_each_other() {
        let dir = tempfile::tempdir().expect("a folder");
        let state = StateDir::new(dir.path());
        let add = |name: String| {
            let held = Held::take(&state).expect("sooner or later");
            let mut units = held.tracked().expect("whole");
            units.push(unit(&name));
            held.track(units).expect("writable");
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || (0..8).for_each(|n| add(format!("a{thread}-{n}.service"))));
            }
        });
        assert_eq!(read(&state).expect("whole").len(), 32);
    }

    #[test]
    fn what_is_damaged_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let state = StateDir::new(dir.path());
        drop(Held::take(&state));
        std::fs::write(dir.path().join(".limits/tracked.json"), "[{\"unit\": \"../x\"").expect("writable");
        let error = read(&state).expect_err("no JSON");
        assert!(error.message().contains("tracked.json is damaged"), "{error}");
    }
}
