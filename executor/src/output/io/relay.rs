//! Copies a process's output from its pipe into the FIFO of a manager, so that the manager can end it.
//!
//! ```text
//!   process ─pipe─► relay ─► FIFO ─► manager
//! ```
//!
//! A FIFO that a process holds itself stays open for as long as any of its children lives, and the manager reads it
//! for as long. The relay's FIFO closes once the manager has released the process and has taken what was written
//! until then.
//!
//! Small output is copied, so that it fills the FIFO's pages; once a read fills the buffer, pages are moved instead.
//! A full FIFO holds up the process, as if it were the process's own. What it does not take stays in the pipe, also
//! after the end of the process. Must not: keep output in memory, or know a task's state.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};

use bowline_error::{Doing, Kind};
use bowline_model::clock::Moment;
use bowline_model::json::handover::{Fd, bytes};
use bowline_model::shutdown::DRAIN;
use bowline_sys as sys;
use rustix::io::{ioctl_fionbio, ioctl_fionread};
use rustix::pipe::{SpliceFlags, splice};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use super::flag::{Flag, FlagReader};
use super::outlet::Readiness;
use super::stream::Progress;
use crate::waits;

/// Bytes copied at a time, all or none of which a FIFO takes; the buffer is on the stack, which stays small.
const CHUNK: usize = rustix::pipe::PIPE_BUF;

/// Bytes moved at a time: what a pipe holds by default.
const MOVED: usize = 64 * 1024;

/// How many passes to make before the loop sees requests again.
const PASSES: usize = 16;

// A shim has one thread.
thread_local! {
    /// The number of the last release.
    static LAST: Cell<u64> = const { Cell::new(0) };
    /// Those that were handed over, until both sides of each are taken over.
    static HANDED: RefCell<BTreeMap<u64, Flag>> = const { RefCell::new(BTreeMap::new()) };
}

/// The manager's side of a process's relays: dropping it releases the process.
#[derive(Debug)]
pub struct Release {
    number: u64,
    tell: Flag,
}

/// The relays' side: told once the manager has released the process. Nothing that is written later matters.
#[derive(Debug, Clone)]
pub struct Released {
    number: u64,
    hear: FlagReader,
}

impl Release {
    /// For the relays of a new process.
    pub fn of_new() -> Release {
        Release::with(LAST.get() + 1, Flag::new())
    }

    /// The one with this number, which the program before this one has handed over.
    pub fn again(number: u64) -> Release {
        Release::with(number, handed(number))
    }

    fn with(number: u64, tell: Flag) -> Release {
        LAST.set(LAST.get().max(number));
        Release { number, tell }
    }

    /// The number under which it is handed over.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The side of the relays.
    pub fn released(&self) -> Released {
        Released { number: self.number, hear: self.tell.reader() }
    }

    /// Releases the process. Returns when its relays have passed on all that they will.
    pub async fn release(self) {
        self.tell.set();
        self.tell.unread().await;
    }
}

fn handed(number: u64) -> Flag {
    HANDED.with_borrow_mut(|handed| handed.entry(number).or_insert_with(Flag::new).clone())
}

/// Says that both sides of all releases are taken over.
pub fn all_releases_taken() {
    HANDED.take();
}

/// One output on its way into a FIFO.
pub struct Relay {
    /// The reading end of the process's pipe.
    from: AsyncFd<File>,
    to: File,
    /// The FIFO, watched for room; `None` until it was full for the first time.
    room: Option<AsyncFd<File>>,
    /// Bytes that were read and that the FIFO did not take; at most a chunk.
    kept: Vec<u8>,
    /// Whether the last read has filled the buffer.
    busy: bool,
    process_ended: FlagReader,
    released: Released,
    tell: watch::Sender<Progress>,
    /// Whether everything that the process itself has written is passed on, or in the pipe of a full FIFO.
    whole: bool,
    /// How many bytes of the pipe are still passed on, once the process is released.
    last: Option<usize>,
    /// Until when the reader may take nothing, once the process is released.
    drains_until: Option<Moment>,
    /// Bytes that the reader has not taken in time.
    dropped: u64,
}

