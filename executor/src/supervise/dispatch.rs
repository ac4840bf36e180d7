//! Requests, each given to who answers it.

use std::rc::Rc;

use tokio::sync::oneshot;

use super::{Leave, Supervisor};
use crate::error::Result;
use crate::lifecycle::shim;
use crate::report::StoppedBy;
use crate::request::{Request, TaskState};

impl Supervisor {
    /// Answers a request, on its own local task if it has to wait.
    pub(super) fn dispatch(self: Rc<Self>, request: Request) {
        match request {
            Request::CreateSandbox(reply) => {
                self.begin_work();
                tokio::task::spawn_local(async move {
                    let made = self.create_sandbox().await;
                    if made.is_err() {
                        self.happen(shim::Event::Last);
                    }
                    let _ = reply.send(made);
                    self.done();
                });
            }
            Request::RemoveSandbox(force, reply) => {
                self.begin_work();
                tokio::task::spawn_local(async move {
                    let _ = reply.send(self.remove_sandbox(force).await);
                    self.done();
                });
            }
            Request::UpdateSandbox(update, reply) => {
                tokio::task::spawn_local(async move {
                    let _ = reply.send(self.update_sandbox(&update).await);
                });
            }
            Request::ChargeHelpers(pids, reply) => {
                tokio::task::spawn_local(async move {
                    let _ = reply.send(self.charge_helpers(pids).await);
                });
            }
            Request::SandboxState(reply) => {
                let _ = reply.send(self.sandbox_state());
            }
            Request::SandboxStats(reply) => {
                let _ = reply.send(self.sandbox_stats());
            }
            Request::Launch(launch, reply) => {
                self.begin_work();
                let id = launch.id.clone();
                self.facts.change(|facts| facts.launching.insert(id.clone()));
                tokio::task::spawn_local(async move {
                    let outcome = self.launch(*launch).await;
                    self.facts.change(|facts| facts.launching.remove(&id));
                    if self.config.leave == Leave::WithLastTask && !self.has_sandbox() {
                        self.happen(shim::Event::Last);
                    }
                    let launched = outcome.is_ok();
                    // Nobody waits for the answer any more: the task runs on.
                    let _ = reply.send(outcome);
                    if launched {
                        tokio::task::spawn_local(self.clone().settle(id));
                    }
                    self.done();
                });
            }
            Request::Create(launch, reply) => {
                self.begin_work();
                tokio::task::spawn_local(async move {
                    let _ = reply.send(self.create(*launch).await);
                    self.done();
                });
            }
            Request::Start(id, reply) => {
                tokio::task::spawn_local(async move {
                    let _ = reply.send(self.start(&id).await);
                });
            }
            Request::Remove(id, reply) => {
                tokio::task::spawn_local(async move {
                    let _ = reply.send(self.remove(&id).await);
                });
            }
            Request::Leave => self.stop_all(),
            Request::ManagerGone => self.manager_gone(),
            Request::StartPause(wanted, reply) => {
                tokio::task::spawn_local(async move {
                    let _ = reply.send(self.start_pause(&wanted, None).await);
                });
            }
            Request::PauseEnded(reply) => {
                tokio::task::spawn_local(async move {
                    while_wanted(reply, self.pauses.ended()).await;
                });
            }
            Request::EndPause(reply) => {
                tokio::task::spawn_local(async move {
                    let _ = reply.send(self.pauses.end().await);
                });
            }
            Request::CgroupStats(path, reply) => {
                let _ = reply.send(self.cgroup_stats(&path));
            }
            Request::Wait(id, reply) => {
                tokio::task::spawn_local(async move {
                    let report = async {
                        // One that comes to nothing leaves no report.
                        self.launched(&id).await;
                        self.task(&id)?.exit_report().await
                    };
                    while_wanted(reply, report).await;
                });
            }
            Request::Exec(id, exec, reply) => {
                tokio::task::spawn_local(async move {
                    let outcome = self.exec(&id, *exec).await;
                    let _ = reply.send(outcome);
                });
            }
            Request::StartExec(id, exec, reply) => {
                tokio::task::spawn_local(async move { self.start_exec(&id, *exec, reply).await });
            }
            Request::SignalExec(id, name, signal, reply) => {
                let _ = reply.send(self.task(&id).and_then(|task| task.signal_exec(&self, &name, signal)));
            }
            Request::Checkpoint(id, wanted, reply) => {
                tokio::task::spawn_local(async move {
                    let _ = reply.send(self.checkpoint(&id, &wanted).await);
                });
            }
            Request::Limit(id, resources, reply) => {
                tokio::task::spawn_local(async move {
                    let _ = reply.send(self.limit(&id, &resources).await);
                });
            }
            Request::Update(id, update, reply) => {
                tokio::task::spawn_local(async move {
                    let outcome = self.update(&id, &update).await;
                    let _ = reply.send(outcome);
                });
            }
            Request::Pause(id, reply) => {
                tokio::task::spawn_local(async move {
                    let _ = reply.send(self.pause(&id).await);
                });
            }
            Request::Signal(id, signal, all, reply) => {
                let _ = reply.send(self.signal(&id, signal, all));
            }
            Request::Shutdown(id, signal, grace, reply) => {
                tokio::task::spawn_local(async move {
                    if self.task(&id).is_err() {
                        self.launched(&id).await;
                    }
                    let _ = reply.send(self.shutdown(&id, signal, grace, StoppedBy::Request));
                });
            }
            Request::Attach(id, attachment, reply) => {
                let _ = reply.send(self.task(&id).and_then(|task| task.attach(&attachment)));
            }
            Request::Resize(id, exec, size, reply) => {
                let _ = reply.send(self.task(&id).and_then(|task| task.resize(exec.as_deref(), size)));
            }
            Request::Resume(id, reply) => {
                let _ = reply.send(self.resume(&id));
            }
            Request::Processes(id, reply) => {
                let _ = reply.send(self.processes(&id));
            }
            Request::Stats(id, reply) => {
                let _ = reply.send(self.stats(&id));
            }
            Request::Figures(reply) => {
                let _ = reply.send(Ok(self.figures()));
            }
            Request::Facts(reply) => {
                let _ = reply.send(Ok(Box::new(self.facts())));
            }
            Request::State(id, reply) => {
                let _ = reply.send(self.task(&id).map(|task| task.state()));
            }
            Request::States(reply) => {
                let tasks = self.tasks.borrow();
                let states: Vec<TaskState> = tasks.values().map(|task| task.state()).collect();
                let _ = reply.send(Ok(states));
            }
        }
    }
}

/// Answers with what `wait` gives, and gives up waiting when nobody wants the answer any more: clients come and go as
/// often as they like while a task runs, and each wait takes memory.
async fn while_wanted<T>(mut reply: oneshot::Sender<Result<T>>, wait: impl Future<Output = Result<T>>) {
    let answer = tokio::select! {
        biased;
        answer = wait => answer,
        () = reply.closed() => return,
    };
    let _ = reply.send(answer);
}
