//! One stream of a process: read, kept as a tail, passed on. When the client that has the process
//! in its foreground has gone, and no other client reads the stream, the pipe is closed.

use std::fs::File;
use std::future::{pending, poll_fn};
use std::io::{self, Read as _};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::task::Poll;

use bowline_error::{Doing, Kind, Result};
use bowline_model::clock::Moment;
use bowline_model::json::handover::Fd;
use bowline_model::shutdown::DRAIN;
use bowline_sys as sys;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::timeout;

use super::flag::FlagReader;
use super::losses::Losses;
use super::outlet::{self, Outlet, Readiness, Refused};
use super::spare_end::{Keeper, KeptEnd};
use super::tail::Tail;
use super::unread::{CHUNK, Unread};
use crate::output::log;
use crate::waits;

/// What a pipe holds by default, in chunks.
const HELD: usize = 64 * 1024 / CHUNK;

/// How many reads of a [`CHUNK`] see all that a pipe holds: 1 MiB, unless root has made it larger.
const LAST_WORDS: usize = (1 << 20) / CHUNK;

/// One stream: its state, and what it is read from.
pub struct Stream {
    /// The process's name for the stream.
    name: &'static str,
    /// A pipe's reading end, or a terminal.
    from: Rc<AsyncFd<File>>,
    outlets: Vec<Outlet>,
    /// Outlets of clients that attach later.
    guests: mpsc::UnboundedReceiver<Outlet>,
    route: Route,
    /// Whether its process has ended.
    process_ended: FlagReader,
    /// Where the stream reports its progress.
    tell: watch::Sender<Progress>,
    /// Bytes that the log could not keep.
    unlogged: u64,
    /// Whether reading has stopped.
    over: bool,
    /// Whether everything that the process has written is read.
    last_words: bool,
    /// Whether a client that had the process in its foreground has gone.
    abandoned: bool,
    /// Until when the readers may take nothing, once the process has ended.
    drains_until: Option<Moment>,
}

/// What else happens to a stream.
pub struct Route {
    pub log: Option<log::Writer>,
    pub tail: Tail,
    /// Whether the stream ends with its process even if other processes have it open, as a terminal does.
    pub goes_with_process: bool,
    /// Whether a pipe is read on for other writers after the process has ended.
    pub follow: bool,
    /// The end of the pipe that an init keeps, if one does.
    pub kept: Option<KeptEnd>,
    /// Where the rest is kept for a shim to come, if there may be one.
    pub unread: Option<Unread>,
    /// Where it is noted what is lost, likewise.
    pub losses: Option<Losses>,
}

/// How far a stream has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// All that the process wrote has been read.
    pub tail_whole: bool,
    /// All output is written or given up.
    pub flushed: bool,
    /// How many bytes of the output were lost.
    pub dropped: u64,
    /// What of them a file could not take.
    #[serde(default)]
    pub refused: Option<Refused>,
}

/// A stream, as a shim hands it over.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    /// `None` for a terminal, which is handed over by itself.
    from: Option<Fd>,
    outlets: Vec<outlet::Handed>,
    /// Which of the streams' logs it has.
    pub log: Option<log::LogStream>,
    pub follow: bool,
    /// The place of the end that an init keeps.
    kept: Option<u32>,
    /// The place of the output among the task's, if another shim may take that over.
    #[serde(default)]
    index: Option<usize>,
    unlogged: u64,
    over: bool,
    last_words: bool,
    abandoned: bool,
    drains_until: Option<Moment>,
    progress: Progress,
}

/// What a stream that is taken over is connected to.
pub struct Joined {
    pub name: &'static str,
    pub terminal: Option<Rc<AsyncFd<File>>>,
    pub log: Option<log::Writer>,
    pub tail: Tail,
    pub keeper: Keeper,
    /// The folder of a task that can be taken over.
    pub folder: Option<PathBuf>,
    /// The place of the output among those that are handed over.
    pub index: usize,
    pub process_ended: FlagReader,
}

