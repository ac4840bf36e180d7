//! Nomad's driver as its agent has it: a plugin that was launched, and tasks of it.
//!
//! The messages are those of `shim/nomad/proto`. Must not: measure what is no call.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bowline_model::{Doing, Error, Kind, Result};
use protobuf::well_known_types::empty::Empty;
use protobuf::{Message, MessageField};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::contenders::in_memory;
use crate::grpc::Grpc;
use crate::memory::Sleepers;

/// The messages of Nomad's plugins, generated from `shim/nomad/proto`.
#[allow(missing_docs, unsafe_code, nonstandard_style, unused, clippy::all, clippy::unwrap_used)]
mod proto {
    pub mod base {
        include!(concat!(env!("OUT_DIR"), "/base.rs"));
    }
    pub mod driver {
        include!(concat!(env!("OUT_DIR"), "/driver.rs"));
    }
    pub mod hclspec {
        include!(concat!(env!("OUT_DIR"), "/hclspec.rs"));
    }
    pub mod structs {
        include!(concat!(env!("OUT_DIR"), "/structs.rs"));
    }
}
use proto::base::{SetConfigRequest, SetConfigResponse};
use proto::driver::*;

const BINARY: &str = "nomad-driver-bowline";
const BASE: &str = "hashicorp.nomad.plugins.base.proto.BasePlugin";
const DRIVER: &str = "hashicorp.nomad.plugins.drivers.proto.Driver";
const COOKIE: (&str, &str) =
    ("NOMAD_PLUGIN_MAGIC_COOKIE", "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255");
/// No measurement lasts for ever.
const PATIENCE: Duration = Duration::from_secs(60);
const MIB: i64 = 1 << 20;

/// A plugin that runs; dropped, it ends, after the tasks that are left.
pub struct Plugin {
    runtime: Runtime,
    grpc: Grpc,
    process: Process,
    name: String,
    started: u32,
    /// Ids of tasks that are not destroyed yet.
    left: Vec<String>,
}

/// Its process, killed when it is dropped; and all that is on disk.
pub struct Process {
    child: Child,
    socket: PathBuf,
    folder: TempDir,
}

