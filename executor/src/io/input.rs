//! What a process reads: nothing, a file that is handed to it as it is, a
//! FIFO, or what those who attach write.
//!
//! A FIFO's bytes are passed on through a pipe: handed over as it is, it would
//! block whoever opens `/dev/stdin` anew once its writer has gone.

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

/// Passed on at a time, in bytes: what a pipe holds. The buffer is there for as
/// long as somebody feeds.
const CHUNK: usize = 64 * 1024;

/// Where a process's stdin comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Input {
    /// Nowhere: it has ended already.
    #[default]
    Null,
    /// A file, or a FIFO that somebody has open to write: it ends when its last
    /// writer closes it.
    Path(PathBuf),
    /// From whoever attaches; it does not end before the process does.
    Open,
}

impl Input {
    /// The end for the process, and for [`Input::Open`] the one that is fed. A
    /// FIFO is read until it ends, or the process has.
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

/// A pipe: the process's end, and the one that is fed.
fn fed(owner: Owner) -> Result<(OwnedFd, Rc<AsyncFd<File>>)> {
    let (read, write) = pipe()?;
    owner.take(&read)?;
    let what = || "cannot watch stdin";
    rustix::io::ioctl_fionbio(&write, true).doing(Kind::Internal, what)?;
    let write = sys::watch(File::from(write)).doing(Kind::Internal, what)?;
    Ok((read, Rc::new(write)))
}

/// Opens what input comes from, without ever waiting for a FIFO's writer.
///
/// A FIFO that nobody has opened to write reads as ended: whoever names one has
/// it open.
fn open(path: &Path) -> Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    File::options().read(true).custom_flags(flags).open(path).map_err(|error| {
        Error::new(Kind::BadSpec, format!("stdin: cannot open {}: {error}", path.display()))
            .hint("it must exist, and a FIFO must have a writer")
    })
}

/// Passes on what somebody who attaches writes into the FIFO at `path`, until
/// that ends, the process takes no more, or it has ended.
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
    /// What was read last.
    chunk: Vec<u8>,
    /// What of it is still to be written.
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
