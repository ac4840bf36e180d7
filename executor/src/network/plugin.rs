//! Runs one CNI plugin: finds it by its name, runs it once, and reads what it says.
//!
//! A plugin reads its configuration from stdin and its parameters from environment variables, answers on stdout,
//! and logs on stderr. Its time and its output are limited: at either limit its whole process group is killed, and
//! also when the shim ends whose worker runs it. When the process that runs it ends, the plugin itself is killed.

use std::ffi::OsString;
use std::io::pipe;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::{self as sys, Ended};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Value, json};

use super::version::NEWEST;
use crate::program::{Program, Started};
use crate::watch::MARKER;

/// How long a plugin may take unless the caller says otherwise: it may wait for a lock, or for a DHCP server.
pub const LONGEST: Duration = Duration::from_secs(60);

/// The longest answer, in bytes.
const ANSWER: usize = 1 << 20;

/// How many bytes of a plugin's log are kept, and how many characters of anything are reported.
const LOGGED: usize = 4096;
const TOLD: usize = 300;

/// How long a killed plugin may take to end.
const DYING: Duration = Duration::from_secs(10);

/// The default PATH of plugins, with the programs that they run, such as iptables.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The folders with the plugins, and how long each plugin may take.
#[derive(Debug, Clone, Copy)]
pub struct Plugins<'a> {
    pub folders: &'a [PathBuf],
    pub bounds: Bounds<'a>,
}

/// The limits of a plugin's run.
#[derive(Debug, Clone, Copy)]
pub struct Bounds<'a> {
    /// How long each plugin may take.
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

/// The parameters of a call.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// "ADD", "CHECK", "DEL" or "VERSION".
    pub command: &'static str,
    pub id: &'a str,
    /// The namespace; `None` once it is gone.
    pub netns: Option<&'a Path>,
    pub interface: &'a str,
    /// Pairs, as plugins take them.
    pub args: &'a str,
}

/// What a plugin has said, and how it ended.
struct Said {
    ended: Ended,
    answer: Vec<u8>,
    log: Vec<u8>,
}

/// Why a plugin has failed.
#[derive(Debug)]
pub struct Failed {
    pub error: Error,
    /// Whether the plugin reported the failure itself, as CNI wants it: then it has cleaned up.
    pub orderly: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed { error, orderly: false }
    }
}

/// A plugin's report that it failed.
#[derive(Deserialize)]
struct Failure {
    code: u64,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    details: String,
}

