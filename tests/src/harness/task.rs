//! A task: how a test describes it, launches it, asks it and looks at it.

use std::fs;
use std::ops::Index;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Host, Process, Pty, Ran, Sandbox, binary, eventually, kernel, only_v2};

/// A task that is not launched yet.
#[must_use]
pub struct Build<'h> {
    host: &'h Host,
    id: String,
    flags: Vec<String>,
    toml: Option<String>,
    command: Vec<String>,
}

impl<'h> Build<'h> {
    pub(super) fn new(host: &'h Host, command: Vec<String>) -> Build<'h> {
        Build { host, id: host.new_id(), flags: Vec::new(), toml: None, command }
    }

    /// Adds a flag, such as `--memory=64M`.
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    pub fn named(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    /// As a member of this sandbox.
    pub fn in_sandbox(self, sandbox: &Sandbox<'_>) -> Self {
        self.flag(format!("--sandbox={}", sandbox.id()))
    }

    /// With this folder as its root.
    pub fn rootfs(self, root: &Path) -> Self {
        let root = root.to_str().expect("ASCII").to_owned();
        self.flag(format!("--rootfs={root}"))
    }

    /// Adds lines to its description, which is then given as a file.
    pub fn toml(mut self, lines: &str) -> Self {
        let text = self.toml.get_or_insert_default();
        text.push_str(lines);
        text.push('\n');
        self
    }

    /// The id it will have.
    pub fn id(&self) -> &str {
        &self.id
    }

    fn args(&self, verb: &str) -> Vec<String> {
        let mut args = vec![verb.to_owned(), format!("--name={}", self.id)];
        if let Some(toml) = &self.toml {
            let file = self.host.file(&format!("{}.toml", self.host.new_id()), toml);
            args.push(format!("--file={}", file.display()));
        }
        args.extend(self.flags.iter().cloned());
        if !self.command.is_empty() {
            args.push("--".to_owned());
            args.extend(self.command.iter().cloned());
        }
        args
    }

    /// `bowline` with `verb` as arguments of a command, such as `timeout 5`, that starts it in turn. The test removes the
    /// task.
    pub fn under<const N: usize>(&self, program: [&str; N], verb: &str) -> Command {
        let mut command = self.host.command(program[0]);
        command.args(&program[1..]).arg(binary("bowline")).args(self.args(verb));
        command
    }

    /// `bowline` with `verb`. The test removes the task.
    pub fn command(&self, verb: &str) -> Command {
        let mut command = self.host.command(binary("bowline"));
        command.args(self.args(verb));
        command
    }

    fn spawn_verb(&self, verb: &str) -> Process {
        let ran = self.host.ran.clone();
        let id = self.id.clone();
        self.host.spawn_unread(self.args(verb)).on_end(move |end| {
            if !end.is_refusal() {
                ran.borrow_mut().push(id);
            }
        })
    }

    /// `bowline run`, to its end.
    #[track_caller]
    pub fn run(self) -> Ran {
        self.spawn_verb("run").finish()
    }

    /// `bowline run` in a terminal.
    pub fn run_in_terminal(self) -> (Task<'h>, Pty) {
        let terminal = self.host.in_terminal(self.args("run"));
        self.host.ran.borrow_mut().push(self.id.clone());
        (Task::new(self.host, self.id), terminal)
    }

    /// `bowline run`, its output not read yet.
    pub fn spawn(self) -> (Task<'h>, Process) {
        let process = self.spawn_verb("run");
        (Task::new(self.host, self.id), process)
    }

    /// Starts `bowline start`, without waiting for its end.
    pub fn spawn_start(self) -> (Task<'h>, Process) {
        let process = self.spawn_verb("start");
        (Task::new(self.host, self.id), process)
    }

    /// `bowline start`, whether it works or not.
    #[track_caller]
    pub fn try_start(self) -> Ran {
        self.spawn_verb("start").finish()
    }

    /// Runs `bowline start`, and asserts that it works.
    #[track_caller]
    pub fn start(self) -> Task<'h> {
        self.spawn_verb("start").finish().assert_says(&self.id);
        Task::new(self.host, self.id)
    }

    /// Refused, as there is a task of this id; that one is not touched.
    #[track_caller]
    pub fn assert_refused_as_taken(self) {
        let record = self.host.state().join(&self.id).join("task.json");
        let before = fs::read(&record).expect("the other task's record");
        for verb in ["run", "start"] {
            self.spawn_verb(verb).finish().assert_refused(125, &[&self.id, "exists"]);
        }
        assert!(fs::read(&record).is_ok_and(|after| after == before), "the other task's record has changed");
    }

    /// `bowline run` and `bowline start` refuse it with `code`, for a reason
    /// that has all of `parts`, and make nothing of it.
    #[track_caller]
    pub fn assert_refused(self, code: i32, parts: &[&str]) {
        for verb in ["run", "start"] {
            self.spawn_verb(verb).finish().assert_refused(code, parts);
            let folder = self.host.state().join(&self.id);
            assert!(!folder.exists(), "{} was left behind", folder.display());
        }
    }
}

/// A task that was launched.
pub struct Task<'h> {
    host: &'h Host,
    id: String,
}

