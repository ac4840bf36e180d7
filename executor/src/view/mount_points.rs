//! Where a root has no place for the files of `name_files`: nothing of it stays in the user's root.
//!
//! ```text
//!   there ─► mounted over          no /etc ─► the task has none of them
//!   missing ─┬ root with changes in memory ─► made there
//!            ├ its filesystem is read-only ─► the folder is covered by a view of it (`rootfs/room.rs`)
//!            └ else ─► a file for now, removed by the last task that uses it
//!   a link into /run, to nothing ─► the folder there is covered by a view of it
//!   a folder, a link elsewhere, … ─► left as it is, with a note
//! ```
//!
//! A mount needs a file below it, and the kernel drops the mounts on a file that is removed, in all tasks. A layer over
//! `/etc` would do without, and would lose what the task writes there. So the file counts its users: each task adds the
//! line of its folder, and removes it at its end. Lines of tasks that are gone do not count, so that a crash leaves no
//! file for good, whichever state folder they were in. Nobody may read the file, and it is sticky, which means nothing
//! for a file: that is its mark, from its first moment on.
//!
//! All is looked up inside the root: it may have any symlink.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_error::Kind;
use bowline_model::folder::{Folder, Record};
use bowline_sys as sys;
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, StatVfsMountFlags, flock, fstat, fstatvfs, ftruncate,
    openat, readlinkat, statat, unlinkat,
};
use rustix::io::{Errno, pwrite, write};
use rustix::process::geteuid;

use crate::view::inside_root::{self, Symlinks};

const ETC: &str = "etc";

/// The mode of a file for now. An empty one may be of a task that was killed as it made it.
const MARK: u32 = 0o1000;

/// What the line of a task begins with.
const USED_BY: &str = "# bowline: ";

/// The most bytes of a file's lines.
const LARGEST: u64 = 256 << 10;

/// How often a file is tried that another task has locked, and how long after the last time. It is locked for the time
/// of two system calls; a process that can open it, as root of the host can, may lock it for longer.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);

/// What the mounts of a task need.
#[derive(Debug, Default)]
pub struct MountPoints {
    /// What has to be made in the root's `/etc`, for as long as tasks use it.
    pub for_now: Vec<PathBuf>,
    /// Mount points that are not made in the root: a view covers the folder that lacks one.
    pub covered: Vec<PathBuf>,
    /// What the root cannot have, a sentence each.
    pub notes: Vec<String>,
}

#[derive(PartialEq)]
enum Place {
    There,
    ForNow,
    /// In a view of `/etc`, which all such files share.
    InView,
    /// In a view of another folder.
    Covered,
    Never(&'static str),
}

impl MountPoints {
    /// Looks at the root for a place for each of the files `wanted`, and takes those from the list that have none.
    /// Changes of an `ephemeral` root are in memory.
    /// What is mounted at `own` comes later.
    pub fn find(root: &Path, ephemeral: bool, own: &[&Path], wanted: &mut Vec<&'static str>) -> MountPoints {
        let mut found = MountPoints::default();
        let etc = match open_etc(root) {
            Ok(etc) => etc,
            // The task makes what it needs in memory.
            Err(Errno::NOENT) if ephemeral => return found,
            Err(_) => {
                wanted.clear();
                return found;
            }
        };
        let mut has_view = false;
        wanted.retain(|path| {
            let place = place(root, etc.as_fd(), Path::new(path), ephemeral, own);
            match place {
                Place::There => {}
                Place::InView if has_view => {}
                Place::ForNow => found.for_now.push(PathBuf::from(*path)),
                Place::InView | Place::Covered => {
                    has_view |= place == Place::InView;
                    found.covered.push(PathBuf::from(*path));
                }
                Place::Never(why) => found.notes.push(note(path, why)),
            }
            !matches!(place, Place::Never(_))
        });
        found
    }
}

fn note(path: &str, why: &str) -> String {
    format!("the root's own {path} is {why}: the task has none from bowline")
}

fn place(root: &Path, etc: BorrowedFd<'_>, path: &Path, ephemeral: bool, own: &[&Path]) -> Place {
    let name = path.file_name().unwrap_or_default();
    let kind = |stat: &Stat| FileType::from_raw_mode(stat.st_mode);
    let is = match statat(etc, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) if ephemeral => return Place::There,
        Err(Errno::NOENT) if is_read_only(etc) => return Place::InView,
        Err(Errno::NOENT) => return Place::ForNow,
        Err(_) => return Place::Never("not to be looked at"),
        Ok(stat) if is_for_now(&stat) && !ephemeral && !is_read_only(etc) => return Place::ForNow,
        Ok(stat) => kind(&stat),
    };
    let is = match is {
        FileType::Symlink => match open_in(root, path, OFlags::empty()) {
            Ok(file) => fstat(file).map_or(FileType::Unknown, |stat| kind(&stat)),
            Err(Errno::NOENT) if ephemeral => return Place::There,
            Err(Errno::NOENT) if leads_into_run(root, etc, name, own) => return Place::Covered,
            Err(_) => return Place::Never("a link that leads nowhere"),
        },
        is => is,
    };
    if is == FileType::RegularFile { Place::There } else { Place::Never("no file") }
}

