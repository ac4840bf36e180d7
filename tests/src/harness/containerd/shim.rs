//! A shim: started as containerd does it, asked by the calls of its task service.

use std::path::{Path, PathBuf};
use std::time::Duration;

use containerd_shim_protos::api;
use protobuf::well_known_types::any::Any;
use protobuf::well_known_types::empty::Empty;
use protobuf::{EnumOrUnknown, Message, MessageField};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use super::bundle::{Bundle, Stdio};
use super::is_reference;
use super::wire::{Client, Failure, Pending};
use crate::harness::{eventually, fds_of, process_exists};

type Answer<R> = Result<R, Failure>;

/// The type of a process in a request.
pub const PROCESS: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";
/// The type of resources in a request.
pub const RESOURCES: &str = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources";

/// A shim, and a connection to it.
pub struct Shim {
    pub socket: PathBuf,
    pub client: Client,
    /// The service that is called.
    pub service: &'static str,
}

/// Wraps `value` in an `Any` whose type is `kind`.
pub fn any(kind: &str, value: impl Into<Vec<u8>>) -> Any {
    Any { type_url: kind.to_owned(), value: value.into(), ..Any::default() }
}

impl Shim {
    pub(super) fn dial(socket: &Path, namespace: &str) -> Shim {
        // containerd dials at once: the shim listens before it answers `start`.
        let client = Client::connect(socket, namespace)
            .unwrap_or_else(|error| panic!("nobody listens at {}: {error}", socket.display()));
        Shim { socket: socket.to_owned(), client, service: "containerd.task.v2.Task" }
    }

    pub fn send<R: Message>(&self, method: &str, message: &impl Message) -> Pending<R> {
        self.client.send(self.service, method, message, Duration::ZERO)
    }

    /// Any call of a caller that gives up so soon.
    pub fn send_within<R: Message>(&self, patience: Duration, method: &str, message: &impl Message) -> Pending<R> {
        self.client.send(self.service, method, message, patience)
    }

    #[track_caller]
    fn call<R: Message>(&self, method: &str, message: &impl Message) -> Answer<R> {
        self.send(method, message).wait()
    }

    /// The request that creates a bundle's container.
    pub fn creation(&self, bundle: &Bundle, io: &Stdio) -> api::CreateTaskRequest {
        let io = io.clone();
        api::CreateTaskRequest {
            id: bundle.id.clone(),
            bundle: bundle.path.to_str().expect("ASCII").to_owned(),
            terminal: io.terminal,
            stdin: io.stdin,
            stdout: io.stdout,
            stderr: io.stderr,
            ..Default::default()
        }
    }

    #[track_caller]
    pub fn create(&self, bundle: &Bundle, io: &Stdio) -> Answer<u32> {
        self.create_by(&self.creation(bundle, io))
    }

    /// Creates what the request says.
    #[track_caller]
    pub fn create_by(&self, request: &api::CreateTaskRequest) -> Answer<u32> {
        self.call("Create", request).map(|answer: api::CreateTaskResponse| answer.pid)
    }

    /// Starts init (no exec id) or an exec.
    #[track_caller]
    pub fn start(&self, id: &str, exec: &str) -> Answer<u32> {
        self.start_later(id, exec).wait().map(|answer| answer.pid)
    }

    /// Like [`Self::start`], without waiting for the answer.
    pub fn start_later(&self, id: &str, exec: &str) -> Pending<api::StartResponse> {
        let request = api::StartRequest { id: id.into(), exec_id: exec.into(), ..Default::default() };
        self.send("Start", &request)
    }

    /// Adds an exec of this process.
    #[track_caller]
    pub fn exec(&self, id: &str, exec: &str, process: &Value, io: &Stdio) -> Answer<Empty> {
        self.exec_later(id, exec, process, io).wait()
    }

    /// Like [`Self::exec`], without waiting for the answer.
    pub fn exec_later(&self, id: &str, exec: &str, process: &Value, io: &Stdio) -> Pending<Empty> {
        let io = io.clone();
        let request = api::ExecProcessRequest {
            id: id.into(),
            exec_id: exec.into(),
            terminal: io.terminal,
            stdin: io.stdin,
            stdout: io.stdout,
            stderr: io.stderr,
            spec: MessageField::some(any(PROCESS, process.to_string())),
            ..Default::default()
        };
        self.send("Exec", &request)
    }

