//! Folders whose record is that of another name: they were copied or moved, or the record was edited.

use bowline_cgroup::{self as cgroup, CgroupIdentity, Layout};
use bowline_error::{Error, Kind, Result};
use bowline_sys::proc_stat::{self, ProcStat};
use jiff::Timestamp;
use serde::Deserialize;

use super::{Folder, RECORD, SANDBOX_RECORD};
use crate::json::record;
use crate::trust;

/// A folder whose record is that of another folder.
#[derive(Debug)]
pub struct Misplaced {
    /// Whether the folder can be removed alone: the other one is there, or nothing lives of what the record names.
    pub is_copy: bool,
    /// The cgroups that its record names.
    pub cgroups: Vec<String>,
    /// The error for whoever wants the task.
    pub error: Error,
}

/// What the record of a task or of a sandbox says of whose it is.
#[derive(Deserialize)]
struct Named {
    folder: Option<String>,
    created_at: Timestamp,
    cgroup: String,
    overhead: Option<String>,
    identity: Option<CgroupIdentity>,
    pid: Option<i32>,
    pid_started: Option<u64>,
    pause_pid: Option<i32>,
    pause_started: Option<u64>,
}

impl Named {
    fn processes(&self) -> [Option<(i32, u64)>; 2] {
        [self.pid.zip(self.pid_started), self.pause_pid.zip(self.pause_started)]
    }

    fn is_same(&self, other: &Named) -> bool {
        (&self.cgroup, self.created_at) == (&other.cgroup, other.created_at)
    }

    fn may_live(&self) -> bool {
        let is_used = |layout: Layout| {
            let Ok(Some(cgroup)) = layout.open(&self.cgroup) else { return false };
            let is_its = |of: &CgroupIdentity| of.is_of_this_boot() && of.is_of(&layout, &cgroup);
            self.identity.as_ref().is_none_or(is_its) && !layout.living(&cgroup).is_empty()
        };
        let lives = |(pid, started): (i32, u64)| {
            let stat = proc_stat::read(pid);
            let stat = stat.as_deref().and_then(ProcStat::parse);
            stat.is_some_and(|stat| stat.started() == Some(started) && !stat.ends())
        };
        self.processes().into_iter().flatten().any(lives) || cgroup::detect().is_ok_and(is_used)
    }
}

impl Folder {
    fn named(&self) -> Option<Named> {
        let path = self.record_path();
        record::parse(&trust::read(&path).ok()?, &path).ok()
    }

    fn record_path(&self) -> std::path::PathBuf {
        self.file(if self.is_sandbox() { SANDBOX_RECORD } else { RECORD })
    }

    /// Whether this folder and the `other` one have a record of the same task or sandbox.
    pub fn has_record_of(&self, other: &Folder) -> bool {
        self.named().zip(other.named()).is_some_and(|(own, other)| own.is_same(&other))
    }

    /// Whether this folder can be removed alone, where its record is by its name that of the `other` one, which is there.
    fn is_copy_of(&self, other: &Folder) -> bool {
        self.has_record_of(other) || self.named().is_some_and(|own| !own.may_live())
    }

    /// Checks that the record is not of another folder than the one it is in.
    ///
    /// # Errors
    /// `Damaged` for a copy, and for a folder that was moved.
    pub(crate) fn check_name(&self, recorded: Option<&str>) -> Result<()> {
        let name = self.name();
        // One that is being removed begins with a dot.
        let Some(of) = recorded.filter(|of| *of != name && !name.starts_with('.')) else { return Ok(()) };
        let (path, there) = (self.path().display(), Folder::at(self.path().with_file_name(of)));
        let message = format!("{path} was the folder of {of}, by `folder` in its record: it was copied or moved");
        let (message, hint) = match there.path().exists() {
            true if self.is_copy_of(&there) => (message, self.copy_hint()),
            true => (
                format!("{path} is the folder of {of}, by `folder` in its record, and that of {of} names another task"),
                format!("what it names lives: write \"{name}\" into `folder` of {}", self.record_path().display()),
            ),
            false => (message, format!("move it back to {}", there.path().display())),
        };
        Err(Error::new(Kind::Damaged, message).hint(hint))
    }

    /// What removes a folder that is a copy.
    pub fn copy_hint(&self) -> String {
        format!("`bowline {} -f {}` removes this copy alone", self.removal(), self.name())
    }

    /// What was copied or moved here from the folder of another name.
    pub fn misplaced(&self) -> Option<Misplaced> {
        let Named { folder, cgroup, overhead, .. } = self.named()?;
        let error = self.check_name(folder.as_deref()).err()?;
        let there = Folder::at(self.path().with_file_name(folder?));
        let is_copy = there.path().exists() && self.is_copy_of(&there);
        Some(Misplaced { is_copy, cgroups: [cgroup].into_iter().chain(overhead).collect(), error })
    }
}
