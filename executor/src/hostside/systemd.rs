//! Asks systemd to start, change and stop units, through the program `bowline`: one run for each request.
//!
//! ```text
//!   request ─stdin─► bowline units ─bus─► systemd
//!   answer ◄─stdout─┘
//! ```
//!
//! The code that talks to the bus is large, and few tasks need it: in each shim it would be memory
//! for nothing. The program may be newer than the shim that runs it.
//!
//! Every request blocks. So requests are for workers and for programs that may wait, never for the
//! shim itself: a request runs a `Command`, and waits for that alone.

pub mod host;

use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, Read as _, Seek as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use bowline_error::{Doing, Error, Kind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

pub use bowline_cgroup::Unit;
pub use bowline_cgroup::systemd::{Property, Value};

/// The command of `bowline` that carries out a request.
pub const COMMAND: &str = "units";

/// The variable that the program gets from our environment: where the bus is.
const HANDED_DOWN: &str = "DBUS_SYSTEM_BUS_ADDRESS";

/// How long the program may take: longer than it waits itself for bus and systemd together.
const LONGEST: Duration = Duration::from_secs(120);

/// How much of an output that is no answer goes into the error.
const EXCERPT_CHARS: usize = 300;

/// A request about a unit of bowline's, which the command [`COMMAND`] carries out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Start a unit with a process in it.
    Start {
        /// The unit to start, and the slice that it goes into.
        unit: Unit,
        /// The process, which may leave once another one is there: an empty scope ends.
        pid: u32,
        /// The limits of the unit.
        properties: Vec<Property>,
    },
    /// Change properties of a unit.
    Change {
        /// The unit whose properties change.
        unit: Unit,
        /// The properties to set, with their new values.
        properties: Vec<Property>,
    },
    /// Stop a unit whose processes have ended.
    Stop {
        /// The unit to stop; one that has gone already is no error.
        unit: Unit,
    },
}

/// Access to systemd by a program, which runs once for each request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Systemd {
    program: PathBuf,
}

impl Systemd {
    /// Access through the `bowline` at `program`, an absolute path that only root can change. A
    /// missing program is noticed when it is needed.
    pub fn by(program: impl Into<PathBuf>) -> Systemd {
        Systemd { program: program.into() }
    }

    /// Starts `unit` with process `pid` in it.
    ///
    /// # Errors
    /// `AlreadyExists` when there is such a unit; `Unsupported` without a bus, or
    /// without the program; `Timeout`; `BadSpec` for what systemd refuses.
    /// Nothing of the unit is then left.
    pub fn start(&self, unit: &Unit, pid: u32, properties: Vec<Property>) -> Result<()> {
        self.ask(&Request::Start { unit: unit.clone(), pid, properties })
    }

    /// Reports changed properties to systemd.
    ///
    /// # Errors
    /// As for [`Systemd::start`].
    pub fn change(&self, unit: &Unit, properties: Vec<Property>) -> Result<()> {
        if properties.is_empty() {
            return Ok(());
        }
        self.ask(&Request::Change { unit: unit.clone(), properties })
    }

    /// Stops a unit whose processes have ended, and waits until the unit has gone; one that has gone already is fine.
    ///
    /// # Errors
    /// As for [`Systemd::start`].
    pub fn stop(&self, unit: &Unit) -> Result<()> {
        self.ask(&Request::Stop { unit: unit.clone() })
    }

    fn ask(&self, request: &Request) -> Result<()> {
        let what = || format!("cannot have systemd asked by {}", self.program.display());
        let request = serde_json::to_vec(request).doing(Kind::Internal, what)?;
        let (mut child, answer) = self.run(&request).map_err(|error| match error.kind() {
            ErrorKind::NotFound => self.missing(),
            _ => Error::new(Kind::Internal, format!("{}: {error}", what())),
        })?;
        let ended = wait(&mut child, LONGEST).doing(Kind::Internal, what)?;
        let said = said(answer).doing(Kind::Internal, what)?;
        let late = || Error::new(Kind::Unavailable, format!("{}: it did not end within {LONGEST:?}", what()));
        understood(&said, ended.ok_or_else(late)?).map_err(|said| match said {
            RequestFailure::Refused(error) => error,
            RequestFailure::Nonsense(how) => Error::new(Kind::Internal, format!("{}: {how}", what())),
        })
    }

    fn missing(&self) -> Error {
        let message = format!("cannot find {}, by which the systemd cgroup driver works", self.program.display());
        Error::new(Kind::Unsupported, message)
            .hint("bowline and its shims are installed side by side; the cgroup driver cgroupfs needs no bowline")
    }

    /// Starts the program. The request comes from a file in memory, so that the program need not read at all.
    fn run(&self, request: &[u8]) -> io::Result<(Child, PipeReader)> {
        let mut stdin = File::from(memfd_create("request", MemfdFlags::CLOEXEC)?);
        stdin.write_all(request)?;
        stdin.rewind()?;
        let (answer, says) = io::pipe()?;
        let mut command = Command::new(&self.program);
        command.arg(COMMAND).env_clear().envs(std::env::var_os(HANDED_DOWN).map(|address| (HANDED_DOWN, address)));
        command.stdin(stdin).stdout(says.try_clone()?).stderr(says);
        Ok((command.spawn()?, answer))
    }
}