impl<'h> Task<'h> {
    pub(super) fn new(host: &'h Host, id: String) -> Task<'h> {
        Task { host, id }
    }

    /// What it is called outside its state folder.
    pub fn on_host(&self) -> String {
        self.host.named(&self.id)
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// A file of its folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.host.state().join(&self.id).join(name)
    }

    /// What a file of its folder contains now; nothing if there is none.
    pub fn log(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.file(name)).unwrap_or_default()).into_owned()
    }

    /// What its log, of one file, has of what it wrote to `stream` so far.
    pub fn said(&self, stream: &str) -> String {
        let text = self.log("log.json");
        // The last line may be on its way.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let of_stream = lines.filter(|line| line["stream"] == stream);
        let said = of_stream.map(|line| {
            let end = if line["partial"] == true { "" } else { "\n" };
            line["line"].as_str().or(line["latin1"].as_str()).unwrap_or_default().to_owned() + end
        });
        said.collect()
    }

    /// Waits until it has written `line` to its stdout.
    #[track_caller]
    pub fn wait_for_line(&self, line: &str) {
        eventually(format_args!("{line:?} in the output of {}", self.id), || {
            self.said("stdout").lines().any(|l| l == line).then_some(())
        });
    }

    /// Runs `bowline VERB ID ARGS` to its end.
    #[track_caller]
    pub fn bowline<const N: usize>(&self, verb: &str, args: [&str; N]) -> Ran {
        self.host.bowline([verb, &self.id].into_iter().chain(args))
    }

    /// The JSON that `bowline inspect` prints.
    #[track_caller]
    pub fn inspect(&self) -> Value {
        self.bowline("inspect", []).assert_code(0).json()
    }

    #[track_caller]
    pub fn status(&self) -> String {
        self.inspect()["status"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until it runs, launched by another process.
    #[track_caller]
    pub fn wait_until_running(&self) {
        eventually(format_args!("{} runs", self.id), || {
            let inspected = self.host.bowline(["inspect", &self.id]);
            (inspected.code == Some(0) && inspected.json()["status"] == "running").then_some(())
        });
    }

    /// Init's pid on the host.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        number(&self.inspect(), "pid")
    }

    #[track_caller]
    pub fn shim_pid(&self) -> i32 {
        number(&self.inspect(), "shim_pid")
    }

    /// The pid of its shim, also of one that has left by now.
    #[track_caller]
    pub fn shim_pid_on_disk(&self) -> i32 {
        number(&serde_json::from_str(&self.log("task.json")).expect("task.json is JSON"), "shim_pid")
    }

    /// The JSON that `bowline stats --json` prints.
    #[track_caller]
    pub fn stats(&self) -> Value {
        self.bowline("stats", ["--json"]).assert_code(0).json()
    }

    /// `bowline VERB ID ARGS` in a terminal of its own.
    pub fn in_terminal<const N: usize>(&self, verb: &str, args: [&str; N]) -> Pty {
        self.host.in_terminal([verb, &self.id].into_iter().chain(args))
    }

    /// Runs `script` in a shell inside.
    #[track_caller]
    pub fn exec(&self, script: &str) -> Ran {
        self.exec_with([], script)
    }

    /// Runs `script` in a shell inside, with flags.
    #[track_caller]
    pub fn exec_with<const N: usize>(&self, flags: [&str; N], script: &str) -> Ran {
        self.spawn_exec(flags, script).finish()
    }

    /// Begins to run `script` in a shell inside.
    pub fn spawn_exec<const N: usize>(&self, flags: [&str; N], script: &str) -> Process {
        let args = ["exec", &self.id].into_iter().chain(flags).chain(["--", "/bin/sh", "-c", script]);
        self.host.spawn(args)
    }

    /// `bowline stop`, and how it ended.
    #[track_caller]
    pub fn stop<const N: usize>(&self, flags: [&str; N]) -> Report {
        self.bowline("stop", flags).assert_code(0);
        self.wait()
    }

    /// Ends it at once, and how it ended.
    #[track_caller]
    pub fn end(&self) -> Report {
        self.stop(["--grace=0"])
    }

    /// How it ended, once it has.
    #[track_caller]
    pub fn wait(&self) -> Report {
        Report(self.bowline("wait", ["--json"]).assert_code(0).json())
    }

    /// How many ends its shim's socket has: the listening one, and one for each
    /// connection. The kernel knows it by the name that it was bound with.
    pub fn socket_ends(&self) -> usize {
        kernel::unix_sockets(&self.file("shim"))
    }

    /// Kills its shim, as a crash would, and waits until that is gone, and with
    /// it any worker that it had, which has its socket too.
    #[track_caller]
    pub fn kill_shim(&self, shim: i32) {
        kill_process(Pid::from_raw(shim).expect("a pid"), Signal::KILL).expect("the shim lives");
        eventually(format_args!("the shim {shim} is gone"), || (!kernel::process_exists(shim)).then_some(()));
        let socket = self.file("shim.sock");
        eventually("nobody listens any more", || UnixStream::connect(&socket).is_err().then_some(()));
    }

    /// Changes its record, as its shim would have written it.
    #[track_caller]
    pub fn change_record(&self, change: impl FnOnce(&mut Value)) {
        let mut record: Value = serde_json::from_str(&self.log("task.json")).expect("JSON");
        change(&mut record);
        fs::write(self.file("task.json"), record.to_string()).expect("writable");
    }

    /// Waits until its record says that it has started. Before that nobody can take it over, whatever it has written.
    #[track_caller]
    pub fn wait_until_recorded(&self) {
        eventually(format_args!("{} is recorded as started", self.id), || {
            let record = serde_json::from_str::<Value>(&self.log("task.json")).ok()?;
            record["started_at"].is_string().then_some(())
        });
    }

    /// Kills the shim of a task that has started, as a crash would; somebody may have a new one started at once.
    ///
    /// One that has just taken it over is waited for: until its record is written it names the shim before.
    #[track_caller]
    pub fn crash_shim(&self) {
        self.wait_until_recorded();
        let shim = eventually(format_args!("{}'s record names a shim that lives", self.id), || {
            Some(self.shim_pid_on_disk()).filter(|shim| kernel::process_exists(*shim))
        });
        kill_process(Pid::from_raw(shim).expect("a pid"), Signal::KILL).expect("the shim lives");
        eventually(format_args!("the shim {shim} is gone"), || (!kernel::process_exists(shim)).then_some(()));
    }

    /// Its cgroup's folder in the hierarchy of `controller`.
    #[track_caller]
    pub fn cgroup(&self, controller: &str) -> PathBuf {
        let inspected = self.inspect();
        let path = inspected["cgroup"].as_str().expect("it is launched");
        kernel::hierarchy(controller).join(path.trim_start_matches('/'))
    }

    /// What a file of its cgroup contains.
    #[track_caller]
    pub fn cgroup_file(&self, controller: &str, file: &str) -> String {
        let path = self.cgroup(controller).join(file);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        text.trim_end().to_owned()
    }

    /// Freezes it as somebody would who does not use `bowline pause`, and waits until it is frozen.
    #[track_caller]
    pub fn freeze(&self) {
        let folder = self.cgroup("freezer");
        kernel::set_frozen(&folder, true);
        eventually("it is frozen", || kernel::is_frozen(&folder).then_some(()));
    }

    /// Thaws what [`Task::freeze`] has frozen.
    #[track_caller]
    pub fn thaw(&self) {
        kernel::set_frozen(&self.cgroup("freezer"), false);
    }

    /// The CPU shares of its own cgroup, or on v2 the weight.
    #[track_caller]
    pub fn cpu_weight(&self) -> u64 {
        self.cgroup_file("cpu", if only_v2() { "cpu.weight" } else { "cpu.shares" }).parse().expect("a number")
    }

    /// How often the task was taken over, by its shims' words.
    pub fn takeovers(&self) -> usize {
        self.log("shim.log").matches("took over").count()
    }

    /// The pids in its cgroup and in those below it, but for bowline's own init.
    #[track_caller]
    pub fn processes(&self) -> Vec<i32> {
        let mut pids = self.all_processes();
        pids.retain(|pid| kernel::name_of(*pid) != "bowline-init");
        pids
    }

    /// The pids in its cgroup and in those below it, with bowline's own init.
    #[track_caller]
    pub fn all_processes(&self) -> Vec<i32> {
        kernel::processes_below(&self.cgroup("freezer"))
    }

    /// The pid of its program, also where bowline's own init is above it.
    #[track_caller]
    pub fn program_pid(&self) -> i32 {
        let init = self.pid();
        match kernel::name_of(init).as_str() {
            "bowline-init" => kernel::child_pids(init).first().copied().expect("it has its program"),
            _ => init,
        }
    }
}

