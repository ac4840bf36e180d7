//! Limits how many clients are connected: a client that comes when all places are taken replaces the one that has
//! waited longest.
//!
//! ```text
//!   admitted ─► Waiting ─► Gathering ─► Answering ─► Waiting …
//!                  └────── may be shown out ──┘
//! ```
//!
//! So a client that sends nothing, sends a byte now and then, or does not read its answer cannot block others, however
//! many such clients there are. Must not: speak HTTP.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

/// A client's progress. Clients are shown out in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The client has not sent a whole request yet.
    Waiting,
    /// The answer is being written to the client.
    Answering,
    /// The answer is being prepared. The client is not shown out: this phase ends by itself.
    Gathering,
    /// The client has lost its place, and must leave.
    Out,
}

/// A phase, and when it began.
type Stand = (Phase, Instant);

pub struct House {
    room: usize,
    /// How long a client may take to send a whole request, and to read its answer.
    patience: [Duration; 2],
    inside: Mutex<Inside>,
    changed: Notify,
}

#[derive(Default)]
struct Inside {
    next: u64,
    guests: BTreeMap<u64, watch::Sender<Stand>>,
}

/// A client's place, until this is dropped.
pub struct Seat {
    house: Arc<House>,
    number: u64,
    stand: watch::Sender<Stand>,
}

impl House {
    /// Creates a house with `room` places.
    pub fn new(room: usize, patience: [Duration; 2]) -> Arc<House> {
        Arc::new(House { room, patience, inside: Mutex::default(), changed: Notify::new() })
    }

    /// Takes a place for a new client; if all are taken, shows another client out.
    pub async fn admit(self: &Arc<House>) -> Seat {
        loop {
            let changed = self.changed.notified();
            let has_room = self.inside().guests.len() < self.room;
            if has_room || self.show_out() {
                return self.seat();
            }
            // The answers of all clients are being prepared.
            changed.await;
        }
    }

    /// Shows out the client that has waited longest; false if none waits.
    pub fn show_out(&self) -> bool {
        let mut inside = self.inside();
        let stands = inside.guests.iter().map(|(number, guest)| (*guest.borrow(), *number));
        let longest = stands.filter(|((phase, _), _)| *phase < Phase::Gathering).min();
        let guest = longest.and_then(|(_, number)| inside.guests.remove(&number));
        if let Some(guest) = &guest {
            guest.send_replace((Phase::Out, Instant::now()));
        }
        guest.is_some()
    }

    /// Waits until all clients have left.
    pub async fn empty(&self) {
        loop {
            let changed = self.changed.notified();
            if self.inside().guests.is_empty() {
                return;
            }
            changed.await;
        }
    }

    fn seat(self: &Arc<House>) -> Seat {
        let (stand, _) = watch::channel((Phase::Waiting, Instant::now()));
        let mut inside = self.inside();
        inside.next += 1;
        let number = inside.next;
        inside.guests.insert(number, stand.clone());
        Seat { house: self.clone(), number, stand }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        // No code that holds the lock leaves anything half done.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.house.inside().guests.remove(&self.number);
        self.house.changed.notify_one();
    }
}

impl Seat {
    /// Enters `phase`, unless it is in that phase already or the client must leave.
    pub fn enter(&self, phase: Phase) {
        self.stand.send_if_modified(|stand| {
            let enters = stand.0 != phase && stand.0 != Phase::Out;
            if enters {
                *stand = (phase, Instant::now());
            }
            enters
        });
        self.house.changed.notify_one();
    }

    /// Waits until the client must leave: for another client, or because it takes too long.
    pub async fn over(&self) {
        let mut stands = self.stand.subscribe();
        let [request, answer] = self.house.patience;
        loop {
            let (phase, since) = *stands.borrow_and_update();
            let until = match phase {
                Phase::Waiting => Some(since + request),
                Phase::Answering => Some(since + answer),
                Phase::Gathering => None,
                Phase::Out => return,
            };
            tokio::select! {
                _ = stands.changed() => {}
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => return,
            }
        }
    }
}

/// A client's connection, which notes when an answer has been written.
pub struct Seated<T> {
    pub connection: T,
    pub seat: Arc<Seat>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Seated<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Seated<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    /// hyper flushes once it has written everything.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.connection).poll_flush(cx))?;
        if self.seat.stand.borrow().0 == Phase::Answering {
            self.seat.enter(Phase::Waiting);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_out(seat: &Seat) -> bool {
        seat.stand.borrow().0 == Phase::Out
    }

    #[tokio::test]
    async fn who_has_waited_longest_makes_room() {
        let house = House::new(3, [Duration::from_secs(1000); 2]);
        let seats = [house.admit().await, house.admit().await, house.admit().await];
        seats[0].enter(Phase::Answering);
        seats[1].enter(Phase::Gathering);
        let fourth = house.admit().await;
        assert_eq!(seats.each_ref().map(is_out), [false, false, true], "the first has asked, the second as well");
        seats[2].over().await;
        fourth.enter(Phase::Gathering);
        let fifth = house.admit().await;
        assert!(is_out(&seats[0]), "nobody else waits, and it reads");
        fifth.enter(Phase::Gathering);
        assert!(!house.show_out());
        let mut sixth = std::pin::pin!(house.admit());
        tokio::select! {
            biased;
            _ = &mut sixth => panic!("all have their answers made"),
            () = tokio::task::yield_now() => {}
        }
        drop(fourth);
        sixth.await;
    }

    #[tokio::test]
    async fn each_step_has_its_time_however_often_something_comes() {
        let short = Duration::from_millis(20);
        let house = House::new(3, [short, 2 * short]);
        let begun = Instant::now();
        let seat = house.admit().await;
        seat.enter(Phase::Waiting);
        seat.over().await;
        assert!(begun.elapsed() >= short);
        let asked = Instant::now();
        seat.enter(Phase::Answering);
        seat.over().await;
        assert!(asked.elapsed() >= 2 * short);
        drop(seat);
        house.empty().await;
    }
}
