//! Sources of a process's stdin: nothing, a file handed over as it is, a FIFO, or what attached clients write.
//!
//! Bytes from a FIFO pass through a pipe. If the process got the FIFO itself, opening `/dev/stdin`
//! anew would block once the FIFO's writer has gone.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, watch};

use super::end::{End, Owner, is_null, pipe};
use crate::{pages, waits};

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
    /// Returns the process's end, and for [`Input::Open`] the end to feed. A FIFO is read until it or the process ends.
    pub fn open(
        &self,
        owner: Owner,
        process_ended: &watch::Receiver<bool>,
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
                let from = sys::watch(file).doing(Kind::Internal, what)?;
                begin(from, write, process_ended.clone());
                Ok((End::Fd(end), None))
            }
        }
    }
}

/// Creates a pipe; returns the process's end and the end to feed.
fn fed(owner: Owner) -> Result<(OwnedFd, Rc<AsyncFd<File>>)> {
    let (read, write) = pipe()?;
    owner.take(&read)?;
    let what = || "cannot watch stdin";
    rustix::io::ioctl_fionbio(&write, true).doing(Kind::Internal, what)?;
    let write = sys::watch(File::from(write)).doing(Kind::Internal, what)?;
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
pub fn feed(path: &Path, to: Rc<AsyncFd<File>>, process_ended: watch::Receiver<bool>) -> Result<()> {
    let from = sys::watch(open(path)?).doing(Kind::Internal, || format!("cannot watch {}", path.display()))?;
    begin(from, to, process_ended);
    Ok(())
}

fn begin(from: AsyncFd<File>, to: Rc<AsyncFd<File>>, process_ended: watch::Receiver<bool>) {
    let feed = Rc::new(Mutex::new(Feed { from, to, chunk: vec![0u8; CHUNK], rest: 0..0 }));
    waits::begin(move || {
        let (feed, mut process_ended) = (feed.clone(), process_ended.clone());
        async move {
            let mut feed = feed.lock().await;
            tokio::select! {
                _ = process_ended.wait_for(|ended| *ended) => {}
                _ = feed.pass_on() => {}
            }
            feed.chunk = Vec::new();
            pages::left();
        }
    });
}

/// Input on its way to a process.
struct Feed {
    from: AsyncFd<File>,
    to: Rc<AsyncFd<File>>,
    /// The last chunk that was read.
    chunk: Vec<u8>,
    /// The part of `chunk` that is still to be written.
    rest: Range<usize>,
}

impl Feed {
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
