//! Where a stream's bytes go to: one outlet for each file, FIFO or reader.
//!
//! An outlet keeps what its reader has not taken yet; while one does, the
//! stream is not read. A guest that takes nothing for [`PATIENCE`] is let go:
//! a terminal that somebody has stopped must not stop the task. Whoever has the
//! process in its foreground may stop it, as any pipe's reader may. Must not:
//! wait, or decide what becomes of the stream.

use std::fs::{File, FileType};
use std::future::pending;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};
use std::time::Duration;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::clock::Moment;

/// Where a stream goes to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Target {
    /// Nowhere.
    #[default]
    Null,
    /// A file, which is appended to, or a FIFO that somebody reads.
    Path(PathBuf),
    /// A pipe of the shim's own, by its name in `/proc/self/fd`.
    Own(PathBuf),
    /// A FIFO of whoever has the process in its foreground: once that reader has
    /// gone, the process's next write fails.
    Foreground(PathBuf),
}

/// How long a guest may take nothing before the task goes on without it.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What takes the bytes.
#[derive(Debug)]
enum Sink {
    Null,
    /// What takes everything at once, or refuses it.
    File(File),
    /// A FIFO, or a device that can be full for a while.
    Watched(AsyncFd<File>),
}

impl Sink {
    fn of(file: File, kind: FileType) -> io::Result<Sink> {
        if kind.is_file() {
            return Ok(Sink::File(file));
        }
        match sys::watch(file.try_clone()?) {
            Ok(watched) => Ok(Sink::Watched(watched)),
            // EPERM: a device that is never full, as epoll sees it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Sink::File(file)),
            Err(error) => Err(error),
        }
    }
}

/// Whom an outlet is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// Whoever reads what the task is connected to; what it refuses is counted.
    Own,
    /// Whoever has the process in its foreground: nothing is lost when it leaves.
    Foreground,
    /// Whoever came later: nothing is lost when it leaves.
    Guest,
}

/// One place that a stream goes to.
#[derive(Debug)]
pub struct Outlet {
    sink: Sink,
    pending: Vec<u8>,
    dropped: u64,
    reader: Reader,
    /// When it was first found to take nothing.
    stalled: Option<Moment>,
    gone: bool,
}

impl Outlet {
    /// Opens what the task itself is connected to.
    pub fn open(target: &Target) -> Result<Outlet> {
        match target {
            Target::Null => Ok(Outlet::new(Sink::Null, Reader::Own)),
            Target::Path(path) | Target::Own(path) => Outlet::of(open(target, path)?, path, Reader::Own),
            Target::Foreground(path) => Outlet::read(path, Reader::Foreground),
        }
    }

    /// Opens what somebody who attaches reads from.
    pub fn guest(target: &Target) -> Result<Outlet> {
        match target {
            Target::Null => Ok(Outlet::new(Sink::Null, Reader::Guest)),
            Target::Path(path) | Target::Own(path) | Target::Foreground(path) => Outlet::read(path, Reader::Guest),
        }
    }

    /// Opens the FIFO at `path`, whose reader may have gone already.
    fn read(path: &Path, reader: Reader) -> Result<Outlet> {
        match open_read(path)? {
            Some(opened) => Outlet::of(opened, path, reader),
            None => Ok(Outlet { gone: true, ..Outlet::new(Sink::Null, reader) }),
        }
    }

    fn of((file, kind): (File, FileType), path: &Path, reader: Reader) -> Result<Outlet> {
        let sink = Sink::of(file, kind).doing(Kind::Internal, || format!("cannot watch {}", path.display()))?;
        Ok(Outlet::new(sink, reader))
    }

    /// What the task is connected to, opened already.
    pub fn to(file: File, kind: FileType) -> Result<Outlet> {
        let sink = Sink::of(file, kind).doing(Kind::Internal, || "cannot watch where output goes")?;
        Ok(Outlet::new(sink, Reader::Own))
    }

    fn new(sink: Sink, reader: Reader) -> Outlet {
        Outlet { sink, pending: Vec::new(), dropped: 0, reader, stalled: None, gone: false }
    }

    /// Whether it has something that its reader has not taken.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether there is nobody to write for any more.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Whether it is for whoever has the process in its foreground.
    pub fn is_foreground(&self) -> bool {
        self.reader == Reader::Foreground
    }

    /// Returns once its reader has gone, of one that may go: also while nothing
    /// is written. The kernel reports that as an error of the writing end.
    pub async fn left(&self) {
        match (&self.sink, self.reader) {
            (Sink::Watched(fifo), Reader::Foreground | Reader::Guest) => drop(fifo.ready(Interest::ERROR).await),
            (Sink::Watched(_), Reader::Own) | (Sink::Null | Sink::File(_), _) => pending().await,
        }
    }

    /// Lets it go whose reader has gone.
    pub fn leave(&mut self) {
        self.gone = true;
    }

    /// Bytes that went nowhere.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// When it is to be let go, should it take nothing until then.
    pub fn deadline(&self) -> Option<Moment> {
        self.stalled.filter(|_| self.reader == Reader::Guest).map(|since| since.after(PATIENCE))
    }

    /// Ready once its reader takes something; an error shows in the write that follows.
    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<()> {
        match &self.sink {
            Sink::Watched(fifo) if self.is_pending() => fifo.poll_write_ready(context).map(drop),
            Sink::Watched(_) | Sink::Null | Sink::File(_) => Poll::Pending,
        }
    }

