//! Something that happens once to a process: its end, or its release by a manager.
//!
//! Whoever waits is woken by that alone. A flag that is taken over unset is one that nothing has happened to, however
//! often somebody says so.

use tokio::sync::watch;

/// The side that knows. Dropping it sets the flag: nothing else will.
#[derive(Debug, Clone)]
pub struct Flag(watch::Sender<bool>);

/// The side that waits.
#[derive(Debug, Clone)]
pub struct FlagReader(watch::Receiver<bool>);

impl Flag {
    /// A flag that is not set.
    pub fn new() -> Flag {
        Flag(watch::Sender::new(false))
    }

    /// Sets it, for good.
    pub fn set(&self) {
        self.0.send_if_modified(|set| !std::mem::replace(set, true));
    }

    /// Another side that waits.
    pub fn reader(&self) -> FlagReader {
        FlagReader(self.0.subscribe())
    }

    /// Waits until nobody waits any more.
    pub async fn unread(&self) {
        self.0.closed().await;
    }
}

impl FlagReader {
    /// A flag that is set.
    pub fn already_set() -> FlagReader {
        FlagReader(watch::Sender::new(true).subscribe())
    }

    /// Whether the flag is set.
    pub fn is_set(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Waits until the flag is set.
    pub async fn until_set(&self) {
        // An error means that the other side is gone.
        let _ = self.0.clone().wait_for(|set| *set).await;
    }
}
