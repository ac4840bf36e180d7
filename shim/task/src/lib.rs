//! Serves `bowline.v1` on the shim's socket: turns requests into executor calls and encodes the answers.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bowline_executor::internal::CallersPipe;
use bowline_executor::internal::facts::Facts;
use bowline_executor::internal::upgrade::{Manager, ManagerPart};
use bowline_executor::secrets::Secrets;
use bowline_executor::{
    Attachment, BegunExec, CgroupDriver, Exec, ExecEnd, Executor, Input, Launch, Launcher, LeftAlone, Secret,
    Service as UnitService, Target, VERSION, WindowSize,
};
use bowline_model::folder::Lock;
use bowline_model::json::handover::Fd;
use bowline_model::{Doing as _, Error, Kind, Result};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use bowline_spec::{Format, Update};
use jiff::Timestamp;

use bowline_protocol::calls::{
    Answer, Call, Caller, Connections, Door, Handed, Outline, Server, Services, asked, begin_and_wait, call, door,
    unknown_method, unknown_service, wait, wait_for,
};
use bowline_protocol::upgrading::{upgrade, wait_for_upgrade};
use bowline_protocol::wire::proto::bowline as proto;
use bowline_protocol::wire::proto::bowline::{
    AttachRequest, ChargeHelpersRequest, ChargeHelpersResponse, DetachExecRequest, Empty, ExecRequest, ExecResponse,
    FactsResponse, FiguresResponse, KillExecRequest, LaunchRequest, LaunchResponse, Process, ProcessesResponse,
    RemoveSandboxRequest, RemoveSandboxResponse, ResizeRequest, SandboxStateResponse, SignalExecRequest, SignalRequest,
    StateResponse, StatsResponse, StopRequest, TaskRequest, UpdateRequest, UpdateResponse, VersionResponse,
    WaitResponse,
};
use bowline_protocol::wire::{NAME, REVISION, json, to_status};

/// What a shim serves with, and hands over when its program is replaced.
pub struct Entrance {
    pub listener: UnixListener,
    /// The lock of the shim's folder.
    pub lock: Lock,
    /// The connections that the program before this one had.
    pub connections: Handed,
}

/// An [`Entrance`], as a shim hands it over.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct HandedEntrance {
    listener: Fd,
    lock: Fd,
    connections: Handed,
}

impl ManagerPart for HandedEntrance {
    /// Also the manager of those that Nomad's driver starts.
    const MANAGER: &'static str = "bowline";
}

impl Entrance {
    /// An entrance where we are the ones who listen, which tells whoever connects our pid: `listener` was made by our
    /// starter.
    ///
    /// # Errors
    /// `Internal` when `listener` is none.
    pub fn new(listener: OwnedFd, lock: OwnedFd, connections: Handed) -> Result<Entrance> {
        rustix::net::listen(&listener, -1).doing(Kind::Internal, || "cannot listen at the shim's socket")?;
        Ok(Entrance { listener: UnixListener::from(listener), lock: Lock::from_fd(lock), connections })
    }

    /// The entrance that the program before this one has handed over.
    ///
    /// # Errors
    /// `Damaged` when it is not whole.
    pub fn take(handed: HandedEntrance) -> Result<Entrance> {
        Entrance::new(handed.listener.take()?, handed.lock.take()?, handed.connections)
    }
}

/// What is handed over when the shim's program is replaced.
struct Kept {
    door: Rc<Door>,
    lock: Lock,
    connections: Connections,
}

impl Manager for Kept {
    fn name(&self) -> &'static str {
        HandedEntrance::MANAGER
    }

    fn hand_over(&self) -> Result<String> {
        let (listener, lock) = (Fd::of(&*self.door), Fd::of(&self.lock));
        let handed = HandedEntrance { listener, lock, connections: self.connections.hand_over() };
        serde_json::to_string(&handed).doing(Kind::Internal, || "cannot write the connections")
    }

    fn calls_wait(&self) -> bool {
        self.connections.calls_wait()
    }
}

/// Serves at the entrance until the executor has closed and all answers are written. Then removes the shim's folder, where
/// the launch of its task has asked for that; returns what a hook may have left.
///
/// # Errors
/// What cannot be served, or removed.
pub async fn serve(executor: Executor, entrance: Entrance) -> Result<LeftAlone> {
    let connections = Connections::default();
    let Entrance { listener, lock, connections: handed } = entrance;
    let door = door(listener)?;
    let kept = Rc::new(Kept { door: door.clone(), lock, connections: connections.clone() });
    executor.managed_by(kept.clone());
    let service = Service { executor: executor.clone(), connections: connections.clone() };
    let server = Rc::new(Server::new(Rc::new(service), connections));
    server.go_on(handed)?;
    server.serve(door, executor.closed()).await;
    server.leave().await;
    // Who connects while a hook runs is refused, and reads the report. An error means that it was handed over.
    let _ = rustix::net::shutdown(&*kept.door, rustix::net::Shutdown::Both);
    executor.remove_own_folder(&kept.lock)
}

