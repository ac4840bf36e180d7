//! The two services of a task driver: each call in the words of Nomad, answered by the module that knows.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bowline_client::{ExitReport, Signal, Status as Life};
use bowline_executor::VERSION;
use bowline_model::{Error, Kind};
use tokio::time::{MissedTickBehavior, interval};
use tonic::{Request, Response, Status, Streaming};

use crate::options::TASK;
use crate::proto::base::base_plugin_server::BasePlugin;
use crate::proto::base::{
    ConfigSchemaRequest, ConfigSchemaResponse, PluginInfoRequest, PluginInfoResponse, PluginType, SetConfigRequest,
    SetConfigResponse,
};
use crate::proto::driver::driver_capabilities::{FsIsolation, MountConfigs};
use crate::proto::driver::driver_server::Driver as Service;
use crate::proto::driver::network_isolation_spec::NetworkIsolationMode;
use crate::proto::driver::*;
use crate::settings::{AGENT, Settings};
use crate::shutdown::Shutdown;
use crate::stats::{Readings, timestamp};
use crate::stream::{Answers, lasting, stream_of};
use crate::tasks::{Known, Tasks};
use crate::{NAME, command, earlier, error_codes, events, fingerprint, recovery, schema, start, streaming};

/// The version of Nomad's plugin interface.
const API: &str = "v0.1.0";

/// It asks whether the task runs, and nothing more.
const NO_SIGNAL: &str = "SIGNULL";

/// How often the node is looked at: what changes there is files, in folders that may not exist yet.
const LOOK: Duration = Duration::from_secs(10);

/// The shortest time between two readings of a task, and the time where Nomad asks for none.
const SHORTEST: Duration = Duration::from_millis(100);
const EVERY: Duration = Duration::from_secs(1);

/// The driver: its settings, and the tasks that it knows.
#[derive(Debug, Clone)]
pub struct Driver {
    settings: Arc<RwLock<Settings>>,
    tasks: Tasks,
    shutdown: Shutdown,
}

type Answer<T> = Result<Response<T>, Status>;

impl Driver {
    /// A driver without tasks, whose calls end with the plugin.
    pub fn new(shutdown: Shutdown) -> Driver {
        Driver { settings: Arc::default(), tasks: Tasks::default(), shutdown }
    }

    fn settings(&self) -> Settings {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The task that a call is about.
    fn known(&self, task_id: &str) -> Result<Arc<Known>, Status> {
        self.find(task_id)?.ok_or_else(|| error_codes::unknown(task_id))
    }

    fn find(&self, task_id: &str) -> Result<Option<Arc<Known>>, Status> {
        self.tasks.find(task_id, &self.settings()).map_err(|error| error_codes::of(&error))
    }
}

/// A call's error as the agent gets it; a task that was removed is unknown.
fn failed(task_id: &str) -> impl Fn(Error) -> Status + '_ {
    move |error| if error.kind() == Kind::NotFound { error_codes::unknown(task_id) } else { error_codes::of(&error) }
}

#[tonic::async_trait]
impl BasePlugin for Driver {
    async fn plugin_info(&self, _: Request<PluginInfoRequest>) -> Answer<PluginInfoResponse> {
        Ok(Response::new(PluginInfoResponse {
            r#type: PluginType::Driver.into(),
            plugin_api_versions: vec![API.to_owned()],
            plugin_version: VERSION.to_owned(),
            name: NAME.to_owned(),
        }))
    }

    async fn config_schema(&self, _: Request<ConfigSchemaRequest>) -> Answer<ConfigSchemaResponse> {
        Ok(Response::new(ConfigSchemaResponse { spec: Some(schema::spec(AGENT)) }))
    }

    async fn set_config(&self, request: Request<SetConfigRequest>) -> Answer<SetConfigResponse> {
        let settings = Settings::of(request.get_ref()).map_err(|error| error_codes::of(&error))?;
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
        Ok(Response::new(SetConfigResponse {}))
    }
}

