//! Runs one action on several tasks at the same time.
//!
//! A failure does not stop the others: each error is printed on its own, and the first one decides the exit code.

use std::time::Duration;

use bowline_model::folder::{Folder, StateDir};
use bowline_model::{Kind, Result};
use bowline_spec::id::TaskId;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::task::{AbortHandle, JoinHandle};

use crate::exit_code::exit_code;
use crate::input::chosen::Found;
use crate::input::task_names::{self, TaskRef};
use crate::ui::print::complain;
use crate::ui::progress;

/// The work on each of several tasks, in the order given.
pub struct Each<T> {
    work: Vec<Result<JoinHandle<Result<Option<T>>>>>,
    /// The tasks that were found, with a handle that shows whether the work is done.
    watched: Vec<(TaskId, AbortHandle)>,
    /// The kind of error that is printed but does not count as a failure.
    forgiven: Option<Kind>,
    /// The exit code of a failure; without one, that of the first error.
    failed: Option<u8>,
}

/// Starts `act` on all of `names` at the same time.
pub fn each<T, F>(state: &StateDir, names: &[TaskRef], act: impl Fn(TaskId) -> F) -> Each<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    each_of(task_names::resolve(state, names), act)
}

/// Like [`each`], where it is known already which are meant.
pub fn each_of<T, F>(ids: Vec<Result<TaskId>>, act: impl Fn(TaskId) -> F) -> Each<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    begin(ids.into_iter().map(|id| {
        id.map(|id| {
            let work = act(id.clone());
            (id, async move { work.await.map(Some) })
        })
    }))
}

/// Like [`each`], of tasks that were found already, with their folders. One whose folder is pinned and that has been removed
/// is nobody's error.
pub fn each_found<T, F>(found: Vec<Found>, act: impl Fn(TaskId, Folder) -> F) -> Each<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    begin(found.into_iter().map(|found| {
        found.map(|(id, folder)| {
            let work = act(id.clone(), folder.clone());
            let unless_gone = async move {
                match work.await {
                    Err(error) if error.kind() == Kind::NotFound && !folder.is_still_there() => Ok(None),
                    done => done.map(Some),
                }
            };
            (id, unless_gone)
        })
    }))
}

fn begin<T, F>(work: impl Iterator<Item = Result<(TaskId, F)>>) -> Each<T>
where
    T: Send + 'static,
    F: Future<Output = Result<Option<T>>> + Send + 'static,
{
    let mut watched = Vec::new();
    let begun = work.map(|one| {
        one.map(|(id, work)| {
            let handle = tokio::spawn(work);
            watched.push((id, handle.abort_handle()));
            handle
        })
    });
    let work = begun.collect();
    Each { work, watched, forgiven: None, failed: None }
}

impl<T: Send + 'static> Each<T> {
    /// Does not count errors of this kind as failures: they are printed without a hint and do not change the exit code.
    pub fn forgive(&mut self, kind: Kind) {
        self.forgiven = Some(kind);
    }

    /// Ends with this exit code if one has failed.
    #[must_use]
    pub fn failing_with(self, code: Option<u8>) -> Each<T> {
        Each { failed: code, ..self }
    }

    /// Waits for all. Meanwhile shows progress: `doing` returns the line for the unfinished tasks and the elapsed time,
    /// such as "stopping web: 3 s".
    pub async fn with_progress(self, doing: impl Fn(&[&TaskId], Duration) -> String) -> Result<u8> {
        let Each { work, watched, forgiven, failed } = self;
        let pending = |elapsed| {
            let left: Vec<&TaskId> = watched.iter().filter(|(_, work)| !work.is_finished()).map(|(id, _)| id).collect();
            doing(&left, elapsed)
        };
        let all = async {
            let mut done = Vec::new();
            for one in work {
                done.push(finished(one).await);
            }
            done
        };
        let mut code = None;
        for outcome in progress::during(pending, all).await {
            match outcome {
                Err(error) if forgiven == Some(error.kind()) => complain(error.message(), None),
                outcome => settle(outcome.map(drop), &mut code),
            }
        }
        Ok(code.map_or(0, |code| failed.unwrap_or(code)))
    }

    /// Waits for all; an error is printed once it comes.
    pub async fn in_any_order(self) -> Result<u8> {
        let mut code = None;
        let mut work: FuturesUnordered<_> = self.work.into_iter().map(finished).collect();
        while let Some(outcome) = work.next().await {
            settle(outcome.map(drop), &mut code);
        }
        Ok(code.unwrap_or(0))
    }

    /// Waits for each task in the order given, and passes its result to `then`.
    pub async fn in_order(self, mut then: impl FnMut(TaskId, T) -> Result<()>) -> Result<u8> {
        let then = |id: Option<TaskId>, value: Option<T>| id.zip(value).map_or(Ok(()), |(id, value)| then(id, value));
        self.each_in_order(then).await
    }

    /// Like [`Each::in_order`], where `then` is called for each task, also for one without a result, after its error.
    pub async fn each_in_order(self, mut then: impl FnMut(Option<TaskId>, Option<T>) -> Result<()>) -> Result<u8> {
        let mut code = None;
        let mut ids = self.watched.into_iter().map(|(id, _)| id);
        for one in self.work {
            let id = one.is_ok().then(|| ids.next()).flatten();
            let value = finished(one).await.unwrap_or_else(|error| {
                settle(Err(error), &mut code);
                None
            });
            settle(then(id, value), &mut code);
        }
        Ok(code.unwrap_or(0))
    }
}

async fn finished<T>(work: Result<JoinHandle<Result<Option<T>>>>) -> Result<Option<T>> {
    match work?.await {
        Ok(outcome) => outcome,
        // Nobody aborts the work, so it panicked.
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

/// Prints an error; the first one decides the exit code.
pub fn settle(outcome: Result<()>, code: &mut Option<u8>) {
    if let Err(error) = outcome {
        complain(error.message(), error.hint_text());
        code.get_or_insert(exit_code(error.kind()));
    }
}
