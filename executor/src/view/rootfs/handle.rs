//! Descriptors that refer to a file without opening it, and what kind of file that is.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, CWD, FileType, Mode, OFlags};

pub fn open_path(path: &Path) -> rustix::io::Result<OwnedFd> {
    fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

pub fn file_type<Fd: AsFd>(fd: Fd) -> rustix::io::Result<FileType> {
    fs::fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode))
}
