//! What is asked of a daemon, through its API: tasks, execs in them, questions
//! about them, and how long each took.
//!
//! No image is needed: a container is a configuration whose root is a folder.
//! Must not: count what is no part of a task's life, as the container's record.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, Instant};

use bowline_model::{Doing, Error, Kind, Result};
use protobuf::{Message, MessageField};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::io::ioctl_fionbio;
use serde_json::{Value, json};

use super::proto::{self, *};
use super::{Daemon, FLOOR, PATIENCE, any, of};
use crate::grpc::Answers;
use crate::memory::{Sleepers, kernel_number};
use crate::rounds::Rounds;
use crate::shim::{Call, together};

const CONTAINERS: &str = "containerd.services.containers.v1.Containers";
const TASKS: &str = "containerd.services.tasks.v1.Tasks";
const SPEC: &str = "types.containerd.io/opencontainers/runtime-spec/1/";

/// A task that sleeps, and its shim.
pub struct Sleeper {
    id: String,
    shim: u32,
}

impl Daemon {
    /// A container of `spec`, whose task is to be created.
    fn container(&mut self, spec: &Value) -> Result<String> {
        self.started += 1;
        let id = format!("{}-{}", self.name, self.started);
        let mut spec = spec.clone();
        spec["linux"]["cgroupsPath"] = json!(format!("/{}/{id}", self.cgroup));
        let runtime =
            proto::Runtime { name: self.kind.0.to_owned(), options: self.kind.1.clone().into(), ..Default::default() };
        let container = Container {
            id: id.clone(),
            runtime: MessageField::some(runtime),
            spec: MessageField::some(any(&format!("{SPEC}Spec"), spec.to_string().into_bytes())),
            ..Default::default()
        };
        let request = CreateContainerRequest { container: MessageField::some(container), ..Default::default() };
        self.left.insert(id.clone());
        self.block(self.grpc.call::<Nothing>(&format!("{CONTAINERS}/Create"), &request))?;
        Ok(id)
    }

    /// Forgets a container whose task is deleted.
    fn forget(&mut self, id: &str) -> Result<()> {
        let request = DeleteContainerRequest { id: id.to_owned(), ..Default::default() };
        self.block(self.grpc.call::<Nothing>(&format!("{CONTAINERS}/Delete"), &request))?;
        self.left.remove(id);
        Ok(())
    }

    /// A task that ends by itself: from its creation until it is deleted.
    pub fn launch(&mut self, spec: &Value) -> Result<Duration> {
        let id = self.container(spec)?;
        let begin = Instant::now();
        let status = self.block(async {
            self.create(&id).await?;
            let status = self.exit([(id.as_str(), id.as_str())], async || self.ask("Start", &of(&id)).await);
            let status = status.await?;
            self.ask("Delete", &of(&id)).await?;
            Ok(status)
        })?;
        let took = begin.elapsed();
        self.forget(&id)?;
        expect(status, 0)?;
        Ok(took)
    }

