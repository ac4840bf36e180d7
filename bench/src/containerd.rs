//! A containerd of the bench's own, and what is asked of it: tasks, through its
//! API, with one runtime.
//!
//! Each contender has one, so that what one leaves in it slows nobody else. No
//! image is needed: a container is a configuration whose root is a folder. Must
//! not: count what is no part of a task's life, as the container's record.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use bowline_executor::{Doing, Error, Kind, Result};
use protobuf::{Message, MessageField};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use crate::contenders::in_memory;
use crate::grpc::{Answers, Grpc};
use crate::memory::{Sleepers, kernel_number};
use crate::runner;
use crate::shim::{Call, together};

/// See `proto/containerd.proto`.
#[allow(missing_docs, unsafe_code, nonstandard_style, unused, clippy::all, clippy::unwrap_used)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/containerd.rs"));
}
use proto::*;

const CONTAINERS: &str = "containerd.services.containers.v1.Containers";
const TASKS: &str = "containerd.services.tasks.v1.Tasks";
const SPEC: &str = "types.containerd.io/opencontainers/runtime-spec/1/";
/// How long it may take to be up, and to do what is asked at a time.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take to stop.
const STOPPING: Timespec = Timespec { tv_sec: 3, tv_nsec: 0 };
/// What would look at the machine, or bring the Kubernetes services.
const WITHOUT: [&str; 8] = [
    "io.containerd.grpc.v1.cri",
    "io.containerd.internal.v1.opt",
    "io.containerd.internal.v1.tracing",
    "io.containerd.nri.v1.nri",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
];