    /// Takes all of `bytes`: what cannot be written now is kept.
    pub fn write(&mut self, bytes: &[u8]) {
        if self.is_pending() {
            self.pending.extend_from_slice(bytes);
            return;
        }
        let written = self.write_now(bytes, Readiness::Ignored);
        self.keep(&bytes[written..]);
    }

    /// Writes of what is kept as much as its reader takes.
    pub fn flush(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let written = self.write_now(&pending, Readiness::Kept);
        if written > 0 {
            self.stalled = None;
        }
        self.keep(&pending[written..]);
    }

    fn keep(&mut self, rest: &[u8]) {
        self.pending.extend_from_slice(rest);
        match rest.is_empty() {
            true => self.stalled = None,
            false => drop(self.stalled.get_or_insert_with(Moment::now)),
        }
    }

    /// Lets a guest go whose time is over.
    pub fn let_go(&mut self, now: Moment) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.gone = true;
        }
    }

    /// Waits for its reader no longer. What is kept goes into the FIFO of a client,
    /// which is made larger, so that a pager gets all of it without the shim; what
    /// goes into none is dropped.
    pub fn give_up(&mut self) {
        self.hand_off();
        if self.reader != Reader::Guest {
            self.dropped += self.pending.len() as u64;
        }
        self.pending.clear();
    }

    fn hand_off(&mut self) {
        let Sink::Watched(fifo) = &self.sink else { return };
        if self.reader == Reader::Own || !self.is_pending() {
            return;
        }
        let larger = fcntl_getpipe_size(fifo).and_then(|held| fcntl_setpipe_size(fifo, held + self.pending.len()));
        if larger.is_ok() {
            let pending = std::mem::take(&mut self.pending);
            let written = self.write_now(&pending, Readiness::Ignored);
            self.keep(&pending[written..]);
        }
    }

    fn lose(&mut self, bytes: usize) {
        match self.reader {
            Reader::Foreground | Reader::Guest => self.gone = true,
            Reader::Own => self.dropped += bytes as u64,
        }
    }

    /// Whether the kernel tells when the sink takes more.
    fn can_wait(&self) -> bool {
        matches!(self.sink, Sink::Watched(_))
    }

    /// Writes what the sink takes without waiting; what it refuses for good is
    /// dropped, and counts as written.
    fn write_now(&mut self, bytes: &[u8], readiness: Readiness) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let outcome = match (&mut self.sink, readiness) {
                (Sink::Null, _) => return bytes.len(),
                (Sink::File(file), _) => file.write(rest),
                (Sink::Watched(fifo), Readiness::Kept) => fifo.try_io(Interest::WRITABLE, |mut fifo| fifo.write(rest)),
                (Sink::Watched(fifo), Readiness::Ignored) => fifo.get_ref().write(rest),
            };
            match outcome {
                Ok(length) => done += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.can_wait() => return done,
                Err(error) => {
                    // Once: the next may be refused as well.
                    if self.reader == Reader::Own && self.dropped == 0 {
                        tracing::warn!(%error, "output cannot be written, and is dropped");
                    }
                    self.lose(bytes.len() - done);
                    return bytes.len();
                }
            }
        }
        done
    }
}

/// Opens what output goes to, without ever waiting for a FIFO's reader; tells
/// what it is. A link at the end of a path that somebody named is not followed: a
/// task that may write to the folder could lead the shim to any file.
pub fn open(target: &Target, path: &Path) -> Result<(File, FileType)> {
    let opened = match target {
        Target::Own(_) => open_now(path, true, 0),
        Target::Null | Target::Path(_) | Target::Foreground(_) => open_named(path),
    };
    known(opened, path)
}

/// As [`open`], for a FIFO that somebody has made to read from; `None` if that reader
/// has gone already.
pub fn open_read(path: &Path) -> Result<Option<(File, FileType)>> {
    match open_now(path, false, 0) {
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        opened => known(opened, path).map(Some),
    }
}

/// What somebody has named, and no link. A FIFO, which may become the process's
/// own, is looked at instead: criu would open it anew with the flag.
fn open_named(path: &Path) -> io::Result<File> {
    let Some(fifo) = path.symlink_metadata().ok().filter(|found| found.file_type().is_fifo()) else {
        return open_now(path, true, libc::O_NOFOLLOW);
    };
    let file = open_now(path, false, 0)?;
    let opened = file.metadata()?;
    if (opened.dev(), opened.ino()) != (fifo.dev(), fifo.ino()) {
        return Err(io::Error::from_raw_os_error(libc::ELOOP));
    }
    Ok(file)
}

fn open_now(path: &Path, create: bool, follow: i32) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | follow;
    File::options().append(true).create(create).mode(0o640).custom_flags(flags).open(path)
}

fn known(opened: io::Result<File>, path: &Path) -> Result<(File, FileType)> {
    let what = || format!("output: cannot open {}", path.display());
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => {
            Error::new(Kind::BadSpec, format!("{}: it is a symlink", what())).hint("name the file that it leads to")
        }
        _ => Error::new(Kind::BadSpec, format!("{}: {error}", what()))
            .hint("the folder must exist and be writable, and a FIFO must have a reader"),
    })?;
    let kind = file.metadata().doing(Kind::Internal, what)?.file_type();
    Ok((file, kind))
}

/// Whether an attempt goes by, and updates, what epoll last said of the fd.
#[derive(Debug, Clone, Copy)]
pub enum Readiness {
    /// It does.
    Kept,
    /// It is made whatever that was.
    Ignored,
}
