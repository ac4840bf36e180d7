//! Runs one action on several tasks at a time.
//!
//! A failure does not stop the others: each error is printed on its own, and the
//! first one decides the exit code.

use std::time::Duration;

use bowline_executor::{Kind, Result, StateDir};
use bowline_spec::id::TaskId;
use tokio::task::{AbortHandle, JoinHandle};

use crate::input::named::{self, TaskRef};
use crate::ui::progress;
use crate::{complain, exit_code};

/// What is being done to each of several tasks, in the order given.
pub struct Each<T> {
    work: Vec<Result<JoinHandle<Result<T>>>>,
    /// Of the tasks that were found, who is done.
    watched: Vec<(TaskId, AbortHandle)>,
    /// The kind of error that is told, and fails nothing.
    forgiven: Option<Kind>,
}

/// Begins to do `act` to all of `names`, at the same time.
pub fn each<T, F>(state: &StateDir, names: &[TaskRef], act: impl Fn(TaskId) -> F) -> Each<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let mut watched = Vec::new();
    let mut begin = |id: TaskId| {
        let handle = tokio::spawn(act(id.clone()));
        watched.push((id, handle.abort_handle()));
        handle
    };
    let work = named::resolve(state, names).into_iter().map(|id| id.map(&mut begin)).collect::<Vec<_>>();
    Each { work, watched, forgiven: None }
}

impl<T: Send + 'static> Each<T> {
    /// Takes an error of this kind for what was wanted: it is told without a
    /// hint, and the exit code is not its.
    pub fn forgive(&mut self, kind: Kind) {
        self.forgiven = Some(kind);
    }

    /// Waits for all. Meanwhile a person is told who is not done: `doing` says
    /// what of it after how long, as in "stopping web: 3 s".
    pub async fn with_progress(self, doing: impl Fn(&[&TaskId], Duration) -> String) -> Result<u8> {
        let Each { work, watched, forgiven } = self;
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
        Ok(code.unwrap_or(0))
    }

    /// Waits for each in the order given and hands `then` what came of it.
    pub async fn in_order(self, mut then: impl FnMut(TaskId, T) -> Result<()>) -> Result<u8> {
        let mut code = None;
        let mut ids = self.watched.into_iter().map(|(id, _)| id);
        for one in self.work {
            let id = one.is_ok().then(|| ids.next()).flatten();
            let outcome = finished(one).await;
            let outcome = outcome.and_then(|value| id.map_or(Ok(()), |id| then(id, value)));
            settle(outcome, &mut code);
        }
        Ok(code.unwrap_or(0))
    }
}

async fn finished<T>(work: Result<JoinHandle<Result<T>>>) -> Result<T> {
    match work?.await {
        Ok(outcome) => outcome,
        // Nobody aborts it.
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

/// Tells an error; the first decides the exit code.
pub fn settle(outcome: Result<()>, code: &mut Option<u8>) {
    if let Err(error) = outcome {
        complain(error.message(), error.hint_text());
        code.get_or_insert(exit_code(error.kind()));
    }
}
