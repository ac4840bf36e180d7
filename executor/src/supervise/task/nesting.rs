//! Whose cgroup is where somebody wants one: a task or sandbox that ends takes with it whatever is in its cgroup or below.

use bowline_error::{Error, Kind, Result};
use bowline_model::folder::{Folder, StateDir};
use bowline_spec::id::TaskId;

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
