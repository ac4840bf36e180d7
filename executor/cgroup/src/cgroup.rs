//! One cgroup.

use std::cell::RefCell;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::path::Path;

use rustix::fs;

use crate::entry::Entry;
use crate::files::{Files, Members};
use crate::hierarchy::Made;
use crate::systemd::Unit;

/// One cgroup, in every hierarchy, held open.
#[derive(Debug)]
pub struct Cgroup {
    pub(crate) path: String,
    /// The cgroup's systemd unit, if systemd made it.
    pub(crate) unit: Option<Unit>,
    pub(crate) members: Vec<Member>,
    pub(crate) processes: RefCell<Members>,
}

/// The part of a cgroup in one hierarchy.
#[derive(Debug)]
pub(crate) struct Member {
    /// The index of the hierarchy in the layout.
    pub(crate) hierarchy: usize,
    pub(crate) made: Made,
    files: Files,
}

impl Member {
    pub(crate) fn new(hierarchy: usize, made: Made) -> Member {
        Member { hierarchy, made, files: Files::default() }
    }

    pub(crate) fn read(&self, file: &str) -> Option<String> {
        self.files.read(self.made.dir().ok()?, file).ok()
    }
}

impl Cgroup {
    pub(crate) fn new(path: &str) -> Cgroup {
        Cgroup { path: path.to_owned(), unit: None, members: Vec::new(), processes: RefCell::default() }
    }

    /// Keeps `parent`, the sandbox's cgroup around this one, when this one is removed.
    pub fn stay_in(&mut self, parent: &str) {
        let parts = Path::new(parent).components().count() - 1;
        self.members.iter_mut().for_each(|member| member.made.keep(parts));
    }

    /// Keeps the cgroup, where it was there before, when it is removed.
    pub fn stay_if_found(&mut self) {
        self.members.iter_mut().filter(|member| member.made.was_there()).for_each(|member| {
            member.made.keep(member.made.parts());
        });
    }

    /// Whether the cgroup is still where it was made, in every hierarchy: another process may have removed it.
    pub fn is_there(&self) -> bool {
        self.members.iter().all(|member| {
            // The folder of a removed cgroup stays open, and has nothing in it.
            member
                .made
                .dir()
                .is_ok_and(|dir| fs::accessat(dir, "cgroup.procs", fs::Access::EXISTS, fs::AtFlags::empty()).is_ok())
        })
    }

    /// Where it is below every hierarchy.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The cgroup's systemd unit, if systemd made it.
    pub fn unit(&self) -> Option<&Unit> {
        self.unit.as_ref()
    }

    /// The entry through which a child joins the cgroup.
    pub fn entry(&self) -> Entry {
        Entry::new(self.path.clone(), self.v1_tasks(), self.unified())
    }

    pub(crate) fn v1_tasks(&self) -> Vec<RawFd> {
        let v1 = self.members.iter().filter(|m| !m.made.unified);
        v1.map(|m| m.made.tasks.as_raw_fd()).collect()
    }

    pub(crate) fn unified(&self) -> Option<(RawFd, RawFd)> {
        let member = self.members.iter().find(|m| m.made.unified);
        // The folder has been open since it was made.
        member.and_then(|m| Some((m.made.dir().ok()?.as_raw_fd(), m.made.tasks.as_raw_fd())))
    }

    pub(crate) fn member(&self, hierarchy: usize) -> Option<&Member> {
        self.members.iter().find(|m| m.hierarchy == hierarchy)
    }

    pub(crate) fn dir(&self, hierarchy: usize) -> Option<BorrowedFd<'_>> {
        self.member(hierarchy)?.made.dir().ok()
    }
}
