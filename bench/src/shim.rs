//! bowline as a manager sees it: through the shim's socket, the shim up.
//!
//! A shim serves one task, so some are started ahead, outside of what is
//! measured, and measured once they have settled.

mod sandbox;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use bowline_client::spawn::{self, Begin, spawn_from};
use bowline_client::{Presence, Shim};
use bowline_executor::systemd::Systemd;
use bowline_executor::{ShimCgroup, undo};
use bowline_model::folder::{Folder, Lock, StateDir};
use bowline_model::report::ExitReport;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_protocol::wire::proto::bowline::{ExecRequest, LaunchRequest};
use bowline_spec::id::TaskId;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::memory::{SETTLE, Sleepers};

/// Where shims are started, and those that wait for a task.
pub struct Shims {
    runtime: Runtime,
    state: StateDir,
    binary: PathBuf,
    prefix: String,
    started: u32,
    ready: VecDeque<Up>,
}

/// A shim of ours; dropped, it is gone with everything of its task.
pub struct Up {
    id: TaskId,
    folder: Folder,
    child: Child,
    gone: OwnedFd,
    shim: Shim,
    systemd: Systemd,
}

impl Shims {
    /// `binary` is the shim's, `state` its state folder; ids begin with `prefix`.
    pub fn new(binary: PathBuf, state: PathBuf, prefix: &str) -> Result<Shims> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.doing(Kind::Internal, || "cannot make an event loop")?;
        let prefix = prefix.to_owned();
        Ok(Shims { runtime, state: StateDir::new(state), binary, prefix, started: 0, ready: VecDeque::new() })
    }

    /// Sees to it that `count` shims wait for a task.
    pub fn prepare(&mut self, count: usize) -> Result<()> {
        while self.ready.len() < count {
            let up = self.start()?;
            self.ready.push_back(up);
        }
        Ok(())
    }

    /// How many wait for a task.
    pub fn waiting(&self) -> usize {
        self.ready.len()
    }

    /// Ends those that wait for a task.
    pub fn dismiss(&mut self) {
        self.ready.clear();
    }

    fn start(&mut self) -> Result<Up> {
        let id = self.next_id()?;
        let (folder, lock) = self.state.create(&id)?;
        self.spawn(&id, folder, lock)
    }

    fn next_id(&mut self) -> Result<TaskId> {
        self.started += 1;
        Ok(format!("{}-{}", self.prefix, self.started).parse()?)
    }

    fn spawn(&self, id: &TaskId, folder: Folder, lock: Lock) -> Result<Up> {
        let child = spawn_from(&self.binary, &folder, lock, &ShimCgroup::default(), Begin::Empty(0))?;
        let what = || format!("cannot watch the shim of {id}");
        let gone = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).doing(Kind::Internal, what)?;
        let found = self.runtime.block_on(bowline_client::find(&folder, id))?;
        let Presence::Live(shim) = found else {
            return Err(Error::new(Kind::Internal, format!("the shim of {id} died as it started")));
        };
        // Answered by its loop, which runs once it has set itself up.
        self.runtime.block_on(shim.state())?;
        let systemd = Systemd::by(spawn::bowline(&self.binary));
        Ok(Up { id: id.clone(), folder, child, gone, shim, systemd })
    }

    fn take(&mut self) -> Result<Up> {
        self.prepare(1)?;
        self.ready.pop_front().ok_or_else(|| Error::new(Kind::Internal, "there is no shim"))
    }

    /// A task from request to end: until its exit is reported, until its shim
    /// has left, which it does when everything is removed.
    pub fn launch(&mut self, description: &str) -> Result<[Duration; 2]> {
        let up = self.take()?;
        self.launch_in(&up, description)
    }

    fn launch_in(&self, up: &Up, description: &str) -> Result<[Duration; 2]> {
        let request = request(description);
        let begin = Instant::now();
        let report = self.runtime.block_on(async {
            up.shim.launch(request).await?;
            waited(&up.shim).await
        })?;
        let exited = begin.elapsed();
        up.wait_until_gone();
        let removed = begin.elapsed();
        expect_success(report.exit_code)?;
        Ok([exited, removed])
    }

    /// Has so many clients wait for a task, each over a connection of its own.
    pub fn wait_often(&self, up: &Up, count: usize) -> Result<Vec<JoinHandle<Result<ExitReport>>>> {
        self.runtime.block_on(async {
            let mut waiting = Vec::new();
            for _ in 0..count {
                let Presence::Live(shim) = bowline_client::find(&up.folder, &up.id).await? else {
                    return Err(Error::new(Kind::Internal, format!("the shim of {} has died", up.id)));
                };
                waiting.push(tokio::spawn(async move { waited(&shim).await }));
            }
            // All have asked by then.
            tokio::time::sleep(SETTLE).await;
            Ok(waiting)
        })
    }

    /// Kills the task: until all that wait for it know.
    pub fn end_of(&self, up: &Up, waiting: Vec<JoinHandle<Result<ExitReport>>>) -> Result<Duration> {
        let begin = Instant::now();
        self.runtime.block_on(async {
            up.shim.clone().stop(Some(9), Some(0)).await?;
            for one in waiting {
                one.await.doing(Kind::Internal, || "cannot wait for a task")??;
            }
            Ok::<_, Error>(())
        })?;
        Ok(begin.elapsed())
    }

    /// Several tasks at once, each from request to its shim's leaving, until
    /// the last has left.
    pub fn launch_together(&mut self, description: &str, count: usize) -> Result<Duration> {
        self.prepare(count)?;
        let all: Vec<Up> = self.ready.drain(..count).collect();
        let begin = Instant::now();
        let reports = self.runtime.block_on(async {
            let tasks = all.iter().map(|up| async {
                up.shim.launch(request(description)).await?;
                waited(&up.shim).await
            });
            together(tasks.collect()).await
        });
        all.iter().for_each(Up::wait_until_gone);
        let removed = begin.elapsed();
        reports.into_iter().try_for_each(|report: Result<ExitReport>| expect_success(report?.exit_code))?;
        Ok(removed)
    }

    /// The folder in which they keep their records.
    pub fn state(&self) -> &Path {
        self.state.path()
    }

    /// The pid of the shim that gets the next task.
    pub fn next_pid(&mut self) -> Result<u32> {
        self.prepare(1)?;
        self.ready.front().map(|up| up.child.id()).ok_or_else(|| Error::new(Kind::Internal, "there is no shim"))
    }

    /// Kills a task that stays: until its exit is reported, until its shim has left.
    pub fn stop(&self, up: &Up) -> Result<[Duration; 2]> {
        let begin = Instant::now();
        self.runtime.block_on(async {
            up.shim.clone().stop(Some(9), Some(0)).await?;
            waited(&up.shim).await
        })?;
        let exited = begin.elapsed();
        up.wait_until_gone();
        Ok([exited, begin.elapsed()])
    }

    pub fn hold(&mut self, description: &str) -> Result<Up> {
        let up = self.take()?;
        self.runtime.block_on(up.shim.launch(request(description)))?;
        Ok(up)
    }

    /// A command in a task, its output captured.
    pub fn exec(&self, up: &Up) -> Result<Duration> {
        let request = ExecRequest { command: vec!["/bin/true".to_owned()], ..ExecRequest::default() };
        let begin = Instant::now();
        let response = self.runtime.block_on(up.shim.exec(request))?;
        let took = begin.elapsed();
        expect_success(response.exit_code)?;
        Ok(took)
    }

    /// A question about a task.
    pub fn call(&self, up: &Up, call: Call) -> Result<Duration> {
        let begin = Instant::now();
        self.runtime.block_on(async {
            match call {
                Call::Nothing => up.shim.version().await.map(drop),
                Call::State => up.shim.state().await.map(drop),
                Call::Processes => up.shim.processes().await.map(drop),
                Call::Stats => up.shim.stats().await.map(drop),
            }
        })?;
        Ok(begin.elapsed())
    }
}

