//! `sandbox create`: creates a folder, a shim and a sandbox from a description, and starts the first members.

use bowline_client::launching_shim::{Up, made_up};
use bowline_client::spawn::Programs;
use bowline_executor::ShimCgroup;
use bowline_model::folder::StateDir;
use bowline_model::sandbox::SandboxRecord;
use bowline_model::{Error, Kind, Result};
use bowline_spec::id::TaskId;
use bowline_spec::values::Place;
use bowline_spec::{Overhead, Sandbox};

use super::inspection::{examine, warn};
use super::rm;
use crate::commands::start;
use crate::input::args::sandbox::CreateArgs;
use crate::input::cdi;
use crate::input::description;
use crate::input::flags::{SANDBOX_FIELDS, set_all};
use crate::input::network::Ports;
use crate::launch_request::{refused, tell_of_interrupt, written};
use crate::ui::json;
use crate::ui::print::say;
use crate::ui::signals::{ENDING, Signals};

pub async fn run(state: &StateDir, mut args: CreateArgs) -> Result<u8> {
    let (driver, json) = (args.cgroup_driver, args.json);
    let folders = std::mem::take(&mut args.cdi.folders);
    let replace = args.replace;
    let mut sandbox = match args.file.take() {
        Some(file) => description::read_sandbox(&file, |sandbox| lay_on_top(sandbox, args))?,
        None => {
            let mut sandbox = Sandbox::default();
            lay_on_top(&mut sandbox, args)?;
            sandbox.validate().map_err(|invalid| description::of_command_line(&invalid))?;
            sandbox
        }
    };
    for (index, member) in sandbox.members.iter_mut().enumerate() {
        cdi::resolve(member, &folders).map_err(|error| error.within(format_args!("members[{index}]")))?;
    }
    let id = match sandbox.name.as_ref().or(sandbox.place.as_ref().and_then(Place::id)) {
        Some(id) => id.clone(),
        None => made_up("sandbox")?,
    };
    let members = sandbox.members.clone();
    for (index, member) in members.iter().enumerate() {
        written(member).map_err(|error| error.within(format_args!("members[{index}]")))?;
    }
    if replace {
        rm::replaced(state, sandbox.name.as_ref()).await?;
    }
    let shim_cgroup = match sandbox.overhead {
        Overhead::Beside | Overhead::Inside => ShimCgroup::Overhead,
        Overhead::Inherit => ShimCgroup::Inherit,
        Overhead::Root => ShimCgroup::Root,
    };
    state.make()?;
    let record = SandboxRecord::new(&id, sandbox, driver, &state.mark())?;
    // From here on there may be something to undo.
    let mut signals = Signals::watch(&ENDING)?;
    let interrupted = || Error::new(Kind::Internal, format!("the creation of sandbox {id} was interrupted"));
    let up = Up::shim(&id, &shim_cgroup, &Programs::default(), || state.create_sandbox(&id, &record)).await;
    let mut up = match (up, signals.next_ending_now()) {
        (Ok(up), None) => up,
        (Ok(up), Some(signal)) => {
            return Ok(tell_of_interrupt(&up.abandon_sandbox(state, &id, interrupted()), signal));
        }
        // A shim that has just been started may have died of the same signal.
        (Err(_), Some(signal)) => return Ok(tell_of_interrupt(&interrupted(), signal)),
        (Err(error), None) => return Err(refused(replace, error)),
    };
    let made = tokio::select! {
        biased;
        signal = signals.next_ending() => Err(signal),
        made = up.create_sandbox() => Ok(made),
    };
    match made {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            // What has a hint of its own is about something else.
            let is_removed = error.kind() == Kind::WrongState && error.hint_text().is_none();
            let error = if is_removed { removed_meanwhile(&id, error) } else { error };
            return Err(up.abandon_sandbox(state, &id, error));
        }
        Err(signal) => return Ok(tell_of_interrupt(&up.abandon_sandbox(state, &id, interrupted()), signal)),
    }
    for (index, member) in members.into_iter().enumerate() {
        let started = tokio::select! {
            biased;
            signal = signals.next_ending() => Err(signal),
            started = start::start_member(state, &id, member) => Ok(started),
        };
        let (error, signal) = match started {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => (refused(replace, error).within(format_args!("members[{index}]")), None),
            Err(signal) => (interrupted(), Some(signal)),
        };
        // Create everything or nothing. What somebody else has given the name meanwhile is left alone.
        let error = match rm::remove_in(state, up.folder(), &id, true).await {
            Ok(()) => error,
            Err(left) => error.hint(format!("besides, {left}")),
        };
        return signal.map_or(Err(error.clone()), |signal| Ok(tell_of_interrupt(&error, signal)));
    }
    let found = match examine(state, &id).await {
        Err(error) if error.kind() == Kind::NotFound => {
            let gone = Error::new(Kind::WrongState, "it was removed as soon as it was made");
            return Err(removed_meanwhile(&id, gone));
        }
        found => found?,
    };
    warn(&found, &[]);
    if json { json::print(&found) } else { say(id.as_str()) }?;
    Ok(0)
}

/// `error` of a shim that somebody else has asked to remove the sandbox, with its name.
fn removed_meanwhile(id: &TaskId, error: Error) -> Error {
    let hint = "somebody else removes or replaces it at the same time; look at which one is there, or try again";
    error.within(format_args!("sandbox {id}")).hint(hint)
}

/// Applies the flags on top of what a file says.
///
/// # Errors
/// `BadSpec` for a field that `--set` cannot set.
fn lay_on_top(sandbox: &mut Sandbox, args: CreateArgs) -> Result<()> {
    sandbox.name = args.name.or(sandbox.name.take());
    sandbox.place = args.place.or(sandbox.place.take());
    sandbox.memory.limit = args.memory.or(sandbox.memory.limit);
    sandbox.cpu.limit = args.cpus.or(sandbox.cpu.limit);
    sandbox.cpu.cpuset = args.cpuset.or(sandbox.cpu.cpuset.take());
    sandbox.pids = args.pids.or(sandbox.pids);
    sandbox.qos = args.qos.or(sandbox.qos);
    sandbox.cgroup = args.cgroup.unwrap_or(sandbox.cgroup);
    sandbox.network.mode = args.network.or(sandbox.network.mode.take());
    sandbox.network.ports.extend(args.publish.into_iter().flat_map(|Ports(ports)| ports));
    sandbox.hostname = args.hostname.or(sandbox.hostname.take());
    sandbox.share_pid |= args.share_pid;
    set_all(sandbox, &args.set, bowline_spec::parse_sandbox, SANDBOX_FIELDS)
}
