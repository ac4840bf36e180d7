//! A caller of the command of an OCI runtime: bundles, calls, and the other ends of its sockets.
//!
//! ```no_run
//! let host = bowline_tests::Host::new();
//! let runtime = host.oci();
//! let container = runtime.created(runtime.bundle().script("exit 7"));
//! container.call("start", &[]).assert_code(0);
//! container.wait_until("stopped");
//! container.call("delete", &[]).assert_code(0);
//! ```
//!
//! `UNDER_TEST=reference` calls runc instead: a case holds there first.

use std::fs::{self, File};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::Value;

use super::containerd::{Bundle, is_reference};
use super::{Elsewhere, Host, Process, Ran, binary, eventually, hierarchies, write_program};

/// The program under test.
pub fn program() -> PathBuf {
    if !is_reference() {
        return binary("bowline-oci");
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).map(|folder| folder.join("runc")).find(|path| path.exists());
    found.expect("runc is installed (`make test` does)")
}

/// The command of a runtime, with a state folder of its own. When it is dropped, its containers are deleted.
pub struct Runtime<'h> {
    host: &'h Host,
    root: PathBuf,
}

impl Host {
    /// The command of an OCI runtime.
    pub fn oci(&self) -> Runtime<'_> {
        self.own_parents();
        Runtime { host: self, root: self.work().join("oci") }
    }
}

impl<'h> Runtime<'h> {
    /// A bundle of an id of its own.
    pub fn bundle(&self) -> Bundle {
        self.bundle_of(&self.host.new_id())
    }

    /// A bundle whose folder and cgroup have this name.
    pub fn bundle_of(&self, id: &str) -> Bundle {
        Bundle::new(&self.host.work().join("b"), id, &format!("/{}", self.host.prefix()))
    }

    /// The state folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A call with these arguments.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.host.command(program());
        command.arg("--root").arg(&self.root).args(arguments);
        command
    }

    /// Makes a call, to its end. What it starts must not keep its streams: see [`Self::call_apart`].
    pub fn call(&self, arguments: &[&str]) -> Ran {
        self.host.execute(self.command(arguments))
    }

    /// Begins a call; both of its streams are read.
    pub fn spawn(&self, arguments: &[&str]) -> Process {
        let process = self.host.spawn_command(self.command(arguments));
        process.read_stdout();
        process.read_stderr();
        process
    }

    /// Makes a call whose streams are files, which a process that it starts may keep: [`Self::stream`].
    pub fn call_apart(&self, name: &str, arguments: &[&str]) -> Ran {
        self.apart(name, self.command(arguments))
    }

    /// Like [`Self::call_apart`], for any command.
    #[track_caller]
    pub fn apart(&self, name: &str, mut command: Command) -> Ran {
        let file = |stream| {
            let opened = File::options().append(true).create(true).open(self.stream(name, stream));
            opened.expect("the work folder is writable")
        };
        command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let line = words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ");
        let mut child = command.spawn().expect("it is executable");
        let mut ended = || child.try_wait().expect("a child");
        let status = eventually(format_args!("the end of `{line}`"), &mut ended);
        let read = |stream| fs::read(self.stream(name, stream)).expect("it was made");
        let ran = Ran { command: line, code: status.code(), stdout: read("stdout"), stderr: read("stderr") };
        self.host.transcript.borrow_mut().push(ran.to_string());
        ran
    }

    /// The file that is a stream of what was called by this name.
    pub fn stream(&self, name: &str, stream: &str) -> PathBuf {
        self.host.work().join(format!("{name}.{stream}"))
    }

    /// Runs `create` for a bundle, with these flags.
    pub fn create(&self, bundle: &Bundle, flags: &[&str]) -> Ran {
        let path = bundle.path.to_str().expect("ASCII");
        self.call_apart(&bundle.id, &[&["create", "--bundle", path], flags, &[&bundle.id]].concat())
    }

    /// A container that was created.
    #[track_caller]
    pub fn created(&self, bundle: Bundle) -> Container<'_> {
        self.created_with(bundle, &[])
    }

    /// Like [`Self::created`], with these flags of `create`.
    #[track_caller]
    pub fn created_with(&self, bundle: Bundle, flags: &[&str]) -> Container<'_> {
        self.create(&bundle, flags).assert_code(0);
        self.adopt(bundle)
    }

    /// A container that was started.
    #[track_caller]
    pub fn started(&self, bundle: Bundle) -> Container<'_> {
        let container = self.created(bundle);
        container.call("start", &[]).assert_code(0);
        container
    }

    /// The container of this bundle, which something else has created.
    pub fn adopt(&self, bundle: Bundle) -> Container<'_> {
        Container { runtime: self, id: bundle.id.clone(), bundle }
    }

    /// `run` in the foreground, to its end.
    pub fn run(&self, bundle: &Bundle, flags: &[&str]) -> Ran {
        self.host.execute(self.run_command(bundle, flags))
    }

    /// `run`: not yet begun.
    pub fn run_command(&self, bundle: &Bundle, flags: &[&str]) -> Command {
        let path = bundle.path.to_str().expect("ASCII");
        self.command(&[&["run", "--bundle", path], flags, &[&bundle.id]].concat())
    }

    /// A caller makes this cgroup beside those of the containers, and leaves it.
    pub fn leaves_cgroup(&self, name: &str) {
        let parents = hierarchies().into_iter().map(|(_, mount)| mount.join(self.host.prefix()).join(name));
        self.host.parents.borrow_mut().splice(0..0, parents);
    }

    /// The cgroup of a bundle's container.
    pub fn cgroup(&self, bundle: &Bundle) -> Elsewhere {
        self.host.cgroup(bundle.config["linux"]["cgroupsPath"].as_str().expect("a path"))
    }

    /// Whether nothing of a bundle's container is there.
    #[track_caller]
    pub fn assert_gone(&self, bundle: &Bundle) {
        let ran = self.call(&["state", &bundle.id]);
        ran.assert_code(1);
        assert!(ran.err().contains("does not exist"), "{ran}");
        assert_eq!(self.cgroup(bundle).there(), [] as [PathBuf; 0], "its cgroup is left");
        assert!(!self.root.join(&bundle.id).exists(), "its state folder is left");
    }

    /// A program that is the one under test with this state folder.
    pub fn wrapper(&self) -> PathBuf {
        let path = self.host.work().join("runtime");
        let text = format!("#!/bin/sh\nexec {} --root {} \"$@\"\n", program().display(), self.root.display());
        write_program(&path, &text);
        path
    }

    /// The ids in the state folder.
    fn ids(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| !name.starts_with('.')).collect()
    }
}

