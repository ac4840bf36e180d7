//! Waits until a log grows, or the shim that writes it exits.
//!
//! A pidfd reports the shim's exit. The record has the shim's pid, and the process that holds the folder's lock wrote
//! the record.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use bowline_executor::internal::is_holder;
use bowline_model::folder::Folder;
use bowline_model::folder::{Owner, Record};
use bowline_model::{Doing, Kind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::ui::reader::Reader;

/// How often to look for what nothing reports: a folder that is missing, the end of a shim whose pid is not known.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// How often to look whether a shim that lives has let go of a lock.
const BETWEEN_LOOKS: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// How long a shim that has written its report is given to let go of the task.
const RELEASED_WITHIN: Duration = Duration::from_secs(2);

/// The shim that writes a log.
pub struct Shim {
    folder: Folder,
    pid: Option<i32>,
    /// `None` if the record names no process that lives, as where a new shim could not write it yet.
    pidfd: Option<OwnedFd>,
}

impl Shim {
    /// The shim of the task in `folder`, whose record was read.
    pub fn of(folder: &Folder, record: Option<&Record>) -> Shim {
        let pid = record.map(|record| record.shim_pid);
        let pidfd = pid.and_then(Pid::from_raw).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // Check the lock after opening the pidfd: while it is held, the pid is the shim's, not a stranger's.
        Shim { folder: folder.clone(), pid, pidfd: pidfd.filter(|pidfd| !has_ended(pidfd) && is_held(folder)) }
    }

    /// Waits until the shim of a task that has ended lets go of the task: all output is written then. Another process may
    /// keep the lock longer.
    pub fn until_released(&self) {
        let Some(pidfd) = &self.pidfd else { return };
        let given_up = Instant::now() + RELEASED_WITHIN;
        while Instant::now() < given_up && self.pid.is_some_and(|pid| is_holder(pid, &self.folder)) {
            // Its end is seen at once; a sandbox's shim lives on.
            let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&BETWEEN_LOOKS));
        }
    }

    /// Whether the shim is gone and will write no more.
    pub fn is_gone(&self) -> bool {
        self.pidfd.as_ref().map_or_else(|| !is_held(&self.folder), has_ended)
    }
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Whether a shim holds the folder, as far as we may know.
fn is_held(folder: &Folder) -> bool {
    matches!(folder.owner(), Ok(Owner::Shim))
}

/// Watches folders for changed files.
pub struct Watch(OwnedFd);

impl Watch {
    /// Makes a watch without folders.
    pub fn new() -> Result<Watch> {
        bowline_client::inotify::begin(CreateFlags::NONBLOCK, || "cannot watch for changes".to_owned()).map(Watch)
    }

    /// Watches `folder`, even if it was replaced; false if it does not exist.
    pub fn add(&self, folder: &Path) -> bool {
        let changes = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE_SELF;
        inotify::add_watch(&self.0, folder, changes).is_ok()
    }

    /// Waits until something has changed, or the shim or the reader of our stdout is gone. Waits only a moment if not all
    /// folders are watched (`complete` is false), or nothing reports the shim's end.
    pub fn wait(&self, shim: &Shim, complete: bool) -> Result<Reader> {
        let stdout = std::io::stdout();
        let mut watched = vec![PollFd::new(&stdout, PollFlags::empty()), PollFd::new(&self.0, PollFlags::IN)];
        watched.extend(shim.pidfd.iter().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
        let is_reported = complete && shim.pidfd.is_some();
        match poll(&mut watched, (!is_reported).then_some(&LOOK_AGAIN)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).doing(Kind::Internal, || "cannot wait for changes"),
        }
        let reader = Reader::after(watched[0].revents());
        // Which files changed does not matter: everything is checked again.
        let mut events = [0u8; 4096];
        while rustix::io::read(&self.0, &mut events).is_ok_and(|length| length > 0) {}
        Ok(reader)
    }
}
