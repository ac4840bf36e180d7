//! Processes where somebody else has put them: in a cgroup that is not theirs, or out of their own.

use std::fmt::Write as _;

use bowline_cgroup::{self as cgroup, Cgroup, Layout};
use bowline_error::{Error, Kind, Result};
use bowline_model::folder::Folder;
use bowline_spec::id::TaskId;
use bowline_sys::proc_stat::{self, ProcStat};

use crate::hostside::undo_sandbox;

/// The most processes that an error names.
const NAMED: usize = 5;

/// The processes by pid and name: `processes 4711 (sleep), 4712 (sh)`.
pub(crate) fn named(pids: &[i32]) -> String {
    let mut text = if pids.len() == 1 { "process ".to_owned() } else { "processes ".to_owned() };
    for (index, pid) in pids.iter().take(NAMED).enumerate() {
        let between = if index == 0 { "" } else { ", " };
        let stat = proc_stat::read(*pid);
        // Writing to a String cannot fail.
        let _ = match stat.as_deref().and_then(ProcStat::parse) {
            Some(stat) => write!(text, "{between}{pid} ({})", stat.name),
            None if *pid == 0 => write!(text, "{between}one of another pid namespace"),
            None => write!(text, "{between}{pid}"),
        };
    }
    if pids.len() > NAMED {
        let _ = write!(text, " and {} more", pids.len() - NAMED);
    }
    text
}

/// Whether a process may be an exec on its way into a cgroup: on v1 it enters one hierarchy after the other, before it
/// executes its command.
pub(crate) fn may_enter(pid: i32) -> bool {
    proc_stat::read(pid).as_deref().and_then(ProcStat::parse).is_some_and(|stat| stat.is_a_fork())
}

/// Checks that nothing lives in the cgroup of sandbox `id`, whose members have ended, but what is charged to its
/// `overhead` cgroup, which may be inside.
///
/// # Errors
/// `WrongState` naming the processes.
pub(crate) fn check_none(layout: &Layout, cgroup: &Cgroup, overhead: Option<&str>, id: &TaskId) -> Result<()> {
    let mut there = layout.living(cgroup);
    let charged = overhead.filter(|_| !there.is_empty()).map(|path| layout.processes_at(path)).unwrap_or_default();
    there.retain(|pid| !charged.contains(pid));
    match there {
        none if none.is_empty() => Ok(()),
        there => {
            let (named, path) = (named(&there), cgroup.path());
            let message = format!("sandbox {id} is not removed: somebody has put {named} into its cgroup, {path}");
            let hint = format!("`bowline sandbox rm -f {id}` removes it, and kills them too");
            Err(Error::new(Kind::WrongState, message).hint(hint))
        }
    }
}

/// Like `check_none`, for the sandbox in this folder, whose shim has died.
///
/// # Errors
/// `WrongState` naming the processes; `Damaged` where its record cannot be read.
pub fn check_none_in_sandbox(folder: &Folder, id: &TaskId) -> Result<()> {
    let Some(record) = folder.sandbox()?.filter(|record| !record.taken_down) else { return Ok(()) };
    let layout = cgroup::detect()?;
    let ([own, _], _) = undo_sandbox::cgroups(&record, &layout, folder);
    let cgroup = own.map(|path| layout.open(path)).transpose()?.flatten();
    cgroup.map_or(Ok(()), |cgroup| check_none(&layout, &cgroup, record.overhead.as_deref(), id))
}
