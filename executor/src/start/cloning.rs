//! Children of the shim, cloned by itself or through a worker, and what they report until execve.
//!
//! Must not: know what a child becomes.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use bowline_cgroup::Entry;
use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::json::handover::Fd;
use bowline_model::liveness::Live;
use bowline_sys::{self as sys, Cloned, SharedPid, SharedText};
use tokio::time::timeout;

use crate::process::inheritance;
use crate::process::worker::{self, PipeReader};
use crate::rights::notify::{Handing, Notify};
use crate::start::child::{self, ChildFds};

/// What a cloned process reports on its way to execve.
pub struct Report {
    pipe: PipeReader,
    buffer: Vec<u8>,
    /// What the process said before its worker had reported the pid.
    early: Option<Word>,
    /// The worker that clones the process, until the pid is known.
    worker: Option<Worker>,
    /// Who gets the listener of the process's filter, until the pid is known.
    notify: Option<Notify>,
    /// The handing over of that listener, from then on.
    handing: Option<Handing>,
    /// Where a process leaves an error that it may not write to the pipe.
    last_words: Option<SharedText>,
}

pub enum Word {
    Pid(i32),
    Closed,
    Hooks,
    Ready,
    Executes,
    Failed(Error),
    End,
}

impl Report {
    /// Reads from `pipe`, whose writers are the process and its `worker`. `notify` gets the
    /// listener of the process's filter. When the pipe is closed, `last_words` may have an error.
    pub fn new(
        pipe: OwnedFd,
        worker: Option<Worker>,
        notify: Option<Notify>,
        last_words: Option<SharedText>,
    ) -> Result<Report> {
        let pipe = PipeReader::new(pipe).doing(Kind::Internal, || "cannot watch a report pipe")?;
        Ok(Report { pipe, buffer: Vec::new(), early: None, worker, notify, handing: None, last_words })
    }

    /// The pipe, for the program that is executed in the shim's place; `None` where there is more to hand over.
    pub fn hand_over(&self) -> Option<Fd> {
        let all_is_read = self.buffer.is_empty() && self.early.is_none() && self.last_words.is_none();
        all_is_read.then(|| Fd::of(self.pipe.get_ref()))
    }

    /// The pid of the child that a worker has cloned for the shim. The child may have ended by now,
    /// and have been reaped. `None` when its cgroup takes no process.
    ///
    /// # Errors
    /// `Timeout` when there was no child before `give_up`: then there is none.
    pub async fn cloned(&mut self, give_up: impl Future<Output = ()>) -> Result<Option<i32>> {
        tokio::select! {
            biased;
            told = self.told_pid() => return told,
            () = give_up => {}
        }
        let Some(worker) = self.worker.take() else { return self.told_pid().await };
        match worker.given_up().await {
            Some(pid) => {
                self.notify_of(pid);
                Ok(Some(pid))
            }
            None => Err(Error::new(Kind::Timeout, "no process was cloned in time")),
        }
    }

    async fn told_pid(&mut self) -> Result<Option<i32>> {
        loop {
            match self.next().await? {
                Word::Pid(pid) => {
                    self.worker = None;
                    self.notify_of(pid);
                    return Ok(Some(pid));
                }
                Word::Closed => return Ok(None),
                Word::Failed(error) => return Err(error),
                // The process may report before its worker does.
                word @ (Word::Ready | Word::Hooks | Word::Executes) => self.early = Some(word),
                Word::End => {
                    let died = || Error::new(Kind::Internal, "the worker died before it had cloned a process");
                    // Whatever kills a process for its memory kills all that share it.
                    let pid = self.worker.take().and_then(|worker| worker.cloned.get()).ok_or_else(died)?;
                    self.notify_of(pid);
                    return Ok(Some(pid));
                }
            }
        }
    }

    pub fn notify_of(&mut self, pid: i32) {
        if let Some(notify) = self.notify.take() {
            self.handing = Some(notify.forward(pid));
        }
    }

    /// Waits until the agent has the listener of the process's filter, if there is one.
    pub async fn handed_over(&self) -> Result<()> {
        match &self.handing {
            Some(handing) => handing.done().await,
            None => Ok(()),
        }
    }

