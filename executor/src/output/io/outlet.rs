//! Where a stream's bytes go: one outlet for each file, FIFO or reader.
//!
//! An outlet keeps what its reader has not taken yet; as long as it keeps anything, the stream is
//! not read. A guest that takes nothing for [`PATIENCE`] is dropped: a stopped terminal must not
//! stop the task. The client that has the process in its foreground may stop it, as any pipe's
//! reader may. Must not: wait, or decide what becomes of the stream.

use std::fs::{File, FileType, Metadata};
use std::future::pending;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};
use std::time::Duration;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::clock::Moment;
use bowline_model::json::handover::{Fd, bytes};
use bowline_model::trust::{self, Planted};
use bowline_sys as sys;
use rustix::io::ioctl_fionread;
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Where a stream of a process goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Target {
    /// Nowhere: output is discarded.
    #[default]
    Null,
    /// A file, which is appended to, or a FIFO with a reader.
    Path(PathBuf),
    /// A pipe of the shim's own, by its name in `/proc/self/fd`.
    Own(PathBuf),
    /// A FIFO of the client that has the process in its foreground: once that reader has gone, the
    /// process's next write fails.
    Foreground(PathBuf),
    /// A pipe of that client's, which the process may hold: there is no file to it.
    ForegroundPipe(CallersPipe),
}

/// A pipe of another process's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallersPipe {
    /// Its name in `/proc/PID/fd`, where another process may have that pid by now.
    pub path: PathBuf,
    /// What tells it from any other pipe.
    pub inode: u64,
}

impl CallersPipe {
    /// Opens it for writing.
    ///
    /// # Errors
    /// `BadSpec` if it cannot be opened; `Unavailable` if another file is there by now.
    pub fn open(&self) -> Result<(File, FileType)> {
        let (file, meta) = known(open_now(&self.path, false, 0), &self.path)?;
        if !meta.file_type().is_fifo() || meta.ino() != self.inode {
            return Err(Error::new(Kind::Unavailable, format!("{}: it is another file by now", what(&self.path))));
        }
        Ok((file, meta.file_type()))
    }
}

/// How long a guest may take nothing before the task goes on without it.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The destination of an outlet's bytes.
#[derive(Debug)]
enum Sink {
    Null,
    /// Takes everything at once, or refuses it.
    File(File),
    /// A FIFO, or a device that can be full for a while.
    Watched(AsyncFd<File>),
}

impl Sink {
    fn of(file: File, kind: FileType) -> io::Result<Sink> {
        if kind.is_file() {
            return Ok(Sink::File(file));
        }
        if kind.is_fifo() {
            return sys::register_fd(file).map(Sink::Watched);
        }
        match sys::register_fd(file.try_clone()?) {
            Ok(watched) => Ok(Sink::Watched(watched)),
            // EPERM: epoll treats the device as never full.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Sink::File(file)),
            Err(error) => Err(error),
        }
    }
}

/// The reader that an outlet serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reader {
    /// The reader that the task is connected to; bytes that it refuses are counted.
    Own,
    /// The client that has the process in its foreground: nothing is lost when it leaves.
    Foreground,
    /// A client that attached later: nothing is lost when it leaves.
    Guest,
}

/// What a file that cannot be written has not taken: on a full disk, for example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub bytes: u64,
    /// Why, the first time.
    pub errno: i32,
}

/// One destination of a stream.
#[derive(Debug)]
pub struct Outlet {
    sink: Sink,
    pending: Vec<u8>,
    dropped: u64,
    /// What of `dropped` is no reader's fault.
    refused: Option<Refused>,
    reader: Reader,
    /// When the outlet was first found to take nothing.
    stalled: Option<Moment>,
    gone: bool,
}

/// An outlet, as a shim hands it over.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    /// `None` for an outlet that leads nowhere.
    sink: Option<Fd>,
    #[serde(with = "bytes")]
    pending: Vec<u8>,
    dropped: u64,
    #[serde(default)]
    refused: Option<Refused>,
    reader: Reader,
    stalled: Option<Moment>,
    gone: bool,
}