impl Plugins<'_> {
    /// Finds the program of the plugin `kind`: the first one in the folders.
    ///
    /// # Errors
    /// `Unsupported`, with the folders, when it is in none.
    pub fn find(&self, kind: &str) -> Result<PathBuf> {
        if kind.is_empty() || kind.contains('/') || kind == ".." {
            return Err(Error::new(Kind::BadSpec, format!("{kind:?} is not a network plugin's name")));
        }
        let found = self.folders.iter().map(|folder| folder.join(kind)).find(|path| path.is_file());
        found.ok_or_else(|| {
            let folders: Vec<_> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
            let message = format!("cannot find the network plugin {kind} in {}", folders.join(", "));
            Error::new(Kind::Unsupported, message).hint("install it there, or name the folder where it is")
        })
    }

    /// Runs ADD.
    ///
    /// # Errors
    /// Those of [`Plugins::tell`]; `Internal`, with the beginning of the answer, if that is not a result.
    pub fn ask(&self, kind: &str, call: Call<'_>, config: &Value) -> std::result::Result<Value, Failed> {
        let said = self.run(kind, call, config)?;
        result_of(&said.answer, config).ok_or_else(|| garbage(kind, call.command, &said).into())
    }

    /// Runs CHECK or DEL, which have no answer.
    ///
    /// # Errors
    /// `Unsupported` for a plugin that is missing; `Timeout`; else the plugin's own error, with its code:
    /// `Unsupported` for a version that it lacks, `BadSpec` for a configuration that it does not accept, `Internal`
    /// for the rest.
    pub fn tell(&self, kind: &str, call: Call<'_>, config: &Value) -> Result<()> {
        self.run(kind, call, config).map(drop).map_err(|failed| failed.error)
    }

    /// The versions of CNI that a plugin supports.
    pub fn versions(&self, kind: &str) -> Result<Vec<String>> {
        // Old plugins want every variable to have some value.
        let dummy = "dummy";
        let call = Call { command: "VERSION", id: dummy, netns: Some(Path::new(dummy)), interface: dummy, args: "" };
        let said = self.run(kind, call, &json!({"cniVersion": NEWEST})).map_err(|failed| failed.error)?;
        versions_in(&said.answer).ok_or_else(|| garbage(kind, call.command, &said))
    }

    /// Runs the plugin, and fails unless it succeeds.
    fn run(&self, kind: &str, call: Call<'_>, config: &Value) -> std::result::Result<Said, Failed> {
        let path = self.find(kind)?;
        let what = || format!("network plugin {kind} failed at {}", call.command);
        let said = self.run_to_end(&path, call, config).map_err(|error| error.within(what()))?;
        let how = match said.ended {
            Ended::Exited(0) => return Ok(said),
            Ended::Exited(code) => format!("exit code {code}"),
            Ended::Signaled(signal) => format!("killed by signal {signal}"),
            Ended::Unknown => "its end is not known".to_owned(),
        };
        if let Some(error) = failure_in(&said.answer) {
            return Err(Failed { error: error.within(what()), orderly: true });
        }
        let said = if said.answer.is_empty() { &said.log } else { &said.answer };
        let said = if said.is_empty() { "nothing".to_owned() } else { format!("{:?}", told(said)) };
        Err(Error::new(Kind::Internal, format!("{}: {how}, and it said {said}", what())).into())
    }

    fn environment(&self, call: Call<'_>) -> Vec<OsString> {
        let folders: Vec<OsString> = self.folders.iter().map(|folder| folder.clone().into_os_string()).collect();
        let netns = call.netns.map(|path| path.as_os_str().to_owned()).unwrap_or_default();
        let path = std::env::var_os("PATH").unwrap_or_else(|| PATH.into());
        let all: [(&str, OsString); 7] = [
            ("PATH", path),
            ("CNI_COMMAND", call.command.into()),
            ("CNI_CONTAINERID", call.id.into()),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", call.interface.into()),
            ("CNI_ARGS", call.args.into()),
            ("CNI_PATH", folders.join(":".as_ref())),
        ];
        // With this mark, processes that a plugin leaves running are expected in the shim's cgroup.
        let mark = std::env::var_os(MARKER).map(|value| (MARKER, value));
        all.into_iter().chain(mark).map(|(name, value)| [name.into(), value].join("=".as_ref())).collect()
    }

    fn run_to_end(&self, path: &Path, call: Call<'_>, config: &Value) -> Result<Said> {
        let what = || "cannot hear of it";
        let text = serde_json::to_vec(config).doing(Kind::Internal, || "cannot write its configuration")?;
        let (mut answers, answer) = pipe().doing(Kind::Internal, what)?;
        let (mut logs, log) = pipe().doing(Kind::Internal, what)?;
        let program = Program::new(path, [path], self.environment(call))?.reading(&text)?;
        // Not started as the shim starts programs: a worker may have entered a place where its threads are hidden.
        let program = program.with_fd(answer.as_fd(), 1).with_fd(log.as_fd(), 2);
        let started = program.bound().start_inside()?;
        drop((answer, log));
        let Bounds { timeout, shim } = self.bounds;
        let deadline = Instant::now() + timeout;
        let (mut answer, mut log) = (Vec::new(), Vec::new());
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
            if ended && !readable[0] && (!readable[1] || log.len() >= LOGGED) {
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
                open[1] = more(&mut logs, &mut log).doing(Kind::Internal, what)?;
                log.truncate(LOGGED);
            }
            if answer.len() > ANSWER {
                kill(&started);
                let _ = started.finish_blocking(DYING);
                let told = told(&answer);
                return Err(Error::new(Kind::Internal, format!("it said more than {ANSWER} bytes: {told:?}")));
            }
        }
        let outcome = started.finish_blocking(DYING)?;
        Ok(Said { ended: outcome.ended, answer, log })
    }
}

/// Kills the plugin, and whatever it started that is still in its group.
fn kill(started: &Started) {
    // The plugin is not reaped yet, so no other group has its number.
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

/// The result in the answer to an ADD with `config`.
pub fn result_of(answer: &[u8], config: &Value) -> Option<Value> {
    let Ok(Value::Object(mut result)) = serde_json::from_slice(answer) else { return None };
    // An old plugin's result may name no version; it then has the configuration's.
    result.entry("cniVersion").or_insert_with(|| config["cniVersion"].clone());
    Some(Value::Object(result))
}

/// The versions in the answer to VERSION.
pub fn versions_in(answer: &[u8]) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Versions {
        cni_version: String,
        #[serde(default)]
        supported_versions: Vec<String>,
    }
    let Versions { cni_version, supported_versions } = serde_json::from_slice(answer).ok()?;
    // 0.2.0, the first version that has VERSION, need not list any.
    if supported_versions.is_empty() && cni_version == "0.2.0" {
        return Some(vec!["0.1.0".to_owned(), cni_version]);
    }
    Some(supported_versions).filter(|versions| !versions.is_empty())
}

/// The failure that a plugin reports in its answer.
pub fn failure_in(answer: &[u8]) -> Option<Error> {
    let Failure { code, msg, details } = serde_json::from_slice(answer).ok()?;
    let parts = [Some(told(msg.as_bytes())), (!details.is_empty()).then(|| told(details.as_bytes()))];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    Some(Error::new(kind_of(code), format!("code {code}: {}", parts.join(": "))))
}

/// The error kind for a code of the specification.
fn kind_of(code: u64) -> Kind {
    match code {
        // A version, or a field, that the plugin does not know.
        1 | 2 => Kind::Unsupported,
        // Input that the plugin cannot decode, or a configuration that makes no sense.
        6 | 7 => Kind::BadSpec,
        _ => Kind::Internal,
    }
}

fn garbage(kind: &str, command: &str, said: &Said) -> Error {
    let said = if said.answer.is_empty() { "nothing".to_owned() } else { format!("{:?}", told(&said.answer)) };
    Error::new(
        Kind::Internal,
        format!("network plugin {kind} failed at {command}: it said {said} in place of an answer"),
    )
}

/// The beginning of what a plugin said, on one line.
fn told(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(LOGGED)]);
    text.trim().chars().take(TOLD).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests;