    /// What the process says next, even if it has said that too early.
    pub async fn after_pid(&mut self) -> Result<Word> {
        loop {
            let word = match self.early.take() {
                Some(word) => word,
                None => self.next().await?,
            };
            // A worker that is given up may have reported the pid just before it died.
            if !matches!(word, Word::Pid(_)) {
                return Ok(word);
            }
        }
    }

    /// Opens the process that [`Report::cloned`] has named.
    ///
    /// # Errors
    /// Why the process has failed, if it has ended already.
    pub async fn open(&mut self, pid: i32) -> Result<Live> {
        let opened = sys::pidfd_open(pid).doing(Kind::Internal, || format!("cannot open process {pid}"));
        match opened {
            Ok(pidfd) => Ok(Live { pid, pidfd }),
            Err(gone) => match self.after_pid().await? {
                Word::Failed(error) => Err(error),
                Word::Pid(_) | Word::Closed | Word::Hooks | Word::Ready | Word::Executes | Word::End => Err(gone),
            },
        }
    }

    /// Waits until a process that executes nothing is set up.
    pub async fn set_up(&mut self) -> Result<()> {
        match self.after_pid().await? {
            Word::Ready => Ok(()),
            Word::Failed(error) => Err(error),
            Word::Pid(_) | Word::Closed | Word::Hooks | Word::Executes | Word::End => {
                Err(Error::new(Kind::Internal, "a process died while it was being set up"))
            }
        }
    }

    /// Waits until the program is executed, which closes the pipe, and the agent has the listener of its filter.
    pub async fn executed(&mut self) -> Result<()> {
        match self.after_pid().await? {
            Word::End => self.handed_over().await,
            Word::Failed(error) => Err(error),
            Word::Pid(_) | Word::Closed | Word::Hooks | Word::Ready | Word::Executes => {
                Err(Error::new(Kind::Internal, "unexpected word from a process"))
            }
        }
    }

    /// Waits until init has run the container's last hooks, and has only the program to execute.
    pub async fn hooked(&mut self) -> Result<()> {
        match self.after_pid().await? {
            Word::Executes => Ok(()),
            Word::Failed(error) => Err(error),
            Word::Pid(_) | Word::Closed | Word::Hooks | Word::Ready | Word::End => {
                Err(Error::new(Kind::Internal, "init died before it executed the command"))
            }
        }
    }

    pub async fn next(&mut self) -> Result<Word> {
        loop {
            if let Some((length, word)) = first_word(&self.buffer) {
                self.buffer.drain(..length);
                return Ok(word);
            }
            let handing = self.handing.as_ref();
            let not_handed_over = async {
                match handing {
                    Some(handing) => handing.failure().await,
                    None => std::future::pending().await,
                }
            };
            let more = tokio::select! {
                // What the process says of its own failure counts more.
                biased;
                more = self.pipe.read_more(&mut self.buffer) => more,
                error = not_handed_over => return Err(error),
            };
            if more.doing(Kind::Internal, || "cannot read a report pipe")? == 0 {
                let error = self.last_words.take().and_then(|words| words.get()).map(|text| error_from(&text));
                return Ok(error.map_or(Word::End, Word::Failed));
            }
        }
    }
}

/// More than an error has: who could trace a process may write to its pipe.
const LONGEST_ERROR: usize = 64 << 10;

/// The first whole message in `buffer`, with its length.
fn first_word(buffer: &[u8]) -> Option<(usize, Word)> {
    let number = |bytes: &[u8]| <[u8; 4]>::try_from(bytes.get(..4)?).ok();
    match *buffer.first()? {
        child::READY => Some((1, Word::Ready)),
        child::CLOSED => Some((1, Word::Closed)),
        child::HOOKS => Some((1, Word::Hooks)),
        child::EXECUTES => Some((1, Word::Executes)),
        child::PID => Some((5, Word::Pid(i32::from_ne_bytes(number(&buffer[1..])?)))),
        _ => {
            let length = u32::from_ne_bytes(number(&buffer[1..])?) as usize;
            if length > LONGEST_ERROR {
                return Some((buffer.len(), Word::Failed(error_from(b""))));
            }
            let json = buffer.get(5..5 + length)?;
            Some((5 + length, Word::Failed(error_from(json))))
        }
    }
}