impl Handed {
    pub fn take(self) -> Result<Outlet> {
        let Handed { sink, pending, dropped, refused, reader, stalled, gone } = self;
        let what = || "cannot watch where output goes";
        let sink = match sink.map(Fd::take).transpose()?.map(File::from) {
            None => Sink::Null,
            Some(file) => {
                let kind = file.metadata().doing(Kind::Internal, what)?.file_type();
                Sink::of(file, kind).doing(Kind::Internal, what)?
            }
        };
        Ok(Outlet { sink, pending, dropped, refused, reader, stalled, gone })
    }
}

impl Outlet {
    pub fn hand_over(&self) -> Handed {
        let sink = match &self.sink {
            Sink::Null => None,
            Sink::File(file) => Some(Fd::of(file)),
            Sink::Watched(fifo) => Some(Fd::of(fifo.get_ref())),
        };
        let Outlet { dropped, refused, reader, stalled, gone, .. } = *self;
        Handed { sink, pending: self.pending.clone(), dropped, refused, reader, stalled, gone }
    }

    /// Opens the target that the task itself is connected to.
    pub fn open(target: &Target) -> Result<Outlet> {
        match target {
            Target::Null => Ok(Outlet::new(Sink::Null, Reader::Own)),
            Target::Path(path) | Target::Own(path) => Outlet::of(open(target, path)?, path, Reader::Own),
            Target::Foreground(path) => Outlet::read(path, Reader::Foreground),
            Target::ForegroundPipe(pipe) => Outlet::of(pipe.open()?, &pipe.path, Reader::Foreground),
        }
    }

    /// Opens the target that an attached client reads.
    pub fn guest(target: &Target) -> Result<Outlet> {
        match target {
            Target::Null => Ok(Outlet::new(Sink::Null, Reader::Guest)),
            Target::Path(path) | Target::Own(path) | Target::Foreground(path) => Outlet::read(path, Reader::Guest),
            Target::ForegroundPipe(pipe) => Outlet::of(pipe.open()?, &pipe.path, Reader::Guest),
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

    /// An outlet to an open file that the task is connected to.
    pub fn to(file: File, kind: FileType) -> Result<Outlet> {
        let sink = Sink::of(file, kind).doing(Kind::Internal, || "cannot watch where output goes")?;
        Ok(Outlet::new(sink, Reader::Own))
    }

    fn new(sink: Sink, reader: Reader) -> Outlet {
        Outlet { sink, pending: Vec::new(), dropped: 0, refused: None, reader, stalled: None, gone: false }
    }

    /// Whether the outlet keeps bytes that its reader has not taken.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The bytes that its reader has not taken.
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// How many bytes its FIFO holds that nobody has read.
    pub fn waiting(&self) -> u32 {
        let Sink::Watched(fifo) = &self.sink else { return 0 };
        ioctl_fionread(fifo).ok().and_then(|held| u32::try_from(held).ok()).unwrap_or(0)
    }

    /// Whether there is no reader left.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Whether the reader has the process in its foreground.
    pub fn is_foreground(&self) -> bool {
        self.reader == Reader::Foreground
    }

    /// Whether the reader has attached later.
    pub fn is_guest(&self) -> bool {
        self.reader == Reader::Guest
    }

    /// Returns once the reader has gone, if this reader may go, even while nothing is written. The
    /// kernel reports that as an error of the writing end.
    pub async fn left(&self) {
        match (&self.sink, self.reader) {
            (Sink::Watched(fifo), Reader::Foreground | Reader::Guest) => drop(fifo.ready(Interest::ERROR).await),
            (Sink::Watched(_), Reader::Own) | (Sink::Null | Sink::File(_), _) => pending().await,
        }
    }

    /// Drops a reader that has gone.
    pub fn leave(&mut self) {
        self.gone = true;
    }

    /// An outlet before it, to the same sink, has lost that.
    pub fn has_lost(&mut self, dropped: u64, refused: Option<Refused>) {
        (self.dropped, self.refused) = (dropped, refused);
    }

    /// How many bytes this outlet has lost.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// What its file could not take.
    pub fn refused(&self) -> Option<Refused> {
        self.refused
    }

    /// When the reader is dropped if it takes nothing until then.
    pub fn deadline(&self) -> Option<Moment> {
        self.stalled.filter(|_| self.reader == Reader::Guest).map(|since| since.after(PATIENCE))
    }

    /// Ready once the reader takes something; an error shows in the next write.
    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<()> {
        match &self.sink {
            Sink::Watched(fifo) if self.is_pending() => fifo.poll_write_ready(context).map(drop),
            Sink::Watched(_) | Sink::Null | Sink::File(_) => Poll::Pending,
        }
    }

    /// Takes all of `bytes` and keeps what cannot be written now.
    pub fn write(&mut self, bytes: &[u8]) {
        if self.is_pending() {
            self.pending.extend_from_slice(bytes);
            return;
        }
        let written = self.write_now(bytes, Readiness::Ignored);
        self.keep(&bytes[written..]);
    }

    /// Writes as much of the kept bytes as the reader takes.
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

    /// Drops a guest whose time is over.
    pub fn let_go(&mut self, now: Moment) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.gone = true;
        }
    }

