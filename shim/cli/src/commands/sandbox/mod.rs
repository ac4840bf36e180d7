//! `sandbox`: tasks under one budget that share a network.
//!
//! The arguments are in `args`. Members are launched by `run` and `start`, and every other command treats them as
//! tasks.

mod create;
pub mod inspection;
mod rm;

use bowline_client::spawn::Programs;
use bowline_executor::internal::network;
use bowline_model::folder::{Folder, StateDir};
use bowline_model::status::Shown;
use bowline_model::{Kind, Result};
use bowline_spec::Sandbox;
use bowline_spec::id::TaskId;

use self::inspection::{Inspection, examine, warn};
use crate::commands::stats;
use crate::commands::update;
use crate::input::args::sandbox::SandboxCommand;
use crate::input::each_task::settle;
use crate::ui::json;
use crate::ui::numbers;
use crate::ui::print::{complain, say, show};
use crate::ui::screen;
use crate::ui::table::{Cell, Column, render};

pub async fn run(state: &StateDir, command: SandboxCommand) -> Result<u8> {
    match command {
        SandboxCommand::Create(args) => create::run(state, *args).await,
        SandboxCommand::Ls { json, quiet } => list(state, json, quiet).await,
        SandboxCommand::Inspect { id } => json::print(&examine(state, &id).await?.beside_the_kernel()).map(|()| 0),
        SandboxCommand::Stats { id, json } => {
            let folder = bowline_client::sandbox::folder(state, &id)?;
            if let Err(held) = bowline_client::look(&folder, &id).await
                && held.kind() == Kind::Unavailable
            {
                return Err(held);
            }
            let shim = bowline_client::sandbox::of(state, &id, &Programs::default()).await?;
            stats::of_sandbox(&id, &shim, json).await
        }
        SandboxCommand::Update { id, limits } => {
            let memory = || {
                let record = bowline_client::sandbox::folder(state, &id)?.sandbox()?;
                Ok(record.and_then(|record| record.sandbox.memory.limit))
            };
            let update = update::of(*limits, memory)?;
            let shim = bowline_client::sandbox::of(state, &id, &Programs::default()).await?;
            let before = shim.sandbox_state().await?;
            let updated = shim.update_sandbox(update::json(&update)?).await;
            updated.map_err(|error| update::refused(error, update.applied_to_sandbox(&Sandbox::default()).err()))?;
            warn(&examine(state, &id).await?, &before.notes);
            Ok(0)
        }
        SandboxCommand::Check { id } => {
            let folder = bowline_client::sandbox::folder(state, &id)?;
            let timeout = folder.sandbox()?.map(|record| record.sandbox.network.plugin_timeout()).unwrap_or_default();
            for network in network::check(folder.path(), timeout)? {
                complain(&format!("network {network} cannot be asked: its list or its plugins have no CHECK"), None);
            }
            Ok(0)
        }
        SandboxCommand::Charge { id, pids } => charge(state, &id, &pids).await,
        SandboxCommand::Rm { ids, force } => rm::run(state, &ids, force).await,
    }
}

/// Charges processes and reports those that are none.
///
/// # Errors
/// `NotFound` if nothing could be charged.
async fn charge(state: &StateDir, id: &TaskId, pids: &[String]) -> Result<u8> {
    let shim = bowline_client::sandbox::of(state, id, &Programs::default()).await?;
    let (numbers, others): (Vec<_>, Vec<_>) = pids.iter().partition(|pid| pid.parse::<i32>().is_ok_and(|pid| pid > 0));
    let numbers: Vec<i32> = numbers.iter().filter_map(|pid| pid.parse().ok()).collect();
    let skipped = shim.charge_helpers(numbers).await?;
    for pid in others.into_iter().cloned().chain(skipped.iter().map(ToString::to_string)) {
        complain(&format!("{pid} is not a process; it is left out"), None);
    }
    Ok(0)
}

async fn list(state: &StateDir, json: bool, quiet: bool) -> Result<u8> {
    let (mut all, mut code) = (Vec::new(), None);
    for id in state.sandboxes()? {
        let seen = state.folder(&id).pinned();
        match examine(state, &id).await {
            Ok(found) => all.push(found),
            // The sandbox was removed meanwhile.
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(_) if !seen.as_ref().is_ok_and(Folder::is_still_there) => {}
            Err(error) if error.kind() == Kind::Damaged => {
                let tasks = state.members(&id)?;
                all.push(Inspection {
                    id,
                    status: Shown::Damaged.as_str(),
                    state: None,
                    differing_limits: Vec::new(),
                    tasks,
                });
            }
            Err(error) => settle(Err(error.within(format_args!("sandbox {id}"))), &mut code),
        }
    }
    state.hidden()?.into_iter().for_each(|(_, error)| settle(Err(error), &mut code));
    let code = code.unwrap_or(0);
    if json {
        return json::print_list(&all).map(|()| code);
    }
    if quiet {
        return all.iter().try_for_each(|found| say(found.id.as_str())).map(|()| code);
    }
    const COLUMNS: [Column<'_>; 6] = [
        Column::Left("ID"),
        Column::Left("STATUS"),
        Column::Right("MEMBERS"),
        Column::Right("CPUS"),
        Column::Right("MEMORY"),
        Column::Left("CLASS"),
    ];
    let cells = |found: &Inspection| {
        let budget = found.state.as_ref().map(|state| &state.budget);
        let cpus = budget.and_then(|b| Some(b.cpu_quota_usec? as f64 / b.cpu_period_usec? as f64));
        vec![
            Cell::from(found.id.to_string()),
            Cell::from(found.status.to_owned()),
            Cell::from(found.tasks.len().to_string()),
            Cell::from(cpus.map_or("-".to_owned(), |cpus| cpus.to_string())),
            Cell::from(numbers::size(budget.and_then(|b| b.memory_bytes))),
            Cell::from(found.state.as_ref().map_or(String::new(), |state| state.class.to_string())),
        ]
    };
    let cells: Vec<Vec<Cell>> = all.iter().map(cells).collect();
    show(&render(&COLUMNS, &cells, screen::width())).map(|()| code)
}
