//! Runs one scrape of a state folder and of containerd's tasks for all clients that ask at the time.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use bowline_model::folder::StateDir;
use bowline_model::{Error, Kind, Result};
use hyper::body::Bytes;
use tokio::sync::{Semaphore, oneshot};

use super::bundles::Containerd;
use super::containerd;
use super::families;
use super::gather::{Scrape, gather, gather_units};
use super::text::Form;

/// How many shims are asked at the same time: each takes an open file.
const AT_ONCE: usize = 256;

/// Gathers for any number of clients.
pub struct Gatherer {
    state: StateDir,
    containerd: Containerd,
    asked: Mutex<Asked>,
}

/// The clients that ask.
#[derive(Default)]
struct Asked {
    /// Those that wait for the next scrape.
    waiting: Vec<oneshot::Sender<Result<Arc<Gathered>>>>,
    /// Whether one runs, after which the next begins.
    running: bool,
}

/// The result of one scrape, for all clients that asked for it.
pub struct Gathered {
    scrape: Scrape,
    texts: [OnceLock<Bytes>; 2],
}

impl Gathered {
    /// The text in one form, which is made once.
    pub fn text(&self, form: Form) -> Bytes {
        let text = &self.texts[usize::from(form == Form::OpenMetrics)];
        text.get_or_init(|| families::of(&self.scrape).render(form).into()).clone()
    }
}

impl Gatherer {
    /// Gathers the tasks of this state folder and those of containerd.
    pub fn new(state: &StateDir, containerd: Containerd) -> Gatherer {
        Gatherer { state: state.clone(), containerd, asked: Mutex::default() }
    }

    /// Returns a scrape that began after this call did. It runs to its end even if a client leaves: clients that come and
    /// go cannot make others start again.
    ///
    /// # Errors
    /// `Internal` when the state folder cannot be read.
    pub async fn scrape(self: &Arc<Gatherer>) -> Result<Arc<Gathered>> {
        let (answer, answered) = oneshot::channel();
        let begins = self.with_asked(|asked| {
            asked.waiting.push(answer);
            !std::mem::replace(&mut asked.running, true)
        });
        if begins {
            tokio::spawn(self.clone().run());
        }
        answered.await.unwrap_or_else(|_| Err(Error::new(Kind::Internal, "the scrape was given up")))
    }

    /// Scrapes for as long as clients ask.
    async fn run(self: Arc<Gatherer>) {
        loop {
            let waiting = self.with_asked(|asked| {
                asked.waiting.retain(|client| !client.is_closed());
                asked.running = !asked.waiting.is_empty();
                std::mem::take(&mut asked.waiting)
            });
            if waiting.is_empty() {
                return;
            }
            let gathered = self.gather().await.map(|scrape| Arc::new(Gathered { scrape, texts: Default::default() }));
            for client in waiting {
                // The client may have left.
                let _ = client.send(gathered.clone());
            }
        }
    }

    async fn gather(&self) -> Result<Scrape> {
        let begun = Instant::now();
        let room = Arc::new(Semaphore::new(AT_ONCE));
        let (ours, containerds) = tokio::join!(gather(&self.state, &room), containerd::gather(&self.containerd, &room));
        let mut scrape = ours?;
        scrape.add(containerds?);
        gather_units(&self.state, &mut scrape);
        scrape.took = begun.elapsed();
        Ok(scrape)
    }

    fn with_asked<T>(&self, f: impl FnOnce(&mut Asked) -> T) -> T {
        // No code that holds the lock leaves anything half done.
        f(&mut self.asked.lock().unwrap_or_else(PoisonError::into_inner))
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
