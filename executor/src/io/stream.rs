//! One stream of a process on its way: read, kept as a tail, passed on. When
//! whoever has the process in its foreground has gone, and nobody else reads it,
//! the pipe is closed.

use std::fs::File;
use std::future::{pending, poll_fn};
use std::io::{self, Read as _};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::task::Poll;

use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::timeout;

use super::outlet::{Outlet, Readiness};
use super::tail::Tail;
use crate::clock::Moment;
use crate::lifecycle::shutdown::DRAIN;
use crate::{log, waits};

/// Read at a time, in bytes: on the stack, which stays small.
const CHUNK: usize = 16 * 1024;

/// What a pipe holds by default, in chunks.
const HELD: usize = 64 * 1024 / CHUNK;

/// How many reads of a [`CHUNK`] see all that a pipe holds: 1 MiB, unless root has made it larger.
const LAST_WORDS: usize = (1 << 20) / CHUNK;

/// One stream on its way: all that is known of it, and what it is read from.
pub struct Stream {
    /// What the process calls it.
    name: &'static str,
    /// A pipe's reading end, or a terminal.
    from: Rc<AsyncFd<File>>,
    /// Where it goes.
    outlets: Vec<Outlet>,
    /// Who wants it besides, later.
    guests: mpsc::UnboundedReceiver<Outlet>,
    route: Route,
    /// Whether its process has ended.
    process_ended: watch::Receiver<bool>,
    /// Where it says how far it is.
    tell: watch::Sender<Progress>,
    /// Bytes that the log could not keep.
    unlogged: u64,
    /// Whether nothing more is read.
    over: bool,
    /// Whether all that the process has written is read.
    last_words: bool,
    /// Whether somebody has gone who had the process in its foreground.
    abandoned: bool,
    /// Until when who takes it may take nothing, once its process has ended.
    drains_until: Option<Moment>,
}

/// What becomes of a stream besides.
pub struct Route {
    /// What keeps a log of it.
    pub log: Option<log::Writer>,
    /// Its last bytes.
    pub tail: Tail,
    /// A terminal goes with the process that it was made for, whoever else has
    /// it open.
    pub goes_with_process: bool,
    /// Whether a pipe is read on for whoever still writes then.
    pub follow: bool,
}

/// How far a stream is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// All that the process wrote has been read.
    pub tail_whole: bool,
    /// All of it is written, or given up.
    pub flushed: bool,
    /// Bytes that went nowhere.
    pub dropped: u64,
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
    /// One of which nothing was read yet.
    pub fn new(
        name: &'static str,
        from: Rc<AsyncFd<File>>,
        outlet: Outlet,
        guests: mpsc::UnboundedReceiver<Outlet>,
        route: Route,
        process_ended: watch::Receiver<bool>,
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

    /// Has it passed on until it has ended, or its process has and whatever still reads takes nothing more.
    pub fn begin(mut self) {
        self.part();
        let stream = Rc::new(Mutex::new(self));
        waits::begin(move || {
            let stream = stream.clone();
            async move { stream.lock().await.pump().await }
        });
    }

    async fn pump(&mut self) {
        let mut reads = 0;
        while !self.over || self.is_pending() {
            if self.abandoned && self.is_unread() && !self.route.goes_with_process {
                // Written while there was a reader: the log and the report have it.
                let mut rest = 0..HELD;
                while rest.next().is_some() && self.read(Readiness::Ignored) {}
                break;
            }
            // Whoever was to say so may have given up, as after a failed start.
            let ended = *self.process_ended.borrow() || self.process_ended.has_changed().is_err();
            if ended && !self.last_words {
                // What is there now, and no more: who writes on may be faster than we are.
                let mut left = LAST_WORDS;
                while !self.over && left > 0 && self.read(Readiness::Ignored) {
                    left -= 1;
                }
                self.flush_log();
                self.last_words = true;
                // Whoever still writes to a pipe that is not followed finds it closed.
                self.over |= self.route.goes_with_process || !self.route.follow;
                self.tell.send_replace(Progress { tail_whole: true, flushed: false, dropped: self.dropped() });
                continue;
            }
            let step = self.step_in_time().await;
            reads += usize::from(matches!(step, Step::Read));
            if self.carry_out(step).is_break() {
                break;
            }
            if reads >= HELD {
                // The loop hears of no request while a task's work is never done.
                tokio::task::yield_now().await;
                reads = 0;
            }
            self.part();
            let dropped = self.dropped();
            self.tell.send_if_modified(|progress| std::mem::replace(&mut progress.dropped, dropped) != dropped);
        }
        self.flush_log();
        let dropped = self.dropped();
        if dropped > 0 {
            tracing::warn!(stream = self.name, bytes = dropped, "output dropped");
        }
        self.tell.send_replace(Progress { tail_whole: true, flushed: true, dropped });
    }

    /// What is to be done next; once its process has ended, who takes it is waited for no longer than [`DRAIN`].
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

    /// What is to be done next.
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
            _ = process_ended.changed(), if !last_words => Step::Ended,
            Some(outlet) = guests.recv() => Step::Joined(outlet),
            which = left(outlets) => Step::Left(which),
            () = until(deadline), if deadline.is_some() => Step::LetGo,
        }
    }

    /// Does what is to be done next; breaks off where that is nothing.
    fn carry_out(&mut self, step: Step) -> ControlFlow<()> {
        match step {
            Step::Read => {
                self.read(Readiness::Kept);
            }
            Step::Flush => self.outlets.iter_mut().filter(|outlet| outlet.is_pending()).for_each(Outlet::flush),
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

    /// Parts with those who have gone.
    fn part(&mut self) {
        self.abandoned |= self.outlets.iter().any(|outlet| outlet.is_gone() && outlet.is_foreground());
        self.outlets.retain(|outlet| !outlet.is_gone());
    }

    /// Whether it goes nowhere but to the log: nor to whoever has just come.
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

    fn flush_log(&mut self) {
        self.unlogged += self.route.log.as_ref().map_or(0, log::Writer::flush);
    }

    /// Reads once; false when there is nothing to read now.
    fn read(&mut self, readiness: Readiness) -> bool {
        let mut chunk = [0u8; CHUNK];
        let outcome = match readiness {
            Readiness::Kept => self.from.try_io(Interest::READABLE, |mut from| from.read(&mut chunk)),
            Readiness::Ignored => self.from.get_ref().read(&mut chunk),
        };
        match outcome {
            Ok(length @ 1..) => {
                let bytes = &chunk[..length];
                self.route.tail.borrow_mut().extend_from_slice(bytes);
                self.unlogged += self.route.log.as_ref().map_or(0, |log| log.write(bytes));
                self.outlets.iter_mut().for_each(|outlet| outlet.write(bytes));
                true
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            // The end; of a terminal that nobody has open any more it is EIO.
            Ok(0) | Err(_) => {
                self.over = true;
                false
            }
        }
    }
}

/// Waits until one that has bytes pending takes some.
async fn writable(outlets: &[Outlet]) {
    poll_fn(|context| match outlets.iter().any(|outlet| outlet.poll_writable(context).is_ready()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

/// Waits until the reader of one has gone; which one.
async fn left(outlets: &[Outlet]) -> usize {
    match outlets {
        [] => pending().await,
        [one] => {
            one.left().await;
            0
        }
        // Seldom: a stream that somebody is attached to.
        [first, rest @ ..] => tokio::select! {
            () = first.left() => 0,
            which = Box::pin(left(rest)) => which + 1,
        },
    }
}

async fn until(deadline: Option<Moment>) {
    if let Some(deadline) = deadline {
        deadline.come().await;
    }
}
