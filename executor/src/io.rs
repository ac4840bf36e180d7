//! Standard streams: from a process's pipes to files, FIFOs and ring buffers.
//!
//! ```text
//!   process ─pipe─► pump ─► tail (last bytes, in memory)
//!                     └───► sink (file, FIFO or nothing)
//! ```
//!
//! A FIFO whose reader is slow holds up its own stream only. A file that cannot
//! be written, or a reader that has gone, holds up nobody: what is lost is
//! counted. When the process has ended, what is left in its pipe is read at
//! once, so that the tail is whole, and then flushed for as long as the reader
//! takes any of it. Must not: know a task's state.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use circular_buffer::heap::HeapCircularBuffer;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Uid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::error::{Doing, Error, Kind, Result};
use crate::shutdown::DRAIN;
use crate::sys;

/// The standard streams of a process.
#[derive(Debug)]
pub struct Stdio {
    /// Read from as fd 0.
    pub stdin: OwnedFd,
    /// Written to as fd 1.
    pub stdout: OwnedFd,
    /// Written to as fd 2.
    pub stderr: OwnedFd,
}

/// A close-on-exec pipe: reading end, writing end.
pub fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    pipe_with(PipeFlags::CLOEXEC).doing(Kind::Internal, || "cannot make a pipe")
}

/// How much of its output is kept of every task and exec, in bytes.
pub const TAIL: usize = 4096;

/// Read from a pipe at a time, in bytes: on the stack, which stays small.
const CHUNK: usize = 16 * 1024;

/// Where a stream goes to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Target {
    /// Nowhere.
    #[default]
    Null,
    /// A file, which is appended to, or a FIFO that somebody reads.
    Path(PathBuf),
}

/// Where a stream goes to, opened.
#[derive(Debug)]
enum Sink {
    Null,
    File(File),
    Fifo(AsyncFd<File>),
}

impl Sink {
    fn open(target: &Target) -> Result<Sink> {
        let Target::Path(path) = target else {
            return Ok(Sink::Null);
        };
        let (file, fifo) = open(path)?;
        if fifo {
            let what = || format!("cannot watch {}", path.display());
            return Ok(Sink::Fifo(sys::watch(file).doing(Kind::Internal, what)?));
        }
        Ok(Sink::File(file))
    }
}

/// Opens what output goes to, without ever waiting for a FIFO's reader.
fn open(path: &Path) -> Result<(File, bool)> {
    let what = || format!("output: cannot open {}", path.display());
    let file = File::options()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| {
            let error = Error::new(Kind::BadSpec, format!("{}: {error}", what()));
            error.hint("the folder must exist and be writable, and a FIFO must have a reader")
        })?;
    let fifo = file.metadata().doing(Kind::Internal, what)?.file_type().is_fifo();
    Ok((file, fifo))
}

/// The last bytes of one or two streams.
pub type Tail = Rc<RefCell<HeapCircularBuffer<u8>>>;

/// A tail that keeps `bytes`.
pub fn new_tail(bytes: usize) -> Tail {
    Rc::new(RefCell::new(HeapCircularBuffer::with_capacity(bytes)))
}

/// One stream on its way.
struct Stream {
    name: &'static str,
    pipe: AsyncFd<File>,
    sink: Sink,
    tail: Tail,
    pending: Vec<u8>,
    dropped: u64,
    ended: bool,
}

/// The streams of one process, being pumped.
#[derive(Debug)]
pub struct Pumps {
    /// Set once the process has ended.
    process_ended: watch::Sender<bool>,
    /// For each stream: how far it is.
    progress: Vec<watch::Receiver<Progress>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Progress {
    tail_whole: bool,
    flushed: bool,
    dropped: u64,
}

/// Who the ends that a process gets belong to, as the host counts: its own
/// user, so that it can open `/dev/stdout` anew.
#[derive(Debug, Clone, Copy)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Owner {
    fn take(self, stream: &OwnedFd) -> Result<()> {
        let (uid, gid) = (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)));
        rustix::fs::fchown(stream, uid, gid).doing(Kind::Internal, || "cannot give a process its streams")
    }
}

/// Makes the pipes of a process and pumps them, on the current `LocalSet`.
///
/// Returns what the process gets and what the shim keeps. `tails` is one tail
/// for both streams, or one for each.
pub fn piped(stdout: &Target, stderr: &Target, owner: Owner, tails: [Tail; 2]) -> Result<(Stdio, Pumps)> {
    let (process_ended, ended) = watch::channel(false);
    let [out_tail, err_tail] = tails;
    let mut progress = Vec::new();
    let mut ends = Vec::new();
    for (name, target, tail) in [("stdout", stdout, out_tail), ("stderr", stderr, err_tail)] {
        let sink = Sink::open(target)?;
        let (read, write) = pipe()?;
        owner.take(&write)?;
        let what = || format!("cannot watch {name}");
        rustix::io::ioctl_fionbio(&read, true).doing(Kind::Internal, what)?;
        let pipe = sys::watch(File::from(read)).doing(Kind::Internal, what)?;
        let stream = Stream { name, pipe, sink, tail, pending: Vec::new(), dropped: 0, ended: false };
        let (tell, hear) = watch::channel(Progress::default());
        progress.push(hear);
        ends.push(write);
        tokio::task::spawn_local(stream.pump(ended.clone(), tell));
    }
    let (Some(stderr), Some(stdout)) = (ends.pop(), ends.pop()) else {
        return Err(Error::new(Kind::Internal, "no pipes"));
    };
    Ok((Stdio { stdin: null()?, stdout, stderr }, Pumps { process_ended, progress }))
}