/// With what a daemon runs its tasks.
pub enum Runtimes<'a> {
    /// bowline's shim, in this folder.
    Bowline(&'a Path),
    /// containerd's own shim and this runtime, hidden from cgroup v2 or not.
    Runc(&'a Path, bool),
}

/// A daemon that runs; dropped, it ends, after the tasks that are left.
pub struct Daemon {
    runtime: Runtime,
    grpc: Grpc,
    exits: Mutex<Answers>,
    kind: (&'static str, Option<Any>),
    name: String,
    cgroup: String,
    child: Child,
    started: u32,
    /// Containers that are not removed yet.
    left: BTreeSet<String>,
    sleeper: Value,
    _folder: TempDir,
}

/// A task that sleeps, and its shim.
pub struct Sleeper {
    id: String,
    shim: u32,
}

impl Daemon {
    /// Starts one; `None` where containerd is not installed. All that is made
    /// has `name` in its own, with a `suffix` of this one's; `sleeper` is the
    /// configuration of tasks that stay.
    pub fn start(name: &str, suffix: &str, runtimes: &Runtimes<'_>, sleeper: Value) -> Result<Option<Daemon>> {
        let what = || "cannot start containerd";
        if Command::new("containerd").arg("--version").output().is_err() {
            return Ok(None);
        }
        let (cgroup, name) = (name.to_owned(), format!("{name}-{suffix}"));
        let folder = tempfile::Builder::new().prefix(&format!("{name}-")).tempdir_in(in_memory());
        let folder = folder.doing(Kind::Internal, what)?;
        let path = |file: &str| folder.path().join(file);
        let kind = kind(runtimes, &path("runc"))?;
        let mut search = std::env::var("PATH").unwrap_or_default();
        if let Runtimes::Bowline(bin) = runtimes {
            let shim = bin.join("containerd-shim-bowline-v1");
            if !shim.is_file() {
                return Err(Error::new(Kind::Usage, format!("cannot find {}", shim.display()))
                    .hint("`make build` makes it; --bin says where it is"));
            }
            fs::create_dir(path("bin")).doing(Kind::Internal, what)?;
            symlink(shim, path("bin/containerd-shim-bowline-v1")).doing(Kind::Internal, what)?;
            search = format!("{}:{search}", path("bin").display());
        }
        fs::write(path("config.toml"), config(folder.path())).doing(Kind::Internal, what)?;
        let ready = UnixDatagram::bind(path("ready")).doing(Kind::Internal, what)?;
        ready.set_read_timeout(Some(PATIENCE)).doing(Kind::Internal, what)?;
        let log = File::create(path("log")).doing(Kind::Internal, what)?;
        let mut command = command(&path("config.toml"), runtimes);
        command.env("PATH", search).env("NOTIFY_SOCKET", path("ready"));
        command.stdout(log.try_clone().doing(Kind::Internal, what)?).stderr(log);
        // ctrl-C is for us; we then end it as ever.
        let mut child = command.process_group(0).spawn().doing(Kind::Internal, what)?;
        let up = connect(&ready, &path("c.sock"), &name);
        let (runtime, grpc, exits) = up.map_err(|error| {
            let _ = child.kill();
            let _ = child.wait();
            let log = fs::read_to_string(path("log")).unwrap_or_default();
            error.hint(log.lines().last().unwrap_or("its log is empty").to_owned())
        })?;
        let (exits, left) = (Mutex::new(exits), BTreeSet::new());
        let daemon =
            Daemon { runtime, grpc, exits, kind, name, cgroup, child, started: 0, left, sleeper, _folder: folder };
        Ok(Some(daemon))
    }

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
        let of_exec = OfExec { container_id: id.to_owned(), exec_id: exec.clone(), ..Default::default() };
        let begin = Instant::now();
        let status = self.block(async {
            self.ask("Exec", &request).await?;
            let status = self.exit([(id, exec.as_str())], async || self.ask("Start", &of_exec).await).await?;
            self.ask("DeleteProcess", &of_exec).await?;
            Ok(status)
        })?;
        let took = begin.elapsed();
        expect(status, 0)?;
        Ok(took)
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

    async fn kill(&self, id: &str) -> Result<()> {
        self.ask("Kill", &KillRequest { container_id: id.to_owned(), signal: 9, ..Default::default() }).await
    }

    /// Asks the service of tasks, whatever the answer.
    async fn ask(&self, method: &str, request: &impl Message) -> Result<()> {
        self.grpc.call::<Nothing>(&format!("{TASKS}/{method}"), request).await.map(drop)
    }

    /// Does something and waits for the exits of these, each a container and
    /// what exits in it; the largest status.
    async fn exit<'a>(
        &self,
        whose: impl IntoIterator<Item = (&'a str, &'a str)>,
        act: impl AsyncFnOnce() -> Result<()>,
    ) -> Result<u32> {
        act().await?;
        let mut awaited: BTreeSet<(&str, &str)> = whose.into_iter().collect();
        let mut status = 0;
        let mut exits = self.exits.lock().await;
        while !awaited.is_empty() {
            let next = exits.next::<Envelope>().await?;
            let envelope = next.ok_or_else(|| Error::new(Kind::Internal, "containerd tells no more events"))?;
            let exit = TaskExit::parse_from_bytes(&envelope.event.value)
                .doing(Kind::Internal, || "cannot read an exit event of containerd's")?;
            let before = awaited.len();
            awaited.retain(|whose| *whose != (exit.container_id.as_str(), exit.id.as_str()));
            if awaited.len() < before {
                status = status.max(exit.exit_status);
            }
        }
        Ok(status)
    }

    fn block<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        // An interrupt is seen between two measurements: none may last for ever.
        let late = || "cannot wait any longer for containerd's answer";
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.doing(Kind::Timeout, late)? })
    }
}

impl Sleepers for Daemon {
    type One = Sleeper;

