//! The lock of a folder: whoever holds it owns the folder.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use bowline_error::{Error, Kind, Result};

use super::{Folder, LOCK, cannot, unreadable};
use crate::trust;

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

impl Folder {
    pub(super) fn lock_file(&self) -> Result<File> {
        let path = self.file(LOCK);
        let opened = trust::open(File::options().write(true).create(true).truncate(false), &path);
        // On a disk that has become read-only, a lock that is there can still be taken.
        let opened = opened.or_else(|error| match error.kind() {
            ErrorKind::ReadOnlyFilesystem => trust::open(File::options().read(true), &path),
            _ => Err(error),
        });
        match opened {
            Ok(file) if self.is_still_there() => Ok(file),
            Ok(_) => Err(self.is_gone()),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(self.is_gone()),
            Err(error) => Err(unreadable("open", &path, &error)),
        }
    }

    /// Takes the lock; waits for a shim that holds it to end.
    ///
    /// # Errors
    /// `NotFound` when the folder is removed.
    pub fn lock(&self) -> Result<Lock> {
        let file = self.lock_file()?;
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
        let file = self.lock_file()?;
        match file.try_lock_shared() {
            Ok(()) => Ok(Lock(file)),
            Err(TryLockError::WouldBlock) => {
                Err(Error::new(Kind::WrongState, format!("{} is in use", self.path.display())))
            }
            Err(TryLockError::Error(error)) => Err(cannot("lock", &self.file(LOCK), &error)),
        }
    }

    /// Finds out whether a shim owns the folder; takes the lock if none does.
    ///
    /// # Errors
    /// `NotFound` when the folder is removed.
    pub fn owner(&self) -> Result<Owner> {
        let lock = Lock(self.lock_file()?);
        match lock.0.try_lock() {
            Ok(()) if self.is_of(&lock)? => Ok(Owner::Nobody(lock)),
            // Whoever had it has removed the folder meanwhile.
            Ok(()) => Err(self.is_gone()),
            Err(TryLockError::WouldBlock) => Ok(Owner::Shim),
            Err(TryLockError::Error(error)) => Err(cannot("lock", &self.file(LOCK), &error)),
        }
    }

    /// Whether the lock is this folder's: while its holder waited for it, another process may have removed the folder.
    pub(crate) fn is_of(&self, lock: &Lock) -> Result<bool> {
        let ours = lock.0.metadata().map_err(|error| cannot("look into", &self.path, &error))?;
        Ok(fs::metadata(self.file(LOCK)).is_ok_and(|now| (now.dev(), now.ino()) == (ours.dev(), ours.ino())))
    }
}