impl Drop for Runtime<'_> {
    fn drop(&mut self) {
        for id in self.ids() {
            let ran = self.call(&["delete", "--force", &id]);
            assert!(std::thread::panicking() || ran.code == Some(0), "{ran}");
        }
        assert!(std::thread::panicking() || self.ids().is_empty(), "state is left: {:?}", self.ids());
    }
}

/// A container of a runtime.
pub struct Container<'r> {
    runtime: &'r Runtime<'r>,
    /// What it was created from.
    pub bundle: Bundle,
    pub id: String,
}

impl Container<'_> {
    /// Makes a call for it: the command, flags, its id.
    pub fn call(&self, command: &str, flags: &[&str]) -> Ran {
        self.runtime.call(&[&[command], flags, &[&self.id]].concat())
    }

    /// Runs `exec` in the foreground.
    pub fn exec(&self, flags: &[&str], arguments: &[&str]) -> Ran {
        self.runtime.call(&[&["exec"], flags, &[&self.id], arguments].concat())
    }

    /// Runs `exec` of a script in the foreground.
    pub fn sh(&self, flags: &[&str], script: &str) -> Ran {
        self.exec(flags, &["/bin/sh", "-c", script])
    }

    /// Sends a signal.
    pub fn kill(&self, signal: &str) -> Ran {
        self.runtime.call(&["kill", &self.id, signal])
    }

    #[track_caller]
    pub fn state(&self) -> Value {
        self.call("state", &[]).assert_code(0).json()
    }

    #[track_caller]
    pub fn status(&self) -> String {
        self.state()["status"].as_str().expect("a word").to_owned()
    }

    /// The pid of init.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        self.state()["pid"].as_i64().expect("a number").try_into().expect("a pid")
    }

    /// Waits until `state` says this.
    #[track_caller]
    pub fn wait_until(&self, status: &str) {
        eventually(format_args!("{} is {status}", self.id), || (self.status() == status).then_some(()));
    }

    /// Kills it and waits for its end.
    #[track_caller]
    pub fn stop(&self) {
        self.kill("KILL").assert_code(0);
        self.wait_until("stopped");
    }

    /// What it has written to its stdout.
    pub fn out(&self) -> String {
        fs::read_to_string(self.runtime.stream(&self.id, "stdout")).unwrap_or_default()
    }

    /// Waits until its stdout has this.
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        eventually(format_args!("{text:?} in its stdout"), || self.out().contains(text).then_some(()));
    }

    /// Writes a file for `exec --process`: its own process with these arguments, changed.
    pub fn process_file(&self, arguments: &[&str], change: impl FnOnce(&mut Value)) -> String {
        let mut process = self.bundle.process(arguments);
        change(&mut process);
        let path = self.bundle.path.join("process.json");
        fs::write(&path, process.to_string()).expect("the work folder is writable");
        path.to_str().expect("ASCII").to_owned()
    }
}

/// A socket that takes a descriptor, such as a console socket.
pub struct Taker {
    listener: UnixListener,
    pub path: String,
}

impl Taker {
    pub fn listen(host: &Host, name: &str) -> Taker {
        let path = host.work().join(name);
        let listener = UnixListener::bind(&path).expect("a short path");
        listener.set_nonblocking(true).expect("a socket");
        Taker { listener, path: path.to_str().expect("ASCII").to_owned() }
    }

    /// The first descriptor that comes, and the text with it.
    #[track_caller]
    pub fn take(&self) -> (OwnedFd, String) {
        let socket = eventually("a connection", || self.listener.accept().ok()).0;
        socket.set_nonblocking(false).expect("a socket");
        let mut text = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(&socket, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
        let length = received.expect("a message").bytes;
        let fds = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fd = fds.flatten().next().expect("a descriptor");
        (fd, String::from_utf8_lossy(&text[..length]).into_owned())
    }
}
