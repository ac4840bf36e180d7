//! Waiting for a log to grow, or for the shim that writes it to leave.
//!
//! The shim's end is told by its pidfd: its pid is the record's, and whoever
//! holds the folder's lock is the one that wrote it.

use std::os::fd::OwnedFd;
use std::path::Path;

use bowline_executor::{Doing, Folder, Kind, Owner, Record, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::ui::reader::Reader;

/// How often a folder that is away is looked for.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The shim that writes a log.
pub enum Shim {
    /// It lives, or did when it was looked for; without a record nobody knows it.
    There(Option<OwnedFd>),
    /// There is none any more.
    Gone,
}

impl Shim {
    /// The shim of the task in `folder`, of which this record was read.
    pub fn of(folder: &Folder, record: Option<&Record>) -> Result<Shim> {
        let pid = record.and_then(|record| Pid::from_raw(record.shim_pid));
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // The lock is looked at afterwards: while it is held, the pid is the
        // shim's, and no stranger's.
        match folder.owner()? {
            Owner::Shim => Ok(Shim::There(pidfd)),
            Owner::Nobody(_) => Ok(Shim::Gone),
        }
    }

    fn pidfd(&self) -> Option<&OwnedFd> {
        match self {
            Shim::There(pidfd) => pidfd.as_ref(),
            Shim::Gone => None,
        }
    }

    /// Whether it has gone, and with it all that it would write.
    pub fn is_gone(&self) -> bool {
        let Some(pidfd) = self.pidfd() else { return matches!(self, Shim::Gone) };
        poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

/// What tells that a folder's files have changed.
pub struct Watch(OwnedFd);

impl Watch {
    /// One that watches nothing yet.
    pub fn new() -> Result<Watch> {
        let flags = CreateFlags::CLOEXEC | CreateFlags::NONBLOCK;
        inotify::init(flags).map(Watch).doing(Kind::Internal, || "cannot watch for changes")
    }

    /// Watches `folder`, also one that is another by now; false if there is none.
    pub fn add(&self, folder: &Path) -> bool {
        let changes = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE_SELF;
        inotify::add_watch(&self.0, folder, changes).is_ok()
    }

    /// Waits until something has changed, the shim has gone, or whoever reads our
    /// stdout; a moment only when the folders are not all watched.
    pub fn wait(&self, shim: &Shim, complete: bool) -> Result<Reader> {
        let stdout = std::io::stdout();
        let mut watched = vec![PollFd::new(&stdout, PollFlags::empty()), PollFd::new(&self.0, PollFlags::IN)];
        watched.extend(shim.pidfd().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
        match poll(&mut watched, (!complete).then_some(&LOOK_AGAIN)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).doing(Kind::Internal, || "cannot wait for changes"),
        }
        let reader = Reader::after(watched[0].revents());
        // Which ones does not matter: everything is looked at.
        let mut events = [0u8; 4096];
        while rustix::io::read(&self.0, &mut events).is_ok_and(|length| length > 0) {}
        Ok(reader)
    }
}
