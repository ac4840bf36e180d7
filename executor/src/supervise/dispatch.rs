//! Requests, each given to who answers it.

use std::rc::Rc;

use bowline_spec::id::TaskId;
use tokio::sync::{Mutex, oneshot};

use super::{Leave, Supervisor};
use crate::error::{Error, Kind, Result};
use crate::lifecycle::shim;
use crate::report::StoppedBy;
use crate::request::Request;
use crate::waits;

impl Supervisor {
    /// Has a launch under way, which the shim does not leave before it is done with.
    ///
    /// # Errors
    /// `AlreadyExists` while one of this id is.
    fn begin_launch(&self, id: &TaskId) -> Result<()> {
        if !self.facts.change(|facts| facts.launching.insert(id.clone())) {
            return Err(Error::new(Kind::AlreadyExists, format!("task {id} is being launched already")));
        }
        self.begin_work();
        Ok(())
    }

    /// Answers a request, on its own local task if it has to wait.
    pub(super) fn dispatch(self: Rc<Self>, request: Request) {
        match request {
            Request::CreateSandbox(reply) => {
                self.begin_work();
                later(reply, async move {
                    let made = self.create_sandbox().await;
                    if made.is_err() {
                        self.happen(shim::Event::Last);
                    }
                    self.done();
                    made
                });
            }
            Request::RemoveSandbox(force, reply) => {
                self.begin_work();
                later(reply, async move {
                    let removed = self.remove_sandbox(force).await;
                    self.done();
                    removed
                });
            }
            Request::UpdateSandbox(update, reply) => later(reply, async move { self.update_sandbox(&update).await }),
            Request::ChargeHelpers(pids, reply) => later(reply, async move { self.charge_helpers(pids).await }),
            Request::SandboxState(reply) => now(reply, self.sandbox_state()),
            Request::SandboxStats(reply) => now(reply, self.sandbox_stats()),
            Request::Launch(launch, reply) => {
                let id = launch.id.clone();
                if let Err(error) = self.begin_launch(&id) {
                    return now(reply, Err(error));
                }
                waits::work(async move {
                    let outcome = self.launch(*launch).await;
                    self.facts.change(|facts| facts.launching.remove(&id));
                    if self.config.leave == Leave::WithLastTask && !self.has_sandbox() {
                        self.happen(shim::Event::Last);
                    }
                    if outcome.is_ok() {
                        self.settle(id);
                    }
                    // Nobody waits for the answer any more: the task runs on.
                    let _ = reply.send(outcome);
                    self.done();
                });
            }
            Request::Create(launch, reply) => {
                let id = launch.id.clone();
                if let Err(error) = self.begin_launch(&id) {
                    return now(reply, Err(error));
                }
                later(reply, async move {
                    let created = self.create(*launch).await;
                    self.facts.change(|facts| facts.launching.remove(&id));
                    self.done();
                    created
                });
            }
            Request::Start(id, reply) => later(reply, async move { self.start(&id).await }),
            Request::Remove(id, reply) => later(reply, async move { self.remove(&id).await }),
            Request::Leave => self.stop_all(),
            Request::ManagerGone => self.manager_gone(),
            Request::StartPause(wanted, reply) => later(reply, async move { self.start_pause(&wanted, None).await }),
            Request::PauseEnded(reply) => {
                while_wanted(reply, move || {
                    let supervisor = self.clone();
                    async move { supervisor.pauses.ended().await }
                });
            }
            Request::EndPause(reply) => later(reply, async move { self.pauses.end().await }),
            Request::CgroupStats(path, reply) => now(reply, self.cgroup_stats(&path)),
            Request::Wait(id, reply) => {
                while_wanted(reply, move || {
                    let (supervisor, id) = (self.clone(), id.clone());
                    async move {
                        // One that comes to nothing leaves no report.
                        supervisor.launched(&id).await;
                        supervisor.task(&id)?.exit_report().await
                    }
                });
            }
            Request::Exec(id, exec, reply) => {
                waits::work(async move {
                    let begun = async {
                        let task = self.task(&id)?;
                        let number = self.exec(&task, &exec).await?;
                        Ok((task, number))
                    };
                    match begun.await {
                        Ok((task, number)) => seen_through(reply, move || {
                            let task = task.clone();
                            async move { task.exec_outcome(number).await }
                        }),
                        Err(error) => now(reply, Err(error)),
                    }
                });
            }
            Request::StartExec(id, exec, reply) => later(reply, async move { self.start_exec(&id, &exec).await }),
            Request::SignalExec(id, name, signal, reply) => {
                now(reply, self.task(&id).and_then(|task| task.signal_exec(&self, &name, signal)))
            }
            Request::Checkpoint(id, wanted, reply) => later(reply, async move { self.checkpoint(&id, &wanted).await }),
            Request::Limit(id, resources, reply) => later(reply, async move { self.limit(&id, &resources).await }),
            Request::Update(id, update, reply) => later(reply, async move { self.update(&id, &update).await }),
            Request::Pause(id, reply) => later(reply, async move { self.pause(&id).await }),
            Request::Signal(id, signal, all, reply) => now(reply, self.signal(&id, signal, all)),
            Request::Shutdown(id, signal, grace, reply) => later(reply, async move {
                if self.task(&id).is_err() {
                    self.launched(&id).await;
                }
                self.shutdown(&id, signal, grace, StoppedBy::Request)
            }),
            Request::Attach(id, attachment, reply) => {
                now(reply, self.task(&id).and_then(|task| task.attach(&attachment)))
            }
            Request::Resize(id, exec, size, reply) => {
                now(reply, self.task(&id).and_then(|task| task.resize(exec.as_deref(), size)))
            }
            Request::Resume(id, reply) => now(reply, self.resume(&id)),
            Request::Processes(id, reply) => now(reply, self.processes(&id)),
            Request::Stats(id, reply) => now(reply, self.stats(&id)),
            Request::Figures(reply) => now(reply, Ok(self.figures())),
            Request::Facts(reply) => now(reply, Ok(Box::new(self.facts()))),
            Request::State(id, reply) => now(reply, self.task(&id).map(|task| task.state())),
            Request::States(reply) => {
                let tasks = self.tasks.borrow();
                now(reply, Ok(tasks.values().map(|task| task.state()).collect()));
            }
        }
    }
}

