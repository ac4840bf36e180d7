//! A process's streams, as a shim hands them over to the program that is executed in its place.
//!
//! Called while the shim is at rest: no future holds a stream then. Must not: know a task's state.

use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};

use bowline_error::{Doing as _, Kind, Result};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, mpsc, watch};

use super::kept::Keeper;
use super::stream::{self, Joined, Progress};
use super::terminal::Terminal;
use super::{Flow, Pumps, Released, Tail, input, relay, terminal};
use crate::handover::Fd;
use crate::log;

/// See the module.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    process_ended: bool,
    flows: Vec<HandedFlow>,
    /// What the log of the streams holds.
    log: log::Handed,
    /// `None` also for a terminal, whose input is itself.
    input: Option<Fd>,
    feeds: Vec<input::Handed>,
    terminal: Option<terminal::Handed>,
}

/// An output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HandedFlow {
    Stream(Box<stream::Handed>),
    Relay(relay::Handed),
    /// It has ended. Whoever attaches to a stream would have been sent to it.
    Ended {
        progress: Progress,
        stream: bool,
    },
}

/// What the streams of a process that is taken over are connected to.
pub struct Taken<'a> {
    /// The last bytes of each output; there may be one for all.
    pub tails: &'a [Tail],
    /// The process's init, by its pidfd, if that keeps the pipes open.
    pub keeper: Option<OwnedFd>,
    /// When the relays' process is released.
    pub released: Option<Released>,
    /// Goes on with the log.
    pub log: &'a dyn Fn(log::Handed) -> [Option<log::Writer>; 2],
}

const NAMES: [&str; 2] = ["stdout", "stderr"];

impl Pumps {
    /// The streams for the program that is executed in the shim's place.
    pub fn hand_over(&self) -> Handed {
        let lines = &self.lines;
        let flows = self.flows.iter().zip(&lines.progress).map(|(flow, progress)| flow.hand_over(*progress.borrow()));
        let log = self.flows.iter().find_map(Flow::log).unwrap_or_default();
        let feeds = lines.feeds.borrow();
        let feeds = feeds.iter().filter_map(Weak::upgrade);
        let feeds = feeds.filter_map(|feed| Some(feed.try_lock().ok()?.hand_over(lines.input.as_ref())));
        Handed {
            process_ended: *lines.process_ended.borrow(),
            flows: flows.collect(),
            log,
            input: lines.input.as_ref().filter(|_| lines.terminal.is_none()).map(|input| Fd::of(input.get_ref())),
            feeds: feeds.collect(),
            terminal: lines.terminal.as_deref().map(Terminal::hand_over),
        }
    }
}

impl Handed {
    /// Goes on with the streams, on the current `LocalSet`.
    ///
    /// # Errors
    /// `Damaged` when a descriptor is missing; `Internal` when one cannot be watched.
    pub fn take(self, taken: &Taken<'_>) -> Result<Pumps> {
        let terminal = self.terminal.map(terminal::Handed::take).transpose()?.map(Rc::new);
        let input = match (&terminal, self.input) {
            (Some(terminal), _) => Some(terminal.master.clone()),
            (None, Some(input)) => Some(Rc::new(input::watched(input)?)),
            (None, None) => None,
        };
        let mut pumps = Pumps::new(input, terminal.clone());
        pumps.process_ended.send_replace(self.process_ended);
        let keeper = Keeper::default();
        if let Some(init) = &taken.keeper {
            keeper.be(init.try_clone().doing(Kind::Internal, || "cannot open a pidfd twice")?);
        }
        let mut logs = (taken.log)(self.log);
        for (index, flow) in self.flows.into_iter().enumerate() {
            let name = if terminal.is_some() { "terminal" } else { NAMES[index.min(1)] };
            let process_ended = pumps.lines.process_ended.clone();
            match flow {
                HandedFlow::Stream(stream) => {
                    let log = stream.log.and_then(|which| logs[which as usize].take());
                    let tail = taken.tails[index.min(taken.tails.len() - 1)].clone();
                    let (terminal, keeper) = (terminal.as_ref().map(|of| of.master.clone()), keeper.clone());
                    let joined = Joined { name, terminal, log, tail, keeper, process_ended };
                    let (stream, invite, hear) = stream.take(joined)?;
                    pumps.flows.push(Flow::Stream(stream.begin()));
                    pumps.lines.outputs.push(invite);
                    pumps.lines.progress.push(hear);
                }
                HandedFlow::Relay(relay) => {
                    // Nobody releases a process whose manager's side has gone.
                    let released = taken.released.clone().unwrap_or_else(|| watch::channel(true).1);
                    let (relay, hear) = relay.take(name, process_ended, released)?;
                    pumps.flows.push(Flow::Relay(relay.begin()));
                    pumps.lines.progress.push(hear);
                }
                HandedFlow::Ended { progress, stream } => {
                    pumps.lines.progress.push(watch::channel(progress).1);
                    if stream {
                        pumps.lines.outputs.push(mpsc::unbounded_channel().0);
                        pumps.flows.push(Flow::Stream(Weak::new()));
                    } else {
                        pumps.flows.push(Flow::Relay(Weak::new()));
                    }
                }
            }
        }
        for feed in self.feeds {
            let lines = &pumps.lines;
            feed.take(lines.input.as_ref(), lines.process_ended.clone(), &lines.feeds)?;
        }
        Ok(pumps)
    }
}

impl Flow {
    fn hand_over(&self, progress: Progress) -> HandedFlow {
        match self {
            Flow::Stream(stream) => with(stream, |stream| HandedFlow::Stream(Box::new(stream.hand_over())))
                .unwrap_or(HandedFlow::Ended { progress, stream: true }),
            Flow::Relay(relay) => with(relay, |relay| HandedFlow::Relay(relay.hand_over()))
                .unwrap_or(HandedFlow::Ended { progress, stream: false }),
        }
    }

    fn log(&self) -> Option<log::Handed> {
        let Flow::Stream(stream) = self else { return None };
        with(stream, |stream| stream.log().map(log::Writer::hand_over)).flatten()
    }
}

/// Calls `act` with what is pumped, if it has not ended.
fn with<T, R>(pumped: &Weak<Mutex<T>>, act: impl FnOnce(&mut T) -> R) -> Option<R> {
    let pumped = pumped.upgrade()?;
    let mut pumped = pumped.try_lock().ok()?;
    Some(act(&mut pumped))
}