/// Streams that go straight to what `stdout` and `stderr` name, with nothing
/// of ours between. What is written there is not seen by the shim.
pub fn direct(stdout: &Target, stderr: &Target, owner: Owner) -> Result<Stdio> {
    let end = |target: &Target| -> Result<OwnedFd> {
        let Target::Path(path) = target else { return null() };
        let (file, fifo) = open(path)?;
        // The process did not ask for a non-blocking stream.
        rustix::io::ioctl_fionbio(&file, false)
            .doing(Kind::Internal, || format!("cannot set up {}", path.display()))?;
        let end = OwnedFd::from(file);
        if fifo {
            owner.take(&end)?;
        }
        Ok(end)
    };
    Ok(Stdio { stdin: null()?, stdout: end(stdout)?, stderr: end(stderr)? })
}

fn null() -> Result<OwnedFd> {
    let null = File::options().read(true).write(true).open("/dev/null");
    Ok(null.doing(Kind::Internal, || "cannot open /dev/null")?.into())
}

impl Pumps {
    /// Says that the process has ended, and waits until its tail is whole.
    pub async fn finish(&mut self) {
        self.process_ended.send_replace(true);
        for stream in &mut self.progress {
            // An error means that the pump has ended: it is as whole as it gets.
            let _ = stream.wait_for(|p| p.tail_whole || p.flushed).await;
        }
    }

    /// Waits until everything is written or given up.
    pub async fn flushed(&mut self) {
        for stream in &mut self.progress {
            let _ = stream.wait_for(|p| p.flushed).await;
        }
    }

    /// Bytes that went nowhere so far, as their file or reader would not take them.
    pub fn dropped(&self) -> u64 {
        self.progress.iter().map(|p| p.borrow().dropped).sum()
    }
}

impl Stream {
    async fn pump(mut self, mut process_ended: watch::Receiver<bool>, tell: watch::Sender<Progress>) {
        let mut last_words = false;
        while !(self.ended && self.pending.is_empty()) {
            // Whoever was to say so may have given up, as after a failed start.
            let ended = *process_ended.borrow() || process_ended.has_changed().is_err();
            if ended && !last_words {
                // No writer is left that matters: the pipe holds 64 KiB at most.
                while self.read(Readiness::Ignored) {}
                last_words = true;
                let progress = Progress { tail_whole: true, dropped: self.dropped, ..Progress::default() };
                tell.send_replace(progress);
                continue;
            }
            let step = async {
                tokio::select! {
                    // With bytes pending, the process waits for its reader.
                    ready = self.pipe.readable(), if self.pending.is_empty() && !self.ended => {
                        drop(ready);
                        Step::Read
                    }
                    () = writable(&self.sink), if !self.pending.is_empty() => Step::Flush,
                    _ = process_ended.changed(), if !last_words => Step::Ended,
                }
            };
            let step = if last_words { timeout(DRAIN, step).await.unwrap_or(Step::GiveUp) } else { step.await };
            match step {
                Step::Read => {
                    self.read(Readiness::Kept);
                }
                Step::Flush => self.flush(),
                Step::Ended => {}
                Step::GiveUp => {
                    self.drop_pending();
                    break;
                }
            }
        }
        if self.dropped > 0 {
            tracing::warn!(stream = self.name, bytes = self.dropped, "output dropped");
        }
        tell.send_replace(Progress { tail_whole: true, flushed: true, dropped: self.dropped });
    }

    /// Reads once; false when there is nothing to read now.
    fn read(&mut self, readiness: Readiness) -> bool {
        let mut chunk = [0u8; CHUNK];
        let outcome = match readiness {
            Readiness::Kept => self.pipe.try_io(Interest::READABLE, |mut pipe| pipe.read(&mut chunk)),
            Readiness::Ignored => self.pipe.get_ref().read(&mut chunk),
        };
        match outcome {
            Ok(0) => {
                self.ended = true;
                false
            }
            Ok(length) => {
                self.tail.borrow_mut().extend_from_slice(&chunk[..length]);
                self.write(&chunk[..length]);
                true
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(_) => {
                self.ended = true;
                false
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.pending.is_empty() {
            let written = self.write_now(bytes, Readiness::Ignored);
            self.pending.extend_from_slice(&bytes[written..]);
        } else {
            self.pending.extend_from_slice(bytes);
        }
    }

    fn flush(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let written = self.write_now(&pending, Readiness::Kept);
        self.pending = pending;
        self.pending.drain(..written);
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
                (Sink::Fifo(fifo), Readiness::Kept) => fifo.try_io(Interest::WRITABLE, |mut fifo| fifo.write(rest)),
                (Sink::Fifo(fifo), Readiness::Ignored) => fifo.get_ref().write(rest),
            };
            match outcome {
                Ok(length) => done += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return done,
                Err(_) => {
                    self.dropped += (bytes.len() - done) as u64;
                    return bytes.len();
                }
            }
        }
        done
    }

    fn drop_pending(&mut self) {
        self.dropped += self.pending.len() as u64;
        self.pending.clear();
    }
}

/// Whether an attempt goes by, and updates, what epoll last said of the fd.
#[derive(Debug, Clone, Copy)]
enum Readiness {
    Kept,
    Ignored,
}

enum Step {
    Read,
    Flush,
    Ended,
    GiveUp,
}

async fn writable(sink: &Sink) {
    match sink {
        Sink::Fifo(fifo) => {
            // An error shows in the write that follows.
            let _ = fifo.writable().await;
        }
        Sink::Null | Sink::File(_) => {}
    }
}