fn now<T>(reply: oneshot::Sender<Result<T>>, answer: Result<T>) {
    // Perhaps nobody waits for it any more.
    let _ = reply.send(answer);
}

/// Answers when there is an answer. Whoever asked may have gone by then: what was begun goes on.
fn later<T: 'static>(reply: oneshot::Sender<Result<T>>, answer: impl Future<Output = Result<T>> + 'static) {
    waits::work(async move { now(reply, answer.await) });
}

/// Answers with what `wait` gives, whether anybody still wants it or not.
fn seen_through<T: 'static, F>(reply: oneshot::Sender<Result<T>>, wait: impl Fn() -> F + 'static)
where
    F: Future<Output = Result<T>> + 'static,
{
    answer(reply, wait, false);
}

/// Answers with what `wait` gives, and gives up waiting when nobody wants the answer any more: clients come and go as
/// often as they like while a task runs, and each wait takes memory.
fn while_wanted<T: 'static, F>(reply: oneshot::Sender<Result<T>>, wait: impl Fn() -> F + 'static)
where
    F: Future<Output = Result<T>> + 'static,
{
    answer(reply, wait, true);
}

fn answer<T: 'static, F>(reply: oneshot::Sender<Result<T>>, wait: impl Fn() -> F + 'static, gives_up: bool)
where
    F: Future<Output = Result<T>> + 'static,
{
    let reply = Rc::new(Mutex::new(Some(reply)));
    waits::begin(move || {
        let (reply, wait) = (reply.clone(), wait());
        async move {
            let mut reply = reply.lock().await;
            let unwanted = async {
                if let Some(reply) = reply.as_mut() {
                    reply.closed().await;
                }
            };
            let answer = tokio::select! {
                biased;
                answer = wait => answer,
                () = unwanted, if gives_up => return,
            };
            if let Some(reply) = reply.take() {
                now(reply, answer);
            }
        }
    });
}
