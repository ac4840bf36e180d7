//! `run`: starts a task in the foreground, passes its output on, and exits with its code.

use std::path::PathBuf;
use std::time::Duration;

use bowline_client::launching_shim::Up;
use bowline_client::spawn::Programs;
use bowline_client::{Presence, Shim, dead, end_not_known, own_and_parent, remove_ended};
use bowline_executor::internal::{ArrivedSignal, remove_unwritten};
use bowline_model::folder::{Folder, StateDir};
use bowline_model::report::{ExitReport, StoppedBy};
use bowline_model::{Doing, Error, Kind, Result};
use bowline_protocol::wire::proto::bowline::{AttachRequest, LaunchRequest};
use bowline_spec::Task;
use bowline_spec::id::TaskId;
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::SIGINT;
use tokio::task::JoinHandle;

use crate::commands::{attach, rm};
use crate::exit_code::{FAILED, TIMED_OUT};
use crate::input::args::RunArgs;
use crate::input::args::task::TaskArgs;
use crate::input::service::Service;
use crate::launch_request::{
    Described, Wanted, broken_off, describe_task, launch, refused, request, shim_for, tell_notes, tell_of_interrupt,
    tell_of_slice, written,
};
use crate::reach;
use crate::ui::detach::DetachKeys;
use crate::ui::notify::Relay;
use crate::ui::print::complain;
use crate::ui::report_file::ReportFile;
use crate::ui::session::{Happened, Session, Wish};
use crate::ui::signals::{ENDING, Signals};
use crate::ui::streams::{Outputs, Through};
use crate::ui::{json, outcome, terminal};

/// Runs `bowline run`: a task in the foreground; exits with its code. Errors are `hinted`.
pub async fn run(
    state: &StateDir,
    args: TaskArgs,
    keys: DetachKeys,
    mut how: RunArgs,
    hinted: impl Fn(Error) -> Error,
) -> Result<u8> {
    let Some(path) = how.report.take() else { return in_foreground(state, args, keys, how, None).await };
    let mut file = ReportFile::open(path)?;
    let done = in_foreground(state, args, keys, how, Some(&mut file)).await.map_err(hinted);
    if let Err(error) = &done {
        file.failed(error);
    }
    done
}

