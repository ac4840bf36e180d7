//! A task as Nomad has it: its configuration, its handle, the FIFOs that its output goes to.

use std::cell::{RefCell, RefMut};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::harness::Host;

use super::allocation::{Allocation, Cgroups};
use super::fifo::Fifo;
use super::link::{Refusal, Stream};
use super::plugin::Plugin;
use super::text;

/// A task that is not started yet.
#[must_use]
pub struct Build<'p> {
    host: &'p Host,
    plugin: &'p Plugin<'p>,
    allocation: Rc<Allocation>,
    name: String,
    config: Value,
    packed: Option<String>,
    message: Value,
    unread: bool,
}

impl<'p> Build<'p> {
    pub(super) fn new(
        host: &'p Host,
        plugin: &'p Plugin<'p>,
        allocation: Rc<Allocation>,
        name: &str,
        config: Value,
    ) -> Build<'p> {
        // What bowline makes for a task has the task's name in its own, and so the test's.
        let name = format!("{}-{name}", host.prefix());
        allocation.add(&name);
        let message = message(host, &allocation, &name);
        Build { host, plugin, allocation, name, config, packed: None, message, unread: false }
            .cpu_shares(100)
            .memory(128, 0)
    }

    /// With this in its `config` block.
    pub fn config(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.config[key] = value.into();
        self
    }

    /// With this msgpack for its `config` block, in base64, whatever the schema says.
    pub fn packed(mut self, packed: impl Into<String>) -> Self {
        self.packed = Some(packed.into());
        self
    }

    /// With this field of Nomad's TaskConfig.
    pub fn field(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.message[key] = value.into();
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.message["env"][name] = json!(value);
        self
    }

    /// With so many MHz, which are its CPU shares too.
    pub fn cpu_shares(mut self, shares: i64) -> Self {
        self.resources("allocated_resources")["cpu"] = json!({"cpu_shares": shares});
        self.resources("linux_resources")["cpu_shares"] = json!(shares);
        self
    }

    /// With `memory` and `memory_max` in MiB: 0: not set; -1: unlimited.
    pub fn memory(mut self, memory: i64, max: i64) -> Self {
        self.resources("allocated_resources")["memory"] = json!({"memory_mb": memory, "memory_max_mb": max});
        self.resources("linux_resources")["memory_limit_bytes"] = json!(memory.max(max) << 20);
        self
    }

    /// With these cores of its own, as `0-1`.
    pub fn cores(mut self, cores: &str) -> Self {
        self.resources("linux_resources")["cpuset_cpus"] = json!(cores);
        self
    }

    fn resources(&mut self, which: &str) -> &mut Value {
        &mut self.message["resources"][which]
    }

    /// Nobody reads its FIFOs until the case says so.
    pub fn unread(mut self) -> Self {
        self.unread = true;
        self
    }

    /// The folder of the task, which has `local` and `secrets`.
    pub fn folder(&self) -> PathBuf {
        self.allocation.dir().join(&self.name)
    }

    /// Writes a file in the task's `local` folder.
    pub fn local_file(self, name: &str, content: &str, mode: u32) -> Self {
        let path = self.folder().join("local").join(name);
        fs::write(&path, content).expect("ours");
        rustix::fs::chmod(&path, rustix::fs::Mode::from_raw_mode(mode)).expect("ours");
        self
    }

    /// Starts the task; panics if the driver refuses.
    #[track_caller]
    pub fn start(self) -> Task {
        self.try_start().unwrap_or_else(|refusal| panic!("StartTask: {refusal}"))
    }

    /// The driver refuses to start it, for a reason that has all of `parts`, and leaves nothing behind.
    #[track_caller]
    pub fn assert_refused(self, parts: &[&str]) -> Refusal {
        let Err(refusal) = self.try_start() else { panic!("it was started, and not refused for {parts:?}") };
        refusal.assert_says(parts);
        refusal
    }

    /// The agent refuses its `config` block by the driver's schema, for a reason that has all of `parts`.
    #[track_caller]
    pub fn assert_refused_by_the_agent(self, parts: &[&str]) {
        let Err(refusal) = self.plugin.encoded("task", &self.config) else {
            panic!("the schema allows {}", self.config)
        };
        refusal.assert_says(parts);
    }

    /// Starts it if it can be.
    pub fn try_start(self) -> Result<Task, Refusal> {
        let plugin = self.plugin;
        self.prepared()?.start(plugin)
    }

    /// What Nomad makes for it, without a start.
    pub fn prepared(self) -> Result<Prepared, Refusal> {
        let packed = match &self.packed {
            Some(packed) => packed.clone(),
            None => self.plugin.encoded("task", &self.config)?,
        };
        let reserves = self.message["resources"]["linux_resources"]["cpuset_cpus"].is_string();
        let cgroups = Cgroups::make(self.host, self.allocation.id(), &self.name, reserves);
        let mut message = self.message;
        message["msgpack_driver_config"] = json!(packed);
        let in_cgroup = &mut message["resources"]["linux_resources"]["cpuset_cgroup"];
        if in_cgroup.is_null() {
            *in_cgroup = json!(cgroups.path());
        }
        let fifo = |stream: &str| {
            let mut fifo = self.allocation.fifo(&self.name, stream);
            if !self.unread {
                fifo.read();
            }
            fifo
        };
        let (out, err) = (fifo("stdout"), fifo("stderr"));
        Ok(Prepared { message, allocation: self.allocation, out, err, cgroups })
    }
}

