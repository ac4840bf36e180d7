//! A sandbox under test, through `bowline sandbox` and the kernel's files.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Build, Host, Limits, Process, Ran, Task, eventually, kernel};

/// A sandbox that is not made yet.
#[must_use]
pub struct SandboxBuild<'h> {
    host: &'h Host,
    id: String,
    flags: Vec<String>,
    toml: Option<String>,
}

impl<'h> SandboxBuild<'h> {
    pub(super) fn new(host: &'h Host) -> SandboxBuild<'h> {
        SandboxBuild { host, id: host.new_id(), flags: Vec::new(), toml: None }
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

    /// Starts `bowline sandbox create`, without waiting for its end.
    pub fn spawn(&self) -> Process {
        let mut args = vec!["sandbox".to_owned(), "create".to_owned(), format!("--name={}", self.id)];
        if let Some(toml) = &self.toml {
            let file = self.host.file(&format!("{}.toml", self.host.new_id()), toml);
            args.push(format!("--file={}", file.display()));
        }
        args.extend(self.flags.iter().cloned());
        let sandboxes = self.host.sandboxes.clone();
        let id = self.id.clone();
        self.host.spawn_unread(args).on_end(move |end| {
            if end.code == Some(0) {
                sandboxes.borrow_mut().push(id);
            }
        })
    }

    /// `bowline sandbox create`, whether it works or not.
    #[track_caller]
    pub fn try_create(&self) -> Ran {
        self.spawn().finish()
    }

    /// `bowline sandbox create`, which works.
    #[track_caller]
    pub fn create(self) -> Sandbox<'h> {
        self.try_create().assert_says(&self.id);
        Sandbox::new(self.host, self.id)
    }

    /// Refused with `code`, for a reason that has all of `parts`, and nothing is made of it.
    #[track_caller]
    pub fn assert_refused(self, code: i32, parts: &[&str]) {
        self.try_create().assert_refused(code, parts);
        let folder = self.host.state().join(&self.id);
        assert!(!folder.exists(), "{} was left behind", folder.display());
    }
}

/// A sandbox that was made; the host removes it in the end.
pub struct Sandbox<'h> {
    host: &'h Host,
    id: String,
}

impl<'h> Sandbox<'h> {
    pub(super) fn new(host: &'h Host, id: String) -> Sandbox<'h> {
        Sandbox { host, id }
    }

    /// What it is called outside its state folder.
    pub fn on_host(&self) -> String {
        self.host.named(&self.id)
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// A member that runs `script` in a shell.
    pub fn task(&self, script: &str) -> Build<'h> {
        self.host.task(script).in_sandbox(self)
    }

    /// A member of this description.
    pub fn described(&self, toml: &str) -> Build<'h> {
        self.host.described(toml).in_sandbox(self)
    }

    /// `bowline sandbox VERB ID ARGS`.
    #[track_caller]
    pub fn bowline<const N: usize>(&self, verb: &str, args: [&str; N]) -> Ran {
        self.host.bowline(["sandbox", verb, &self.id].into_iter().chain(args))
    }

    /// Ends a member; returns once it is counted no more.
    #[track_caller]
    pub fn lose(&self, member: &Task<'_>) {
        member.end();
        eventually(format_args!("{} is no member", member.id()), || {
            let members = self.inspect()["members"].clone();
            (!members.as_array().expect("a list").contains(&member.id().into())).then_some(())
        });
    }

    /// The JSON that `bowline sandbox inspect` prints.
    #[track_caller]
    pub fn inspect(&self) -> Value {
        self.bowline("inspect", []).assert_code(0).json()
    }

    #[track_caller]
    pub fn status(&self) -> String {
        self.inspect()["status"].as_str().unwrap_or_default().to_owned()
    }

    /// A pid that `inspect` tells: `shim_pid`, `pause_pid`.
    #[track_caller]
    fn inspected_pid(&self, field: &str) -> i32 {
        let inspected = self.inspect();
        let pid = inspected[field].as_i64().and_then(|pid| pid.try_into().ok());
        pid.unwrap_or_else(|| panic!("no {field} in {inspected}"))
    }