    /// A task that writes `bytes` of output and ends: from its start until it
    /// has ended and all of the output is read.
    pub fn output(&mut self, spec: &Value, terminal: bool, bytes: u64) -> Result<Duration> {
        let what = || "cannot read a task's output";
        let id = self.container(spec)?;
        let fifo = self.folder.path().join(&id);
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).doing(Kind::Internal, what)?;
        let reader = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&fifo);
        let mut reader = reader.doing(Kind::Internal, what)?;
        ioctl_fionbio(&reader, false).doing(Kind::Internal, what)?;
        let stdout = fifo.to_string_lossy().into_owned();
        // A terminal has no stderr of its own.
        let stderr = if terminal { String::new() } else { stdout.clone() };
        let request = CreateTaskRequest { container_id: id.clone(), stdout, stderr, terminal, ..Default::default() };
        self.block(self.ask("Create", &request))?;
        // The shim has it open from now on.
        let read = std::thread::spawn(move || {
            let (mut buffer, mut read) = (vec![0; 64 * 1024], 0);
            loop {
                match reader.read(&mut buffer)? {
                    0 => break Ok::<_, std::io::Error>((read, Instant::now())),
                    length => read += length as u64,
                }
                if read >= bytes {
                    break Ok((read, Instant::now()));
                }
            }
        });
        let begin = Instant::now();
        let (status, ended) = self.block(async {
            let status = self.exit([(id.as_str(), id.as_str())], async || self.ask("Start", &of(&id)).await).await?;
            let ended = Instant::now();
            // What is not read yet stays in the FIFO, which now ends.
            self.ask("Delete", &of(&id)).await?;
            Ok((status, ended))
        })?;
        let read = read.join().map_err(|_| Error::new(Kind::Internal, what()))?;
        let (read, at) = read.doing(Kind::Internal, what)?;
        self.forget(&id)?;
        expect(status, 0)?;
        if read != bytes {
            return Err(Error::new(Kind::Internal, format!("a task wrote {bytes} bytes, of which {read} arrived")));
        }
        Ok(ended.max(at) - begin)
    }

    /// Tasks that sleep, created and started `at_once` at a time: until all are.
    pub fn start_all(&mut self, count: usize, at_once: usize) -> Result<(Vec<String>, Duration)> {
        let spec = self.sleeper.clone();
        let ids = (0..count).map(|_| self.container(&spec)).collect::<Result<Vec<_>>>()?;
        let begin = Instant::now();
        self.block(async {
            for some in ids.chunks(at_once) {
                let tasks = some.iter().map(async |id| {
                    self.create(id).await?;
                    self.ask("Start", &of(id)).await
                });
                together(tasks.collect()).await.into_iter().collect::<Result<Vec<_>>>()?;
            }
            Ok(())
        })?;
        Ok((ids, begin.elapsed()))
    }

    /// Kills and deletes them, `at_once` at a time: how long it took, of all
    /// groups together, until the exits were told, and from there until all were
    /// deleted.
    pub fn end_all(&mut self, ids: &[String], at_once: usize) -> Result<[Duration; 2]> {
        let mut took = [Duration::ZERO; 2];
        self.block(async {
            for some in ids.chunks(at_once) {
                let begin = Instant::now();
                let names = some.iter().map(|id| (id.as_str(), id.as_str()));
                let status = self.exit(names, async || {
                    let kills = some.iter().map(|id| self.kill(id));
                    together(kills.collect()).await.into_iter().collect::<Result<()>>()
                });
                expect(status.await?, 128 + 9)?;
                took[0] += begin.elapsed();
                let begin = Instant::now();
                let requests: Vec<OfTask> = some.iter().map(|id| of(id)).collect();
                let deletes = requests.iter().map(|request| self.ask("Delete", request));
                together(deletes.collect()).await.into_iter().collect::<Result<()>>()?;
                took[1] += begin.elapsed();
            }
            Ok(())
        })?;
        ids.iter().try_for_each(|id| self.forget(id))?;
        Ok(took)
    }

    /// A command in a task, from its being added to its being deleted.
    pub fn exec_in(&mut self, id: &str) -> Result<Duration> {
        let (request, of_exec) = self.exec_requests(id);
        let begin = Instant::now();
        let status = self.block(async {
            self.ask("Exec", &request).await?;
            let status =
                self.exit([(id, of_exec.exec_id.as_str())], async || self.ask("Start", &of_exec).await).await?;
            self.ask("DeleteProcess", &of_exec).await?;
            Ok(status)
        })?;
        let took = begin.elapsed();
        expect(status, 0)?;
        Ok(took)
    }

    /// As many commands at once as tasks are named: until half of them have ended, and all.
    pub fn execs_at_once(&mut self, ids: &[&str]) -> Result<[Duration; 2]> {
        let all: Vec<_> = ids.iter().map(|id| self.exec_requests(id)).collect();
        let begin = Instant::now();
        let ended = self.block(async {
            let starts = all.iter().map(async |(request, of_exec)| {
                self.ask("Exec", request).await?;
                self.ask("Start", of_exec).await
            });
            // Exits are heard while others are still to be started.
            let started = async { together(starts.collect()).await.into_iter().collect::<Result<()>>() };
            // What did not start never ends.
            let ((), ended) = tokio::try_join!(started, self.ends(all.len(), begin))?;
            let deletes = all.iter().map(|(_, of_exec)| self.ask("DeleteProcess", of_exec));
            together(deletes.collect()).await.into_iter().collect::<Result<()>>()?;
            Ok(ended)
        })?;
        Ok([ended[ended.len() / 2], ended[ended.len() - 1]])
    }

    /// When the next processes have ended, from `begin` on; all by themselves.
    async fn ends(&self, count: usize, begin: Instant) -> Result<Vec<Duration>> {
        let mut ended = Vec::new();
        let mut exits = self.exits.lock().await;
        while ended.len() < count {
            let exit = next_exit(&mut exits).await?;
            ended.push(begin.elapsed());
            expect(exit.exit_status, 0)?;
        }
        Ok(ended)
    }

    /// Runs commands in these tasks, one in each every second, for so long: how many there were.
    pub fn probe_all(&mut self, ids: &[String], time: Duration, at_once: usize, rounds: &Rounds) -> Result<usize> {
        let begin = Instant::now();
        let between =
            Duration::from_secs(1) * u32::try_from(at_once).unwrap_or(1) / u32::try_from(ids.len()).unwrap_or(1);
        let (mut due, mut done) = (Duration::ZERO, 0);
        loop {
            for some in ids.chunks(at_once) {
                rounds.go_on()?;
                // Who is late has no pause.
                std::thread::sleep(due.saturating_sub(begin.elapsed()));
                if begin.elapsed() >= time {
                    return Ok(done);
                }
                self.execs_at_once(&some.iter().map(String::as_str).collect::<Vec<_>>())?;
                done += some.len();
                due += between;
            }
        }
    }

    /// A task that sleeps, created and not started.
    pub fn created(&mut self) -> Result<Sleeper> {
        let spec = self.sleeper.clone();
        let id = self.container(&spec)?;
        let answer: CreateTaskResponse = self.block(self.grpc.call(&format!("{TASKS}/Create"), &of(&id)))?;
        // The floor's shim has no process, so it tells its own pid.
        let shim = match self.kind.0 {
            FLOOR => answer.pid,
            _ => kernel_number(&format!("/proc/{}/status", answer.pid), "PPid:")? as u32,
        };
        Ok(Sleeper { id, shim })
    }

    /// The rest of its life, with an exec in it. `around` is called before and
    /// after each call.
    pub fn by_calls(&mut self, one: Sleeper, mut around: impl FnMut(&'static str, bool) -> Result<()>) -> Result<()> {
        let id = one.id.as_str();
        let (request, of_exec) = self.exec_requests(id);
        let mut call = |name: &'static str, act: &mut dyn FnMut() -> Result<()>| {
            around(name, true)?;
            act()?;
            around(name, false)
        };
        call("start", &mut || self.block(self.ask("Start", &of(id))))?;
        call("state", &mut || self.call(id, Call::State).map(drop))?;
        call("processes", &mut || self.call(id, Call::Processes).map(drop))?;
        call("statistics", &mut || self.call(id, Call::Stats).map(drop))?;
        call("exec is added", &mut || self.block(self.ask("Exec", &request)))?;
        let exec = of_exec.exec_id.as_str();
        let run = async || self.exit([(id, exec)], async || self.ask("Start", &of_exec).await).await.map(drop);
        call("exec is started, until its exit event", &mut || self.block(run()))?;
        call("exec is deleted", &mut || self.block(self.ask("DeleteProcess", &of_exec)))?;
        let kill = async || self.exit([(id, id)], async || self.kill(id).await).await.map(drop);
        call("kill, until the exit event", &mut || self.block(kill()))?;
        call("delete", &mut || self.block(self.ask("Delete", &of(id))))?;
        self.forget(&one.id)
    }

    /// What adds `/bin/true` to a task, and what names it from then on.
    fn exec_requests(&mut self, id: &str) -> (ExecProcessRequest, OfExec) {
        self.started += 1;
        let exec = format!("e{}", self.started);
        let mut process = self.sleeper["process"].clone();
        process["args"] = json!(["/bin/true"]);
        let request = ExecProcessRequest {
            container_id: id.to_owned(),
            exec_id: exec.clone(),
            spec: MessageField::some(any(&format!("{SPEC}Process"), process.to_string().into_bytes())),
            ..Default::default()
        };
        (request, OfExec { container_id: id.to_owned(), exec_id: exec, ..Default::default() })
    }

    /// A question about a task.
    pub fn call(&self, id: &str, call: Call) -> Result<Duration> {
        let metrics = MetricsRequest { filters: vec![format!("id=={id}")], ..Default::default() };
        let begin = Instant::now();
        self.block(async {
            match call {
                Call::Nothing => {
                    self.grpc.call("containerd.services.version.v1.Version/Version", &Nothing::default()).await
                }
                Call::State => self.ask("Get", &of(id)).await.map(|()| Nothing::default()),
                Call::Processes => self.ask("ListPids", &of(id)).await.map(|()| Nothing::default()),
                Call::Stats => self.ask("Metrics", &metrics).await.map(|()| Nothing::default()),
            }
        })?;
        Ok(begin.elapsed())
    }

    async fn create(&self, id: &str) -> Result<()> {
        self.ask("Create", &of(id)).await
    }

    pub(super) async fn kill(&self, id: &str) -> Result<()> {
        self.ask("Kill", &KillRequest { container_id: id.to_owned(), signal: 9, ..Default::default() }).await
    }

    /// Asks the service of tasks, whatever the answer.
    pub(super) async fn ask(&self, method: &str, request: &impl Message) -> Result<()> {
        self.grpc.call::<Nothing>(&format!("{TASKS}/{method}"), request).await.map(drop)
    }

    /// Does something and waits for the exits of these, each a container and
    /// what exits in it; the largest status.
    pub(super) async fn exit<'a>(
        &self,
        whose: impl IntoIterator<Item = (&'a str, &'a str)>,
        act: impl AsyncFnOnce() -> Result<()>,
    ) -> Result<u32> {
        act().await?;
        let mut awaited: BTreeSet<(&str, &str)> = whose.into_iter().collect();
        let mut status = 0;
        let mut exits = self.exits.lock().await;
        while !awaited.is_empty() {
            let exit = next_exit(&mut exits).await?;
            let before = awaited.len();
            awaited.retain(|whose| *whose != (exit.container_id.as_str(), exit.id.as_str()));
            if awaited.len() < before {
                status = status.max(exit.exit_status);
            }
        }
        Ok(status)
    }

    pub(super) fn block<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        // An interrupt is seen between two measurements: none may last for ever.
        let late = || "cannot wait any longer for containerd's answer";
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.doing(Kind::Timeout, late)? })
    }
}

