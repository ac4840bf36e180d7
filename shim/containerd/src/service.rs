//! containerd's Task service: one method for each call.
//!
//! State, Wait and what they need are answered from memory (`containers`); all else goes to the executor. Nothing is
//! locked while a call waits, so no call blocks another. Must not: publish what the executor reports.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use bowline_executor::internal::{page_release, parse_process, parse_resources, waits};
use bowline_executor::{Attachment, Bundle, Checkpoint, Exec, Executor, Input, Launch, WindowSize, layers};
use bowline_model::{Error, Kind, Result};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use containerd_shim_protos::api::*;
use containerd_shim_protos::events::task as events;
use containerd_shim_protos::shim::oci::ProcessDetails;
use containerd_shim_protos::topics;
use containerd_shim_protos::types::task::{ProcessInfo, Status};
use jiff::Timestamp;
use protobuf::well_known_types::any::Any;
use protobuf::{Message as _, MessageField};
use ttrpc::proto::Status as Refusal;

use super::containers::{Container, Containers, Exit, Process, unknown_exec};
use super::error_codes::{Answer, During, refused};
use super::invocation::Privileged;
use super::manager_events::timestamp;
use super::options::{CheckpointOptions, Options};
use super::publisher::Publisher;
use super::sandbox::Sandbox;
use super::streams::Io;
use super::{address, files, metrics};
use bowline_protocol::calls::{Call, Connections, call, unknown_method, wait};

/// The Task service of one shim. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    pub executor: Executor,
    pub containers: Arc<Containers>,
    /// The sandbox that the containers are members of, if any.
    pub sandbox: Arc<Sandbox>,
    pub namespace: String,
    pub publisher: Publisher,
    pub connections: Connections,
    /// The address of the shim, until it leaves.
    pub address: Rc<Cell<Option<String>>>,
    /// What a pod leaves to root.
    pub privileged: Privileged,
}

/// Checks the id of a container or an exec by containerd's own rules.
pub fn checked(id: &str) -> Answer<TaskId> {
    TaskId::of_manager(id).map_err(|invalid| refused(&Error::new(Kind::Usage, invalid.to_string())))
}

fn wrong_state(message: String) -> Refusal {
    refused(&Error::new(Kind::WrongState, message))
}

/// Runs the steps of a call to the end, even if the caller's timeout ends the call: nobody could undo half of it.
pub async fn seen_through<T: 'static>(call: impl Future<Output = Answer<T>> + 'static) -> Answer<T> {
    waits::finish("a call of containerd's", None, Box::pin(call)).await
}

/// The exit status of a process that could not be started, as a shell reports it.
fn status_of(error: &Error) -> u32 {
    match error.kind() {
        Kind::CommandNotFound => 127,
        Kind::NotExecutable => 126,
        _ => 255,
    }
}

impl Service {
    /// Has the shim leave. Its address is free before anybody learns of that: whoever starts a shim there next must
    /// not find this one, nor have its own socket removed.
    pub fn leave(&self) {
        self.free_address();
        self.executor.leave();
    }

    /// Removes the shim's socket while it is this shim's.
    pub fn free_address(&self) {
        if let Some(address) = self.address.take()
            && let Err(error) = address::remove(&address)
        {
            tracing::error!(%error, "the shim's socket is left behind");
        }
    }

    fn id(&self, id: &str) -> Answer<TaskId> {
        self.containers.with(id, |_| ()).map_err(|e| refused(&e))?;
        checked(id)
    }

    fn process<T>(&self, id: &str, exec: &str, look: impl FnOnce(&mut Process) -> T) -> Answer<T> {
        self.containers.process(id, exec, look).map_err(|e| refused(&e))
    }