fn error_from(json: &[u8]) -> Error {
    let lost = |_| Error::new(Kind::Internal, "a process failed before execve and its reason was lost");
    serde_json::from_slice(json).unwrap_or_else(lost)
}

/// Clones a child of the shim into new namespaces. The child keeps its `child_fds` and what it
/// enters its cgroup by, runs `child` and ends.
pub fn clone_child(flags: u64, entry: &Entry, child_fds: &ChildFds<'_>, child: impl FnOnce(&Entry)) -> Result<Live> {
    let cloned = sys::clone3(flags, entry.cloned_into());
    let into = match cloned.as_ref().err().and_then(io::Error::raw_os_error) {
        Some(libc::EBUSY | libc::EOPNOTSUPP | libc::ENODEV) => format!("cgroup {}", entry.path()),
        _ => "its namespaces".to_owned(),
    };
    match cloned.doing(Kind::Unsupported, || format!("cannot clone a process into {into}"))? {
        Cloned::Child => {
            match child_fds.take(None, entry.fds().iter().copied()) {
                Ok(()) => child(entry),
                Err(error) => child_fds.tell(&error),
            }
            sys::exit_now(1)
        }
        Cloned::Parent { pid, pidfd } => Ok(Live { pid, pidfd }),
    }
}

/// How long to wait for a killed worker to end. One that is blocked in the kernel ends later, and clones no child.
const DYING: Duration = Duration::from_secs(1);

/// A worker that clones a child of the shim.
pub struct Worker {
    pidfd: OwnedFd,
    cloned: SharedPid,
}

impl Worker {
    /// Kills the worker. Returns the child, if it had cloned one.
    async fn given_up(self) -> Option<i32> {
        // A worker that has ended needs no signal.
        let _ = sys::pidfd_send_signal(self.pidfd.as_fd(), libc::SIGKILL);
        let _ = timeout(DYING, worker::ended(self.pidfd)).await;
        self.cloned.get()
    }
}