/// Parses the cgroup driver of a request; empty means the default.
fn driver(text: &str) -> Answer<CgroupDriver> {
    if text.is_empty() { Ok(CgroupDriver::default()) } else { text.parse().map_err(|e| to_status(&e)) }
}

pub struct Service {
    pub executor: Executor,
    pub connections: Connections,
}

/// Everything that `Facts` returns: the executor's facts and the open connections.
#[derive(serde::Serialize)]
struct AllFacts {
    #[serde(flatten)]
    facts: Box<Facts>,
    connections: Vec<Outline>,
}

impl Services for Service {
    fn call(self: &Rc<Self>, service: &str, method: &str, payload: &[u8]) -> Answer<Call> {
        if service != NAME {
            return Err(unknown_service(service));
        }
        match method {
            "Wait" => wait(self, payload, Service::wait),
            "Signal" => call(self, payload, Service::signal),
            "Stop" => call(self, payload, Service::stop),
            "Pause" => call(self, payload, Service::pause),
            "Resume" => call(self, payload, Service::resume),
            "Exec" => begin_and_wait(self, payload, Service::begin_exec, exec_outcome),
            "KillExec" => call(self, payload, Service::kill_exec),
            "SignalExec" => call(self, payload, Service::signal_exec),
            "DetachExec" => call(self, payload, Service::detach_exec),
            "Attach" => call(self, payload, Service::attach),
            "Resize" => call(self, payload, Service::resize),
            "Update" => call(self, payload, Service::update),
            "Processes" => call(self, payload, Service::processes),
            "Stats" => call(self, payload, Service::stats),
            "State" => call(self, payload, Service::state),
            "Figures" => call(self, payload, Service::figures),
            "Facts" => call(self, payload, Service::facts),
            "Version" => call(self, payload, Service::version),
            "CreateSandbox" => call(self, payload, Service::create_sandbox),
            "SandboxState" => call(self, payload, Service::sandbox_state),
            "SandboxStats" => call(self, payload, Service::sandbox_stats),
            "UpdateSandbox" => call(self, payload, Service::update_sandbox),
            "ChargeHelpers" => call(self, payload, Service::charge_helpers),
            "RemoveSandbox" => call(self, payload, Service::remove_sandbox),
            "Upgrade" => upgrade(&self.executor, payload),
            _ => Err(unknown_method(method)),
        }
    }

    fn call_from(
        self: &Rc<Self>,
        caller: &mut Caller<'_>,
        service: &str,
        method: &str,
        payload: &[u8],
    ) -> Answer<Call> {
        if (service, method) != (NAME, "Launch") {
            return self.call(service, method, payload);
        }
        let launcher = Launcher::new(caller.until_gone());
        call(self, payload, async move |service: &Service, request| service.launch(request, launcher).await)
    }

    fn wait_again(self: &Rc<Self>, service: &str, method: &str, payload: &[u8], begun: u64) -> Answer<Call> {
        match (service, method) {
            (NAME, "Exec") => {
                let request: ExecRequest = asked(payload)?;
                let exec = self.executor.begun_exec(&id(&request.id)?, begun).map_err(|e| to_status(&e))?;
                Ok(wait_for(Asked { exec, detached: request.detached }, exec_outcome))
            }
            (NAME, "Upgrade") => Ok(wait_for_upgrade(&self.executor, begun)),
            _ => Err(unknown_method(method)),
        }
    }
}

fn id(text: &str) -> Answer<TaskId> {
    text.parse().map_err(|invalid: bowline_spec::Invalid| to_status(&Error::new(Kind::Usage, invalid.to_string())))
}

fn signal(number: i32) -> Answer<Signal> {
    let unknown = || to_status(&Error::new(Kind::Usage, format!("{number} is not the number of a signal")));
    Signal::from_number(number).ok_or_else(unknown)
}

fn target(path: &str) -> Target {
    if path.is_empty() { Target::Null } else { Target::Path(PathBuf::from(path)) }
}