    async fn launch(&self, id: TaskId, request: &CreateTaskRequest, options: &Options) -> Result<u32> {
        let bundle = PathBuf::from(&request.bundle);
        let layers = request.rootfs.iter().map(|mount| layers::Layer {
            kind: mount.type_.clone(),
            source: mount.source.clone(),
            target: mount.target.clone(),
            options: mount.options.clone(),
        });
        let io = self.containers.process(&id, "", |init| init.io.clone())?;
        let _writers = io.readers().await;
        let (streams, ends) = io.open(&id, &self.namespace)?;
        // If the container was deleted meanwhile, this fails and the streams are closed.
        self.containers.process(&id, "", |init| init.ends = ends)?;
        let source = Bundle { path: bundle.clone(), layers: layers.collect(), member: self.sandbox.member()? };
        let stdin = match &streams.stdin {
            Input::Path(path) if io.terminal => Some(path.clone()),
            _ => None,
        };
        let images = Some(&request.checkpoint).filter(|path| !path.is_empty()).or(options.criu_image_path.as_ref());
        let launch = Launch {
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
            logger: streams.logger,
            driver: options.driver(),
            direct: true,
            checkpoint: images.map(PathBuf::from),
            particulars: options.particulars()?,
            attached: stdin.map(|stdin| Attachment { stdin: Some(stdin), ..Attachment::default() }),
            ..Launch::new(id.clone(), source)
        };
        self.sandbox.remember(&request.id, &bundle)?;
        let launched = self.executor.create(launch).await?;
        // The sandbox may have been stopped meanwhile.
        let kept = self.sandbox.member().and_then(|_| self.sandbox.keep_record(&request.id, &bundle));
        if let Err(error) = kept {
            self.executor.remove(&id).await?;
            return Err(error);
        }
        files::write(&bundle, launched.pid, options);
        Ok(launched.pid.cast_unsigned())
    }

    async fn start_exec(&self, id: &TaskId, exec: &str) -> Result<u32> {
        let (io, spec, status) =
            self.containers.process(id, exec, |process| (process.io.clone(), process.spec.take(), process.status))?;
        let spec = spec.ok_or_else(|| {
            let state = if status == Status::STOPPED { "has exited" } else { "was started already" };
            Error::new(Kind::WrongState, format!("exec {exec} {state}"))
        })?;
        let _writers = io.readers().await;
        let (streams, mut ends) = io.open(id, &self.namespace)?;
        let released = Some(ends.releases());
        self.containers.process(id, exec, |process| process.ends = ends)?;
        let request = Exec {
            process: Some(spec),
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
            logger: streams.logger,
            terminal: io.terminal.then(WindowSize::default),
            name: Some(exec.to_owned()),
            direct: true,
            released,
            // Nobody asks for it.
            tail_bytes: Some(0),
            ..Exec::default()
        };
        Ok(self.executor.start_exec(id, request).await?.pid.cast_unsigned())
    }

    /// Removes a container and everything that is held for it.
    async fn delete_init(&self, id: &str) -> Answer<DeleteResponse> {
        let task = checked(id)?;
        let (status, pid) = self.process(id, "", |init| (init.status, init.pid))?;
        let doing = match status {
            Status::RUNNING | Status::PAUSED => "running",
            Status::CREATED if pid == 0 => "being created",
            _ => "",
        };
        if !doing.is_empty() {
            return Err(wrong_state(format!("container {id} is {doing} and cannot be deleted")));
        }
        match self.executor.remove(&task).await {
            // An earlier call has already removed it.
            Err(error) if error.kind() != Kind::NotFound => return Err(refused(&error)),
            _ => {}
        }
        let container = self.containers.remove(id);
        let container =
            container.ok_or_else(|| refused(&Error::new(Kind::NotFound, format!("container {id} is unknown"))))?;
        let answer = deleted(&container.init);
        let event = events::TaskDelete {
            container_id: id.to_owned(),
            pid: answer.pid,
            exit_status: answer.exit_status,
            exited_at: answer.exited_at.clone(),
            ..Default::default()
        };
        self.publisher.publish(topics::TASK_DELETE_EVENT_TOPIC, event);
        container.init.ends.until_read().await;
        self.sandbox.forget(id);
        if self.sandbox.has_ended() && self.containers.is_empty() {
            // Not every containerd calls Shutdown after a sandbox's last member.
            self.leave();
        }
        Ok(answer)
    }

