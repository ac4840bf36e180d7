//! What the record in a folder says, also a damaged one.
//!
//! Must not: change anything.

use bowline_error::{Error, Kind, Result};
use bowline_model::folder::{Folder, Record};
use bowline_spec::id::TaskId;

/// The record of a task, or the part of a damaged record that says where its cgroups are; and the damage.
pub(crate) fn readable(folder: &Folder) -> Result<(Option<Record>, Option<Error>)> {
    match folder.record() {
        Err(error) if error.kind() == Kind::Damaged => {
            Ok((folder.salvaged_record().filter(|_| folder.misplaced().is_none()), Some(error)))
        }
        record => record.map(|record| (record, None)),
    }
}

/// Where a record says that a task or a sandbox is.
pub(crate) struct Recorded {
    /// The sandbox of a member.
    pub sandbox: Option<TaskId>,
    pub cgroup: String,
    pub overhead: Option<String>,
}

impl Recorded {
    /// What the record in `folder` says, if there is a readable one.
    pub fn of(folder: &Folder) -> Option<Recorded> {
        let task = readable(folder).ok().and_then(|(record, _)| record);
        let task = task.map(|of| Recorded { sandbox: of.sandbox, cgroup: of.cgroup, overhead: of.overhead });
        let sandbox = || folder.sandbox().ok().flatten();
        task.or_else(|| sandbox().map(|of| Recorded { sandbox: None, cgroup: of.cgroup, overhead: of.overhead }))
    }

    /// Its own cgroup and that of its shim.
    pub fn cgroups(self) -> impl Iterator<Item = String> {
        [self.cgroup].into_iter().chain(self.overhead)
    }
}
