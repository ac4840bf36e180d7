//! A plugin that was launched, and each call of its services.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::{Value, json};

use crate::harness::Host;

use super::allocation::Allocation;
use super::link::{Link, Refusal, Stream};
use super::task::{Build, Task};

const BASE: &str = "hashicorp.nomad.plugins.base.proto.BasePlugin";
const DRIVER: &str = "hashicorp.nomad.plugins.drivers.proto.Driver";

/// How to launch a plugin.
pub struct Launch(Value);

impl Launch {
    /// The program, with the agent's own environment.
    pub fn new(program: &Path) -> Launch {
        Launch(json!({"path": program}))
    }

    pub(super) fn attached_to(pid: i32, socket: &Path) -> Launch {
        Launch(json!({"reattach": {"pid": pid, "address": socket}}))
    }

    /// With these variables beside the agent's own, as `NAME=value`.
    pub fn env(mut self, variables: &[&str]) -> Launch {
        self.0["env"] = json!(variables);
        self
    }

    /// As a host of go-plugin does that would like one connection for all, which Nomad does not ask for.
    pub fn multiplexed(mut self) -> Launch {
        self.0["multiplex"] = json!(true);
        self
    }
}

pub struct Plugin<'h> {
    host: &'h Host,
    link: Rc<Link>,
    name: String,
    pid: i32,
    socket: PathBuf,
}

impl<'h> Plugin<'h> {
    pub(super) fn launch(host: &'h Host, link: Rc<Link>, launch: &Launch) -> Result<Plugin<'h>, Refusal> {
        let name = host.new_id();
        let mut asked = launch.0.clone();
        asked["do"] = json!("launch");
        asked["plugin"] = json!(name);
        let identity = link.ask(asked)?;
        let pid = identity["pid"].as_i64().and_then(|pid| pid.try_into().ok()).expect("a pid");
        let socket = identity["address"].as_str().expect("a path").into();
        Ok(Plugin { host, link, name, pid, socket })
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The path of the socket that the plugin listens on.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Asks it to shut down, and kills it where it does not: what go-plugin says of its end.
    #[track_caller]
    pub fn kill(&self) -> Value {
        self.link.ask(json!({"do": "kill", "plugin": self.name})).expect("it can always be killed")
    }

    /// What go-plugin asks from time to time.
    #[track_caller]
    pub fn ping(&self) {
        self.link.ask(json!({"do": "ping", "plugin": self.name})).expect("it answers");
    }

    /// What go-plugin and the plugin have logged: `@level`, `@message`, …
    #[track_caller]
    pub fn logs(&self) -> Vec<Value> {
        let logs = self.link.ask(json!({"do": "logs", "plugin": self.name})).expect("kept by the agent");
        logs.as_array().expect("a list").clone()
    }

    /// A call of any service, by `package.Service/Method`.
    pub fn call(&self, method: &str, message: Value) -> Result<Value, Refusal> {
        self.link.ask(json!({"do": "call", "plugin": self.name, "method": method, "message": message}))
    }

    /// A stream of any service.
    pub fn open(&self, method: &str, message: Value) -> Stream {
        let asked = json!({"do": "open", "plugin": self.name, "method": method, "message": message});
        Stream::open(self.link.clone(), asked)
    }

    /// A call of the base service.
    pub fn base(&self, method: &str, message: Value) -> Result<Value, Refusal> {
        self.call(&format!("{BASE}/{method}"), message)
    }

    /// A call of the driver's service.
    pub fn driver(&self, method: &str, message: Value) -> Result<Value, Refusal> {
        self.call(&format!("{DRIVER}/{method}"), message)
    }

    /// A stream of the driver's service.
    pub fn driver_stream(&self, method: &str, message: Value) -> Stream {
        self.open(&format!("{DRIVER}/{method}"), message)
    }

    /// A call of the driver's service about a task.
    fn of_task(&self, method: &str, id: &str, mut message: Value) -> Result<Value, Refusal> {
        message["task_id"] = json!(id);
        self.driver(method, message)
    }

    /// A value as msgpack, in base64, if the schema `config` or `task` allows it: what the agent checks.
    pub fn encoded(&self, schema: &str, value: &Value) -> Result<String, Refusal> {
        let asked = json!({"do": "encode", "plugin": self.name, "schema": schema, "value": value});
        Ok(self.link.ask(asked)?.as_str().expect("base64").to_owned())
    }

    /// `SetConfig` with this configuration and with the node's: the last time.
    pub fn configure(&self, config: Value) -> Result<(), Refusal> {
        let packed = self.encoded("config", &config)?;
        self.configure_packed(&packed, node())
    }

    /// `SetConfig` with this msgpack, and with the node's configuration or null.
    pub fn configure_packed(&self, packed: &str, node: Value) -> Result<(), Refusal> {
        let mut message = json!({"msgpack_config": packed, "plugin_api_version": "v0.1.0"});
        if !node.is_null() {
            message["nomad_config"] = node;
        }
        self.base("SetConfig", message).map(|_| ())
    }

    /// A task in an allocation of its own that runs `script` in a shell.
    pub fn task(&self, script: &str) -> Build<'_> {
        self.task_of(json!({"command": "/bin/sh", "args": ["-c", script]}))
    }

    /// A task in an allocation of its own with this configuration.
    pub fn task_of(&self, config: Value) -> Build<'_> {
        self.task_in(Rc::new(self.allocation()), "web", config)
    }