/// Runs the task, and writes to the file how it has ended.
async fn in_foreground(
    state: &StateDir,
    args: TaskArgs,
    mut keys: DetachKeys,
    how: RunArgs,
    report_file: Option<&mut ReportFile>,
) -> Result<u8> {
    let RunArgs { rm, json, die_with_parent, .. } = how;
    let service = Service::of_environment()?;
    let (shim_cgroup, mut wanted) = (args.shim.cgroup.clone(), Wanted::of(&args, rm));
    if die_with_parent {
        (wanted.ends_with, keys) = (own_and_parent()?, DetachKeys::NONE);
    }
    let (interactive, raw) = (args.interactive, args.tty);
    if raw {
        terminal::require()?;
    }
    let sandbox = args.isolation.sandbox.clone();
    let Described { id, task, secrets, replaces } = describe_task(state, args).await?;
    wanted.secrets = secrets;
    let description = written(&task)?;
    // From here on there may be something to undo.
    let mut signals = Signals::watch(&ENDING)?;
    let mut up =
        match shim_for(state, &id, sandbox.as_ref(), &shim_cgroup, service.sockets, replaces, &mut signals).await? {
            Ok(up) => up,
            Err(code) => {
                report_file.into_iter().for_each(|file| file.failed(&broken_off(&id)));
                return Ok(code);
            }
        };
    let outputs = outputs(&task, json);
    // A task with an init may outlive its shim, and its output goes on then.
    let through = if task.init() && !task.terminal { Through::CountedFifos } else { Through::Fifos };
    let wish = Wish { input: interactive, outputs, through, is_new: true, raw, keys };
    let relay = service.relays_for(&task).map(|manager| Relay::begin(up.folder(), manager)).transpose();
    let relay = match relay {
        Ok(relay) => relay,
        Err(error) => return Err(up.abandon(error)),
    };
    wanted.service = service.request(relay.as_ref());
    let mut session = match Session::begin(up.folder(), &wish, signals) {
        Ok(session) => session,
        Err(error) => return Err(up.abandon(error)),
    };
    let attached = task.terminal && !json;
    let request = with_streams(request(description, wanted), session.attachment(), attached);
    match launch(&mut up, request, session.signals()).await {
        (Ok(launched), interrupted) => {
            tell_notes(&launched);
            // It came too late for the launch, and stops the task.
            interrupted.into_iter().for_each(|signal| session.signals().put_back(signal));
        }
        (Err(_), Some(signal)) => {
            let _ = session.what_is_there();
            report_file.into_iter().for_each(|file| file.failed(&broken_off(&id)));
            return Ok(tell_of_interrupt(&up.abandon(broken_off(&id)), signal));
        }
        (Err(error), None) => {
            let _ = session.what_is_there();
            return Err(up.abandon(refused(replaces, error)));
        }
    }
    tell_of_slice(state, up.folder(), &id).await;
    let seen = watch(&up, &mut session, &task, &id, attached).await;
    drop(relay);
    let report = match seen {
        Ok(Seen::Ended(report)) => report,
        Ok(Seen::Left) => {
            drop(session);
            attach::left(&id, rm);
            return Ok(0);
        }
        Ok(Seen::Unread) => {
            let passed = session.what_is_there();
            match die_with_parent {
                true => complain(&format!("task {id} is stopped: nobody reads its terminal any more"), None),
                false => attach::left(&id, rm),
            }
            let code = if die_with_parent { FAILED } else { 0 };
            return passed.map(|()| code).map_err(|error| error.within(format!("output of task {id} is lost")));
        }
        Err(error) => {
            let _ = session.what_is_there();
            let error = up.unless_removed_with_sandbox(error).await;
            // A shim that does not answer may recover.
            return Err(if error.kind() == Kind::Unavailable { error } else { up.bereft(error, rm) });
        }
    };
    let passed = match json {
        true => session.what_is_there().and_then(|()| json::print(&report)),
        false => session.until_closed(),
    };
    let is_reported = report_file.is_none_or(|file| file.ended(&report));
    if report.shim_died {
        return Err(up.bereft(end_not_known(&id, &report), rm));
    }
    if report.unwritten.is_some() {
        leave_unwritten(up, &id, &report, rm)?;
    } else {
        let (folder, left_alone) = up.done(rm).await?;
        rm::say_left_alone(&left_alone);
        // Its shim has removed it, unless that died, could not, or is a sandbox's of an older bowline.
        if rm && folder.exists()? {
            let removed = folder.lock().and_then(|lock| remove_ended(&folder, lock, &Programs::default()));
            match removed {
                Ok(alone) => rm::say_left_alone(&alone),
                // Somebody else has removed it first.
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    passed
        .and_then(|()| outcome::written(&task.output, &report))
        .map_err(|error| outcome::lost(error, &id, &report))?;
    if report.stopped_by == Some(StoppedBy::Caller) {
        complain(&format!("task {id} was stopped: the process that started this command has ended"), None);
    }
    if !is_reported {
        return Ok(FAILED);
    }
    if report.stopped_by == Some(StoppedBy::Timeout) { Ok(TIMED_OUT) } else { outcome::code(&id, &report) }
}

/// Adds our streams to the request. A task with a terminal is attached to instead.
fn with_streams(request: LaunchRequest, streams: AttachRequest, attached: bool) -> LaunchRequest {
    if attached {
        return LaunchRequest { attach: Some(streams).into(), ..request };
    }
    let AttachRequest { stdin, stdout, stderr, .. } = streams;
    LaunchRequest { stdin, stdout, stderr, foreground: true, ..request }
}

/// Which outputs of the task come to us. With `json` none do, as the report has the end of them. Output that the
/// description sends to a file goes only there, except a terminal's.
fn outputs(task: &Task, json: bool) -> Outputs {
    let unsent = |file: &Option<PathBuf>| !json && file.is_none();
    match task.terminal {
        true => Outputs { stdout: !json, stderr: false },
        false => Outputs { stdout: unsent(&task.output.stdout), stderr: unsent(&task.output.stderr) },
    }
}

/// Handles a task that has ended but whose report its shim cannot write yet. Without `rm`, the shim stays until it can;
/// with `rm`, removes the task, which lets the shim exit.
fn leave_unwritten(up: Up, id: &TaskId, report: &ExitReport, rm: bool) -> Result<()> {
    if rm {
        rm::say_left_alone(&remove_unwritten(&up.let_go(), report)?);
        return Ok(());
    }
    let why = report.unwritten.as_deref().unwrap_or_default();
    let hint = format!("its shim keeps it until the disk takes it; until then `bowline wait {id}` asks the shim");
    complain(&format!("the exit report of task {id} is not written yet: {why}"), Some(&hint));
    Ok(())
}

/// How watching a task in the foreground ended.
enum Seen {
    Ended(Box<ExitReport>),
    /// The user detached, and the task runs on.
    Left,
    /// Nobody reads the task's terminal any more; the task runs on, unless it ends with this process.
    Unread,
}

/// How long a task that is being stopped may take before a line says so.
const QUIET: Duration = Duration::from_secs(1);
/// How long after the first interrupt a second one kills although no key was typed for it: `timeout` sends its signal to
/// its command and to the process group that the command is in.
const MEANT: Duration = Duration::from_secs(1);
/// How long after a task's time is over we look whether its shim is about it.
const SHIM_IS_LATE: Duration = Duration::from_secs(1);

/// Waits for the task's end. The first signal stops the task as its description says; SIGINT kills it after that, if it
/// [`kills`]. When the task's time is over, its shim stops it. If we are `attached`, the user may detach.
///
/// # Errors
/// `Unavailable` if the task was stopped past its shim, which does not answer.
async fn watch(up: &Up, session: &mut Session, task: &Task, id: &TaskId, attached: bool) -> Result<Seen> {
    let mut shim = up.shim.clone();
    let timeout = task.timeout.map(|timeout| timeout.as_std());
    let (over, late) = (after(timeout), after(timeout.map(|timeout| timeout + SHIM_IS_LATE)));
    let (mut end, still_there) = (reach::until_end(id, &shim), after(None));
    tokio::pin!(over, late, still_there);
    let (mut is_over, mut is_late) = (false, false);
    // Since when the task is being stopped, and the grace that was asked for.
    let mut since = None;
    let mut asked = None;
    let mut past_shim = None;
    loop {
        tokio::select! {
            now = &mut end => {
                let report = match now? {
                    Presence::Exited(report) => report,
                    // A new shim opens our streams again.
                    Presence::Live(new) => {
                        end = reach::until_end(id, &new);
                        shim = new;
                        // The one that died may not have heard of it.
                        if let Some(grace) = asked {
                            past_shim = stop(&mut shim, up.folder(), id, grace).await.or(past_shim);
                        }
                        continue;
                    }
                    Presence::Dead | Presence::Starting => return Err(dead(up.folder(), id)),
                };
                // Its shim may have been done before we looked at the clock.
                if !is_over && report.stopped_by == Some(StoppedBy::Timeout) {
                    tell_of_timeout(id);
                }
                return Ok(Seen::Ended(report));
            }
            ended = ended_past_shim(&mut past_shim) => return Err(ended.err().unwrap_or_else(|| unknown_end(id))),
            () = &mut over, if !is_over => {
                is_over = true;
                tell_of_timeout(id);
                still_there.set(after(Some(QUIET)));
                since = since.or(Some(monotonic()));
            }
            () = &mut late, if !is_late => {
                is_late = true;
                // No news for a shim that has stopped the task: this does not shorten the grace.
                past_shim = stop(&mut shim, up.folder(), id, None).await.or(past_shim);
            }
            () = &mut still_there => {
                still_there.set(after(None));
                // In a terminal of its own, Ctrl-C is the task's.
                if !attached {
                    tell_of_grace(task, id);
                }
            }
            happened = session.happened() => match happened {
                Happened::Interrupted(signal) => {
                    let grace = match since {
                        None => None,
                        Some(since) if kills(signal, since) => Some(0),
                        // It is being stopped: this shortens nothing.
                        Some(_) => continue,
                    };
                    since = since.or(Some(signal.at));
                    asked = Some(grace);
                    past_shim = stop(&mut shim, up.folder(), id, grace).await.or(past_shim);
                    still_there.set(after(grace.is_none().then_some(QUIET)));
                }
                Happened::Resized => attach::resize(&shim, "").await,
                Happened::Left => return Ok(Seen::Left),
                Happened::Unread if attached => return Ok(Seen::Unread),
                // The task's pipe is closed, but the task may run on.
                Happened::Unread => {}
            }
        }
    }
}

/// Whether a signal kills a task that is being stopped since then: SIGINT that was typed, or that does not only repeat the
/// first. No other signal is a user's who has waited.
fn kills(signal: ArrivedSignal, since: Duration) -> bool {
    signal.number == SIGINT && (signal.by_kernel || signal.at.saturating_sub(since) >= MEANT)
}

/// The clock of a signal's arrival.
fn monotonic() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

fn tell_of_timeout(id: &TaskId) {
    complain(&format!("task {id} is stopped: its timeout has passed"), None);
}

/// Says that a task which is being stopped has not ended yet, and what may be done about it.
fn tell_of_grace(task: &Task, id: &TaskId) {
    let left = task.stop.grace().saturating_sub(QUIET);
    if left.is_zero() {
        return;
    }
    let message =
        format!("task {id} has not ended on {}: it is killed in {} s", task.stop.signal(), left.as_secs_f64().ceil());
    complain(&message, Some("Ctrl-C kills it now"));
}

/// Stops the task through its shim. If the shim does not answer, starts to stop the task past it.
async fn stop(shim: &mut Shim, folder: &Folder, id: &TaskId, grace: Option<u64>) -> Option<JoinHandle<Result<()>>> {
    match shim.stop(None, grace).await {
        Err(error) if error.kind() == Kind::Unavailable => {
            complain(&format!("{error}; task {id} is stopped past it"), None);
            let (folder, id, grace) = (folder.clone(), id.clone(), grace.map(Duration::from_millis));
            let stopped = async move { reach::past_shim(&folder, &id, move |task| task.stop(None, grace)).await };
            Some(tokio::spawn(stopped))
        }
        // The task may end before the shim gets the request.
        Ok(()) | Err(_) => None,
    }
}

/// Completes when the work that [`stop`] started is done; never if there is none.
async fn ended_past_shim(begun: &mut Option<JoinHandle<Result<()>>>) -> Result<()> {
    match begun {
        Some(begun) => begun.await.doing(Kind::Internal, || "cannot go past the shim")?,
        None => std::future::pending().await,
    }
}

fn unknown_end(id: &TaskId) -> Error {
    let message = format!("task {id} has ended, but its shim is not answering: how it ended is not known yet");
    Error::new(Kind::Unavailable, message)
        .hint(format!("`bowline wait {id}` tells once the shim goes on; `bowline rm -f {id}` removes both"))
}

/// Waits for the timeout; without one, forever.
async fn after(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_kills_if_it_was_typed_or_comes_later() {
        let stopped = Duration::from_secs(100);
        let at = |number, by_kernel, ms| {
            kills(ArrivedSignal { number, by_kernel, at: stopped + Duration::from_millis(ms) }, stopped)
        };
        assert!(at(SIGINT, true, 1), "Ctrl-C twice");
        assert!(!at(SIGINT, false, 1), "timeout -s INT");
        assert!(at(SIGINT, false, 1000));
        for other in ENDING.into_iter().filter(|other| *other != SIGINT) {
            assert!(!at(other, false, 1) && !at(other, true, 5000), "{other}");
        }
    }
}
