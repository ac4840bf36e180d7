//! crun and runc, by their commands, with the configuration that bowline makes
//! of the same description.
//!
//! `run` does from creation to removal in one command; `create`, `start` and
//! `delete` are what a manager gives them. Must not: count what no command does.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bowline_model::{Doing, Error, Kind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};

use crate::runner::{self, Runner};
use crate::shim::Call;

/// How long the processes of a container may take to end on a busy machine.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// A runtime that is installed.
pub struct Peer {
    /// What it is called: `crun`.
    pub name: &'static str,
    program: PathBuf,
    /// Its state, bundles and pid files.
    work: PathBuf,
    cgroup: String,
    runner: Runner,
    started: u32,
}

/// A container's configuration on disk.
pub struct Bundle(PathBuf);

impl Peer {
    /// The peer `name`, out of the folder `work`, its cgroups below `cgroup`;
    /// `None` if it is not installed.
    pub fn find(name: &'static str, work: &Path, cgroup: &str) -> Result<Option<Peer>> {
        let folders = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
        let program = folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.is_file());
        program.map(|program| Peer::at(name, program, work, cgroup)).transpose()
    }

    /// The runtime `program`, as [`Peer::find`].
    pub fn at(name: &'static str, program: PathBuf, work: &Path, cgroup: &str) -> Result<Peer> {
        let work = work.join(name);
        let what = || format!("cannot create {}", work.display());
        fs::create_dir_all(&work).doing(Kind::Internal, what)?;
        let log = File::create(work.join("log")).doing(Kind::Internal, what)?;
        let hidden = name == "crun" && !runner::unified_mounts().is_empty();
        let runner = if hidden { Runner::without_v2(log)? } else { Runner::Here(log) };
        Ok(Peer { name, program, work, cgroup: format!("/{cgroup}"), runner, started: 0 })
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Whether it refuses to run where it sees cgroup v2 beside v1.
    pub fn is_kept_from_v2(&self) -> bool {
        matches!(self.runner, Runner::There(_))
    }

    /// The first line that it says of its version.
    pub fn version(&self) -> String {
        let output = Command::new(&self.program).arg("--version").output();
        let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
        text.lines().next().unwrap_or(self.name).replace(" version", "")
    }

    /// Writes a bundle of `spec` with this command.
    pub fn bundle(&self, name: &str, spec: &Value, command: &[&str]) -> Result<Bundle> {
        let path = self.work.join(name);
        let mut spec = spec.clone();
        spec["process"]["args"] = json!(command);
        spec["linux"]["cgroupsPath"] = json!(format!("{}/{}-{name}", self.cgroup, self.name));
        let what = || format!("cannot write the bundle {}", path.display());
        fs::create_dir_all(&path).doing(Kind::Internal, what)?;
        fs::write(path.join("config.json"), spec.to_string()).doing(Kind::Internal, what)?;
        Ok(Bundle(path))
    }

    fn new_id(&mut self) -> String {
        self.started += 1;
        format!("{}-{}", self.name, self.started)
    }

    fn words(&self, args: &[&str]) -> Vec<String> {
        let state = self.work.join("state");
        let own = [self.program.to_string_lossy(), "--root".into(), state.to_string_lossy()];
        own.into_iter().map(String::from).chain(args.iter().map(|arg| (*arg).to_owned())).collect()
    }

    fn execute(&mut self, args: &[&str]) -> Result<Duration> {
        self.execute_all(vec![self.words(args)])
    }

    fn execute_all(&mut self, commands: Vec<Vec<String>>) -> Result<Duration> {
        let (took, success) = self.runner.run(&commands)?;
        if success {
            return Ok(took);
        }
        let command = commands.first().map(|words| words.join(" ")).unwrap_or_default();
        let log = fs::read_to_string(self.work.join("log")).unwrap_or_default();
        let why = log.lines().last().unwrap_or("it does not say why").to_owned();
        Err(Error::new(Kind::Internal, format!("cannot run {command}: {why}")))
    }

    /// A task from creation to removal, by one command.
    pub fn run(&mut self, bundle: &Bundle) -> Result<Duration> {
        let id = self.new_id();
        self.execute(&["run", "--bundle", &bundle.path(), &id])
    }

    /// A task from creation to removal, by three commands, as managers do it.
    pub fn create_start_delete(&mut self, bundle: &Bundle) -> Result<Duration> {
        let id = self.new_id();
        let pid_file = self.work.join("pid");
        let pid_path = pid_file.to_string_lossy();
        let begin = Instant::now();
        self.execute(&["create", "--bundle", &bundle.path(), "--pid-file", &pid_path, &id])?;
        let init = open_process(&pid_file)?;
        self.execute(&["start", &id])?;
        while let Err(rustix::io::Errno::INTR) = poll(&mut [PollFd::new(&init, PollFlags::IN)], None) {}
        self.execute(&["delete", &id])?;
        Ok(begin.elapsed())
    }

    /// Several tasks at once, until the last command has ended.
    pub fn run_together(&mut self, bundles: &[Bundle]) -> Result<Duration> {
        let mut commands = Vec::new();
        for bundle in bundles {
            let id = self.new_id();
            commands.push(self.words(&["run", "--bundle", &bundle.path(), &id]));
        }
        self.execute_all(commands)
    }

    /// A task that stays, by its id.
    pub fn hold(&mut self, bundle: &Bundle) -> Result<String> {
        let id = self.new_id();
        self.execute(&["run", "--detach", "--bundle", &bundle.path(), &id])?;
        Ok(id)
    }

    /// The command alone, which does nothing.
    pub fn version_command(&mut self) -> Result<Duration> {
        self.execute(&["--version"])
    }

    /// A command in a task.
    pub fn exec(&mut self, id: &str) -> Result<Duration> {
        self.execute(&["exec", id, "/bin/true"])
    }

    /// A question about a task, where this peer has a command for it.
    pub fn call(&mut self, id: &str, call: Call) -> Result<Option<Duration>> {
        match call {
            Call::State => self.execute(&["state", id]),
            Call::Processes => self.execute(&["ps", "--format", "json", id]),
            Call::Stats if self.name == "runc" => self.execute(&["events", "--stats", id]),
            Call::Nothing | Call::Stats => return Ok(None),
        }
        .map(Some)
    }

    /// Ends a task and removes it.
    pub fn remove(&mut self, id: &str) -> Result<()> {
        self.execute(&["delete", "--force", id]).map(drop)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // After an error some may be left.
        let left = fs::read_dir(self.work.join("state")).into_iter().flatten().flatten();
        for id in left.filter_map(|entry| entry.file_name().into_string().ok()) {
            let begun = Instant::now();
            // runc gives up a cgroup whose many processes take a while to end.
            while self.remove(&id).is_err() && begun.elapsed() < GONE_WITHIN {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

impl Bundle {
    fn path(&self) -> String {
        self.0.to_string_lossy().into_owned()
    }
}

/// The process that a pid file names.
fn open_process(file: &Path) -> Result<std::os::fd::OwnedFd> {
    let what = || format!("cannot open the process in {}", file.display());
    let text = fs::read_to_string(file).doing(Kind::Internal, what)?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Error::new(Kind::Internal, what()))?;
    // Held until `start`, so the pid is its own.
    pidfd_open(pid, PidfdFlags::empty()).doing(Kind::Internal, what)
}
