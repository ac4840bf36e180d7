//! What `run` and `start` share: the task that flags and file describe, the request to launch it, and the messages about
//! the launch.

use bowline_client::launching_shim::{Up, made_up};
use bowline_client::spawn::Programs;
use bowline_executor::internal::ArrivedSignal;
use bowline_executor::secrets::Secrets;
use bowline_executor::{CgroupDriver, Secret, ShimCgroup};
use bowline_model::folder::{Folder, StateDir};
use bowline_model::report::SliceEnforcement;
use bowline_model::{Error, Kind, Result};
use bowline_protocol::wire::proto::bowline::{self as proto, LaunchRequest, LaunchResponse, ProcessIdentity};
use bowline_spec::Task;
use bowline_spec::id::TaskId;

use crate::commands::{limits, rm};
use crate::exit_code::by_signal;
use crate::input::args::task::{Slice, TaskArgs};
use crate::input::cdi;
use crate::input::description;
use crate::input::flags::Flags;
use crate::input::misuse;
use crate::ui::print::complain;
use crate::ui::signals::Signals;
use crate::ui::terminal;

/// What flags and file say of a task.
pub struct Described {
    pub id: TaskId,
    pub task: Task,
    pub secrets: Secrets,
    /// Whether it takes the place of a task with its id.
    pub replaces: bool,
}

/// The error of a launch. Where it `replaces` another and somebody else has the name again, a hint at `--replace` would
/// not help.
pub fn refused(replaces: bool, error: Error) -> Error {
    if !replaces || error.kind() != Kind::AlreadyExists {
        return error;
    }
    Error::new(
        Kind::AlreadyExists,
        format!("{}: it was made after --replace had removed the one before", error.message()),
    )
    .hint("somebody else replaces it at the same time; look at which one is there, or try again")
}

/// Returns the task that flags and file describe, with an id. With `--replace`, removes a task with that id.
pub async fn describe_task(state: &StateDir, mut args: TaskArgs) -> Result<Described> {
    let (replace, is_member) = (args.replace, args.isolation.sandbox.is_some());
    let (file, folders) = (args.file.take(), std::mem::take(&mut args.files.cdi.folders));
    let mut flags = Flags::of(args)?;
    let secrets = flags.take_secrets();
    let mut task = match file {
        Some(file) => description::read(&file, is_member, |task| flags.lay_on(task))?,
        None => {
            let mut task = Task::default();
            flags.lay_on(&mut task)?;
            if task.command.is_empty() && task.bundle.is_none() {
                return Err(Error::new(Kind::Usage, "there is no command to run"));
            }
            let valid = if is_member { task.validate_member() } else { task.validate() };
            valid.map_err(|invalid| description::of_command_line(&invalid))?;
            task
        }
    };
    cdi::resolve(&mut task, &folders)?;
    if replace {
        let Some(id) = &task.name else {
            let error = Error::new(Kind::Usage, "--replace: the task has no name");
            return Err(error.hint("name it by --name, or in its description"));
        };
        // Nothing is removed for a task that cannot be started.
        written(&task)?;
        rm::replaced(state, id).await?;
    }
    Ok(Described { id: named(&task)?, task, secrets, replaces: replace })
}

/// The id from the description, or a random one.
pub fn named(task: &Task) -> Result<TaskId> {
    task.name.clone().map_or_else(|| made_up("task"), Ok)
}

/// Launch options that are not part of the description.
#[derive(Default)]
pub struct Wanted {
    durable: bool,
    driver: CgroupDriver,
    slice: Option<Slice>,
    /// Whether the shim removes the task once it has ended.
    remove: bool,
    /// The processes that the task ends with.
    pub ends_with: Vec<ProcessIdentity>,
    /// What a service manager has for its command.
    pub service: Option<proto::Service>,
    pub secrets: Secrets,
}

impl Wanted {
    pub fn of(args: &TaskArgs, remove: bool) -> Wanted {
        Wanted {
            durable: args.shim.durable,
            driver: args.shim.driver,
            slice: args.shim.slice.clone(),
            remove,
            ends_with: Vec::new(),
            service: None,
            secrets: Secrets::default(),
        }
    }
}

