//! The lock of a folder: whoever holds it owns the folder.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use bowline_error::{Error, Kind, Result};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{Folder, LOCK, cannot, unreadable};
use crate::trust;

/// The pause before the next look for a shim whose lock is lost. A hang-up would not tell that it has ended: a shim without
/// descriptors closes connections while it lives.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Who owns a task's folder.
#[derive(Debug)]
pub enum Owner {
    /// A living shim, which holds the lock.
    Shim,
    /// Nobody: the lock was free, and is now ours.
    Nobody(Lock),
}

/// The lock of a folder, held.
#[derive(Debug)]
pub struct Lock(pub(super) File);

impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Lock {
    /// The fd to hand to the shim: the lock is held for as long as any copy is open.
    pub fn into_fd(self) -> OwnedFd {
        self.0.into()
    }

    /// Takes over the fd that [`Lock::into_fd`] gave away.
    pub fn from_fd(fd: OwnedFd) -> Lock {
        Lock(File::from(fd))
    }
}

/// The lock of a folder, as it is found.
pub(super) enum Found {
    File(File),
    /// The file is gone or replaced, and a living shim still holds the old one, or another process makes it anew.
    Lost,
}

impl Folder {
    /// Makes the lock of a folder that nobody else knows yet, and takes it: alone, or `lock_shared`.
    pub fn first_lock(&self, take: fn(&File) -> io::Result<()>) -> Result<Lock> {
        let path = self.file(LOCK);
        let made = make(&path).and_then(|file| take(&file).map(|()| Lock(file)));
        made.map_err(|error| cannot("lock", &path, &error))
    }

    /// Opens the lock. If it is lost, it is made anew, unless `is_held` says that somebody still holds the old one.
    ///
    /// # Errors
    /// `NotFound` also for a folder that is no task's.
    pub(super) fn lock_file(&self, is_held: impl FnOnce(&Folder) -> bool) -> Result<Found> {
        let path = self.file(LOCK);
        if !self.is_ours() {
            return Err(self.is_gone());
        }
        let opened = trust::open(File::options().write(true), &path);
        // On a disk that has become read-only, a lock that is there can still be taken.
        let opened = opened.or_else(|error| match error.kind() {
            ErrorKind::ReadOnlyFilesystem => trust::open(File::options().read(true), &path),
            _ => Err(error),
        });
        let found = match opened {
            Ok(file) => Ok(Found::File(file)),
            // Also where somebody makes it at this moment.
            Err(error) if error.kind() == ErrorKind::NotFound || self.has_lost_lock() => self.renew_lock(is_held),
            Err(error) => Err(error),
        };
        match found {
            Ok(found) if self.is_still_there() => Ok(found),
            Ok(_) => Err(self.is_gone()),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(self.is_gone()),
            Err(error) => Err(unreadable("open", &path, &error)),
        }
    }

    /// Whether there is a folder whose lock is no file.
    fn has_lost_lock(&self) -> bool {
        match fs::symlink_metadata(self.file(LOCK)) {
            Ok(meta) => !meta.is_file(),
            Err(error) => error.kind() == ErrorKind::NotFound && self.path.is_dir(),
        }
    }

    fn renew_lock(&self, is_held: impl FnOnce(&Folder) -> bool) -> io::Result<Found> {
        // One at a time: nobody puts another's new lock aside.
        let turn = File::open(&self.path)?;
        match turn.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(Found::Lost),
            Err(TryLockError::Error(error)) => return Err(error),
            Ok(()) => {}
        }
        if !self.has_lost_lock() {
            return make(&self.file(LOCK)).map(Found::File);
        }
        if is_held(self) {
            return Ok(Found::Lost);
        }
        let path = self.file(LOCK);
        if fs::symlink_metadata(&path).is_ok() {
            tracing::warn!(path = %path.display(), "the lock is no file; it is put aside, and made anew");
            fs::rename(&path, self.file(&format!("{LOCK}.aside-{}", std::process::id())))?;
        }
        make(&path).map(Found::File)
    }

    /// Whether a shim answers for the folder. A member of a sandbox has the sandbox's until it has ended.
    pub fn has_shim(&self) -> bool {
        let is_member = fs::symlink_metadata(self.socket()).is_ok_and(|meta| meta.is_symlink());
        if is_member && !matches!(self.exit(), Ok(None)) {
            return false;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let connected = socket.and_then(|socket| rustix::net::connect(&socket, &SocketAddrUnix::new(self.socket())?));
        // So many wait for it that no more can.
        matches!(connected, Ok(()) | Err(Errno::AGAIN))
    }

    /// Takes the lock; waits for a shim that holds it to end.
    ///
    /// # Errors
    /// `NotFound` when the folder is removed.
    pub fn lock(&self) -> Result<Lock> {
        let file = loop {
            match self.lock_file(Folder::has_shim)? {
                Found::File(file) => break file,
                Found::Lost => std::thread::sleep(BETWEEN_LOOKS),
            }
        };
        file.lock().map_err(|error| cannot("lock", &self.file(LOCK), &error))?;
        let lock = Lock(file);
        // Whoever had it may have removed the folder.
        if self.pinned.is_none() || self.is_of(&lock)? { Ok(lock) } else { Err(self.is_gone()) }
    }

    /// Takes the lock together with others, but with nobody who holds it alone: a sandbox member's
    /// lock is held by its launcher and by the shim.
    ///
    /// # Errors
    /// `NotFound` when the folder is removed; `WrongState` when somebody holds the lock alone.
    pub fn lock_shared(&self) -> Result<Lock> {
        let in_use = || Error::new(Kind::WrongState, format!("{} is in use", self.path.display()));
        // It is the sandbox's shim that asks, and answers for the folder.
        let Found::File(file) = self.lock_file(|_| false)? else { return Err(in_use()) };
        match file.try_lock_shared() {
            Ok(()) => Ok(Lock(file)),
            Err(TryLockError::WouldBlock) => Err(in_use()),
            Err(TryLockError::Error(error)) => Err(cannot("lock", &self.file(LOCK), &error)),
        }
    }

    /// Finds out whether a shim owns the folder; takes the lock if none does.
    ///
    /// # Errors
    /// `NotFound` when the folder is removed.
    pub fn owner(&self) -> Result<Owner> {
        let Found::File(file) = self.lock_file(Folder::has_shim)? else { return Ok(Owner::Shim) };
        let lock = Lock(file);
        match lock.0.try_lock() {
            Ok(()) if self.is_of(&lock)? => Ok(Owner::Nobody(lock)),
            // Whoever had it has removed the folder meanwhile.
            Ok(()) => Err(self.is_gone()),
            Err(TryLockError::WouldBlock) => Ok(Owner::Shim),
            Err(TryLockError::Error(error)) => Err(cannot("lock", &self.file(LOCK), &error)),
        }
    }

    /// Whether the lock is this folder's: while its holder waited for it, another process may have removed the folder.
    pub fn is_of(&self, lock: &Lock) -> Result<bool> {
        let ours = lock.0.metadata().map_err(|error| cannot("look into", &self.path, &error))?;
        Ok(fs::metadata(self.file(LOCK)).is_ok_and(|now| (now.dev(), now.ino()) == (ours.dev(), ours.ino())))
    }
}

/// Makes a lock, or opens the one that is there.
fn make(path: &Path) -> io::Result<File> {
    trust::open(File::options().write(true).create(true).truncate(false), path)
}
