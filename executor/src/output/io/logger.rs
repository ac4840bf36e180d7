//! A manager's program that takes a process's output: it reads two pipes, its fds 3 and 4, and
//! reports through fd 5 that it is ready.
//!
//! ```text
//!   process ─pipe─► logger      its end while the process writes on: discarded
//! ```
//!
//! The pipes are the process's own; the shim holds their reading ends only so that a logger that
//! dies takes no task with it. Once the process has ended, the logger reads the end of both pipes
//! and has time to write down what it has.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::clock::Moment;
use bowline_model::json::handover::Fd;
use bowline_sys as sys;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::end::pipe;
use super::flag::FlagReader;
use super::outlet::Target;
use crate::process::program::Program;
use crate::process::worker;
use crate::waits;
use crate::waits::claim::{Claim, End};
use crate::waits::watched_value::WatchedValue;

/// How long the logger may take to end by itself once everything is read, and how long after
/// SIGTERM: together the time that containerd's own shim gives it.
const BY_ITSELF: Duration = Duration::from_secs(2);
const ASKED: Duration = Duration::from_secs(10);

/// The logger's fds (containerd's runtime v2, "Logging").
const STDOUT: i32 = 3;
const STDERR: i32 = 4;
const READY: i32 = 5;

/// A program that takes a process's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logger {
    /// The program's absolute path.
    pub program: PathBuf,
    /// The arguments, without the name.
    pub args: Vec<String>,
    /// The whole environment, as `KEY=value`.
    pub env: Vec<String>,
    /// How the logger reports that it is ready.
    pub ready: Ready,
}

/// How a logger reports that it is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// The logger closes fd 5.
    Closed,
    /// The logger writes a byte to fd 5; closing fd 5 without a byte is a failure.
    Byte,
}

/// A running logger. Dropping it before `run_to_end`, as for a process that was never started, ends the logger.
pub struct Logging(Option<Running>);

/// A logger whose process runs, until it has ended and all that the process wrote for it is read.
#[derive(Debug)]
pub struct Logged {
    running: Weak<Mutex<Running>>,
    gone: Rc<WatchedValue<bool>>,
}

struct Running {
    claim: Claim,
    pidfd: OwnedFd,
    reads: Option<[OwnedFd; 2]>,
    writes: Option<[OwnedFd; 2]>,
    /// Whether the logger has reported that it is ready.
    ready: bool,
    /// The process's pipes, read and discarded because the logger has ended first.
    discarded: Option<[AsyncFd<File>; 2]>,
    /// When the logger gets SIGTERM, unless it has ended by then.
    asked_at: Option<Moment>,
    /// Whether SIGTERM was sent.
    asked: bool,
}

impl Logger {
    /// Starts the logger; returns once it is ready. `claim` returns the child's `Claim`; the caller
    /// expects the child from before this call.
    ///
    /// # Errors
    /// `CommandNotFound`, `NotExecutable`; `Internal` when the logger ends instead.
    pub async fn start(&self, claim: impl FnOnce(i32) -> Claim) -> Result<Logging> {
        let name = self.program.display();
        let ([out, err], [out_write, err_write]) = {
            let ((out, out_write), (err, err_write)) = (pipe()?, pipe()?);
            ([out, err], [out_write, err_write])
        };
        let (hear, tell) = pipe()?;
        let argv = std::iter::once(self.program.as_os_str()).chain(self.args.iter().map(AsRef::as_ref));
        let program = Program::new(&self.program, argv, &self.env)?
            .with_fd(out.as_fd(), STDOUT)
            .with_fd(err.as_fd(), STDERR)
            .with_fd(tell.as_fd(), READY);
        let mut started = program.start()?;
        drop(program);
        drop(tell);
        let followed = started.pidfd.try_clone().inspect_err(|_| started.kill());
        let pidfd = followed.doing(Kind::Internal, || format!("cannot follow the logger {name}"))?;
        let mut logging = Logging(Some(Running {
            claim: claim(started.pid),
            pidfd,
            reads: Some([out, err]),
            writes: Some([out_write, err_write]),
            ready: false,
            discarded: None,
            asked_at: None,
            asked: false,
        }));
        started.executed().await?;
        let said = first_byte(hear).await.doing(Kind::Internal, || format!("cannot hear of the logger {name}"))?;
        if self.ready == Ready::Byte && !said {
            return Err(Error::new(Kind::Internal, format!("the logger {name} ended before it was ready")));
        }
        if let Some(running) = &mut logging.0 {
            running.ready = true;
        }
        Ok(logging)
    }
}

/// Waits for a byte; false at the end of the pipe.
async fn first_byte(pipe: OwnedFd) -> std::io::Result<bool> {
    let mut reader = worker::PipeReader::new(pipe)?;
    Ok(reader.read_more(&mut Vec::new()).await? > 0)
}

impl Logging {
    /// The targets of the process's output, valid for as long as this lives.
    pub fn targets(&self) -> [Target; 2] {
        let path = |fd: &OwnedFd| PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let none = || [Target::Null, Target::Null];
        let writes = self.0.as_ref().and_then(|running| running.writes.as_ref());
        writes.map_or_else(none, |writes| writes.each_ref().map(|fd| Target::Own(path(fd))))
    }

