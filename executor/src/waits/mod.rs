//! Futures that run beside the loop. A wait may last as long as a task and stores nothing: it can
//! be dropped at any moment and recreated from facts and handles. Work is a bounded job, such as a
//! launch or a change of limits, that runs to its end; a list of unfinished work is kept for
//! `inspect --facts`.
//!
//! All futures are boxed to one type, because the event loop's code is compiled once for each type.
//!
//! With the feature `remade`, which only tests use, `BOWLINE_REMADE=1` drops and recreates all waits at random.

pub(crate) mod claim;
pub(crate) mod watched_value;

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;

use bowline_error::{Error, Kind, Result};
use bowline_model::clock::Moment;
use bowline_spec::id::TaskId;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::waits::watched_value::WatchedValue;

/// Waits until `moment`; returns at once if it is past.
pub async fn sleep_until(moment: Moment) {
    tokio::time::sleep(moment.to_come()).await;
}

/// A job that has not finished.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Work {
    /// The job, in a few words.
    pub what: Cow<'static, str>,
    /// The task that it belongs to, if any.
    pub of: Option<TaskId>,
    /// The moment of CLOCK_MONOTONIC at which the job began.
    pub begun: Moment,
}

// A shim has one thread.
thread_local! {
    static UNDER_WAY: RefCell<BTreeMap<u64, Work>> = const { RefCell::new(BTreeMap::new()) };
    static BEGUN: Cell<u64> = const { Cell::new(0) };
    static RESTING: Rc<WatchedValue<bool>> = Rc::default();
    static CLOSED: Cell<bool> = const { Cell::new(false) };
    /// How many futures of waits exist.
    static AWAKE: Cell<usize> = const { Cell::new(0) };
    static STEPS: Rc<Notify> = Rc::default();
}

/// All unfinished work, oldest first.
pub fn under_way() -> Vec<Work> {
    UNDER_WAY.with_borrow(|all| all.values().cloned().collect())
}

type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;

/// Begins a wait. `make` creates its future, as often as needed.
pub fn begin<F: Future<Output = ()> + 'static>(make: impl Fn() -> F + 'static) {
    go_on(Box::pin(stay(Box::new(move || Box::pin(make())))));
}

/// Waits with a future of `make`, which does not exist while the shim is at rest.
async fn stay(make: Box<dyn Fn() -> Boxed<()>>) {
    let resting = RESTING.with(Rc::clone);
    loop {
        {
            let _awake = Awake::new();
            tokio::select! {
                biased;
                () = resting.until_it(|resting| *resting) => {}
                () = lasting(&make) => return,
            }
        }
        resting.until_it(|resting| !*resting).await;
    }
}

/// Counts a future of a wait.
struct Awake;

impl Awake {
    fn new() -> Awake {
        AWAKE.set(AWAKE.get() + 1);
        Awake
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        AWAKE.set(AWAKE.get() - 1);
    }
}

/// While this exists the shim is at rest, or comes to rest: no call begins, and in the end no future of a wait exists.
/// All that the shim knows and waits for is then in its facts and handles. Dropping this makes the futures again.
pub struct Rest(());

impl Drop for Rest {
    fn drop(&mut self) {
        CLOSED.set(false);
        // Wakes those too that have waited for this to open.
        RESTING.with(Rc::clone).update(|resting| *resting = false);
    }
}

/// Whether no call is begun, because the shim comes to rest.
pub fn is_closed() -> bool {
    CLOSED.get()
}

/// Says that a call has made a step, so that the shim may be at rest now.
pub fn stepped() {
    STEPS.with(|steps| steps.notify_one());
}

/// Whether there is no unfinished work.
pub fn is_idle() -> bool {
    UNDER_WAY.with_borrow(BTreeMap::is_empty)
}

/// Waits until all work has ended and `calls_wait` is true.
///
/// # Errors
/// `WrongState` when work goes on at `give_up`.
pub async fn until_quiet(calls_wait: impl Fn() -> bool, give_up: Moment) -> Result<()> {
    let steps = STEPS.with(Rc::clone);
    while !is_idle() || !calls_wait() {
        if timeout(give_up.to_come(), steps.notified()).await.is_err() {
            let busy = under_way().into_iter().next();
            let busy = busy.map_or(Cow::Borrowed("a call"), |work| work.what);
            return Err(
                Error::new(Kind::WrongState, format!("the shim is busy: {busy} goes on")).hint("try again later")
            );
        }
    }
    Ok(())
}

/// Brings the shim to rest: begins nothing more, waits as [`until_quiet`] does, and drops the futures of all waits.
///
/// # Errors
/// As [`until_quiet`].
pub async fn come_to_rest(calls_wait: impl Fn() -> bool, give_up: Moment) -> Result<Rest> {
    CLOSED.set(true);
    let rest = Rest(());
    until_quiet(calls_wait, give_up).await?;
    RESTING.with(Rc::clone).update(|resting| *resting = true);
    while AWAKE.get() > 0 {
        // Each was woken, and is dropped when its turn comes.
        tokio::task::yield_now().await;
    }
    Ok(rest)
}

