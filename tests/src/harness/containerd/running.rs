//! A container that runs in a shim of its own: what most tests begin with.

use std::fs;
use std::path::PathBuf;

use super::{Bundle, Containerd, Input, Output, Shim, Stdio, api};
use crate::harness::{Host, eventually, kernel};

pub struct Running<'h> {
    host: &'h Host,
    pub shim: Shim,
    pub bundle: Bundle,
    pub id: String,
    /// The pid of the container's init.
    pub pid: i32,
    pub stdout: Output,
    /// Init's stderr, if it has no terminal.
    pub stderr: Option<Output>,
    /// Init's stdin, if it was asked for.
    pub stdin: Option<Input>,
    cgroups: String,
}

impl<'h> Containerd<'h> {
    #[track_caller]
    pub fn run(&self, script: &str) -> Running<'h> {
        let bundle = self.bundle().script(script);
        let io = bundle.fifos("init");
        self.run_with(bundle, &io)
    }

    /// Runs `script` with a stdin.
    #[track_caller]
    pub fn run_with_stdin(&self, script: &str) -> Running<'h> {
        let bundle = self.bundle().script(script);
        let io = bundle.fifos_with_stdin("init");
        self.run_with(bundle, &io)
    }

    /// Runs `script` at a terminal.
    #[track_caller]
    pub fn run_at_terminal(&self, script: &str) -> Running<'h> {
        let bundle = self.bundle().script(script).terminal();
        let io = bundle.fifos_of_terminal("init");
        self.run_with(bundle, &io)
    }

    /// Runs a bundle with these streams, of which stdout is a FIFO.
    #[track_caller]
    pub fn run_with(&self, bundle: Bundle, io: &Stdio) -> Running<'h> {
        self.run_by(bundle, io, |_| ())
    }

    /// Like [`Self::run_with`], after `change` has edited the request.
    #[track_caller]
    pub fn run_by(&self, bundle: Bundle, io: &Stdio, change: impl FnOnce(&mut api::CreateTaskRequest)) -> Running<'h> {
        let shim = self.start(&bundle);
        let (stdout, stderr) = io.open();
        let id = bundle.id.clone();
        let mut request = shim.creation(&bundle, io);
        change(&mut request);
        let pid = shim.create_by(&request).unwrap_or_else(|failure| panic!("create: {failure:?}"));
        // Created, it has a reader; once started, it may have ended.
        let stdin = (!io.stdin.is_empty()).then(|| Input::open(io.stdin.as_ref()));
        shim.start(&id, "").unwrap_or_else(|failure| panic!("start: {failure:?}"));
        let pid = pid.cast_signed();
        Running { host: self.host, shim, id, bundle, pid, stdout, stderr, stdin, cgroups: self.cgroups() }
    }
}

impl Running<'_> {
    /// Runs `script` as the exec `exec`, to its end: its exit status and what it wrote to stdout.
    #[track_caller]
    pub fn exec(&self, exec: &str, script: &str) -> (u32, String) {
        let io = self.bundle.fifos(exec);
        let (stdout, _stderr) = io.open();
        self.shim.run_exec(&self.bundle, exec, &["/bin/sh", "-c", script], &io);
        let status = self.shim.status_at_end(&self.id, exec);
        self.shim.delete(&self.id, exec).expect("an exec that has ended");
        (status, stdout.to_end())
    }

    /// Its cgroup in the hierarchy of a controller.
    pub fn cgroup(&self, controller: &str) -> PathBuf {
        kernel::hierarchy(controller).join(&self.cgroups[1..]).join(&self.id)
    }

    /// What a file of its cgroup says.
    #[track_caller]
    pub fn cgroup_file(&self, controller: &str, file: &str) -> String {
        let path = self.cgroup(controller).join(file);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        text.trim_end().to_owned()
    }

    /// Waits until init has ended, as the kernel tells.
    pub fn wait_for_end(&self) {
        eventually("the end of init", || (!kernel::process_exists(self.pid)).then_some(()));
    }

    /// Removes it and its shim, after which nothing is left.
    #[track_caller]
    pub fn end(self) {
        self.shim.end(&self.id);
        self.host.assert_nothing_left();
    }
}