/// The target of an output stream; a path that a user reads in the foreground becomes `Foreground`, and a pipe of that
/// user's, with this inode, `ForegroundPipe`.
fn read_by(path: &str, foreground: bool, inode: Option<u64>) -> Target {
    match (target(path), inode) {
        (Target::Path(path), Some(inode)) if foreground => Target::ForegroundPipe(CallersPipe { path, inode }),
        (Target::Path(path), None) if foreground => Target::Foreground(path),
        (target, _) => target,
    }
}

fn input(path: &str) -> Input {
    if path.is_empty() { Input::Null } else { Input::Path(PathBuf::from(path)) }
}

fn attachment(request: AttachRequest) -> Attachment {
    Attachment {
        stdin: optional(request.stdin).map(PathBuf::from),
        stdout: target(&request.stdout),
        stderr: target(&request.stderr),
    }
}

/// Converts a window size; a number that is too large for a terminal becomes the maximum.
fn size(sent: &proto::WindowSize) -> WindowSize {
    let characters = |sent: u32| u16::try_from(sent).unwrap_or(u16::MAX);
    WindowSize { rows: characters(sent.rows), columns: characters(sent.columns) }
}

fn update(request: &UpdateRequest) -> Answer<Update> {
    bowline_spec::parse_update(&request.update, Format::Json).map_err(|invalid| to_status(&invalid.into()))
}

fn secrets(files: Vec<proto::Secret>, env: Vec<String>) -> Secrets {
    let files = files.into_iter().map(|proto::Secret { name, content, .. }| Secret { name, content });
    Secrets { files: files.collect(), env }
}

fn service(sent: proto::Service) -> UnitService {
    UnitService { notify_socket: optional(sent.notify_socket).map(PathBuf::from), env: sent.env }
}