/// A task that Nomad has made everything for.
pub struct Prepared {
    message: Value,
    allocation: Rc<Allocation>,
    out: Fifo,
    err: Fifo,
    cgroups: Cgroups,
}

impl Prepared {
    pub fn allocation(&self) -> Rc<Allocation> {
        self.allocation.clone()
    }

    /// Begins to start it, without waiting for the answer.
    pub fn begin(&self, plugin: &Plugin<'_>) -> Stream {
        plugin.driver_stream("StartTask", json!({"task": self.message}))
    }

    /// Starts it by this plugin, if it can be. As by Nomad, that is tried again with new readers where the ones of an
    /// earlier start had left with its writers.
    pub fn start(self, plugin: &Plugin<'_>) -> Result<Task, Refusal> {
        let Prepared { message, allocation, mut out, mut err, cgroups } = self;
        let started = loop {
            [&mut out, &mut err].into_iter().for_each(Fifo::read_on);
            match plugin.driver("StartTask", json!({"task": message})) {
                Err(refusal) if refusal.recoverable == Some(true) && (out.is_left() || err.is_left()) => {}
                started => break started,
            }
        };
        let answer = started.inspect_err(|_| cgroups.remove())?;
        assert_eq!(answer["result"], "SUCCESS", "{answer}");
        let handle = answer["handle"].clone();
        let (out, err) = (RefCell::new(out), RefCell::new(err));
        Ok(Task { message, answer, handle, allocation, out, err, cgroups })
    }
}

/// How many tasks there were: Nomad gives each start an id of its own.
static STARTED: AtomicU32 = AtomicU32::new(0x5eed);

fn new_id(allocation: &str, task: &str) -> String {
    format!("{allocation}/{task}/{:08x}", STARTED.fetch_add(1, Ordering::Relaxed))
}

/// What Nomad says of every task.
fn message(host: &Host, allocation: &Allocation, name: &str) -> Value {
    let (id, dir) = (allocation.id(), text(allocation.dir()));
    let logs = format!("{dir}/alloc/logs/.{name}");
    json!({
        "id": new_id(id, name),
        "name": name,
        "alloc_id": id,
        "alloc_dir": dir,
        "stdout_path": format!("{logs}.stdout.fifo"),
        "stderr_path": format!("{logs}.stderr.fifo"),
        "task_group_name": "group",
        "job_name": "a job",
        "job_id": format!("{}-job", host.prefix()),
        "namespace": "default",
        "node_name": "node",
        "node_id": "57de4d6c-3a1f-4e6e-a9d8-e8a8a1f0c0de",
        "env": {
            "NOMAD_ALLOC_DIR": "/alloc",
            "NOMAD_TASK_DIR": "/local",
            "NOMAD_SECRETS_DIR": "/secrets",
            "NOMAD_ALLOC_ID": id,
            "NOMAD_TASK_NAME": name,
        },
        "resources": {"allocated_resources": {}, "linux_resources": {"PercentTicks": 0.05}, "ports": []},
    })
}

