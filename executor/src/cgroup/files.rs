//! Files of a cgroup that are read again and again: each is opened once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, Mode, OFlags};

use super::tree::{names_below, open_dir, parse_pids, read_fd};

/// The files of one folder that were read before.
#[derive(Debug, Default)]
pub struct Files(RefCell<BTreeMap<String, OwnedFd>>);

impl Files {
    /// Reads a file of the cgroup `dir` whole.
    pub fn read(&self, dir: BorrowedFd<'_>, file: &str) -> rustix::io::Result<String> {
        let mut open = self.0.borrow_mut();
        if let Some(known) = open.get(file) {
            let text = read_fd(known);
            if text.is_err() {
                // Hidden meanwhile, as pressure can be; it may be shown again.
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

/// The processes of a cgroup and of those below it.
#[derive(Debug, Default)]
pub struct Members {
    procs: Option<OwnedFd>,
    below: BTreeMap<String, (OwnedFd, Members)>,
}

impl Members {
    /// Adds the pids in the cgroup `dir` and below it; whether it still is there.
    pub fn collect(&mut self, dir: BorrowedFd<'_>, pids: &mut Vec<i32>) -> bool {
        if self.procs.is_none() {
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
        // One that was removed may be there again by the next time.
        self.below.retain(|_, (child, members)| members.collect(child.as_fd(), pids));
        true
    }
}
