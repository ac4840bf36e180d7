//! A user's session on a task's streams: passes data on, and reports what happens meanwhile.
//!
//! ```text
//!   begin: FIFOs, raw mode ─► (the shim opens them)
//!     ─► happened: signals, resizes, detach keys ─► the streams end
//! ```
//!
//! Shared by `run`, `exec` and `attach`. Must not: decide what a signal means.

use bowline_executor::internal::ArrivedSignal;
use bowline_model::Result;
use bowline_model::folder::Folder;
use signal_hook::consts::{SIGCONT, SIGWINCH};
use tokio::sync::oneshot;

use crate::ui::detach::{DetachKeys, Typing};
use crate::ui::signals::Signals;
use crate::ui::streams::{InputFifo, Outputs, Streams, Through, WritingEnd};
use crate::ui::terminal::RawMode;
use bowline_protocol::wire::proto::bowline::AttachRequest;

/// Which of a task's streams a session passes on, and how.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Our stdin goes to the task.
    pub input: bool,
    /// The outputs of the task that come to us.
    pub outputs: Outputs,
    /// What those come through.
    pub through: Through,
    /// Whether the task is new: nobody was attached to it, and left anything.
    pub is_new: bool,
    /// Our terminal is given to the task: keys are passed on raw.
    pub raw: bool,
    /// The keys that detach from the terminal.
    pub keys: DetachKeys,
}

/// An event during a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// A signal arrived that by default ends a process.
    Interrupted(ArrivedSignal),
    Resized,
    /// The detach keys were typed.
    Left,
    /// Our stdout can no longer be written: its reader is gone, or output is lost, which the end of the streams
    /// reports.
    Unread,
}

/// A session on a task's streams.
pub struct Session {
    streams: Streams,
    stdin: String,
    raw: Option<RawMode>,
    signals: Signals,
    left: Option<oneshot::Receiver<()>>,
    unread: Option<oneshot::Receiver<()>>,
}

impl Session {
    /// Creates the FIFOs in the task's folder, or pipes, and makes our terminal raw if the task gets it, before anything is
    /// written to it. [`Session::happened`] reports `signals`, which no longer end us.
    pub fn begin(folder: &Folder, wish: &Wish, signals: Signals) -> Result<Session> {
        if wish.raw {
            signals.watch_too(&[SIGWINCH, SIGCONT])?;
        }
        let (mut streams, unread) = Streams::attach(folder, wish.outputs, wish.through, wish.is_new)?;
        let input = wish.input.then(|| streams.input()).transpose()?;
        let stdin = input.as_ref().map(InputFifo::path).unwrap_or_default();
        let raw = (wish.raw && wish.input).then(RawMode::enter).transpose()?;
        // Without a raw terminal all bytes are passed on, as nobody types detach keys.
        let left = input.map(|input| input.forward(wish.raw.then(|| Typing::new(&wish.keys))));
        Ok(Session { streams, stdin, raw, signals, left, unread: Some(unread) })
    }

    /// The signals, for whoever waits for something before the task's output.
    pub fn signals(&mut self) -> &mut Signals {
        &mut self.signals
    }

    /// What the shim writes stdout and stderr to.
    pub fn outputs(&self) -> [&WritingEnd; 2] {
        [&self.streams.stdout, &self.streams.stderr]
    }

    /// The request that gives the shim the paths of the FIFOs.
    pub fn attachment(&self) -> AttachRequest {
        AttachRequest {
            stdin: self.stdin.clone(),
            stdout: self.streams.stdout.path.clone(),
            stderr: self.streams.stderr.path.clone(),
            ..AttachRequest::default()
        }
    }

    /// A name that no other session of the task has.
    pub fn name(&self) -> String {
        self.streams.name()
    }

    /// Copies the task's output, and waits for the next event.
    pub async fn happened(&mut self) -> Happened {
        loop {
            tokio::select! {
                signal = self.signals.next() => match signal.number {
                    SIGWINCH => return Happened::Resized,
                    // The process that stopped us may have changed the terminal or its window.
                    SIGCONT => {
                        if let Some(raw) = &self.raw {
                            let _ = raw.apply();
                            return Happened::Resized;
                        }
                    }
                    _ => return Happened::Interrupted(signal),
                },
                never = self.streams.copy() => match never {},
                () = told(&mut self.left) => {
                    self.left = None;
                    return Happened::Left;
                }
                () = told(&mut self.unread) => {
                    self.unread = None;
                    return Happened::Unread;
                }
            }
        }
    }

    /// Passes on the rest, until the shim has closed the streams.
    ///
    /// # Errors
    /// `Internal` if some output could not be written.
    pub fn until_closed(self) -> Result<()> {
        self.streams.until_closed()
    }

    /// Passes on what has been written so far, and no more.
    ///
    /// # Errors
    /// See [`Session::until_closed`].
    pub fn what_is_there(self) -> Result<()> {
        self.streams.what_is_there()
    }
}

/// Returns once the stream's thread sends its signal; never returns if the thread ends without one.
async fn told(thread: &mut Option<oneshot::Receiver<()>>) {
    if let Some(answer) = thread {
        if answer.await.is_ok() {
            return;
        }
        *thread = None;
    }
    std::future::pending().await
}
