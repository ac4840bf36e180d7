//! Which cases run side by side: most do; one that measures runs alone.

use std::cell::Cell;
use std::io::Write as _;
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// So many cases that are to run alone gather before no other begins: until the last of those that run has ended, most
/// of the machine has nothing to do.
const GATHERED: usize = 3;

/// No case runs longer in CI: one that hangs, and keeps those from running that must be alone, is named, and ends the run.
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// Who is on the machine.
struct Machine {
    /// Each case by its thread: its name, and since when it has its turn.
    running: Vec<(ThreadId, String, Instant)>,
    /// How many run side by side.
    beside: usize,
    /// Whether a case runs now that must be alone.
    alone: bool,
    /// How many wait to run alone.
    waiting: usize,
    /// Whether those come next, one after the other.
    gathered: bool,
}

static MACHINE: Mutex<Machine> =
    Mutex::new(Machine { running: Vec::new(), beside: 0, alone: false, waiting: 0, gathered: false });
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// How many hosts the case on this thread has. It waits for its turn once:
    /// a second wait could be for somebody who waits for it.
    static HOSTS: Cell<u32> = const { Cell::new(0) };
}

/// A case's turn on the machine, until it is dropped.
pub(super) struct Turn {
    held: Held,
}

#[derive(Clone, Copy, PartialEq)]
enum Held {
    Beside,
    Alone,
    /// By another host of the same case.
    Already,
}

impl Turn {
    /// Waits while a case runs alone, or enough cases have gathered to run alone.
    pub(super) fn beside_others() -> Turn {
        Turn::take(Held::Beside, |machine| {
            let mut machine = wait_while(machine, |machine| machine.alone || machine.gathered);
            machine.beside += 1;
        })
    }

    /// Waits until no other case runs. Its first host must be the one that asks.
    pub(super) fn alone() -> Turn {
        assert_eq!(HOSTS.get(), 0, "a case is alone from its first host on");
        Turn::take(Held::Alone, |mut machine| {
            machine.waiting += 1;
            machine.gathered |= machine.waiting >= GATHERED;
            let mut machine = wait_while(machine, |machine| machine.alone || machine.beside > 0);
            machine.waiting -= 1;
            machine.alone = true;
        })
    }

    fn take(held: Held, wait: impl FnOnce(MutexGuard<'static, Machine>)) -> Turn {
        let held = if HOSTS.get() == 0 { held } else { Held::Already };
        if held != Held::Already {
            wait(machine());
            let case = thread::current();
            machine().running.push((case.id(), case.name().unwrap_or("a case").to_owned(), Instant::now()));
            static WATCHED: Once = Once::new();
            WATCHED.call_once(|| drop(thread::spawn(end_at_a_case_that_hangs)));
        }
        HOSTS.set(HOSTS.get() + 1);
        Turn { held }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        HOSTS.set(HOSTS.get() - 1);
        let mut machine = machine();
        if self.held != Held::Already {
            let case = thread::current().id();
            machine.running.retain(|(thread, ..)| *thread != case);
        }
        match self.held {
            Held::Beside => machine.beside -= 1,
            Held::Alone => {
                machine.alone = false;
                machine.gathered = machine.waiting > 0;
            }
            Held::Already => {}
        }
        CHANGED.notify_all();
    }
}

/// In CI ends the whole run, with what hangs by name, once a case has run for too long.
fn end_at_a_case_that_hangs() {
    while std::env::var("CI").as_deref() == Ok("true") {
        let (machine, _) = CHANGED.wait_timeout(machine(), LONGEST / 10).unwrap_or_else(PoisonError::into_inner);
        if machine.running.iter().any(|(.., since)| since.elapsed() > LONGEST) {
            for (_, name, since) in &machine.running {
                let _ = writeln!(std::io::stderr().lock(), "=== {name} has run for {} s", since.elapsed().as_secs());
            }
            std::process::exit(1);
        }
    }
}

/// A case that failed has cleaned up.
fn machine() -> MutexGuard<'static, Machine> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait_while(
    machine: MutexGuard<'static, Machine>,
    mut condition: impl FnMut(&Machine) -> bool,
) -> MutexGuard<'static, Machine> {
    CHANGED.wait_while(machine, |machine| condition(machine)).unwrap_or_else(PoisonError::into_inner)
}
