//! `attach`: connects to a running task's streams, until the user detaches or the task ends.

use bowline_model::folder::StateDir;
use bowline_model::status::Status;
use bowline_model::{Error, Kind, Result};
use bowline_spec::id::TaskId;

use crate::exit_code::by_signal;
use crate::input::args::AttachArgs;
use crate::reach;
use crate::ui::outcome;
use crate::ui::print::complain;
use crate::ui::session::{Happened, Session, Wish};
use crate::ui::signals::{ENDING, PassedOn, Signals};
use crate::ui::streams::{Outputs, Through};
use crate::ui::terminal::{self, OfSession};
use bowline_client::{Presence, Shim, dead, exited, starting};
use bowline_protocol::wire::proto::bowline::WindowSize;

/// Runs `bowline attach`; exits with the task's code if the task ends and no output of it is lost.
pub async fn run(state: &StateDir, id: &TaskId, args: AttachArgs) -> Result<u8> {
    let mut shim = reach::live_pinned(state, id).await?;
    let folder = shim.folder().clone();
    // Trust the report: the shim may be about to exit.
    let ended = |error: Error| match folder.exit() {
        Ok(Some(_)) => exited(id),
        Ok(None) | Err(_) => error,
    };
    let task = shim.state().await.map_err(ended)?.ok_or_else(|| ended(starting(id)))?;
    if task.status == Status::Paused.as_str() {
        let message = format!("task {id} is paused: nothing would happen");
        return Err(Error::new(Kind::WrongState, message).hint(format!("let it go on with `bowline resume {id}`")));
    }
    // The folder may be removed as soon as the task has ended.
    let record = folder.record().ok().flatten();
    let files = record.and_then(|record| record.description().ok().map(|task| task.output.clone())).unwrap_or_default();
    let input = task.takes_input && !args.no_stdin;
    let raw = task.terminal && input && terminal::is_stdin();
    let outputs = Outputs { stdout: true, stderr: !task.terminal };
    let keys = args.detach.detach_keys;
    let wish = Wish { input, outputs, through: Through::Fifos, is_new: false, raw, keys };
    let (mut session, mut passed_on) = (Session::begin(&folder, &wish, Signals::watch(&ENDING)?)?, PassedOn::default());
    match shim.attach(session.attachment()).await {
        Ok(true) if raw => redraw(&shim).await,
        // If it went, the next one is asked below.
        Ok(_) => {}
        Err(error) => {
            let _ = session.what_is_there();
            return Err(ended(error));
        }
    }
    let (terminal, mut end) = (OfSession::open(), reach::until_end(id, &shim));
    let report = loop {
        tokio::select! {
            now = &mut end => match now? {
                Presence::Exited(report) => break report,
                Presence::Live(new) => {
                    end = reach::until_end(id, &new);
                    shim = new;
                    // If the task has ended meanwhile, that is the next news.
                    if let Err(error) = shim.attach(session.attachment()).await
                        && !matches!(folder.exit(), Ok(Some(_)))
                    {
                        return Err(error);
                    }
                }
                Presence::Dead | Presence::Starting => return Err(dead(&folder, id)),
            },
            happened = session.happened() => match happened {
                Happened::Resized => resize(&shim, "").await,
                Happened::Interrupted(signal) if args.sig_proxy && !terminal.is_lost(signal) => {
                    if passed_on.takes(signal) {
                        // The task may end before the shim gets the request.
                        let _ = shim.signal(signal.number).await;
                    }
                }
                Happened::Interrupted(signal) => {
                    drop(session);
                    left(id, false);
                    return Ok(by_signal(signal));
                }
                Happened::Left => {
                    drop(session);
                    left(id, false);
                    return Ok(0);
                }
                Happened::Unread => {
                    let passed = session.what_is_there();
                    return passed.map(|()| 0).map_err(|error| error.within(format!("output of task {id} is lost")));
                }
            }
        }
    };
    let passed = session.until_closed();
    passed.and_then(|()| outcome::written(&files, &report)).map_err(|error| outcome::lost(error, id, &report))?;
    outcome::code(id, &report)
}

/// Gives a terminal in the task the size of ours. `exec` is empty for the task itself.
pub async fn resize(shim: &Shim, exec: &str) {
    // The command may have ended; then its size does not matter.
    let _ = shim.resize(exec, terminal::size()).await;
}

/// Makes the program in the terminal redraw its screen: it does so when the size changes.
async fn redraw(shim: &Shim) {
    let size = terminal::size();
    let _ = shim.resize("", WindowSize { rows: size.rows + 1, ..size }).await;
    resize(shim, "").await;
}

/// Reports that the task runs on, and how to attach again; with `to_be_removed`, that its shim removes it.
pub fn left(id: &TaskId, to_be_removed: bool) {
    let removal = if to_be_removed { "; it is removed once it has ended" } else { "" };
    complain(&format!("left {id} running"), Some(&format!("`bowline attach {id}` comes back{removal}")));
}