/// Whether the text of a symlink leads below the root's `/run`, where nothing lasts anyway, and not into a mount of its `own`.
fn leads_into_run(root: &Path, etc: BorrowedFd<'_>, name: &OsStr, own: &[&Path]) -> bool {
    let Ok(target) = readlinkat(etc, name, Vec::new()) else { return false };
    let target = PathBuf::from("/etc").join(OsStr::from_bytes(target.as_bytes()));
    let target: PathBuf = inside_root::resolved(&target).into_iter().collect();
    let is_there = |run: &&str| open_in(root, Path::new(run), OFlags::DIRECTORY).is_ok();
    if own.iter().any(|own| target.starts_with(own.strip_prefix("/").unwrap_or(own))) {
        return false;
    }
    ["run", "var/run"].iter().any(|run| target.starts_with(run) && target != Path::new(run) && is_there(run))
}

/// Opens the root's `/etc`, which may be a symlink inside.
fn open_etc(root: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(root.join(ETC), flags, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => open_in(root, Path::new(ETC), OFlags::DIRECTORY),
        etc => etc,
    }
}

fn open_in(root: &Path, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let root = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    inside_root::open(root.as_fd(), path, flags | OFlags::PATH | OFlags::CLOEXEC, Symlinks::Followed)
}

fn is_read_only(folder: BorrowedFd<'_>) -> bool {
    fstatvfs(folder).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY))
}

fn is_for_now(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_mode & 0o7777 == MARK
}

/// Makes the mount points of the task in `folder`, which is recorded, where they are missing. Returns those that could
/// not be made, each with the reason.
pub fn make(folder: &Folder, root: &Path, mount_points: &[PathBuf]) -> Vec<(PathBuf, Errno)> {
    let etc = open_etc(root);
    let make = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        etc.as_ref().map_err(|errno| *errno).and_then(|etc| enter(etc.as_fd(), name, folder.path())).err()
    };
    mount_points.iter().filter_map(|path| Some((path.clone(), make(path)?))).collect()
}

/// Gives up the mount points of the task in `folder`, and removes those that no other task uses.
pub fn give_up(folder: &Folder, record: &Record) {
    if record.mount_points.is_empty() {
        return;
    }
    let Some(root) = record.task.as_ref().and_then(|task| task.rootfs.as_deref()) else { return };
    let etc = match open_etc(root) {
        // The user has removed it.
        Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => return,
        etc => etc,
    };
    for path in &record.mount_points {
        let name = path.file_name().unwrap_or_default();
        let done = etc.as_ref().map_err(|errno| *errno).and_then(|etc| leave(etc.as_fd(), name, folder.path()));
        if let Err(error) = done {
            tracing::warn!(%error, root = %root.display(), path = %path.display(), "a mount point is left in the root");
        }
    }
}

