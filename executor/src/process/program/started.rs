//! A program that was started, until its end: whether it runs, what it writes, and how it ends, or
//! that it is killed at the deadline.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::proc_stat::{self, ProcStat};
use bowline_sys::{self as sys, Ended};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::{Deserialize, Serialize};

use super::said::Said;
use crate::process::worker::{self, PipeReader};
use crate::waits::claim::Claim;

/// How long a killed process may take to be gone.
const DYING: Duration = Duration::from_secs(1);

/// A program that was started, and may not run yet.
#[derive(Debug)]
pub struct Started {
    /// In the starter's pid namespace.
    pub pid: i32,
    /// For signals to the process.
    pub pidfd: OwnedFd,
    pub(super) path: String,
    /// Carries the reason when the program cannot be run, else nothing.
    pub(super) report: OwnedFd,
    /// Stdout and stderr, if they are captured.
    pub(super) output: Option<OwnedFd>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The exit code or the signal.
    pub ended: Ended,
    /// Stdout and stderr together, if they were captured: all of them, or their beginning and their end.
    pub output: String,
}

impl Started {
    /// Returns once the program runs.
    ///
    /// # Errors
    /// `CommandNotFound` or `NotExecutable` when it cannot be run.
    pub async fn executed(&mut self) -> Result<()> {
        let what = || format!("cannot hear of {}", self.path);
        let report = self.report.try_clone().doing(Kind::Internal, what)?;
        let said = worker::read_to_end(report).await.doing(Kind::Internal, what)?;
        understood(&self.path, &said)
    }

    /// Waits for the end of the program; kills it at the deadline.
    pub async fn finish(&mut self, claim: &Claim, timeout: Duration) -> Result<Outcome> {
        let mut said = Said::default();
        let deadline = tokio::time::sleep(timeout);
        let what = || format!("cannot read what {} writes", self.path);
        let pipe = self.output.as_ref().map(OwnedFd::try_clone).transpose().doing(Kind::Internal, what)?;
        let mut reader = pipe.map(PipeReader::new).transpose().doing(Kind::Internal, what)?;
        tokio::pin!(deadline);
        let ended = loop {
            tokio::select! {
                biased;
                end = claim.ended() => break end.ended,
                () = &mut deadline => {
                    self.kill_with_children();
                    let _ = tokio::time::timeout(DYING, claim.ended()).await;
                    return Err(self.timed_out(timeout));
                }
                more = next(&mut reader, &mut said) => if !more { reader = None },
            }
        };
        if let Some(pipe) = &self.output {
            said.read_rest(pipe);
        }
        self.executed().await?;
        Ok(Outcome { ended, output: said.into_text() })
    }

    /// Like `finish`, but waits for the process itself, where nobody else reaps it.
    pub fn finish_blocking(self, timeout: Duration) -> Result<Outcome> {
        self.finish_unless(timeout, None)
    }

    /// Like `finish_blocking`; also kills the program once there is something to read from `given_up`.
    ///
    /// # Errors
    /// `WrongState` then.
    pub fn finish_unless(self, timeout: Duration, given_up: Option<&OwnedFd>) -> Result<Outcome> {
        let what = || format!("cannot wait for {}", self.path);
        let deadline = Instant::now() + timeout;
        let mut said = Said::default();
        let mut reader = self.output.as_ref();
        loop {
            let left = time_left(deadline);
            let late = Instant::now() >= deadline;
            let mut fds = vec![PollFd::new(&self.pidfd, PollFlags::IN)];
            fds.extend(reader.map(|fd| PollFd::new(fd, PollFlags::IN)));
            fds.extend(given_up.map(|fd| PollFd::new(fd, PollFlags::IN)));
            match poll(&mut fds, Some(&left)) {
                Err(rustix::io::Errno::INTR) if !late => continue,
                // A filter may answer so for ever.
                Err(rustix::io::Errno::INTR) => 0,
                ready => ready.doing(Kind::Internal, what)?,
            };
            let ended = !fds[0].revents().is_empty();
            let readable = reader.is_some() && !fds[1].revents().is_empty();
            let is_given_up = given_up.is_some() && fds.last().is_some_and(|fd| !fd.revents().is_empty());
            if ended {
                reader.into_iter().for_each(|pipe| said.read_rest(pipe));
                break;
            } else if readable && !reader.is_some_and(|pipe| said.read_some(pipe)) {
                reader = None;
            } else if late || is_given_up {
                self.kill_with_children();
                wait_for_killed(&self.pidfd, Instant::now() + DYING);
                let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
                return Err(if late { self.timed_out(timeout) } else { self.was_given_up() });
            }
        }
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED).doing(Kind::Internal, what)?;
        let ended = status.map_or(Ended::Exited(0), |status| match status.terminating_signal() {
            Some(signal) => Ended::Signaled(signal),
            None => Ended::Exited(status.exit_status().unwrap_or(0)),
        });
        understood(&self.path, &said_so_far(&self.report))?;
        Ok(Outcome { ended, output: said.into_text() })
    }

    /// What the program, which has ended, has written, as far as that is kept.
    pub fn said(&self) -> String {
        let mut said = Said::default();
        self.output.iter().for_each(|pipe| said.read_rest(pipe));
        said.into_text()
    }

    /// Kills the process; `ESRCH` means that it has ended.
    pub fn kill(&self) {
        let _ = sys::pidfd_send_signal(self.pidfd.as_fd(), libc::SIGKILL);
    }

    /// Kills the process, which is not reaped yet, and those of its children that are in its session.
    fn kill_with_children(&self) {
        // No other session has this number before its leader is reaped. If the program has none yet, it has no children.
        let _ = Pid::from_raw(self.pid).map(|session| kill_process_group(session, Signal::KILL));
        self.kill();
    }

    fn was_given_up(&self) -> Error {
        Error::new(Kind::WrongState, format!("{} was killed, as nobody needs it any more", self.path))
    }

    fn timed_out(&self, timeout: Duration) -> Error {
        Error::new(Kind::Timeout, format!("{} did not end within {timeout:?} and was killed", self.path))
    }
}

