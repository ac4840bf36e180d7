//! `bowline wait`: waits for tasks to end and prints how they ended.

use bowline_client::end_not_known;
use bowline_client::spawn::Programs;
use bowline_model::folder::{Folder, StateDir};
use bowline_model::report::ExitReport;
use bowline_model::{Error, Kind, Result};
use bowline_spec::id::TaskId;
use bowline_spec::values::Duration;
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use crate::input::chosen::Chosen;
use crate::input::each_task::each_found;
use crate::ui::json;
use crate::ui::print::say;

/// The report of one of several tasks.
#[derive(Debug, Serialize)]
struct Named {
    id: TaskId,
    #[serde(flatten)]
    report: ExitReport,
}

fn not_yet(id: &TaskId, most: Option<Duration>) -> Error {
    let most = most.unwrap_or_default();
    Error::new(Kind::Timeout, format!("task {id} has not ended within {most}"))
}

/// What is printed for a task of several that has no exit code, so that each line is that of the task in its place.
const NO_CODE: &str = "-";

/// Prints exit codes in the order given, each as soon as the ones before it are known. With `json` prints one report,
/// or a list for several tasks. A task that has not ended after `most` is an error.
pub async fn run(state: &StateDir, tasks: &Chosen, json: bool, most: Option<Duration>) -> Result<u8> {
    let until = most.map(|most| Instant::now() + most.as_std());
    let act = |id: TaskId, folder: Folder| async move {
        let programs = Programs::default();
        let report = bowline_client::report(&folder, &id, &programs);
        match until {
            None => report.await,
            Some(until) => timeout_at(until, report).await.unwrap_or_else(|_| match folder.exit() {
                Ok(Some(report)) => Ok(report),
                _ => Err(not_yet(&id, most)),
            }),
        }
    };
    let mut reports = Vec::new();
    let code = each_found(tasks.find_ended(state)?, act)
        .each_in_order(|id, report| {
            let none = || if tasks.is_several() && !json { say(NO_CODE) } else { Ok(()) };
            let Some((id, report)) = id.zip(report) else { return none() };
            match report.exit_code {
                _ if json => {
                    reports.push(Named { id, report });
                    Ok(())
                }
                Some(code) => say(&code.to_string()),
                None => none().and(Err(end_not_known(&id, &report))),
            }
        })
        .await?;
    match (tasks.is_several(), json) {
        (_, false) => {}
        (false, true) => reports.iter().try_for_each(|one| json::print(&one.report))?,
        (true, true) => json::print_list(&reports)?,
    }
    Ok(code)
}