    async fn delete_exec(&self, id: &str, exec: &str) -> Answer<DeleteResponse> {
        let deleted = self.containers.with(id, |container| {
            let process = container.execs.get(exec).ok_or_else(|| unknown_exec(id, exec))?;
            let starts = process.pid == 0 && process.spec.is_none() && process.exit().is_none();
            if process.status == Status::RUNNING || starts {
                let message = format!("exec {exec} of container {id} is running and cannot be deleted");
                return Err(Error::new(Kind::WrongState, message));
            }
            let answer = deleted(process);
            Ok((answer, container.execs.remove(exec)))
        });
        let (answer, process) = deleted.and_then(|deleted| deleted).map_err(|e| refused(&e))?;
        if let Some(process) = process {
            process.ends.release().await;
        }
        // Not when the exec ends, because callers that wait for its end are answered first.
        page_release::left();
        Ok(answer)
    }
}

fn deleted(process: &Process) -> DeleteResponse {
    let exit = process.exit();
    DeleteResponse {
        pid: process.pid,
        exit_status: exit.map_or(0, |exit| exit.status),
        exited_at: exit.map(|exit| timestamp(exit.at)).into(),
        ..DeleteResponse::default()
    }
}

/// Begins a call of the Task service.
///
/// # Errors
/// As [`call`].
pub fn task(service: &Rc<Service>, method: &str, payload: &[u8]) -> Answer<Call> {
    match method {
        "State" => call(service, payload, Service::state),
        "Create" => call(service, payload, Service::create),
        "Start" => call(service, payload, Service::start),
        "Delete" => call(service, payload, Service::delete),
        "Pids" => call(service, payload, Service::pids),
        "Pause" => call(service, payload, Service::pause),
        "Resume" => call(service, payload, Service::resume),
        "Checkpoint" => call(service, payload, Service::checkpoint),
        "Kill" => call(service, payload, Service::kill),
        "Exec" => call(service, payload, Service::exec),
        "ResizePty" => call(service, payload, Service::resize_pty),
        "CloseIO" => call(service, payload, Service::close_io),
        "Update" => call(service, payload, Service::update),
        "Wait" => wait(service, payload, Service::wait),
        "Stats" => call(service, payload, Service::stats),
        "Connect" => call(service, payload, Service::connect),
        "Shutdown" => call(service, payload, Service::shutdown),
        _ => Err(unknown_method(method)),
    }
}

impl Service {
    async fn state(&self, request: StateRequest) -> Answer<StateResponse> {
        let bundle = self.containers.with(&request.id, |c| c.bundle.to_string_lossy().into_owned());
        let bundle = bundle.map_err(|e| refused(&e))?;
        self.process(&request.id, &request.exec_id, |process| {
            let exit = process.exit();
            StateResponse {
                id: request.id.clone(),
                exec_id: request.exec_id.clone(),
                bundle,
                pid: process.pid,
                status: process.status.into(),
                stdin: process.io.stdin.clone(),
                stdout: process.io.stdout.clone(),
                stderr: process.io.stderr.clone(),
                terminal: process.io.terminal,
                exit_status: exit.map_or(0, |exit| exit.status),
                exited_at: exit.map(|exit| timestamp(exit.at)).into(),
                ..StateResponse::default()
            }
        })
    }

