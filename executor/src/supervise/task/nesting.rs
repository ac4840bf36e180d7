//! Whose cgroup is where somebody wants one: a task or sandbox that ends takes with it whatever is in its cgroup or below.
//!
//! ```text
//!   this state folder ─► the records in it
//!   all others        ─► the folder that is stored with a cgroup ─► lives ─► its record names that cgroup
//! ```

use std::fs;
use std::path::PathBuf;

use bowline_cgroup::{Cgroup, Layout};
use bowline_error::{Error, Kind, Result};
use bowline_model::folder::{Folder, StateDir};
use bowline_spec::id::TaskId;

use crate::hostside::owners::{is_locked, is_same};

/// How often a cgroup is claimed at most, where others claim it at the same time.
const CLAIMS: usize = 8;

/// Who wants a cgroup where the description says.
pub(crate) struct Claim<'c> {
    pub(crate) layout: &'c Layout,
    /// The folder of the task or sandbox.
    pub(crate) folder: &'c Folder,
    /// The field that names the place.
    pub(crate) field: &'c str,
    /// Whether tasks of other state folders count: a sandbox would end them. A task is refused a cgroup that is in use.
    pub(crate) minds_tasks: bool,
}

impl<'c> Claim<'c> {
    /// The claim of a task whose description names its cgroup.
    pub(crate) fn of_task(layout: &'c Layout, folder: &'c Folder) -> Claim<'c> {
        Claim { layout, folder, field: "cgroup", minds_tasks: false }
    }

    /// Checks that nothing that lives in another state folder has its cgroup at `path`, above or below it.
    ///
    /// # Errors
    /// `AlreadyExists` naming the other one and its state folder.
    pub(crate) fn check(&self, path: &str) -> Result<()> {
        let own = real_path(self.folder);
        let around = self.layout.owners_around(path).into_iter().filter(|(_, owner)| !is_same(owner, &own));
        for (taken, owner) in around {
            let Some(relation) = relation(path, &taken) else { continue };
            let folder = Folder::at(&owner);
            // One that has died leaves its cgroup, which keeps what is stored with it.
            if !is_locked(&owner) && !folder.has_shim() {
                continue;
            }
            let is_its = |(what, its): &(&str, String)| *its == taken && (self.minds_tasks || *what == "sandbox");
            let Some((what, _)) = cgroups(&folder).find(is_its) else { continue };
            let (name, state) = (folder.name(), owner.parent().unwrap_or(&owner).display());
            let message = format!(
                "cgroup {path} {relation} {what} {name} of state folder {state}: either would end with the other"
            );
            return Err(Error::new(Kind::AlreadyExists, message).in_field(self.field).hint("choose another path"));
        }
        Ok(())
    }

    /// Stores with `cgroup` whose it is, for those of other state folders.
    ///
    /// # Errors
    /// As [`Claim::check`], where somebody else has made the cgroup, or used it, at the same time.
    pub(crate) fn store(&self, cgroup: &Cgroup, path: &str) -> Result<()> {
        let own = real_path(self.folder);
        let mut stored: Option<PathBuf> = None;
        for _ in 0..CLAIMS {
            match self.layout.note_owner(cgroup, &own, stored.as_deref()) {
                Some(other) if !is_same(&other, &own) => stored = Some(other),
                _ => break,
            }
            self.check(path)?;
        }
        Ok(())
    }

    /// Like [`Claim::store`]; removes the cgroup again if that fails, unless it was there before.
    pub(crate) fn store_or_remove(&self, cgroup: &mut Cgroup, path: &str) -> Result<()> {
        self.store(cgroup, path).inspect_err(|_| {
            // Where it is in use, it stays.
            let _ = self.layout.remove(cgroup);
        })
    }
}

/// The path of a folder for processes with another working directory.
fn real_path(folder: &Folder) -> PathBuf {
    fs::canonicalize(folder.path()).unwrap_or_else(|_| folder.path().to_owned())
}

/// Checks that none of `others` in `state`, but the one of this `name`, has its cgroup at `path`, which `field` asks for, nor
/// above or below it.
///
/// # Errors
/// `AlreadyExists` naming the other one.
pub(crate) fn check(state: &StateDir, others: &[TaskId], name: &str, field: &str, path: &str) -> Result<()> {
    for other in others.iter().filter(|other| other.as_str() != name) {
        for (what, taken) in cgroups(&state.folder(other)) {
            let Some(relation) = relation(path, &taken) else { continue };
            let message = format!("cgroup {path} {relation} {what} {other}: either would end with the other");
            return Err(Error::new(Kind::AlreadyExists, message).in_field(field).hint("choose another path"));
        }
    }
    Ok(())
}

/// The cgroups of what is in a folder, and has not ended.
fn cgroups(folder: &Folder) -> impl Iterator<Item = (&'static str, String)> {
    let sandbox = folder.sandbox().ok().flatten().map(|record| ("sandbox", record.cgroup));
    let task = folder.record().ok().flatten().filter(|_| matches!(folder.exit(), Ok(None)));
    sandbox.into_iter().chain(task.map(|record| ("task", record.cgroup)))
}

fn relation(path: &str, taken: &str) -> Option<&'static str> {
    let is_below = |path: &str, above: &str| path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'));
    match path {
        _ if path == taken => Some("is that of"),
        _ if is_below(path, taken) => Some("is below that of"),
        _ if is_below(taken, path) => Some("is above that of"),
        _ => None,
    }
}
