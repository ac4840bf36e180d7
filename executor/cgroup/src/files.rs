//! Files of a cgroup that are read or written again and again: each is opened once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::fs::{self, Mode, OFlags};

use crate::tree::{names_below, open_dir, parse_pids, read_fd};
use crate::version::Version;

/// The open files of one folder that were read before.
#[derive(Debug, Default)]
pub struct Files(RefCell<BTreeMap<String, OwnedFd>>);

impl Files {
    /// Reads the whole text of a file of the cgroup `dir`.
    pub fn read(&self, dir: BorrowedFd<'_>, file: &str) -> rustix::io::Result<String> {
        let mut open = self.0.borrow_mut();
        if let Some(known) = open.get(file) {
            let text = read_fd(known);
            if text.is_err() {
                // The file is hidden now, as pressure files can be; it may be shown again.
                open.remove(file);
            }
            return text;
        }
        let opened = fs::openat(dir, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let text = read_fd(&opened)?;
        open.insert(file.to_owned(), opened);
        Ok(text)
    }
}

/// Writes values to files; the last file stays open, because many device rules go to one file.
#[derive(Debug, Default)]
pub struct Writer(Option<(RawFd, String, OwnedFd)>);

impl Writer {
    /// Writes `value` to a file of the cgroup `dir`, in one call.
    pub fn write(&mut self, dir: BorrowedFd<'_>, file: &str, value: &str) -> rustix::io::Result<()> {
        let open = match self.0.take() {
            Some((same, name, open)) if same == dir.as_raw_fd() && name == file => open,
            _ => fs::openat(dir, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?,
        };
        let written = rustix::io::write(&open, value.as_bytes()).map(drop);
        self.0 = Some((dir.as_raw_fd(), file.to_owned(), open));
        written
    }
}

/// The processes of a cgroup and of those below it. Folders stay open, and on v2 the lists too: on
/// v1 a list that is read again through the same fd is up to a second old.
#[derive(Debug, Default)]
pub struct Members {
    procs: Option<OwnedFd>,
    below: BTreeMap<OsString, (OwnedFd, Members)>,
}

impl Members {
    /// Adds the pids in the cgroup `dir`, of this version, and below it; returns whether the cgroup still exists.
    pub fn collect(&mut self, version: Version, dir: BorrowedFd<'_>, pids: &mut Vec<i32>) -> bool {
        if self.procs.is_none() || version == Version::V1 {
            self.procs = fs::openat(dir, "cgroup.procs", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        }
        let Some(Ok(text)) = self.procs.as_ref().map(read_fd) else {
            return false;
        };
        pids.extend(parse_pids(&text));
        for name in names_below(dir) {
            if !self.below.contains_key(&name)
                && let Ok(child) = open_dir(dir, Path::new(&name))
            {
                self.below.insert(name, (child, Members::default()));
            }
        }
        // A cgroup that was removed may exist again by the next time.
        self.below.retain(|_, (child, members)| members.collect(version, child.as_fd(), pids));
        true
    }
}