    #[track_caller]
    pub fn wait(&self, id: &str, exec: &str) -> Answer<api::WaitResponse> {
        self.wait_later(id, exec).wait()
    }

    /// Asks for the end, without waiting.
    pub fn wait_later(&self, id: &str, exec: &str) -> Pending<api::WaitResponse> {
        let request = api::WaitRequest { id: id.into(), exec_id: exec.into(), ..Default::default() };
        self.send("Wait", &request)
    }

    /// Deletes what is not running.
    #[track_caller]
    pub fn delete(&self, id: &str, exec: &str) -> Answer<api::DeleteResponse> {
        self.delete_later(id, exec).wait()
    }

    /// Like [`Self::delete`], without waiting for the answer.
    pub fn delete_later(&self, id: &str, exec: &str) -> Pending<api::DeleteResponse> {
        let request = api::DeleteRequest { id: id.into(), exec_id: exec.into(), ..Default::default() };
        self.send("Delete", &request)
    }

    /// Sends a signal to init or an exec.
    #[track_caller]
    pub fn kill(&self, id: &str, exec: &str, signal: u32) -> Answer<Empty> {
        let request = api::KillRequest { id: id.into(), exec_id: exec.into(), signal, ..Default::default() };
        self.call("Kill", &request)
    }

    /// Sends a signal to all of the container.
    #[track_caller]
    pub fn kill_all(&self, id: &str, signal: u32) -> Answer<Empty> {
        self.call("Kill", &api::KillRequest { id: id.into(), signal, all: true, ..Default::default() })
    }

    #[track_caller]
    pub fn state(&self, id: &str, exec: &str) -> Answer<api::StateResponse> {
        let request = api::StateRequest { id: id.into(), exec_id: exec.into(), ..Default::default() };
        self.call("State", &request)
    }

    /// In one word: CREATED, RUNNING, STOPPED, PAUSED.
    #[track_caller]
    pub fn status(&self, id: &str, exec: &str) -> String {
        let state = self.state(id, exec).unwrap_or_else(|failure| panic!("state: {failure:?}"));
        let status: EnumOrUnknown<api::Status> = state.status;
        format!("{:?}", status.enum_value().expect("a known status"))
    }

    /// Its processes: pid, and the exec where the shim knows.
    #[track_caller]
    pub fn pids(&self, id: &str) -> Answer<Vec<(u32, Option<String>)>> {
        let answer: api::PidsResponse = self.call("Pids", &api::PidsRequest { id: id.into(), ..Default::default() })?;
        let processes = answer.processes.into_iter().map(|process| {
            let exec = process.info.into_option().map(|info| {
                // ProcessDetails has one field, a string, as the first of this one.
                api::PidsRequest::parse_from_bytes(&info.value).expect("a string in field 1").id
            });
            (process.pid, exec)
        });
        Ok(processes.collect())
    }

    #[track_caller]
    pub fn pause(&self, id: &str) -> Answer<Empty> {
        self.call("Pause", &api::PauseRequest { id: id.into(), ..Default::default() })
    }

    #[track_caller]
    pub fn resume(&self, id: &str) -> Answer<Empty> {
        self.call("Resume", &api::ResumeRequest { id: id.into(), ..Default::default() })
    }

    #[track_caller]
    pub fn update(&self, id: &str, resources: &Value) -> Answer<Empty> {
        let resources = MessageField::some(any(RESOURCES, resources.to_string()));
        self.call("Update", &api::UpdateTaskRequest { id: id.into(), resources, ..Default::default() })
    }

    #[track_caller]
    pub fn stats(&self, id: &str) -> Answer<Any> {
        let answer: Answer<api::StatsResponse> =
            self.call("Stats", &api::StatsRequest { id: id.into(), ..Default::default() });
        answer.map(|answer| answer.stats.unwrap_or_default())
    }

    /// Gives its terminal another size.
    #[track_caller]
    pub fn resize(&self, id: &str, exec: &str, width: u32, height: u32) -> Answer<Empty> {
        let request =
            api::ResizePtyRequest { id: id.into(), exec_id: exec.into(), width, height, ..Default::default() };
        self.call("ResizePty", &request)
    }

    #[track_caller]
    pub fn close_stdin(&self, id: &str, exec: &str) -> Answer<Empty> {
        let request = api::CloseIORequest { id: id.into(), exec_id: exec.into(), stdin: true, ..Default::default() };
        self.call("CloseIO", &request)
    }

