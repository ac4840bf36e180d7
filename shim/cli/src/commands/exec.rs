//! `exec`: runs a command in a running task and passes its output through.

use std::time::Duration;

use bowline_executor::internal::ArrivedSignal;
use bowline_model::folder::StateDir;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::id::TaskId;
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::mpsc::{self, UnboundedSender};

use crate::commands::attach;
use crate::exit_code::{FAILED, by_signal};
use crate::input::args::ExecArgs;
use crate::input::environment::variables;
use crate::reach;
use crate::ui::json;
use crate::ui::session::{Happened, Session, Wish};
use crate::ui::signals::{ENDING, PassedOn, Signals};
use crate::ui::streams::{Outputs, Through};
use crate::ui::terminal::{self, OfSession};
use bowline_client::Shim;
use bowline_protocol::wire::proto::bowline::{ExecRequest, ExecResponse};

/// How a command ended, and its captured output, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Outcome {
    /// The command's exit code; null if it did not end in time.
    exit_code: Option<i32>,
    timed_out: bool,
    /// What was killed at the timeout: `cgroup`, everything that the command had started, or `session`, everything in
    /// its session. `oom` where the kernel killed the command for lack of memory. Else null.
    killed: Option<String>,
    stdout: String,
    stderr: String,
    started_at: Timestamp,
    exited_at: Timestamp,
}

impl Outcome {
    fn of(response: &ExecResponse) -> Result<Outcome> {
        let time =
            |ns: i64| Timestamp::from_nanosecond(i128::from(ns)).doing(Kind::Internal, || "the shim's clock is off");
        Ok(Outcome {
            exit_code: response.exit_code,
            timed_out: response.exit_code.is_none(),
            killed: Some(response.killed.clone()).filter(|killed| !killed.is_empty()),
            stdout: String::from_utf8_lossy(&response.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&response.stderr).into_owned(),
            started_at: time(response.started_at_ns)?,
            exited_at: time(response.exited_at_ns)?,
        })
    }
}

/// Adds to `error` how the command ended and that output of it is lost.
fn lost(error: Error, outcome: &ExecResponse) -> Error {
    let end = match outcome.exit_code {
        Some(code) => format!("the command exited with {code}"),
        None => "the deadline came".to_owned(),
    };
    error.within(format!("{end}, and output of it is lost"))
}