/// Begins a job: `what` names it, `of` is the task that it belongs to.
pub fn work(what: &'static str, of: Option<TaskId>, work: impl Future<Output = ()> + 'static) {
    begin_work(what, of, Box::pin(work));
}

fn begin_work(what: &'static str, of: Option<TaskId>, work: Boxed<()>) {
    let number = BEGUN.replace(BEGUN.get() + 1);
    let entry = Work { what: Cow::Borrowed(what), of, begun: Moment::now() };
    UNDER_WAY.with_borrow_mut(|all| all.insert(number, entry));
    go_on(Box::pin(async move {
        work.await;
        UNDER_WAY.with_borrow_mut(|all| all.remove(&number));
        stepped();
    }));
}

/// Runs a job to its end, even if the caller stops waiting, and returns its result.
pub async fn finish<T: 'static>(what: &'static str, of: Option<TaskId>, work: Boxed<T>) -> T {
    let (comes_to, answer) = oneshot::channel();
    let told = async move {
        // The caller may have stopped waiting.
        let _ = comes_to.send(work.await);
    };
    begin_work(what, of, Box::pin(told));
    match answer.await {
        Ok(answer) => answer,
        // The loop has ended, and everything with it.
        Err(_) => std::future::pending().await,
    }
}

fn go_on(future: Boxed<()>) {
    tokio::task::spawn_local(future);
}

/// A future that lasts, even if those that `make` creates do not.
#[cfg(not(feature = "remade"))]
pub fn lasting<F: Future>(make: impl Fn() -> F) -> F {
    make()
}

/// A future that lasts, even if those that `make` creates do not.
#[cfg(feature = "remade")]
pub async fn lasting<F: Future>(make: impl Fn() -> F) -> F::Output {
    if remade::is_wanted() { remade::Remade::new(make).await } else { make().await }
}

#[cfg(feature = "remade")]
mod remade {
    use std::cell::Cell;
    use std::pin::Pin;
    use std::sync::OnceLock;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use tokio::time::{Instant, Sleep, sleep};

    /// Whether futures are dropped and recreated.
    pub fn is_wanted() -> bool {
        static WANTED: OnceLock<bool> = OnceLock::new();
        *WANTED.get_or_init(|| std::env::var_os("BOWLINE_REMADE").is_some())
    }

    /// A future that is dropped and recreated with a chance of one in four whenever it is polled,
    /// and after some milliseconds if nobody has polled it.
    pub struct Remade<F, M> {
        make: Box<M>,
        future: Option<Pin<Box<F>>>,
        due: Pin<Box<Sleep>>,
    }

    impl<F: Future, M: Fn() -> F> Remade<F, M> {
        pub fn new(make: M) -> Remade<F, M> {
            ALIVE.set(ALIVE.get() + 1);
            Remade { future: Some(Box::pin(make())), make: Box::new(make), due: Box::pin(sleep(until_next())) }
        }
    }

    impl<F, M> Drop for Remade<F, M> {
        fn drop(&mut self) {
            ALIVE.set(ALIVE.get() - 1);
        }
    }

    impl<F: Future, M: Fn() -> F> Future for Remade<F, M> {
        type Output = F::Output;

        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
            let due = self.due.as_mut().poll(context).is_ready();
            if due || random().is_multiple_of(4) {
                // Drop it first: it must return what it has borrowed before another one borrows that.
                self.future = None;
                let other = (self.make)();
                self.future = Some(Box::pin(other));
            }
            if due {
                self.due.as_mut().reset(Instant::now() + until_next());
                let _ = self.due.as_mut().poll(context);
            }
            self.future.as_mut().map_or(Poll::Pending, |future| future.as_mut().poll(context))
        }
    }

    thread_local!(static ALIVE: Cell<u64> = const { Cell::new(0) });

    /// The time until a future is recreated, chosen so that all futures together are recreated no
    /// more than a few hundred times a second.
    fn until_next() -> Duration {
        Duration::from_millis(1 + random() % (60 * (1 + ALIVE.get() / 16)))
    }

    /// A random number; each process has other numbers.
    fn random() -> u64 {
        thread_local!(static STATE: Cell<u64> = Cell::new(u64::from(std::process::id()) << 17 | 1));
        STATE.with(|state| {
            let mut next = state.get();
            next ^= next << 13;
            next ^= next >> 7;
            next ^= next << 17;
            state.set(next);
            next
        })
    }

    #[cfg(test)]
    mod tests {
        use std::rc::Rc;

        use super::*;

        #[test]
        fn what_is_made_again_goes_on_where_it_was() {
            let (made, counted) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let count = || {
                made.set(made.get() + 1);
                let counted: Rc<Cell<u32>> = counted.clone();
                async move {
                    while counted.get() < 1000 {
                        counted.set(counted.get() + 1);
                        tokio::task::yield_now().await;
                    }
                }
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
            runtime.block_on(async { Remade::new(count).await });
            assert_eq!(counted.get(), 1000);
            assert!(made.get() > 100, "{}", made.get());
        }
    }
}