impl Process {
    /// Launches the plugin in `bin`, up to the line by which it says where it listens: how long that took. What it makes
    /// has `name` in its own.
    pub fn launch(bin: &Path, name: &str) -> Result<(Process, Duration)> {
        let what = || format!("cannot launch {BINARY}");
        let folder = tempfile::Builder::new().prefix(&format!("{name}-nomad-")).tempdir_in(in_memory());
        let folder = folder.doing(Kind::Internal, what)?;
        let program = bin.join(BINARY);
        if !program.is_file() {
            return Err(Error::new(Kind::Usage, format!("cannot find {}", program.display()))
                .hint("`make build` makes it; --bin says where it is"));
        }
        let mut command = Command::new(program);
        command.env(COOKIE.0, COOKIE.1).env("PLUGIN_PROTOCOL_VERSIONS", "2");
        command.env("PLUGIN_UNIX_SOCKET_DIR", folder.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let begin = Instant::now();
        let mut child = command.spawn().doing(Kind::Internal, what)?;
        let mut line = String::new();
        let stdout = child.stdout.take().ok_or_else(|| Error::new(Kind::Internal, what()))?;
        let mut process = Process { child, socket: PathBuf::new(), folder };
        BufReader::new(stdout).read_line(&mut line).doing(Kind::Internal, what)?;
        let took = begin.elapsed();
        let socket = line.split('|').nth(3);
        process.socket =
            socket.ok_or_else(|| Error::new(Kind::Internal, format!("{}: it says {line:?}", what())))?.into();
        Ok((process, took))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Plugin {
    /// Launches the plugin in `bin`, configures it and calls `Init`.
    pub fn start(bin: &Path, name: &str) -> Result<Plugin> {
        let what = || "cannot configure Nomad's driver";
        let (process, _) = Process::launch(bin, name)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().doing(Kind::Internal, what)?;
        let state = process.folder.path().join("state");
        let config = SetConfigRequest {
            msgpack_config: packed(&[("state_dir", Packed::Text(&state.to_string_lossy()))]),
            plugin_api_version: "v0.1.0".to_owned(),
            ..Default::default()
        };
        let grpc = runtime.block_on(async {
            let grpc = Grpc::connect(&process.socket, None).await?;
            grpc.call::<SetConfigResponse>(&format!("{BASE}/SetConfig"), &config).await?;
            grpc.call::<InitResponse>(&format!("{DRIVER}/Init"), &InitRequest::default()).await?;
            Ok::<_, Error>(grpc)
        })?;
        Ok(Plugin { runtime, grpc, process, name: name.to_owned(), started: 0, left: Vec::new() })
    }

    /// The pid of the plugin.
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// A task that sleeps, as the agent asks for it: from the call until its command is executed.
    pub fn start_task(&mut self) -> Result<(Sleeper, Duration)> {
        self.started += 1;
        let (allocation, task) = (format!("{}-{}", self.name, self.started), format!("{}-web", self.name));
        let task = self.config(allocation, task)?;
        let readers = [reader(&task.stdout_path)?, reader(&task.stderr_path)?];
        let request = StartTaskRequest { task: MessageField::some(task), ..Default::default() };
        let id = request.task.id.clone();
        self.left.push(id.clone());
        let begin = Instant::now();
        let answer: StartTaskResponse = self.call("StartTask", &request)?;
        let took = begin.elapsed();
        let state: Value = serde_json::from_slice(&answer.handle.driver_state)
            .doing(Kind::Internal, || "cannot read what the driver keeps of a task")?;
        let shim = state["shim_pid"].as_u64().and_then(|pid| pid.try_into().ok());
        let shim = shim.ok_or_else(|| Error::new(Kind::Internal, "the driver does not tell the shim's pid"))?;
        Ok((Sleeper { id, shim, _readers: readers }, took))
    }

    /// The folders and FIFOs of a task, and what the agent says of it.
    fn config(&self, allocation: String, task: String) -> Result<TaskConfig> {
        let what = || "cannot make the folders of a task";
        let folder = self.process.folder.path().join(&allocation);
        for name in ["alloc".to_owned(), format!("{task}/local"), format!("{task}/secrets")] {
            fs::create_dir_all(folder.join(name)).doing(Kind::Internal, what)?;
        }
        let fifo = |stream: &str| -> Result<String> {
            let path = folder.join("alloc").join(stream);
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).doing(Kind::Internal, what)?;
            Ok(path.to_string_lossy().into_owned())
        };
        let allocated = AllocatedTaskResources {
            cpu: MessageField::some(AllocatedCpuResources { cpu_shares: 100, ..Default::default() }),
            memory: MessageField::some(AllocatedMemoryResources { memory_mb: 64, ..Default::default() }),
            ..Default::default()
        };
        let linux = LinuxResources { cpu_shares: 100, memory_limit_bytes: 64 * MIB, ..Default::default() };
        Ok(TaskConfig {
            id: format!("{allocation}/{task}/0123abcd"),
            name: task,
            msgpack_driver_config: packed(&[("command", Packed::Text("sleep")), ("args", Packed::List(&["1000000"]))]),
            resources: MessageField::some(Resources {
                allocated_resources: MessageField::some(allocated),
                linux_resources: MessageField::some(linux),
                ..Default::default()
            }),
            alloc_dir: folder.to_string_lossy().into_owned(),
            stdout_path: fifo("out")?,
            stderr_path: fifo("err")?,
            job_name: "bench".to_owned(),
            alloc_id: allocation,
            ..Default::default()
        })
    }

    /// Ends a task: until its exit is known, and from there until it is destroyed.
    pub fn end_task(&mut self, task: &Sleeper) -> Result<[Duration; 2]> {
        let stop = StopTaskRequest { task_id: task.id.clone(), signal: "SIGKILL".to_owned(), ..Default::default() };
        let wait = WaitTaskRequest { task_id: task.id.clone(), ..Default::default() };
        let begin = Instant::now();
        self.call::<StopTaskResponse>("StopTask", &stop)?;
        self.call::<WaitTaskResponse>("WaitTask", &wait)?;
        let known = begin.elapsed();
        let begin = Instant::now();
        self.destroy(&task.id)?;
        Ok([known, begin.elapsed()])
    }

    fn destroy(&mut self, id: &str) -> Result<()> {
        let destroy = DestroyTaskRequest { task_id: id.to_owned(), force: true, ..Default::default() };
        self.call::<DestroyTaskResponse>("DestroyTask", &destroy)?;
        self.left.retain(|left| left != id);
        Ok(())
    }

    /// A script check's command in a task.
    pub fn exec_in(&self, task: &Sleeper) -> Result<Duration> {
        let timeout = protobuf::well_known_types::duration::Duration { seconds: 30, ..Default::default() };
        let request = ExecTaskRequest {
            task_id: task.id.clone(),
            command: vec!["/bin/true".to_owned()],
            timeout: MessageField::some(timeout),
            ..Default::default()
        };
        let begin = Instant::now();
        let answer: ExecTaskResponse = self.call("ExecTask", &request)?;
        let took = begin.elapsed();
        match answer.result.exit_code {
            0 => Ok(took),
            code => Err(Error::new(Kind::Internal, format!("/bin/true exited with {code}"))),
        }
    }

    fn call<A: Message>(&self, method: &str, request: &impl Message) -> Result<A> {
        let late = || format!("cannot wait any longer for {method}");
        let method = format!("{DRIVER}/{method}");
        self.runtime.block_on(async {
            let answer = tokio::time::timeout(PATIENCE, self.grpc.call(&method, request)).await;
            answer.doing(Kind::Timeout, late)?
        })
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        for id in self.left.clone() {
            // After an error, at any point of its life.
            let _ = self.destroy(&id);
        }
        // It ends with the call, which may have no answer then.
        let nothing = Empty::default();
        let shutdown = self.grpc.call::<Empty>("plugin.GRPCController/Shutdown", &nothing);
        let _ = self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(2), shutdown).await });
    }
}