fn optional(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

fn nanoseconds(time: Timestamp) -> i64 {
    i64::try_from(time.as_nanosecond()).unwrap_or(i64::MAX)
}

struct Asked {
    exec: BegunExec,
    /// Nobody waits for its end.
    detached: bool,
}

async fn exec_outcome(asked: &Asked) -> Answer<ExecResponse> {
    if asked.detached {
        return Ok(ExecResponse::default());
    }
    let outcome = asked.exec.outcome().await.map_err(|e| to_status(&e))?;
    let (exit_code, killed) = match outcome.end {
        ExecEnd::Exited(code) => (Some(code), if outcome.oom_killed { "oom" } else { "" }),
        ExecEnd::TimedOut(killed) => (None, killed.as_str()),
    };
    Ok(ExecResponse {
        exit_code,
        signal: outcome.signal,
        killed: killed.to_owned(),
        stdout: outcome.stdout,
        stderr: outcome.stderr,
        started_at_ns: nanoseconds(outcome.started_at),
        exited_at_ns: nanoseconds(outcome.exited_at),
        ..ExecResponse::default()
    })
}

impl Service {
    async fn launch(&self, request: LaunchRequest, launcher: Launcher) -> Answer<LaunchResponse> {
        let id = id(&request.id)?;
        // Whether it is a member, the executor knows, which validates a task that is none.
        let task = bowline_spec::parse_member_with(&request.task, Format::Json, |_| {});
        let task = task.map_err(|invalid| to_status(&invalid.into()))?;
        let launch = Launch {
            stdin: input(&request.stdin),
            stdout: read_by(&request.stdout, request.foreground, None),
            stderr: read_by(&request.stderr, request.foreground, None),
            size: size(&request.size),
            attached: request.attach.into_option().map(attachment),
            durable: request.durable,
            remove: request.remove,
            ends_with: request.ends_with.iter().map(|process| (process.pid, process.started)).collect(),
            launcher: Some(launcher).filter(|_| request.remove),
            driver: driver(&request.cgroup_driver)?,
            slice: optional(request.slice),
            slice_optional: request.slice_optional,
            secrets: secrets(request.secrets, request.secret_env),
            service: request.service.into_option().map(service).unwrap_or_default(),
            ..Launch::new(id, task)
        };
        let launched = self.executor.launch(launch).await.map_err(|e| to_status(&e))?;
        Ok(LaunchResponse { pid: launched.pid, notes: launched.notes, ..LaunchResponse::default() })
    }

    async fn wait(&self, request: TaskRequest) -> Answer<WaitResponse> {
        let id = id(&request.id)?;
        let report = self.executor.wait_in(&id, request.folder).await.map_err(|e| to_status(&e))?;
        Ok(WaitResponse { report: json(&report)?, ..WaitResponse::default() })
    }

    /// The task that a request is about.
    ///
    /// # Errors
    /// `NotFound` when a later task has its name.
    fn task(&self, name: &str, folder: Option<u64>) -> Answer<TaskId> {
        let id = id(name)?;
        self.executor.check_known(&id, folder).map_err(|e| to_status(&e))?;
        Ok(id)
    }

    async fn signal(&self, request: SignalRequest) -> Answer<Empty> {
        let id = self.task(&request.id, request.folder)?;
        let done = match request.signal {
            0 => self.executor.check_lives(&id, None),
            number => self.executor.signal(&id, signal(number)?, request.all),
        };
        done.map(|()| Empty::default()).map_err(|e| to_status(&e))
    }

    async fn stop(&self, request: StopRequest) -> Answer<Empty> {
        let signal = request.signal.map(signal).transpose()?;
        let grace = request.grace_ms.map(Duration::from_millis);
        let id = id(&request.id)?;
        self.executor.check_folder(&id, request.folder).await.map_err(|e| to_status(&e))?;
        let done = self.executor.shutdown(&id, signal, grace).await;
        done.map(|()| Empty::default()).map_err(|e| to_status(&e))
    }

    async fn pause(&self, request: TaskRequest) -> Answer<Empty> {
        let done = self.executor.pause(&self.task(&request.id, request.folder)?).await;
        done.map(|()| Empty::default()).map_err(|e| to_status(&e))
    }

    async fn resume(&self, request: TaskRequest) -> Answer<Empty> {
        let done = self.executor.resume(&self.task(&request.id, request.folder)?);
        done.map(|()| Empty::default()).map_err(|e| to_status(&e))
    }

    async fn begin_exec(&self, request: ExecRequest) -> Answer<(u64, Asked)> {
        let (id, detached) = (id(&request.id)?, request.detached);
        let exec = Exec {
            process: None,
            logger: None,
            command: request.command,
            env: request.env,
            workdir: optional(request.workdir).map(PathBuf::from),
            user: optional(request.user),
            timeout: request.timeout_ms.map(Duration::from_millis),
            direct: request.direct,
            released: None,
            stdout: read_by(&request.stdout, request.foreground, request.stdout_inode),
            stderr: read_by(&request.stderr, request.foreground, request.stderr_inode),
            tail_bytes: request.tail_bytes.map(|bytes| bytes as usize),
            separate: request.separate,
            stdin: input(&request.stdin),
            terminal: request.terminal.as_ref().map(size),
            name: optional(request.name),
            ends_with_caller: request.ends_with_caller,
        };
        self.executor.check_folder(&id, request.folder).await.map_err(|e| to_status(&e))?;
        let exec = self.executor.exec(&id, exec).await.map_err(|e| to_status(&e))?;
        Ok((exec.number(), Asked { exec, detached }))
    }

    async fn kill_exec(&self, request: KillExecRequest) -> Answer<Empty> {
        let done = self.executor.kill_exec(&self.task(&request.id, request.folder)?, &request.name).await;
        done.map(|()| Empty::default()).map_err(|e| to_status(&e))
    }

    async fn signal_exec(&self, request: SignalExecRequest) -> Answer<Empty> {
        let done = self
            .executor
            .signal_exec_group(&self.task(&request.id, request.folder)?, request.name, signal(request.signal)?)
            .await;
        done.map(|()| Empty::default()).map_err(|e| to_status(&e))
    }

    async fn detach_exec(&self, request: DetachExecRequest) -> Answer<Empty> {
        let done = self.executor.detach_exec(&self.task(&request.id, request.folder)?, request.name).await;
        done.map(|()| Empty::default()).map_err(|e| to_status(&e))
    }

    async fn attach(&self, request: AttachRequest) -> Answer<Empty> {
        let done = self.executor.attach(&self.task(&request.id, request.folder)?, attachment(request));
        done.map(|()| Empty::default()).map_err(|e| to_status(&e))
    }

    async fn resize(&self, request: ResizeRequest) -> Answer<Empty> {
        let (id, exec) = (self.task(&request.id, request.folder)?, optional(request.exec));
        if let Some(exec) = &exec {
            self.executor.exec_begins(&id, exec).await.map_err(|e| to_status(&e))?;
        }
        let done = self.executor.resize(&id, exec, size(&request.size));
        done.map(|()| Empty::default()).map_err(|e| to_status(&e))
    }

    async fn update(&self, request: UpdateRequest) -> Answer<UpdateResponse> {
        let notes = self
            .executor
            .update(&self.task(&request.id, request.folder)?, update(&request)?)
            .await
            .map_err(|e| to_status(&e))?;
        Ok(UpdateResponse { notes, ..UpdateResponse::default() })
    }

    async fn processes(&self, request: TaskRequest) -> Answer<ProcessesResponse> {
        let all = self.executor.processes(&self.task(&request.id, request.folder)?).map_err(|e| to_status(&e))?;
        let process = |p: bowline_executor::Process| Process { pid: p.pid, exec: p.exec, ..Process::default() };
        let processes = all.into_iter().map(process).collect();
        Ok(ProcessesResponse { processes, ..ProcessesResponse::default() })
    }

    async fn stats(&self, request: TaskRequest) -> Answer<StatsResponse> {
        let stats = self.executor.stats(&self.task(&request.id, request.folder)?).map_err(|e| to_status(&e))?;
        Ok(StatsResponse { stats: json(&stats)?, ..StatsResponse::default() })
    }

    async fn state(&self, request: TaskRequest) -> Answer<StateResponse> {
        let state = self.executor.state(&self.task(&request.id, request.folder)?).map_err(|e| to_status(&e))?;
        Ok(StateResponse {
            status: state.status.as_str().to_owned(),
            pid: state.pid.unwrap_or(0),
            terminal: state.terminal,
            takes_input: state.takes_input,
            health: state.health.map(|health| json(&health)).transpose()?.unwrap_or_default(),
            unwritten: state.unwritten.map(|report| json(&report)).transpose()?.unwrap_or_default(),
            ..StateResponse::default()
        })
    }

    async fn figures(&self, _: Empty) -> Answer<FiguresResponse> {
        let figures = self.executor.figures().await.map_err(|e| to_status(&e))?;
        Ok(FiguresResponse { figures: json(&figures)?, ..FiguresResponse::default() })
    }

    async fn facts(&self, _: Empty) -> Answer<FactsResponse> {
        let facts = self.executor.facts().await.map_err(|e| to_status(&e))?;
        let facts = AllFacts { facts, connections: self.connections.outlines() };
        Ok(FactsResponse { facts: json(&facts)?, ..FactsResponse::default() })
    }

    async fn create_sandbox(&self, _: Empty) -> Answer<Empty> {
        self.executor.create_sandbox().await.map(|()| Empty::default()).map_err(|e| to_status(&e))
    }

    async fn sandbox_state(&self, _: Empty) -> Answer<SandboxStateResponse> {
        let state = self.executor.sandbox_state().map_err(|e| to_status(&e))?;
        Ok(SandboxStateResponse { state: json(&state)?, ..SandboxStateResponse::default() })
    }

    async fn sandbox_stats(&self, _: Empty) -> Answer<StatsResponse> {
        let stats = self.executor.sandbox_stats().map_err(|e| to_status(&e))?;
        Ok(StatsResponse { stats: json(&stats)?, ..StatsResponse::default() })
    }

    async fn update_sandbox(&self, request: UpdateRequest) -> Answer<Empty> {
        let done = self.executor.update_sandbox(update(&request)?).await;
        done.map(|()| Empty::default()).map_err(|e| to_status(&e))
    }

    async fn charge_helpers(&self, request: ChargeHelpersRequest) -> Answer<ChargeHelpersResponse> {
        let skipped = self.executor.charge_helpers(request.pids).await.map_err(|e| to_status(&e))?;
        Ok(ChargeHelpersResponse { skipped, ..ChargeHelpersResponse::default() })
    }

    async fn remove_sandbox(&self, request: RemoveSandboxRequest) -> Answer<RemoveSandboxResponse> {
        let moved = self.executor.remove_sandbox(request.force).await.map_err(|e| to_status(&e))?;
        Ok(RemoveSandboxResponse { moved, ..RemoveSandboxResponse::default() })
    }

    async fn version(&self, _: Empty) -> Answer<VersionResponse> {
        Ok(VersionResponse { version: VERSION.to_owned(), revision: REVISION, ..VersionResponse::default() })
    }
}

// `Executor::gone`, the executor of a leaving shim, exists only with the feature `fuzzing`.
#[cfg(all(test, feature = "fuzzing"))]
mod tests {
    use super::*;

    #[test]
    fn every_method_of_the_protocol_is_served() {
        let protocol = include_str!("../../protocol/proto/bowline.proto");
        let names = protocol.lines().filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next());
        let service = Rc::new(Service { executor: Executor::gone(), connections: Connections::default() });
        let unserved = |name: &&str| service.call_from(&mut Caller::new(&mut None), NAME, name, b"").is_err();
        let unserved: Vec<&str> = names.clone().filter(unserved).collect();
        assert!(names.count() > 20);
        assert_eq!(unserved, Vec::<&str>::new());
    }
}
