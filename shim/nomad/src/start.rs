//! Starting a task: its description, the files that are bound into it, its shim.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use bowline_client::Start;
use bowline_client::launching_shim::made_up;
use bowline_executor::ShimCgroup;
use bowline_executor::internal::{is_cgroup_v2, until_read};
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::Task as Description;
use jiff::Timestamp;

use crate::describe::{Around, Described, NONCE, describe};
use crate::own_folder::OwnFolder;
use crate::proto::driver::{TaskConfig, TaskHandle};
use crate::settings::Settings;
use crate::tasks::{Known, Tasks};
use crate::{earlier, recovery};

/// How often a start is tried that somebody else's of the same id is in the way of.
const MOST: usize = 5;

/// Starts the task; returns once its command is executed. It is among `tasks` before anything happens to it.
///
/// # Errors
/// `BadSpec` naming the option that is wrong; as `bowline-client`, what of the start has failed. Nothing is left then.
pub async fn start(config: TaskConfig, settings: &Settings, tasks: &Tasks) -> Result<TaskHandle> {
    let step = |error: Error| error.within(format!("cannot start task {}", config.name));
    if tasks.get(&config.id).is_some_and(|known| known.started_at.is_some()) {
        return Err(step(Error::new(Kind::AlreadyExists, format!("it exists already, as {}", config.id))));
    }
    let made_up = made_up("start")?;
    let around = Around { settings, cgroup_v2: is_cgroup_v2(), nonce: &made_up };
    let mut described = describe(&config, around).map_err(step)?;
    if let Some(folder) = OwnFolder::open(&config).map_err(step)? {
        let (image, command) = (described.description.rootfs.clone(), described.description.command.clone());
        described.bring(folder.brought(image.as_deref()).map_err(step)?);
        if let Some(program) = folder.program(&command, &config.mounts, image.as_deref()).map_err(step)? {
            described.description.command = program.to_string_lossy().into_owned();
        }
    }
    if !settings.allow_host_paths {
        resolve_own(&mut described.description, &config).map_err(step)?;
    }
    let nonce = earlier::nonce(&made_up, &config);
    described.description.labels.insert(NONCE.to_owned(), nonce.clone());
    let known = Known::new(&config.id, &config.alloc_id, &config.name, settings.client()?, settings.state());
    tasks.add(known.clone());
    // Nomad's logmon may open its FIFOs after it has asked for the task, and leaves where an earlier start's writer does.
    let outputs = [&described.description.output.stdout, &described.description.output.stderr];
    let started = async {
        let (_writers, read) = until_read(outputs.into_iter().flatten().map(PathBuf::as_path)).await;
        read?;
        earlier::remove_others(&known, tasks).await;
        launch_once(&known, &described, &nonce, &config, settings).await
    };
    match started.await {
        Ok((started_at, handle)) => {
            tasks.add(known.since(started_at));
            Ok(handle)
        }
        Err(error) => {
            tasks.remove(&config.id);
            described.files.iter().for_each(|(path, _)| drop(std::fs::remove_file(path)));
            Err(step(described.named(error)))
        }
    }
}

/// Takes over what was launched for the same request, by an earlier process of the plugin or by another call, and else
/// launches what is described.
async fn launch_once(
    known: &Known,
    described: &Described,
    nonce: &str,
    config: &TaskConfig,
    settings: &Settings,
) -> Result<(Option<Timestamp>, TaskHandle)> {
    for _ in 1..MOST {
        let answer = match earlier::found(known, nonce, settings).await? {
            Some(its) => handle(known, &its, config),
            None => launch(known, described, nonce, config).await,
        };
        match answer {
            // Somebody was faster, and it may be gone again.
            Err(error) if error.kind() == Kind::AlreadyExists => {}
            answer => return answer,
        }
    }
    launch(known, described, nonce, config).await
}

/// Launches what is described. Nothing runs after an error.
async fn launch(
    known: &Known,
    described: &Described,
    nonce: &str,
    config: &TaskConfig,
) -> Result<(Option<Timestamp>, TaskHandle)> {
    write(&described.files)?;
    let task = known.client().start(Start::new(described.description.clone()).shim_cgroup(ShimCgroup::Root)).await?;
    match handle(known, nonce, config) {
        Ok(handle) => Ok(handle),
        Err(error) => {
            // Nobody would ever ask for it.
            let _ = task.remove(true).await;
            Err(error)
        }
    }
}

/// What Nomad keeps of the task, and when that was started.
fn handle(known: &Known, nonce: &str, config: &TaskConfig) -> Result<(Option<Timestamp>, TaskHandle)> {
    let missing = || Error::new(Kind::Internal, format!("the record of task {} is missing", known.id));
    let record = known.folder().record()?.ok_or_else(missing)?;
    Ok((record.started_at, recovery::handle(known, nonce, record, config.clone())?))
}

/// Names the sources within the task's own folder without symlinks: the task, or an earlier start of it, may have made
/// one that leads to the host's files.
fn resolve_own(description: &mut Description, config: &TaskConfig) -> Result<()> {
    let folder = Path::new(&config.alloc_dir).join(&config.name);
    let own = |source: &Path| source.starts_with(&folder) && source.components().count() > folder.components().count();
    let Ok(real) = folder.canonicalize() else { return Ok(()) };
    for mount in &mut description.mounts {
        let Some(source) = mount.source.as_mut().filter(|source| own(source)) else { continue };
        // What is not there, the launch names.
        let Ok(found) = source.canonicalize() else { continue };
        if !found.starts_with(&real) {
            let (source, found) = (source.display(), found.display());
            return Err(Error::new(Kind::BadSpec, format!("{source} leads out of the task's own folder, to {found}"))
                .hint("the agent does not set allow_host_paths"));
        }
        *source = found;
    }
    Ok(())
}

/// Writes the files that the task sees and the agent does not make, into the folder that only root may enter.
fn write(files: &[(PathBuf, String)]) -> Result<()> {
    for (path, text) in files {
        let what = || format!("cannot write {}", path.display());
        let no_follow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let opened =
            File::options().write(true).create(true).truncate(true).mode(0o644).custom_flags(no_follow).open(path);
        opened.and_then(|mut file| file.write_all(text.as_bytes())).doing(Kind::Internal, what)?;
    }
    Ok(())
}