#[track_caller]
fn number(value: &Value, field: &str) -> i32 {
    let number = value[field].as_i64().and_then(|n| n.try_into().ok());
    number.unwrap_or_else(|| panic!("no {field} in {value}"))
}

#[derive(Debug, Clone, PartialEq)]
pub struct Report(pub Value);

impl Report {
    /// Init was ended by this signal, named without `SIG`.
    #[track_caller]
    pub fn assert_killed_by(&self, signal: &str) -> &Report {
        assert_eq!(self["signal"], format!("SIG{signal}"), "{}", self.0);
        self
    }

    /// Init exited with this code.
    #[track_caller]
    pub fn assert_code(&self, code: i64) -> &Report {
        assert_eq!(self["exit_code"], code, "{}", self.0);
        self
    }

    #[track_caller]
    pub fn number(&self, field: &str) -> u64 {
        self[field].as_u64().unwrap_or_else(|| panic!("{field} is no number in {}", self.0))
    }
}

impl Index<&str> for Report {
    type Output = Value;

    fn index(&self, field: &str) -> &Value {
        &self.0[field]
    }
}

/// Writes a line when told to by [`touch`], until it is told to end, and ends with 7.
pub const WRITER: &str = "n=0; until [ -e /tmp/end ]; do n=$((n+1)); echo line $n; until [ -e /tmp/$n ] || [ -e /tmp/end ]; \
                          do sleep 0.02; done; done; exit 7";

/// Makes a file in the `/tmp` of a task, whose program this is.
pub fn touch(program: i32, name: &str) {
    fs::write(format!("/proc/{program}/root/tmp/{name}"), "").expect("writable");
}
