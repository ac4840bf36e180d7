//! The events that wait for containerd.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use containerd_shim_protos::events::task::TaskExit;
use containerd_shim_protos::shim::event::Envelope;
use protobuf::Message as _;
use tokio::sync::Notify;

/// The waiting events. The first stays until containerd has taken it.
#[derive(Default)]
pub struct Queue {
    pub events: VecDeque<Envelope>,
    /// Whether the first is being sent, so that it cannot be dropped.
    pub sending: bool,
    pub dropped: u64,
}

/// The queue, and what publishing and delivering know of each other.
pub struct Shared {
    pub namespace: String,
    /// Where containerd takes events; without an address they are dropped.
    pub address: Option<String>,
    pub limit: usize,
    pub patience: Duration,
    pub queue: Mutex<Queue>,
    /// Notified when an event is added.
    pub added: Notify,
    /// Notified when the queue becomes empty.
    pub emptied: Notify,
}

impl Shared {
    pub fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, envelope: Envelope) {
        let mut queue = self.queue();
        queue.events.push_back(envelope);
        if queue.events.len() > self.limit {
            let first = usize::from(queue.sending);
            let oldest = (first..queue.events.len()).find(|index| !is_exit(&queue.events[*index]));
            if let Some(gone) = oldest.and_then(|index| queue.events.remove(index)) {
                queue.dropped += 1;
                let (topic, dropped) = (gone.topic, queue.dropped);
                tracing::error!(dropped, "event {topic} is lost: {} wait for containerd already", self.limit);
            }
        }
        self.added.notify_one();
    }

    /// Waits for the first event. It stays in the queue.
    pub async fn first(&self) -> Envelope {
        loop {
            let added = self.added.notified();
            if let Some(first) = self.begin() {
                return first;
            }
            added.await;
        }
    }

    fn begin(&self) -> Option<Envelope> {
        let mut queue = self.queue();
        let first = queue.events.front().cloned();
        queue.sending = first.is_some();
        first
    }

    pub fn finish(&self) {
        let mut queue = self.queue();
        queue.sending = false;
        queue.events.pop_front();
        if queue.events.is_empty() {
            self.emptied.notify_waiters();
        }
    }
}

pub fn is_exit(envelope: &Envelope) -> bool {
    envelope.event.type_url.strip_prefix("containerd.events.") == Some(TaskExit::NAME)
}