impl Handed {
    /// Takes the stream over. Returns it with where its guests are sent and its progress is heard.
    pub fn take(self, joined: Joined) -> Result<(Stream, mpsc::UnboundedSender<Outlet>, watch::Receiver<Progress>)> {
        let Joined { name, terminal, log, tail, keeper, folder, index, process_ended } = joined;
        let what = || format!("cannot watch {name}");
        let goes_with_process = self.from.is_none();
        let from = match (self.from, terminal) {
            (Some(pipe), _) => Rc::new(sys::register_fd(File::from(pipe.take()?)).doing(Kind::Internal, what)?),
            (None, Some(terminal)) => terminal,
            (None, None) => return Err(bowline_error::Error::new(Kind::Damaged, what())),
        };
        let (invite, guests) = mpsc::unbounded_channel();
        let (tell, hear) = watch::channel(self.progress);
        let losses = folder.as_deref().map(|folder| Losses::of(folder, self.index.unwrap_or(index)));
        let unread = self.kept.zip(folder).map(|(index, folder)| Unread::of(&folder, index));
        let kept = self.kept.map(|index| KeptEnd { keeper, index });
        let stream = Stream {
            name,
            from,
            outlets: self.outlets.into_iter().map(outlet::Handed::take).collect::<Result<_>>()?,
            guests,
            route: Route { log, tail, goes_with_process, follow: self.follow, kept, unread, losses },
            process_ended,
            tell,
            unlogged: self.unlogged,
            over: self.over,
            last_words: self.last_words,
            abandoned: self.abandoned,
            drains_until: self.drains_until,
        };
        Ok((stream, invite, hear))
    }
}

enum Step {
    Read,
    Flush,
    Ended,
    Joined(Outlet),
    Left(usize),
    LetGo,
    GiveUp,
}

impl Stream {
    /// Creates a stream from which nothing was read yet.
    pub fn new(
        name: &'static str,
        from: Rc<AsyncFd<File>>,
        outlet: Outlet,
        guests: mpsc::UnboundedReceiver<Outlet>,
        route: Route,
        process_ended: FlagReader,
        tell: watch::Sender<Progress>,
    ) -> Stream {
        Stream {
            name,
            from,
            outlets: vec![outlet],
            guests,
            route,
            process_ended,
            tell,
            unlogged: 0,
            over: false,
            last_words: false,
            abandoned: false,
            drains_until: None,
        }
    }

    /// Passes the stream on until it ends, or until its process has ended and its readers take nothing more. What is
    /// returned is there until then.
    pub fn begin(mut self) -> Weak<Mutex<Stream>> {
        self.part();
        let stream = Rc::new(Mutex::new(self));
        let while_it_lasts = Rc::downgrade(&stream);
        waits::begin(move || {
            let stream = stream.clone();
            async move { stream.lock().await.pump().await }
        });
        while_it_lasts
    }

    /// The stream for the program that is executed in the shim's place.
    pub fn hand_over(&mut self) -> Handed {
        while let Ok(guest) = self.guests.try_recv() {
            self.outlets.push(guest);
        }
        Handed {
            from: (!self.route.goes_with_process).then(|| Fd::of(self.from.get_ref())),
            outlets: self.outlets.iter().map(Outlet::hand_over).collect(),
            log: self.route.log.as_ref().map(log::Writer::stream),
            follow: self.route.follow,
            kept: self.route.kept.as_ref().map(|kept| kept.index),
            index: self.route.losses.as_ref().map(|losses| losses.index),
            unlogged: self.unlogged,
            over: self.over,
            last_words: self.last_words,
            abandoned: self.abandoned,
            drains_until: self.drains_until,
            progress: *self.tell.borrow(),
        }
    }

    /// The log that the stream shares with others of its process.
    pub fn log(&self) -> Option<&log::Writer> {
        self.route.log.as_ref()
    }

    async fn pump(&mut self) {
        let mut reads = 0;
        while !self.over || self.is_pending() {
            if self.abandoned && self.is_unread() && !self.route.goes_with_process {
                // Read what was written while there was a reader: the log and the report get it.
                let mut rest = 0..HELD;
                while rest.next().is_some() && self.read(Readiness::Ignored) {}
                break;
            }
            if self.process_ended.is_set() && !self.last_words {
                // Read what is there now and no more: a writer may be faster than the shim.
                let mut left = LAST_WORDS;
                while !self.over && left > 0 && self.read(Readiness::Ignored) {
                    left -= 1;
                }
                self.flush_log();
                self.last_words = true;
                // Other writers find a pipe that is not followed closed.
                self.over |= self.route.goes_with_process || !self.route.follow;
                let progress = self.progress(false);
                self.tell.send_replace(Progress { tail_whole: true, ..progress });
                continue;
            }
            let step = self.step_in_time().await;
            reads += usize::from(matches!(step, Step::Read));
            if self.carry_out(step).is_break() {
                break;
            }
            if reads >= HELD {
                // Without this, a task that is always busy keeps the loop from seeing requests.
                tokio::task::yield_now().await;
                reads = 0;
            }
            self.part();
            let Progress { dropped, refused, .. } = self.progress(false);
            self.tell.send_if_modified(|progress| {
                progress.refused = refused;
                std::mem::replace(&mut progress.dropped, dropped) != dropped
            });
        }
        self.flush_log();
        if let Some(unread) = self.route.unread.take() {
            unread.end();
        }
        if let Some(kept) = self.route.kept.take().filter(|_| !self.process_ended.is_set()) {
            kept.close();
        }
        let done = self.progress(true);
        if done.dropped > 0 {
            tracing::warn!(stream = self.name, bytes = done.dropped, "output dropped");
        }
        self.tell.send_replace(Progress { tail_whole: true, ..done });
    }