impl Sleepers for Daemon {
    type One = Sleeper;

    fn hold(&mut self) -> Result<Sleeper> {
        let one = self.created()?;
        self.block(self.ask("Start", &of(&one.id)))?;
        Ok(one)
    }

    fn exec(&mut self, one: &Sleeper) -> Result<()> {
        self.exec_in(&one.id).map(drop)
    }

    fn pid(one: &Sleeper) -> u32 {
        one.shim
    }

    fn end(&mut self, one: Sleeper) -> Result<()> {
        self.end_all(&[one.id], 1).map(drop)
    }
}

impl Sleeper {
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The pid of the task's shim.
    pub fn shim(&self) -> u32 {
        self.shim
    }
}

async fn next_exit(exits: &mut Answers) -> Result<TaskExit> {
    let next = exits.next::<Envelope>().await?;
    let envelope = next.ok_or_else(|| Error::new(Kind::Internal, "containerd tells no more events"))?;
    TaskExit::parse_from_bytes(&envelope.event.value)
        .doing(Kind::Internal, || "cannot read an exit event of containerd's")
}

fn expect(status: u32, expected: u32) -> Result<()> {
    if status == expected {
        return Ok(());
    }
    Err(Error::new(Kind::Internal, format!("a process of a task exited with {status}, not {expected}")))
}
