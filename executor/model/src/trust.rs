//! Which files we trust: those in folders that no other user may write to, and that are no symlinks.
//!
//! The owner of a folder, and any user who may write to a folder above it, decides what is in it,
//! and what we read there says which cgroups are ended, as root. The rule is sshd's for
//! `authorized_keys` (StrictModes), with folders like `/tmp` allowed above, whose sticky bit lets
//! no user rename what is another's. Must not: know what a file says.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use bowline_error::{Error, Kind, Result};
use bowline_sys as sys;

/// The most symlinks that the kernel follows in one path (path_resolution(7)).
const SYMLINKS: usize = 40;

/// Whether a file is our user's, and no other user may even read it.
pub fn is_ours_alone(meta: &Metadata) -> bool {
    meta.is_file() && meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o077 == 0
}

/// Whether only we or root decide what `file`, or what comes of it, contains.
fn is_trusted_owner(meta: &Metadata) -> bool {
    meta.uid() == 0 || meta.uid() == rustix::process::geteuid().as_raw()
}

/// Whether what is at `path`, above our folder, is the host's: in a user namespace, all users that are not mapped are shown
/// as the overflow uid, and the host's root is one of them. Any of them can have made what is in a folder for all.
fn is_hosts(path: &Path, meta: &Metadata) -> bool {
    let overflow = || sys::read_kernel_text("/proc/sys/kernel/overflowuid").ok()?.trim_end().parse().ok();
    let above = || fs::metadata(path.parent().unwrap_or(path)).is_ok_and(|above| above.mode() & 0o022 == 0);
    !sys::in_first_user_namespace() && overflow() == Some(meta.uid()) && above()
}

/// Checks that only our user and root can change what is in the folder at `path`, which is
/// absolute, or put another in its place. A folder that does not exist yet is fine if it would be
/// made in a safe place.
///
/// # Errors
/// `WrongState` naming the folder or symlink on the way that another user owns or may write.
pub fn check_folder(path: &Path) -> Result<()> {
    weak_spot(path).map_or(Ok(()), |(found, why)| Err(refused(path, &found, &why)))
}

/// The folder or symlink on the way to `path`, which is absolute, or `path` itself, that another user than ours and root
/// owns, or may write where it is a folder: and why. `None` where there is none, or nothing at `path`.
pub fn weak_spot(path: &Path) -> Option<(PathBuf, String)> {
    let mut todo: Vec<OsString> = parts(path);
    let mut here = PathBuf::from("/");
    let mut symlinks = 0;
    loop {
        let last = todo.is_empty();
        let meta = match fs::symlink_metadata(&here) {
            Ok(meta) => meta,
            // The caller that makes or reads it reports what is wrong.
            Err(_) => return None,
        };
        let weak = |why: String| Some((here.clone(), why));
        if !is_trusted_owner(&meta) && (last || !is_hosts(&here, &meta)) {
            return weak(format!("belongs to user {}", meta.uid()));
        }
        if meta.is_symlink() {
            symlinks += 1;
            let to = fs::read_link(&here).ok()?;
            if symlinks > SYMLINKS {
                return None;
            }
            here = if to.is_absolute() { "/".into() } else { here.parent().unwrap_or(Path::new("/")).to_owned() };
            todo.extend(parts(&to));
        } else if meta.is_dir() && meta.mode() & 0o022 != 0 && (last || meta.mode() & 0o1000 == 0) {
            return weak(format!("can be written by others (mode {:04o})", meta.mode() & 0o7777));
        }
        match todo.pop() {
            Some(part) if part == ".." => drop(here.pop()),
            Some(part) => here.push(part),
            None => return None,
        }
    }
}

/// Checks that no other user has put the file at `path`, which was opened with this `meta`, where others may write: its
/// owner decides who reads it, and another of its names may be anybody's file. The kernel has the same rule for whoever
/// may create the file, unless `fs.protected_regular` and `fs.protected_hardlinks` are 0.
///
/// # Errors
/// A [`Planted`].
pub fn check_planted(meta: &Metadata, path: &Path) -> io::Result<()> {
    let is_linked = meta.is_file() && meta.nlink() > 1;
    if is_trusted_owner(meta) && !is_linked {
        return Ok(());
    }
    let folder = fs::metadata(path.parent().unwrap_or(Path::new("/")))?;
    let is_shared = folder.mode() & 0o002 != 0 || folder.mode() & 0o1020 == 0o1020;
    if is_shared && (is_linked || meta.uid() != folder.uid()) {
        return Err(io::Error::other(Planted { owner: meta.uid(), is_linked }));
    }
    Ok(())
}

/// Whether another user has put the file at `path`, which has this metadata, into a folder where others may write.
pub fn is_planted(meta: &Metadata, path: &Path) -> bool {
    check_planted(meta, path).is_err_and(|error| Planted::is(&error))
}

/// `error` as it is, or that another user has put a file at `path`, where the kernel refuses that itself.
pub fn planted_or(error: io::Error, path: &Path) -> io::Error {
    if error.kind() != ErrorKind::PermissionDenied {
        return error;
    }
    match path.symlink_metadata().map(|meta| check_planted(&meta, path)) {
        Ok(Err(planted)) => planted,
        Ok(Ok(())) | Err(_) => error,
    }
}

/// A file that another user has put into a folder where others may write.
#[derive(Debug)]
pub struct Planted {
    owner: u32,
    is_linked: bool,
}

impl Planted {
    /// Whether `error` is one.
    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Planted>())
    }
}

impl std::fmt::Display for Planted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.is_linked {
            true => f.write_str("the file has a second name, and other users may write to its folder"),
            false => write!(f, "the file belongs to user {}, and other users may write to its folder", self.owner),
        }
    }
}