/// Runs `bowline exec`; exits with the command's code.
///
/// # Errors
/// `Timeout` if the command did not end in time.
pub async fn run(state: &StateDir, id: &TaskId, args: ExecArgs) -> Result<u8> {
    let folder = state.folder(id);
    let shim = reach::live(state, id).await?;
    let (json, tty) = (args.json, args.tty);
    if args.detached {
        return begin(&shim, args).await;
    }
    if tty {
        terminal::require()?;
    }
    let outputs = Outputs { stdout: !json, stderr: !json && !tty };
    let through = if shim.sees_us() { Through::Pipes } else { Through::Fifos };
    let keys = args.detach.detach_keys.clone();
    let wish = Wish { input: args.interactive, outputs, through, is_new: false, raw: tty, keys };
    let terminal = OfSession::open();
    let mut session = Session::begin(&folder, &wish, Signals::watch(&ENDING)?)?;
    let name = session.name();
    let (streams, [stdout, stderr]) = (session.attachment(), session.outputs());
    let timeout = args.timeout.map(|timeout| timeout.as_std());
    let mut request = ExecRequest {
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
        stdout_inode: stdout.inode,
        stderr_inode: stderr.inode,
        foreground: true,
        terminal: tty.then(terminal::size).into(),
        name: name.clone(),
        direct: !json,
        separate: json,
        ends_with_caller: true,
        ..requested(args)?
    };
    let term = std::env::var("TERM").ok().filter(|_| tty).map(|term| format!("TERM={term}"));
    request.env.splice(0..0, term);
    let end = shim.exec(request);
    // The shim enforces the timeout, unless it does not answer.
    let silence = async {
        let Some(timeout) = timeout else { return shim.silence_at_first().await };
        tokio::time::sleep(timeout).await;
        late(timeout, &shim.silence().await)
    };
    tokio::pin!(end, silence);
    let mut passed_on = PassedOn::default();
    let (refuses, mut refused) = mpsc::unbounded_channel();
    let outcome = loop {
        tokio::select! {
            // In this order, so that the command is asked for before it is sent a signal.
            biased;
            outcome = &mut end => break outcome,
            error = &mut silence => break Err(error),
            happened = session.happened() => match happened {
                Happened::Resized => attach::resize(&shim, &name).await,
                // Our end has its shim hang up on it.
                Happened::Interrupted(signal) if terminal.is_lost(signal) => {
                    return Ok(by_signal(signal));
                }
                // The command decides what it means.
                Happened::Interrupted(signal) => if passed_on.takes(signal) {
                    pass_on(&shim, &name, signal, &refuses);
                },
                Happened::Left => {
                    // A shim that does not answer reads it before the end of our connection, and one of an older version
                    // lets the command run on anyway.
                    let _ = shim.detach_exec(&name).await;
                    return Ok(0);
                }
                // Nobody reads a terminal's output any more: the command is hung up. Without a terminal, it notices that
                // its pipe is closed.
                Happened::Unread if tty => {
                    let passed = session.what_is_there();
                    return passed.map(|()| 0).map_err(|error| error.within("output of the command is lost"));
                }
                Happened::Unread => {}
            },
            Some((signal, error)) = refused.recv() => match error.kind() {
                Kind::Unavailable => break Err(error),
                // A shim of an older version: the command runs on.
                Kind::Unsupported => return Ok(by_signal(signal)),
                // It has ended, or its shim died: the call for it says so.
                _ => {}
            }
        }
    };
    // A terminal is closed once everything is written. Pipes hold all that the command itself wrote by now, but
    // processes that it left running may keep them open.
    let passed = match (&outcome, tty) {
        (Ok(_), true) => session.until_closed(),
        _ => session.what_is_there(),
    };
    let outcome = outcome?;
    let passed = if json { Outcome::of(&outcome).and_then(|outcome| json::print(&outcome)) } else { passed };
    passed.map_err(|error| lost(error, &outcome))?;
    match (outcome.exit_code, timeout) {
        (Some(code), _) => Ok(u8::try_from(code).unwrap_or(FAILED)),
        (None, timeout) => {
            let after = timeout.unwrap_or_default();
            let killed_all = outcome.killed != "session";
            let what = if killed_all { "it was killed with all it had started" } else { "its session was killed" };
            let error = Error::new(Kind::Timeout, format!("the command did not end within {after:?}; {what}"));
            Err(if killed_all { error } else { error.hint("what it had started in another session may run on") })
        }
    }
}

/// Sends the command a signal that we have got. Apart, as the shim answers only once the command runs.
fn pass_on(shim: &Shim, name: &str, signal: ArrivedSignal, refuses: &UnboundedSender<(ArrivedSignal, Error)>) {
    let (shim, name, refuses) = (shim.clone(), name.to_owned(), refuses.clone());
    tokio::spawn(async move {
        if let Err(error) = shim.signal_exec(&name, signal.number).await {
            let _ = refuses.send((signal, error));
        }
    });
}

/// The command, as far as streams have no part in it.
fn requested(args: ExecArgs) -> Result<ExecRequest> {
    let env = variables(&args.env_file, args.env)?;
    Ok(ExecRequest {
        command: args.command,
        env: env.into_iter().map(|(key, value)| format!("{key}={value}")).collect(),
        workdir: args.workdir.unwrap_or_default(),
        user: args.user.map(|user| user.to_string()).unwrap_or_default(),
        timeout_ms: args.timeout.map(|timeout| u64::try_from(timeout.as_std().as_millis()).unwrap_or(u64::MAX)),
        ..ExecRequest::default()
    })
}

/// Returns once the command runs. Its output goes straight to its null device, as nobody reads it.
async fn begin(shim: &Shim, args: ExecArgs) -> Result<u8> {
    let request = ExecRequest { detached: true, direct: true, ..requested(args)? };
    tokio::select! {
        begun = shim.exec(request) => begun.map(|_| 0),
        error = shim.silence_at_first() => Err(error),
    }
}

/// The error at the timeout if the shim does not answer.
fn late(timeout: Duration, silent: &Error) -> Error {
    Error::new(Kind::Timeout, format!("the command did not end within {timeout:?}, and {silent}"))
        .hint("when the shim goes on, it kills the command with all that this had started, if it had started it at all")
}