    async fn create(&self, request: CreateTaskRequest) -> Answer<CreateTaskResponse> {
        let id = checked(&request.id)?;
        let options = Options::parse(request.options.as_ref()).map_err(|e| refused(&e))?;
        let io = Io {
            stdin: request.stdin.clone(),
            stdout: request.stdout.clone(),
            stderr: request.stderr.clone(),
            terminal: request.terminal,
        };
        let container = Container {
            bundle: PathBuf::from(&request.bundle),
            rootfs: request.rootfs.clone(),
            init: Process::new(io, Default::default()),
            execs: BTreeMap::new(),
        };
        self.containers.add(&id, container).map_err(|e| refused(&e))?;
        let service = self.clone();
        seen_through(async move {
            match service.launch(id, &request, &options).await {
                Ok(pid) => Ok(CreateTaskResponse { pid, ..CreateTaskResponse::default() }),
                Err(error) => {
                    service.containers.remove(&request.id);
                    service.sandbox.forget(&request.id);
                    Err(During::Create.refused(&error))
                }
            }
        })
        .await
    }

    async fn start(&self, request: StartRequest) -> Answer<StartResponse> {
        let id = self.id(&request.id)?;
        let exec = &request.exec_id;
        if exec.is_empty() {
            self.executor.start(&id).await.map_err(|e| During::Start.refused(&e))?;
            let pid = self.process(&id, "", |init| init.pid)?;
            return Ok(StartResponse { pid, ..StartResponse::default() });
        }
        self.process(&id, exec, |_| ())?;
        let (service, exec) = (self.clone(), request.exec_id);
        seen_through(async move {
            match service.start_exec(&id, &exec).await {
                Ok(pid) => Ok(StartResponse { pid, ..StartResponse::default() }),
                Err(error) => {
                    // Report the end to callers that already wait for it.
                    let _ = service.containers.process(&id, &exec, |process| {
                        if process.pid == 0 && process.exit().is_none() {
                            process.end(Exit { status: status_of(&error), at: Timestamp::now() });
                        }
                    });
                    Err(During::Exec.refused(&error))
                }
            }
        })
        .await
    }

    async fn delete(&self, request: DeleteRequest) -> Answer<DeleteResponse> {
        if request.exec_id.is_empty() {
            let service = self.clone();
            return seen_through(async move { service.delete_init(&request.id).await }).await;
        }
        let service = self.clone();
        seen_through(async move { service.delete_exec(&request.id, &request.exec_id).await }).await
    }

    async fn pids(&self, request: PidsRequest) -> Answer<PidsResponse> {
        let id = self.id(&request.id)?;
        let processes = match self.executor.processes(&id) {
            Ok(processes) => processes,
            // The task is only just being set up, or has ended.
            Err(error) if error.kind() == Kind::NotFound => Vec::new(),
            Err(error) => return Err(refused(&error)),
        };
        let mut infos = Vec::new();
        for process in processes {
            let info = process.name.map(|exec_id| {
                let details = ProcessDetails { exec_id, ..ProcessDetails::default() };
                let value = details.write_to_bytes().unwrap_or_default();
                Any { type_url: "containerd.runc.v1.ProcessDetails".to_owned(), value, ..Any::default() }
            });
            let info = ProcessInfo { pid: process.pid.cast_unsigned(), info: info.into(), ..ProcessInfo::default() };
            infos.push(info);
        }
        if infos.is_empty() {
            // A restarted containerd takes an empty answer to mean that there never was a task, and would throw away
            // this task and its exit.
            let pid = self.process(&id, "", |init| init.pid)?;
            infos.extend((pid != 0).then(|| ProcessInfo { pid, ..ProcessInfo::default() }));
        }
        Ok(PidsResponse { processes: infos, ..PidsResponse::default() })
    }

    async fn pause(&self, request: PauseRequest) -> Answer<Empty> {
        let id = self.id(&request.id)?;
        self.executor.pause(&id).await.map_err(|e| refused(&e))?;
        Ok(Empty::default())
    }

    async fn resume(&self, request: ResumeRequest) -> Answer<Empty> {
        let id = self.id(&request.id)?;
        self.executor.resume(&id).map_err(|e| refused(&e))?;
        Ok(Empty::default())
    }

