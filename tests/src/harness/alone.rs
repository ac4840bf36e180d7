//! Which cases run side by side: most do; one that measures runs alone.

use std::cell::Cell;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::new(());

thread_local! {
    /// How many hosts the case on this thread has. It waits for its turn once:
    /// a second wait could be for somebody who waits for it.
    static HOSTS: Cell<u32> = const { Cell::new(0) };
}

/// A case's turn on the machine, until it is dropped.
pub(super) struct Turn {
    _held: Held,
}

#[allow(dead_code, reason = "held, not read")]
enum Held {
    Shared(RwLockReadGuard<'static, ()>),
    Exclusive(RwLockWriteGuard<'static, ()>),
    /// By another host of the same case.
    Already,
}

impl Turn {
    /// Runs beside other cases.
    pub(super) fn beside_others() -> Turn {
        // A case that failed has cleaned up.
        Turn::take(|| Held::Shared(MACHINE.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Waits until no other case runs. Its first host must be the one that asks.
    pub(super) fn alone() -> Turn {
        assert_eq!(HOSTS.get(), 0, "a case is alone from its first host on");
        Turn::take(|| Held::Exclusive(MACHINE.write().unwrap_or_else(PoisonError::into_inner)))
    }

    fn take(wait: impl FnOnce() -> Held) -> Turn {
        let held = if HOSTS.get() == 0 { wait() } else { Held::Already };
        HOSTS.set(HOSTS.get() + 1);
        Turn { _held: held }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        HOSTS.set(HOSTS.get() - 1);
    }
}
