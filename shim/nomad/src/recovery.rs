//! Finding a task again: what Nomad keeps for us, and what of the task is there.
//!
//! ```text
//!   state ─► folder with our nonce ─► shim answers, or a new one takes the task over ─► running
//!                                  ─► report ─► exited, with the real code
//!                                  ─► neither ─► cleaned up, an error: the task is lost
//! ```
//!
//! The state tells which task was meant. A folder of the same name with another nonce is another start's.

use std::path::PathBuf;

use bowline_client::spawn::Programs;
use bowline_client::{Presence, find_or_adopt, why_not};
use bowline_executor::internal::housekeeping::Cgroups;
use bowline_executor::internal::proc_stat;
use bowline_model::folder::Record;
use bowline_model::{Doing, Error, Kind, Result};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::proto::driver::{TaskConfig, TaskHandle, TaskState};
use crate::settings::Settings;
use crate::tasks::Known;

/// The version of [`State`]. A higher one is refused: it says what this driver does not know.
const VERSION: u32 = 1;

/// The version of the handle that Nomad keeps; 0 is reserved.
const HANDLE: i32 = 1;

/// What Nomad keeps of a task, and gives back after a restart, when the task's own configuration is gone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct State {
    version: u32,
    task_id: String,
    allocation: String,
    name: String,
    nonce: String,
    state_dir: PathBuf,
    folder: PathBuf,
    socket: PathBuf,
    shim_pid: i32,
    /// In clock ticks since the boot: any other process with this pid is not the shim.
    shim_started: Option<u64>,
    cgroup: String,
    started_at: Option<Timestamp>,
}

/// The handle of a task that runs.
///
/// # Errors
/// `Internal` for a name that is no text.
pub fn handle(known: &Known, nonce: &str, record: Record, config: TaskConfig) -> Result<TaskHandle> {
    let folder = known.folder();
    let state = State {
        version: VERSION,
        task_id: known.nomads.clone(),
        allocation: known.allocation.clone(),
        name: known.name.clone(),
        nonce: nonce.to_owned(),
        state_dir: known.state_dir().to_owned(),
        folder: folder.path().to_owned(),
        socket: folder.socket(),
        shim_pid: record.shim_pid,
        shim_started: proc_stat::started(record.shim_pid),
        cgroup: record.cgroup,
        started_at: record.started_at,
    };
    let driver_state = serde_json::to_vec(&state).doing(Kind::Internal, || "cannot write the driver's state")?;
    Ok(TaskHandle { version: HANDLE, config: Some(config), state: TaskState::Running.into(), driver_state })
}

/// Reads what Nomad has kept.
///
/// # Errors
/// `Unsupported` for a state of a newer driver, `Damaged` for what is none.
fn read(state: &[u8]) -> Result<State> {
    let damaged = || "the driver's state of this task, as Nomad has kept it, is damaged";
    let value: Value = serde_json::from_slice(state).doing(Kind::Damaged, damaged)?;
    let version = value.get("version").and_then(Value::as_u64).unwrap_or_default();
    if version > u64::from(VERSION) {
        let message = format!("this task was started by a newer driver: its state has version {version}");
        return Err(Error::new(Kind::Unsupported, message)
            .hint(format!("this driver reads up to {VERSION}; install the newer one again")));
    }
    serde_json::from_value(value).doing(Kind::Damaged, damaged)
}

/// Finds the task of `handle` again. Where its shim has died, a new one takes it over.
///
/// # Errors
/// `NotFound` when it is lost, with the reason: nothing is left of it then. `Unsupported` and `Damaged` for a state that
/// cannot be read.
pub async fn recover(handle: TaskHandle, settings: &Settings) -> Result<Known> {
    let state = read(&handle.driver_state)?;
    let expected = handle.config.as_ref().map_or(state.task_id.as_str(), |config| config.id.as_str());
    if state.task_id != expected {
        let message = format!("the driver's state is that of task {}, and not of {expected}", state.task_id);
        return Err(Error::new(Kind::BadSpec, message));
    }
    let settings = Settings { state_dir: state.state_dir.clone(), ..settings.clone() };
    let known = Known::new(&state.task_id, &state.allocation, &state.name, settings.client()?, settings.state());
    let known = known.since(state.started_at);
    let lost = |why: &str| Error::new(Kind::NotFound, format!("task {} is lost: {why}", state.task_id));
    let cleaned = |why: &str, done: Result<()>| match done {
        Ok(()) => lost(why),
        Err(error) => lost(&format!("{why}; besides, it cannot be cleaned up: {error}")),
    };
    if !known.folder().exists()? {
        let done = end_cgroup(state.cgroup.clone(), settings.programs()).await;
        return Err(cleaned("its state folder is gone, as after a reboot of the host", done));
    }
    if known.nonce()?.as_deref() != Some(state.nonce.as_str()) {
        return Err(lost("its state folder is that of another start"));
    }
    let is_lost = match find_or_adopt(&known.folder(), &known.id, &settings.programs()).await? {
        // A new shim may have found nobody any more.
        Presence::Live(_) => {
            let state = known.task()?.state().await;
            state.is_ok_and(|state| state.report.is_some_and(|report| report.shim_died))
        }
        Presence::Exited(report) => report.shim_died,
        Presence::Dead | Presence::Starting => true,
    };
    if !is_lost {
        return Ok(known);
    }
    let why = why_not(&known.folder()).ok().flatten();
    let why = why.unwrap_or_else(|| "nobody knows how it has ended".to_owned());
    let removed = known.task()?.remove(true).await.map(drop);
    Err(cleaned(&format!("its shim has died, and {why}"), removed))
}

/// Ends whatever runs in the cgroup of a task whose folder is gone: no other task has a cgroup of that name.
async fn end_cgroup(path: String, programs: Programs) -> Result<()> {
    let end = move || Cgroups::of_host(programs.systemd()?)?.destroy(&path).map(drop);
    tokio::task::spawn_blocking(end).await.doing(Kind::Internal, || "cannot remove the task's cgroup")?
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            version: VERSION,
            task_id: "a/web/1".to_owned(),
            allocation: "a".to_owned(),
            name: "web".to_owned(),
            nonce: "start-0123".to_owned(),
            state_dir: "/run/bowline".into(),
            folder: "/run/bowline/web".into(),
            socket: "/run/bowline/web/shim.sock".into(),
            shim_pid: 4711,
            shim_started: Some(1),
            cgroup: "/x".to_owned(),
            started_at: Some(Timestamp::UNIX_EPOCH),
        }
    }

    #[test]
    fn a_state_reads_back_also_with_what_a_later_driver_of_this_version_adds() {
        let mut value = serde_json::to_value(state()).unwrap();
        value["more"] = 1.into();
        assert_eq!(read(value.to_string().as_bytes()).unwrap(), state());
    }

    #[test]
    fn a_newer_state_and_a_truncated_one_are_told_apart() {
        let text = serde_json::to_string(&State { version: 2, ..state() }).unwrap();
        let error = read(text.as_bytes()).unwrap_err();
        assert!(error.kind() == Kind::Unsupported && error.message().contains("version 2"), "{error}");
        for cut in 0..text.len() {
            assert_eq!(read(&text.as_bytes()[..cut]).unwrap_err().kind(), Kind::Damaged, "{cut}");
        }
        assert_eq!(read(b"{\"version\": 1}").unwrap_err().kind(), Kind::Damaged);
    }
}