/// A task that was started.
pub struct Task {
    message: Value,
    answer: Value,
    handle: Value,
    allocation: Rc<Allocation>,
    out: RefCell<Fifo>,
    err: RefCell<Fifo>,
    cgroups: Cgroups,
}

impl Task {
    /// Starts the same id by another process of the plugin, as the agent does where it had no answer.
    #[track_caller]
    pub fn start_again(self, plugin: &Plugin<'_>) -> Task {
        self.prepared().start(plugin).unwrap_or_else(|refusal| panic!("StartTask: {refusal}"))
    }

    /// Like [`Self::start_again`], with this in its environment: another request.
    #[track_caller]
    pub fn start_again_with(self, plugin: &Plugin<'_>, name: &str, value: &str) -> Task {
        let mut prepared = self.prepared();
        prepared.message["env"][name] = json!(value);
        prepared.start(plugin).unwrap_or_else(|refusal| panic!("StartTask: {refusal}"))
    }

    /// Starts it under another id, as an agent does that has lost the one that it was starting.
    #[track_caller]
    pub fn start_anew(self, plugin: &Plugin<'_>) -> Task {
        let mut prepared = self.prepared();
        let (allocation, name) = (prepared.allocation.id(), prepared.message["name"].as_str().expect("it has one"));
        prepared.message["id"] = json!(new_id(allocation, name));
        prepared.start(plugin).unwrap_or_else(|refusal| panic!("StartTask: {refusal}"))
    }

    fn prepared(self) -> Prepared {
        let Task { message, allocation, out, err, cgroups, .. } = self;
        Prepared { message, allocation, out: out.into_inner(), err: err.into_inner(), cgroups }
    }

    pub fn id(&self) -> &str {
        self.message["id"].as_str().expect("it has one")
    }

    /// What `StartTask` has answered.
    pub fn answer(&self) -> &Value {
        &self.answer
    }

    /// The configuration that it was started with.
    pub fn message(&self) -> &Value {
        &self.message
    }

    /// What an agent that was restarted knows of it: not its `config` block.
    pub fn handle_after_restart(&self) -> Value {
        let mut handle = self.handle.clone();
        handle["config"] = self.message.clone();
        handle["config"]["msgpack_driver_config"] = json!("");
        handle
    }

    pub fn allocation(&self) -> Rc<Allocation> {
        self.allocation.clone()
    }

    /// A file of its `local` folder.
    pub fn local(&self, name: &str) -> PathBuf {
        let task = self.message["name"].as_str().expect("it has one");
        self.allocation.dir().join(task).join("local").join(name)
    }

    /// The FIFO that the task's stdout goes to.
    pub fn out(&self) -> RefMut<'_, Fifo> {
        self.out.borrow_mut()
    }

    /// The FIFO that the task's stderr goes to.
    pub fn err(&self) -> RefMut<'_, Fifo> {
        self.err.borrow_mut()
    }

    /// Its cgroup in the hierarchy of `controller`, if Nomad has made one there.
    pub fn cgroup(&self, controller: &str) -> Option<&Path> {
        self.cgroups.folder(controller).map(PathBuf::as_path)
    }

    /// Writes to `cgroup.kill` of its cgroup, as the agent does.
    pub fn kill_cgroup(&self) {
        self.cgroups.kill();
    }

    /// Asserts that nobody is left in the cgroups of the agent, and removes them.
    #[track_caller]
    pub fn remove_cgroups(&self) {
        self.cgroups.remove();
    }
}
