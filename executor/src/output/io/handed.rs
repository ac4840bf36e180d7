//! A process's streams, as a shim hands them over to the program that is executed in its place.
//!
//! Called while the shim is at rest: no future holds a stream then. Must not: know a task's state.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::{Rc, Weak};

use bowline_error::{Doing as _, Kind, Result};
use bowline_model::json::handover::Fd;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, mpsc, watch};

use super::logger::{self, Logged};
use super::spare_end::Keeper;
use super::stream::{self, Joined, Progress};
use super::terminal::Terminal;
use super::{Pumped, Pumps, Tail, input, relay, terminal};
use crate::output::log;
use crate::waits::claim::{Claim, End};

#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    process_ended: bool,
    streams: Vec<HandedStream>,
    /// What the log of the streams holds.
    log: log::Handed,
    /// `None` also for a terminal, whose input is itself.
    input: Option<Fd>,
    feeds: Vec<input::Handed>,
    terminal: Option<terminal::Handed>,
    /// Since version 2 of the facts.
    #[serde(default)]
    logger: Option<logger::Handed>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HandedStream {
    Read(Box<stream::Handed>),
    /// Since version 2 of the facts.
    Relayed(Box<relay::Handed>),
    Ended(Progress),
}

/// What the streams of a process that is taken over are connected to.
pub struct Taken<'a> {
    /// The last bytes of each output; there may be one for all.
    pub tails: &'a [Tail],
    /// The process's init, by its pidfd, if that keeps the pipes open.
    pub keeper: Option<OwnedFd>,
    /// The folder of a task that another shim may take over.
    pub folder: Option<&'a Path>,
    /// Goes on with the log.
    pub log: &'a dyn Fn(log::Handed) -> [Option<log::Writer>; 2],
    /// The end of a child, which may be known.
    pub claim: &'a dyn Fn(i32, Option<End>) -> Claim,
}

impl<'a> Taken<'a> {
    /// For an exec, which has neither keeper nor log.
    pub fn of_exec(tails: &'a [Tail], claim: &'a dyn Fn(i32, Option<End>) -> Claim) -> Taken<'a> {
        Taken { tails, keeper: None, folder: None, log: &|_| [None, None], claim }
    }
}

const NAMES: [&str; 2] = ["stdout", "stderr"];

impl Pumps {
    /// The streams for the program that is executed in the shim's place.
    pub fn hand_over(&self) -> Handed {
        let lines = &self.lines;
        let read = |(output, progress): (&Pumped, &watch::Receiver<Progress>)| {
            let read = match output {
                Pumped::Stream(stream) => with(stream, |stream| HandedStream::Read(Box::new(stream.hand_over()))),
                Pumped::Relay(relay) => with(relay, |relay| HandedStream::Relayed(Box::new(relay.hand_over()))),
            };
            read.unwrap_or_else(|| HandedStream::Ended(*progress.borrow()))
        };
        let log = |output: &Pumped| match output {
            Pumped::Stream(stream) => with(stream, |stream| stream.log().map(log::Writer::hand_over)).flatten(),
            Pumped::Relay(_) => None,
        };
        let feeds = lines.feeds.borrow();
        let feeds = feeds.iter().filter_map(|feed| with(feed, |feed| feed.hand_over(lines.input.as_ref())));
        Handed {
            process_ended: lines.process_ended.is_set(),
            streams: self.outputs.iter().zip(&lines.progress).map(read).collect(),
            log: self.outputs.iter().find_map(log).unwrap_or_default(),
            input: lines.input.as_ref().filter(|_| lines.terminal.is_none()).map(|input| Fd::of(input.get_ref())),
            feeds: feeds.collect(),
            terminal: lines.terminal.as_deref().map(Terminal::hand_over),
            logger: self.logger.as_ref().and_then(Logged::hand_over),
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
        if self.process_ended {
            pumps.process_ended.set();
        }
        let keeper = Keeper::default();
        if let Some(init) = &taken.keeper {
            keeper.set_init(init.try_clone().doing(Kind::Internal, || "cannot open a pidfd twice")?);
        }
        let mut logs = (taken.log)(self.log);
        for (index, stream) in self.streams.into_iter().enumerate() {
            let name = if terminal.is_some() { "terminal" } else { NAMES[index.min(1)] };
            let (output, invite, hear) = match stream {
                HandedStream::Read(stream) => {
                    let joined = Joined {
                        name,
                        terminal: terminal.as_ref().map(|of| of.master.clone()),
                        log: stream.log.and_then(|which| logs[which as usize].take()),
                        tail: taken.tails[index.min(taken.tails.len() - 1)].clone(),
                        keeper: keeper.clone(),
                        folder: taken.folder.map(Path::to_owned),
                        index,
                        process_ended: pumps.lines.process_ended.clone(),
                    };
                    let ends = !stream.follow;
                    let (stream, invite, hear) = stream.take(joined)?;
                    pumps.ending.extend(ends.then(|| hear.clone()));
                    (Pumped::Stream(stream.begin()), Some(invite), hear)
                }
                HandedStream::Relayed(relay) => {
                    let (relay, hear) = relay.take(name, pumps.lines.process_ended.clone())?;
                    (Pumped::Relay(relay.begin()), None, hear)
                }
                // Whoever is sent to it finds it closed.
                HandedStream::Ended(progress) => {
                    let (invite, hear) = (mpsc::unbounded_channel().0, watch::channel(progress).1);
                    (Pumped::Stream(Weak::new()), Some(invite), hear)
                }
            };
            pumps.outputs.push(output);
            pumps.lines.outputs.extend(invite);
            pumps.lines.progress.push(hear);
        }
        let lines = &pumps.lines;
        for feed in self.feeds {
            feed.take(lines.input.as_ref(), lines.process_ended.clone(), &lines.feeds)?;
        }
        let logger = self.logger.map(|logger| logger.take(taken.claim, lines.process_ended.clone()));
        pumps.logger = logger.transpose()?;
        Ok(pumps)
    }
}

/// Calls `act` with what is pumped, if it has not ended.
fn with<T, R>(pumped: &Weak<Mutex<T>>, act: impl FnOnce(&mut T) -> R) -> Option<R> {
    let pumped = pumped.upgrade()?;
    let mut pumped = pumped.try_lock().ok()?;
    Some(act(&mut pumped))
}