#[tonic::async_trait]
impl Service for Driver {
    type FingerprintStream = Answers<FingerprintResponse>;
    type TaskStatsStream = Answers<TaskStatsResponse>;
    type TaskEventsStream = Answers<DriverTaskEvent>;
    type ExecTaskStreamingStream = Answers<ExecTaskStreamingResponse>;

    async fn init(&self, _: Request<InitRequest>) -> Answer<InitResponse> {
        Ok(Response::new(InitResponse {}))
    }

    /// Tasks go on: the agent finds them again.
    async fn shutdown(&self, _: Request<ShutdownRequest>) -> Answer<ShutdownResponse> {
        Ok(Response::new(ShutdownResponse {}))
    }

    async fn task_config_schema(&self, _: Request<TaskConfigSchemaRequest>) -> Answer<TaskConfigSchemaResponse> {
        Ok(Response::new(TaskConfigSchemaResponse { spec: Some(schema::spec(TASK)) }))
    }

    async fn capabilities(&self, _: Request<CapabilitiesRequest>) -> Answer<CapabilitiesResponse> {
        let capabilities = DriverCapabilities {
            send_signals: true,
            exec: true,
            // With CHROOT the agent would copy a root filesystem first.
            fs_isolation: FsIsolation::Image.into(),
            network_isolation_modes: [NetworkIsolationMode::Host, NetworkIsolationMode::Group].map(i32::from).into(),
            must_create_network: false,
            mount_configs: MountConfigs::AnyMounts.into(),
            disable_log_collection: self.settings().disable_log_collection,
            dynamic_workload_users: false,
        };
        Ok(Response::new(CapabilitiesResponse { capabilities: Some(capabilities) }))
    }

