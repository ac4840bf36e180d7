//! `start`: starts a task in the background, and prints its id.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_client::launching_shim::Up;
use bowline_client::spawn::Programs;
use bowline_executor::ShimCgroup;
use bowline_model::folder::StateDir;
use bowline_model::pid_file;
use bowline_model::{Error, Kind, Result};
use bowline_spec::id::TaskId;
use bowline_spec::{LogFormat, Task};

use crate::input::args::task::TaskArgs;
use crate::input::service::Service;
use crate::launch_request::{
    Described, Wanted, broken_off, describe_task, launch, named, refused, request, shim_for, tell_notes,
    tell_of_interrupt, tell_of_slice, written,
};
use crate::ui::print::{complain, say};
use crate::ui::signals::{ENDING, Signals};
use crate::ui::{json, notify, progress};

/// Runs `bowline start`: a task in the background; prints its id. With `rm`, its shim removes it once it has ended.
///
/// A service manager that waits for it is told; `pid_file` gets the pid of the shim before that.
pub async fn start(state: &StateDir, args: TaskArgs, rm: bool, json: bool, pid_file: Option<PathBuf>) -> Result<u8> {
    let service = Service::of_environment()?;
    let (shim_cgroup, mut wanted) = (args.shim.cgroup.clone(), Wanted::of(&args, rm));
    let sandbox = args.isolation.sandbox.clone();
    let Described { id, mut task, secrets, replaces } = describe_task(state, args).await?;
    wanted.secrets = secrets;
    wanted.service = service.request(None);
    // Keep a log by default, as nothing else receives the output.
    task.log.format.get_or_insert(LogFormat::Json);
    let description = written(&task)?;
    // From here on there may be something to undo.
    let mut signals = Signals::watch(&ENDING)?;
    let mut up =
        match shim_for(state, &id, sandbox.as_ref(), &shim_cgroup, service.sockets, replaces, &mut signals).await? {
            Ok(up) => up,
            Err(code) => return Ok(code),
        };
    let line = |elapsed: Duration| format!("starting {id}: {} s", elapsed.as_secs());
    let (launched, interrupted) =
        progress::during(line, launch(&mut up, request(description, wanted), &mut signals)).await;
    if let Some(signal) = interrupted {
        let error = match launched {
            Ok(_) => up.take_back(broken_off(&id)).await,
            Err(_) => up.abandon(broken_off(&id)),
        };
        return Ok(tell_of_interrupt(&error, signal));
    }
    if let (Ok(_), Some(file)) = (&launched, pid_file)
        && let Err(error) = write_pid(&file, &up)
    {
        return Err(up.take_back(error).await);
    }
    if let Ok(launched) = &launched {
        if let Some(manager) = &service.manager
            && let Err(error) = notify::tell_started(manager, launched.pid)
        {
            complain(&error.to_string(), None);
        }
        tell_of_slice(state, up.folder(), &id).await;
        tell_notes(launched);
    }
    match launched {
        Ok(launched) if json => json::print(&serde_json::json!({"id": id, "pid": launched.pid})).map(|()| 0),
        Ok(_) => say(id.as_str()).map(|()| 0),
        Err(error) => Err(up.abandon(refused(replaces, error))),
    }
}

/// Writes the pid of the task's shim.
fn write_pid(file: &Path, up: &Up) -> Result<()> {
    let gone = || Error::new(Kind::WrongState, "the task was removed as it was started");
    let shim = match up.own_shim() {
        Some(shim) => shim,
        None => up.folder().record()?.ok_or_else(gone)?.shim_pid,
    };
    pid_file::write(file, shim)
}

/// Starts a member of a sandbox in the background, as `start` does.
pub async fn start_member(state: &StateDir, sandbox: &TaskId, mut task: Task) -> Result<()> {
    let id = named(&task)?;
    task.log.format.get_or_insert(LogFormat::Json);
    let description = written(&task)?;
    let mut up = Up::for_task(state, &id, Some(sandbox), &ShimCgroup::default(), &Programs::default()).await?;
    let wanted = Wanted::default();
    match up.launch(request(description, wanted)).await {
        // `sandbox create` prints the notes of all members.
        Ok(_) => Ok(()),
        Err(error) => Err(up.abandon(error)),
    }
}