/// A relay, as a shim hands it over.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    from: Fd,
    to: Fd,
    #[serde(with = "bytes")]
    kept: Vec<u8>,
    whole: bool,
    last: Option<usize>,
    drains_until: Option<Moment>,
    /// The number of its release.
    released: u64,
    progress: Progress,
}

impl Handed {
    /// Takes the relay over. Returns it with where its progress is heard.
    ///
    /// # Errors
    /// `Damaged` when a descriptor is missing; `Internal` when one cannot be watched.
    pub fn take(
        self,
        name: &'static str,
        process_ended: FlagReader,
    ) -> bowline_error::Result<(Relay, watch::Receiver<Progress>)> {
        let Handed { kept, whole, last, drains_until, .. } = self;
        let released = Released { number: self.released, hear: handed(self.released).reader() };
        let (tell, hear) = watch::channel(self.progress);
        let relay = Relay::new(name, self.from.take()?, self.to.take()?.into(), process_ended, released, tell)?;
        Ok((Relay { kept, whole, last, drains_until, ..relay }, hear))
    }
}

/// What became of an attempt to pass something on.
enum Passed {
    /// So many bytes were taken out of the pipe.
    Some(usize),
    /// There are none at the moment.
    Nothing,
    /// The FIFO takes none at the moment.
    Full,
    /// The pipe has no writer any more, or the FIFO no reader.
    Over,
}

impl Relay {
    /// A relay from the pipe's reading end `from` into the FIFO `to`, which is non-blocking.
    pub fn new(
        name: &'static str,
        from: OwnedFd,
        to: File,
        process_ended: FlagReader,
        released: Released,
        tell: watch::Sender<Progress>,
    ) -> bowline_error::Result<Relay> {
        let what = || format!("cannot watch {name}");
        ioctl_fionbio(&from, true).doing(Kind::Internal, what)?;
        let from = sys::register_fd(File::from(from)).doing(Kind::Internal, what)?;
        Ok(Relay {
            from,
            to,
            room: None,
            kept: Vec::new(),
            busy: false,
            process_ended,
            released,
            tell,
            whole: false,
            last: None,
            drains_until: None,
            dropped: 0,
        })
    }

    /// Passes the output on until it ends, or until its process is released. What is returned is there until then.
    pub fn begin(self) -> Weak<Mutex<Relay>> {
        let relay = Rc::new(Mutex::new(self));
        let while_it_lasts = Rc::downgrade(&relay);
        waits::begin(move || {
            let relay = relay.clone();
            async move { relay.lock().await.pump().await }
        });
        while_it_lasts
    }

    /// The relay for the program that is executed in the shim's place.
    pub fn hand_over(&self) -> Handed {
        Handed {
            from: Fd::of(self.from.get_ref()),
            to: Fd::of(&self.to),
            kept: self.kept.clone(),
            whole: self.whole,
            last: self.last,
            drains_until: self.drains_until,
            released: self.released.number,
            progress: *self.tell.borrow(),
        }
    }

    async fn pump(&mut self) {
        let mut passes = 0;
        loop {
            if self.process_ended.is_set() && !self.whole {
                self.tell_whole();
            }
            if self.released.hear.is_set() {
                self.drain().await;
                break;
            }
            match self.pass_on(MOVED, Readiness::Kept) {
                Passed::Some(_) => passes += 1,
                Passed::Nothing => self.come(false).await,
                Passed::Full => self.come(true).await,
                Passed::Over => break,
            }
            if passes >= PASSES {
                // Without this, a task that is always busy keeps the loop from seeing requests.
                tokio::task::yield_now().await;
                passes = 0;
            }
        }
        let dropped = self.dropped;
        if dropped > 0 {
            tracing::warn!(bytes = dropped, "output dropped: nobody reads the FIFO of a process that was deleted");
        }
        self.tell.send_replace(Progress { tail_whole: true, flushed: true, dropped, refused: None });
    }

    /// Passes on what the process has written, as far as the FIFO takes it; no more, because another writer may be
    /// faster than the shim.
    fn tell_whole(&mut self) {
        let mut left = self.in_pipe();
        while left > 0
            && let Passed::Some(taken) = self.pass_on(left, Readiness::Ignored)
        {
            left = left.saturating_sub(taken);
        }
        self.whole = true;
        self.tell.send_replace(Progress { tail_whole: true, flushed: false, dropped: 0, refused: None });
    }