    /// What was lost so far, before or after all output is written or given up. A shim to come finds it too.
    fn progress(&mut self, flushed: bool) -> Progress {
        let (dropped, refused) = (self.dropped(), own(&self.outlets).and_then(Outlet::refused));
        if let Some(losses) = &mut self.route.losses {
            losses.note(dropped, refused);
        }
        Progress { tail_whole: false, flushed, dropped, refused }
    }

    /// The next step. Once the process has ended, waits for readers no longer than [`DRAIN`].
    async fn step_in_time(&mut self) -> Step {
        if !self.last_words || !self.is_pending() {
            self.drains_until = None;
            return self.step().await;
        }
        let until = *self.drains_until.get_or_insert_with(|| Moment::now().after(DRAIN));
        let step = timeout(until.to_come(), self.step()).await.unwrap_or(Step::GiveUp);
        self.drains_until = None;
        step
    }

    /// Waits for the next step.
    async fn step(&mut self) -> Step {
        let pending = self.is_pending();
        let deadline = self.outlets.iter().filter_map(Outlet::deadline).min();
        let Stream { from, outlets, guests, process_ended, over, last_words, .. } = self;
        let (over, last_words) = (*over, *last_words);
        let outlets = &outlets[..];
        tokio::select! {
            // With bytes pending, the process waits for its reader.
            ready = from.readable(), if !pending && !over => {
                drop(ready);
                Step::Read
            }
            () = writable(outlets), if pending => Step::Flush,
            () = process_ended.until_set(), if !last_words => Step::Ended,
            Some(outlet) = guests.recv() => Step::Joined(outlet),
            which = left(outlets) => Step::Left(which),
            () = until(deadline), if deadline.is_some() => Step::LetGo,
        }
    }