/// Adds the line of the task in `folder` to the file `name`, which is made where it is missing.
fn enter(etc: BorrowedFd<'_>, name: &OsStr, folder: &Path) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for _ in 0..TRIES {
        let file = match openat(etc, name, flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(MARK)) {
            Err(Errno::EXIST) => match reopened(etc, name, flags)? {
                Some(file) => file,
                // The user has made one meanwhile, or the last task has removed it.
                None if statat(etc, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() => return Ok(()),
                None => continue,
            },
            file => file?,
        };
        if is_locked(&file)? && fstat(&file)?.st_nlink > 0 {
            write(&file, line(folder).as_bytes())?;
            return Ok(());
        }
    }
    Err(Errno::BUSY)
}

/// Removes the line of the task in `folder` from the file `name`, and the file where no task is left that uses it.
fn leave(etc: BorrowedFd<'_>, name: &OsStr, folder: &Path) -> rustix::io::Result<()> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for _ in 0..TRIES {
        let Some(file) = reopened(etc, name, flags)? else { return Ok(()) };
        if !is_locked(&file)? {
            continue;
        }
        let about = fstat(&file)?;
        if about.st_nlink == 0 {
            continue;
        }
        let file = File::from(file);
        let text = sys::read_of_length(&file, about.st_size.cast_unsigned(), LARGEST);
        let text = text.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::FBIG))?;
        let text = String::from_utf8_lossy(&text);
        let own = line(folder);
        let rest: String = text.split_inclusive('\n').filter(|line| *line != own && is_in_use(line)).collect();
        return match rest.is_empty() {
            true => match statat(etc, name, AtFlags::SYMLINK_NOFOLLOW)? {
                is if (is.st_dev, is.st_ino) == (about.st_dev, about.st_ino) => unlinkat(etc, name, AtFlags::empty()),
                _ => Ok(()),
            },
            // In this order no crash loses a line.
            false => pwrite(&file, rest.as_bytes(), 0).and_then(|_| ftruncate(&file, rest.len() as u64)),
        };
    }
    Err(Errno::BUSY)
}

/// Opens the file `name` if it is one that was made for now. Others may put anything in its place at any moment, such as a
/// device, which is not even opened.
fn reopened(etc: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> rustix::io::Result<Option<OwnedFd>> {
    let found = match openat(etc, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        found => found?,
    };
    let stat = fstat(&found)?;
    // A second name could be that of any file of this mode.
    if !is_for_now(&stat) || stat.st_nlink > 1 || stat.st_uid != geteuid().as_raw() {
        return Ok(None);
    }
    rustix::fs::open(format!("/proc/self/fd/{}", found.as_raw_fd()), flags - OFlags::NOFOLLOW, Mode::empty()).map(Some)
}

/// Locks the file until it is closed. Waits for another's lock, and returns false then: the file may be gone.
fn is_locked(file: &OwnedFd) -> rustix::io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            std::thread::sleep(PAUSE);
            Ok(false)
        }
        locked => locked.map(|()| true),
    }
}

fn line(folder: &Path) -> String {
    format!("{USED_BY}{}\n", folder.display())
}

/// Whether a line is of a task that has not ended. What bowline has not written is the user's.
fn is_in_use(line: &str) -> bool {
    let Some(folder) = line.trim_end_matches('\n').strip_prefix(USED_BY) else { return true };
    let folder = Folder::at(PathBuf::from(folder));
    // What cannot be read may be of one that runs.
    let has_record = folder.record().as_ref().map_or_else(|error| error.kind() != Kind::NotFound, Option::is_some);
    has_record && !matches!(folder.exit(), Ok(Some(_)))
}
