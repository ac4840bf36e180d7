//! Blocking calls, for a program without an event loop.
//!
//! ```no_run
//! use bowline_client::{Exec, Start, blocking};
//!
//! # fn main() -> bowline_client::Result<()> {
//! let client = blocking::Client::new(bowline_client::STATE)?;
//! let task = client.start(Start::from_toml("command = '/bin/sleep'\nargs = ['1000']")?)?;
//! let said = task.exec(Exec::new(["/bin/echo", "hello"]))?;
//! assert_eq!(said.stdout, b"hello\n");
//! task.stop()?;
//! task.remove(false)?;
//! # Ok(())
//! # }
//! ```
//!
//! Each type is like the one of the same name in the crate's root, and each call like that type's call of the same
//! name: [`Task::wait`] is like [`crate::Task::wait`].
//!
//! Each call has an event loop of its own, of two descriptors, in the calling thread, and leaves no thread, no
//! connection and no descriptor behind. Any number of threads may call at a time.
//!
//! Called within an event loop of tokio, which it would block, a call fails with `Usage`. Every other error is that of
//! the call of the same name in [`crate::Client`] or [`crate::Task`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_executor::ExecOutcome;
use bowline_model::events::Entry;
use bowline_model::report::ExitReport;
use bowline_model::stats::Stats;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;

use crate::children;
use crate::client;
use crate::ending::Removed;
use crate::events;
use crate::exec_request::Exec;
use crate::start::Start;
use crate::task::{self, State};

#[derive(Debug, Clone)]
pub struct Client(client::Client);

impl Client {
    pub fn new(path: impl AsRef<Path>) -> Result<Client> {
        client::Client::new(path).map(Client)
    }

    #[must_use]
    pub fn with_shim(self, binary: impl Into<PathBuf>) -> Client {
        Client(self.0.with_shim(binary))
    }

    pub fn start(&self, start: Start) -> Result<Task> {
        block_on(self.0.start(start)).map(Task)
    }

    pub fn task(&self, id: &str) -> Result<Task> {
        self.0.task(id).map(Task)
    }

    pub fn tasks(&self) -> Result<Vec<Task>> {
        Ok(self.0.tasks()?.into_iter().map(Task).collect())
    }

    pub fn events(&self) -> Result<Events> {
        self.0.events().map(Events)
    }
}

#[derive(Debug, Clone)]
pub struct Task(task::Task);

impl Task {
    pub fn id(&self) -> &TaskId {
        self.0.id()
    }

    pub fn state(&self) -> Result<State> {
        block_on(self.0.state())
    }

    pub fn wait(&self) -> Result<ExitReport> {
        block_on(self.0.wait())
    }

    /// Like [`Task::wait`], for at most `timeout`; `None` when the task has not ended by then.
    pub fn wait_for(&self, timeout: Duration) -> Result<Option<ExitReport>> {
        block_on(within(timeout, self.0.wait()))
    }

    pub fn exec(&self, exec: Exec) -> Result<ExecOutcome> {
        block_on(self.0.exec(exec))
    }

    pub fn stats(&self) -> Result<Stats> {
        block_on(self.0.stats())
    }

    pub fn events(&self) -> Result<Events> {
        self.0.events().map(Events)
    }

    pub fn stop(&self) -> Result<ExitReport> {
        block_on(self.0.stop())
    }

    pub fn stop_with(&self, signal: Option<Signal>, grace: Option<Duration>) -> Result<ExitReport> {
        block_on(self.0.stop_with(signal, grace))
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        block_on(self.0.signal(signal))
    }

    pub fn pause(&self) -> Result<()> {
        block_on(self.0.pause())
    }

    pub fn resume(&self) -> Result<()> {
        block_on(self.0.resume())
    }

    pub fn update_toml(&self, limits: &str) -> Result<Vec<String>> {
        block_on(self.0.update_toml(limits))
    }

    pub fn remove(&self, force: bool) -> Result<Removed> {
        let removed = block_on(self.0.removal(force))?.carry_out();
        children::collect();
        removed
    }
}

pub struct Events(events::Events);

impl Events {
    pub fn past(&mut self) -> Result<Vec<Entry>> {
        self.0.past()
    }

    /// Waits for the next event, as [`crate::Events::next`] does.
    pub fn wait_for_next(&mut self) -> Result<Entry> {
        block_on(self.0.next())
    }

    /// Like [`Events::wait_for_next`], for at most `timeout`; `None` when there was no event by then.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Entry>> {
        block_on(within(timeout, self.0.next()))
    }
}

async fn within<T>(timeout: Duration, call: impl Future<Output = Result<T>>) -> Result<Option<T>> {
    tokio::time::timeout(timeout, call).await.ok().transpose()
}

/// Runs a call to its end. Its event loop goes with it, and so does its connection: one that is kept would be closed by
/// the next call only, and a leaving shim waits for that.
fn block_on<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    if tokio::runtime::Handle::try_current().is_ok() {
        return Err(Error::new(Kind::Usage, "a blocking call would block the event loop that it was made in")
            .hint("use `bowline_client::Client` in async code, or a thread of your own"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    runtime.doing(Kind::Internal, || "cannot start an event loop")?.block_on(call)
}
