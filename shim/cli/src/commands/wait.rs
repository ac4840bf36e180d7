//! `bowline wait`: waits for tasks to end and prints how they ended.

use bowline_client::end_not_known;
use bowline_client::spawn::Programs;
use bowline_model::Result;
use bowline_model::folder::StateDir;
use bowline_model::report::ExitReport;
use bowline_spec::id::TaskId;
use serde::Serialize;

use crate::input::each_task::each_of;
use crate::input::task_names::{TaskRef, resolve_ended};
use crate::ui::json;
use crate::ui::print::say;

/// The report of one of several tasks.
#[derive(Debug, Serialize)]
struct Named {
    id: TaskId,
    #[serde(flatten)]
    report: ExitReport,
}

/// Prints exit codes in the order given, each as soon as the ones before it are known. With `json` prints one report,
/// or a list for several tasks.
pub async fn run(state: &StateDir, names: &[TaskRef], json: bool) -> Result<u8> {
    let act = |id: TaskId| {
        let folder = state.folder(&id);
        async move { bowline_client::report(&folder, &id, &Programs::default()).await }
    };
    let mut reports = Vec::new();
    let code = each_of(resolve_ended(state, names), act)
        .in_order(|id, report| match report.exit_code {
            _ if json => {
                reports.push(Named { id, report });
                Ok(())
            }
            Some(code) => say(&code.to_string()),
            None => Err(end_not_known(&id, &report)),
        })
        .await?;
    match (names, json) {
        (_, false) => {}
        ([_], true) => reports.iter().try_for_each(|one| json::print(&one.report))?,
        (_, true) => json::print_list(&reports)?,
    }
    Ok(code)
}
