//! What `run` and `start` share: the task that flags and file describe, the request to launch it, and the messages about
//! the launch.

use bowline_client::launching_shim::made_up;
use bowline_executor::secrets::Secrets;
use bowline_executor::{CgroupDriver, Doing, Error, Folder, Kind, Result, Secret, SliceEnforcement, StateDir};
use bowline_protocol::wire::proto::bowline::{self as proto, LaunchRequest, LaunchResponse};
use bowline_spec::Task;
use bowline_spec::id::TaskId;

use crate::commands::{limits, rm};
use crate::input::args::task::TaskArgs;
use crate::input::description;
use crate::input::flags::Flags;
use crate::ui::print::complain;
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
    let file = args.file.take();
    let mut flags = Flags::of(args)?;
    let secrets = flags.take_secrets();
    let task = match file {
        Some(file) => description::read(&file, is_member, |task| flags.lay_on(task))?,
        None => {
            let mut task = Task::default();
            flags.lay_on(&mut task)?;
            if task.command.is_empty() && task.bundle.is_none() {
                return Err(Error::new(Kind::Usage, "there is no command to run"));
            }
            // Flags set no CPU shares, which are the members' difference.
            task.validate().map_err(Error::from)?;
            task
        }
    };
    if replace {
        let Some(id) = &task.name else {
            let error = Error::new(Kind::Usage, "--replace: the task has no name");
            return Err(error.hint("name it by --name, or in its description"));
        };
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
    slice: Option<String>,
    pub secrets: Secrets,
}

impl Wanted {
    pub fn of(args: &TaskArgs) -> Wanted {
        Wanted {
            durable: args.shim.durable,
            driver: args.shim.driver,
            slice: args.shim.slice.clone(),
            secrets: Secrets::default(),
        }
    }
}

pub fn request(task: &Task, wanted: Wanted) -> Result<LaunchRequest> {
    let Secrets { files, env } = wanted.secrets;
    let secret = |Secret { name, content }| proto::Secret { name, content, ..proto::Secret::default() };
    let task = serde_json::to_string(task).doing(Kind::Internal, || "cannot write the description as JSON")?;
    Ok(LaunchRequest {
        task,
        size: Some(terminal::size()).into(),
        durable: wanted.durable,
        cgroup_driver: wanted.driver.to_string(),
        slice: wanted.slice.unwrap_or_default(),
        secrets: files.into_iter().map(secret).collect(),
        secret_env: env,
        ..LaunchRequest::default()
    })
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
    let Some(SliceEnforcement { slice, enforced: false, reason }) = record.enforcement else { return };
    let why = reason.unwrap_or_default();
    if record.unit.is_some() {
        return complain(&format!("task {id} runs in {slice}, which does not hold it to anything: {why}"), None);
    }
    complain(&format!("task {id} runs outside of {slice}, whose limits do not hold for it: {why}"), None);
    limits::give_up(state, &slice).await;
}