    async fn checkpoint(&self, request: CheckpointTaskRequest) -> Answer<Empty> {
        let id = self.id(&request.id)?;
        let options = CheckpointOptions::parse(request.options.as_ref()).map_err(|e| refused(&e))?;
        let images = if request.path.is_empty() { options.image_path.clone() } else { Some(request.path.clone()) };
        let images = images.filter(|images| images.starts_with('/'));
        let images = images.ok_or_else(|| {
            refused(&Error::new(Kind::Usage, "a checkpoint needs the path of a folder to be written to"))
        })?;
        let wanted = Checkpoint {
            images: PathBuf::from(images),
            work: options.work_path.map(PathBuf::from),
            exit: options.exit,
            open_tcp: options.open_tcp,
            external_unix_sockets: options.external_unix_sockets,
            file_locks: options.file_locks,
            empty_namespaces: options.empty_namespaces,
        };
        self.executor.checkpoint(&id, wanted).await.map_err(|e| refused(&e))?;
        Ok(Empty::default())
    }

    async fn kill(&self, request: KillRequest) -> Answer<Empty> {
        let id = self.id(&request.id)?;
        let signal = i32::try_from(request.signal).ok().and_then(Signal::from_number);
        // As with kill(2), 0 is no signal: it asks whether the process lives.
        if signal.is_none() && request.signal != 0 {
            let message = format!("{} is not the number of a signal", request.signal);
            return Err(refused(&Error::new(Kind::Usage, message)));
        }
        let exec = &request.exec_id;
        let (pid, status) = self.process(&id, exec, |process| (process.pid, process.status))?;
        if status == Status::STOPPED {
            // All that were in its cgroup have been killed by then.
            if request.all && exec.is_empty() && signal.is_some() {
                return Ok(Empty::default());
            }
            let message = if exec.is_empty() {
                format!("container {id} has exited: process already finished")
            } else {
                format!("exec {exec} of container {id} has exited: process already finished")
            };
            return Err(refused(&Error::new(Kind::NotFound, message)));
        }
        if pid == 0 {
            return Err(wrong_state(format!("the process of {id} {exec} is not created yet")));
        }
        let exec = Some(exec.as_str()).filter(|exec| !exec.is_empty());
        let done = match (signal, exec) {
            (None, exec) => self.executor.check_lives(&id, exec),
            (Some(signal), None) => self.executor.signal(&id, signal, request.all),
            (Some(signal), Some(exec)) => self.executor.signal_exec(&id, exec, signal),
        };
        done.map(|()| Empty::default()).map_err(|e| refused(&e))
    }

    async fn exec(&self, request: ExecProcessRequest) -> Answer<Empty> {
        let id = self.id(&request.id)?;
        checked(&request.exec_id)?;
        let spec = request.spec.as_ref().map(|any| any.value.as_slice()).unwrap_or_default();
        let spec = parse_process(spec);
        let mut spec = spec.map_err(|e| refused(&e.within("the exec's spec")))?;
        spec.set_terminal(Some(request.terminal));
        let io =
            Io { stdin: request.stdin, stdout: request.stdout, stderr: request.stderr, terminal: request.terminal };
        let exec = request.exec_id;
        let added = self.containers.with(&id, |container| {
            let state = match container.init.status {
                Status::PAUSED | Status::PAUSING => "paused",
                Status::STOPPED => "stopped",
                Status::UNKNOWN | Status::CREATED | Status::RUNNING => "",
            };
            if !state.is_empty() {
                let message = format!("container {id} is {state}: nothing can be run in it");
                return Err(Error::new(Kind::WrongState, message));
            }
            if container.execs.contains_key(&exec) {
                return Err(Error::new(Kind::AlreadyExists, format!("exec {exec} of container {id} exists already")));
            }
            let process = Process { spec: Some(Box::new(spec)), ..Process::new(io, Default::default()) };
            container.execs.insert(exec.clone(), process);
            Ok(())
        });
        added.and_then(|added| added).map_err(|e| refused(&e))?;
        let event = events::TaskExecAdded { container_id: id.to_string(), exec_id: exec, ..Default::default() };
        self.publisher.publish(topics::TASK_EXEC_ADDED_EVENT_TOPIC, event);
        Ok(Empty::default())
    }

