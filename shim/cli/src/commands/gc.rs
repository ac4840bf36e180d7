//! `gc`: lists and removes orphans.

use bowline_client::is_overdue;
use bowline_executor::internal::housekeeping::{Cgroups, Left, Outcome, Pods, What};
use bowline_model::Result;
use bowline_model::folder::{Folder, StateDir};
use bowline_spec::id::TaskId;
use bowline_spec::place::PODS;
use serde::Serialize;

use crate::commands::rm;
use crate::input::args::GcArgs;
use crate::input::description;
use crate::input::each_task::settle;
use crate::ui::json;
use crate::ui::print::{complain, say};
use bowline_client::spawn;

/// One orphan, as `--json` prints it.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    left: Left,
    removed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Runs `bowline gc`. An orphan that cannot be removed does not stop the rest.
pub async fn run(state: &StateDir, args: &GcArgs) -> Result<u8> {
    let alive = args.alive.as_deref().map(description::read_pods).transpose()?;
    let root = args.pods_root.as_deref().or(alive.is_some().then_some(PODS));
    let pods = root.map(|root| Pods { root, alive: alive.as_ref() });
    let cgroups = Cgroups::of_host(spawn::systemd()?)?;
    let mut left = cgroups.left_behind(state, pods)?;
    let is_meant = |id: &str| args.ids.is_empty() || args.ids.iter().any(|meant| meant == id);
    left.retain(|one| is_meant(&one.id));
    let (mut rows, mut code) = (Vec::new(), None);
    for (_, error) in state.hidden()?.into_iter().filter(|(id, _)| is_meant(id)) {
        settle(Err(error), &mut code);
    }
    for one in left {
        if one.elsewhere && args.ids.is_empty() {
            continue;
        }
        if one.owned {
            let path = one.cgroups.first().filter(|_| one.elsewhere);
            let hint = path.map(|path| {
                format!(
                    "`bowline gc` with `--state` of that folder removes it; if that folder is gone, `bowline cgroup destroy {path}`"
                )
            });
            complain(&format!("{} {} is left alone: {}", one.what.as_str(), one.id, one.why), hint.as_deref());
            continue;
        }
        let line = format!("{} {}: {}", one.what.as_str(), one.id, one.why);
        let outcome = if args.dry_run { Ok(Outcome::Removed) } else { cgroups.clear(state, &one) };
        let row = match outcome {
            // The orphan has an owner by now.
            Ok(Outcome::Owned) => continue,
            Ok(Outcome::Removed) => Row { left: one, removed: !args.dry_run, error: None },
            Err(error) => {
                let row = Row { left: one, removed: false, error: Some(error.to_string()) };
                settle(Err(error), &mut code);
                rows.push(row);
                continue;
            }
        };
        if !args.json {
            say(&line)?;
        }
        rows.push(row);
    }
    for id in state.ids()?.into_iter().filter(|id| is_meant(id.as_str()) && is_overdue(&state.folder(id))) {
        let is_told = rows.iter().any(|row| row.left.id == id.as_str());
        let left = overdue(&state.folder(&id), &id);
        let line = format!("{} {}: {}", left.what.as_str(), left.id, left.why);
        let outcome = if args.dry_run { Ok(true) } else { rm::remove_overdue(state, &id).await };
        match outcome {
            Ok(true) if !is_told => {}
            Ok(_) => continue,
            Err(error) => {
                rows.push(Row { left, removed: false, error: Some(error.to_string()) });
                settle(Err(error), &mut code);
                continue;
            }
        }
        if !args.json {
            say(&line)?;
        }
        rows.push(Row { left, removed: !args.dry_run, error: None });
    }
    if args.json {
        json::print_list(&rows)?;
    }
    Ok(code.unwrap_or(0))
}

/// The row of a task that its shim should have removed.
fn overdue(folder: &Folder, id: &TaskId) -> Left {
    Left {
        what: What::Task,
        id: id.to_string(),
        name: folder.name_on_host(),
        why: "it has ended, and its shim died before it had removed the task".to_owned(),
        cgroups: Vec::new(),
        processes: 0,
        folder: Some(folder.path().to_owned()),
        owned: false,
        elsewhere: false,
    }
}