impl std::error::Error for Planted {}

/// The parts of a path, the first part last.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().filter(|c| matches!(c, Component::Normal(_) | Component::ParentDir));
    parts.map(|c| c.as_os_str().to_owned()).rev().collect()
}

fn refused(path: &Path, found: &Path, why: &str) -> Error {
    let what = if found == path { "it".to_owned() } else { found.display().to_string() };
    Error::new(Kind::WrongState, format!("the state folder {} is not safe: {what} {why}", path.display()))
        .hint("choose a folder, by --state DIR, in which only you and root can change anything, on all of its path")
}

/// Opens a file, but no symlink (`ELOOP`); never waits, for example for the other end of a FIFO.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

/// Opens the file at `path`, which a caller has named, for writing; makes it where there is none. A symlink is followed
/// only where no other user can have made it.
///
/// # Errors
/// The errors of [`open`] and [`check_planted`].
pub fn open_named(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let path = &std::path::absolute(path)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let is_ours = |meta: Metadata| is_trusted_owner(&meta) && meta.mode() & 0o022 == 0;
    let file = match open(options.create(true), path) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            if !fs::metadata(folder).is_ok_and(is_ours) {
                return Err(io::Error::other("it is a symlink, in a folder that other users may write to"));
            }
            options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?
        }
        opened => opened.map_err(|error| planted_or(error, path))?,
    };
    check_planted(&file.metadata()?, path)?;
    Ok(file)
}

/// Writes `bytes` over the file at `path`, which a caller has named: see [`open_named`].
///
/// # Errors
/// Those of [`open_named`], and what the disk refuses.
pub fn write_named(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    let mut file = open_named(File::options().write(true), path)?;
    // A terminal or a pipe has no length.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(bytes)
}

/// Reads the file at `path`.
///
/// # Errors
/// The errors of [`open`]; `InvalidInput` for what is no file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open(File::options().read(true), path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or_default() + 1);
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the file at `path`, which is absolute, up to `most` bytes. Symlinks are followed where only we and root can have
/// made them.
///
/// # Errors
/// Who else can change the file, or what it leads to; `InvalidInput` for what is no file; `FileTooLarge`.
pub fn read_trusted(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    if let Some((found, why)) = weak_spot(path) {
        let what = if found == path { String::new() } else { format!("{} ", found.display()) };
        return Err(io::Error::other(format!("{what}{why}")));
    }
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    if !is_trusted_owner(&meta) {
        return Err(io::Error::other(format!("belongs to user {}", meta.uid())));
    }
    if meta.mode() & 0o022 != 0 {
        return Err(io::Error::other(format!("can be written by others (mode {:04o})", meta.mode() & 0o7777)));
    }
    let mut bytes = Vec::new();
    if file.take(most + 1).read_to_end(&mut bytes)? as u64 > most {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("has more than {most} bytes")));
    }
    Ok(bytes)
}

/// Creates an empty file at `path`, open for writing.
pub fn create(path: &Path) -> io::Result<File> {
    let begin = || open(File::options().write(true).create(true).truncate(true), path);
    match begin() {
        // Nobody needs a symlink there, and its target stays as it is.
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => fs::remove_file(path).and_then(|()| begin()),
        opened => opened,
    }
}

/// Writes `bytes` to the file at `path`, whole or not at all.
pub fn write(path: &Path, temporary: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    let written = create(temporary)?.write_all(bytes).and_then(|()| fs::rename(temporary, path));
    if written.is_err() {
        // It would keep what little room a full disk has.
        let _ = fs::remove_file(temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_folder_is_safe_where_nobody_else_may_write_on_the_way() {
        let dir = tempfile::tempdir().expect("a folder");
        let (open, state) = (dir.path().join("open"), dir.path().join("open/state"));
        fs::create_dir_all(&state).expect("ours");
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
        for (above, own, fine) in
            [(0o755, 0o700, true), (0o755, 0o755, true), (0o1777, 0o700, true), (0o777, 0o700, false)]
                .into_iter()
                .chain([(0o775, 0o700, false), (0o755, 0o770, false), (0o755, 0o1777, false), (0o755, 0o702, false)])
        {
            set(&open, above);
            set(&state, own);
            assert_eq!(check_folder(&state).is_ok(), fine, "{above:o} {own:o}");
        }
        set(&open, 0o777);
        assert!(check_folder(&open.join("not/there")).is_err(), "where it would be made");
        let link = dir.path().join("link");
        symlink("open/../open", &link).expect("ours");
        assert!(check_folder(&link).is_err(), "what a symlink leads to");
        set(&open, 0o755);
        set(&state, 0o700);
        check_folder(&link.join("state")).expect("a symlink of ours");
        symlink("loop", dir.path().join("loop")).expect("ours");
        check_folder(&dir.path().join("loop")).expect("whoever opens it says so");
    }

    #[test]
    fn a_file_is_no_symlink_and_no_fifo() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("file");
        let temporary = dir.path().join("file.new");
        write(&path, &temporary, b"text").expect("ours");
        assert_eq!(read(&path).expect("there"), b"text");
        let link = dir.path().join("link");
        symlink(&path, &link).expect("ours");
        assert_eq!(read(&link).expect_err("a symlink").raw_os_error(), Some(libc::ELOOP));
        write(&dir.path().join("other"), &link, b"more").expect("the symlink itself is replaced");
        assert_eq!(read(dir.path()).expect_err("a folder").kind(), ErrorKind::InvalidInput);
        assert_eq!(read(&path).expect("untouched"), b"text");
    }
}
