//! What a launch, a removal or a command that was cut short has left in the state folder.
//!
//! ```text
//!   .new-…, .removed-…, attach-…: of a process that is gone ───────────────► removed
//!   <id>/, of which nobody has the lock, and nothing ever ran ─► undone ───► removed
//! ```
//!
//! Whoever launches holds the lock of the folder until it can be taken for launched. A folder whose record is missing
//! although its task was launched is damaged, and stays.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bowline_error::{Error, Kind, Result, together};
use bowline_model::folder::{Folder, StateDir};
use bowline_spec::id::TaskId;

use super::Cgroups;
use super::left::{Held, Left, What, held, with_processes};
use crate::hostside::attached;
use crate::hostside::copies::misplaced;
use crate::hostside::owners;
use crate::hostside::undo::{found_before, remove_folder, undo};
use crate::hostside::undo_sandbox::undo_sandbox;

/// The prefix of a task's folder while it is being removed.
const REMOVED: &str = ".removed-";
/// The prefix of a task's folder while it is being made.
const NEW: &str = ".new-";

/// What was cut short that has left the folder of `id`: a launch, or the creation or removal of a sandbox; `None` if
/// nothing was. Nobody else has its lock.
fn cut_short(state: &StateDir, folder: &Folder, id: &TaskId) -> Option<&'static str> {
    if misplaced(folder).is_some() || folder.check_form().is_err() || !matches!(folder.exit(), Ok(None)) {
        return None;
    }
    if !folder.is_sandbox() {
        // A container's folder is its manager's to delete.
        let is_container = matches!(folder.record(), Ok(Some(record)) if record.container.is_some());
        return (!is_container && folder.never_ran()).then_some("its launch was cut short; nothing of it ran");
    }
    let record = folder.sandbox().ok().flatten()?;
    // What its members have left is theirs: `rm` removes it.
    let is_empty = state.members(id).is_ok_and(|members| members.is_empty());
    match () {
        () if !is_empty => None,
        () if record.taken_down => Some("its removal was cut short"),
        () => record.whole.is_none().then_some("its creation was cut short; nothing ran in it"),
    }
}

/// What a launch that was cut short has left in the folder of `id`, whose lock the caller holds; `dead` is what a dead shim
/// has left beside it, if anything.
pub(super) fn rest(state: &StateDir, folder: &Folder, id: &TaskId, dead: Option<&Left>) -> Option<Left> {
    let why = cut_short(state, folder, id).filter(|_| dead.is_none_or(|dead| !dead.owned))?;
    let (cgroups, processes) = dead.map(|dead| (dead.cgroups.clone(), dead.processes)).unwrap_or_default();
    Some(Left {
        what: What::Remains,
        id: id.to_string(),
        name: folder.name_on_host(),
        why: with_processes(why.to_owned(), processes),
        cgroups,
        processes,
        folder: Some(folder.path().to_owned()),
        owned: false,
        elsewhere: false,
    })
}

impl Cgroups {
    /// Removes remains, unless somebody has them by now.
    pub(super) fn clear_remains(&self, state: &StateDir, left: &Left) -> Result<bool> {
        // A launch's has the name of its task.
        let id = left.id.parse::<TaskId>().ok().filter(|id| left.folder.as_deref() == Some(state.folder(id).path()));
        id.map_or_else(|| clear_remains(left), |id| self.clear_rest(state, left, &id))
    }

    /// Ends and removes what a launch has made, and its folder, as `rm -f` does.
    fn clear_rest(&self, state: &StateDir, left: &Left, id: &TaskId) -> Result<bool> {
        let folder = state.folder(id);
        let lock = match held(&folder)? {
            Held::ByUs(lock) => lock,
            Held::Missing => return Ok(true),
            Held::ByAShim => return Ok(false),
        };
        let permit = || self.is_free(left);
        // Another launch may have taken the name since.
        if cut_short(state, &folder, id).is_none() || !permit() {
            return Ok(false);
        }
        let found = found_before(&folder);
        let undone = match folder.is_sandbox() {
            true => undo_sandbox(state, id, &self.systemd).map(drop),
            false => undo(&folder, &self.systemd).map(drop),
        };
        let mut errors: Vec<Error> = undone.err().into_iter().collect();
        for path in left.cgroups.iter().filter(|path| found.as_ref() != Some(path)) {
            errors.extend(self.destroy_if(path, Some(&permit)).err());
        }
        together(errors)?;
        remove_folder(&folder, &lock).map(|_| true)
    }
}

/// Folders that a process began to make or to remove, or used to attach to a task, and did not live to remove.
pub(super) fn remains(state: &StateDir) -> Vec<Left> {
    let of_state = entries(state.path()).filter_map(|(path, name)| {
        let (named, why) = match name.strip_prefix(NEW) {
            Some(named) => (named, "its launch was cut short"),
            None => (name.strip_prefix(REMOVED)?, "its removal was cut short"),
        };
        let (id, pid) = named.rsplit_once('-')?;
        Some((id.to_owned(), pid.parse().ok(), why, path))
    });
    let attached = state.all_ids().unwrap_or_default().into_iter().flat_map(|id| {
        let left: Vec<_> = attached::left_in(state.folder(&id).path()).collect();
        left.into_iter().map(move |path| (id.to_string(), None, "who was attached to it was killed", path))
    });
    let dead = |pid: &Option<i32>| !pid.is_some_and(owners::is_bowline);
    // A program that links the library, and has another name, holds the folder's lock meanwhile.
    let of_state = of_state.filter(|(_, _, _, path)| !owners::is_locked(path));
    // A process that has ended by itself since the listing has removed its own folder.
    let all = of_state.chain(attached).filter(|(_, pid, _, path)| dead(pid) && path.exists());
    let left = |(id, _, why, path): (String, _, &str, _)| Left {
        what: What::Remains,
        name: id.clone(),
        id,
        why: why.to_owned(),
        cgroups: Vec::new(),
        processes: 0,
        folder: Some(path),
        owned: false,
        elsewhere: false,
    };
    all.map(left).collect()
}

/// The entries of a folder with their names, as far as they can be read.
fn entries(folder: &Path) -> impl Iterator<Item = (PathBuf, String)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.path(), entry.file_name().into_string().ok()?)))
}

fn clear_remains(left: &Left) -> Result<bool> {
    let Some(path) = &left.folder else { return Ok(true) };
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::new(Kind::Internal, format!("cannot remove {}: {error}", path.display())))
        }
        _ => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_that_was_cut_short_is_found_and_one_under_way_is_not() {
        let dir = tempfile::tempdir().expect("a folder");
        let state = StateDir::new(dir.path());
        let killed = "attach-2147483646-x";
        let names = [".removed-web-1-2147483646", ".new-web-3-2147483646", ".seccomp", ".removed-x", "web-2"];
        for name in names.map(str::to_owned).into_iter().chain(["attach-x", killed].map(|name| format!("web-2/{name}")))
        {
            fs::create_dir(dir.path().join(name)).expect("ours");
        }
        let found = remains(&state);
        let mut ids: Vec<_> = found.iter().map(|left| left.id.as_str()).collect();
        ids.sort_unstable();
        assert_eq!(ids, ["web-1", "web-2", "web-3"]);
        found.iter().for_each(|left| assert_eq!(clear_remains(left), Ok(true)));
        assert!(remains(&state).is_empty() && clear_remains(&found[0]) == Ok(true), "gone already is fine");
    }
}