    fn hold(&mut self) -> Result<Sleeper> {
        let spec = self.sleeper.clone();
        let id = self.container(&spec)?;
        let answer: StartResponse = self.block(async {
            self.create(&id).await?;
            self.grpc.call(&format!("{TASKS}/Start"), &of(&id)).await
        })?;
        let shim = kernel_number(&format!("/proc/{}/status", answer.pid), "PPid:")?;
        Ok(Sleeper { id, shim: shim as u32 })
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
    /// Its container's.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // After an error some may be left, at any point of their lives.
        for id in std::mem::take(&mut self.left) {
            let _ = self.block(async {
                let killed = self.exit([(id.as_str(), id.as_str())], async || self.kill(&id).await).await;
                self.ask("Delete", &of(&id)).await.and(killed)
            });
        }
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // Not waited for yet: the pid is its own.
        if let Some((pid, gone)) = pid.and_then(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?))) {
            let _ = kill_process(pid, Signal::TERM);
            // containerd 1.6 may hang as it stops; no task is left that would suffer.
            let _ = poll(&mut [PollFd::new(&gone, PollFlags::IN)], Some(&STOPPING));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn config(folder: &Path) -> String {
    format!(
        "version = 2\nroot = \"{0}/root\"\nstate = \"{0}/state\"\ndisabled_plugins = {WITHOUT:?}\n\
         [grpc]\n  address = \"{0}/c.sock\"\n",
        folder.display()
    )
}

/// The runtime's name, and its options.
fn kind(runtimes: &Runtimes<'_>, root: &Path) -> Result<(&'static str, Option<Any>)> {
    Ok(match runtimes {
        Runtimes::Bowline(_) => ("io.containerd.bowline.v1", None),
        Runtimes::Runc(program, _) => {
            let options = RuncOptions {
                binary_name: program.to_string_lossy().into_owned(),
                root: root.to_string_lossy().into_owned(),
                ..Default::default()
            };
            let bytes = options.write_to_bytes().doing(Kind::Internal, || "cannot write a runtime's options")?;
            ("io.containerd.runc.v2", Some(any("containerd.runc.v1.Options", bytes)))
        }
    })
}

/// containerd, where the runtime sees what it is to see.
fn command(config: &Path, runtimes: &Runtimes<'_>) -> Command {
    let hidden = match runtimes {
        Runtimes::Runc(_, true) => runner::unified_mounts(),
        Runtimes::Bowline(_) | Runtimes::Runc(_, false) => Vec::new(),
    };
    if hidden.is_empty() {
        let mut command = Command::new("containerd");
        command.arg("--config").arg(config);
        return command;
    }
    let mut command = Command::new("unshare");
    let script = "config=$1; shift; umount -l \"$@\" && exec containerd --config \"$config\"";
    command.args(["--mount", "--", "/bin/sh", "-c", script, "sh"]).arg(config).args(hidden);
    command
}

/// Waits until it is up, and listens to exits.
fn connect(ready: &UnixDatagram, socket: &Path, name: &str) -> Result<(Runtime, Grpc, Answers)> {
    let what = || "cannot wait until containerd is up";
    // As a service manager does: it says when it is.
    ready.recv(&mut [0; 64]).doing(Kind::Timeout, what)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().doing(Kind::Internal, what)?;
    let (grpc, exits) = runtime.block_on(async {
        let grpc = Grpc::connect(socket, name).await?;
        let filter = format!("topic==\"/tasks/exit\",namespace==\"{name}\"");
        let request = SubscribeRequest { filters: vec![filter], ..Default::default() };
        let exits = grpc.stream("containerd.services.events.v1.Events/Subscribe", &request).await?;
        Ok::<_, Error>((grpc, exits))
    })?;
    Ok((runtime, grpc, exits))
}

fn of(id: &str) -> OfTask {
    OfTask { container_id: id.to_owned(), ..Default::default() }
}

fn any(type_url: &str, value: Vec<u8>) -> Any {
    Any { type_url: type_url.to_owned(), value, ..Default::default() }
}

fn expect(status: u32, expected: u32) -> Result<()> {
    if status == expected {
        return Ok(());
    }
    Err(Error::new(Kind::Internal, format!("a process of a task exited with {status}, not {expected}")))
}
