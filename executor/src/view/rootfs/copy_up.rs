//! `tmpcopyup`: fills a new tmpfs with what it will hide.
//!
//! Works through file descriptors, one name at a time, and follows no symlink: the files are the image's. Keeps
//! owners, modes and times of change. Leaves out devices and sockets, which a nodev tmpfs has no use for.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{self, AtFlags, Dir, FileType, Gid, Mode, OFlags, RawMode, Uid};
use rustix::io::Errno;

/// How deep folders may nest: no image nests them deeper where this is asked for.
const DEEPEST: usize = 64;

/// Copies what is in the folder `from` into the folder `to`, which gets its owner. Its mode is an option of the tmpfs.
pub fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let to = fs::openat(to, ".", folder, Mode::empty())?;
    let stat = fs::fstat(from)?;
    fs::fchown(&to, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    copy_below(from, to.as_fd(), DEEPEST)
}

fn copy_below(from: BorrowedFd<'_>, to: BorrowedFd<'_>, deeper: usize) -> io::Result<()> {
    if deeper == 0 {
        return Err(Errno::NAMETOOLONG.into());
    }
    let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let listed = fs::openat(from, ".", folder, Mode::empty())?;
    for entry in Dir::read_from(&listed)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let stat = fs::statat(&listed, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                fs::mkdirat(to, name, Mode::from_raw_mode(0o700))?;
                let (below, made) =
                    (fs::openat(&listed, name, folder, Mode::empty())?, fs::openat(to, name, folder, Mode::empty())?);
                copy_below(below.as_fd(), made.as_fd(), deeper - 1)?;
                keep(&stat, made.as_fd())?;
            }
            FileType::RegularFile => {
                let source =
                    fs::openat(&listed, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let made = fs::openat(to, name, flags, Mode::from_raw_mode(0o600))?;
                pour(source, &made)?;
                keep(&stat, made.as_fd())?;
            }
            FileType::Symlink => {
                let target = fs::readlinkat(&listed, name, Vec::new())?;
                fs::symlinkat(&target, to, name)?;
                let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
                fs::chownat(to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Gives the file that `to` refers to the owner and mode of `stat`.
fn keep(stat: &fs::Stat, to: BorrowedFd<'_>) -> io::Result<()> {
    fs::fchown(to, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    // After the owner, because a change of owner clears set-user-id.
    fs::fchmod(to, Mode::from_raw_mode(stat.st_mode as RawMode & 0o7777))?;
    Ok(())
}

fn pour(from: OwnedFd, to: &OwnedFd) -> io::Result<()> {
    let mut from = std::fs::File::from(from);
    let mut to = std::fs::File::from(to.try_clone()?);
    io::copy(&mut from, &mut to).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn files_folders_and_links_are_copied_with_their_modes() {
        let (from, to) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let at = |name: &str| from.path().join(name);
        std::fs::create_dir_all(at("a/b")).expect("made");
        std::fs::write(at("a/b/file"), "text").expect("written");
        std::fs::set_permissions(at("a/b/file"), std::fs::Permissions::from_mode(0o4711)).expect("ours");
        symlink("/etc/passwd", at("link")).expect("made");
        let open = |path: &std::path::Path| std::fs::File::open(path).expect("it opens");
        copy(open(from.path()).as_fd(), open(to.path()).as_fd()).expect("copied");
        let there = |name: &str| to.path().join(name);
        assert_eq!(std::fs::read_to_string(there("a/b/file")).expect("copied"), "text");
        assert_eq!(std::fs::metadata(there("a/b/file")).expect("copied").permissions().mode() & 0o7777, 0o4711);
        assert_eq!(std::fs::read_link(there("link")).expect("copied"), std::path::Path::new("/etc/passwd"));
    }
}