    async fn resize_pty(&self, request: ResizePtyRequest) -> Answer<Empty> {
        let id = self.id(&request.id)?;
        let exec = request.exec_id;
        let (terminal, pid) = self.process(&id, &exec, |process| (process.io.terminal, process.pid))?;
        if !terminal || pid == 0 {
            return Ok(Empty::default());
        }
        let characters = |sent: u32| u16::try_from(sent).unwrap_or(u16::MAX);
        let size = WindowSize { rows: characters(request.height), columns: characters(request.width) };
        match self.executor.resize(&id, Some(exec).filter(|exec| !exec.is_empty()), size) {
            // The process has ended meanwhile, and its terminal with it.
            Err(error) if !matches!(error.kind(), Kind::WrongState | Kind::NotFound) => Err(refused(&error)),
            _ => Ok(Empty::default()),
        }
    }

    async fn close_io(&self, request: CloseIORequest) -> Answer<Empty> {
        self.process(&request.id, &request.exec_id, |process| {
            if request.stdin {
                process.ends.close_stdin();
            }
        })?;
        Ok(Empty::default())
    }

    async fn update(&self, request: UpdateTaskRequest) -> Answer<Empty> {
        let id = self.id(&request.id)?;
        let resources = request.resources.as_ref().map(|any| any.value.as_slice()).unwrap_or_default();
        let resources = parse_resources(resources);
        let resources = resources.map_err(|e| refused(&e.within("the resources")))?;
        if self.process(&id, "", |init| init.status == Status::STOPPED)? {
            return Err(wrong_state(format!("container {id} is stopped and cannot be updated")));
        }
        self.executor.limit(&id, resources).await.map_err(|e| refused(&e))?;
        Ok(Empty::default())
    }

    async fn wait(&self, request: WaitRequest) -> Answer<WaitResponse> {
        let mut exit = self.process(&request.id, &request.exec_id, |process| process.exit.subscribe())?;
        let exit = exit.wait_for(Option::is_some).await.ok().and_then(|exit| *exit);
        let exit = exit.ok_or_else(|| refused(&Error::new(Kind::NotFound, "it was deleted before it ran")))?;
        Ok(WaitResponse {
            exit_status: exit.status,
            exited_at: MessageField::some(timestamp(exit.at)),
            ..WaitResponse::default()
        })
    }

    async fn stats(&self, request: StatsRequest) -> Answer<StatsResponse> {
        let id = self.id(&request.id)?;
        let stats = self.executor.stats(&id).map_err(|e| refused(&e))?;
        let stats = metrics::of(&stats).map_err(|e| refused(&e))?;
        Ok(StatsResponse { stats: MessageField::some(stats), ..StatsResponse::default() })
    }

    async fn connect(&self, request: ConnectRequest) -> Answer<ConnectResponse> {
        // containerd asks this of any shim that it finds, even for an id that the shim does not know.
        let task_pid = self.containers.process(&request.id, "", |init| init.pid);
        let task_pid = task_pid.unwrap_or_else(|_| self.sandbox.pid(&request.id));
        Ok(ConnectResponse { shim_pid: std::process::id(), task_pid, ..ConnectResponse::default() })
    }

    async fn shutdown(&self, _: ShutdownRequest) -> Answer<Empty> {
        // containerd calls this for every container that goes. A group may have more containers, and a sandbox has its
        // own call.
        if self.containers.is_empty() && (!self.sandbox.is_there() || self.sandbox.has_ended()) {
            self.leave();
        }
        Ok(Empty::default())
    }
}
