//! The task's own folder, as Nomad has filled it: what the job's templates and artifacts have put there, and the command.
//!
//! ```text
//!   <allocation>/<task>/ local, secrets, … ─ Nomad's own, mounted in any case
//!                        app/              ─ at /app, as a whole
//!                        etc/app.conf      ─ alone at /etc/app.conf, as the task's root has an /etc
//! ```
//!
//! Every path is resolved inside the folder: an artifact, or an earlier start of the task, may have left any symlink.

use std::fs::read_link;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};

use bowline_executor::internal::{Symlinks, open_inside};
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::HOST_VIEW;
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

use crate::proto::driver::{Mount, TaskConfig};

/// What Nomad and this driver have in a task's folder for themselves, and what must stay the kernel's in a task.
const NOT_THE_JOBS: [&str; 9] = ["alloc", "dev", "hosts", "local", "private", "proc", "resolv.conf", "secrets", "sys"];

/// The folders that a root has besides those of the host.
const MADE: [&str; 6] = ["home", "root", "run", "tmp", "var", "var/tmp"];

/// The most files that are mounted one by one.
const MOST: usize = 1000;

/// Where Nomad's executor seeks a command by its name alone, whatever the task's PATH is.
const RESTRICTED_PATH: [&str; 3] = ["usr/local/bin", "usr/bin", "bin"];

/// The permission bits that Nomad's own executor gives a command.
const EXECUTABLE: u32 = 0o555;

/// The folder of a task, opened.
#[derive(Debug)]
pub struct OwnFolder {
    fd: OwnedFd,
    /// Its path, without symlinks.
    path: PathBuf,
    allocation: PathBuf,
}

/// What a job has put into the task's folder, and where the task sees it.
#[derive(Debug, PartialEq)]
pub struct Brought {
    pub source: PathBuf,
    pub inside: PathBuf,
}

/// The root that a task gets.
#[derive(Debug)]
enum Root {
    View,
    Folder(OwnedFd),
}

impl Root {
    fn of(image: Option<&Path>) -> Result<Root> {
        Ok(image.map(folder).transpose()?.map_or(Root::View, Root::Folder))
    }

    /// Whether there is a regular file at `path`, which is relative.
    fn has_file(&self, path: &Path) -> bool {
        match self {
            Root::View => Root::shows(path).is_some_and(|path| path.is_file()),
            Root::Folder(root) => regular(root, path).is_some(),
        }
    }

    /// The path of the host that the view shows at `path`.
    fn shows(path: &Path) -> Option<PathBuf> {
        let from_root = Path::new("/").join(path);
        HOST_VIEW.iter().any(|shown| from_root.starts_with(shown)).then_some(from_root)
    }

    /// Whether there is a folder at `path`, which is relative.
    fn has(&self, path: &Path) -> bool {
        if MADE.iter().any(|made| path == Path::new(made)) {
            return true;
        }
        match self {
            Root::View => Root::shows(path).is_some_and(|path| path.is_dir()),
            Root::Folder(root) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                open_inside(root.as_fd(), path, flags, Symlinks::Followed).is_ok()
            }
        }
    }
}