    /// A task of this name in an allocation.
    pub fn task_in(&self, allocation: Rc<Allocation>, name: &str, config: Value) -> Build<'_> {
        Build::new(self.host, self, allocation, name, config)
    }

    /// The folders of an allocation.
    pub fn allocation(&self) -> Allocation {
        Allocation::make(self.host)
    }

    /// How the task ended, once it has.
    #[track_caller]
    pub fn wait(&self, task: &Task) -> Exit {
        let stream = self.begin_wait(task);
        let answer = stream.next().unwrap_or_else(|| panic!("{}", stream.end().expect_err("no answer")));
        assert_eq!(answer["err"], "", "{answer}");
        Exit(answer["result"].clone())
    }

    /// Begins to wait. The one answer comes as the only one of a stream.
    pub fn begin_wait(&self, task: &Task) -> Stream {
        self.driver_stream("WaitTask", json!({"task_id": task.id()}))
    }

    /// `StopTask`, with this signal and so long until the kill, as `"2s"`.
    #[track_caller]
    pub fn stop(&self, task: &Task, signal: &str, timeout: &str) {
        let message = json!({"signal": signal, "timeout": timeout});
        self.of_task("StopTask", task.id(), message).unwrap_or_else(|refusal| panic!("StopTask: {refusal}"));
    }

    /// `DestroyTask` of a task that runs no more, and what the agent does then.
    #[track_caller]
    pub fn destroy(&self, task: &Task) {
        self.destroy_id(task.id(), false).unwrap_or_else(|refusal| panic!("DestroyTask: {refusal}"));
        task.remove_cgroups();
    }

    /// `DestroyTask` of whatever is there, and what the agent does then.
    #[track_caller]
    pub fn destroy_by_force(&self, task: &Task) {
        self.destroy_id(task.id(), true).unwrap_or_else(|refusal| panic!("DestroyTask by force: {refusal}"));
        task.remove_cgroups();
    }

    pub fn destroy_id(&self, id: &str, force: bool) -> Result<(), Refusal> {
        self.of_task("DestroyTask", id, json!({"force": force})).map(|_| ())
    }

    pub fn try_stop(&self, id: &str, signal: &str, timeout: &str) -> Result<(), Refusal> {
        self.of_task("StopTask", id, json!({"signal": signal, "timeout": timeout})).map(|_| ())
    }

    pub fn signal(&self, task: &Task, signal: &str) -> Result<(), Refusal> {
        self.of_task("SignalTask", task.id(), json!({"signal": signal})).map(|_| ())
    }

    /// What `InspectTask` says.
    #[track_caller]
    pub fn inspect(&self, task: &Task) -> Value {
        self.of_task("InspectTask", task.id(), json!({})).unwrap_or_else(|refusal| panic!("InspectTask: {refusal}"))
    }

    /// `RecoverTask` as after a restart of the agent.
    pub fn recover(&self, task: &Task) -> Result<(), Refusal> {
        self.recover_handle(task.handle_after_restart())
    }

    pub fn recover_handle(&self, handle: Value) -> Result<(), Refusal> {
        self.driver("RecoverTask", json!({"handle": handle})).map(|_| ())
    }

    /// `ExecTask` of a script, with so long for it, as `"2s"`: what it said, and how it ended.
    pub fn exec(&self, task: &Task, script: &str, timeout: &str) -> Result<(String, Exit), Refusal> {
        self.exec_command(task, json!(["/bin/sh", "-c", script]), timeout)
    }

    pub fn exec_command(&self, task: &Task, command: Value, timeout: &str) -> Result<(String, Exit), Refusal> {
        let answer = self.of_task("ExecTask", task.id(), json!({"command": command, "timeout": timeout}))?;
        let said = super::decoded(answer["stdout"].as_str().expect("base64"));
        Ok((String::from_utf8_lossy(&said).into_owned(), Exit(answer["result"].clone())))
    }

    /// Begins `ExecTaskStreaming` of a script.
    pub fn exec_stream(&self, task: &Task, script: &str, tty: bool) -> Stream {
        let stream = self.driver_stream("ExecTaskStreaming", Value::Null);
        let command = ["/bin/sh", "-c", script];
        stream.send(json!({"setup": {"task_id": task.id(), "command": command, "tty": tty}}));
        stream
    }

    /// Readings of a task, so far apart, as `"1s"`.
    pub fn stats(&self, task: &Task, interval: &str) -> Stream {
        self.driver_stream("TaskStats", json!({"task_id": task.id(), "collection_interval": interval}))
    }

    /// The stream of events of the driver's tasks.
    pub fn events(&self) -> Stream {
        self.driver_stream("TaskEvents", json!({}))
    }

    /// The driver's fingerprint of the node.
    pub fn fingerprint(&self) -> Stream {
        self.driver_stream("Fingerprint", json!({}))
    }
}