/// A task that sleeps, and its shim.
pub struct Sleeper {
    id: String,
    shim: u32,
    _readers: [OwnedFd; 2],
}

impl Sleeper {
    /// The pid of its shim.
    pub fn shim(&self) -> u32 {
        self.shim
    }
}

impl Sleepers for Plugin {
    type One = Sleeper;

    fn hold(&mut self) -> Result<Sleeper> {
        self.start_task().map(|(task, _)| task)
    }

    fn exec(&mut self, one: &Sleeper) -> Result<()> {
        self.exec_in(one).map(drop)
    }

    fn pid(one: &Sleeper) -> u32 {
        one.shim
    }

    fn end(&mut self, one: Sleeper) -> Result<()> {
        self.end_task(&one).map(drop)
    }
}

/// The reader of a task's stream, which a FIFO must have.
fn reader(fifo: &str) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(fifo, flags, Mode::empty()).doing(Kind::Internal, || format!("cannot open {fifo}"))
}

/// A value of a configuration.
enum Packed<'a> {
    Text(&'a str),
    List(&'a [&'a str]),
}

/// A map as msgpack: of fewer than 16 entries, lists and all, whose texts have fewer than 256 bytes.
fn packed(entries: &[(&str, Packed<'_>)]) -> Vec<u8> {
    fn head(short: u8, length: usize) -> u8 {
        short | u8::try_from(length).unwrap_or(u8::MAX)
    }
    fn text(text: &str) -> impl Iterator<Item = u8> + '_ {
        [0xd9, head(0, text.len())].into_iter().chain(text.bytes())
    }
    let mut bytes = vec![head(0x80, entries.len())];
    for (name, value) in entries {
        bytes.extend(text(name));
        match value {
            Packed::Text(value) => bytes.extend(text(value)),
            Packed::List(values) => {
                bytes.push(head(0x90, values.len()));
                bytes.extend(values.iter().flat_map(|value| text(value)));
            }
        }
    }
    bytes
}