    #[track_caller]
    pub fn shim_pid(&self) -> i32 {
        self.inspected_pid("shim_pid")
    }

    /// The pid of who holds a shared pid namespace.
    #[track_caller]
    pub fn pause_pid(&self) -> i32 {
        self.inspected_pid("pause_pid")
    }

    /// The JSON that `bowline sandbox stats --json` prints.
    #[track_caller]
    pub fn stats(&self) -> Value {
        self.bowline("stats", ["--json"]).assert_code(0).json()
    }

    /// `bowline sandbox update`, which works.
    #[track_caller]
    pub fn update<const N: usize>(&self, flags: [&str; N]) {
        self.bowline("update", flags).assert_code(0);
    }

    /// `bowline sandbox rm`, which works: nothing is known of it any more.
    #[track_caller]
    pub fn rm<const N: usize>(&self, flags: [&str; N]) {
        self.bowline("rm", flags).assert_code(0);
        assert!(!self.file("").exists(), "its folder is left");
    }

    /// A file of its folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.host.state().join(&self.id).join(name)
    }

    /// Its joint cgroup's folder in the hierarchy of `controller`.
    #[track_caller]
    pub fn cgroup(&self, controller: &str) -> PathBuf {
        self.folder_of("cgroup", controller)
    }

    /// The cgroup folder that its shim and helpers are charged to.
    #[track_caller]
    pub fn overhead(&self, controller: &str) -> PathBuf {
        self.folder_of("overhead", controller)
    }

    #[track_caller]
    fn folder_of(&self, field: &str, controller: &str) -> PathBuf {
        let inspected = self.inspect();
        let path = inspected[field].as_str().unwrap_or_else(|| panic!("no {field} in {inspected}"));
        kernel::hierarchy(controller).join(path.trim_start_matches('/'))
    }

    /// What a file of its joint cgroup contains.
    #[track_caller]
    pub fn cgroup_file(&self, controller: &str, file: &str) -> String {
        let path = self.cgroup(controller).join(file);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        text.trim_end().to_owned()
    }

    /// What the kernel holds its members to together.
    #[track_caller]
    pub fn limits(&self) -> Limits {
        Limits::of(self.inspect()["cgroup"].as_str().expect("a path"))
    }

    /// The pids of all members.
    #[track_caller]
    pub fn processes(&self) -> Vec<i32> {
        kernel::processes_below(&self.cgroup("freezer"))
    }

    /// The pids of its shim and helpers, as far as they are charged beside it.
    #[track_caller]
    pub fn helpers(&self) -> Vec<i32> {
        kernel::processes_below(&self.overhead("memory"))
    }

    /// Freezes all of it as somebody would who does not use `bowline pause`, and waits until it is frozen.
    #[track_caller]
    pub fn freeze(&self) {
        kernel::set_frozen(&self.cgroup("freezer"), true);
        eventually("it is frozen", || self.is_frozen().then_some(()));
    }

    /// Whether every process of it is frozen.
    #[track_caller]
    pub fn is_frozen(&self) -> bool {
        kernel::is_frozen(&self.cgroup("freezer"))
    }

    /// Changes its record, as its shim would have written it.
    #[track_caller]
    pub fn change_record(&self, change: impl FnOnce(&mut Value)) {
        let path = self.file("sandbox.json");
        let mut record: Value = serde_json::from_slice(&fs::read(&path).expect("a record")).expect("JSON");
        change(&mut record);
        fs::write(path, record.to_string()).expect("ours");
    }

    /// Kills its shim, as a crash would, and waits until that is gone; somebody may have a new one started at once.
    #[track_caller]
    pub fn crash_shim(&self) {
        let shim = self.shim_pid();
        kill_process(Pid::from_raw(shim).expect("a pid"), Signal::KILL).expect("the shim lives");
        eventually(format_args!("the shim {shim} is gone"), || (!kernel::process_exists(shim)).then_some(()));
    }

    /// Like [`Sandbox::crash_shim`], where nobody waits for it.
    #[track_caller]
    pub fn kill_shim(&self) {
        self.crash_shim();
        let socket = self.file("shim.sock");
        eventually("nobody listens any more", || UnixStream::connect(&socket).is_err().then_some(()));
    }
}
