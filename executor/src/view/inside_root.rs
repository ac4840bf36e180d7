//! Opens a path inside a root, whatever symlinks are in it.
//!
//! By `openat2`; where that is absent (Linux < 5.6, or an outer seccomp filter that is older), by a
//! walk of one O_NOFOLLOW step at a time, which follows symlinks by their text and resolves `..`
//! from its own stack.
//!
//! The walk guarantees that no step leaves the root, because no step follows a symlink or climbs.
//! It has one gap: if someone on the host moves a folder out of the root while the walk is in it,
//! the walk goes on below the folder's new place; openat2 notices at the next `..`.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use bowline_sys as sys;
use rustix::fs::{self, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, Result};

/// The most symlinks that the kernel follows in one path (path_resolution(7)).
pub const MOST_SYMLINKS: usize = 40;

/// Filesystems that have magic links, which lead wherever the kernel wants:
/// procfs, securityfs, AppArmor's (linux/magic.h).
const WITH_MAGIC_LINKS: [fs::FsWord; 3] = [0x9fa0, 0x7363_6673, 0x5a3c_69f0];

/// What to do with a symlink on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symlinks {
    /// A symlink is an error: `ELOOP`.
    Refused,
    /// A symlink is followed, an absolute one from the root on; a magic link is an error: `ELOOP`.
    Followed,
}

/// Opens `path` inside `root`, which `..` never leaves.
///
/// # Errors
/// As openat2(2): `ELOOP` for a symlink that must not be followed.
pub fn open(root: BorrowedFd<'_>, path: &Path, flags: OFlags, symlinks: Symlinks) -> Result<OwnedFd> {
    let resolve = match symlinks {
        Symlinks::Refused => ResolveFlags::NO_SYMLINKS,
        Symlinks::Followed => ResolveFlags::NO_MAGICLINKS,
    };
    let path = path.strip_prefix("/").unwrap_or(path);
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match sys::openat2(root, path, flags, resolve | ResolveFlags::IN_ROOT) {
        Err(errno) if sys::is_absent(errno) => walk(root, path, flags, symlinks),
        done => done,
    }
}

/// The walk part by part for kernels without openat2.
fn walk(root: BorrowedFd<'_>, path: &Path, flags: OFlags, symlinks: Symlinks) -> Result<OwnedFd> {
    let step = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // The folders from the root down to the current one.
    let mut stack: Vec<OwnedFd> = Vec::new();
    let mut ahead: VecDeque<OsString> = parts(path).collect();
    let mut followed = 0;
    while let Some(part) = ahead.pop_front() {
        let here = stack.last().map_or(root, |fd| fd.as_fd());
        if part == ".." {
            if FileType::from_raw_mode(fs::fstat(here)?.st_mode) != FileType::Directory {
                return Err(Errno::NOTDIR);
            }
            stack.pop();
            continue;
        }
        let next = fs::openat(here, &part, step, Mode::empty())?;
        if FileType::from_raw_mode(fs::fstat(&next)?.st_mode) == FileType::Symlink {
            followed += 1;
            if symlinks == Symlinks::Refused || followed > MOST_SYMLINKS || is_on_magic(&next)? {
                return Err(Errno::LOOP);
            }
            let target = fs::readlinkat(&next, c"", Vec::new())?;
            let target = Path::new(OsStr::from_bytes(target.as_bytes()));
            if target.is_absolute() {
                stack.clear();
            }
            for part in parts(target).collect::<Vec<_>>().into_iter().rev() {
                ahead.push_front(part);
            }
        } else if ahead.is_empty() && !flags.contains(OFlags::PATH) {
            // If the part has become a symlink meanwhile, this is an error.
            return fs::openat(here, &part, flags | OFlags::NOFOLLOW, Mode::empty());
        } else {
            stack.push(next);
        }
    }
    if !flags.contains(OFlags::PATH) {
        // The walk came here by a `..`, or this is the root itself: a folder.
        let here = stack.last().map_or(root, |fd| fd.as_fd());
        return fs::openat(here, ".", flags, Mode::empty());
    }
    let found = stack.pop().map_or_else(|| rustix::io::fcntl_dupfd_cloexec(root, 0), Ok)?;
    if flags.contains(OFlags::DIRECTORY) && FileType::from_raw_mode(fs::fstat(&found)?.st_mode) != FileType::Directory {
        return Err(Errno::NOTDIR);
    }
    Ok(found)
}

/// Whether the kernel itself may decide where the symlink `link` leads.
pub fn is_on_magic(link: &OwnedFd) -> Result<bool> {
    let kind = fs::fstatfs(link)?.f_type;
    Ok(WITH_MAGIC_LINKS.contains(&kind))
}

/// Whether `path` is the folder `name` of the root, judged by its text alone.
pub fn is_at(path: &Path, name: &str) -> bool {
    resolved(path) == [name]
}

/// The names from the root to `path`, judged by its text alone; none for the root.
pub fn resolved(path: &Path) -> Vec<OsString> {
    let mut left = Vec::new();
    for part in parts(path) {
        if part == ".." {
            left.pop();
        } else {
            left.push(part);
        }
    }
    left
}

/// The names in `path` and each `..`, in their order.
pub fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A root with a file, folders and symlinks of every kind.
    fn root() -> (tempfile::TempDir, OwnedFd) {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("a/b")).expect("made");
        std::fs::write(at("a/file"), "text").expect("written");
        symlink("/a/file", at("absolute")).expect("made");
        symlink("../../../../a/file", at("a/climbing")).expect("made");
        symlink("a/b", at("folder")).expect("made");
        symlink("/etc/passwd", at("out")).expect("made");
        symlink("loop2", at("loop1")).expect("made");
        symlink("loop1", at("loop2")).expect("made");
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let fd = fs::openat(fs::CWD, dir.path(), flags, Mode::empty()).expect("it opens");
        (dir, fd)
    }

    #[test]
    fn the_walk_answers_as_openat2_does() {
        let (_dir, root) = root();
        let paths = [
            "a/file",
            "/a/file",
            "a/../a/file",
            "../../a/file",
            "a/b/..",
            ".",
            "/",
            "absolute",
            "a/climbing",
            "folder",
            "folder/../file",
            "out",
            "loop1",
            "missing",
            "a/file/x",
            "a/file/..",
            "missing/..",
            "a//b/",
        ];
        for path in paths {
            for symlinks in [Symlinks::Refused, Symlinks::Followed] {
                for flags in [OFlags::PATH, OFlags::RDONLY, OFlags::PATH | OFlags::DIRECTORY] {
                    let flags = flags | OFlags::CLOEXEC;
                    let what = |opened: Result<OwnedFd>| opened.map(|fd| fs::fstat(&fd).expect("open").st_ino);
                    let by_walk = what(walk(root.as_fd(), Path::new(path), flags, symlinks));
                    let by_kernel = what(open(root.as_fd(), Path::new(path), flags, symlinks));
                    assert_eq!(by_walk, by_kernel, "{path} {symlinks:?} {flags:?}");
                }
            }
        }
    }

    #[test]
    fn the_walk_follows_no_magic_link() {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let slash = fs::openat(fs::CWD, "/", flags, Mode::empty()).expect("it opens");
        for path in ["proc/self/root/etc", "proc/self/fd/0", "proc/self/cwd"] {
            let opened = walk(slash.as_fd(), Path::new(path), flags, Symlinks::Followed);
            assert_eq!(opened.map(drop), Err(Errno::LOOP), "{path}");
        }
    }
}
