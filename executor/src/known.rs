//! A value that others wait for: whoever changes it wakes them, and they look again.

use std::cell::RefCell;

use tokio::sync::Notify;

/// Facts with one owner.
#[derive(Default)]
pub struct Known<T> {
    value: RefCell<T>,
    changed: Notify,
}

impl<T> Known<T> {
    pub fn new(value: T) -> Known<T> {
        Known { value: RefCell::new(value), changed: Notify::new() }
    }

    /// What `look` makes of it as it is now. Nothing is borrowed when this returns: nobody waits with it in hand.
    pub fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.value.borrow())
    }

    /// Changes it, and has all look that wait.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let done = self.note(change);
        self.changed.notify_waiters();
        done
    }

    /// Changes of it what nobody waits for, as when somebody looks again.
    pub fn note<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        change(&mut self.value.borrow_mut())
    }

    /// Waits until `look` finds something.
    pub async fn until<R>(&self, look: impl Fn(&T) -> Option<R>) -> R {
        loop {
            // From here on no change is missed.
            let changed = self.changed.notified();
            if let Some(found) = self.look(&look) {
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
