//! What a task's folder says about its shim: which socket it has, whether it lives, and what it has left behind.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use bowline_model::folder::Folder;
use bowline_model::folder::{Owner, Record};
use bowline_model::report::ExitReport;
use bowline_model::{Kind, Result};
use tokio::time::sleep;

use crate::patience::{BETWEEN_POLLS, lock_after};

/// Which socket a shim has: its inode, and when that was made.
pub(crate) type Socket = (u64, (i64, i64));

/// Returns once the folder has another socket than this one.
pub(crate) async fn replaced(folder: &Folder, socket: Option<Socket>) {
    while socket_of(folder).is_none_or(|now| Some(now) == socket) {
        sleep(BETWEEN_POLLS).await;
    }
}

/// Which socket is in the folder; a new shim has a new one. `None` where that is something else, too.
pub(crate) fn socket_of(folder: &Folder) -> Option<Socket> {
    let meta = std::fs::metadata(folder.socket()).ok().filter(|meta| meta.file_type().is_socket())?;
    Some((meta.ino(), (meta.ctime(), meta.ctime_nsec())))
}

/// Whether a shim holds the folder of a task that has not ended.
pub fn is_held(folder: &Folder) -> Result<bool> {
    Ok(!has_report(folder)? && matches!(folder.owner()?, Owner::Shim))
}

/// Whether the task or sandbox was begun: its shim had a socket by then.
pub(crate) fn was_begun(folder: &Folder) -> bool {
    match folder.record() {
        Ok(Some(record)) => record.started_at.is_some(),
        Ok(None) => matches!(folder.sandbox(), Ok(Some(record)) if record.adoptable().is_ok()),
        Err(_) => false,
    }
}

/// Why what is in `folder` cannot be taken over, as far as its records say.
pub fn why_not(folder: &Folder) -> Result<Option<String>> {
    let task = folder.record()?;
    if let Some(why) = task.as_ref().and_then(|task| task.adoptable().err()) {
        return Ok(Some(why.to_owned()));
    }
    if folder.never_ran() {
        return Ok(Some("its command was never started".to_owned()));
    }
    if let Err(newer) = folder.check_form() {
        return Ok(Some(newer.message().to_owned()));
    }
    let (folder, none) = match task {
        None => (folder.clone(), "it has no record"),
        Some(Record { sandbox: Some(sandbox), .. }) => {
            (Folder::at(folder.path().with_file_name(sandbox.as_str())), "its sandbox is gone")
        }
        Some(Record { sandbox: None, .. }) => return Ok(None),
    };
    let why = folder.sandbox()?.map_or(Some(none), |sandbox| sandbox.adoptable().err());
    Ok(why.map(str::to_owned).or(folder.check_form().err().map(|newer| newer.message().to_owned())))
}

pub(crate) fn has_report(folder: &Folder) -> Result<bool> {
    Ok(report_in(folder)?.is_some())
}

/// The report of a task that has ended. A damaged one does not count: a live shim writes another.
pub(crate) fn report_in(folder: &Folder) -> Result<Option<ExitReport>> {
    match folder.exit() {
        Err(error) if error.kind() == Kind::Damaged => Ok(None),
        exit => exit,
    }
}

/// The report that a leaving shim has left behind; `None` if it has died. Waits until it is gone, because its report is
/// complete before it ends.
pub(crate) async fn gone(folder: &Folder) -> Result<Option<Box<ExitReport>>> {
    if let Some(report) = folder.exit()? {
        return Ok(Some(Box::new(report)));
    }
    drop(lock_after(folder).await?);
    Ok(folder.exit()?.map(Box::new))
}
