//! The folder that holds one folder for each task and each sandbox.

use std::fs::{self, DirEntry, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Component, Path, PathBuf};

use bowline_error::{Error, Kind, Result};
use bowline_spec::id::TaskId;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::{EVENTS, Folder, LOCK, LONGEST_SOCKET_PATH, Lock, cannot};
use crate::host_name;
use crate::trust;

/// What outlives a reboot, which the state folder usually does not: all of bowline's files on disk
/// but the installed ones.
pub const LASTING: &str = "/var/lib/bowline";

/// What a container without a shim is called in errors.
const CONTAINER: &str = "container";

/// The folder that holds one folder for each task.
#[derive(Debug, Clone)]
pub struct StateDir {
    path: PathBuf,
    lasting: PathBuf,
}

impl StateDir {
    /// The state folder at `path`, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> StateDir {
        StateDir { path: path.into(), lasting: PathBuf::from(LASTING) }
    }

    /// Keeps what outlives a reboot in `folder` instead of `/var/lib/bowline`.
    pub fn lasting_in(self, folder: impl Into<PathBuf>) -> StateDir {
        StateDir { lasting: folder.into(), ..self }
    }

    /// What outlives a reboot, and the part of it that belongs to this state folder.
    pub fn lasting(&self) -> (&Path, PathBuf) {
        // By another path to it, it is the same state folder.
        let path = fs::canonicalize(&self.path).or_else(|_| std::path::absolute(&self.path));
        let path = path.unwrap_or_else(|_| self.path.clone());
        let names = path.components().filter(|part| matches!(part, Component::Normal(_)));
        let folder = names.fold(self.lasting.join("units"), |folder, name| folder.join(name));
        (&self.lasting, folder)
    }

    /// Checks that the folder can be named to shims, and that only our user and root decide what is in it.
    ///
    /// # Errors
    /// `Usage` for a path that is not UTF-8; `WrongState` naming what on the way to the folder another user owns or may
    /// write.
    pub fn check(&self) -> Result<()> {
        if self.path.to_str().is_none() {
            let message = format!("the state folder {:?} is not UTF-8", self.path);
            return Err(Error::new(Kind::Usage, message).hint("choose another one with --state DIR or BOWLINE_STATE"));
        }
        trust::check_folder(&self.path)
    }

    /// What follows its ids in names on the host: see [`host_name`].
    pub fn mark(&self) -> String {
        host_name::mark(&self.path)
    }

    /// The id in this state folder that has the `name` on the host; the name itself where that is of another one.
    pub fn id_of<'a>(&self, name: &'a str) -> &'a str {
        name.strip_suffix(&self.mark()).unwrap_or(name)
    }

    /// Which other state folder has what is called `name` on the host, where the name tells or that folder has it.
    pub fn other_owner_of(&self, name: &str) -> Option<String> {
        let own = self.mark();
        if !own.is_empty() && name.ends_with(&own) {
            return None;
        }
        if host_name::is_marked(name) {
            return Some("another state folder, as its name says".to_owned());
        }
        let there = Path::new(host_name::DEFAULT).join(name);
        (!own.is_empty() && there.symlink_metadata().is_ok())
            .then(|| format!("the state folder {}", host_name::DEFAULT))
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where compiled seccomp filters are kept. Ids never begin with a dot.
    pub fn filter_cache(&self) -> PathBuf {
        self.path.join(".seccomp")
    }

    /// The folder of the journal of events.
    pub fn events(&self) -> PathBuf {
        self.path.join(EVENTS)
    }

    /// The folder of `id`, which need not exist.
    pub fn folder(&self, id: &TaskId) -> Folder {
        Folder::at(self.path.join(id.as_str()))
    }

    /// Makes the state folder, unless it is there.
    ///
    /// # Errors
    /// `Internal` where it cannot be made.
    pub fn make(&self) -> Result<()> {
        let made = fs::DirBuilder::new().mode(0o700).recursive(true).create(&self.path);
        made.map_err(|error| cannot("create the state folder", &self.path, &error))
    }

    /// Makes the folder of a new task and locks it.
    ///
    /// # Errors
    /// `AlreadyExists` when the id is taken.
    pub fn create(&self, id: &TaskId) -> Result<(Folder, Lock)> {
        self.create_with(id, "task", |folder| folder.first_lock(File::lock))
    }

    /// Like [`StateDir::create`], for a container without a shim, and so without a socket.
    pub fn create_container(&self, id: &TaskId) -> Result<(Folder, Lock)> {
        self.create_with(id, CONTAINER, |folder| folder.first_lock(File::lock))
    }

    /// Makes the folder of a new task or sandbox, named by `what`, with what `fill` puts into it,
    /// the lock last. Others see all of it at once.
    pub fn create_with(
        &self,
        id: &TaskId,
        what: &str,
        fill: impl FnOnce(&Folder) -> Result<Lock>,
    ) -> Result<(Folder, Lock)> {
        let folder = self.folder(id);
        let socket = folder.socket();
        if what != CONTAINER && socket.as_os_str().len() > LONGEST_SOCKET_PATH {
            return Err(Error::new(
                Kind::Usage,
                format!("{} is longer than a socket's path can be ({LONGEST_SOCKET_PATH} bytes)", socket.display()),
            )
            .hint("choose a shorter state folder or id"));
        }
        self.make()?;
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700);
        // Ids never begin with a dot. By thread, as several of one program may want the same id at a time.
        let thread = rustix::thread::gettid().as_raw_nonzero();
        let aside = Folder::at(self.path.join(format!(".new-{id}-{thread}")));
        let created = builder.create(&aside.path).or_else(|error| match error.kind() {
            // Left by a thread that was killed and had this number.
            ErrorKind::AlreadyExists => fs::remove_dir_all(&aside.path).and_then(|()| builder.create(&aside.path)),
            _ => Err(error),
        });
        created.map_err(|error| cannot("create", &aside.path, &error))?;
        let made = fill(&aside).and_then(|lock| {
            match renameat_with(CWD, &aside.path, CWD, &folder.path, RenameFlags::NOREPLACE) {
                Ok(()) => Ok(lock),
                Err(Errno::EXIST | Errno::NOTEMPTY) => Err(folder.taken(id, what)),
                Err(errno) => Err(cannot("create", &folder.path, &errno.into())),
            }
        });
        made.map(|lock| (folder, lock)).inspect_err(|_| aside.discard())
    }

    /// Removes what processes that were killed have left beside the folders: one that was being made, or removed. The name
    /// ends with the id of that process.
    pub fn sweep(&self) {
        let names = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let is_half = |name: &String| [".new-", ".removed-"].iter().any(|prefix| name.starts_with(prefix));
        let process = |name: &String| name.rsplit_once('-').and_then(|(_, pid)| pid.parse::<i32>().ok());
        for name in names.filter(is_half) {
            let path = self.path.join(&name);
            // The process may be of another pid namespace.
            let is_held = || File::open(path.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_err());
            if process(&name).is_some_and(|pid| bowline_sys::proc_stat::started(pid).is_none()) && !is_held() {
                // Somebody else may do the same.
                let _ = fs::remove_dir_all(path);
            }
        }
    }

    /// The ids of all tasks that have a folder, sorted.
    pub fn ids(&self) -> Result<Vec<TaskId>> {
        let is_task = |folder: Folder| folder.is_ours() && !folder.is_sandbox();
        Ok(self.all_ids()?.into_iter().filter(|id| is_task(self.folder(id))).collect())
    }

    /// The tasks and sandboxes whose folders this process may not look into, with the errors: a user without the right
    /// to cannot tell the ones from the others.
    pub fn hidden(&self) -> Result<Vec<(TaskId, Error)>> {
        let look = |id: TaskId| {
            let folder = self.folder(&id);
            let error = fs::symlink_metadata(folder.file(LOCK)).err()?;
            let denied = error.kind() == ErrorKind::PermissionDenied;
            denied.then(|| (id, cannot("look into", &folder.path, &error)))
        };
        Ok(self.all_ids()?.into_iter().filter_map(look).collect())
    }

    /// The ids of all tasks and sandboxes that have a folder, sorted.
    pub fn all_ids(&self) -> Result<Vec<TaskId>> {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(cannot("read the state folder", &self.path, &error)),
        };
        // What is known to be no folder is no task; some file systems do not tell here.
        let is_no_folder = |entry: &DirEntry| entry.file_type().is_ok_and(|kind| !kind.is_dir());
        let entries = entries.filter_map(|entry| entry.ok().filter(|entry| !is_no_folder(entry)));
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut ids: Vec<TaskId> = names.filter_map(|name| TaskId::of_container(&name).ok()).collect();
        ids.sort();
        Ok(ids)
    }
}
