//! A containerd of the bench's own, with one runtime, from its start to its end;
//! `tasks` is what is asked of it.
//!
//! Each contender has one, so that what one leaves in it slows nobody else.

mod tasks;

pub use tasks::Sleeper;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use bowline_model::{Doing, Error, Kind, Result};
use protobuf::Message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use crate::contenders::in_memory;
use crate::grpc::{Answers, Grpc};
use crate::runner;

/// The messages of containerd's services, generated from `proto/containerd.proto`.
#[allow(missing_docs, unsafe_code, nonstandard_style, unused, clippy::all, clippy::unwrap_used)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/containerd.rs"));
}
use proto::*;

/// How long it may take to be up, and to do what is asked at a time: no measurement lasts for ever. On an emulated
/// processor that is busy, crun alone takes more than ten seconds.
const PATIENCE: Duration = Duration::from_secs(60);
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

/// The runtime whose shim does nothing.
const FLOOR: &str = "io.containerd.floor.v1";

/// With what a daemon runs its tasks.
pub enum Runtimes<'a> {
    /// A shim that does nothing, `floor/shim.c`, in this folder.
    Floor(&'a Path),
    /// bowline's shim, in this folder.
    Bowline(&'a Path),
    /// containerd's own shim and this runtime, hidden from cgroup v2 or not.
    Runc(&'a Path, bool),
}

impl Runtimes<'_> {
    /// Where the shim is, if it is not installed.
    fn bin(&self) -> Option<&Path> {
        match self {
            Runtimes::Floor(bin) | Runtimes::Bowline(bin) => Some(bin),
            Runtimes::Runc(..) => None,
        }
    }
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
    folder: TempDir,
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
        if let Some(bin) = runtimes.bin() {
            let shim = bin.join("containerd-shim-bowline-v1");
            if !shim.is_file() {
                return Err(Error::new(Kind::Usage, format!("cannot find {}", shim.display()))
                    .hint("`make build` makes it; --bin says where it is"));
            }
            search = format!("{}:{search}", bin.display());
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
        let daemon = Daemon { runtime, grpc, exits, kind, name, cgroup, child, started: 0, left, sleeper, folder };
        Ok(Some(daemon))
    }
}

impl Daemon {
    /// The threads that it has now.
    pub fn threads(&self) -> Result<Vec<u32>> {
        let folder = format!("/proc/{}/task", self.child.id());
        let entries = fs::read_dir(&folder).doing(Kind::Internal, || format!("cannot read {folder}"))?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
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
        Runtimes::Floor(_) => (FLOOR, None),
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
        Runtimes::Floor(_) | Runtimes::Bowline(_) | Runtimes::Runc(_, false) => Vec::new(),
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
        let grpc = Grpc::connect(socket, Some(("containerd-namespace", name.to_owned()))).await?;
        let filter = format!("topic==\"/tasks/exit\",namespace==\"{name}\"");
        let request = SubscribeRequest { filters: vec![filter], ..Default::default() };
        let exits = grpc.stream("containerd.services.events.v1.Events/Subscribe", &request).await?;
        // Nothing is sent before an answer is waited for, and containerd closes a connection that says nothing for two minutes.
        grpc.call::<Nothing>("containerd.services.version.v1.Version/Version", &Nothing::default()).await?;
        Ok::<_, Error>((grpc, exits))
    })?;
    Ok((runtime, grpc, exits))
}

fn any(type_url: &str, value: Vec<u8>) -> Any {
    Any { type_url: type_url.to_owned(), value, ..Default::default() }
}

fn of(id: &str) -> OfTask {
    OfTask { container_id: id.to_owned(), ..Default::default() }
}
