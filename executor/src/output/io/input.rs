//! Sources of a process's stdin: nothing, a file handed over as it is, a FIFO, or what attached clients write.
//!
//! Bytes from a FIFO pass through a pipe. If the process got the FIFO itself, opening `/dev/stdin`
//! again would block once the FIFO's writer has gone.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::json::handover::{Fd, bytes};
use bowline_sys as sys;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;

use super::end::{End, Owner, is_null, pipe};
use super::flag::FlagReader;
use crate::process::page_release;
use crate::waits;

/// Bytes passed on at a time: what a pipe holds. The buffer exists for as long as input is fed.
const CHUNK: usize = 64 * 1024;

/// Where a process's stdin comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Input {
    /// Nothing: stdin is at its end from the start.
    #[default]
    Null,
    /// A file, or a FIFO that has a writer: the input ends when the last writer closes it.
    Path(PathBuf),
    /// What attached clients write; it does not end before the process does.
    Open,
}

impl Input {
    /// Returns the process's end, and for [`Input::Open`] the end to feed. A FIFO is read until it or the process ends,
    /// by one of `feeds`.
    pub fn open(
        &self,
        owner: Owner,
        process_ended: &FlagReader,
        feeds: &Feeds,
    ) -> Result<(End, Option<Rc<AsyncFd<File>>>)> {
        match self {
            Input::Null => Ok((End::Null, None)),
            Input::Open => fed(owner).map(|(end, write)| (End::Fd(end), Some(write))),
            Input::Path(path) => {
                let what = || format!("cannot set up {}", path.display());
                let file = open(path)?;
                if !file.metadata().doing(Kind::Internal, what)?.file_type().is_fifo() {
                    if is_null(&file)? {
                        return Ok((End::Null, None));
                    }
                    // The process did not ask for a non-blocking stream.
                    rustix::io::ioctl_fionbio(&file, false).doing(Kind::Internal, what)?;
                    return Ok((End::Fd(file.into()), None));
                }
                let (end, write) = fed(owner)?;
                let from = sys::register_fd(file).doing(Kind::Internal, what)?;
                begin(Feed::new(from, write), process_ended.clone(), feeds);
                Ok((End::Fd(end), None))
            }
        }
    }
}

/// The feeds of a process that are under way.
pub type Feeds = Rc<RefCell<Vec<Weak<Mutex<Feed>>>>>;

/// Watches an end that was handed over.
pub fn watched(fd: Fd) -> Result<AsyncFd<File>> {
    sys::register_fd(File::from(fd.take()?)).doing(Kind::Internal, || "cannot watch an input")
}

/// Creates a pipe; returns the process's end and the end to feed.
fn fed(owner: Owner) -> Result<(OwnedFd, Rc<AsyncFd<File>>)> {
    let (read, write) = pipe()?;
    owner.take(&read)?;
    let what = || "cannot watch stdin";
    rustix::io::ioctl_fionbio(&write, true).doing(Kind::Internal, what)?;
    let write = sys::register_fd(File::from(write)).doing(Kind::Internal, what)?;
    Ok((read, Rc::new(write)))
}

/// Opens the source of the input without ever waiting for a FIFO's writer.
///
/// A FIFO without a writer reads as ended: callers that name a FIFO hold it open.
fn open(path: &Path) -> Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    File::options().read(true).custom_flags(flags).open(path).map_err(|error| {
        Error::new(Kind::BadSpec, format!("stdin: cannot open {}: {error}", path.display()))
            .hint("it must exist, and a FIFO must have a writer")
    })
}

/// Passes on what an attached client writes into the FIFO at `path`, until the FIFO ends, the
/// process takes no more, or the process has ended.
pub fn feed(path: &Path, to: Rc<AsyncFd<File>>, process_ended: FlagReader, feeds: &Feeds) -> Result<()> {
    let from = sys::register_fd(open(path)?).doing(Kind::Internal, || format!("cannot watch {}", path.display()))?;
    begin(Feed::new(from, to), process_ended, feeds);
    Ok(())
}

fn begin(feed: Feed, process_ended: FlagReader, feeds: &Feeds) {
    let (feed, feeds) = (Rc::new(Mutex::new(feed)), feeds.clone());
    feeds.borrow_mut().push(Rc::downgrade(&feed));
    waits::begin(move || {
        let (feed, feeds, process_ended) = (feed.clone(), feeds.clone(), process_ended.clone());
        async move {
            let mut under_way = feed.lock().await;
            tokio::select! {
                () = process_ended.until_set() => {}
                _ = under_way.pass_on() => {}
            }
            under_way.chunk = Vec::new();
            let mut feeds = feeds.borrow_mut();
            feeds.retain(|other| !std::ptr::eq(other.as_ptr(), Rc::as_ptr(&feed)));
            feeds.shrink_to_fit();
            page_release::left();
        }
    });
}

/// A feed, as a shim hands it over.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    from: Fd,
    /// `None` for the input that the process's streams have in common.
    to: Option<Fd>,
    #[serde(with = "bytes")]
    rest: Vec<u8>,
}

impl Handed {
    /// Goes on with the feed, whose process has the input `common` for all who attach.
    pub fn take(self, common: Option<&Rc<AsyncFd<File>>>, process_ended: FlagReader, feeds: &Feeds) -> Result<()> {
        let from = watched(self.from)?;
        let own = self.to.map(watched).transpose()?.map(Rc::new);
        let Some(to) = own.or_else(|| common.cloned()) else { return Ok(()) };
        let mut feed = Feed::new(from, to);
        feed.chunk[..self.rest.len()].copy_from_slice(&self.rest);
        feed.rest = 0..self.rest.len();
        begin(feed, process_ended, feeds);
        Ok(())
    }
}

/// Input on its way to a process.
#[derive(Debug)]
pub struct Feed {
    from: AsyncFd<File>,
    to: Rc<AsyncFd<File>>,
    /// The last chunk that was read.
    chunk: Vec<u8>,
    /// The part of `chunk` that is still to be written.
    rest: Range<usize>,
}

impl Feed {
    fn new(from: AsyncFd<File>, to: Rc<AsyncFd<File>>) -> Feed {
        Feed { from, to, chunk: vec![0u8; CHUNK], rest: 0..0 }
    }

    /// The feed for the program that is executed in the shim's place.
    pub fn hand_over(&self, common: Option<&Rc<AsyncFd<File>>>) -> Handed {
        let is_common = common.is_some_and(|common| Rc::ptr_eq(common, &self.to));
        Handed {
            from: Fd::of(self.from.get_ref()),
            to: (!is_common).then(|| Fd::of(self.to.get_ref())),
            rest: self.chunk[self.rest.clone()].to_vec(),
        }
    }

    async fn pass_on(&mut self) -> io::Result<()> {
        loop {
            while !self.rest.is_empty() {
                let rest = &self.chunk[self.rest.clone()];
                self.rest.start += self.to.async_io(Interest::WRITABLE, |mut to| to.write(rest)).await?;
            }
            self.rest = 0..self.from.async_io(Interest::READABLE, |mut from| from.read(&mut self.chunk)).await?;
            if self.rest.is_empty() {
                return Ok(());
            }
        }
    }
}