    /// Releases the logger once its process is connected and follows it to its end, which comes after the process's.
    pub fn run_to_end(mut self, process_ended: FlagReader) -> Option<Logged> {
        self.0.take().map(|running| running.run_to_end(process_ended))
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        if let Some(running) = self.0.take() {
            if !running.ready {
                // Nothing was written that the logger would have to store.
                running.kill();
            }
            running.run_to_end(FlagReader::already_set());
        }
    }
}

impl Running {
    fn run_to_end(mut self, process_ended: FlagReader) -> Logged {
        self.writes = None;
        let (running, gone) = (Rc::new(Mutex::new(self)), Rc::<WatchedValue<bool>>::default());
        let logged = Logged { running: Rc::downgrade(&running), gone: gone.clone() };
        waits::begin(move || {
            let (running, process_ended, gone) = (running.clone(), process_ended.clone(), gone.clone());
            async move {
                running.lock().await.end(process_ended).await;
                gone.update(|gone| *gone = true);
            }
        });
        logged
    }

    fn kill(&self) {
        let _ = sys::pidfd_send_signal(self.pidfd.as_fd(), libc::SIGKILL);
    }

    async fn end(&mut self, process_ended: FlagReader) {
        if self.asked_at.is_none() && self.discarded.is_none() {
            tokio::select! {
                _ = self.claim.ended() => self.discard(),
                () = process_ended.until_set() => {}
            }
        }
        if let Some([out, err]) = &self.discarded {
            tokio::join!(read_out(out), read_out(err));
            return;
        }
        // The process's copies close with the process; the logger then reads the end.
        self.reads = None;
        let asked_at = *self.asked_at.get_or_insert_with(|| Moment::now().after(BY_ITSELF));
        if timeout(asked_at.to_come(), self.claim.ended()).await.is_ok() {
            return;
        }
        if !std::mem::replace(&mut self.asked, true) {
            let _ = sys::pidfd_send_signal(self.pidfd.as_fd(), libc::SIGTERM);
        }
        if timeout(asked_at.after(ASKED).to_come(), self.claim.ended()).await.is_err() {
            tracing::warn!("a logger had to be killed");
            self.kill();
            self.claim.ended().await;
        }
    }

    /// Reads and discards what the process writes from now on.
    fn discard(&mut self) {
        tracing::warn!("a logger has ended before its process: what that writes from now on is lost");
        self.discarded = self.reads.take().and_then(|pipes| watched(pipes).ok());
    }
}

fn watched([out, err]: [OwnedFd; 2]) -> std::io::Result<[AsyncFd<File>; 2]> {
    let watched = |pipe: OwnedFd| {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        sys::register_fd(File::from(pipe))
    };
    Ok([watched(out)?, watched(err)?])
}

impl Logged {
    /// Waits until the logger has gone.
    pub async fn gone(&self) {
        self.gone.until_it(|gone| *gone).await;
    }

    /// Whether the logger has gone.
    pub fn has_gone(&self) -> bool {
        self.gone.read(|gone| *gone)
    }

    /// The logger for the program that is executed in the shim's place; `None` for one that has gone. Called while the
    /// shim is at rest.
    pub fn hand_over(&self) -> Option<Handed> {
        let running = self.running.upgrade()?;
        let running = running.try_lock().ok()?;
        let of = |pipes: &[OwnedFd; 2]| pipes.each_ref().map(Fd::of);
        let discarded = running.discarded.as_ref().map(|pipes| pipes.each_ref().map(|pipe| Fd::of(pipe.get_ref())));
        Some(Handed {
            pid: running.claim.pid,
            pidfd: Fd::of(&running.pidfd),
            end: running.claim.end(),
            is_discarded: discarded.is_some(),
            reads: discarded.or_else(|| running.reads.as_ref().map(of)),
            asked_at: running.asked_at,
            asked: running.asked,
        })
    }
}

/// A logger, as a shim hands it over.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    pid: i32,
    pidfd: Fd,
    end: Option<End>,
    reads: Option<[Fd; 2]>,
    is_discarded: bool,
    asked_at: Option<Moment>,
    asked: bool,
}

impl Handed {
    /// Goes on following the logger. `claim` gives the end of a child, which may be known.
    ///
    /// # Errors
    /// `Damaged` when a descriptor is missing; `Internal` when one cannot be watched.
    pub fn take(self, claim: impl FnOnce(i32, Option<End>) -> Claim, process_ended: FlagReader) -> Result<Logged> {
        let Handed { pid, pidfd, end, reads, is_discarded, asked_at, asked } = self;
        let take = |[out, err]: [Fd; 2]| -> Result<[OwnedFd; 2]> { Ok([out.take()?, err.take()?]) };
        let reads = reads.map(take).transpose()?;
        let (reads, discarded) = if is_discarded { (None, reads) } else { (reads, None) };
        let discarded = discarded.map(watched).transpose().doing(Kind::Internal, || "cannot watch a logger's pipes")?;
        let (claim, pidfd) = (claim(pid, end), pidfd.take()?);
        let running = Running { claim, pidfd, reads, writes: None, ready: true, discarded, asked_at, asked };
        Ok(running.run_to_end(process_ended))
    }
}

/// Reads and discards until no writer is left.
async fn read_out(pipe: &AsyncFd<File>) {
    let mut chunk = vec![0u8; 4096];
    while let Ok(1..) = pipe.async_io(Interest::READABLE, |mut from| from.read(&mut chunk)).await {}
}
