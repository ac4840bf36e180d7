//! A value that other code waits for: every change wakes the waiters, and they look again.

use std::cell::RefCell;

use tokio::sync::Notify;

/// A value with one owner that wakes its waiters when it changes.
#[derive(Debug, Default)]
pub struct WatchedValue<T> {
    value: RefCell<T>,
    changed: Notify,
}

impl<T> WatchedValue<T> {
    pub fn new(value: T) -> WatchedValue<T> {
        WatchedValue { value: RefCell::new(value), changed: Notify::new() }
    }

    /// Returns what `look` makes of the current value. Nothing is borrowed when this returns, so
    /// nobody waits with a borrow.
    pub fn read<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.value.borrow())
    }

    /// Changes the value and wakes all waiters.
    pub fn update<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let done = self.update_silently(change);
        self.changed.notify_waiters();
        done
    }

    /// Changes a part of the value that nobody waits for, so no waiter wakes.
    pub fn update_silently<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        change(&mut self.value.borrow_mut())
    }

    /// Waits until `look` returns something, and returns that.
    pub async fn until<R>(&self, look: impl Fn(&T) -> Option<R>) -> R {
        loop {
            // From here on no change is missed.
            let changed = self.changed.notified();
            if let Some(found) = self.read(&look) {
                return found;
            }
            changed.await;
        }
    }

    /// Waits until `is` holds.
    pub async fn until_it(&self, is: impl Fn(&T) -> bool) {
        self.until(|value| is(value).then_some(())).await;
    }
}