impl OwnFolder {
    /// Opens the folder that Nomad has made for the task; `None` where it is missing: the launch says what of it is.
    ///
    /// # Errors
    /// `Internal` where it cannot be opened.
    pub fn open(task: &TaskConfig) -> Result<Option<OwnFolder>> {
        let allocation = PathBuf::from(&task.alloc_dir);
        let path = allocation.join(&task.name);
        let fd = match folder(&path) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            opened => opened?,
        };
        let path = found_at(&fd).doing(Kind::Internal, || format!("cannot find {} again", path.display()))?;
        Ok(Some(OwnFolder { fd, path, allocation }))
    }

    /// What the job has put beside Nomad's own folders; `image`: the task's root, if it is a folder. A folder that the
    /// root has too is gone through, so that the rest of it stays.
    ///
    /// # Errors
    /// `BadSpec` where it is too much.
    pub fn brought(&self, image: Option<&Path>) -> Result<Vec<Brought>> {
        let root = Root::of(image)?;
        let mut brought = Vec::new();
        self.list(Path::new(""), &root, &mut brought)?;
        Ok(brought)
    }

    fn list(&self, below: &Path, root: &Root, brought: &mut Vec<Brought>) -> Result<()> {
        let what = || format!("cannot list {}", self.path.join(below).display());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listed = open_inside(self.fd.as_fd(), below, flags, Symlinks::Refused).doing(Kind::Internal, what)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&listed).doing(Kind::Internal, what)? {
            // A description has text alone.
            let name = entry.doing(Kind::Internal, what)?.file_name().to_str().map(str::to_owned);
            names.extend(name.ok().filter(|name| name != "." && name != ".."));
        }
        names.sort();
        for name in names {
            let path = below.join(&name);
            let is_nomads = below.as_os_str().is_empty() && NOT_THE_JOBS.contains(&&*name);
            let Some((found, kind)) = self.resolve(&path).filter(|_| !is_nomads) else { continue };
            let is_link = found != self.path.join(&path);
            match kind {
                FileType::Directory if root.has(&path) && is_link => {}
                FileType::Directory if root.has(&path) => self.list(&path, root, brought)?,
                FileType::Directory | FileType::RegularFile => {
                    brought.push(Brought { source: found, inside: Path::new("/").join(path) });
                }
                _ => {}
            }
            if brought.len() > MOST {
                let message = format!("there are more than {MOST} files in folders that the root filesystem has too");
                return Err(Error::new(Kind::BadSpec, message)
                    .in_field("template")
                    .hint("unpack an artifact into a folder of its own, or below local/"));
            }
        }
        Ok(())
    }

    /// Where `path` leads inside the folder, and what is there; `None` where that is nothing, or Nomad's.
    fn resolve(&self, path: &Path) -> Option<(PathBuf, FileType)> {
        let fd = open_inside(self.fd.as_fd(), path, OFlags::PATH | OFlags::CLOEXEC, Symlinks::Followed).ok()?;
        let kind = FileType::from_raw_mode(fstat(&fd).ok()?.st_mode);
        let found = found_at(&fd).ok()?;
        let is_ours = found.starts_with(&self.path) && !found.starts_with(self.path.join("private"));
        // The whole folder has what is Nomad's.
        (is_ours && found != self.path).then_some((found, kind))
    }

    /// Where the task sees its `command`, by the order of Nomad's executor: in `local/`, in the task's folder, in its
    /// volumes, and by its name in the places of programs. What is found in the folder is made executable. `None` for what
    /// the root has, which is `image`'s if that is a folder.
    ///
    /// # Errors
    /// `NotExecutable` where that fails.
    pub fn program(&self, command: &str, volumes: &[Mount], image: Option<&Path>) -> Result<Option<PathBuf>> {
        let path = cleaned(command);
        if path.as_os_str().is_empty() || path.starts_with("private") {
            return Ok(None);
        }
        for path in [Path::new("local").join(&path), path.clone()] {
            let found = match path.strip_prefix("alloc") {
                Ok(rest) => folder(&self.allocation.join("alloc")).ok().and_then(|fd| regular(&fd, rest)),
                Err(_) => regular(&self.fd, &path),
            };
            if let Some(found) = found {
                return executable(&found, &path).map(Some);
            }
        }
        let in_volume = |volume: &Mount| {
            let rest = path.strip_prefix(cleaned(&volume.task_path)).ok()?;
            folder(Path::new(&volume.host_path)).ok().and_then(|fd| regular(&fd, rest))
        };
        if command.contains('/') {
            // A path of the root's that does not begin with `/` is meant from there, whatever folder the task begins in.
            let is_there = volumes.iter().any(|volume| in_volume(volume).is_some())
                || !command.starts_with('/') && Root::of(image)?.has_file(&path);
            return Ok(is_there.then(|| Path::new("/").join(path)));
        }
        let root = Root::of(image)?;
        for path in RESTRICTED_PATH.map(|dir| Path::new(dir).join(command)) {
            match regular(&self.fd, &path) {
                Some(found) => return executable(&found, &path).map(Some),
                None if root.has_file(&path) => break,
                None => {}
            }
        }
        Ok(None)
    }
}

/// `path` from the root, judged by its text: what climbs stays there.
fn cleaned(path: &str) -> PathBuf {
    let mut cleaned = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => cleaned.push(name),
            Component::ParentDir => drop(cleaned.pop()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    cleaned
}

fn folder(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat(CWD, path, flags, Mode::empty());
    let kind = if matches!(opened, Err(Errno::NOENT)) { Kind::NotFound } else { Kind::Internal };
    opened.doing(kind, || format!("cannot open {}", path.display()))
}

fn regular(root: &OwnedFd, path: &Path) -> Option<OwnedFd> {
    let fd = open_inside(root.as_fd(), path, OFlags::PATH | OFlags::CLOEXEC, Symlinks::Followed).ok()?;
    let stat = fstat(&fd).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some(fd)
}

/// Makes what was found at `path` in the task's folder executable; returns where the task sees it.
fn executable(found: &OwnedFd, path: &Path) -> Result<PathBuf> {
    make_executable(found).doing(Kind::NotExecutable, || format!("cannot make {} executable", path.display()))?;
    Ok(Path::new("/").join(path))
}

fn make_executable(fd: &OwnedFd) -> rustix::io::Result<()> {
    let mode = fstat(fd)?.st_mode & 0o7777;
    if mode & EXECUTABLE == EXECUTABLE {
        return Ok(());
    }
    // The fd is an O_PATH one.
    rustix::fs::chmod(through(fd), Mode::from_raw_mode(mode | EXECUTABLE))
}

fn found_at(fd: &OwnedFd) -> std::io::Result<PathBuf> {
    read_link(through(fd))
}

fn through(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}
