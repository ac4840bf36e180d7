//! Folders that are not where their task was started: copies and moved ones, within a state folder or with all of it.
//!
//! ```text
//!   record ─► cgroup ─► name on the host ─► with the mark of another state folder: that one's
//! ```
//!
//! Must not: change anything.

use std::path::Path;

use bowline_cgroup::{self as cgroup, Layout};
use bowline_error::{Error, Kind};
use bowline_model::folder::{Folder, Misplaced};
use bowline_model::host_name;
use bowline_spec::id::TaskId;
use bowline_spec::place::{OURS, SandboxPlace};
use bowline_spec::unit;

use crate::hostside::owners::{Shims, is_same};
use crate::hostside::records::Recorded;

/// What a folder is a copy of, or was moved from: its own name, or its state folder, is another one.
pub fn misplaced(folder: &Folder) -> Option<Misplaced> {
    folder.misplaced().or_else(|| of_another_state(folder))
}

/// Whose a cgroup is that another state folder has.
pub(crate) struct Elsewhere {
    /// Whether the task or sandbox is known to be in that state folder.
    pub is_there: bool,
    /// The error for whoever wants it here.
    pub error: Error,
}

fn of_another_state(folder: &Folder) -> Option<Misplaced> {
    if !folder.is_in_state_folder() || matches!(folder.exit(), Ok(Some(_))) {
        return None;
    }
    let Recorded { sandbox: above, cgroup: path, overhead } = Recorded::of(folder)?;
    let layout = cgroup::detect().ok()?;
    // One that is gone is nobody's.
    let cgroup = layout.open(&path).ok().flatten()?;
    let Elsewhere { is_there, error } = elsewhere(&layout, folder, above.as_ref(), &path)?;
    let is_used = || overhead.iter().any(|path| !layout.processes_at(path).is_empty());
    let is_copy = is_there || layout.living(&cgroup).is_empty() && !is_used();
    let error = if is_copy { Error::new(Kind::Damaged, error.message()).hint(folder.copy_hint()) } else { error };
    Some(Misplaced { is_copy, cgroups: [path].into_iter().chain(overhead).collect(), error })
}

/// The other state folder that has the cgroup at `path`, which a record in `folder` names; `above` is the sandbox of a
/// member.
pub(crate) fn elsewhere(layout: &Layout, folder: &Folder, above: Option<&TaskId>, path: &str) -> Option<Elsewhere> {
    let own = above.map_or_else(|| folder.name(), TaskId::to_string);
    let here = folder.path().display();
    let (whose, is_there) = match layout.owner(path).map(Folder::at) {
        Some(owner) if !is_same(owner.path(), folder.path()) && folder.has_record_of(&owner) => {
            (format!("of {}", owner.path().display()), true)
        }
        _ => {
            let name = marked_elsewhere(folder, &own, path)?;
            let is_there = name == own || Shims::living().have(&name);
            (format!("of another state folder, where it is {name} on this host"), is_there)
        }
    };
    let message = format!("{here} is a copy, by `cgroup` in its record: {path} is {whose}");
    let hint = format!("remove the task with `--state` of that folder; if it is there, {here} can be removed by hand");
    Some(Elsewhere { is_there, error: Error::new(Kind::Damaged, message).hint(hint) })
}

/// The name on the host in `path` that `own`, the id of a task or of its sandbox, has in another state folder.
fn marked_elsewhere(folder: &Folder, own: &str, path: &str) -> Option<String> {
    let mark = folder.mark();
    names(path).find(|name| match name.strip_prefix(own) {
        Some("") => !mark.is_empty() && is_in_default(folder, path),
        Some(rest) => rest != mark && rest.starts_with('.') && host_name::is_marked(rest),
        None => false,
    })
}

/// Whether the default state folder has what the folder is called, and there that has the cgroup at `path`: an earlier
/// bowline named cgroups by the id alone in every state folder.
fn is_in_default(folder: &Folder, path: &str) -> bool {
    let there = Folder::at(Path::new(host_name::DEFAULT).join(folder.name()));
    Recorded::of(&there).is_some_and(|its| Path::new(path).starts_with(its.cgroup))
}

/// Whether another state folder has the cgroup at `path`, which a record in `folder` names, by the name on the host.
pub(crate) fn is_elsewhere(folder: &Folder, own: &str, path: &str) -> bool {
    marked_elsewhere(folder, own, path).is_some()
}

/// The names on the host of the tasks and sandboxes that the cgroup at `path` is in.
pub(crate) fn names(path: &str) -> impl Iterator<Item = String> {
    let above = Path::new(path).ancestors().filter_map(Path::to_str);
    let places = above.filter_map(SandboxPlace::of_path).filter(|place| place.prefix() == OURS);
    let unit = path.rsplit('/').next().and_then(|name| name.strip_prefix("bowline-")?.strip_suffix(".scope"));
    places.map(|place| place.id().to_owned()).chain(unit.and_then(unit::unescaped))
}
