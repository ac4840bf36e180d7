//! A containerd of the test's own: the daemon, with folders, socket and runtimes of its own, and `ctr`.
//!
//! Its shims are found in a folder of links, first in its PATH. Plugins for snapshots of devices are left out, and those
//! for Kubernetes where it is not asked for them: they look at the machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;

use super::containerd::{is_reference, runtime, shim_binary};
use super::{Host, Process, Ran, Root, eventually, process_exists};

/// What has no place on a test's host.
const WITHOUT: [&str; 7] = [
    "io.containerd.internal.v1.opt",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.internal.v1.tracing",
    "io.containerd.nri.v1.nri",
];
const KUBERNETES: &str = "io.containerd.grpc.v1.cri";
const NAMES: [&str; 2] = ["containerd-shim-bowline-v1", "containerd-shim-runc-v2"];

pub struct Daemon<'h> {
    host: &'h Host,
    process: Option<Process>,
    namespace: String,
    /// Of the containers: a root filesystem.
    pub root: Root,
}

impl<'h> Daemon<'h> {
    /// One whose `ctr` is in this namespace; with `settings` for Kubernetes, or without Kubernetes' services.
    pub(super) fn start(host: &'h Host, namespace: &str, settings: Option<&str>) -> Daemon<'h> {
        let folder = host.work();
        let bin = folder.join("bin");
        fs::create_dir(&bin).expect("the work folder is writable");
        symlink(shim_binary(), bin.join(NAMES[usize::from(is_reference())])).expect("the work folder is writable");
        let mut without = WITHOUT.to_vec();
        if settings.is_none() {
            without.push(KUBERNETES);
        }
        let config = format!(
            "version = 2\nroot = \"{0}/root\"\nstate = \"{0}/state\"\ndisabled_plugins = {without:?}\n\
             [grpc]\n  address = \"{0}/c.sock\"\n{1}",
            folder.display(),
            settings.unwrap_or_default()
        );
        host.file("config.toml", &config);
        let root = host.busybox_root();
        let mut daemon = Daemon { host, process: None, namespace: namespace.to_owned(), root };
        daemon.root.folder("run");
        daemon.come_back();
        daemon
    }

    fn environment(&self, command: &mut Command) {
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.host.work().join("bin").display()));
    }

    /// Starts again, with all that the last one has left.
    pub fn come_back(&mut self) {
        assert!(self.process.is_none(), "it is there");
        let mut command = self.host.command("containerd");
        command.arg("-c").arg(self.host.work().join("config.toml"));
        self.environment(&mut command);
        let process = self.host.spawn_command(command);
        process.read_stdout();
        process.read_stderr();
        self.process = Some(process);
        eventually("containerd answers", || self.ctr(["version"]).code.filter(|code| *code == 0));
    }

    pub fn pid(&self) -> i32 {
        self.process.as_ref().expect("it is there").pid()
    }

    pub fn signal(&self, signal: Signal) {
        self.process.as_ref().expect("it is there").signal(signal);
    }

    /// Kills it, as nobody should.
    pub fn kill(&mut self) {
        let process = self.process.take().expect("it is there");
        let pid = process.pid();
        drop(process);
        eventually("containerd ends", || (!process_exists(pid)).then_some(()));
    }

    /// `ctr` with these arguments, for this daemon.
    pub fn command<I: IntoIterator<Item: AsRef<std::ffi::OsStr>>>(&self, args: I) -> Command {
        let mut command = self.host.command("ctr");
        command.arg("--address").arg(self.host.work().join("c.sock")).args(["--namespace", &self.namespace]);
        command.args(args);
        command
    }

    /// Runs `ctr` to its end.
    pub fn ctr<I: IntoIterator<Item: AsRef<std::ffi::OsStr>>>(&self, args: I) -> Ran {
        self.host.execute(self.command(args))
    }

    /// `ctr run` of `script` with the runtime under test: not yet begun.
    pub fn run(&self, flags: &[&str], id: &str, script: &str) -> Command {
        let cgroup = format!("/{}/{id}", self.host.prefix());
        let mut command = self.command(["run", "--runtime", runtime(), "--rootfs", "--cgroup", &cgroup]);
        command.args(flags).arg(self.root.path()).args([id, "/bin/sh", "-c", script]);
        command
    }

    /// Runs `script` as a task in the background.
    #[track_caller]
    pub fn run_detached(&self, id: &str, script: &str) {
        self.run_detached_with(&["--null-io"], id, script);
    }

    /// Like [`Self::run_detached`], with further flags.
    #[track_caller]
    pub fn run_detached_with(&self, flags: &[&str], id: &str, script: &str) {
        let flags = [&["--detach"], flags].concat();
        self.host.execute(self.run(&flags, id, script)).assert_code(0);
        self.host.must_go(self.socket_of(id));
    }

    /// Runs a task that sleeps in any namespace, with any runtime.
    #[track_caller]
    pub fn run_beside(&self, namespace: &str, runtime: &str, id: &str) {
        let cgroup = format!("/{}/{namespace}-{id}", self.host.prefix());
        let mut command = self.command(["--namespace", namespace, "run", "--detach", "--null-io", "--rootfs"]);
        command.args(["--runtime", runtime, "--cgroup", &cgroup]).arg(self.root.path()).args([
            id,
            "/bin/sh",
            "-c",
            "exec sleep 1000",
        ]);
        self.host.execute(command).assert_code(0);
        self.host.must_go(self.socket_in(namespace, id));
    }

    /// Kills and removes a container of another namespace.
    #[track_caller]
    pub fn remove_beside(&self, namespace: &str, id: &str) {
        let ctr = |args: &[&str]| self.ctr([&["--namespace", namespace], args].concat());
        ctr(&["task", "kill", "-s", "KILL", id]).assert_code(0);
        eventually("the end", || ctr(&["task", "ls"]).out().contains("STOPPED").then_some(()));
        ctr(&["task", "rm", id]);
        ctr(&["container", "rm", id]).assert_code(0);
    }

    /// The socket of a task's shim.
    #[track_caller]
    pub fn socket_of(&self, id: &str) -> PathBuf {
        self.socket_in(self.host.prefix(), id)
    }

    #[track_caller]
    fn socket_in(&self, namespace: &str, id: &str) -> PathBuf {
        let bundle = self.host.work().join("state/io.containerd.runtime.v2.task").join(namespace).join(id);
        let address = fs::read_to_string(bundle.join("address")).expect("the shim's address");
        PathBuf::from(address.trim().strip_prefix("unix://").expect("a socket"))
    }

    /// Status of a task as `ctr task ls` has it: RUNNING, STOPPED, PAUSED; nothing where there is none.
    pub fn status(&self, id: &str) -> Option<String> {
        self.listed(id, 2)
    }

    /// The pid of a task.
    #[track_caller]
    pub fn task_pid(&self, id: &str) -> i32 {
        self.listed(id, 1).expect("a task").parse().expect("a pid")
    }

    /// A column of a task's line in `ctr task ls`; not in the transcript, as it is asked for often.
    fn listed(&self, id: &str, column: usize) -> Option<String> {
        let output = self.command(["task", "ls"]).output().expect("ctr is installed");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(id))?;
        line.split_whitespace().nth(column).map(str::to_owned)
    }

    /// Removes a task that has ended with this status, which is not 0, and its container.
    #[track_caller]
    pub fn remove_ended(&self, id: &str, status: u32) {
        let ran = self.ctr(["task", "rm", id]);
        assert!(ran.err().ends_with(&format!("exit code {status}\"")), "expected the status {status}\n{ran}");
        self.ctr(["container", "rm", id]).assert_code(0);
    }

    /// Kills a task, waits for its end, and removes it and its container.
    #[track_caller]
    pub fn remove(&self, id: &str) {
        // It may have ended.
        self.ctr(["task", "kill", "-s", "KILL", id]);
        eventually("the end", || self.status(id).is_none_or(|status| status == "STOPPED").then_some(()));
        self.ctr(["task", "rm", id]);
        self.ctr(["container", "rm", id]).assert_code(0);
    }

    /// Ends it as a service manager does, after which nothing is left of it.
    pub fn end(mut self) {
        let process = self.process.take().expect("it is there");
        process.signal(Signal::TERM);
        process.finish();
        self.host.assert_nothing_left();
    }
}