impl Outcome {
    /// Checks that the program ended well.
    ///
    /// # Errors
    /// `Internal` with how the program ended and what it wrote.
    pub fn success(&self, what: &str) -> Result<()> {
        let how = match self.ended {
            Ended::Exited(0) => return Ok(()),
            Ended::Exited(code) => format!("exit code {code}"),
            Ended::Signaled(signal) => format!("killed by signal {signal}"),
            Ended::Unknown => "its end is not known".to_owned(),
        };
        let said = self.output.trim();
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        Err(Error::new(Kind::Internal, format!("{what} failed: {how}{said}")))
    }
}

/// Kills all descendants of the calling process, which has one thread and is the subreaper of the
/// program's. Returns when they have ended, or after [`DYING`].
pub fn kill_descendants() {
    let until = Instant::now() + DYING;
    loop {
        // Nobody else reaps them, so a pid stays theirs.
        let children: Vec<OwnedFd> = children().filter_map(|pid| sys::pidfd_open(pid).ok()).collect();
        if children.is_empty() || Instant::now() >= until {
            return;
        }
        for child in &children {
            let _ = sys::pidfd_send_signal(child.as_fd(), libc::SIGKILL);
            wait_for_killed(child, until);
        }
        // The children of those that have ended are children of this process now.
        while matches!(sys::reap(), Ok(Some(_))) {}
    }
}

/// The pids of the calling process's children. Not from its file `children`, which a kernel may lack.
fn children() -> impl Iterator<Item = i32> {
    let own = std::process::id().cast_signed();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(move |pid| proc_stat::read(*pid).and_then(|stat| ProcStat::parse(&stat)?.pid(4)) == Some(own))
}

/// Waits until a process has ended that was sent SIGKILL, but not longer than `until`: it may be deep in the kernel.
fn wait_for_killed(pidfd: &OwnedFd, until: Instant) {
    loop {
        let left = time_left(until);
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) if Instant::now() < until => {}
            _ => return,
        }
    }
}

/// What is in a pipe that nobody writes to any more. Does not wait for its end, which never comes where a filter kept us
/// from closing our own end for writing.
fn said_so_far(pipe: &OwnedFd) -> Vec<u8> {
    let mut said = Vec::new();
    let now = Timespec::default();
    while poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0) {
        let mut chunk = [0u8; 4096];
        match rustix::io::read(pipe, &mut chunk[..]) {
            Ok(length @ 1..) => said.extend_from_slice(&chunk[..length]),
            _ => break,
        }
    }
    said
}

fn time_left(until: Instant) -> Timespec {
    let left = until.saturating_duration_since(Instant::now());
    Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) }
}

async fn next(reader: &mut Option<PipeReader>, said: &mut Said) -> bool {
    let Some(reader) = reader else { return std::future::pending().await };
    let mut chunk = Vec::new();
    let more = reader.read_more(&mut chunk).await.is_ok_and(|length| length > 0);
    said.push(&chunk);
    more
}

/// Decodes what a child said before it ran the program: nothing, if it did.
fn understood(path: &str, said: &[u8]) -> Result<()> {
    if said.is_empty() {
        return Ok(());
    }
    let lost = || Error::new(Kind::Internal, format!("cannot run {path}: the reason was lost"));
    Err(serde_json::from_slice(said).unwrap_or_else(|_| lost()))
}