    /// Carries out a step; breaks when the stream is given up.
    fn carry_out(&mut self, step: Step) -> ControlFlow<()> {
        match step {
            Step::Read => {
                self.read(Readiness::Kept);
            }
            Step::Flush => {
                self.outlets.iter_mut().filter(|outlet| outlet.is_pending()).for_each(Outlet::flush);
                self.keep_what_is_pending();
            }
            Step::Ended => {}
            Step::Joined(outlet) => self.outlets.push(outlet),
            Step::Left(which) => self.outlets[which].leave(),
            Step::LetGo => {
                let now = Moment::now();
                self.outlets.iter_mut().for_each(|outlet| outlet.let_go(now));
            }
            Step::GiveUp => {
                self.outlets.iter_mut().for_each(Outlet::give_up);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// Removes the outlets whose readers have gone.
    fn part(&mut self) {
        self.abandoned |= self.outlets.iter().any(|outlet| outlet.is_gone() && outlet.is_foreground());
        self.outlets.retain(|outlet| !outlet.is_gone());
    }

    /// Whether the stream goes nowhere but to the log, not even to a client that has just attached.
    fn is_unread(&mut self) -> bool {
        self.outlets.extend(self.guests.try_recv().ok());
        self.outlets.is_empty()
    }

    fn is_pending(&self) -> bool {
        self.outlets.iter().any(Outlet::is_pending)
    }

    fn dropped(&self) -> u64 {
        self.unlogged + self.outlets.iter().map(Outlet::dropped).sum::<u64>()
    }

    /// Keeps how much the reader in the foreground, or the output's own, has not taken. Guests attach again.
    fn keep_what_is_pending(&self) {
        if let Some(unread) = &self.route.unread {
            unread.set_remaining(own(&self.outlets).map_or(0, |outlet| outlet.pending().len()));
        }
    }

    fn flush_log(&mut self) {
        let Some(log) = &self.route.log else { return };
        self.unlogged += log.flush();
        if let Some(unread) = &self.route.unread {
            unread.logged(&[]);
        }
        self.keep_what_is_pending();
    }

    /// Reads once; false when there is nothing to read now.
    fn read(&mut self, readiness: Readiness) -> bool {
        let Stream { from, outlets, route: Route { log, unread, .. }, .. } = self;
        let pending = own(outlets).map_or(&[][..], Outlet::pending);
        let room = unread.as_mut().and_then(|unread| unread.room(pending, log.is_some()));
        match room.map(|room| fill(from, room, readiness, false)) {
            Some(outcome) => self.handle(outcome, |stream, length| stream.pass_on_kept(length)),
            None => self.read_by_stack(readiness),
        }
    }

    /// Like [`Stream::read`], where nothing is kept for another shim. The buffer is on the stack, which stays small.
    #[inline(never)]
    fn read_by_stack(&mut self, readiness: Readiness) -> bool {
        let mut chunk = [0u8; CHUNK];
        let outcome = fill(&self.from, &mut chunk, readiness, self.route.goes_with_process);
        self.handle(outcome, |stream, length| {
            let bytes = &chunk[..length];
            stream.route.tail.borrow_mut().push(bytes);
            stream.unlogged += stream.route.log.as_ref().map_or(0, |log| log.write(bytes));
            stream.outlets.iter_mut().for_each(|outlet| outlet.write(bytes));
        })
    }

    fn handle(&mut self, outcome: io::Result<usize>, pass_on: impl FnOnce(&mut Stream, usize)) -> bool {
        match outcome {
            Ok(length @ 1..) => {
                pass_on(self, length);
                true
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            // The end. A terminal that no process has open any more returns EIO.
            Ok(0) | Err(_) => {
                self.over = true;
                false
            }
        }
    }

    /// Passes on a chunk, storing each step for the next shim.
    fn pass_on_kept(&mut self, length: usize) {
        let Stream { outlets, route: Route { log, tail, unread: Some(unread), .. }, unlogged, .. } = self else {
            return;
        };
        unread.has_read(length);
        let bytes = unread.chunk();
        // The reader in the foreground first: it is who waits.
        outlets.iter_mut().for_each(|outlet| outlet.write(bytes));
        unread.set_remaining(own(outlets).map_or(0, |outlet| outlet.pending().len()));
        tail.borrow_mut().push(bytes);
        if let Some(log) = log {
            *unlogged += log.write_marked(bytes, |mark| unread.begins_log(mark));
            log.with_held(|held| unread.logged(held));
            self.keep_what_is_pending();
        }
    }
}

/// The outlet that is not of a client that has attached later.
fn own(outlets: &[Outlet]) -> Option<&Outlet> {
    outlets.iter().find(|outlet| !outlet.is_guest())
}

/// Reads what there is, if `from` is ready or its readiness is ignored.
fn fill(from: &AsyncFd<File>, chunk: &mut [u8], readiness: Readiness, terminal: bool) -> io::Result<usize> {
    match readiness {
        Readiness::Kept => from.try_io(Interest::READABLE, |from| read(from, chunk, terminal)),
        Readiness::Ignored => read(from.get_ref(), chunk, terminal),
    }
}

/// Reads what there is. A terminal returns less than a page at a time, even if it holds more: each read would cost a
/// write, and a turn of the loop.
fn read(mut from: &File, chunk: &mut [u8], terminal: bool) -> io::Result<usize> {
    let mut length = from.read(chunk)?;
    while terminal && (1..chunk.len()).contains(&length) {
        match from.read(&mut chunk[length..]) {
            Ok(more @ 1..) => length += more,
            // The next read tells again.
            Ok(0) | Err(_) => break,
        }
    }
    Ok(length)
}

/// Waits until an outlet that has bytes pending takes some.
async fn writable(outlets: &[Outlet]) {
    poll_fn(|context| match outlets.iter().any(|outlet| outlet.poll_writable(context).is_ready()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

/// Waits until the reader of an outlet has gone; returns the outlet's index.
async fn left(outlets: &[Outlet]) -> usize {
    match outlets {
        [] => pending().await,
        [one] => {
            one.left().await;
            0
        }
        // Rare: a stream with an attached client.
        [first, rest @ ..] => tokio::select! {
            () = first.left() => 0,
            which = Box::pin(left(rest)) => which + 1,
        },
    }
}

async fn until(deadline: Option<Moment>) {
    if let Some(deadline) = deadline {
        crate::waits::sleep_until(deadline).await;
    }
}
