//! The errors of what is asked of a task that cannot answer.

use bowline_executor::internal::{holder, is_named_shim, is_stopped, kept};
use bowline_model::folder::Folder;
use bowline_model::report::ExitReport;
use bowline_model::{Error, Kind};

use crate::left_behind::why_not;

/// The error for a task that does not exist.
pub fn unknown(id: &str) -> Error {
    Error::new(Kind::NotFound, format!("there is no task named {id}")).hint("`bowline ps` lists all tasks")
}

/// The error for a caller that wants to know how a task ended whose folder is gone: how it ended, if the journal knows.
pub fn removed(folder: &Folder, id: &str) -> Error {
    let Some(report) = folder.removed_report() else { return unknown(id) };
    let how = match report.exit_code {
        Some(code) => format!("it ended with {code}"),
        None => "how it ended is not known".to_owned(),
    };
    Error::new(Kind::NotFound, format!("task {id} was removed; {how}"))
        .hint(format!("`bowline events {id}` lists what has happened to it"))
}

/// The error for a call that needs a running task while the task is still being launched.
pub fn starting(id: &str) -> Error {
    Error::new(Kind::WrongState, format!("task {id} is still being launched")).hint("try again in a moment")
}

/// Like [`starting`], for the task in `folder`; it names the process that launches the task, where that was stopped.
pub(crate) fn launched_by(folder: &Folder, id: &str) -> Error {
    let launcher = holder(folder, None).filter(|pid| is_stopped(*pid) && !is_named_shim(*pid));
    launcher.map_or_else(|| starting(id), |pid| kept(&format!("task {id} is still being launched"), pid))
}

/// The error for a call that needs a running task after the task has ended.
pub fn exited(id: &str) -> Error {
    Error::new(Kind::WrongState, format!("task {id} has exited"))
        .hint(format!("`bowline wait --json {id}` tells how, `bowline rm {id}` removes it"))
}

/// `error` of a wait for the end of the task in `folder`, which is pinned; another where somebody has removed the task
/// meanwhile, and its report with it. `NotFound`, as for one that was removed before.
pub fn unless_removed(folder: &Folder, id: &str, error: Error) -> Error {
    if error.kind() != Kind::NotFound || folder.is_still_there() {
        return error;
    }
    let message = format!("task {id} was removed by somebody else before it was known how it ended");
    Error::new(Kind::NotFound, message).hint(events_tell(id))
}

/// The hint for a task whose report was removed.
pub(crate) fn events_tell(id: &str) -> String {
    format!("`bowline events {id}` may tell")
}

/// The error for the task in `folder`, whose shim died, and that has no other one.
pub fn dead(folder: &Folder, id: &str) -> Error {
    match folder.record() {
        Ok(Some(record)) if record.may_run() => {
            let why = why_not(folder).ok().flatten().map_or_else(String::new, |why| format!(": {why}"));
            let message =
                format!("the shim of task {id} died, and no other one can take over the task, which runs{why}");
            let hint = match record.is_of_this_boot() {
                true => format!("`bowline rm -f {id}` ends and removes it"),
                false => format!("`bowline inspect {id}` shows its record"),
            };
            Error::new(Kind::WrongState, message).hint(hint)
        }
        Ok(Some(_)) if folder.never_ran() => {
            let message = format!("the shim of task {id} died before it had started the task");
            Error::new(Kind::WrongState, message).hint(cleans_up(id))
        }
        Ok(None) if folder.has_no_task() => {
            let message = format!("the launch of task {id} was cut short: nothing of it ran");
            Error::new(Kind::WrongState, message).hint(format!("`bowline rm {id}` or `bowline gc` removes the rest"))
        }
        _ => dead_because(id, ""),
    }
}

/// As [`dead`], with what the task's report says of that.
pub fn end_not_known(id: &str, report: &ExitReport) -> Error {
    let why = report.init_lost.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    dead_because(id, &why)
}

fn dead_because(id: &str, why: &str) -> Error {
    let message = format!("the shim of task {id} died before the task; how that ended is not known{why}");
    Error::new(Kind::WrongState, message).hint(cleans_up(id))
}

fn cleans_up(id: &str) -> String {
    format!("`bowline rm {id}` cleans up after it")
}