/// What the agent says of its node: two cores of 1000 MHz each.
pub(super) fn node() -> Value {
    let core = |id: u32| json!({"core_id": id, "core_grade": "Performance", "base_speed": "1000", "max_speed": "2000"});
    json!({"driver": {
        "ClientMaxPort": 14512,
        "ClientMinPort": 14000,
        "Topology": {"node_ids": [0], "distances": {"dimension": 1, "values": [10]}, "cores": [core(0), core(1)]},
    }})
}

/// How a task or an exec has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Exit(pub Value);

impl Exit {
    /// Asserts that it ended by itself, with this code.
    #[track_caller]
    pub fn assert_code(&self, code: i32) -> &Exit {
        assert_eq!(self.0, json!({"exit_code": code, "signal": 0, "oom_killed": false}));
        self
    }

    /// Asserts that this signal killed it.
    #[track_caller]
    pub fn assert_killed_by(&self, signal: i32) -> &Exit {
        assert_eq!(self.0, json!({"exit_code": 128 + signal, "signal": signal, "oom_killed": false}));
        self
    }

    /// Asserts that it was killed as its memory was used up.
    #[track_caller]
    pub fn assert_out_of_memory(&self) -> &Exit {
        assert_eq!(self.0["oom_killed"], true, "{}", self.0);
        self
    }
}