/// Waits for the end of `child`; if that takes longer than `most`, kills it and returns `None`. A
/// child that writes more than a pipe holds does not end.
fn wait(child: &mut Child, most: Duration) -> io::Result<Option<ExitStatus>> {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let most = Timespec::try_from(most).map_err(io::Error::other)?;
    // A pidfd is readable once its process has ended.
    let ready = rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&most)));
    let ended = ready? > 0;
    if !ended {
        // ESRCH: it has just ended.
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    }
    let status = child.wait()?;
    Ok(ended.then_some(status))
}

/// What a program that has ended has left in its pipe, which another process may still have open.
fn said(mut pipe: PipeReader) -> io::Result<Vec<u8>> {
    rustix::io::ioctl_fionbio(&pipe, true)?;
    let mut all = Vec::new();
    match pipe.read_to_end(&mut all) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(all),
        read => read.map(|_| all),
    }
}

/// The outcome of a request that was not met.
#[derive(Debug, PartialEq, Eq)]
enum RequestFailure {
    /// The program answered with an error.
    Refused(Error),
    /// The program gave no answer, but this text.
    Nonsense(String),
}

fn understood(said: &[u8], ended: ExitStatus) -> std::result::Result<(), RequestFailure> {
    if let Ok(answer) = serde_json::from_slice::<Result<()>>(said) {
        return answer.map_err(RequestFailure::Refused);
    }
    let text = String::from_utf8_lossy(said);
    let line: String = text.trim().chars().take(EXCERPT_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    let line = if line.is_empty() { "nothing".to_owned() } else { format!("{line:?}") };
    Err(RequestFailure::Nonsense(format!("it said {line} in place of an answer ({ended})")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn unit() -> Unit {
        Unit::of_task("web", "web").expect("a short name")
    }

    fn refused_by(program: &str) -> Error {
        Systemd::by(program).stop(&unit()).expect_err(program)
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let property = |name: &str, value| Property { name: name.to_owned(), value };
        let properties = vec![
            property("CPUAccounting", Value::Flag(true)),
            property("MemoryMax", Value::Number(u64::MAX)),
            property("DevicePolicy", Value::Text("strict".to_owned())),
            property("AllowedCPUs", Value::Set(vec![3, 0, 255])),
            property("IOReadBandwidthMax", Value::Devices(vec![("/dev/block/8:0".to_owned(), 1000)])),
            property("DeviceAllow", Value::Rules(vec![("char-pts".to_owned(), "rw".to_owned())])),
        ];
        let all = [
            Request::Start { unit: unit(), pid: 7, properties: properties.clone() },
            Request::Change { unit: unit(), properties },
            Request::Stop { unit: unit() },
        ];
        for request in all {
            let text = serde_json::to_vec(&request).expect("plain data");
            assert_eq!(serde_json::from_slice::<Request>(&text).expect("the same"), request);
        }
    }

    #[test]
    fn an_answer_loses_nothing_of_an_error() {
        let error = Error::new(Kind::AlreadyExists, "web.scope is there").hint("stop it");
        for (answer, expected) in [(Ok(()), Ok(())), (Err(error.clone()), Err(RequestFailure::Refused(error)))] {
            let line = serde_json::to_string(&answer).expect("plain data") + "\n";
            assert_eq!(understood(line.as_bytes(), ExitStatus::from_raw(0)), expected);
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = refused_by("/nowhere/bowline");
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.message().contains("/nowhere/bowline") && error.hint_text().is_some(), "{error:?}");
    }

    #[test]
    fn a_program_that_gives_no_answer_is_told_with_what_it_said() {
        for (program, told) in [
            ("/bin/true", "it said nothing in place of an answer (exit status: 0)"),
            ("/bin/false", "it said nothing in place of an answer (exit status: 1)"),
            ("/bin/echo", "it said \"units\" in place of an answer (exit status: 0)"),
            ("/etc/passwd", "ermission denied"),
        ] {
            let error = refused_by(program);
            assert_eq!(error.kind(), Kind::Internal, "{program}");
            assert!(error.message().contains(program) && error.message().contains(told), "{error}");
        }
    }

    #[test]
    fn one_that_does_not_end_is_killed() {
        // `yes` writes more than a pipe holds.
        let (mut child, _answer) = Systemd::by("/usr/bin/yes").run(b"").expect("it runs");
        assert_eq!(wait(&mut child, Duration::from_millis(20)).expect("ours"), None);
        assert!(child.try_wait().expect("ours").is_some_and(|status| status.signal() == Some(9)), "it was waited for");
    }

    #[test]
    fn nothing_to_change_asks_nobody() {
        Systemd::by("/nowhere/bowline").change(&unit(), Vec::new()).expect("nothing to do");
    }
}
