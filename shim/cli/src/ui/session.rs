//! Somebody at a task's streams: what is passed, and what happens meanwhile.
//!
//! ```text
//!   begin: FIFOs, raw mode ─► (the shim opens them)
//!     ─► happened: signals, window, keys to leave ─► the streams' end
//! ```
//!
//! For `run`, `exec` and `attach` alike. Must not: decide what a signal means.

use bowline_executor::{Doing, Folder, Kind, Result};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;
use tokio::sync::{mpsc, oneshot};

use crate::ui::detach::{DetachKeys, Typing};
use crate::ui::streams::{InputFifo, Outputs, Streams};
use crate::ui::terminal::RawMode;
use bowline_protocol::wire::proto::bowline::AttachRequest;

/// What somebody wants of a task's streams.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Our stdin goes to the task.
    pub input: bool,
    /// What of the task's output comes to us.
    pub outputs: Outputs,
    /// Ours is one too, which the task is to have: keys are passed on raw.
    pub raw: bool,
    /// By which one leaves a terminal.
    pub keys: DetachKeys,
}

/// What happened while one sits there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// A signal that ends whatever one does, by its number.
    Interrupted(i32),
    /// The window has another size.
    Resized,
    /// The keys to leave were typed.
    Left,
    /// Our stdout cannot be written any more: its reader has gone, or output is
    /// lost, of which the streams' end tells.
    Unread,
}

/// See the module.
pub struct Session {
    streams: Streams,
    stdin: String,
    raw: Option<RawMode>,
    signals: mpsc::UnboundedReceiver<i32>,
    left: Option<oneshot::Receiver<()>>,
    unread: Option<oneshot::Receiver<()>>,
}

impl Session {
    /// Makes the FIFOs in the task's folder, and our terminal raw, if the task
    /// is to have it: before anything is written to it. From here on a signal
    /// does not end us: [`Session::happened`] tells it.
    pub fn begin(folder: &Folder, wish: &Wish) -> Result<Session> {
        let signals = watch_signals(wish.raw)?;
        let (streams, unread) = Streams::attach(folder, wish.outputs)?;
        let input = wish.input.then(|| streams.input()).transpose()?;
        let stdin = input.as_ref().map(InputFifo::path).unwrap_or_default();
        let raw = (wish.raw && wish.input).then(RawMode::enter).transpose()?;
        // Bytes that nobody types are passed on whatever they are.
        let left = input.map(|input| input.forward(wish.raw.then(|| Typing::new(&wish.keys))));
        Ok(Session { streams, stdin, raw, signals, left, unread: Some(unread) })
    }

    /// What the shim is to be told: the FIFOs' paths.
    pub fn attachment(&self) -> AttachRequest {
        AttachRequest {
            stdin: self.stdin.clone(),
            stdout: self.streams.stdout.clone(),
            stderr: self.streams.stderr.clone(),
            ..AttachRequest::default()
        }
    }

    /// A name that no other session at the task has.
    pub fn name(&self) -> String {
        self.streams.name()
    }

    /// Waits for what happens next.
    pub async fn happened(&mut self) -> Happened {
        loop {
            tokio::select! {
                Some(signal) = self.signals.recv() => match signal {
                    SIGWINCH => return Happened::Resized,
                    // Whoever stopped us may have changed the terminal, or its window.
                    SIGCONT => {
                        if let Some(raw) = &self.raw {
                            let _ = raw.apply();
                            return Happened::Resized;
                        }
                    }
                    signal => return Happened::Interrupted(signal),
                },
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

    /// Passes on what is left until the shim has closed the streams.
    ///
    /// # Errors
    /// `Internal` when something that came could not be written.
    pub fn until_closed(self) -> Result<()> {
        self.streams.until_closed()
    }

    /// Passes on what has been written so far, and no more.
    ///
    /// # Errors
    /// As [`Session::until_closed`].
    pub fn what_is_there(self) -> Result<()> {
        self.streams.what_is_there()
    }
}

/// Returns once the thread of a stream tells something, and never if it ends without.
async fn told(thread: &mut Option<oneshot::Receiver<()>>) {
    if let Some(answer) = thread {
        if answer.await.is_ok() {
            return;
        }
        *thread = None;
    }
    std::future::pending().await
}

/// The signals that end what is in the foreground, and those of a window, as
/// they come.
pub fn watch_signals(window: bool) -> Result<mpsc::UnboundedReceiver<i32>> {
    let mut watched = vec![SIGINT, SIGTERM, SIGHUP, SIGQUIT];
    if window {
        watched.extend([SIGWINCH, SIGCONT]);
    }
    let mut signals = Signals::new(watched).doing(Kind::Internal, || "cannot watch for signals")?;
    let (send, receive) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if send.send(signal).is_err() {
                return;
            }
        }
    });
    Ok(receive)
}
