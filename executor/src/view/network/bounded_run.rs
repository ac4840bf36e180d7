//! Runs a program to its end: a plugin, or iptables.
//!
//! Its time and its output are limited: at either limit its whole process group is killed, and also when the shim ends
//! whose worker runs it. When the process that runs it ends, the program itself is killed.

use std::ffi::OsString;
use std::io::pipe;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::{self as sys, Ended};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::process::program::{Program, Said, Started};

/// The longest answer, in bytes.
const ANSWER: usize = 1 << 20;

/// How many characters of anything are reported.
const EXCERPT_CHARS: usize = 300;

/// How long a killed program may take to end.
const DYING: Duration = Duration::from_secs(10);

/// The default PATH of plugins, with the programs that they run, such as iptables.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The limits of a program's run.
#[derive(Debug, Clone, Copy)]
pub struct Bounds<'a> {
    /// How long it may take.
    pub timeout: Duration,
    /// The pidfd of the shim whose worker this is. When the shim ends, everything ends, this process too, because
    /// another process then undoes what was begun.
    pub shim: Option<BorrowedFd<'a>>,
}

impl From<Duration> for Bounds<'_> {
    fn from(timeout: Duration) -> Self {
        Bounds { timeout, shim: None }
    }
}

/// What a program has said, and how it ended.
pub struct ProgramOutput {
    pub ended: Ended,
    /// Its stdout.
    pub answer: Vec<u8>,
    /// Its stderr, or the beginning and the end of that.
    pub log: String,
}

/// Where programs are looked for, the variable of that name.
pub fn path() -> OsString {
    std::env::var_os("PATH").unwrap_or_else(|| PATH.into())
}

/// Runs the program to its end.
///
/// # Errors
/// `Timeout`; `Internal` for one that says too much, or cannot be started.
pub fn run(program: Program<'_>, bounds: Bounds<'_>) -> Result<ProgramOutput> {
    let what = || "cannot hear of it";
    let (mut answers, answer) = pipe().doing(Kind::Internal, what)?;
    let (logs, log) = pipe().doing(Kind::Internal, what)?;
    // Not started as the shim starts programs: a worker may have entered a place where its threads are hidden.
    let program = program.with_fd(answer.as_fd(), 1).with_fd(log.as_fd(), 2);
    let started = program.bound().start_inside()?;
    drop((answer, log));
    let Bounds { timeout, shim } = bounds;
    let deadline = Instant::now() + timeout;
    let (mut answer, mut log) = (Vec::new(), Said::default());
    let mut open = [true, true];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds = vec![PollFd::new(&started.pidfd, PollFlags::IN)];
        fds.extend(shim.as_ref().map(|shim| PollFd::new(shim, PollFlags::IN)));
        fds.extend(open[0].then(|| PollFd::new(&answers, PollFlags::IN)));
        fds.extend(open[1].then(|| PollFd::new(&logs, PollFlags::IN)));
        match poll(&mut fds, Some(&wait)) {
            Err(rustix::io::Errno::INTR) => continue,
            ready => ready.doing(Kind::Internal, what)?,
        };
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let ended = ready.next().unwrap_or(false);
        let orphaned = shim.is_some() && ready.next().unwrap_or(false);
        let readable = open.map(|open| open && ready.next().unwrap_or(false));
        drop(fds);
        if orphaned {
            kill(&started);
            let _ = started.finish_blocking(DYING);
            sys::exit_now(1);
        }
        // A pidfd is readable once its process has ended; the processes that it leaves running may hold the
        // pipes.
        if ended && !readable[0] {
            log.read_rest(&logs);
            break;
        }
        if left.is_zero() {
            kill(&started);
            let _ = started.finish_blocking(DYING);
            let late = format!("it did not end within {timeout:?} and was killed");
            return Err(Error::new(Kind::Timeout, late));
        }
        if readable[0] {
            open[0] = more(&mut answers, &mut answer).doing(Kind::Internal, what)?;
        }
        if readable[1] {
            open[1] = log.read_some(&logs);
        }
        if answer.len() > ANSWER {
            kill(&started);
            let _ = started.finish_blocking(DYING);
            let told = told(&String::from_utf8_lossy(&answer));
            return Err(Error::new(Kind::Internal, format!("it said more than {ANSWER} bytes: {told:?}")));
        }
    }
    let outcome = started.finish_blocking(DYING)?;
    Ok(ProgramOutput { ended: outcome.ended, answer, log: log.into_text() })
}

/// Kills the program, and whatever it started that is still in its group.
fn kill(started: &Started) {
    // The program is not reaped yet, so no other group has its number.
    if let Some(group) = Pid::from_raw(started.pid) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    started.kill();
}

/// Reads once. Returns whether there may be more.
fn more(pipe: &mut impl std::io::Read, to: &mut Vec<u8>) -> std::io::Result<bool> {
    let mut chunk = [0; 4096];
    let length = pipe.read(&mut chunk)?;
    to.extend_from_slice(&chunk[..length]);
    Ok(length > 0)
}

/// What a program said, on one line: all of it, or its beginning and its end.
pub fn told(text: &str) -> String {
    let chars: Vec<char> = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match chars.len() <= EXCERPT_CHARS {
        true => chars.into_iter().collect(),
        false => [&chars[..EXCERPT_CHARS / 2], &[' ', '…', ' '], &chars[chars.len() - EXCERPT_CHARS / 2..]]
            .concat()
            .iter()
            .collect(),
    }
}
