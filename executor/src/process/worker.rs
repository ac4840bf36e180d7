//! A short-lived fork of the shim that does what the shim itself must not:
//! block, or dirty its memory. It answers once, through a pipe.

use std::io::{self, Read as _, Write as _};
use std::marker::PhantomData;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::{self as sys, Cloned};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getpid, getppid, set_parent_process_death_signal, setrlimit,
    waitid,
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::io::unix::AsyncFd;

/// What makes the process of a worker.
pub type Clone = fn() -> io::Result<Cloned>;

/// Runs `work` in a worker and returns its answer.
///
/// # Errors
/// What `work` returned, or `Internal` when the worker died without an answer.
pub async fn run<T, F>(name: &'static str, work: F) -> Result<T>
where
    T: Serialize + DeserializeOwned,
    F: FnOnce() -> Result<T>,
{
    start(name, work)?.answer().await
}

/// Like [`run`], for work that may not come to an end: `None` once it has had `seconds` of the processor.
pub async fn run_bounded<T, F>(name: &'static str, seconds: u64, work: F) -> Result<Option<T>>
where
    T: Serialize + DeserializeOwned,
    F: FnOnce() -> Result<T>,
{
    let most = Some(seconds);
    let bounded = || {
        setrlimit(Resource::Cpu, Rlimit { current: most, maximum: most })
            .doing(Kind::Internal, || format!("cannot bound the worker for {name}"))?;
        work()
    };
    let Worker { pidfd, answer, .. } = start(name, bounded)?;
    let answer = read_answer(name, answer, pidfd).await?;
    if answer.is_empty() { Ok(None) } else { understood(name, &answer).map(Some) }
}

pub struct Worker<T> {
    name: &'static str,
    pidfd: OwnedFd,
    answer: OwnedFd,
    gives: PhantomData<T>,
}

/// Starts `work` in a worker, which has a copy of everything that `work` borrows.
///
/// The sweep of `supervise` reaps the worker like every child. The worker has all fds of the shim
/// for as long as it runs.
pub fn start<T, F>(name: &'static str, work: F) -> Result<Worker<T>>
where
    T: Serialize,
    F: FnOnce() -> Result<T>,
{
    start_with(name, || sys::clone3(0, None), |_| Ok(()), work)
}

/// Like [`start`], for work that may take long: of its starter's fds the worker has `keep` and the standard streams
/// alone, and it is killed when its starter ends. `clone` makes its process.
pub fn start_apart<T, F>(name: &'static str, clone: Clone, keep: &[RawFd], work: F) -> Result<Worker<T>>
where
    T: Serialize,
    F: FnOnce() -> Result<T>,
{
    let starter = getpid();
    let leave = |answer| {
        // Handlers of the shim's write to fds that are closed here.
        sys::default_signals(1..=64);
        sys::close_all_but(&mut [keep, &[answer]].concat());
        end_with(starter).doing(Kind::Internal, || format!("the starter of the worker for {name} has ended"))
    };
    start_with(name, clone, leave, work)
}

/// Like [`start_apart`], for work that goes on when its starter ends, and that nobody has to reap: it is in a session of its
/// own, without the starter's streams.
pub fn start_orphan<T, F>(name: &'static str, clone: Clone, work: F) -> Result<Worker<T>>
where
    T: Serialize,
    F: FnOnce() -> Result<T>,
{
    let leave = |answer| {
        let what = || format!("cannot leave the starter of the worker for {name}");
        sys::default_signals(1..=64);
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let null = null.doing(Kind::Internal, what)?;
        (0..3).try_for_each(|number| sys::place_fd(null.as_fd(), number)).doing(Kind::Internal, what)?;
        drop(null);
        sys::close_all_but(&mut [answer]);
        rustix::process::setsid().doing(Kind::Internal, what)?;
        match sys::clone3(0, None).doing(Kind::Internal, what)? {
            Cloned::Child => Ok(()),
            Cloned::Parent { .. } => sys::exit_now(0),
        }
    };
    start_with(name, clone, leave, work)
}

/// Has the calling process killed when the thread that has cloned it ends; `starter` is the process of that thread.
///
/// # Errors
/// Also when the starter has ended by now, which sends no signal.
pub fn end_with(starter: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() == Some(starter) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Runs `prepare` in the worker before `work`, with the fd by which the worker answers.
fn start_with<T, F>(
    name: &'static str,
    clone: impl FnOnce() -> io::Result<Cloned>,
    prepare: impl FnOnce(RawFd) -> Result<()>,
    work: F,
) -> Result<Worker<T>>
where
    T: Serialize,
    F: FnOnce() -> Result<T>,
{
    let what = || format!("cannot start a worker for {name}");
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).doing(Kind::Internal, what)?;
    match clone().doing(Kind::Internal, what)? {
        Cloned::Child => {
            let answer = prepare(write.as_raw_fd()).and_then(|()| work());
            let answer = serde_json::to_vec(&answer).unwrap_or_default();
            let written = std::fs::File::from(write).write_all(&answer);
            sys::exit_now(i32::from(written.is_err()));
        }
        Cloned::Parent { pidfd, .. } => Ok(Worker { name, pidfd, answer: read, gives: PhantomData }),
    }
}

impl<T: DeserializeOwned> Worker<T> {
    /// Waits for what `work` returned.
    pub async fn answer(self) -> Result<T> {
        let answer = read_answer(self.name, self.answer, self.pidfd).await?;
        understood(self.name, &answer)
    }

    /// Like [`Worker::answer`], in a process that has no loop, and that nobody else reaps children of.
    pub fn answer_blocking(self) -> Result<T> {
        let name = self.name;
        let mut answer = Vec::new();
        let read = std::fs::File::from(self.answer).read_to_end(&mut answer);
        read.doing(Kind::Internal, || format!("no answer from the worker for {name}"))?;
        // What it has answered counts, not how it ended.
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
        understood(name, &answer)
    }
}

impl<T: DeserializeOwned> Worker<T> {
    /// Waits for what the work of [`start_orphan`] returned, for at most this long; `None` if it goes on.
    pub fn answer_within(self, most: Duration) -> Result<Option<T>> {
        let Worker { name, pidfd, answer, .. } = self;
        // Its parent has ended at once.
        let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
        let what = || format!("no answer from the worker for {name}");
        let until = Instant::now() + most;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) };
            match poll(&mut [PollFd::new(&answer, PollFlags::IN)], Some(&left)) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(0) => return Ok(None),
                ready => {
                    ready.doing(Kind::Internal, what)?;
                    break;
                }
            }
        }
        let mut text = Vec::new();
        std::fs::File::from(answer).read_to_end(&mut text).doing(Kind::Internal, what)?;
        understood(name, &text).map(Some)
    }
}

/// What a worker has written when it has ended: nothing if it died.
async fn read_answer(name: &str, answer: OwnedFd, pidfd: OwnedFd) -> Result<Vec<u8>> {
    let answer = read_to_end(answer).await;
    let answer = answer.doing(Kind::Internal, || format!("no answer from the worker for {name}"))?;
    // The worker is in the shim's cgroup, which it must not keep busy.
    ended(pidfd).await;
    Ok(answer)
}

/// Decodes the answer of a worker.
fn understood<T: DeserializeOwned>(name: &str, answer: &[u8]) -> Result<T> {
    if answer.is_empty() {
        return Err(Error::new(Kind::Internal, format!("the worker for {name} died without an answer")));
    }
    serde_json::from_slice::<Result<T>>(answer)
        .doing(Kind::Internal, || format!("bad answer from the worker for {name}"))?
}

/// Waits until the process behind a pidfd has ended.
pub async fn ended(pidfd: OwnedFd) {
    // A pidfd is readable once its process has ended. One that has ended already must not go through the loop: a wait
    // for many begins again with the first whenever it is recreated, and would never reach the last.
    if poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&Timespec::default())).is_ok_and(|ended| ended > 0) {
        return;
    }
    if let Ok(pidfd) = sys::register_fd(pidfd) {
        let _ = pidfd.readable().await;
    }
}

/// Reads everything from a pipe until its last writer is gone.
pub async fn read_to_end(pipe: OwnedFd) -> io::Result<Vec<u8>> {
    let mut reader = PipeReader::new(pipe)?;
    let mut all = Vec::new();
    while reader.read_more(&mut all).await? > 0 {}
    Ok(all)
}

/// The reading end of a pipe, without blocking the loop.
pub struct PipeReader(AsyncFd<std::fs::File>);

impl PipeReader {
    /// Makes `pipe` non-blocking and registers it with the loop.
    pub fn new(pipe: OwnedFd) -> io::Result<PipeReader> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(PipeReader(sys::register_fd(std::fs::File::from(pipe))?))
    }

    pub fn get_ref(&self) -> &std::fs::File {
        self.0.get_ref()
    }

    /// Appends what is there, waiting for at least a byte; 0 is the end.
    pub async fn read_more(&mut self, to: &mut Vec<u8>) -> io::Result<usize> {
        let mut chunk = [0u8; 4096];
        loop {
            let mut ready = self.0.readable_mut().await?;
            match ready.try_io(|file| file.get_mut().read(&mut chunk)) {
                Ok(Ok(length)) => {
                    to.extend_from_slice(&chunk[..length]);
                    return Ok(length);
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }
}