    /// Who the shim and the task are.
    #[track_caller]
    pub fn connect(&self, id: &str) -> Answer<api::ConnectResponse> {
        self.call("Connect", &api::ConnectRequest { id: id.into(), ..Default::default() })
    }

    #[track_caller]
    pub fn pid(&self) -> i32 {
        let answer = self.connect("").unwrap_or_else(|failure| panic!("connect: {failure:?}"));
        answer.shim_pid.try_into().expect("a pid")
    }

    /// How many descriptors it has, once it watches the memory of its container: it begins that a moment after the start.
    #[track_caller]
    pub fn settled_fds(&self) -> usize {
        let pid = self.pid();
        let watches =
            |fd: &String| is_reference() || fd.ends_with("/memory.oom_control") || fd.ends_with("/memory.events");
        eventually("it watches memory", || fds_of(pid).iter().any(watches).then_some(()));
        // Once it answers again, it has opened everything for that.
        assert_eq!(self.pid(), pid);
        fds_of(pid).len()
    }

    #[track_caller]
    pub fn shutdown(&self, id: &str) -> Answer<Empty> {
        self.call("Shutdown", &api::ShutdownRequest { id: id.into(), ..Default::default() })
    }

    /// Creates and starts a bundle's container; init's pid.
    #[track_caller]
    pub fn run(&self, bundle: &Bundle, io: &Stdio) -> i32 {
        let created = self.create(bundle, io).unwrap_or_else(|failure| panic!("create: {failure:?}"));
        let started = self.start(&bundle.id, "").unwrap_or_else(|failure| panic!("start: {failure:?}"));
        assert_eq!(created, started, "one process from Create on");
        started.try_into().expect("a pid")
    }

    /// Adds and starts an exec; its pid.
    #[track_caller]
    pub fn run_exec(&self, bundle: &Bundle, exec: &str, args: &[&str], io: &Stdio) -> i32 {
        let added = self.exec(&bundle.id, exec, &bundle.process(args), io);
        added.unwrap_or_else(|failure| panic!("exec: {failure:?}"));
        let started = self.start(&bundle.id, exec).unwrap_or_else(|failure| panic!("start: {failure:?}"));
        started.try_into().expect("a pid")
    }

    /// The exit status, once it has ended.
    #[track_caller]
    pub fn status_at_end(&self, id: &str, exec: &str) -> u32 {
        self.wait(id, exec).unwrap_or_else(|failure| panic!("wait: {failure:?}")).exit_status
    }

    /// Kills init, waits for it and deletes the container.
    #[track_caller]
    pub fn remove(&self, id: &str) {
        // It may have ended by itself.
        let _ = self.kill_all(id, 9);
        let _ = self.kill(id, "", 9);
        self.wait(id, "").unwrap_or_else(|failure| panic!("wait: {failure:?}"));
        self.delete(id, "").unwrap_or_else(|failure| panic!("delete: {failure:?}"));
    }

    /// Kills it, as nobody should, and waits until it has gone.
    #[track_caller]
    pub fn kill_shim(&self) {
        let pid = self.pid();
        let pidfd = pidfd_open(Pid::from_raw(pid).expect("a pid"), PidfdFlags::empty()).expect("a live shim");
        pidfd_send_signal(&pidfd, Signal::KILL).expect("a live shim");
        eventually("the shim ends", || (!process_exists(pid)).then_some(()));
    }

    /// Asks it to go, as nothing is left in it, and waits until it and its socket have gone.
    #[track_caller]
    pub fn over(self) {
        let pid = self.pid();
        // It may have gone before it has answered.
        let _ = self.shutdown("");
        eventually("the shim ends", || (!process_exists(pid)).then_some(()));
        eventually("the socket goes", || (!self.socket.exists()).then_some(()));
    }

    /// Removes the container, then ends the shim.
    #[track_caller]
    pub fn end(self, id: &str) {
        self.remove(id);
        self.over();
    }

    /// Whether it answers within a moment.
    #[track_caller]
    pub fn assert_alive(&self) {
        let answer = self.send::<api::ConnectResponse>("Connect", &api::ConnectRequest::new());
        let answer = answer.wait_for(Duration::from_secs(20)).expect("the shim answers");
        answer.expect("the shim lives");
    }
}
