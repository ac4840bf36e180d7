//! What the state folder records of the host's units: which are tracked, and which limits were applied.
//!
//! ```text
//!   <state>/.limits/               lock          held for as long as somebody changes either
//!                                  applied.json  what `limits apply` has set, for its undoing
//!   /var/lib/bowline/units/<state>/tracked.json  units whose figures are among the metrics
//! ```
//!
//! Limits end with the boot, as the state folder does; which units are tracked does not. Older
//! versions kept `tracked.json` in the state folder: it is read there until it is written again.
//! Files are written whole, by rename. Must not: ask systemd.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use bowline_error::{Doing, Kind, Result};
use bowline_model::folder::{Folder, Lock, StateDir};
use bowline_spec::host_limits::{Manifest, UnitName};
use bowline_sys as sys;
use serde::{Deserialize, Serialize};

use crate::hostside::systemd::host::DropIn;

/// The folder, beside the tasks'. Ids never begin with a dot.
const FOLDER: &str = ".limits";
const TRACKED: &str = "tracked.json";
const APPLIED: &str = "applied.json";

/// A unit whose figures are among the metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracked {
    /// The name of the unit.
    pub unit: UnitName,
    /// Where the unit's cgroup was when the unit was tracked, or will be: the unit may have moved.
    pub cgroup: String,
}

/// The limits that were applied.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Applied {
    /// The slices and services, with the limits that they were given.
    pub manifest: Manifest,
    /// The slices that were made for these limits.
    pub made: Vec<UnitName>,
    /// Drop-ins of services that were there before ours took their place.
    #[serde(default)]
    pub kept: BTreeMap<UnitName, Vec<DropIn>>,
}

/// The tracked units, sorted by name.
///
/// # Errors
/// `Internal` when the record cannot be read.
pub fn read(state: &StateDir) -> Result<Vec<Tracked>> {
    let (_, lasting) = state.lasting();
    match Folder::at(lasting).read(TRACKED)? {
        Some(units) => Ok(units),
        None => Ok(folder(state).read(TRACKED)?.unwrap_or_default()),
    }
}

/// The records of the host's units, locked against other changes.
#[derive(Debug)]
pub struct Held {
    state: StateDir,
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
        create(folder.path())?;
        let lock = folder.lock()?;
        Ok(Held { state: state.clone(), folder, _lock: lock })
    }

    /// The units that are tracked.
    pub fn tracked(&self) -> Result<Vec<Tracked>> {
        read(&self.state)
    }

    /// Records which units are tracked from now on.
    pub fn track(&self, mut units: Vec<Tracked>) -> Result<()> {
        units.sort_by(|one, other| one.unit.cmp(&other.unit));
        let (top, lasting) = self.state.lasting();
        if units.is_empty() {
            forget(&lasting.join(TRACKED))?;
            // The folders of this state folder, as far as no other one's are in them.
            let _ =
                lasting.ancestors().take_while(|folder| *folder != top).all(|folder| fs::remove_dir(folder).is_ok());
        } else {
            // All users may read the folder above, as they need for programs.
            fs::create_dir_all(top).doing(Kind::Internal, || format!("cannot create {}", top.display()))?;
            // Once more where another state folder's last unit went meanwhile, and with it a folder above.
            create(&lasting).or_else(|_| create(&lasting))?;
            Folder::at(lasting).write(TRACKED, &units)?;
        }
        forget(&self.folder.path().join(TRACKED))
    }

    /// Records the applied limits in place of those recorded before.
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

fn create(folder: &Path) -> Result<()> {
    let made = DirBuilder::new().mode(0o700).recursive(true).create(folder);
    made.doing(Kind::Internal, || format!("cannot create {}", folder.display()))
}

fn forget(file: &Path) -> Result<()> {
    sys::remove_if_there(file).doing(Kind::Internal, || format!("cannot remove {}", file.display()))
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
        let state = StateDir::new(dir.path().join("state")).lasting_in(dir.path().join("lasting"));
        assert_eq!(read(&state), Ok(Vec::new()));
        let held = Held::take(&state).expect("free");
        held.track(vec![unit("b.service"), unit("a.service")]).expect("writable");
        assert_eq!(read(&state), Ok(vec![unit("a.service"), unit("b.service")]));
        assert_eq!(held.tracked(), read(&state));
        assert_eq!((held.applied(), applied(&state)), (Ok(Applied::default()), Ok(Applied::default())));
        assert_eq!(state.ids(), Ok(Vec::new()), "it is no task");
    }

    #[test]
    fn what_is_tracked_outlives_the_state_folder() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, lasting) = (dir.path().join("state"), dir.path().join("lasting"));
        let state = StateDir::new(&path).lasting_in(&lasting);
        Held::take(&state).expect("free").track(vec![unit("a.service")]).expect("writable");
        fs::remove_dir_all(&path).expect("ours");
        assert_eq!(read(&state), Ok(vec![unit("a.service")]));
        assert_eq!(read(&StateDir::new(dir.path().join("other")).lasting_in(&lasting)), Ok(Vec::new()));
        Held::take(&state).expect("free").track(Vec::new()).expect("writable");
        assert!(fs::read_dir(&lasting).expect("it stays").next().is_none(), "nothing is left in it");
    }

    #[test]
    fn what_an_older_version_has_tracked_is_tracked() {
        let dir = tempfile::tempdir().expect("a folder");
        let state = StateDir::new(dir.path().join("state")).lasting_in(dir.path().join("lasting"));
        let held = Held::take(&state).expect("free");
        held.folder.write(TRACKED, &vec![unit("a.service")]).expect("writable");
        assert_eq!(read(&state), Ok(vec![unit("a.service")]));
        held.track(Vec::new()).expect("writable");
        assert_eq!(read(&state), Ok(Vec::new()));
    }

    #[test]
    fn two_who_change_it_wait_for_each_other() {
        let dir = tempfile::tempdir().expect("a folder");
        let state = StateDir::new(dir.path()).lasting_in(dir.path().join("lasting"));
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
        let state = StateDir::new(dir.path()).lasting_in(dir.path().join("lasting"));
        drop(Held::take(&state));
        std::fs::write(dir.path().join(".limits/tracked.json"), "[{\"unit\": \"../x\"").expect("writable");
        let error = read(&state).expect_err("no JSON");
        assert!(error.message().contains("tracked.json is damaged"), "{error}");
    }
}