/// Lets a worker enter namespaces that the shim must stay out of, and clone a child of the shim
/// there. The child's pid, an error, or that the cgroup takes no process, comes by the report pipe.
/// The kernel stores its pid in `cloned`.
///
/// Of the shim's fds the child gets only its `child_fds`, the null device that `enter` may have
/// made for its streams, and what it enters its cgroup by: other processes may see the child as
/// soon as it is cloned, and those with CAP_SYS_PTRACE on the host reach its fds.
///
/// The worker is a fork: nothing that the task can see or stop may share the shim's memory or be waited for. Where `flags`
/// has CLONE_VM, the child takes over the worker's memory (see [`sys::go_on_beside`]).
pub fn clone_through_worker(
    flags: u64,
    entry: &Entry,
    child_fds: &ChildFds<'_>,
    cloned: io::Result<SharedPid>,
    enter: impl FnOnce() -> Result<Option<OwnedFd>>,
    child: impl FnOnce(&Entry),
) -> Result<Worker> {
    let what = || "cannot start a worker";
    let cloned = cloned.doing(Kind::Internal, what)?;
    if let Cloned::Parent { pidfd, .. } = sys::clone3(0, None).doing(Kind::Internal, what)? {
        return Ok(Worker { pidfd, cloned });
    }
    let late = entry.joined_late();
    let prepared = entry.prepare().doing(Kind::Internal, what);
    let done = prepared.and_then(|()| enter()).and_then(|null| {
        // Joining a user namespace may have ended this.
        inheritance::hide()?;
        child_fds.take(null.as_ref().map(OwnedFd::as_fd), late.fds().iter().copied().chain(entry.cloned_into()))?;
        // Its fd was closed with the rest.
        std::mem::forget(null);
        let what = || format!("cannot clone a process into cgroup {}", entry.path());
        let go_on = |into| sys::go_on_beside(flags, into, &cloned, child_fds.report(), child::PID);
        match go_on(entry.cloned_into()) {
            // The cgroup is at its pids limit, where a health check is wanted most.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                go_on(None).doing(Kind::Internal, what).map(|()| Some(&late))
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EOPNOTSUPP)) => Ok(None),
            went_on => went_on.doing(Kind::Internal, what).map(|()| Some(entry)),
        }
    });
    match done {
        Ok(Some(entered)) => {
            // This is the child. The shim reads that page.
            drop(cloned);
            // Close the fds by which the worker cloned this child, or would have moved it.
            entry.cloned_into().into_iter().for_each(sys::close_fd);
            late.fds().iter().filter(|fd| !entered.fds().contains(fd)).for_each(|fd| sys::close_fd(*fd));
            child(entered);
        }
        Ok(None) => child_fds.say(&[child::CLOSED]),
        Err(error) => child_fds.tell(&error),
    }
    sys::exit_now(0)
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, waitid, waitpid};

    use super::*;
    use crate::output::io::pipe;

    #[test]
    fn a_process_may_be_ready_before_its_worker_has_told_its_pid() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        runtime.block_on(async {
            let (read, write) = pipe().expect("a pipe");
            let mut report = Report::new(read, None, None, None).expect("a report");
            rustix::io::write(&write, &[child::READY]).expect("written");
            rustix::io::write(&write, &[&[child::PID], &77i32.to_ne_bytes()[..]].concat()).expect("written");
            assert_eq!(report.cloned(std::future::pending()).await, Ok(Some(77)));
            assert!(matches!(report.after_pid().await, Ok(Word::Ready)));
            drop(write);
            assert!(matches!(report.after_pid().await, Ok(Word::End)));
        });
    }

    #[test]
    fn a_worker_that_is_given_up_may_have_told_the_pid() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        runtime.block_on(async {
            let (read, write) = pipe().expect("a pipe");
            let mut report = Report::new(read, None, None, None).expect("a report");
            rustix::io::write(&write, &[&[child::PID], &77i32.to_ne_bytes()[..]].concat()).expect("written");
            drop(write);
            assert_eq!(report.executed().await, Ok(()));
        });
    }

    #[test]
    fn the_pid_is_known_of_a_worker_that_died_before_it_had_told_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        runtime.block_on(async {
            for has_cloned in [true, false] {
                let cloned = SharedPid::new().expect("a page");
                let Cloned::Parent { pidfd, .. } = sys::fork_among_threads().expect("a worker") else {
                    let went_on = has_cloned.then(|| sys::go_on_beside(0, None, &cloned, -1, child::PID));
                    sys::exit_now(went_on.is_some_and(|outcome| outcome.is_err()).into());
                };
                waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).expect("ours");
                let (read, write) = pipe().expect("a pipe");
                drop(write);
                let pid = cloned.get();
                assert_eq!(pid.is_some(), has_cloned);
                let mut report = Report::new(read, Some(Worker { pidfd, cloned }), None, None).expect("a report");
                let told = report.cloned(std::future::pending()).await;
                assert_eq!(told.ok().flatten(), pid);
                let ended = pid.and_then(Pid::from_raw).map(|pid| waitpid(Some(pid), WaitOptions::empty()));
                assert!(ended.is_none_or(|ended| ended.is_ok()));
            }
        });
    }

    #[test]
    fn an_error_that_overtakes_the_pid_is_read_whole() {
        let error = Error::new(Kind::BadSpec, "no");
        let json = serde_json::to_vec(&error).expect("JSON");
        let mut buffer = vec![child::messages::ERROR];
        buffer.extend((json.len() as u32).to_ne_bytes());
        buffer.extend(&json);
        let whole = buffer.len();
        buffer.push(child::PID);
        assert!(matches!(first_word(&buffer), Some((length, Word::Failed(e))) if length == whole && e == error));
        for cut in 0..whole {
            assert!(first_word(&buffer[..cut]).is_none(), "{cut} bytes are no message");
        }
        buffer.extend(77i32.to_ne_bytes());
        assert!(matches!(first_word(&buffer[whole..]), Some((5, Word::Pid(77)))));
    }
}