/// bowline's own shims, with the task that they hold.
pub struct Alone<'a>(pub &'a mut Shims, pub &'a str);

impl Sleepers for Alone<'_> {
    type One = Up;

    fn hold(&mut self) -> Result<Up> {
        self.0.hold(self.1)
    }

    fn exec(&mut self, up: &Up) -> Result<()> {
        self.0.exec(up).map(drop)
    }

    fn pid(up: &Up) -> u32 {
        up.pid()
    }

    fn end(&mut self, up: Up) -> Result<()> {
        drop(up);
        Ok(())
    }
}

/// What is asked about a task.
#[derive(Debug, Clone, Copy)]
pub enum Call {
    /// A call that does nothing: it asks for a version.
    Nothing,
    /// Where it is in its life.
    State,
    /// The ids of its processes.
    Processes,
    Stats,
}

impl Call {
    /// What the row is called.
    pub fn name(self) -> &'static str {
        match self {
            Call::Nothing => "call that does nothing",
            Call::State => "state",
            Call::Processes => "processes",
            Call::Stats => "stats",
        }
    }
}

impl Up {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_gone(&self) {
        // A pidfd is readable once its process has ended.
        while let Err(rustix::io::Errno::INTR) = poll(&mut [PollFd::new(&self.gone, PollFlags::IN)], None) {}
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // One that has left already takes no notice. Else nobody is to be
        // asked: what the record names is undone from outside.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = undo(&self.folder, &self.systemd);
        let _ = self.folder.lock().and_then(|lock| self.folder.remove(lock));
    }
}

fn request(description: &str) -> LaunchRequest {
    LaunchRequest { task: description.to_owned(), ..LaunchRequest::default() }
}

/// The report of a task, whose shim must outlive it.
async fn waited(shim: &Shim) -> Result<ExitReport> {
    shim.wait().await?.ok_or_else(|| Error::new(Kind::Internal, "a shim died before its task"))
}

fn expect_success(code: Option<i32>) -> Result<()> {
    match code {
        Some(0) => Ok(()),
        code => Err(Error::new(Kind::Internal, format!("a task exited with {code:?}"))),
    }
}

/// Runs all of `futures`, each as it can; answers in their order.
pub async fn together<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let std::task::Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *output = Some(ready);
            }
        }
        if outputs.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
