//! Limits how many clients are connected: a client that comes when all places are taken replaces the one that has
//! waited longest since its last answer, else one that has never asked.
//!
//! ```text
//!   admitted ─► Waiting ─► Gathering ─► Answering ─► Waiting; out, if others wait for a place
//!                  └────── may be shown out ──┘
//! ```
//!
//! So a client that sends nothing, sends a byte now and then, does not read its answer, or asks without end cannot block
//! others, however many such clients there are. Each user of a unix socket has at most half of the places, and no user is
//! shown out for one that has more. Clients without a place wait in `queue`. Must not: speak HTTP.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// How long a new client is not shown out, because its request is on its way; and how long where such clients fill half of
/// the places, so that clients who ask nothing delay others little.
const WELCOME: Duration = Duration::from_millis(100);
pub const WELCOME_IN_A_CROWD: Duration = Duration::from_millis(10);

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
    guests: BTreeMap<u64, Guest>,
    /// Whether clients wait for a place.
    queue: bool,
}

struct Guest {
    /// The client's user, if known.
    uid: Option<u32>,
    stand: watch::Sender<Stand>,
    /// Whether the client has had an answer.
    is_answered: Arc<AtomicBool>,
}

/// A client's place, until this is dropped.
pub struct Seat {
    house: Arc<House>,
    number: u64,
    stand: watch::Sender<Stand>,
    is_answered: Arc<AtomicBool>,
}

impl House {
    /// Creates a house with `room` places.
    pub fn new(room: usize, patience: [Duration; 2]) -> Arc<House> {
        Arc::new(House { room, patience, inside: Mutex::default(), changed: Notify::new() })
    }

    /// Takes a place for a new client of the user `uid`, if that is known. If all places are taken, or half of them by
    /// this user, shows another client out: one of a user with more places, else of this user. `None` if none can be: their
    /// answers are being prepared.
    pub fn admit(self: &Arc<House>, uid: Option<u32>) -> Option<Seat> {
        let (all, places) = {
            let inside = self.inside();
            let mut places = BTreeMap::<_, usize>::new();
            inside.guests.values().for_each(|guest| *places.entry(guest.uid).or_default() += 1);
            (inside.guests.len(), places)
        };
        let of = |uid: Option<u32>| places.get(&uid).copied().unwrap_or_default();
        let most = places.values().max().copied().unwrap_or_default();
        let has_place = if uid.is_some() && of(uid) >= self.room.div_ceil(2) {
            self.show_out_of(|guest| guest.uid == uid)
        } else if all < self.room {
            true
        } else {
            (most > of(uid) && self.show_out_of(|guest| of(guest.uid) == most))
                || self.show_out_of(|guest| of(guest.uid) > of(uid))
                || self.show_out_of(|guest| guest.uid == uid)
        };
        has_place.then(|| self.seat(uid))
    }

    /// Whether all places are taken.
    pub fn is_full(&self) -> bool {
        self.inside().guests.len() >= self.room
    }

    /// Shows out the client that has waited longest; false if none waits.
    pub fn show_out(&self) -> bool {
        self.show_out_of(|_| true)
    }

    /// Like [`House::show_out`], one of these clients.
    fn show_out_of(&self, is_one: impl Fn(&Guest) -> bool) -> bool {
        let mut inside = self.inside();
        let stands = || inside.guests.iter().map(|(number, guest)| (guest.stand(), *number, guest));
        let crowd = stands().filter(|((phase, is_new, _), ..)| *phase == Phase::Waiting && *is_new).count();
        let welcome = if 2 * crowd >= self.room { WELCOME_IN_A_CROWD } else { WELCOME };
        let may_go = |(phase, is_new, since): (Phase, bool, Instant)| match phase {
            Phase::Waiting => !is_new || since.elapsed() >= welcome,
            Phase::Answering => true,
            Phase::Gathering | Phase::Out => false,
        };
        let those = stands().filter(|(stand, _, guest)| is_one(guest) && may_go(*stand));
        let longest = those.map(|(stand, number, _)| (stand, number)).min();
        let guest = longest.and_then(|(_, number)| inside.guests.remove(&number));
        if let Some(guest) = &guest {
            guest.stand.send_replace((Phase::Out, Instant::now()));
        }
        guest.is_some()
    }

    /// Sets whether clients wait for a place: then nobody keeps one beyond an answer.
    pub fn set_queue(&self, waits: bool) {
        self.inside().queue = waits;
    }

