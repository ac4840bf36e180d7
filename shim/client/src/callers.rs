//! The processes that a task may end with: this one, and the one that started it.

use std::process;

use bowline_executor::internal::proc_stat;
use bowline_model::{Error, Kind, Result};
use bowline_protocol::wire::proto::bowline::ProcessIdentity;
use rustix::process::{Pid, getppid};

/// This process and its parent; alone where the parent is in another pid namespace.
///
/// # Errors
/// `WrongState` when the parent ends meanwhile. One that had ended before has left this process another.
pub fn own_and_parent() -> Result<Vec<ProcessIdentity>> {
    let own = own()?;
    let Some(parent) = getppid() else { return Ok(vec![own]) };
    let found = identity(parent.as_raw_pid());
    // Until it has ended, its number is no other process's.
    let found = found.filter(|_| getppid() == Some(parent));
    let gone = || Error::new(Kind::WrongState, "the process that started this one has ended");
    found.map(|parent| vec![own, parent]).ok_or_else(gone)
}

/// This process.
pub(crate) fn own() -> Result<ProcessIdentity> {
    let unknown = || Error::new(Kind::Internal, "cannot find this process in /proc");
    let pid = i32::try_from(process::id()).ok().and_then(Pid::from_raw);
    pid.and_then(|pid| identity(pid.as_raw_pid())).ok_or_else(unknown)
}

fn identity(pid: i32) -> Option<ProcessIdentity> {
    proc_stat::started(pid).map(|started| ProcessIdentity { pid, started, ..ProcessIdentity::default() })
}