    /// Stops waiting for the reader. The kept bytes go into the FIFO of a client, which is made
    /// larger, so that a pager gets all of them without the shim; bytes that go into no FIFO are
    /// dropped.
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

    /// Whether the kernel reports when the sink takes more.
    fn can_wait(&self) -> bool {
        matches!(self.sink, Sink::Watched(_))
    }

    /// Writes what the sink takes without waiting; returns how many bytes are done. Bytes that the
    /// sink refuses for good are dropped and count as written.
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
                    // Warn only once: later writes may be refused as well.
                    if self.reader == Reader::Own && self.dropped == 0 {
                        tracing::warn!(%error, "output cannot be written, and is dropped");
                    }
                    let lost = bytes.len() - done;
                    // A reader that has gone wants no more; a file is to have all.
                    if self.reader == Reader::Own && error.kind() != io::ErrorKind::BrokenPipe {
                        let errno = error.raw_os_error().unwrap_or_default();
                        self.refused.get_or_insert(Refused { bytes: 0, errno }).bytes += lost as u64;
                    }
                    self.lose(lost);
                    return bytes.len();
                }
            }
        }
        done
    }
}

/// Opens an output target without ever waiting for a FIFO's reader; also returns its file type. A
/// symlink at the end of a caller's path is not followed: a task that may write to the folder could
/// lead the shim to any file. Nor is a file written to that another user has put there.
pub fn open(target: &Target, path: &Path) -> Result<(File, FileType)> {
    if let Target::Own(_) = target {
        return known(open_now(path, true, 0), path).map(|(file, meta)| (file, meta.file_type()));
    }
    let opened = open_named(path).map_err(|error| trust::planted_or(error, path));
    let (file, meta) = known(opened, path)?;
    trust::check_planted(&meta, path).map_err(|error| cannot_open(&error, path))?;
    Ok((file, meta.file_type()))
}

/// Like [`open`], for a FIFO that a client has made to read from; `None` if that reader has gone already.
fn open_read(path: &Path) -> Result<Option<(File, FileType)>> {
    match open_now(path, false, 0) {
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        opened => known(opened, path).map(|(file, meta)| Some((file, meta.file_type()))),
    }
}

/// Opens a path that a caller has named, but no symlink. A FIFO, which may become the process's
/// own, is compared with its metadata instead of opened with `O_NOFOLLOW`: criu would reopen it
/// with that flag.
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

fn known(opened: io::Result<File>, path: &Path) -> Result<(File, Metadata)> {
    let file = opened.map_err(|error| cannot_open(&error, path))?;
    let meta = file.metadata().doing(Kind::Internal, || what(path))?;
    Ok((file, meta))
}

fn what(path: &Path) -> String {
    format!("output: cannot open {}", path.display())
}

pub(super) fn cannot_open(error: &io::Error, path: &Path) -> Error {
    let what = what(path);
    match error.raw_os_error() {
        Some(libc::ELOOP) => {
            Error::new(Kind::BadSpec, format!("{what}: it is a symlink")).hint("name the file that it leads to")
        }
        Some(libc::ENXIO) => Error::new(Kind::WrongState, format!("{what}: it is a FIFO without a reader"))
            .hint("open it for reading first"),
        _ => {
            let hint = match Planted::is(error) {
                true => "choose a folder that no other user may write to",
                false => "the folder must exist and be writable",
            };
            Error::new(Kind::BadSpec, format!("{what}: {error}")).hint(hint)
        }
    }
}

/// How an attempt treats epoll's last report of the fd's readiness.
#[derive(Debug, Clone, Copy)]
pub enum Readiness {
    /// The attempt relies on the report and updates it.
    Kept,
    /// The attempt ignores the report.
    Ignored,
}