    async fn fingerprint(&self, _: Request<FingerprintRequest>) -> Answer<Self::FingerprintStream> {
        let driver = self.clone();
        Ok(Response::new(lasting(&self.shutdown, async move |items| {
            let (mut told, mut looks) = (None, interval(LOOK));
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                looks.tick().await;
                let found = fingerprint::taken(&driver.settings());
                if told.as_ref() != Some(&found) {
                    items.send(Ok(found.clone())).await;
                    told = Some(found);
                }
                earlier::remove_forgotten(&driver.tasks, &driver.settings()).await;
            }
        })))
    }

    async fn recover_task(&self, request: Request<RecoverTaskRequest>) -> Answer<RecoverTaskResponse> {
        let handle = request.into_inner().handle.ok_or_else(|| Status::invalid_argument("handle: is missing"))?;
        let known = recovery::recover(handle, &self.settings()).await.map_err(|error| error_codes::of(&error))?;
        earlier::mark_handed_out(&known);
        self.tasks.add(known);
        Ok(Response::new(RecoverTaskResponse {}))
    }

    async fn start_task(&self, request: Request<StartTaskRequest>) -> Answer<StartTaskResponse> {
        let task = request.into_inner().task.ok_or_else(|| Status::invalid_argument("task: is missing"))?;
        let started = start::start(task, &self.settings(), &self.tasks).await;
        let handle = started.map_err(|error| error_codes::of_start(&error))?;
        Ok(Response::new(StartTaskResponse { handle: Some(handle), ..StartTaskResponse::default() }))
    }

    async fn wait_task(&self, request: Request<WaitTaskRequest>) -> Answer<WaitTaskResponse> {
        let task_id = request.into_inner().task_id;
        let known = self.known(&task_id)?;
        earlier::mark_handed_out(&known);
        let task = known.task().map_err(failed(&task_id))?;
        let ended = async { task.wait().await.map_err(failed(&task_id)) };
        let report = self.shutdown.unless_begun(ended).await?;
        let err = match report.shim_died {
            true => "the shim died before the task, and nobody knows how the task has ended".to_owned(),
            false => String::new(),
        };
        Ok(Response::new(WaitTaskResponse { result: Some(result(&report)), err }))
    }

    async fn stop_task(&self, request: Request<StopTaskRequest>) -> Answer<StopTaskResponse> {
        let StopTaskRequest { task_id, timeout, signal } = request.into_inner();
        let done = Ok(Response::new(StopTaskResponse {}));
        let signal = Some(signal.as_str()).filter(|signal| !signal.is_empty()).map(signal_of).transpose()?;
        let Some(known) = self.find(&task_id)? else { return done };
        earlier::mark_handed_out(&known);
        let grace = timeout.map(|timeout| Duration::try_from(timeout).unwrap_or_default());
        let stopped = match known.task() {
            Ok(task) => task.stop_with(signal, grace).await.map(drop),
            Err(error) => Err(error),
        };
        match stopped {
            // It has ended already, in whatever way, or was removed.
            Err(error) if !matches!(error.kind(), Kind::NotFound | Kind::WrongState) => Err(error_codes::of(&error)),
            Ok(()) | Err(_) => done,
        }
    }

    async fn destroy_task(&self, request: Request<DestroyTaskRequest>) -> Answer<DestroyTaskResponse> {
        let DestroyTaskRequest { task_id, force } = request.into_inner();
        if let Some(known) = self.find(&task_id)? {
            let removed = match known.task() {
                Ok(task) => task.remove(force).await.map(drop),
                Err(error) => Err(error),
            };
            match removed {
                Err(error) if error.kind() != Kind::NotFound => return Err(error_codes::of(&error)),
                Ok(()) | Err(_) => self.tasks.remove(&task_id),
            }
        }
        Ok(Response::new(DestroyTaskResponse {}))
    }

    async fn inspect_task(&self, request: Request<InspectTaskRequest>) -> Answer<InspectTaskResponse> {
        let task_id = request.into_inner().task_id;
        let known = self.known(&task_id)?;
        earlier::mark_handed_out(&known);
        let state = known.task().map_err(failed(&task_id))?.state().await.map_err(failed(&task_id))?;
        let record = known.folder().record().map_err(failed(&task_id))?;
        let report = state.report.as_deref();
        let started = report.and_then(|report| report.started_at);
        let started = started.or(record.as_ref().and_then(|record| record.started_at));
        let never = prost_types::Timestamp::default();
        let task = TaskStatus {
            id: task_id,
            name: known.name.clone(),
            state: if state.status == Life::Exited { TaskState::Exited } else { TaskState::Running }.into(),
            started_at: Some(started.map_or(never, timestamp)),
            completed_at: Some(report.map_or(never, |report| timestamp(report.exited_at))),
            result: Some(report.map_or_else(ExitResult::default, result)),
        };
        let mut attributes = vec![("id", known.id.to_string()), ("status", state.status.as_str().to_owned())];
        attributes.extend(state.pid.map(|pid| ("pid", pid.to_string())));
        attributes.extend(state.health.map(|health| ("health", health.status.as_str().to_owned())));
        attributes.extend(record.map(|record| ("cgroup", record.cgroup)));
        let attributes = attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let driver = Some(TaskDriverStatus { attributes });
        Ok(Response::new(InspectTaskResponse { task: Some(task), driver, network_override: None }))
    }

    async fn task_stats(&self, request: Request<TaskStatsRequest>) -> Answer<Self::TaskStatsStream> {
        let TaskStatsRequest { task_id, collection_interval } = request.into_inner();
        let known = self.known(&task_id)?;
        let task = known.task().map_err(failed(&task_id))?;
        let wanted = collection_interval.and_then(|wanted| Duration::try_from(wanted).ok());
        let wanted = wanted.filter(|wanted| !wanted.is_zero()).unwrap_or(EVERY).max(SHORTEST);
        let mut readings = Readings::new(&task_id, self.settings().topology, known.started_at);
        Ok(Response::new(lasting(&self.shutdown, async move |items| {
            let mut looks = interval(wanted);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                looks.tick().await;
                match task.stats().await {
                    Ok(stats) => items.send(Ok(TaskStatsResponse { stats: Some(readings.next(stats)) })).await,
                    // It has ended, which is no fault.
                    Err(error) if matches!(error.kind(), Kind::NotFound | Kind::WrongState) => return Ok(()),
                    Err(error) => return Err(error_codes::of(&error)),
                }
            }
        })))
    }

    async fn task_events(&self, _: Request<TaskEventsRequest>) -> Answer<Self::TaskEventsStream> {
        let client = self.settings().client().map_err(|error| error_codes::of(&error))?;
        let mut journal = client.events().map_err(|error| error_codes::of(&error))?;
        // What was before, another process of the plugin has told.
        journal.past().map_err(|error| error_codes::of(&error))?;
        let tasks = self.tasks.clone();
        Ok(Response::new(lasting(&self.shutdown, async move |items| {
            loop {
                let entry = match journal.next().await {
                    Ok(entry) => entry,
                    Err(error) => return Err(error_codes::of(&error)),
                };
                let told = tasks.of_id(&entry.id).and_then(|known| events::told(&entry, &known));
                if let Some(told) = told {
                    items.send(Ok(told)).await;
                }
            }
        })))
    }

    async fn signal_task(&self, request: Request<SignalTaskRequest>) -> Answer<SignalTaskResponse> {
        let SignalTaskRequest { task_id, signal } = request.into_inner();
        let task = self.known(&task_id)?.task().map_err(failed(&task_id))?;
        match signal.as_str() {
            NO_SIGNAL => drop(task.stats().await.map_err(failed(&task_id))?),
            name => task.signal(signal_of(name)?).await.map_err(failed(&task_id))?,
        }
        Ok(Response::new(SignalTaskResponse {}))
    }

    async fn exec_task(&self, request: Request<ExecTaskRequest>) -> Answer<ExecTaskResponse> {
        let request = request.into_inner();
        let task_id = request.task_id.clone();
        let task = self.known(&task_id)?.task().map_err(failed(&task_id))?;
        command::run(&task, request).await.map(Response::new).map_err(|error| error_codes::of(&error))
    }

    async fn exec_task_streaming(
        &self,
        request: Request<Streaming<ExecTaskStreamingRequest>>,
    ) -> Answer<Self::ExecTaskStreamingStream> {
        let mut host = request.into_inner();
        let first = host.message().await?;
        let setup = first.and_then(|message| message.setup);
        let setup = setup.ok_or_else(|| Status::invalid_argument("setup: is missing from the first message"))?;
        let (known, settings, shutdown) = (self.known(&setup.task_id)?, self.settings(), self.shutdown.clone());
        Ok(Response::new(stream_of(async move |items| {
            streaming::run(&known, setup, &settings, host, &items, &shutdown).await
        })))
    }

    async fn create_network(&self, _: Request<CreateNetworkRequest>) -> Answer<CreateNetworkResponse> {
        Err(Status::unimplemented("networks are made by the agent: the driver does not set must_create_network"))
    }

    async fn destroy_network(&self, _: Request<DestroyNetworkRequest>) -> Answer<DestroyNetworkResponse> {
        Err(Status::unimplemented("networks are made by the agent: the driver does not set must_create_network"))
    }
}

fn signal_of(name: &str) -> Result<Signal, Status> {
    let wrong = |invalid: bowline_spec::Invalid| Error::from(invalid.in_field("signal"));
    name.parse().map_err(|invalid| error_codes::of(&wrong(invalid)))
}

/// How a task has ended. A code that nobody knows is -1, as Nomad has it where its executor is lost.
fn result(report: &ExitReport) -> ExitResult {
    let signal = report.signal.as_deref().and_then(|name| name.parse::<Signal>().ok());
    ExitResult {
        exit_code: report.exit_code.unwrap_or(-1),
        signal: signal.map_or(0, Signal::number),
        oom_killed: report.oom_killed.unwrap_or(false),
    }
}
