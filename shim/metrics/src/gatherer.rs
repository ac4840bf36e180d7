//! Runs one scrape of a state folder and of containerd's tasks for all clients that ask at the time.

use std::sync::Arc;
use std::time::Instant;

use bowline_executor::{Result, StateDir};
use tokio::sync::{Mutex, Semaphore};

use super::bundles::Containerd;
use super::containerd;
use super::gather::{Scrape, gather, gather_units};

/// How many shims are asked at the same time: each takes an open file.
const AT_ONCE: usize = 256;

/// Gathers for any number of clients.
pub struct Gatherer {
    state: StateDir,
    containerd: Containerd,
    last: Mutex<Option<(Instant, Arc<Scrape>)>>,
}

impl Gatherer {
    /// Gathers the tasks of this state folder and those of containerd.
    pub fn new(state: &StateDir, containerd: Containerd) -> Gatherer {
        Gatherer { state: state.clone(), containerd, last: Mutex::new(None) }
    }

    /// Returns a scrape that began after this call did.
    ///
    /// # Errors
    /// `Internal` when the state folder cannot be read.
    pub async fn scrape(&self) -> Result<Arc<Scrape>> {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        if let Some((begun, scrape)) = &*last
            && *begun >= asked
        {
            return Ok(scrape.clone());
        }
        let begun = Instant::now();
        let room = Arc::new(Semaphore::new(AT_ONCE));
        let (ours, containerds) = tokio::join!(gather(&self.state, &room), containerd::gather(&self.containerd, &room));
        let mut scrape = ours?;
        scrape.add(containerds?);
        gather_units(&self.state, &mut scrape);
        scrape.took = begun.elapsed();
        let scrape = Arc::new(scrape);
        *last = Some((begun, scrape.clone()));
        Ok(scrape)
    }
}

impl Scrape {
    /// Adds the results of another source of the same scrape.
    fn add(&mut self, other: Scrape) {
        self.errors += other.errors;
        self.shims.extend(other.shims);
        self.sandboxes.extend(other.sandboxes);
        self.tasks.extend(other.tasks);
    }
}