    /// Waits until a client has left, or is in another phase.
    pub async fn changed(&self) {
        self.changed.notified().await;
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

    fn seat(self: &Arc<House>, uid: Option<u32>) -> Seat {
        let (stand, _) = watch::channel((Phase::Waiting, Instant::now()));
        let mut inside = self.inside();
        inside.next += 1;
        let number = inside.next;
        let is_answered = Arc::new(AtomicBool::new(false));
        inside.guests.insert(number, Guest { uid, stand: stand.clone(), is_answered: is_answered.clone() });
        Seat { house: self.clone(), number, stand, is_answered }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        // No code that holds the lock leaves anything half done.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guest {
    /// The client's phase, whether it is new, and since when: clients are shown out in this order.
    fn stand(&self) -> (Phase, bool, Instant) {
        let (phase, since) = *self.stand.borrow();
        (phase, !self.is_answered.load(Ordering::Relaxed), since)
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
        if phase == Phase::Answering {
            self.is_answered.store(true, Ordering::Relaxed);
        }
        self.stand.send_if_modified(|stand| {
            let enters = stand.0 != phase && stand.0 != Phase::Out;
            if enters {
                *stand = (phase, Instant::now());
            }
            enters
        });
        self.house.changed.notify_one();
    }

    /// Whether the client must leave after its next answer, because others wait.
    pub fn is_last(&self) -> bool {
        self.house.inside().queue
    }

    /// Whether the client has lost its place.
    pub fn is_out(&self) -> bool {
        self.stand.borrow().0 == Phase::Out
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
            self.seat.enter(if self.seat.is_last() { Phase::Out } else { Phase::Waiting });
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LONG: [Duration; 2] = [Duration::from_secs(1000); 2];

    /// A place for each of these users.
    fn seats<const N: usize>(house: &Arc<House>, uids: [Option<u32>; N]) -> [Seat; N] {
        uids.map(|uid| house.admit(uid).unwrap())
    }

    #[tokio::test]
    async fn who_has_waited_longest_makes_room() {
        let house = House::new(3, LONG);
        let seats = seats(&house, [None; 3]);
        seats[0].enter(Phase::Answering);
        seats[1].enter(Phase::Gathering);
        tokio::time::sleep(WELCOME).await;
        let fourth = house.admit(None).unwrap();
        assert_eq!(seats.each_ref().map(Seat::is_out), [false, false, true], "the first has asked, the second as well");
        seats[2].over().await;
        fourth.enter(Phase::Gathering);
        let fifth = house.admit(None).unwrap();
        assert!(seats[0].is_out(), "nobody else waits, and it reads");
        fifth.enter(Phase::Gathering);
        assert!(!house.show_out() && house.admit(None).is_none(), "all have their answers made");
        drop(fourth);
        house.changed().await;
        assert!(house.admit(None).is_some());
    }

    #[tokio::test]
    async fn a_new_client_is_shown_out_last_and_not_while_its_request_is_on_its_way() {
        let house = House::new(4, LONG);
        let seats = seats(&house, [None; 4]);
        seats[..3].iter().for_each(|seat| seat.enter(Phase::Gathering));
        assert!(house.admit(None).is_none(), "its request is on its way");
        tokio::time::sleep(WELCOME).await;
        let another = house.admit(None).unwrap();
        assert!(seats[3].is_out());
        seats[0].enter(Phase::Answering);
        seats[0].enter(Phase::Waiting);
        tokio::time::sleep(WELCOME).await;
        let _third = house.admit(None).unwrap();
        assert!(seats[0].is_out() && !another.is_out(), "it has had an answer, and has waited less long");
        drop((seats, another));
        let _crowd = [house.admit(None), house.admit(None), house.admit(None)];
        assert!(house.admit(None).is_none(), "their requests are on their way");
        tokio::time::sleep(WELCOME_IN_A_CROWD).await;
        assert!(house.admit(None).is_some());
    }

    #[tokio::test]
    async fn a_user_has_half_of_the_places() {
        let house = House::new(5, LONG);
        let (user, other) = (Some(1000), Some(0));
        let seats = seats(&house, [user; 3]);
        seats.iter().for_each(|seat| seat.enter(Phase::Gathering));
        assert!(house.admit(user).is_none());
        let others = [house.admit(other).unwrap(), house.admit(None).unwrap()];
        assert!(house.admit(other).is_none(), "all places are taken, by new clients");
        seats[1].enter(Phase::Answering);
        assert!(house.admit(user).is_some() && seats[1].is_out(), "its own place");
        assert!(!others.iter().any(Seat::is_out));
    }

    #[tokio::test]
    async fn users_with_many_places_show_each_other_out_and_nobody_with_fewer() {
        let house = House::new(4, LONG);
        let (one, two, other) = (Some(1), Some(2), Some(0));
        let many = seats(&house, [one, one, two, two]);
        many.iter().for_each(|seat| seat.enter(Phase::Answering));
        let scrape = house.admit(other).expect("a place");
        for _ in 0..20 {
            let come = [one, two].map(|uid| house.admit(uid).expect("a place"));
            come.iter().for_each(|seat| seat.enter(Phase::Answering));
            assert!(!scrape.is_out());
        }
    }

    #[tokio::test]
    async fn nobody_keeps_a_place_beyond_an_answer_while_others_wait() {
        let house = House::new(2, LONG);
        for waits in [false, true] {
            house.set_queue(waits);
            let seat = Arc::new(house.admit(None).unwrap());
            seat.enter(Phase::Answering);
            let mut connection = Seated { connection: tokio::io::empty(), seat: seat.clone() };
            tokio::io::AsyncWriteExt::flush(&mut connection).await.unwrap();
            assert_eq!(seat.is_out(), waits);
        }
    }

    #[tokio::test]
    async fn each_step_has_its_time_however_often_something_comes() {
        let short = Duration::from_millis(20);
        let house = House::new(3, [short, 2 * short]);
        let begun = Instant::now();
        let seat = house.admit(None).unwrap();
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