    /// Passes on what is in the pipe now, for as long as the reader takes any of it within [`DRAIN`].
    async fn drain(&mut self) {
        let mut left = self.last.take().unwrap_or_else(|| self.in_pipe());
        loop {
            match self.pass_on(left, Readiness::Ignored) {
                Passed::Some(taken) => {
                    left = left.saturating_sub(taken);
                    self.drains_until = None;
                }
                Passed::Full => {
                    self.last = Some(left);
                    let until = *self.drains_until.get_or_insert_with(|| Moment::now().after(DRAIN));
                    let room = self.room();
                    if timeout(until.to_come(), room).await.is_err() {
                        self.dropped = (left + self.kept.len()) as u64;
                        return;
                    }
                }
                Passed::Nothing | Passed::Over => return,
            }
        }
    }

    /// Waits until more can be passed on, or something has changed.
    async fn come(&mut self, full: bool) {
        let whole = self.whole;
        let (process_ended, released) = (self.process_ended.clone(), self.released.hear.clone());
        tokio::select! {
            () = self.passable(full) => {}
            () = process_ended.until_set(), if !whole => {}
            () = released.until_set() => {}
        }
    }

    async fn passable(&mut self, full: bool) {
        // The reports of readiness are kept: the next attempt clears one that was wrong.
        match full {
            true => self.room().await,
            false => drop(self.from.readable().await),
        }
    }

    /// Waits until the FIFO takes more.
    async fn room(&mut self) {
        if self.room.is_none() {
            self.room = self.to.try_clone().and_then(sys::register_fd).ok();
        }
        match &self.room {
            Some(fifo) => drop(fifo.writable().await),
            None => std::future::pending().await,
        }
    }

    /// Takes at most `limit` bytes out of the pipe.
    fn pass_on(&mut self, limit: usize, readiness: Readiness) -> Passed {
        let kept = std::mem::take(&mut self.kept);
        if let Err(passed) = self.put(&kept) {
            return passed;
        }
        if limit == 0 {
            return Passed::Nothing;
        }
        if self.busy {
            match splice(self.from.get_ref(), None, &self.to, None, limit.min(MOVED), SpliceFlags::NONBLOCK) {
                Ok(0) => return Passed::Over,
                Ok(moved) => return Passed::Some(moved),
                // Nothing to move, or no room: copying tells which.
                Err(_) => self.busy = false,
            }
        }
        let mut chunk = [0u8; CHUNK];
        let chunk = &mut chunk[..limit.min(CHUNK)];
        let outcome = match readiness {
            Readiness::Kept => self.from.try_io(Interest::READABLE, |mut from| from.read(chunk)),
            Readiness::Ignored => self.from.get_ref().read(chunk),
        };
        match outcome {
            Ok(length @ 1..) => {
                self.busy = length == CHUNK;
                match self.put(&chunk[..length]) {
                    Err(Passed::Over) => Passed::Over,
                    // What was not taken is kept.
                    _ => Passed::Some(length),
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Passed::Some(0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Passed::Nothing,
            Ok(0) | Err(_) => Passed::Over,
        }
    }

    /// Writes `bytes` into the FIFO, or keeps what it does not take.
    fn put(&mut self, bytes: &[u8]) -> Result<(), Passed> {
        if bytes.is_empty() {
            return Ok(());
        }
        let outcome = match &self.room {
            Some(fifo) => fifo.try_io(Interest::WRITABLE, |mut fifo| fifo.write(bytes)),
            None => (&self.to).write(bytes),
        };
        let written = match outcome {
            Ok(written) => written,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => 0,
            Err(_) => return Err(Passed::Over),
        };
        if written == bytes.len() {
            return Ok(());
        }
        self.kept = bytes[written..].to_vec();
        Err(Passed::Full)
    }

    /// How many bytes the pipe holds.
    fn in_pipe(&self) -> usize {
        let held = ioctl_fionread(self.from.get_ref()).unwrap_or_default();
        usize::try_from(held).unwrap_or_default()
    }
}
