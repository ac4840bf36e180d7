//! A cgroup as a folder: its files, its processes, and the cgroups below it.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bowline_sys as sys;
use rustix::fs::{self, AtFlags, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

/// Removes the cgroup at `path` below `parent` with everything below it; a cgroup that is gone already is fine.
pub fn remove_tree(parent: &OwnedFd, path: &Path) -> rustix::io::Result<()> {
    match fs::unlinkat(parent, path, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::BUSY | Errno::NOTEMPTY) => {}
        Err(errno) => return Err(errno),
    }
    let dir = open_dir(parent, path)?;
    for name in names_below(dir.as_fd()) {
        remove_tree(&dir, Path::new(&name))?;
    }
    fs::unlinkat(parent, path, AtFlags::REMOVEDIR)
}

/// The names of the cgroups directly below `dir`, read from its beginning through this fd. A task may have made some of
/// them, with names that are no UTF-8.
pub fn names_below(dir: BorrowedFd<'_>) -> Vec<OsString> {
    let mut names = Vec::new();
    // kernfs counts folders alone as links, and a folder has two of its own.
    if fs::fstat(dir).is_ok_and(|stat| stat.st_nlink == 2) {
        return names;
    }
    if fs::seek(dir, SeekFrom::Start(0)).is_err() {
        return names;
    }
    let mut buffer = Vec::with_capacity(4096);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(Ok(entry)) = entries.next() {
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if entry.file_type() == fs::FileType::Directory && name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    names
}

/// The pids that a `cgroup.procs` lists.
pub fn parse_pids(text: &str) -> impl Iterator<Item = i32> {
    text.lines().filter_map(|line| line.parse().ok())
}

/// Adds the processes of the cgroup `dir` and of the cgroups below it.
pub fn collect_processes(dir: BorrowedFd<'_>, pids: &mut Vec<i32>) {
    collect(dir, "cgroup.procs", pids);
}

/// Adds the ids that `file` lists in the cgroup `dir` and in those below it.
pub fn collect(dir: BorrowedFd<'_>, file: &str, ids: &mut Vec<i32>) {
    ids.extend(parse_pids(&read_at(dir, file).unwrap_or_default()));
    for name in names_below(dir) {
        if let Ok(child) = open_dir(dir, Path::new(&name)) {
            collect(child.as_fd(), file, ids);
        }
    }
}

/// Signals every process in `dir` and below it; returns a pidfd of each.
pub fn signal_below(dir: BorrowedFd<'_>, signal: i32) -> Vec<OwnedFd> {
    signal_where(dir, signal, |_| true)
}

/// Signals those processes below `dir` whose pid is `wanted`; returns a pidfd of each.
pub fn signal_where(dir: BorrowedFd<'_>, signal: i32, wanted: impl FnMut(i32) -> bool) -> Vec<OwnedFd> {
    let mut members = members_where(dir, wanted);
    members.retain(|pidfd| sys::pidfd_send_signal(pidfd.as_fd(), signal).is_ok());
    members
}

/// A pidfd of every process below `dir`.
pub fn members_below(dir: BorrowedFd<'_>) -> Vec<OwnedFd> {
    members_where(dir, |_| true)
}

/// A pidfd of the process `pid`, if that is below `dir`.
pub fn member(dir: BorrowedFd<'_>, pid: i32) -> Option<OwnedFd> {
    members_where(dir, |one| one == pid).pop()
}

fn members_where(dir: BorrowedFd<'_>, mut wanted: impl FnMut(i32) -> bool) -> Vec<OwnedFd> {
    let mut pids = Vec::new();
    collect_processes(dir, &mut pids);
    if pids.is_empty() {
        return Vec::new();
    }
    let opened: Vec<(i32, OwnedFd)> =
        pids.into_iter().filter_map(|pid| Some((pid, sys::pidfd_open(pid).ok()?))).collect();
    // The pid is still listed after its pidfd was opened, so the pidfd is that of a member, not of
    // a stranger with the pid of a member that ended meanwhile.
    let mut members = Vec::new();
    collect_processes(dir, &mut members);
    opened.into_iter().filter(|(pid, _)| members.contains(pid) && wanted(*pid)).map(|(_, pidfd)| pidfd).collect()
}

/// Opens a folder as the start of further paths.
pub fn open_dir<Fd: AsFd>(parent: Fd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fs::openat(parent, path, flags, Mode::empty())
}

/// Writes `value` to a file of the cgroup `dir`, in one call.
pub fn write_at(dir: BorrowedFd<'_>, file: &str, value: &str) -> rustix::io::Result<()> {
    let fd = fs::openat(dir, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&fd, value.as_bytes()).map(drop)
}

/// Reads the whole text of a file of the cgroup `dir`.
pub fn read_at(dir: BorrowedFd<'_>, file: &str) -> rustix::io::Result<String> {
    read_fd(&fs::openat(dir, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Reads an open file from its beginning: the kernel makes the text again.
///
/// A read that leaves half of its room unused has met the end. The kernel fills the room record by record (`seq_file`),
/// and no record of a list, such as a pid, is as long as that; every other file is a single record. Bytes that are no
/// UTF-8 are replaced: a process chooses its own name.
pub fn read_fd(file: &OwnedFd) -> rustix::io::Result<String> {
    const ROOM: usize = 4096;
    let mut text = Vec::with_capacity(ROOM);
    loop {
        text.reserve(ROOM);
        let before = text.len();
        match rustix::io::pread(file, rustix::buffer::spare_capacity(&mut text), before as u64) {
            Ok(length) if length < ROOM / 2 => return Ok(sys::lossy(text)),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