/// The description as its shim gets it.
///
/// # Errors
/// `Usage` for an argument, and `BadSpec` for a path, that is not UTF-8.
pub fn written(task: &Task) -> Result<String> {
    bowline_spec::written(task).map_err(|invalid| match misuse::not_utf8(std::env::args_os()) {
        Some(word) => Error::new(Kind::Usage, format!("the argument {word} is not UTF-8")).hint(misuse::NOT_UTF8),
        None => Error::from(invalid),
    })
}

/// The request to launch the task of this description, which is [`written`] before there is a shim.
pub fn request(task: String, wanted: Wanted) -> LaunchRequest {
    let Secrets { files, env } = wanted.secrets;
    let secret = |Secret { name, content }| proto::Secret { name, content, ..proto::Secret::default() };
    LaunchRequest {
        task,
        size: Some(terminal::size()).into(),
        durable: wanted.durable,
        remove: wanted.remove,
        ends_with: wanted.ends_with,
        service: wanted.service.into(),
        cgroup_driver: wanted.driver.to_string(),
        slice_optional: wanted.slice.as_ref().is_some_and(|slice| slice.is_optional),
        slice: wanted.slice.map(|slice| slice.name).unwrap_or_default(),
        secrets: files.into_iter().map(secret).collect(),
        secret_env: env,
        ..LaunchRequest::default()
    }
}

/// A shim for the task, which hands on this many sockets of ours, or the exit code if a signal has come meanwhile and there is none.
pub async fn shim_for(
    state: &StateDir,
    id: &TaskId,
    sandbox: Option<&TaskId>,
    shim_cgroup: &ShimCgroup,
    sockets: u32,
    replaces: bool,
    signals: &mut Signals,
) -> Result<std::result::Result<Up, u8>> {
    match Up::for_task(state, id, sandbox, shim_cgroup, &Programs::default().handing_on(sockets)).await {
        Ok(up) => Ok(Ok(up)),
        // A shim that has just been started may have died of the same signal.
        Err(error) => match signals.next_ending_now() {
            Some(signal) => Ok(Err(tell_of_interrupt(&broken_off(id), signal))),
            None => Err(refused(replaces, error)),
        },
    }
}

/// Launches the task. If a signal arrives before the answer, the launch is broken off, and the signal is returned too.
pub async fn launch(
    up: &mut Up,
    request: LaunchRequest,
    signals: &mut Signals,
) -> (Result<LaunchResponse>, Option<ArrivedSignal>) {
    let (launched, interrupted) = up.launch_unless(request, signals.next_ending()).await;
    let interrupted = match launched {
        // A shim that has just been started may have died of the same signal.
        Err(_) => interrupted.or_else(|| signals.next_ending_now()),
        Ok(_) => interrupted,
    };
    (launched, interrupted)
}

/// The error of a launch that a signal has broken off.
pub fn broken_off(id: &TaskId) -> Error {
    Error::new(Kind::Internal, format!("the launch of task {id} was interrupted"))
}

/// Says that a signal has broken a launch off; returns the exit code for that.
pub fn tell_of_interrupt(error: &Error, signal: ArrivedSignal) -> u8 {
    complain(error.message(), error.hint_text());
    by_signal(signal)
}

/// Reports on stderr what was changed of a member's limits.
pub fn tell_notes(launched: &LaunchResponse) {
    for note in &launched.notes {
        complain(note, None);
    }
}

/// Reports on stderr that no limits of the slice that it was launched for hold for a running task. Where systemd has
/// refused it a place there, the manifest of the slice may ask for more.
pub async fn tell_of_slice(state: &StateDir, folder: &Folder, id: &TaskId) {
    let Ok(Some(record)) = folder.record() else { return };
    // The exit report names the slice too.
    let Some(SliceEnforcement { slice, enforced: false, reason, .. }) = record.enforcement else { return };
    let why = reason.unwrap_or_default();
    if record.unit.is_some() {
        return complain(&format!("task {id} runs in {slice}, which does not hold it to anything: {why}"), None);
    }
    complain(&format!("task {id} runs outside of {slice}, whose limits do not hold for it: {why}"), None);
    limits::give_up(state, &slice).await;
}
